"""Builds of embeddings on real and on large data: killed at any moment, in constant memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenes.embed_inputs import arrays_of, build_vectors, digests
from tests.support import REPOSITORY, SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.long

_BUILD = """
import json, re, resource, sys
from dataprep.pipeline.build import build_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions
report = build_embeddings(EmbeddingOptions(**json.loads(sys.argv[1])))
# Not ru_maxrss of its own: that is no less than the memory of whoever started it.
own = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
peak = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10
print(json.dumps({"resumed": report.resumed_units, "peak": peak}))
"""


def start(**options: Any) -> subprocess.Popen[bytes]:
    """A build in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _BUILD, json.dumps(options)], cwd=REPOSITORY,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def done(process: subprocess.Popen[bytes]) -> dict[str, int]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found: dict[str, int] = json.loads(out)
    return found


def large(path: Path, rows: int, width: int = 384) -> None:
    """Vectors that cost little to make, none like another; as Parquet or .npy."""
    base = np.random.default_rng(0).standard_normal((1 << 14, width), dtype=np.float32)
    with path.open("wb") as stream:
        if path.suffix == ".npy":
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(stream, header)
            for number in range(rows // len(base)):
                stream.write((base + np.float32(number)).data)
            return
        schema = pa.schema({"vector": pa.list_(pa.float32())})
        with pq.ParquetWriter(stream, schema, use_dictionary=False, compression="none") as writer:
            ends = pa.array(np.arange(len(base) + 1, dtype=np.int32) * width)
            for number in range(rows // len(base)):
                flat = pa.array((base + np.float32(number)).reshape(-1))
                lists = pa.ListArray.from_arrays(ends, flat)
                writer.write_table(pa.table([lists], schema=schema))


def until_a_unit_is_there(folder: Path) -> None:
    """Wait for the first finished unit of a build of `folder`/out."""
    for _ in range(2000):
        if any(folder.glob(".out.building-*/units/unit-*")):
            return
        time.sleep(0.005)
    raise AssertionError("no unit was finished in ten seconds")


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_killed_at_any_moment(tmp_path: Path, name: str) -> None:
    """After kill -9, again and again, the same command ends in the same bytes."""
    large(tmp_path / name, 12 << 14)
    options = {"input": str(tmp_path / name), "dtype": "float16", "normalize": True}
    done(start(**options, out=str(tmp_path / "reference"), workers=1))
    random.seed(name)
    for last in (False,) * 7 + (True,):
        process = start(**options, out=str(tmp_path / "out"), workers=2)
        if last:
            until_a_unit_is_there(tmp_path)
        else:
            time.sleep(random.uniform(0.3, 4))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        time.sleep(0.2)  # workers see that nobody reads, and end
        if (tmp_path / "out").exists():  # it was through before it was killed
            shutil.rmtree(tmp_path / "out")
    found = done(start(**options, out=str(tmp_path / "out"), workers=2))
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")
    assert found["resumed"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "reference", name]


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_memory_does_not_grow(tmp_path: Path, name: str) -> None:
    """1.5 GB take no more memory than 0.2 GB, and under 400 MiB in every process."""
    peaks = []
    for rows in (8 << 14, 64 << 14):
        path = tmp_path / f"{rows}-{name}"
        large(path, rows)
        found = done(start(input=str(path), out=str(tmp_path / f"out{rows}"), workers=2))
        peaks.append(found["peak"])
        path.unlink()
    assert peaks[1] < 400 << 20
    assert peaks[1] < peaks[0] + (40 << 20)


@needs_shared_data
def test_mnist_in_every_form(tmp_path: Path) -> None:
    """Ten thousand real images and their labels, from JSONL, Parquet, .npz and .npy alike."""
    folder = SHARED_DATA / "vision"
    (images_file,) = folder.glob("*images*")
    (labels_file,) = folder.glob("*labels*")
    images = np.frombuffer(gzip.decompress(images_file.read_bytes()), np.uint8, offset=16)
    images = images.reshape(-1, 28 * 28)
    labels = np.frombuffer(gzip.decompress(labels_file.read_bytes()), np.uint8, offset=8)
    np.savez(tmp_path / "x.npz", image=images, label=labels)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 28 * 28)
    pq.write_table(pa.table({"image": lists, "label": labels}), tmp_path / "x.parquet")
    with (tmp_path / "x.jsonl").open("w") as stream:
        for image, label in zip(images.tolist(), labels.tolist(), strict=True):
            stream.write(json.dumps({"image": image, "label": label}) + "\n")
    np.save(tmp_path / "x.npy", images)
    for name in ("x.npz", "x.parquet", "x.jsonl"):
        columns = ["embedding=image", "label"]
        build_vectors(tmp_path / f"out-{name}", tmp_path / name, columns=columns, workers=2)
    build_vectors(tmp_path / "out-x.npy", tmp_path / "x.npy")
    found = [arrays_of(path) for path in sorted(tmp_path.glob("out-*"))]
    assert len(found) == 4
    for one in found:
        np.testing.assert_array_equal(one["embedding"], images)
        np.testing.assert_array_equal(one["split val"], found[0]["split val"])
        if "label" in one:
            np.testing.assert_array_equal(one["label"], labels)
