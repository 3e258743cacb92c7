"""Buckets and token budgets: orders like any other, with little padding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError, InputError, UsageError
from dataprep.runtime.external.map_dataset import Collated
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.loader.serve import serve, serve_steps
from dataprep.runtime.loader.token_budget import TokenBudgetSampler
from dataprep.runtime.order.buckets import Bucketed
from dataprep.runtime.order.lengths import KnownLengths, lengths_for, measure_lengths
from dataprep.runtime.order.permutation import Sequential, Shuffled
from dataprep.runtime.order.skips import Skips
from tests.support import SHARED_DATA, examples, needs_shared_data

KEYS: dict[str, Any] = {"content_id": "build", "seed": 3, "purpose": "train"}
SHUFFLED = Shuffled(**KEYS)
RAGGED = np.random.default_rng(0).geometric(0.02, 1000)


def padding_share(lengths: npt.NDArray[np.int64], batch: int) -> float:
    """Return the share of ids that is padding, if rows of these lengths are padded batch by batch.

    `lengths` are in the order of serving; each batch is as wide as its longest row.
    """
    if len(lengths) == 0 or not lengths.any():
        return 0.0
    starts = np.arange(0, len(lengths), batch)
    rows = np.diff([*starts.tolist(), len(lengths)])
    width = np.maximum.reduceat(lengths, starts)
    return 1 - float(lengths.sum()) / float((width * rows).sum())


def bucketed(lengths: Any = RAGGED, **options: Any) -> Bucketed:
    given: dict[str, Any] = {"order": SHUFFLED, "lengths": KnownLengths(lengths), "batch": 8}
    return Bucketed(**(given | KEYS | options))


def budget(lengths: Any = RAGGED, max_tokens: int = 2048, **options: Any) -> TokenBudgetSampler:
    order = options.pop("order", SHUFFLED)
    return TokenBudgetSampler(
        KnownLengths(lengths), max_tokens, **({"order": order} | KEYS | options)
    )


@examples(100)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=90),
    batch=st.integers(1, 9),
    pool=st.integers(1, 40),
    epoch=st.integers(0, 3),
)
def test_buckets_are_what_the_plain_definition_says(
    lengths: list[int], batch: int, pool: int, epoch: int
) -> None:
    """Item 40: pools of the shuffle, each sorted and cut into batches; the tail as it was."""
    n = len(lengths)
    order = bucketed(np.array(lengths, np.int64), batch=batch, pool=pool)
    found = order.samples(np.arange(n), n, epoch).tolist()
    base = SHUFFLED.samples(np.arange(n), n, epoch).tolist()
    whole = n - n % batch
    assert found[whole:] == base[whole:]
    for start in range(0, whole, order.pool):
        stop = min(start + order.pool, whole)
        plain = sorted(base[start:stop], key=lambda sample: lengths[sample])
        blocks = [plain[at : at + batch] for at in range(0, len(plain), batch)]
        served = [found[at : at + batch] for at in range(start, stop, batch)]
        assert sorted(served) == sorted(blocks)
    back = order.positions(np.array(found, np.int64), n, epoch)
    assert back.tolist() == list(range(n))


def collate(samples: list[int]) -> dict[str, torch.Tensor]:
    return {"n": torch.tensor(samples)}


def bucket_loader(batch_size: int = 8, dp_rank: int = 0, dp_size: int = 1) -> Loader:
    order = bucketed(batch=batch_size * dp_size, pool=64)
    samples = Collated(range(1000), collate)
    return serve(
        samples, batch_size, order=order, dp_rank=dp_rank, dp_size=dp_size,
        definition={**samples.definition, **order.definition, "samples": 1000, "seed": 3},
    )  # fmt: skip


def token_loader(max_tokens: int = 1700, end: Any = "drop", **topology: int) -> Loader:
    sampler = budget(max_tokens=max_tokens, rows_multiple=4, pool=128, end=end, **topology)
    samples = Collated(range(1000), collate, sample_mask=end == "pad")
    definition = {**samples.definition, **sampler.definition, "samples": 1000, "seed": 3}
    return serve_steps(samples, sampler, definition=definition)


def rows(loader: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in loader]


@pytest.mark.parametrize("make", [bucket_loader, token_loader])
@pytest.mark.parametrize("stop", [1, 7, 20])
def test_a_run_goes_on_in_mid_epoch(make: Any, stop: int) -> None:
    """Item 40: after any batch, of either kind, exactly the others are left."""
    loader = make()
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = rows(iterator)
    again = make()
    again.load_state_dict(state)
    assert rows(again) == rest
    assert again.order_digest == loader.order_digest
    assert rows(again) == rows(loader) != rows(make())


def test_ranks_share_the_steps_of_one_process() -> None:
    """Items 39, 40: at an equal global batch or budget the ranks' rows together are one's."""
    for make, size in ((bucket_loader, 16), (token_loader, 3400)):
        alone = rows(make(size))
        for ranks in (2, 4):
            parts = [rows(make(size // ranks, dp_rank=r, dp_size=ranks)) for r in range(ranks)]
            together = [[n for part in step for n in part] for step in zip(*parts, strict=True)]
            assert together == alone


@examples(100)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=4, max_size=80),
    max_tokens=st.integers(80, 200),
    ranks=st.sampled_from([1, 2]),
    pool=st.integers(1, 50),
)
def test_no_step_is_over_the_budget(
    lengths: list[int], max_tokens: int, ranks: int, pool: int
) -> None:
    """Item 40: every sample once, every rank within its tokens at every step."""
    seen: list[int] = []
    ends = [
        list(budget(lengths, max_tokens, pool=pool, rows_multiple=2, dp_rank=r, dp_size=ranks,
                    end="pad").steps(1)) for r in range(ranks)
    ]  # fmt: skip
    for steps in zip(*ends, strict=True):
        assert len({(len(step.samples), step.stop, step.digest) for step in steps}) == 1
        for step in steps:
            real = step.samples[step.samples >= 0]
            seen += real.tolist()
            widest = max(lengths[sample] for sample in real) if len(real) else 0
            assert widest * len(step.samples) <= max_tokens
        assert steps[0].stop == len(seen)
    assert sorted(seen) == list(range(len(lengths)))
    assert [step.last for step in ends[0]] == [False] * (len(ends[0]) - 1) + [True]


def test_the_length_of_an_epoch_is_that_of_its_steps() -> None:
    """`len` counts the steps of the epoch that comes next, also where they differ."""
    sampler, counts = budget(pool=100), set()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        counts.add(len(sampler))
        assert len(sampler) == len(list(sampler)) == len(list(sampler.steps(epoch)))
    assert len(counts) > 1


def test_short_rows_go_many_together() -> None:
    """A budget of 2,048 takes hundreds of short rows or one long one, and no more than max_rows."""
    lengths = [4] * 700 + [2000] * 3
    sizes = sorted(len(ids) for ids in budget(lengths, pool=1000))
    assert sizes == [1, 1, 1, 188, 512]
    assert max(len(ids) for ids in budget(lengths, max_rows=100)) == 100


def test_a_sample_over_the_budget_is_named() -> None:
    """The sample, its tokens, the limit and what mends it, when it is met."""
    with pytest.raises(InputError, match=r"sample 2: has 99 tokens.*max_tokens 50 .*max_length"):
        list(budget([1, 2, 99, 4], 50))
    with pytest.raises(InputError, match="sample 2: has 99 tokens: 4 such rows"):
        list(budget([1, 2, 99], 300, rows_multiple=4, end="partial", order=Sequential()))


def test_mistakes_are_named() -> None:
    """Arguments that cannot be met say which they are."""
    for where, call in (
        ("max_tokens", lambda: budget(max_tokens=0)),
        ("rows_multiple", lambda: budget(rows_multiple=3, dp_size=2)),
        ("rows_multiple", lambda: budget(rows_multiple=4, max_rows=2)),
        ("rows_multiple", lambda: budget([1, 2], rows_multiple=4)),
        ("dp_rank", lambda: budget(dp_rank=1)),
        ("end", lambda: budget(end="partial", dp_size=2)),
        ("end", lambda: budget(end="stop")),
        ("lengths", lambda: budget([1, -2])),
        ("lengths", lambda: budget([1.5, 2.0])),
        ("lengths", lambda: lengths_for([1, 2, 3])),
        ("lengths", lambda: lengths_for([1, 2, 3], [4, 5])),
        ("pool", lambda: bucketed(pool=0)),
        ("batch", lambda: bucketed(batch=0)),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.where == where


def test_a_state_of_other_lengths_is_refused() -> None:
    """Other lengths make other batches; and no pass begins inside a step."""
    state = bucket_loader().state_dict()
    state["order"] = {**state["order"], "lengths": KnownLengths([1]).identity}
    with pytest.raises(IncompatibleError, match="another order: lengths"):
        bucket_loader().load_state_dict(state)
    with pytest.raises(IncompatibleError, match="no step begins after 1 "):
        next(budget([5] * 20, 10).steps(0, 1))


def test_skipped_samples_stay_out_of_buckets() -> None:
    """Skip lists find their samples through the inverse."""
    order = bucketed(batch=8, pool=64)
    samples = Collated(range(1000), collate)
    loader = serve(samples, 8, order=order, definition={}, end="partial", skip=Skips([5, 17]))
    assert sorted(n for batch in rows(loader) for n in batch) == sorted({*range(1000)} - {5, 17})


def test_lengths_are_measured_by_field() -> None:
    """Any field, lists and tensors; a sample without it is named."""
    data = [{"input_ids": [1, 2], "x": torch.zeros(3)}, {"input_ids": [], "x": torch.zeros(1)}]
    assert measure_lengths(data).tolist() == [2, 0]
    assert measure_lengths(data, "x").tolist() == [3, 1]
    with pytest.raises(InputError, match="sample 0: has no 'y' with a length"):
        measure_lengths(data, "y")


@needs_shared_data
def test_padding_on_real_documents_is_under_five_percent() -> None:
    """Item 40: documents cut at 2,048 tokens; a plain shuffle pads over half."""
    lengths = real_lengths()
    n = len(lengths)
    positions = np.arange(n - n % 32)
    shuffled = lengths[SHUFFLED.samples(positions, n, 0)]
    assert padding_share(shuffled, 32) > 0.5
    order = bucketed(lengths, batch=32)
    assert padding_share(lengths[order.samples(positions, n, 0)], 32) < 0.02
    order = bucketed(lengths, batch=32, pool=1024)
    assert padding_share(lengths[order.samples(positions, n, 0)], 32) < 0.05
    steps = [lengths[ids] for ids in budget(lengths, 32768, max_rows=256)]
    assert 1 - sum(s.sum() for s in steps) / sum(s.max() * len(s) for s in steps) < 0.05


def real_lengths() -> npt.NDArray[np.int64]:
    """Tokens of each document, at four characters a token."""
    path = SHARED_DATA / "corpora" / "docs_en.jsonl"
    with path.open() as file:
        return np.array([min(2048, len(line) // 4 + 1) for line in file], np.int64)


def test_padding_share_counts_the_last_batch() -> None:
    """By hand: rows of 4 and 2, then a row of 3 alone; nothing is 0."""
    assert padding_share(np.array([4, 2, 3]), 2) == pytest.approx(2 / 11)
    assert padding_share(np.array([], np.int64), 2) == 0.0
