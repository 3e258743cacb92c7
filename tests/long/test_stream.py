"""Streams under real processes: every start method, ranks x workers, kill -9, flat memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split
from tests.support import REPOSITORY

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SEQ_LEN = 64
SAMPLES = 150
METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    path = tmp_path_factory.mktemp("stream") / "shards"
    documents = random_split([[4_000], [0], [5_000, 601]], seed=1)
    return open_dataset(make_dataset(path, {"train": documents})).split("train")


def stream(split: Split, **options: Any) -> StreamDataset:
    """Three blocks of 50 samples, unless it is said otherwise."""
    windows = WindowDataset(split, seq_len=SEQ_LEN, sample_mask=True)
    return StreamDataset(windows, **{"batch_size": 4, "block": 50, "window": 2} | options)


def rows(batches: Any) -> list[list[tuple[int, ...]]]:
    return [
        [tuple(row) for row in batch["input_ids"][batch["sample_mask"]].tolist()]
        for batch in batches
    ]


def flat(batches: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("shuffle", ["blocks", "buffer", None])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_and_workers(split: Split, ranks: int, shuffle: Any) -> None:
    """Together every sample exactly once; equal steps; a second run is equal to the first."""
    windows = WindowDataset(split, seq_len=SEQ_LEN)
    stored = sorted(tuple(windows[i]["input_ids"].tolist()) for i in range(SAMPLES))
    assert len(windows) == len(set(stored)) == SAMPLES
    for workers in (0, 1, 2, 3, 5):
        runs = []
        for _ in range(2):
            shares = [
                stream(split, end="pad", dp_rank=rank, dp_size=ranks, shuffle=shuffle, buffer=20)
                for rank in range(ranks)
            ]
            runs.append([rows(loader(share, workers, "fork")) for share in shares])
        assert runs[0] == runs[1]
        assert {len(steps) for steps in runs[0]} == {len(shares[0])}
        assert sorted(row for steps in runs[0] for row in flat(steps)) == stored


def loader(dataset: StreamDataset, workers: int, method: str) -> Loader:
    return stream_loader(
        dataset, num_workers=workers, multiprocessing_context=method if workers else None
    )


@pytest.mark.parametrize("method", METHODS)
def test_start_methods(split: Split, method: str) -> None:
    """Five processes for three blocks; epochs, `set_epoch` and resuming reach them all."""
    expected = loader(stream(split), 5, "fork")
    live = loader(stream(split), 5, method)
    epochs = [rows(expected) for _ in range(2)]
    assert rows(live) == epochs[0]
    assert rows(islice(live, 7)) == epochs[1][:7]
    live.load_state_dict(live.state_dict())
    assert rows(live) == epochs[1][7:]
    live.set_epoch(0)
    assert rows(live) == epochs[0]


@pytest.mark.parametrize(
    ("method", "persistent"), [("fork", False), *((method, True) for method in METHODS)]
)
def test_set_epoch_in_a_stock_loader(split: Split, method: str, persistent: bool) -> None:
    """The epoch that is set reaches processes that live already, however they were started."""
    dataset = stream(split)
    stock = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=persistent,
        multiprocessing_context=method,
    )  # fmt: skip
    expected = loader(stream(split), 2, "fork")
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert rows(stock) == rows(expected)


ENDLESS = """
import sys, time
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.rows.windows import WindowDataset

if __name__ == "__main__":
    windows = WindowDataset(open_dataset(sys.argv[1]).split("train"), seq_len=64)
    stream = StreamDataset(windows, batch_size=4, infinite=True)
    loader = stream_loader(stream, num_workers=2, multiprocessing_context=sys.argv[2])
    for number, _ in enumerate(loader):
        if number == 20:
            print("under way", flush=True)
            time.sleep(600)
"""


def under_way(split: Split, method: str, folder: Path) -> subprocess.Popen[str]:
    """A trainer with two workers, in a process group of its own and in the middle of an epoch."""
    script = folder / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, str(script), str(split.dataset.path), method], stdout=subprocess.PIPE,
        text=True, start_new_session=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "under way\n"
    process.stdout.close()  # it prints no more
    return process


def group(leader: int) -> set[int]:
    """The processes of a group."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(int(path.name)) == leader:
                found.add(int(path.name))
    return found


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
@pytest.mark.parametrize("method", METHODS)
def test_kill_leaves_nothing_in_shared_memory(split: Split, method: str, tmp_path: Path) -> None:
    """A process group killed in mid-epoch leaves no file of its own, and a new one starts."""
    process = under_way(split, method, tmp_path)
    processes = group(process.pid)
    assert len(processes) >= 3
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    # torch names shared memory torch_PID_NUMBER_NUMBER, for as long as it has a name.
    own = tuple(f"torch_{pid}_" for pid in processes)
    assert [name for name in os.listdir("/dev/shm") if name.startswith(own)] == []
    assert len(rows(loader(stream(split), 2, "fork"))) == 37


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
@pytest.mark.parametrize("method", METHODS)
def test_workers_end_with_a_killed_trainer(split: Split, method: str, tmp_path: Path) -> None:
    """Killed alone, it leaves no process behind: also where a server is their parent."""
    process = under_way(split, method, tmp_path)
    assert len(group(process.pid)) >= 3
    process.kill()
    process.wait()
    until = time.monotonic() + 15
    while group(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    left = group(process.pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


MEMORY = """
import sys
from pathlib import Path
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from dataprep.runtime.rows.windows import WindowDataset

def resident(pid):  # private memory in KiB
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

windows = WindowDataset(open_dataset(sys.argv[1]).split("train"), seq_len=512)
dataset = StreamDataset(
    windows, batch_size=32, shuffle=sys.argv[2], block=512, window=4, buffer=1024
)
live = stream_loader(dataset, num_workers=2, multiprocessing_context="fork")
for _ in range(4):
    for _ in live:
        pass
    print(*(resident(worker.pid) for worker in live._iterator._workers))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no smaps_rollup here")
@pytest.mark.parametrize("shuffle", ["blocks", "buffer"])
def test_memory_of_workers_stays_flat(tmp_path: Path, shuffle: str) -> None:
    """24 MB of tokens through windows of 2 MB: the same private memory after each epoch.

    In a process of its own: forked from one that has run other tests, workers would come to own
    its pages one by one, as they count references in them.
    """
    ids = np.random.default_rng(0).integers(0, 256, 12_000_000)
    path = make_dataset(tmp_path / "shards", {"train": [[ids[:7_000_000]], [ids[7_000_000:]]]})
    printed = subprocess.check_output(
        [sys.executable, "-c", MEMORY, str(path), shuffle], text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    used = [list(map(int, line.split())) for line in printed.splitlines()]
    assert [len(each) for each in used] == [2] * 4
    for after_one, after_all in zip(used[0], used[-1], strict=True):
        assert after_all - after_one < 4 << 10
        assert after_all < 100 << 10
