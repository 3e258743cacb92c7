"""The iterable dataset as a training script uses it: topologies, epochs, resuming, mistakes."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from dataprep.formats.dataset import Split, open_dataset
from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError
from dataprep.formats.stream import Stream
from dataprep.runtime import stream_read
from dataprep.runtime.packed import PackedDataset
from dataprep.runtime.stream import StreamDataset
from dataprep.runtime.stream_loader import StreamLoader, stream_loader
from dataprep.runtime.stream_read import Readable
from dataprep.runtime.stream_state import Place
from dataprep.runtime.windows import IGNORED_LABEL, Labels, WindowDataset
from tests.datasets import make_dataset, random_split
from tests.support import examples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SEQ_LEN = 16
SAMPLES = 66
Steps = list[list[int | None]]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """66 windows of 16 in three shards, all different, with a loss mask."""
    documents = random_split([[300, 41], [0], [600, 130]], seed=1)
    masks = [[np.arange(len(ids)) % 7 > 0 for ids in shard] for shard in documents]
    path = tmp_path_factory.mktemp("stream") / "shards"
    make_dataset(path, {"train": documents}, masks={"train": masks})
    return open_dataset(path).split("train")


@pytest.fixture(scope="module")
def windows(split: Split) -> WindowDataset:
    return WindowDataset(
        split, seq_len=SEQ_LEN, sample_mask=True, position_ids=True, doc_ids=True, cu_seqlens=True
    )


@pytest.fixture(scope="module")
def steps_of(windows: WindowDataset) -> Callable[[Iterable[Any]], Steps]:
    """The sample numbers of every batch (or sample), None for a row that fills up."""
    numbers = {tuple(windows[i]["input_ids"].tolist()): i for i in range(len(windows))}

    def steps(batches: Iterable[Any]) -> Steps:
        found: Steps = []
        for batch in batches:
            ids = batch["input_ids"].reshape(-1, SEQ_LEN).tolist()
            real = batch["sample_mask"].reshape(-1).tolist()
            found.append([numbers[tuple(r)] if m else None for r, m in zip(ids, real, strict=True)])
        return found

    return steps


def stream(windows: Readable, **options: Any) -> StreamDataset:
    """Blocks of 5 samples, the last of one, in windows of 3; or a buffer of 9."""
    return StreamDataset(windows, **{"block": 5, "window": 3, "buffer": 9} | options)


def real(steps: Steps) -> list[int]:
    return [sample for step in steps for sample in step if sample is not None]


ORDERS: list[dict[str, Any]] = [{"shuffle": "blocks"}, {"shuffle": "buffer"}, {"shuffle": None}]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_sample_once(
    windows: WindowDataset, order: dict[str, Any], steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """On any number of ranks, batched or not: each sample once, and as many steps everywhere."""
    for size, ranks, end in product((None, 7), (1, 4), ("drop", "pad")):
        shares = [
            stream(windows, batch_size=size, dp_rank=rank, dp_size=ranks, end=end, **order)
            for rank in range(ranks)
        ]
        found = [steps_of(share) for share in shares]
        assert {len(steps) for steps in found} == {len(shares[0])}
        seen = [sample for steps in found for sample in real(steps)]
        lost = SAMPLES % (ranks * (size or 1)) if end == "drop" else 0
        assert len(set(seen)) == len(seen) == SAMPLES - lost
        assert {len(step) for steps in found for step in steps} == {size or 1}


def emulated(dataset: StreamDataset, workers: int) -> Iterator[Any]:
    """What a DataLoader with so many workers hands over, without the processes."""
    start = dataset._enter(Place(dataset.epoch), workers)
    rounds = zip_longest(*(dataset._serve(start, worker) for worker in range(workers)))
    return (batch for row in rounds for batch in row if batch is not None)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 3), (3, 1), (4, 2), (1, 5)])
def test_workers_divide_a_share(
    windows: WindowDataset, ranks: int, workers: int, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """More workers than blocks or steps as well: each sample once, equally many steps."""
    for options in ({"block": 30}, {"batch_size": 12}, {"shuffle": "buffer", "buffer": 40}):
        shares = [
            stream(windows, **{"batch_size": 3} | options, end="pad", dp_rank=rank, dp_size=ranks)
            for rank in range(ranks)
        ]
        found = [steps_of(emulated(share, workers)) for share in shares]
        assert {len(steps) for steps in found} == {len(shares[0])}
        assert sorted(sample for steps in found for sample in real(steps)) == list(range(SAMPLES))


def test_worker_processes_do_as_emulated(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """A stock DataLoader with five processes for three blocks, twice."""
    dataset = stream(windows, batch_size=3, block=30, end="pad", dp_rank=1, dp_size=2)
    loader = DataLoader(dataset, batch_size=None, num_workers=5, multiprocessing_context="fork")
    expected = steps_of(emulated(dataset, 5))
    assert steps_of(loader) == expected
    assert len(loader) == len(expected)


def test_single_samples_in_a_stock_loader(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """`batch_size` may be the DataLoader's, with workers or without."""
    seen: list[int] = []
    for rank, workers in ((0, 0), (1, 2)):
        loader = DataLoader(
            stream(windows, dp_rank=rank, dp_size=2), batch_size=4, num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        seen += real(steps_of(loader))
    assert sorted(seen) == list(range(SAMPLES))


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_rows_are_the_map_style_rows(
    split: Split, order: dict[str, Any], tmp_path: Path, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Ids, labels, loss mask, position ids, cu_seqlens: a batch is the batch of its samples."""
    common: dict[str, Any] = {"position_ids": True, "doc_ids": True, "cu_seqlens": True}
    known: tuple[Labels | None, ...] = ("shifted", "unshifted", None)
    for labels, stride in zip(known, (SEQ_LEN, 5, SEQ_LEN), strict=True):
        dataset = WindowDataset(split, seq_len=SEQ_LEN, stride=stride, labels=labels, **common)
        follow(dataset, order)
    assert IGNORED_LABEL in WindowDataset(split, seq_len=SEQ_LEN)[0]["labels"]
    follow(PackedDataset(split, seq_len=24, plan_dir=tmp_path, **common), order)


def follow(dataset: Any, order: dict[str, Any]) -> None:
    """Whole batches and single samples against the dataset's own, in the order's order."""
    batches = stream(dataset, batch_size=4, **order)
    singles = stream(dataset, **order)
    n = len(dataset)
    samples = batches.order.samples(np.arange(n), n, 0)
    for number, batch in enumerate(batches):
        same(batch, dataset.__getitems__(samples[4 * number : 4 * number + 4]))
    for number, sample in enumerate(singles):
        same(sample, dataset[int(samples[number])])
    assert number == n - 1


def test_padding_is_told(windows: WindowDataset) -> None:
    """Rows that fill up have a mask and no labels, and whole batches of them can occur."""
    ranks = [stream(windows, batch_size=17, end="pad", dp_rank=r, dp_size=4) for r in range(4)]
    for batch in (batch for rank in ranks for batch in rank):
        assert batch["input_ids"].shape == (17, SEQ_LEN)
        assert (batch["labels"] == IGNORED_LABEL).all(1).tolist() == (
            ~batch["sample_mask"]
        ).tolist()
    few = WindowDataset(windows.split, seq_len=200, sample_mask=True)  # 5 samples for 8 ranks
    rows = [list(stream(few, end="pad", dp_rank=rank, dp_size=8)) for rank in range(8)]
    assert [len(samples) for samples in rows] == [1] * 8
    assert sum(int(samples[0]["sample_mask"]) for samples in rows) == 5
    empty = list(stream(few, batch_size=2, end="pad", dp_rank=0, dp_size=8))
    assert [batch["sample_mask"].tolist() for batch in empty] == [[False, False]]


def test_one_rank_may_have_a_shorter_batch(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    found = steps_of(stream(windows, batch_size=8, end="partial", shuffle=None))
    assert found[-1] == [64, 65]
    assert real(found) == list(range(SAMPLES))


class NotedStream(Stream):
    """Notes what is read: the first token and how many."""

    def __init__(self, base: Stream) -> None:
        super().__init__(base.source, np.diff(base.base).tolist())
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> Any:
        self.reads.append((start, stop - start))
        return super().read(start, stop)

    def gather(self, starts: Any, length: int) -> Any:
        self.reads += [(start, length) for start in starts.tolist()]
        return super().gather(starts, length)

    def copy(self, starts: Any, lengths: Any, out: Any, at: Any) -> None:
        self.reads += list(zip(starts.tolist(), lengths.tolist(), strict=True))
        super().copy(starts, lengths, out, at)


def joined(reads: list[tuple[int, int]], bounds: set[int]) -> list[tuple[int, int]]:
    """The reads, those that a shard's end divides as one."""
    found: list[tuple[int, int]] = []
    for start, length in reads:
        if found and start in bounds and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((start, length))
    return found


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_reads_whole_blocks_forward(split: Split, order: dict[str, Any]) -> None:
    """An epoch reads each token once (but the one that two blocks share), a block at a time; and
    its loss mask so.
    """
    tokens, masks = NotedStream(split.stream), NotedStream(split.masks)
    noted = open_dataset(split.dataset.path).split("train")
    noted.stream, noted._masks = tokens, masks
    for _ in stream(WindowDataset(noted, seq_len=SEQ_LEN), batch_size=4, end="partial", **order):
        pass
    assert (noted.stream, noted._masks) == (tokens, masks)  # what is the user's stays as it is
    blocks = -(-SAMPLES // 5)
    for found in (tokens.reads, masks.reads):
        reads = joined(found, set(split.stream.base.tolist()))
        assert len(reads) <= blocks
        total = sum(length for _, length in reads)
        assert SAMPLES * SEQ_LEN < total <= SAMPLES * SEQ_LEN + blocks
        assert {start % (5 * SEQ_LEN) for start, _ in reads} == {0}
        if order["shuffle"] is None:
            assert [start // (5 * SEQ_LEN) for start, _ in reads] == list(range(blocks))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_packed_rows_come_from_memory(split: Split, order: dict[str, Any], tmp_path: Path) -> None:
    """The pieces of rows are read before their batch, several with one read."""
    tokens = NotedStream(split.stream)
    noted = open_dataset(split.dataset.path).split("train")
    noted.stream = tokens
    packed = PackedDataset(noted, seq_len=24, plan_dir=tmp_path)
    served = list(stream(packed, batch_size=4, end="partial", **order))
    assert sum(len(batch["input_ids"]) for batch in served) == len(packed)
    assert len(tokens.reads) < len(packed.spans(np.arange(len(packed)))[0]) / 2


def test_order_is_a_function_of_seed_and_epoch(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Passes move on by themselves; another object serves the same; `set_epoch` overrules."""
    one, other = stream(windows, batch_size=4), stream(windows, batch_size=4)
    epochs = [steps_of(one) for _ in range(3)]
    assert one.epoch == 3
    assert [steps_of(other) for _ in range(3)] == epochs
    assert len({str(sorted(map(str, epoch))) for epoch in epochs}) == 3
    one.set_epoch(1)
    assert steps_of(one) == epochs[1]
    assert steps_of(islice(one, 15)) == epochs[2][:15]
    assert one.epoch == 2  # left early: served again
    assert steps_of(one) == epochs[2]
    assert steps_of(stream(windows, batch_size=4, epoch=2)) == epochs[2]
    assert steps_of(stream(windows, batch_size=4, seed=1)) not in epochs


GOLDEN_BLOCKS: Steps = [
    [25, 27, 29, 23, 21, 26], [58, 24, 57, 55, 20, 59], [28, 56, 22, 11, 13, 6]
]  # fmt: skip
GOLDEN_BUFFER: Steps = [
    [4, 1, 25, 20, 57, 24], [26, 65, 21, 59, 18, 58], [8, 10, 6, 16, 11, 13]
]  # fmt: skip


def test_golden(windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]) -> None:
    """The build id, the seed and the options give this, for ever."""
    options: dict[str, Any] = {"batch_size": 6, "dp_rank": 1, "dp_size": 2, "epoch": 3, "seed": 9}
    assert steps_of(islice(stream(windows, **options), 3)) == GOLDEN_BLOCKS
    assert steps_of(islice(stream(windows, shuffle="buffer", **options), 3)) == GOLDEN_BUFFER


def test_stream_loader_moves_on_with_live_workers(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """The same two processes serve epoch after epoch, the one that is set, and a pass again."""
    fresh = {
        epoch: steps_of(emulated(stream(windows, batch_size=4, epoch=epoch), 2))
        for epoch in (0, 1, 7)
    }
    assert fresh[0] != fresh[1]
    live = loader(windows, workers=2)
    assert isinstance(live, DataLoader)
    assert isinstance(live.dataset, IterableDataset)
    assert len(live) == len(fresh[0])
    assert steps_of(live) == fresh[0]
    processes = [worker.pid for worker in live._iterator._workers]  # type: ignore[union-attr]
    assert steps_of(islice(live, 9)) == fresh[1][:9]
    assert live.epoch == 1
    assert steps_of(live) == fresh[1]
    live.set_epoch(7)
    assert steps_of(live) == fresh[7]
    assert live.epoch == 8
    assert [w.pid for w in live._iterator._workers] == processes  # type: ignore[union-attr]


def loader(windows: Readable, *, workers: int, **options: Any) -> StreamLoader:
    return stream_loader(
        stream(windows, **{"batch_size": 4} | options), num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip


def test_set_epoch_reaches_the_workers_of_a_stock_loader(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Live workers serve the epoch that was set; what was consumed nobody can say."""
    dataset = stream(windows, batch_size=4)
    live = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    for epoch in (0, 2, 1):
        dataset.set_epoch(epoch)
        assert steps_of(live) == steps_of(emulated(dataset, 2))
    with pytest.raises(UsageError, match="stream_loader"):
        dataset.state_dict()


def test_a_worker_warns_of_an_epoch_served_twice(windows: WindowDataset) -> None:
    """Where a stock DataLoader starts the same pass again; not for a stored order."""
    dataset = stream(windows, batch_size=4)
    shared = dataset._shared
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared.read(0, warn=True)
        shared.finish(0, shared.version)
        shared.read(1, warn=True)
        shared.read(0, warn=False)
    with pytest.warns(UserWarning, match="set_epoch"):
        shared.read(0, warn=True)
    dataset.set_epoch(0)
    shared.read(0, warn=True)


def test_infinite_goes_on(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """One epoch after the other without a pause, and the next pass where the last was left."""
    for workers in (0, 2):
        dataset, epochs = stream(windows, batch_size=4), []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            epochs += steps_of(emulated(dataset, max(1, workers)))
        endless = loader(windows, workers=workers, infinite=True)
        assert steps_of(islice(endless, 40)) == epochs[:40]
        assert endless.state_dict()["epoch"] == 2
        assert steps_of(islice(endless, 8)) == epochs[40:]
        with pytest.raises(TypeError, match="no length"):
            len(endless)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("infinite", [False, True])
def test_resume_on_the_same_topology_is_exact(
    windows: WindowDataset,
    order: dict[str, Any],
    infinite: bool,
    steps_of: Callable[[Iterable[Any]], Steps],
) -> None:
    """Stopped at every step, gone on, stopped and gone on again: the batches of one long run."""

    def make() -> StreamDataset:
        return stream(windows, batch_size=5, infinite=infinite, dp_rank=1, dp_size=2, **order)

    whole = make()
    expected = [step for _ in range(3) for step in steps_of(islice(whole, 6))]
    for stop in (0, 1, 4, 6):
        first = make()
        found = steps_of(islice(first, stop))
        second = make()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += steps_of(islice(second, 2))
        third = make()
        third.load_state_dict(second.state_dict())
        found += steps_of(islice(third, 3)) if stop < 4 or infinite else []
        assert found == expected[: len(found)]


@examples(15)
@given(data=st.data())
def test_resume_on_another_topology_serves_the_rest(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps], data: st.DataObject
) -> None:
    """Every sample of the epoch once, whatever the ranks and batch sizes it is served under."""
    order = data.draw(st.sampled_from(ORDERS))
    end = data.draw(st.sampled_from(["drop", "pad"]))
    state, seen, step = None, [], 0
    for last in (False, False, True):
        ranks, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
        stop = 100 if last else data.draw(st.integers(0, 4))
        states = []
        for rank in range(ranks):
            share = stream(windows, batch_size=size, dp_rank=rank, dp_size=ranks, end=end, **order)
            if state is not None:
                share.load_state_dict(state)
            if share._enter(share._start, 1).epoch == 0:
                step = ranks * size
                seen += real(steps_of(islice(share, stop)))
            states.append(share.state_dict())
        assert all(found == states[0] for found in states)
        state = states[0]
        assert len(json.dumps(state)) < 1024
        if state["epoch"] == 0:
            assert state["consumed"] == len(seen)
    assert len(set(seen)) == len(seen)
    step = max(step, ranks * size)  # the last one may have found too little for a step
    assert len(seen) > SAMPLES - step if end == "drop" else len(seen) == SAMPLES


def test_resume_through_workers(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """The state counts what was handed over, not what workers read ahead; and changes of workers
    lose and repeat nothing.
    """
    whole = steps_of(emulated(stream(windows, batch_size=4), 3))
    first = loader(windows, workers=3)
    assert steps_of(islice(first, 5)) == whole[:5]
    state = first.state_dict()
    assert state["consumed"] == 20
    again = loader(windows, workers=3)
    again.load_state_dict(state)
    assert steps_of(again) == whole[5:]
    assert again.epoch == 1
    other = loader(windows, workers=0)
    other.load_state_dict(state)
    rest = steps_of(other)
    assert len(set(real(whole[:5]) + real(rest))) == 4 * (5 + len(rest)) == 64


def test_a_look_at_the_first_batch_leaves_no_trace(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """Also of a run that was resumed."""
    whole = steps_of(stream(windows, batch_size=4))
    resumed = stream(windows, batch_size=4)
    taken = stream(windows, batch_size=4)
    steps_of(islice(taken, 7))
    resumed.load_state_dict(taken.state_dict())
    next(iter(resumed))
    assert steps_of(resumed) == whole[7:]


def test_a_large_split_costs_nothing_at_the_start(windows: WindowDataset) -> None:
    """What stands in the middle of 10**9 samples is found without going there."""

    class Many(WindowDataset):
        def __len__(self) -> int:
            return 10**9

        def __getitems__(self, indices: Any) -> Any:
            return {"samples": torch.as_tensor(indices)}

        def spans(self, samples: Any) -> Any:
            return samples[:0], samples[:0]

    many = Many(windows.split, seq_len=SEQ_LEN)
    for shuffle in ("blocks", "buffer"):
        options = {"batch_size": 8, "shuffle": shuffle, "block": 64, "buffer": 256}
        dataset = stream(many, **options)
        state = dataset.state_dict() | {"served": [[1, 1, 8, 10**8]], "consumed": 8 * 10**8}
        dataset.load_state_dict(state)
        expected = dataset.order.samples(np.arange(8 * 10**8, 8 * 10**8 + 8), 10**9, 0)
        assert next(iter(dataset))["samples"].tolist() == expected.tolist()


def test_pickles_and_copies_keep_serving(
    windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]
) -> None:
    """A copy is a stream of its own, whose epoch reaches its own workers."""
    dataset = stream(windows, batch_size=4, epoch=3)
    for twin in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert steps_of(islice(twin, 3)) == steps_of(islice(dataset, 3))
        live = DataLoader(twin, batch_size=None, num_workers=1, multiprocessing_context="fork")
        twin.set_epoch(4)
        assert steps_of(live) == steps_of(stream(windows, batch_size=4, epoch=4))
        assert dataset.epoch == 3


def test_nothing_is_kept_after_a_pass(
    windows: WindowDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was held goes with the pass, at once and without a garbage collection."""
    held: list[weakref.ref[Stream]] = []

    class Noted(stream_read._HeldStream):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            held.append(weakref.ref(self))

    monkeypatch.setattr(stream_read, "_HeldStream", Noted)
    gc.disable()
    try:
        for _ in stream(windows, batch_size=4):
            assert held[-1]() is not None
        assert [kept for kept in held if kept() is not None] == []
    finally:
        gc.enable()


def test_leaves_the_global_random_state_alone(windows: WindowDataset) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(loader(windows, workers=1))
    list(loader(windows, workers=0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": 67}),
        ("block", {"block": 0}),
        ("window", {"window": 0}),
        ("buffer", {"buffer": 0, "shuffle": "buffer"}),
        ("dp_rank", {"dp_rank": 2, "dp_size": 2}),
        ("dp_rank", {"dp_rank": -1}),
        ("dp_size", {"dp_size": 0}),
        ("end", {"end": "wrap"}),
        ("end", {"end": "partial", "dp_size": 2}),
        ("epoch", {"epoch": -1}),
        ("seed", {"seed": -1}),
        ("shuffle", {"shuffle": "full"}),
    ],
)
def test_bad_arguments_are_named(
    windows: WindowDataset, argument: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        stream(windows, **options)
    assert caught.value.where == argument


def test_impossible_uses_are_refused(split: Split, windows: WindowDataset) -> None:
    """Padding that nobody could tell, workers below none, a loader of single samples."""
    with pytest.raises(UsageError, match="sample_mask=True"):
        stream(WindowDataset(split, seq_len=SEQ_LEN), end="pad")
    with pytest.raises(UsageError, match="negative"):
        stream_loader(stream(windows, batch_size=2), num_workers=-1)
    with pytest.raises(UsageError, match="single samples"):
        stream_loader(stream(windows))


@pytest.mark.parametrize(
    ("change", "error", "where"),
    [
        ({"kind": "other"}, UsageError, "not the state of a dataprep stream"),
        ({"version": 2}, IncompatibleError, "version"),
        ({"version": "1"}, UsageError, "version"),
        ({"build_id": "0" * 64}, IncompatibleError, "build_id"),
        ({"seed": 5}, IncompatibleError, "seed"),
        ({"shuffle": "buffer"}, IncompatibleError, "shuffle"),
        ({"block": 6}, IncompatibleError, "block"),
        ({"samples": 67}, IncompatibleError, "samples"),
        ({"definition": {"kind": "windows"}}, IncompatibleError, "definition"),
        ({"end": "pad"}, IncompatibleError, "end"),
        ({"epoch": -1}, UsageError, "epoch"),
        ({"epoch": True}, UsageError, "epoch"),
        ({"served": 3}, UsageError, "served"),
        ({"served": [[1, 1, 4]]}, UsageError, "served"),
        ({"served": [[1, 1, 4, 17]]}, UsageError, "served"),
        ({"served": [[0, 1, 4, 1]]}, UsageError, "dp_size"),
        ({"served": [[1, 1, 4, 2.0]]}, UsageError, "served"),
        ({"served": [[1, 1, 4, 1]] * 40}, UsageError, "served"),
        ({"consumed": 11}, UsageError, "consumed"),
    ],
)
def test_foreign_states_are_refused(
    windows: WindowDataset, change: dict[str, Any], error: type[DataprepError], where: str
) -> None:
    """Each names the field; the stream stands where it stood."""
    dataset = stream(windows, batch_size=4)
    for _ in islice(dataset, 3):
        pass
    state = dataset.state_dict()
    assert (state["served"], state["consumed"]) == ([[1, 1, 4, 3]], 12)
    with pytest.raises(error) as caught:
        dataset.load_state_dict(state | change)
    assert where in str(caught.value)
    assert dataset.state_dict() == state
