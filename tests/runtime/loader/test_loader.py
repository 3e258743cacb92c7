"""`create_loader` as a training script uses it: epochs, workers, ranks, mistakes."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import DataLoader

import dataprep
from dataprep.formats.errors import InputError, IntegrityError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.loader.loader import Loader, set_epoch
from dataprep.runtime.loader.serve import build_order
from dataprep.runtime.order.blocks import Blocks, block_sizes
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.types import Batch
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.ranks import serve

SEQ_LEN = 16
multiprocessing.set_forkserver_preload(["torch"])  # once, and not in each of its forks


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 windows of 16 in train (three shards) and 10 in val, all different."""
    splits = {
        "train": random_split([[300, 41], [0], [600, 130]], seed=1),
        "val": random_split([[170]], seed=2),
    }
    return make_dataset(tmp_path_factory.mktemp("loader") / "shards", splits)


def rows(batches: Any) -> list[list[list[int]]]:
    """The input ids of every batch."""
    return [batch["input_ids"].tolist() for batch in batches]


def make(shards: Path, split: str = "train", batch_size: int = 4, **options: Any) -> Loader:
    return make_loader(shards, split, batch_size, seq_len=SEQ_LEN, **options)


def test_is_a_torch_dataloader(shards: Path) -> None:
    """Trainers that ask for a DataLoader get one, with a length and the documented attributes."""
    loader = dataprep.create_loader(shards, "train", 4, seq_len=SEQ_LEN)
    assert isinstance(loader, DataLoader)
    assert len(loader) == len(list(loader)) == 16
    assert id(loader.dataset) == id(loader.dataset_obj)
    assert loader.batch_sampler is loader.sampler_obj
    assert len(loader.dataset_obj) == 66


def test_each_window_is_seen_once(shards: Path) -> None:
    """An epoch that drops nothing serves every window of the split exactly once, shuffled."""
    loader = make(shards, batch_size=5, drop_last=False)
    seen = [row for batch in rows(loader) for row in batch]
    stored = [loader.dataset_obj[i]["input_ids"].tolist() for i in range(len(loader.dataset_obj))]
    assert seen != stored
    assert sorted(seen) == sorted(stored)
    assert len(set(map(tuple, seen))) == 66


def test_two_runs_are_equal_and_two_epochs_differ(shards: Path) -> None:
    """The order is a function of seed and epoch, and moves on by itself."""
    loader, again = make(shards), make(shards)
    first, second = rows(loader), rows(loader)
    assert first != second
    assert sorted(map(str, first)) != sorted(map(str, second))
    assert [rows(again), rows(again)] == [first, second]
    assert rows(make(shards, epoch=1)) == second
    assert rows(make(shards, seed=1)) not in (first, second)


def test_epoch_advances_with_the_last_batch(shards: Path) -> None:
    """A pass counts when its last batch was handed over, and not when it was left early."""
    loader = make(shards)
    assert loader.epoch == 0
    first = rows(itertools.islice(loader, 15))
    assert loader.epoch == 0
    assert rows(itertools.islice(loader, 16))[:15] == first
    assert loader.epoch == 1
    assert len(rows(loader)) == 16
    assert loader.epoch == 2


def test_set_epoch_overrules(shards: Path) -> None:
    """`set_epoch` reaches the next pass, also when called while one is under way."""
    loader = make(shards)
    epochs = [rows(loader) for _ in range(4)]
    set_epoch(loader, 2)
    assert rows(loader) == epochs[2]
    iterator = iter(loader)
    rest = [next(iterator)]
    set_epoch(loader, 1)
    rest += iterator
    assert rows(rest) == epochs[3]
    assert loader.epoch == 1
    assert rows(loader) == epochs[1]


def test_labels_are_inputs_shifted_by_one(shards: Path) -> None:
    """Within every row of every batch, label j is input j + 1."""
    for batch in make(shards, stride=5):
        assert batch["input_ids"].shape == batch["labels"].shape == (4, SEQ_LEN)
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
        assert batch["labels"].dtype == torch.int64


@pytest.mark.parametrize(
    ("workers", "context"), [(1, "fork"), (2, "fork"), (1, "spawn"), (2, "forkserver")]
)
def test_workers_do_not_change_the_order(shards: Path, workers: int, context: str) -> None:
    """Two epochs, one set by hand, are the same with live worker processes as without."""
    plain, spread = make(shards), make(shards, num_workers=workers, multiprocessing_context=context)
    assert rows(spread) == rows(plain)
    assert rows(spread) == rows(plain)
    set_epoch(plain, 7)
    set_epoch(spread, 7)
    assert rows(spread) == rows(plain)
    assert rows(itertools.islice(spread, 3)) == rows(itertools.islice(plain, 3))
    assert spread.epoch == plain.epoch == 8
    assert rows(spread) == rows(plain)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_do_not_change_the_global_batches(shards: Path, size: int) -> None:
    """At an equal global batch, the ranks' rows put together are those of a single process."""
    alone = rows(make(shards, batch_size=8))
    ranks = [make(shards, batch_size=8 // size, dp_rank=r, dp_size=size) for r in range(size)]
    together = [
        [row for part in step for row in part] for step in zip(*map(rows, ranks), strict=True)
    ]
    assert together == alone


def test_evaluation_serves_each_window_once_on_any_ranks(shards: Path) -> None:
    """val keeps its last samples: equal steps and shapes, a mask, and no window twice."""
    stored = rows(make(shards, "val", batch_size=1))
    seen: list[list[int]] = []
    steps = set()
    for rank in range(4):
        loader = make(shards, "val", batch_size=2, dp_rank=rank, dp_size=4)
        batches = list(loader)
        steps.add(len(batches))
        for batch in batches:
            assert batch["input_ids"].shape == (2, SEQ_LEN)
            assert (batch["labels"] == -100).all(dim=1).tolist() == (~batch["sample_mask"]).tolist()
            seen += batch["input_ids"][batch["sample_mask"]].tolist()
    assert steps == {2}
    assert sorted(seen) == sorted(row for batch in stored for row in batch)


def test_split_decides_the_defaults(shards: Path) -> None:
    """train is shuffled and whole batches only; others are in stored order to the last sample."""
    val = make(shards, "val", batch_size=4)
    assert [len(batch) for batch in rows(val)] == [4, 4, 2]
    stored = [val.dataset_obj[i]["input_ids"].tolist() for i in range(10)]
    assert [row for batch in rows(val) for row in batch] == stored
    assert {len(batch) for batch in rows(make(shards, "train"))} == {4}
    assert [len(b) for b in rows(make(shards, "val", drop_last=True))] == [4, 4]
    assert rows(make(shards, "val", shuffle=True)) != rows(val)
    ordered = make(shards, "train", shuffle=False)
    assert rows(ordered) == rows(ordered)


def test_other_seq_len_and_labels(shards: Path) -> None:
    """The window options reach the dataset."""
    batch: Batch = next(iter(make_loader(shards, "train", 3, seq_len=7, labels="unshifted")))
    assert torch.equal(batch["input_ids"], batch["labels"])
    assert batch["input_ids"].shape == (3, 7)
    assert set(next(iter(make(shards, labels=None)))) == {"input_ids"}


def test_takes_an_open_dataset(shards: Path) -> None:
    """An open dataset stands in for its path."""
    assert rows(make(open_dataset(shards))) == rows(make(shards))  # type: ignore[arg-type]


def test_leaves_the_global_random_state_alone(shards: Path) -> None:
    """Loading draws nothing from torch's global generator, so it cannot change a dropout mask."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loader = make(shards, num_workers=1, multiprocessing_context="fork")
    rows(loader)
    rows(make(shards))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fields", [{}, {"position_ids": True, "cu_seqlens": True}])
def test_batches_that_are_dropped_are_held_by_nobody(shards: Path, fields: dict[str, Any]) -> None:
    """While the next batch is made, the memory of the one before it is free to be used."""
    loader = make(shards, prefetch=0, **fields)
    held: list[weakref.ref[torch.Tensor]] = []
    tensors = WindowDataset._tensors

    def made(self: WindowDataset, ids: Any) -> Any:
        assert [tensor() for tensor in held] == [None] * len(held)
        return tensors(self, ids)

    with patch.object(WindowDataset, "_tensors", made):
        batches = iter(loader)
        for _ in range(4):
            held[:] = [weakref.ref(tensor) for tensor in next(batches).values()]


def test_a_script_may_end_in_mid_pass(shards: Path) -> None:
    """With an iterator in a global, and the thread at work: it ends without a word."""
    code = f"""
import time, dataprep
loader = dataprep.create_loader({str(shards)!r}, "train", 4, seq_len={SEQ_LEN})
def forever(loader):
    while True:
        yield from loader
batches = forever(loader)
for _ in range(6):
    next(batches)
    time.sleep(0.002)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_two_passes_at_once_are_independent(shards: Path) -> None:
    """Interleaved iterators of one loader each serve their whole epoch."""
    loader = make(shards)
    pairs = list(zip(loader, loader, strict=True))
    assert rows(a for a, _ in pairs) == rows(b for _, b in pairs) == rows(make(shards))


def test_distributed_without_a_group_says_what_to_call(shards: Path) -> None:
    """Asking for torch.distributed before it is there is a usage error."""
    with pytest.raises(UsageError, match="init_process_group") as caught:
        make(shards, distributed=True)
    assert caught.value.where == "distributed"


def test_distributed_reads_the_group(shards: Path) -> None:
    """In a group of one, rank 0 of 1 is taken from torch.distributed; explicit numbers win."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    try:
        sampler = make(shards, distributed=True).sampler_obj
        assert (sampler.dp_rank, sampler.dp_size) == (0, 1)
        sampler = make(shards, distributed=True, dp_rank=1, dp_size=3).sampler_obj
        assert (sampler.dp_rank, sampler.dp_size) == (1, 3)
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_share_an_epoch(shards: Path, tmp_path: Path) -> None:
    """Two real ranks serve the global batches of one process; forgetting to split them warns."""
    port, outs = free_port(), [tmp_path / f"{rank}.pt" for rank in range(2)]
    context = multiprocessing.get_context("forkserver")
    ranks = [
        context.Process(target=serve, args=(rank, port, shards, out))
        for rank, out in enumerate(outs)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    found = [torch.load(out, weights_only=True) for out in outs]
    assert torch.cat([part["rows"] for part in found], dim=1).tolist() == rows(
        make(shards, batch_size=8)
    )
    assert all("distributed=True" in part["warning"] for part in found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("dp_size", {"dp_rank": 0}),
        ("dp_rank", {"dp_size": 2}),
        ("dp_rank", {"dp_rank": 2, "dp_size": 2}),
        ("num_workers", {"num_workers": -1}),
        ("seed", {"seed": -1}),
        ("epoch", {"epoch": -1}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": 67}),
        ("seq_len", {"seq_len": 0}),
        ("stride", {"stride": -2}),
        ("labels", {"labels": "both"}),
        ("multiprocessing_context", {"multiprocessing_context": "thread", "num_workers": 1}),
        ("multiprocessing_context", {"multiprocessing_context": "spawn"}),
    ],
)
def test_bad_arguments_are_named(shards: Path, argument: str, options: dict[str, Any]) -> None:
    """An impossible argument is a UsageError that names it."""
    with pytest.raises(UsageError) as caught:
        make_loader(shards, "train", **{"batch_size": 4, "seq_len": SEQ_LEN} | options)
    assert caught.value.where == argument


def test_wrong_split_lists_the_right_ones(shards: Path) -> None:
    """A name that is not there gets the names that are."""
    with pytest.raises(UsageError, match="only train, val"):
        make(shards, "test")


def test_unusable_directories_are_refused(shards: Path, tmp_path: Path) -> None:
    """No directory, no config.json, or too few tokens: each its own typed error."""
    with pytest.raises(InputError, match="no such dataset"):
        make(tmp_path / "absent")
    with pytest.raises(IntegrityError, match="not a finished dataset"):
        make(tmp_path)
    with pytest.raises(InputError, match="seq_len=1070"):
        make_loader(shards, "train", 4, seq_len=4096)


def test_workers_end_with_their_loader(shards: Path) -> None:
    """No collection of garbage is needed: dropping the loader ends its processes."""
    gc.disable()
    try:
        loader = make(shards, num_workers=2, multiprocessing_context="fork")
        next(iter(loader))
        workers = set(multiprocessing.active_children())
        assert len(workers) >= 2
        del loader
        assert len(workers & set(multiprocessing.active_children())) == len(workers) - 2
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["fork", "forkserver", None])
def test_errors_of_workers_are_whole(tmp_path: Path, method: str | None) -> None:
    """A file that shrinks is named with its sizes, and what to do, with workers and without."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[900]], seed=1)})
    workers = int(method is not None)
    loader = make(path, num_workers=workers, multiprocessing_context=method, io="pread")
    iterator = iter(loader)
    next(iterator)
    os.truncate(path / "train/tokens-00000.bin", 64)  # in one step: the worker is reading
    with pytest.raises(IntegrityError) as caught:
        list(iterator)
    assert str(caught.value) == (
        f"error[E_SIZE] {path}/train/tokens-00000.bin: expected 1800 bytes, found 64. "
        "Restore this file, or build again with --overwrite."
    )


def test_set_epoch_of_what_has_none(shards: Path) -> None:
    """A stock DataLoader is told where its epoch would be."""
    with pytest.raises(UsageError, match=r"a DataLoader has no set_epoch.* its sampler") as caught:
        set_epoch(DataLoader([1, 2]), 1)  # type: ignore[arg-type]
    assert caught.value.where == "loader"


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"rows": "packed"}])
def test_pickles_and_copies_serve_the_same(shards: Path, options: dict[str, Any]) -> None:
    """Before a pass, in the middle of one, and with a state loaded; threads are their own."""
    loader = make(shards, epoch=1, **options)
    whole = rows(make(shards, epoch=1, **options))
    for twin in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert rows(twin) == whole
    iterator = iter(loader)
    next(iterator)
    twins = pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)
    assert [twin.state_dict() for twin in twins] == [loader.state_dict()] * 2
    assert [rows(twin) for twin in twins] == [whole] * 2
    state = loader.state_dict()
    assert rows(iterator) == whole[1:]
    loader.load_state_dict(state)
    assert rows(pickle.loads(pickle.dumps(loader))) == whole[1:]
    assert rows(loader) == whole[1:]


def test_pickled_mixtures_serve_the_same(shards: Path) -> None:
    loader = make_loader({str(shards): 3, f"{shards}/../shards": 1}, "train", 4, seq_len=SEQ_LEN)
    assert rows(pickle.loads(pickle.dumps(loader))) == rows(loader)


def test_ranks_draw_other_numbers(shards: Path) -> None:
    """What workers are seeded from differs between ranks and seeds, and not between runs."""
    seeds = [
        loader.generator.initial_seed()
        for rank in (0, 1, 0)
        for seed in (0, 1)
        for loader in [
            make_loader(shards, "train", 2, seq_len=8, seed=seed, dp_rank=rank, dp_size=2)
        ]
    ]
    assert seeds[:2] == seeds[4:]
    assert len(set(seeds)) == 4


def test_blocks_are_as_large_as_the_state_says(shards: Path) -> None:
    """The order is made with the numbers that it is said to be a function of."""
    split = open_dataset(shards).split("train")
    windows = WindowDataset(split, seq_len=8)
    order, definition = build_order(windows, split, seed=3, shuffle="blocks")
    assert isinstance(order, Blocks)
    assert (order.block, order.window) == (definition["block"], definition["window"])
    sample_bytes = split.tokens * split.dtype.itemsize // len(windows)
    assert (order.block, order.window) == block_sizes(sample_bytes)
    assert order.block != 1024  # which is for samples of another size
