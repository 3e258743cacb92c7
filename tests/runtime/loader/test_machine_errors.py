"""What the machine does to a loader is told by `StorageError`, whichever loader it is."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dataprep.formats.errors import InputError, StorageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.create import create_loader
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.loader.machine_errors import machine_error
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split

KINDS = ("map", "stream", "shards", "stream of shards")
_NEWNS, _NEWUSER, _READ_ONLY, _PRIVATE = 0x20000, 0x10000000, 1, 0x44000


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": random_split([[4000]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("machine") / "shards", splits)


def make(kind: str, shards: Path, workers: int = 1, data: Any = None) -> Any:
    """A loader of 20 batches or more."""
    context = "fork" if workers else None
    if kind == "shards":
        return create_loader(
            shards, "train", 4, workers, seq_len=16, multiprocessing_context=context
        )
    if kind == "stream of shards":
        windows = WindowDataset(open_dataset(shards).split("train"), seq_len=16)
        stream = StreamDataset(windows, batch_size=4)
        return stream_loader(stream, num_workers=workers, multiprocessing_context=context)
    rows = [torch.ones(1 << 14)] * 80 if data is None else data
    source = rows if kind == "map" else lambda: iter(rows)
    builder = DataLoaderBuilder().with_dataset(source).with_batch_size(4)
    if workers:
        builder.with_workers(workers, multiprocessing_context="fork")
    return builder.build()


def new_children(before: set[int]) -> list[int]:
    """Processes that this one has started since."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, listed) if pid not in before]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed(kind: str, shards: Path) -> None:
    """It is named with its signal and a remedy, wherever the trainer is; a new pass goes on."""
    before = set(new_children(set()))
    loader = make(kind, shards)
    iterator = iter(loader)
    next(iterator)
    (worker,) = new_children(before)
    with pytest.raises(StorageError, match=f"process {worker} was killed by SIGKILL") as told:
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.2)  # of the trainer, which is told at once
        list(iterator)
    assert (told.value.code, told.value.exit_code) == ("E_WORKER", 4)
    assert "memory" in str(told.value.remedy)
    assert "num_workers" in str(told.value.remedy)
    assert isinstance(told.value.__cause__, RuntimeError)
    del iterator
    assert len(list(loader)) >= 15


def test_a_worker_that_a_real_time_signal_kills(shards: Path) -> None:
    """It has no name in Python, and is told by its number."""
    before = set(new_children(set()))
    iterator = iter(make("map", shards))
    next(iterator)
    (worker,) = new_children(before)
    with pytest.raises(StorageError, match=f"process {worker} was killed by signal 35"):
        os.kill(worker, 35)
        time.sleep(0.2)
        list(iterator)


def test_workers_of_others_are_told_as_ever(shards: Path) -> None:
    """A stock DataLoader keeps torch's own error, also after a loader of ours had workers."""
    list(make("map", shards))
    before = set(new_children(set()))
    rows: Any = [torch.ones(1 << 14)] * 80
    stock: DataLoader[Any] = DataLoader(
        rows, batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    iterator = iter(stock)
    next(iterator)
    (worker,) = new_children(before)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.2)
        list(iterator)


def in_a_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked process; what it raises fails the test, or skips it."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_report, args=(work, there))
    process.start()
    process.join(60)
    ended = process.exitcode
    if ended is None:
        process.kill()
    problem = here.recv() if here.poll() else ""
    if ended == 3:
        pytest.skip(problem)
    assert ended == 0, problem or f"exit code {ended}"


def _report(work: Callable[[], None], there: Any) -> None:
    code = 1
    try:
        work()
        code = 0
    except pytest.skip.Exception as skipped:
        there.send(str(skipped))
        code = 3
    except BaseException:
        there.send(traceback.format_exc())
    os._exit(code)


def mount_shared_memory(options: str, flags: int = 0) -> None:
    """A /dev/shm that only this process and its children see."""
    libc, user = ctypes.CDLL(None, use_errno=True), os.geteuid()
    if libc.unshare(_NEWNS):
        if libc.unshare(_NEWUSER | _NEWNS):
            pytest.skip(f"no mounts can be had here: {os.strerror(ctypes.get_errno())}")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    failed = libc.mount(b"none", b"/", None, _PRIVATE, None) or libc.mount(
        b"none", b"/dev/shm", b"tmpfs", flags, options.encode()
    )
    if failed:
        pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "flags"), [("size=1m", _READ_ONLY), ("size=40k", 0)], ids=["read-only", "full"]
)
def test_shared_memory_that_cannot_be_used(
    kind: str, options: str, flags: int, shards: Path
) -> None:
    """Nobody waits for ever; the remedy works."""

    def work() -> None:
        mount_shared_memory(options, flags)
        if not flags:  # there is room for semaphores, and none for a batch
            Path("/dev/shm/fill").write_bytes(bytes(36 << 10))
        loader = make(kind, shards)
        with pytest.raises(StorageError, match="num_workers=0") as told:
            list(iter(loader))
        assert told.value.code == "E_SHARED_MEMORY"
        assert (told.value.where, told.value.exit_code) == ("/dev/shm", 4)
        assert isinstance(told.value.__cause__, OSError | RuntimeError)
        assert len(list(make(kind, shards, workers=0))) >= 15

    in_a_child(work)


@pytest.mark.parametrize("room", [9, 11, 14])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_too_many_files(kind: str, room: int, shards: Path) -> None:
    """A worker that can open no more to send a batch says so, and nobody waits for it."""

    def work() -> None:
        loader = make(kind, shards, data=[{"a": torch.ones(3)} for _ in range(80)])
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while os.open(os.devnull, os.O_RDONLY) < highest:
            pass  # the limit is on numbers: none below it may be free
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, 1 << 12))
        with pytest.raises(StorageError, match="ulimit -n") as told:
            list(loader)
        assert told.value.code == "E_FILES"

    in_a_child(work)


class Unsent:
    """A sample that cannot be pickled."""

    def __reduce__(self) -> Any:
        time.sleep(0.1)  # in the thread that sends it: the worker meanwhile comes to its end
        raise TypeError("not this one")


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_batch_that_cannot_be_sent(kind: str) -> None:
    """It is told with its cause; Python printed that, and the trainer waited for ever."""
    rows = [1] * 7 + [Unsent()]
    made = DataLoaderBuilder().with_dataset(rows if kind == "map" else lambda: iter(rows))
    made.with_workers(1, multiprocessing_context="fork").with_shuffle(False).with_batch_size(4)
    with pytest.raises(InputError, match=r"cannot be sent .* TypeError: not this one"):
        list(made.with_collate_fn(as_it_is).build())


class Metrics:
    """Samples that are noted in a queue of the user's, where what is noted cannot be pickled."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.noted.put(Unsent())
        self.noted.put((index, Unsent()))
        time.sleep(0.02)  # of the thread that sends it
        return index


def test_queues_of_the_user_are_left_alone() -> None:
    """What cannot be sent there ends nothing, and stands in no batch."""
    noted: Any = multiprocessing.Queue()
    made = DataLoaderBuilder().with_dataset(Metrics(noted))
    made.with_workers(1, multiprocessing_context="fork").with_shuffle(False).with_batch_size(4)
    assert list(made.with_collate_fn(as_it_is).build()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert noted.empty()


class Large:
    """Samples that take more memory than there is, each in another way."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self.allocate = allocate

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.allocate(1 << 30) if index == 5 else torch.ones(4)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


@pytest.mark.parametrize("allocate", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_memory_that_runs_out(allocate: Callable[[int], Any], shards: Path) -> None:
    """Here or in a worker, of a dataset or a stream: it is the machine, and not the sample."""

    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), resource.RLIM_INFINITY))
        for kind in ("map", "stream"):
            for workers in (0, 1):
                loader = make(kind, shards, workers, Large(allocate))
                with pytest.raises(StorageError) as told:
                    list(loader)
                assert (told.value.code, told.value.exit_code) == ("E_MEMORY", 4), told.value
                assert "batch_size" in str(told.value.remedy)
                assert isinstance(told.value.__cause__, MemoryError | RuntimeError)

    in_a_child(work)


def test_errors_of_the_machine_are_told_from_others() -> None:
    """By number or words; what is no fault of the machine stays what it is."""
    for number, code in (
        (errno.ENOMEM, "E_MEMORY"), (errno.EMFILE, "E_FILES"), (errno.EAGAIN, "E_PROCESSES"),
    ):  # fmt: skip
        named = machine_error(OSError(number, os.strerror(number)), starting=True)
        assert named is not None
        assert named.code == code
    for other in (OSError(errno.ENOENT, "x"), RuntimeError("shapes differ"), ValueError("x")):
        assert machine_error(other) is None
    assert machine_error(OSError(errno.EROFS, "x")) is None  # of a file of the user's
    assert machine_error(BlockingIOError(errno.EAGAIN, "x")) is None  # or of a socket
    thread = machine_error(RuntimeError("can't start new thread"))
    assert thread is not None
    assert thread.code == "E_PROCESSES"
    assert machine_error(OSError(errno.EROFS, "x"), starting=True) is not None
    sent = StorageError("x")
    sent.__cause__ = MemoryError("y")
    assert isinstance(pickle.loads(pickle.dumps(sent)).__cause__, MemoryError)
