"""The iterable dataset as a training script uses it: topologies, rows, reads, mistakes."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.formats.read.sharded import Stream
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream import reader as stream_read
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.types import IGNORED_LABEL, Labels
from tests.scenes.streams import ORDERS, SAMPLES, SEQ_LEN, Steps, emulated, loader, real, stream

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


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
        same(batch, dataset.batch(samples[4 * number : 4 * number + 4]))
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
    [41, 42, 30, 44, 32, 33], [3, 40, 34, 43, 0, 38], [20, 21, 35, 37, 24, 5]
]  # fmt: skip
GOLDEN_BUFFER: Steps = [
    [9, 32, 30, 62, 7, 8], [5, 12, 60, 63, 14, 51], [54, 53, 52, 10, 50, 6]
]  # fmt: skip


def test_golden(windows: WindowDataset, steps_of: Callable[[Iterable[Any]], Steps]) -> None:
    """The build id, the seed and the options give this, for ever."""
    options: dict[str, Any] = {"batch_size": 6, "dp_rank": 1, "dp_size": 2, "epoch": 3, "seed": 9}
    assert steps_of(islice(stream(windows, **options), 3)) == GOLDEN_BLOCKS
    assert steps_of(islice(stream(windows, shuffle="buffer", **options), 3)) == GOLDEN_BUFFER


def test_a_large_split_costs_nothing_at_the_start(windows: WindowDataset) -> None:
    """What stands in the middle of 10**9 samples is found without going there."""

    class Many(WindowDataset):
        def __len__(self) -> int:
            return 10**9

        def batch(self, indices: Any) -> Any:
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


def test_a_dataset_has_to_be_opened(split: Split) -> None:
    """A path is no dataset of rows, and nor is a split: both are told how to make one."""
    with pytest.raises(UsageError, match=r"WindowDataset\(open_dataset\('A'\)") as caught:
        StreamDataset("A", batch_size=8)  # type: ignore[arg-type]
    assert caught.value.where == "dataset"
    with pytest.raises(UsageError, match="is a Split, not a dataset of rows"):
        StreamDataset(split)  # type: ignore[arg-type]


def test_impossible_uses_are_refused(split: Split, windows: WindowDataset) -> None:
    """Padding that nobody could tell, workers below none, a loader of single samples."""
    with pytest.raises(UsageError, match="sample_mask=True"):
        stream(WindowDataset(split, seq_len=SEQ_LEN), end="pad")
    with pytest.raises(UsageError, match="at least 0"):
        stream_loader(stream(windows, batch_size=2), num_workers=-1)
    with pytest.raises(UsageError, match="single samples"):
        stream_loader(stream(windows))
