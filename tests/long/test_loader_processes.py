"""Loaders in real processes: killed at any moment, and watched for memory over epochs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dataprep.runtime.create import create_loader
from tests.scenes.datasets import make_dataset, random_split

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]

TRAIN = """
import hashlib, json, os, sys, time
from dataprep import create_loader

def main():
    shards, log, state, workers, method = sys.argv[1:6]
    loader = create_loader(
        shards, "train", 4, int(workers), seq_len=64, seed=5,
        multiprocessing_context=method if int(workers) else None,
    )
    if os.path.exists(state):
        loader.load_state_dict(json.load(open(state)))
    with open(log, "a", buffering=1) as lines:
        for _ in range(3):
            for batch in loader:
                rows = hashlib.sha256(batch["input_ids"].numpy().tobytes()).hexdigest()
                now = loader.state_dict()
                lines.write(json.dumps([now["epoch"], now["position"], rows]) + "\\n")
                with open(state + ".new", "w") as stream:
                    json.dump(now, stream)
                os.replace(state + ".new", state)
                time.sleep(0.002)
            if now["epoch"] >= 3:
                break

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 300 windows of 64."""
    splits = {"train": random_split([[5000, 4100], [9000, 1200]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("processes") / "shards", splits)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.mark.parametrize(
    ("workers", "method"), [(0, "fork"), (2, "fork"), (2, "spawn"), (2, "forkserver")]
)
def test_killed_at_any_moment(shards: Path, tmp_path: Path, workers: int, method: str) -> None:
    """After each kill -9 the same command goes on; nothing is left out, nothing is left behind."""
    script, log, state = tmp_path / "train.py", tmp_path / "log", tmp_path / "state"
    script.write_text(TRAIN)
    words = [script, shards, log, state, str(workers), method]
    command = [sys.executable, *map(str, words)]
    before = shared_memory()
    chance = random.Random(7)
    kills = 0
    while True:
        process = subprocess.Popen(command, env=environment() | {"TRAINER": str(script)})
        had = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (log.stat().st_size if log.exists() else 0) == had:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.15))
        if kills < 5:
            os.kill(process.pid, signal.SIGKILL)  # the trainer alone: its workers must end too
            kills += process.wait(timeout=60) == -signal.SIGKILL
        if process.wait(timeout=120) == 0:
            break
    assert kills == 5
    assert gone(str(script))
    assert left_in_shared_memory(before) == set()
    loader = create_loader(shards, "train", 4, seq_len=64, seed=5)
    expected = []
    for _ in range(3):
        for batch in loader:
            place = loader.state_dict()
            expected.append((place["epoch"], place["position"], _digest(batch["input_ids"])))
    lines = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    seen: list[tuple[object, ...]] = []
    for line in lines:
        if seen and line == seen[-1]:
            continue  # handed over, and killed before its state was written
        seen.append(line)
    assert seen == expected


def left_in_shared_memory(before: set[str]) -> set[str]:
    """What is there more than before, once those who clean up behind the killed have had time."""
    for _ in range(100):
        if not shared_memory() - before:
            break
        time.sleep(0.1)
    return shared_memory() - before


def gone(script: str) -> bool:
    """Whether no process of the killed trainers is left after some seconds."""
    for _ in range(100):
        if not any(_is_of(script, process) for process in Path("/proc").glob("[0-9]*")):
            return True
        time.sleep(0.1)
    return False


def _is_of(script: str, process: Path) -> bool:
    """Every process that a trainer starts is told, in its environment, whose it is."""
    try:
        return f"TRAINER={script}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def _digest(ids: torch.Tensor) -> str:
    return hashlib.sha256(ids.numpy().tobytes()).hexdigest()


def anonymous_kib(process: int) -> int:
    """Memory of its own that a process has."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise AssertionError("no Anonymous in smaps_rollup")


def children() -> list[int]:
    """Process ids of the worker processes of torch."""
    me = os.getpid()
    return [int(n) for n in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_memory_of_eight_workers_is_flat(tmp_path: Path, method: str) -> None:
    """From the end of the first epoch to that of the third, no worker grows by over a MiB."""
    documents = [[200_000] * 8 for _ in range(8)]
    shards = make_dataset(tmp_path / "shards", {"train": random_split(documents, seed=3)})
    loader = create_loader(shards, "train", 8, 8, seq_len=512, multiprocessing_context=method)
    others = set(children())
    sizes = []
    for _ in range(3):
        for _ in loader:
            pass
        workers = sorted(set(children()) - others)
        sizes.append([anonymous_kib(worker) for worker in workers])
    print(f"KiB of each worker after each epoch ({method}): {sizes}")
    assert len(sizes[0]) >= 8
    growth = [last - first for first, last in zip(sizes[0], sizes[2], strict=True)]
    assert max(growth) < 1024
