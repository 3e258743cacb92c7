"""What decides the samples of a caller's dataset, stream or order stands in the definition, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.checks import name_of
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.map_loader import Buckets, foreign_loader
from dataprep.runtime.external.preprocess import Preprocessing
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.loader.token_budget import TokenBudgetSampler
from dataprep.runtime.mixture.order import MixtureOrder, WeightedSource, WeightedSources
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.order.buckets import Bucketed
from dataprep.runtime.order.lengths import KnownLengths
from dataprep.runtime.order.permutation import Order, Shuffled
from dataprep.runtime.rows.documents import DocumentDataset
from tests.support import REPOSITORY

NARROW = REPOSITORY / "data_fixtures" / "golden" / "v1" / "narrow"
NUMBERS = list(range(40))


def loader_of(*, draws: bool = False, batch_size: int = 4, **options: Any) -> Any:
    config = LoaderConfig(batch_size=batch_size, collate_fn=torch.tensor, draws=draws)
    return foreign_loader(NUMBERS, config, **options)


def mixed(last: int = 1, seed: int = 1, **options: Any) -> MixtureOrder:
    sources = [
        WeightedSource(name="a", content_id="a" * 64, samples=30, weight=3),
        WeightedSource(name="b", content_id="b" * 64, samples=10, weight=last),
    ]
    return WeightedSources(sources).order(seed=seed, **options)


def state_of(loader: Any, batches: int = 1) -> dict[str, Any]:
    served = iter(loader)
    for _ in range(batches):
        next(served)
    found: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return found


@pytest.mark.parametrize("draws", [True, False])
def test_a_mixture_over_samples_that_draw_is_dealt(draws: bool) -> None:
    """Four ranks together have the batch of one process, and every rank has both sources."""
    ranks = [
        loader_of(draws=draws, batch_size=1, sampler=mixed(), dp_rank=rank, dp_size=4)
        for rank in range(4)
    ]
    parts = [[batch.item() for batch in rank] for rank in ranks]
    alone = [batch.tolist() for batch in loader_of(draws=draws, sampler=mixed())]
    assert [list(batch) for batch in zip(*parts, strict=True)] == alone
    assert all(min(part) < 30 <= max(part) for part in parts)


@pytest.mark.parametrize("draws", [True, False])
def test_a_mixture_over_samples_that_draw_has_its_state(draws: bool) -> None:
    """Other weights begin a phase where they are allowed, and are refused where not."""
    state = state_of(loader_of(draws=draws, sampler=mixed()))
    rest = [batch.tolist() for batch in loader_of(draws=draws, sampler=mixed())][1:]
    again = loader_of(draws=draws, sampler=mixed())
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest
    for other in (mixed(last=7), mixed(seed=9)):
        with pytest.raises(IncompatibleError):
            loader_of(draws=draws, sampler=other).load_state_dict(state)
    changed = loader_of(draws=draws, sampler=mixed(last=7, weights_changed=True))
    changed.load_state_dict(state)
    assert len(state_of(changed)["phases"]) == 2


def orders(seed: int) -> list[Order]:
    ids: dict[str, Any] = {"content_id": "x", "purpose": "p", "seed": seed}
    full, lengths = Shuffled(**ids), KnownLengths(range(40))
    return [
        full, Blocks(**ids, block=4, window=2),
        Bucketed(**{**ids, "seed": 1}, order=full, lengths=lengths, batch=4),
        Bucketed(**ids, order=Shuffled(content_id="x", seed=1, purpose="p"), lengths=lengths,
                 batch=4),
        mixed(seed=seed), mixed(seed=seed, shuffle=False),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(5))
def test_an_order_of_ours_as_sampler_is_in_the_definition(which: int) -> None:
    """A state of one seed is refused by a loader with the other; so is one of other data."""
    one, same, other = (loader_of(sampler=orders(seed)[which]) for seed in (3, 3, 4))
    state = state_of(one)
    same.load_state_dict(state)
    with pytest.raises(IncompatibleError):
        other.load_state_dict(state)


def test_the_content_and_sizes_of_a_sampler_are_in_the_definition() -> None:
    """The error names what differs."""
    ids: dict[str, Any] = {"purpose": "p", "seed": 3, "window": 2}
    state = state_of(loader_of(sampler=Blocks(**ids, content_id="x", block=4)))
    with pytest.raises(IncompatibleError, match="sampler block 4, not 8"):
        loader_of(sampler=Blocks(**ids, content_id="x", block=8)).load_state_dict(state)
    with pytest.raises(IncompatibleError, match="sampler content_id x, not y"):
        loader_of(sampler=Blocks(**ids, content_id="y", block=4)).load_state_dict(state)
    assert loader_of(sampler=torch.utils.data.SequentialSampler(NUMBERS)).order["sampler"] == (
        "SequentialSampler"
    )


@pytest.mark.parametrize("buckets", [None, Buckets(lengths=NUMBERS, max_tokens=400)])
def test_a_digest_does_not_depend_on_whether_samples_draw(buckets: Any) -> None:
    """It is of the samples served, in any epoch."""
    digests = set()
    for draws in (True, False):
        loader = loader_of(draws=draws, buckets=buckets, epoch=3)
        assert sorted(number for batch in loader for number in batch.tolist()) == NUMBERS
        digests.add(loader.order_digest)
    assert len(digests) == 1


def test_whether_samples_are_seeded_is_in_the_definition() -> None:
    """Loaders with and without draws refuse the states of each other; so do streams."""
    for draws in (True, False):
        with pytest.raises(IncompatibleError, match="draws"):
            loader_of(draws=draws).load_state_dict(state_of(loader_of(draws=not draws)))
        with pytest.raises(IncompatibleError, match="draws"):
            streamed(draws=draws).load_state_dict(state_of(streamed(draws=not draws)))


def numbers() -> Iterator[int]:
    return iter(NUMBERS)


def streamed(*, draws: bool = False, shuffle: bool = True, **options: Any) -> Any:
    config = LoaderConfig(batch_size=4, collate_fn=torch.tensor, draws=draws, shuffle=shuffle)
    return foreign_stream_loader(options.pop("source", numbers), config, **options)


def test_a_buffer_that_was_not_given_is_that_of_the_state() -> None:
    """So a run goes on as it was, in worker processes too; one that was given is kept."""
    first = streamed(buffer=16)
    served = iter(first)
    next(served)
    state = first.state_dict()
    rest = [batch.tolist() for batch in served]
    plain = StreamingPreprocessedDataset(numbers, draws=False)
    for loader in (streamed(), streamed(source=plain, identity="numbers")):
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest
        assert loader.order == first.order
    with pytest.raises(IncompatibleError, match="buffer 16, not 8"):
        streamed(buffer=8).load_state_dict(state)
    with pytest.raises(IncompatibleError, match="buffer 16, not 0"):
        streamed(shuffle=False).load_state_dict(state)
    with pytest.raises(IncompatibleError, match="buffer 0, not 1024"):
        streamed().load_state_dict(streamed(shuffle=False).state_dict())


def test_buckets_are_keyed_by_the_data() -> None:
    """By the content id of a split, and by the identity of other data."""
    split = open_dataset(NARROW).split("train")
    documents = DocumentDataset(split, max_length=32)
    for options in ({}, {"max_tokens": 64}):
        buckets = Buckets(**options, lengths=NUMBERS)
        stored = foreign_loader(documents, LoaderConfig(batch_size=2), buckets=Buckets(**options))
        named = loader_of(buckets=buckets, identity="mine")
        assert [keyed_by(stored), keyed_by(named)] == [split.content_id, "mine"]


def keyed_by(loader: Any) -> str:
    sampler = loader.sampler_obj
    if isinstance(sampler, TokenBudgetSampler):
        return sampler._key[0]
    content_id: str = sampler.order.content_id
    return content_id


def clean(example: Any, *_: Any) -> Any:
    """Return the example as it is."""
    return example


def test_functions_are_named_by_one_rule() -> None:
    """By the last part of their names, also inside functions, classes and partial functions."""
    outer = clean

    def clean_too(example: Any) -> Any:
        return example

    class Cleaner:
        def clean(self, example: Any) -> Any:
            return example

        def __call__(self, example: Any) -> Any:
            return example

    named: list[Any] = [
        outer,
        partial(outer, 1),
        partial(partial(outer), 1),
        Cleaner().clean,
        Cleaner.clean,
    ]
    assert {name_of(one) for one in named} == {"clean"}
    assert [name_of(clean_too), name_of(Cleaner()), name_of(Cleaner)] == [
        "clean_too", "Cleaner", "Cleaner"
    ]  # fmt: skip
    assert len({Preprocessing(transform=one).identity for one in named}) == 1
    assert streamed(source=lambda: iter(NUMBERS)).order["content"] == ["<lambda>"]
