"""Embeddings and pairs that are sound pass; any damaged file is named, and none is a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import verify
from dataprep.formats.write.dataset_writer import ArrayWriter
from tests.scenes.array_datasets import make_embeddings, make_pairs, units
from tests.scenes.verified import LEVELS, codes, files_of, outcome, reseal
from tests.scenes.verified_arrays import MAKERS, MANY, Copied
from tests.support import examples


@pytest.fixture(params=sorted(MAKERS))
def directory(request: pytest.FixtureRequest, copied: Copied) -> Path:
    """A sound dataset of each kind."""
    return copied(request.param)


# Sound datasets


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shard_bytes", [1 << 30, MANY])
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_sound_passes(
    made: Copied, kind: str, shard_bytes: int, level: verify_report.Level
) -> None:
    """Every type, in one shard and in many; the report has the totals."""
    path = made(kind, shard_bytes)
    manifest = array_manifest.load(path)
    report = verify(path, level)
    assert report.findings == ()
    assert report.counts == {"rows": manifest.rows, "arrays": len(manifest.arrays)}
    assert report.bytes == sum((path / name).stat().st_size for name in files_of(path))
    loaded = json.loads(json.dumps(report.as_dict()))
    assert (loaded["kind"], loaded["rows"], loaded["ok"]) == (kind, manifest.rows, True)


@pytest.mark.parametrize(
    "sizes",
    [
        {"questions": 0},
        {"keywords": 0},
        {"clusters": 0},
        {"negatives": 0},
        {"questions": 1, "per_question": 1, "dim": 1},
    ],
)
def test_small_pairs_pass(tmp_path: Path, sizes: dict[str, int]) -> None:
    """No pair, no keyword, no cluster, no negative, one of each."""
    make_pairs(tmp_path / "d", **sizes)
    assert verify(tmp_path / "d").findings == ()


def test_no_rows_pass(tmp_path: Path) -> None:
    """Folders of arrays without a shard are no strangers."""
    manifest = make_embeddings(tmp_path / "d", rows=3, splits={"train": [0, 1, 2], "val": []})
    assert verify(tmp_path / "d").ok
    (tmp_path / "e").mkdir()
    writer = ArrayWriter(tmp_path / "e")
    writer.array("embedding", np.empty((0, 3), np.float32), unit=True)
    writer.finish_arrays(
        kind="embeddings", rows=0, inputs=[], options={},
        records=msgspec.structs.replace(manifest.records, read=0, written=0, rejected={}),
    )  # fmt: skip
    assert verify(tmp_path / "e").findings == ()


# Damaged files: nothing but the hashes can tell all of it


def test_any_flipped_bit_is_found_and_its_file_named(directory: Path) -> None:
    """Five random bits of every file."""
    random = np.random.default_rng(0)
    for name in files_of(directory):
        data = (directory / name).read_bytes()
        for position in random.integers(0, 8 * len(data), 5).tolist():
            damaged = bytearray(data)
            damaged[position // 8] ^= 1 << position % 8
            (directory / name).write_bytes(damaged)
            assert set(outcome(directory)) == {name}, position
        (directory / name).write_bytes(data)
    assert verify(directory).ok


@pytest.mark.parametrize("level", LEVELS)
def test_any_file_cut_grown_lost_or_added(directory: Path, level: verify_report.Level) -> None:
    """Every level names it, and no other."""
    for name in files_of(directory):
        data = (directory / name).read_bytes()
        for mutant in (data[:-1], data + b"\0")[: 1 + (level == "stat")]:
            (directory / name).write_bytes(mutant)
            assert set(outcome(directory, level)) == {name}
        (directory / name).unlink()
        lost = str(directory) if name == CONFIG_NAME else name
        assert set(outcome(directory, level)) == {lost}
        (directory / name).write_bytes(data)
    folder = next(name for name in files_of(directory) if "/" in name).partition("/")[0]
    for name in ("stray.npy", f"{folder}/00009.npy"):
        (directory / name).write_bytes(b"")
        assert codes(verify(directory, level)) == {("E_EXTRA", name)}
        (directory / name).unlink()


# Hostile and large


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_is_never_a_crash(copied: Copied, data: st.DataObject) -> None:
    """Any bytes anywhere, with hashes made to fit: findings about that file, nothing else."""
    path = copied(data.draw(st.sampled_from(sorted(MAKERS))))
    names = [n for n in files_of(path) if n not in (CONFIG_NAME, "crc32.npy")]
    name = data.draw(st.sampled_from(names))
    blob = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))[: len(blob) - at]
    (path / name).write_bytes(blob)
    reseal(path)
    blamed = {name, "val_idx.pt"}
    blamed |= {"small/00000.npy"} if name.startswith("small_scale") else set()
    blamed |= {"hard_negatives/00000.npy"} if name.startswith("pair_index") else set()
    assert {finding.file for finding in verify(path).findings} <= blamed


@pytest.mark.parametrize(
    ("shard_bytes", "workers", "limit"), [(1 << 30, 1, 40_000), (4 << 20, 4, 60_000)]
)
def test_memory_does_not_grow_with_the_dataset(
    tmp_path: Path, shard_bytes: int, workers: int, limit: int
) -> None:
    """300,000 rows, 77 MB, in less than 40 MB over what the program itself takes; more workers."""
    path = tmp_path / "d"
    path.mkdir()
    small = make_embeddings(tmp_path / "small")
    writer = ArrayWriter(path, shard_bytes=shard_bytes)
    rows, block = 300_000, units(1000, 64)
    writer.array(
        "embedding", (block for _ in range(rows // 1000)), rows=rows, row=(64,), dtype="<f4",
        unit=True,
    )  # fmt: skip
    writer.split("train", np.arange(rows))
    writer.finish_arrays(
        kind="embeddings", rows=rows, options={},
        inputs=[msgspec.structs.replace(small.inputs[0], records=rows)],
        records=msgspec.structs.replace(small.records, read=rows, written=rows, rejected={}),
    )  # fmt: skip
    program = (
        "import resource, sys; from dataprep.formats.verify.verify import verify\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "verify(sys.argv[1]); before = peak()\n"
        "assert verify(sys.argv[2], workers=int(sys.argv[3])).ok\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "small"), str(path), str(workers)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < limit
