"""Packing at size: memory does not grow with the dataset, and many races end alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

pytestmark = pytest.mark.long

_PEAK = """
import resource, sys, tempfile
import numpy as np
from dataprep.runtime.rows.packing import Packer, PackingOptions
from dataprep.runtime.rows.plan_cache import stored_plan
packer = Packer(PackingOptions(seq_len=2048, algorithm=sys.argv[2]))
def lengths():
    for block in range(int(sys.argv[1])):
        yield np.exp(np.random.default_rng(block).normal(6, 1.2, 1 << 19)).astype(np.int64)
def make(emit):
    for rows in packer.rows(lengths()):
        emit({"document": rows.document, "start": rows.start, "length": rows.length})
    return packer.report.as_dict()
with tempfile.TemporaryDirectory() as folder:
    stored_plan({}, {"document": "<u4", "start": "<u8", "length": "<u2"}, make, folder)
assert packer.report.fill > 0.999
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

_RACE = """
import sys, time
import numpy as np
from dataprep.runtime.rows.plan_cache import stored_plan
def make(emit):
    emit({"rows": np.arange(100_000)})
    return {"rows": 100_000}
for number in range(100):
    plan = stored_plan({"number": number}, {"rows": "<i8"}, make, sys.argv[1])
    assert plan.arrays["rows"][-1] == 99_999
    if number % 3 == int(sys.argv[2]) % 3:
        try:
            plan.path.write_bytes(b"damaged")
        except FileNotFoundError:
            pass
"""


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["first-fit", "best-fit"])
def test_memory_does_not_grow(algorithm: str) -> None:
    """Eight times the documents take at most 40 MiB more at the peak."""
    small, large = (
        int(run(_PEAK, blocks, algorithm).communicate(timeout=600)[0]) for blocks in ("1", "8")
    )
    assert large < small + 40


def test_races_with_somebody_who_damages_plans(tmp_path: Path) -> None:
    """Four processes, each of which spoils some plans, all get every plan whole."""
    processes = [run(_RACE, str(tmp_path / "plans"), str(number)) for number in range(4)]
    for process in processes:
        process.communicate(timeout=600)
    assert [process.returncode for process in processes] == [0] * 4
    assert [p.name for p in (tmp_path / "plans").iterdir() if p.name.startswith(".")] == []
