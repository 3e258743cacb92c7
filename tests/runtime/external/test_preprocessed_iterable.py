"""Other people's streams: every row once, whoever reads; buffers, skips, epochs, resume."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.iterable_rows import all_rows, part_of_rows, through_buffer
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.loader.loader import Loader

N = 40
BAD = (3, 8, 9, 10, 11, 20, 21, 39)
Stream = StreamingPreprocessedDataset


def rows() -> Iterator[dict[str, int]]:
    return ({"n": n} for n in range(N))


def parts(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"n": n} for n in range(shard * 10, shard * 10 + 10))


def hf_stream(shards: int = 4) -> Any:
    return datasets.IterableDataset.from_generator(
        parts, gen_kwargs={"shards": list(range(shards))}
    )


class Engine:
    """Refuses some rows."""

    def process(self, example: dict[str, int]) -> dict[str, Any]:
        if example["n"] in BAD:
            raise ValueError(f"{example['n']} is bad")
        return {"n": example["n"], "twice": [example["n"]] * 2}

    def describe(self) -> dict[str, Any]:
        return {"engine": "refusing"}


def fine(example: dict[str, int]) -> dict[str, int]:
    return example


def numbers(batches: Any) -> list[int]:
    found: list[int] = []
    for batch in batches:
        mask = batch.get("sample_mask")
        n = batch["n"] if mask is None else batch["n"][mask]
        found += n.tolist()
    return found


def stock(data: Any, workers: int) -> DataLoader[Any]:
    context = "fork" if workers else None
    return DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context=context)


def ours(data: Any, **options: Any) -> Loader:
    names = ("dp_rank", "dp_size", "collate")
    ranks = {name: options.pop(name) for name in names if name in options}
    return foreign_stream_loader(data, LoaderConfig(**{"batch_size": 4, **options}), **ranks)


def test_nothing_is_read_before_it_is_needed() -> None:
    """Item 61: of an endless stream some samples come out; no more is read than is held."""
    read: list[int] = []

    def endless() -> Iterator[dict[str, int]]:
        n = 0
        while True:
            read.append(n)
            yield {"n": n}
            n += 1

    found = list(islice(Stream(endless, buffer_size=8), 5))
    assert len(found) == 5
    assert len(read) <= 8 + 5
    assert Stream(hf_stream()).features == hf_stream().features


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("by_shards", [False, True])
def test_every_row_once_over_workers(shards: int, by_shards: bool) -> None:
    """Items 62, 64: a stock loader, a stream that divides itself too, workers than shards."""
    data = Stream(hf_stream(shards), transform=fine, by_shards=by_shards, buffer_size=6)
    assert sorted(numbers(stock(data, 2))) == list(range(10 * shards))


@given(
    st.integers(1, 7), st.integers(1, 9), st.booleans(), st.integers(0, 8), st.integers(0, 3)
)  # fmt: skip
def test_every_row_once_over_parts(
    shards: int, world: int, by_shards: bool, buffer: int, epoch: int
) -> None:
    """Items 62, 63, 64: whatever the numbers of ranks, workers and shards."""

    class Shards:
        def __init__(self, mine: list[int]) -> None:
            self.mine = mine
            self.num_shards = len(mine)

        def shard(self, num_shards: int, index: int, contiguous: bool) -> Shards:
            assert not contiguous
            return Shards(self.mine[index::num_shards])

        def __iter__(self) -> Iterator[int]:
            return (10 * shard + n for shard in self.mine for n in range(shard % 4))

    source = Shards(list(range(shards)))
    whole = sorted(source)
    found = [
        list(through_buffer(
            part_of_rows(source, epoch, part, world, by_shards=by_shards), buffer, 0, epoch
        ))
        for part in range(world)
    ]  # fmt: skip
    assert sorted(row for part in found for _, row in part) == whole
    data = [
        Stream(source, buffer_size=buffer, rank=rank, world_size=world, by_shards=by_shards)
        for rank in range(world)
    ]
    assert sorted(row for one in data for row in one) == whole


def test_ranks_of_a_stock_loader_share_the_rows() -> None:
    """Item 63: each rank with workers of its own; no row twice, none lost."""
    found = [
        numbers(stock(Stream(hf_stream(3), rank=rank, world_size=2, buffer_size=5), rank))
        for rank in range(2)
    ]
    assert not set(found[0]) & set(found[1])
    assert sorted(found[0] + found[1]) == list(range(30))


def test_ranks_behind_a_loader_share_global_batches() -> None:
    """Item 63: a step of all is the step of one rank, and workers change nothing."""
    data = Stream(rows, buffer_size=16)
    whole = list(ours(data, batch_size=12))
    ranks = [list(ours(data, batch_size=4, dp_rank=rank, dp_size=3)) for rank in range(3)]
    assert [len(rank) for rank in ranks] == [len(whole)] * 3
    for step, batch in enumerate(whole):
        assert numbers(rank[step] for rank in ranks) == batch["n"].tolist()
    workers = ours(
        data, batch_size=4, dp_rank=1, dp_size=3, num_workers=2, multiprocessing_context="fork"
    )
    assert numbers(workers) == numbers(ranks[1])


@given(st.integers(0, 30), st.integers(0, 12), st.integers(0, 5))
def test_the_buffer_is_what_its_definition_says(count: int, size: int, epoch: int) -> None:
    """Item 65: a permutation, no row more than size - 1 places early, by (seed, epoch) alone."""

    def mixed(seed: int, epoch: int) -> list[int]:
        return [n for n, _ in through_buffer(enumerate(range(count)), size, seed, epoch)]

    found = mixed(1, epoch)
    assert sorted(found) == list(range(count))
    assert all(row - place < max(1, size) for place, row in enumerate(found))
    assert found == mixed(1, epoch)
    if size < 2:
        assert found == list(range(count))
    elif count > 20 and size > 4:
        assert found != mixed(2, epoch)
        assert found != mixed(1, epoch + 1)


def test_epochs_reach_live_workers() -> None:
    """Item 65: set_epoch, in this process and in workers that are kept alive."""
    data = Stream(rows, buffer_size=16, seed=3)
    orders = []
    loader: DataLoader[Any] = DataLoader(
        data, batch_size=None, num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        orders.append([int(sample["n"]) for sample in loader])
        assert orders[-1] == [sample["n"] for sample in data]
    assert orders[0] == orders[2] != orders[1]
    del loader
    assert [sample["n"] for sample in Stream(rows, buffer_size=1)] == list(range(N))


def test_bad_rows_are_skipped_and_counted() -> None:
    """Item 66: counts by stage; the first is told with its cause; without it, it is an error."""
    data = Stream(rows, Engine(), skip_errors=True, buffer_size=0)
    with pytest.warns(UserWarning, match="row 3, engine: raised ValueError: 3 is bad"):
        found = [sample["n"] for sample in data]
    assert found == [n for n in range(N) if n not in BAD]
    assert (data.skipped, data.skips()) == (len(BAD), {"engine": len(BAD)})
    with pytest.raises(DataprepError, match="row 3, engine: raised ValueError"):
        list(Stream(rows, Engine(), buffer_size=0))
    hopeless = Stream(lambda: iter([{"n": 3}]), Engine(), skip_errors=True)
    with pytest.warns(UserWarning), pytest.raises(InputError, match="none of its 1 rows"):
        list(hopeless)
    with pytest.warns(UserWarning), pytest.raises(InputError, match="none of its rows"):
        list(ours(Stream(lambda: iter([{"n": 3}]), Engine(), skip_errors=True)))


@pytest.mark.filterwarnings("ignore:left out")
def test_skips_in_workers_are_counted_here() -> None:
    """Item 66: the counts of worker processes come back, behind a stock loader and ours."""
    data = Stream(rows, Engine(), skip_errors=True)
    good = [n for n in range(N) if n not in BAD]
    assert sorted(numbers(stock(data, 2))) == good
    assert data.skipped == len(BAD)
    data = Stream(rows, Engine(), skip_errors=True)
    loader = ours(data, num_workers=2, multiprocessing_context="fork")
    assert sorted(numbers(loader)) == good
    assert data.skipped == len(BAD)


@pytest.mark.filterwarnings("ignore:left out")
def test_a_skipped_row_moves_no_other() -> None:
    """Items 63, 66: on one rank its batch is shorter; on several a masked row fills its place."""
    data = Stream(rows, Engine(), skip_errors=True, buffer_size=0)
    plain = list(ours(data, shuffle=False))
    assert [batch["n"].tolist() for batch in plain[:4]] == [
        [0, 1, 2], [4, 5, 6, 7], [12, 13, 14, 15], [16, 17, 18, 19]
    ]  # fmt: skip
    data = Stream(rows, Engine(), skip_errors=True, buffer_size=0)
    ranks = [list(ours(data, batch_size=2, dp_rank=r, dp_size=2, shuffle=False)) for r in (0, 1)]
    assert (
        len(ranks[0]) == len(ranks[1]) == 9
    )  # of 8 to 11 there is no good row, of 20 and 21 for one rank
    assert sorted(numbers(ranks[0] + ranks[1])) == [n for n in range(N) if n not in BAD]
    assert {tuple(batch["n"].shape) for rank in ranks for batch in rank} == {(2,)}
    assert data.skipped == len(BAD)


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("stop", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("skip", [False, True])
def test_a_run_goes_on_with_the_next_batch(stop: int, skip: bool) -> None:
    """Item 38: of a stream, with other workers, ranks and batches too; the tail is the same."""

    def make(**options: Any) -> Loader:
        return ours(Stream(rows, Engine() if skip else None, skip_errors=skip), **options)

    through = make()
    expected = numbers(through) + numbers(through)
    loader = make()
    before = numbers(islice(loader, stop))
    again = make(num_workers=1, multiprocessing_context="fork", batch_size=2)
    again.load_state_dict(loader.state_dict())
    found = before + numbers(again)
    assert found == expected[: len(found)]
    assert len(found) == len(expected) // 2
    if not skip:
        with pytest.raises(DataprepError, match="another dataset"):
            ours(Stream(rows, transform=fine)).load_state_dict(loader.state_dict())


def test_infinite_streams() -> None:
    """Item 68: epoch after epoch, by itself and behind a loader, whose state says where."""
    data = Stream(rows, infinite=True, buffer_size=16)
    plain = [sample["n"] for sample in islice(data, 2 * N + 5)]
    assert sorted(plain[:N]) == sorted(plain[N : 2 * N]) == list(range(N))
    assert plain[:N] != plain[N : 2 * N]
    loader = ours(data)
    passing = iter(loader)
    served = numbers(islice(passing, 25))
    finite = ours(Stream(rows, buffer_size=16))
    assert served == [*numbers(finite), *numbers(finite), *numbers(finite)][:100]
    assert loader.state_dict()["epoch"] == 2
    again = ours(Stream(rows, infinite=True, buffer_size=16))
    again.load_state_dict(loader.state_dict())
    assert numbers(islice(again, 3)) == numbers(islice(passing, 3))
    for empty in (Stream(list, infinite=True), ours(Stream(list, infinite=True))):
        with pytest.raises(InputError, match=r"it has no rows|no batch"):
            list(empty)
    assert list(islice(Stream(list, infinite=True, rank=1, world_size=2), 3)) == []


def drawing(example: dict[str, int]) -> dict[str, Any]:
    return {"n": example["n"], "r": random.random()}


def test_draws_of_a_stream_are_seeded() -> None:
    """Item 65: by (seed, epoch, row), whatever the workers; undeclared ones are refused."""

    def served(workers: int, epoch: int) -> list[tuple[int, float]]:
        data = Stream(rows, transform=drawing, draws=True)
        context = "fork" if workers else None
        loader = ours(data, num_workers=workers, multiprocessing_context=context)
        loader.set_epoch(epoch)
        return [pair for b in loader for pair in zip(b["n"].tolist(), b["r"].tolist(), strict=True)]

    assert served(0, 0) == served(2, 0)
    assert set(served(0, 0)) & set(served(0, 1)) == set()
    with pytest.raises(UsageError, match="draws=True"):
        list(Stream(rows, transform=drawing))


def test_a_thread_makes_batches_ahead_of_time() -> None:
    """Item 61: of streams that say that they draw nothing; the batches are the same."""
    loader = ours(Stream(rows), collate=Default(report=False))
    assert loader.prefetch == 2
    assert ours(rows).prefetch == 0
    found = []
    for batch in loader:
        time.sleep(0.002)  # a trainer that leaves a thread time to work
        found += batch["n"].tolist()
    here = ours(Stream(rows), collate=Default(report=False), draws=True)
    assert here.prefetch == 0
    assert found == numbers(here)


def test_a_data_module_over_a_wrapped_stream() -> None:
    """Items 49, 61: the buffer is the stream's own; validation comes in the order of the stream."""
    data = Stream(hf_stream(), Engine(), skip_errors=False, transform=fine)
    held = Stream(rows, buffer_size=1000)
    module = UniversalDataModule(data, val_data=held, batch_size=8)
    assert numbers(module.val_dataloader()) == list(range(N))
    assert module.train_dataloader().order["buffer"] == 1000


def test_mistakes_are_named() -> None:
    """Item 61: what cannot be a stream, and options that make no sense."""

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (rows(), {}, "is an iterator, which can be read once"),
        (7, {}, "an? int cannot be iterated"),
        (rows, {"buffer_size": -1}, "buffer_size.*at least 0"),
        (rows, {"by_shards": True}, "by_shards.*has no shards"),
        (rows, {"rank": 2, "world_size": 2}, r"rank.*2 is not in 0 \.\. 1"),
        (rows, {"skip_errors": "yes"}, "skip_errors.*must be a bool"),
    ]
    for source, options, message in cases:
        with pytest.raises(UsageError, match=message):
            Stream(source, **options)
    with pytest.raises(InputError, match="row 1: reading it raised OSError: gone"):
        list(Stream(broken, skip_errors=True))
    assert list(all_rows([5], 0)) == [(0, 5)]
