"""The files of data_fixtures/hostile: each is refused by name, in little memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.build import build_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.pairs.vectors import read_vectors
from dataprep.pipeline.read.sources import Source
from tests.scenes.corpora import SMALL_TOKENIZER
from tests.support import REPOSITORY

HOSTILE = REPOSITORY / "data_fixtures" / "hostile"
_SKIPPING = ["--kind", "embeddings", "--dim", "4", "--on-error", "skip"]


def built(*words: str) -> tuple[int, dict[str, object], int]:
    """Exit code and result of a build, and the megabytes that its largest process took."""
    start = (
        "import os, resource, subprocess, sys; "
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024); "
        "sys.stdout.flush(); os.write(1, done.stdout); sys.exit(done.returncode)"
    )
    command = [sys.executable, "-m", "dataprep.cli.main", "build", *words, "--json"]
    done = subprocess.run([sys.executable, "-c", start, *command], capture_output=True, check=False)
    memory, _, result = done.stdout.partition(b"\n")
    return done.returncode, json.loads(result), int(memory)


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("abort.parquet", [], "E_CRASH"),
        ("nulls_in_a_message.parquet", ["--kind", "chat"], "E_TOO_LONG"),
        ("nulls_among_vectors.parquet", _SKIPPING, "E_TOO_LONG"),
        ("one_cell.parquet", [], "E_TOO_LONG"),
    ],
)
def test_parquet(name: str, words: list[str], code: str, tmp_path: Path) -> None:
    """A byte that aborts the reader; 150 million nulls in a row; a cell of 256 MiB."""
    out = tmp_path / "out"
    status, result, memory = built("--input", str(HOSTILE / name), "--out", str(out), *words)
    assert (status, result["error"]) == (7, code), result
    assert str(result["where"]).startswith(name)
    if name == "nulls_among_vectors.parquet":  # behind empty ones: the average does not show it
        assert str(result["problem"]).startswith("row 100 takes more than ")
    assert memory < 500
    assert list(tmp_path.iterdir()) == []


def repetitive(kind: str) -> tuple[pa.Table, list[str]]:
    """Return ordinary rows that are packed more than 64:1, over 128 MiB, and what to build."""
    if kind == "chat":
        system = "You are a helpful, careful assistant. " * 370
        chats = [
            [{"role": "system", "content": f"Session {n}. {system}"},
             {"role": "user", "content": f"question {n}"},
             {"role": "assistant", "content": f"answer {n}"}]
            for n in range(10_000)
        ]  # fmt: skip
        words = ["--tokenizer", str(SMALL_TOKENIZER), "--template", "chatml"]
        return pa.table({"messages": chats}), ["--kind", "chat", *words, "--dry-run"]
    if kind == "text":
        texts = ["The same long line, time and again. " * 1000 + str(n) for n in range(4_000)]
        return pa.table({"text": texts}), ["--dry-run"]
    vectors = ["--kind", "embeddings"]
    if kind == "fixed":
        ones = pa.array(np.ones(20_000 * 1024, np.float16))
        return pa.table({"vector": pa.FixedSizeListArray.from_arrays(ones, 1024)}), vectors
    numbers = np.tile(np.eye(1024, dtype=np.float32), (20, 1))
    starts = pa.array(np.arange(len(numbers) + 1, dtype=np.int32) * 1024)
    lists = pa.ListArray.from_arrays(starts, pa.array(numbers.ravel()))
    return pa.table({"vector": lists}), [*vectors, "--dry-run"]


@pytest.mark.parametrize("kind", ["chat", "text", "fixed", "one_hot"])
def test_repetitive_rows(kind: str, tmp_path: Path) -> None:
    """Ordinary rows are read however well they are packed, all in one row group."""
    table, words = repetitive(kind)
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, compression="zstd")
    with pq.ParquetFile(path) as file:
        assert file.metadata.num_row_groups == 1
        group = file.metadata.row_group(0)
        chunks = [group.column(n) for n in range(group.num_columns)]
    sizes = [
        (max(chunk.total_uncompressed_size, 8 * chunk.num_values), chunk.total_compressed_size)
        for chunk in chunks
    ]
    assert any(size > max(128 << 20, 64 * stored) for size, stored in sizes)
    status, result, memory = built("--input", str(path), "--out", str(tmp_path / "out"), *words)
    assert status == 0, result
    assert memory < 500


def test_one_row_is_named(tmp_path: Path) -> None:
    """The only row of a row group, and the limit."""
    options = EmbeddingOptions(
        input=(str(HOSTILE / "nulls_in_a_vector.parquet"),), out=tmp_path / "out"
    )
    with pytest.raises(InputError, match=r"row 0 has 1,200,000,000 bytes .* limit of 67,108,864"):
        build_embeddings(options)


def test_newlines(tmp_path: Path) -> None:
    """256 MiB of them are counted exactly, and fast."""
    words = ["--input", str(HOSTILE / "newlines.jsonl.zst"), "--out", str(tmp_path / "out")]
    status, result, memory = built(*words, "--split", "train=1")
    assert status == 0, result
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["records"]["blank_lines"] == 256 << 20
    assert config["records"]["written"] == 2
    assert memory < 500


@pytest.mark.parametrize("name", ["open_brace.npy", "indented.npy"])
def test_headers(name: str, tmp_path: Path) -> None:
    """Python's tokenizer raises errors of its own about a header."""
    options = EmbeddingOptions(input=(str(HOSTILE / name),), out=tmp_path / "out")
    with pytest.raises(InputError, match=rf"E_NPY\] {name}: not a readable .npy file"):
        build_embeddings(options)
    found = (HOSTILE / name).stat()
    source = Source(
        path=str(HOSTILE / name), name=name, format="npy", size=found.st_size,
        modified=found.st_mtime_ns,
    )  # fmt: skip
    with pytest.raises(InputError, match=rf"{name}: not a readable .npy array"):
        read_vectors(source, ["a"], "question", [])


def test_a_row_over_the_limit(tmp_path: Path) -> None:
    """A row of a packed array is not read when its header promises more than a record may have."""
    path = tmp_path / "wide.npz"
    np.savez_compressed(path, np.zeros((1, 17 << 20), np.float32))
    with pytest.raises(InputError, match=r"E_TOO_LONG.* 71,303,168 bytes, over the limit"):
        build_embeddings(EmbeddingOptions(input=(str(path),), out=tmp_path / "out"))
