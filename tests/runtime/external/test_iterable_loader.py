"""Streams that divide themselves, draw, fail or end: behind our loader every row comes once."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker

from dataprep.formats.errors import DataprepError, IncompatibleError, InputError, UsageError
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.iterable_rows import all_rows
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.loader.loader import Loader

N = 20


class Dividing(IterableDataset[int]):
    """Gives a worker its part at once, as the example in the documentation of torch does."""

    def __init__(self, start: int = 0, stop: int = N) -> None:
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.start + first, self.stop, step))


def shuffled() -> Iterator[int]:
    numbers = list(range(N))
    random.shuffle(numbers)
    yield from numbers


def noisy() -> Iterator[float]:
    for _ in range(N):
        yield random.random() + float(np.random.random()) + torch.rand(1).item()


def listed(samples: list[Any]) -> list[Any]:
    return list(samples)


def ours(source: Any, **options: Any) -> Any:
    ranks = {name: options.pop(name) for name in ("dp_rank", "dp_size") if name in options}
    collate = options.pop("collate_fn", listed)
    return foreign_stream_loader(
        source, LoaderConfig(**{"batch_size": 3, **options}), collate=collate, **ranks
    )


@pytest.fixture
def by_workers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What so many workers give together, one after the other in this process."""

    def read(loader: Loader, workers: int) -> list[Any]:
        found: list[Any] = []
        for number in range(workers):
            info = worker.WorkerInfo(
                id=number, num_workers=workers, seed=number, dataset=Dividing()
            )
            monkeypatch.setattr(worker, "_worker_info", info)
            random.seed(number)  # as torch does: other numbers in each
            found += loader.dataset_obj
            monkeypatch.undo()
        return found

    return read


@pytest.mark.parametrize(
    "source",
    [Dividing(), ChainDataset([Dividing(0, 7), Dividing(7, N)]), Dividing().__iter__, shuffled],
    ids=["dividing", "chained", "a function", "shuffled"],
)
def test_streams_that_look_where_they_are(
    source: Any, by_workers: Callable[..., list[Any]]
) -> None:
    """What a stream makes of being in a worker, or of its generators, loses no row."""
    batches = by_workers(ours(source), 2)
    assert sorted(number for batch in batches for number in batch) == list(range(N))


def test_real_workers_read_the_stream_that_one_process_reads() -> None:
    """The same batches, also where the stream and the collate function draw."""

    def collate(samples: list[Any]) -> tuple[list[Any], float]:
        return samples, random.random()

    def served(workers: int) -> list[Any]:
        context = {"multiprocessing_context": "fork"} if workers else {}
        return [*ours(noisy, collate_fn=collate, num_workers=workers, **context)]

    assert served(2) == served(0)
    assert len({drawn for _, drawn in served(0)}) == 7


def test_a_stream_that_draws_follows_seed_and_epoch_alone() -> None:
    """The trainer's draws change nothing of it, it changes none of the trainer's."""
    first = [row for _, row in all_rows(noisy, 1, seed=5)]
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    rows = all_rows(noisy, 1, seed=5)
    found = [next(rows)[1] for _ in range(N // 2)]
    after = random.random(), np.random.random(), torch.rand(1).item()
    assert (found + [row for _, row in rows], after) == (first, before)
    assert len(set(first)) == N
    assert [row for _, row in all_rows(noisy, 2, seed=5)] != first
    assert [row for _, row in all_rows(noisy, 1, seed=6)] != first


def test_a_wrapped_stream_that_draws_has_to_say_so() -> None:
    """A thread may read it otherwise, while the trainer draws from the same generators."""
    for data in (
        StreamingPreprocessedDataset(shuffled),
        ours(StreamingPreprocessedDataset(shuffled)),
        ours(shuffled, draws=False),
    ):
        with pytest.raises(UsageError, match=r"draws: the stream draws .* Pass draws=True"):
            list(data)
    said = StreamingPreprocessedDataset(shuffled, draws=True, buffer_size=0, seed=3)
    loader = ours(said, seed=3)
    assert sum(loader, []) == list(said) != list(range(N))  # noqa: RUF017
    assert loader.prefetch == 0


def test_errors_in_workers_are_those_of_one_process() -> None:
    """Not torch's text of them, with the traceback in it."""

    def unlucky() -> Iterator[int]:
        yield from range(4)
        raise ValueError("unlucky")

    def told(source: Any, workers: int) -> tuple[type[DataprepError], str]:
        context = {"multiprocessing_context": "fork"} if workers else {}
        with pytest.raises(DataprepError) as error:
            list(ours(source, num_workers=workers, **context))
        return type(error.value), str(error.value)

    for source in (unlucky, StreamingPreprocessedDataset(unlucky, transform=len)):
        assert told(source, 1) == told(source, 0)
    assert told(unlucky, 0)[1].startswith("error[E_INPUT] row 4: reading it raised ValueError")


def test_workers_end_with_an_error() -> None:
    """At once, and not when garbage is collected: torch would wait five seconds for each then."""
    before = set(multiprocessing.active_children())
    loader = ours(lambda: iter([1, 2, 3, None]), collate_fn=sum, num_workers=2,
                  multiprocessing_context="fork")  # fmt: skip
    with pytest.raises(DataprepError) as kept:  # with its traceback, which holds the frames
        list(loader)
    assert "NoneType" in str(kept.value)
    assert not set(multiprocessing.active_children()) - before


def test_a_function_that_fails_or_gives_nothing_to_read() -> None:
    """Row 0 is named; not a traceback of ours."""
    for source in (lambda: 1 / 0, lambda: None):
        with pytest.raises(InputError, match="row 0: reading it raised"):
            list(ours(source))


def test_batches_are_what_the_collate_function_gives() -> None:
    """Arrays stay arrays, as behind the loader of samples by number."""
    (batch,) = ours(lambda: iter([1.0, 2.0]), collate_fn=np.array)
    assert isinstance(batch, np.ndarray)


def test_a_pass_without_a_batch_is_told() -> None:
    """As of a function that gives the same iterator again, which then has ended."""
    once = iter(range(6))
    loader = ours(lambda: once)
    assert len(list(loader)) == 2
    with pytest.warns(UserWarning, match="epoch 1 of the stream has no batch"):
        assert not list(loader)


def test_a_stream_that_has_become_shorter_is_not_gone_on_with() -> None:
    """It was taken for one of which nothing is left."""
    state = ours(lambda: iter(range(N))).state_dict() | {"position": 6}
    with pytest.raises(
        IncompatibleError, match="state: stands at row 6 of epoch 0, the stream has 5"
    ):
        list(_resumed(ours(lambda: iter(range(5))), state))
    assert len(list(_resumed(ours(lambda: iter(range(6))), state))) == 2  # those of epoch 1


def _resumed(loader: Loader, state: dict[str, Any]) -> Loader:
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({3, 1}, "is a set, whose order is another in every process. Pass a sorted list"),
        ("data.jsonl", "is a str, not the rows of one. Open or load the data first"),
        (DataLoader(Dividing()), "is a DataLoader, which gives batches. Pass its dataset"),
    ],
    ids=["set", "path", "loader"],
)
def test_what_is_no_stream(source: Any, problem: str) -> None:
    """Things that can be iterated over and are no rows."""
    with pytest.raises(UsageError, match=problem):
        ours(source)


def test_a_loaded_place_is_not_dropped_in_silence() -> None:
    """Another epoch before a pass began there is told; its own epoch, and later ones, are not."""
    first = ours(Dividing())
    list(first)
    iterator = iter(first)
    next(iterator), next(iterator)
    state = first.state_dict()
    second = ours(Dividing())
    second.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 1, position 6"):
        second.set_epoch(0)
    second.set_epoch(5)
    second.load_state_dict(state)
    second.set_epoch(1)
    assert list(second) == list(iterator)
    second.set_epoch(0)
    assert second.epoch == 0
