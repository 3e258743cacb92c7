"""Accelerate: loaders that are prepared, and loaders that know their rank themselves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.scenes import make_loader, make_shards, marks

accelerate = pytest.importorskip("accelerate", reason="make test-trainers installs it")


def test_prepared_loader_serves_the_same(tmp_path: Path) -> None:
    """In one process, preparing changes nothing; each epoch has its own order."""
    shards = make_shards(tmp_path)
    prepared = accelerate.Accelerator(cpu=True).prepare(make_loader(shards))
    ours = make_loader(shards)
    for epoch in range(2):
        prepared.set_epoch(epoch)
        assert [marks(batch) for batch in prepared] == [marks(batch) for batch in ours]


def test_skip_first_batches(tmp_path: Path) -> None:
    """Accelerate's own way to resume gives the tail of the epoch."""
    shards = make_shards(tmp_path)
    tail = accelerate.skip_first_batches(make_loader(shards, epoch=2), 6)
    whole = [marks(batch) for batch in make_loader(shards, epoch=2)]
    assert [marks(batch) for batch in tail] == whole[6:]


RANK = """
import json, sys
from pathlib import Path
import accelerate
from tests.trainers.scenes import make_loader, marks
shards, out, prepared = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "prepared"
accelerator = accelerate.Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes
if prepared:
    loader = accelerator.prepare(make_loader(shards, dp_rank=0, dp_size=1))
else:
    loader = make_loader(shards, distributed=True)
out.with_suffix(f".{rank}").write_text(json.dumps([marks(batch) for batch in loader]))
"""


@pytest.mark.parametrize("how", ["prepared", "by itself"])
def test_two_processes_share_an_epoch(tmp_path: Path, how: str) -> None:
    """Each process makes equally many steps, and no row is served twice."""
    shards, out = make_shards(tmp_path), tmp_path / "rows"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", RANK, str(shards), str(out), how]
    ranks = [subprocess.Popen(command, env=environment(rank, port)) for rank in range(2)]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    steps = [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(2)]
    assert len(steps[0]) == len(steps[1]) == 10
    rows = [tuple(row) for rank in steps for batch in rank for row in batch]
    assert len(rows) == len(set(rows)) == 80


def environment(rank: int, port: str) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
