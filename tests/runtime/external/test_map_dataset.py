"""Other people's datasets behind our loader, against plain lists."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import InputError, UsageError
from dataprep.runtime.errors import SampleError
from dataprep.runtime.external.map_dataset import Collated, collated_order
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.loader.serve import serve
from dataprep.runtime.types import Collate


def stack(samples: list[int]) -> dict[str, torch.Tensor]:
    """A batch of numbers."""
    return {"n": torch.tensor(samples), "labels": torch.tensor(samples)}


@dataclass(frozen=True)
class Stamp:
    """Adds the epoch."""

    epoch: int = 0

    def __call__(self, samples: list[int]) -> dict[str, torch.Tensor]:
        return {"n": torch.tensor(samples), "epoch": torch.full((len(samples),), self.epoch)}

    def at_epoch(self, epoch: int) -> Stamp:
        return replace(self, epoch=epoch)


class Fails:
    """A dataset of ten, of which one cannot be read."""

    def __init__(self, together: bool) -> None:
        if together:
            self.__getitems__ = lambda numbers: [self[number] for number in numbers]

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("no such image")
        return index


def make(data: Any, collate: Collate = stack, size: int = 4, **options: Any) -> Loader:
    samples = Collated(data, collate, sample_mask=options.get("end") == "pad")
    order, definition = collated_order(samples, seed=options.pop("seed", 0))
    return serve(samples, size, order=order, definition=definition, **options)


def served(loader: Loader) -> list[int]:
    return [n for batch in loader for n in batch["n"].tolist()]


def test_every_sample_once_and_a_new_order_each_epoch() -> None:
    """All samples of a list are served, in an order fixed by the seed."""
    loader = make(range(20), end="partial")
    first, second = served(loader), served(loader)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert served(make(range(20), end="partial")) == first
    assert served(make(range(20), end="partial", seed=1)) != first


def test_a_state_resumes_and_fits_its_dataset_alone() -> None:
    """The tail after a saved state is the tail of the pass; another length is refused."""
    loader = make(range(20))
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    rest = [n for batch in iterator for n in batch["n"].tolist()]
    again = make(range(20))
    again.load_state_dict(state)
    assert served(again) == rest
    with pytest.raises(Exception, match="samples 20, not 24"):
        make(range(24)).load_state_dict(state)


def test_rows_that_only_fill_do_not_count() -> None:
    """With several ranks no sample is served twice, and labels of filling rows are -100."""
    seen = []
    for rank in range(4):
        for batch in make(range(18), size=2, dp_rank=rank, dp_size=4, end="pad"):
            mask = batch["sample_mask"]
            assert batch["n"].shape == (2,)
            assert batch["labels"][~mask].tolist() == [-100] * int((~mask).sum())
            seen += batch["n"][mask].tolist()
    assert sorted(seen) == list(range(18))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_reaches_the_collate_function(workers: int) -> None:
    """Persistent workers see the epoch too, and a resumed pass its own."""
    loader = make(range(8), Stamp(), num_workers=workers)
    for epoch in range(2):
        assert [set(batch["epoch"].tolist()) for batch in loader] == [{epoch}] * 2
    samples = loader.dataset_obj
    assert samples.batch(np.arange(3))["epoch"].tolist() == [0, 0, 0]


def test_skipped_samples_of_tagged_steps_stay_out() -> None:
    """Skips find the positions of samples that have the epoch with them."""
    assert sorted(served(make(range(9), Stamp(), skip=[3], end="partial"))) == [
        0,
        1,
        2,
        *range(4, 9),
    ]


@pytest.mark.parametrize("together", [False, True])
def test_a_sample_that_cannot_be_read_is_named(together: bool) -> None:
    """The number of the sample and the cause, whether samples come one by one or together."""
    samples = Collated(Fails(together), stack)
    with pytest.raises(SampleError, match=r"sample 7: reading it raised ValueError: no such") as e:
        samples.batch([1, 7, 2])
    assert isinstance(e.value.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_a_sample_that_cannot_be_collated_is_named() -> None:
    """A row of the batch becomes the number of the sample."""

    def refuse(samples: list[int]) -> Any:
        raise SampleError("is odd", row=samples.index(3), field="n")

    with pytest.raises(InputError, match=r"\] sample 3, field 'n': is odd\."):
        Collated(range(9), refuse).batch([2, 3])
    with pytest.raises(InputError, match=r"samples 2, 3: collating them raised TypeError"):
        Collated(range(9), lambda samples: 1 + None).batch([2, 3])  # type: ignore


def test_numbers_outside_are_refused() -> None:
    """A negative number does not silently serve another sample; iteration ends."""
    samples = Collated([5, 6], stack)
    for wrong in ([2], [-1]):
        with pytest.raises(IndexError, match="outside 0:2"):
            samples.batch(wrong)
    assert samples[-1]["n"].item() == 6
    assert [samples[index]["n"].item() for index in range(2)] == [5, 6]


def test_what_is_no_dataset_is_refused() -> None:
    """Streams, batches and uncallable functions are told apart at once."""
    with pytest.raises(UsageError, match="streams are served by"):
        Collated(iter([1]), stack)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be callable"):
        Collated([1], None)  # type: ignore[arg-type]
    together = Fails(together=True)
    together.__getitems__ = stack  # type: ignore[assignment]
    with pytest.raises(UsageError, match="gives batches, not a list"):
        Collated(together, stack).batch([0])


def test_batches_need_not_be_dicts() -> None:
    """Whatever the collate function gives is served and counted."""
    loader: Any = make([1, 2], torch.tensor, 2)
    assert sorted(next(iter(loader)).tolist()) == [1, 2]
    assert loader.stats().samples == 2


def test_steps_have_the_epoch_with_their_samples() -> None:
    """In the bits above 2**40 and nowhere else, the last, short step included."""
    sampler = make(range(9), Stamp(), end="partial").sampler_obj
    for epoch in (0, 1, (1 << 14) + 1):
        order = sampler.order.samples(np.arange(9), 9, epoch)
        assert int(order.max()) < 9
        served = np.concatenate([step.samples for step in sampler.steps(epoch)])
        assert served.tolist() == (order + (epoch + 1 << 40)).tolist()
