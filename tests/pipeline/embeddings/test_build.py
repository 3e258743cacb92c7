"""Builds of embeddings: the same bytes however many make them, and what is there already."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import BusyError, IntegrityError, RecordError, UsageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.build import build, build_embeddings, estimate_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.progress import Progress
from dataprep.pipeline.read.fingerprints import fingerprint_files
from dataprep.pipeline.staging.directory import Staging
from tests.scenes.embed_inputs import (
    ALL_COLUMNS,
    Records,
    arrays_of,
    build_vectors,
    digests,
    write_records,
)

UNITS = 5


def test_names_are_for_people(tmp_path: Path) -> None:
    """A renamed input, its format said, and --on-error make no other recipe; --dtype does."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, 3)))
    first = build_vectors(tmp_path / "out", tmp_path / "x.npy")
    (tmp_path / "x.npy").rename(tmp_path / "y.npy")
    for out in ("out", "new"):
        report = build_vectors(tmp_path / out, tmp_path / "y.npy", format="npy", on_error="skip")
        assert (report.reused, report.recipe_id) == (out == "out", first.recipe_id)
    with pytest.raises(UsageError, match="different dtype"):
        build_vectors(tmp_path / "out", tmp_path / "y.npy", dtype="float16")


def test_any_number_of_workers(tmp_path: Path, large: Path, small_units: None) -> None:
    """Processes, one or two, and none at all, give the same bytes."""
    options: dict[str, Any] = {
        "columns": ALL_COLUMNS,
        "dtype": "float16",
        "split": "train=0.7,val=0.3",
    }
    reports = [build_vectors(tmp_path / f"out{n}", large, workers=n, **options) for n in (1, 2)]
    assert [report.workers for report in reports] == [1, 2]
    assert reports[0].units > UNITS
    assert digests(tmp_path / "out1") == digests(tmp_path / "out2")
    whole = arrays_of(tmp_path / "out1")
    assert len(whole["embedding"]) == 400
    assert set(reports[0].profile.as_dict()["stages"]) >= {"read", "check", "hash", "write"}  # type: ignore[call-overload]


def test_units_do_not_show(
    tmp_path: Path, large: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the input is cut, the arrays and splits are the same."""
    build_vectors(tmp_path / "whole", large, columns=ALL_COLUMNS)
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._SMALL_UNIT_BYTES", 5000)
    monkeypatch.setattr("dataprep.pipeline.embeddings.rows.BLOCK_BYTES", 500)
    build_vectors(tmp_path / "cut", large, columns=ALL_COLUMNS)
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "x.pt"])
def test_units_take_the_fingerprint_of_the_file(
    tmp_path: Path, records: Records, small_units: None, here: None,
    monkeypatch: pytest.MonkeyPatch, name: str,
) -> None:  # fmt: skip
    """The chunks that units read are together those of the whole file, so it is known again."""
    for module in ("read.fingerprints", "embeddings.readers"):
        monkeypatch.setattr(f"dataprep.pipeline.{module}.CHUNK_BYTES", 3000)
    path = write_records(tmp_path, name, records)
    report = build_vectors(tmp_path / "out", path, columns=["embedding=vector"])
    assert report.manifest.inputs[0].fingerprint == fingerprint_files([str(path)])
    assert build_vectors(tmp_path / "out", path, columns=["embedding=vector"]).reused


def test_large_pieces_are_linked(
    tmp_path: Path, large: Path, small_units: None, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit in which every row is of use becomes a shard as it is; what is said of it is true."""
    array = np.load(large)
    array["vector"][200] = np.nan
    np.save(large, array)
    options: dict[str, Any] = {"columns": ALL_COLUMNS, "on_error": "skip", "dtype": "int8"}
    build_vectors(tmp_path / "joined", large, **options)
    monkeypatch.setattr("dataprep.pipeline.embeddings.assemble.LINK_BYTES", 1)
    report = build_vectors(tmp_path / "linked", large, **options)
    for name in ("embedding", "label", "provenance"):
        shards = report.manifest.arrays[name].shards
        assert len(shards) == (1 if name == "label" else report.units)  # labels are numbered anew
        assert sum(shard.rows for shard in shards) == 399
    assert verify(tmp_path / "linked").ok
    joined, linked = arrays_of(tmp_path / "joined"), arrays_of(tmp_path / "linked")
    for name, found in joined.items():
        np.testing.assert_array_equal(linked[name], found)
    hashes = digests(tmp_path / "linked")
    for entry in report.manifest.files:
        assert hashes[entry.name] == entry.sha256
    crcs = np.load(tmp_path / "linked" / "crc32.npy")
    names = [entry.name for entry in report.manifest.files if entry.name != "crc32.npy"]
    data = [(tmp_path / "linked" / name).read_bytes() for name in names]  # less than a MiB each
    np.testing.assert_array_equal(crcs, [zlib.crc32(one) for one in data if one])


def test_the_first_bad_row_is_told(tmp_path: Path, small_units: None) -> None:
    """Whatever the number of workers, and whichever unit is done first."""
    vectors = np.ones((1000, 8), np.float32)
    vectors[[400, 990]] = np.nan
    np.save(tmp_path / "x.npy", vectors)
    for workers in (1, 2):
        with pytest.raises(RecordError) as caught:
            build_vectors(tmp_path / "out", tmp_path / "x.npy", workers=workers)
        assert caught.value.where == "x.npy row 400"


def test_built_already(tmp_path: Path, large: Path) -> None:
    """The same build is reused, another one refused, and --overwrite replaces it."""
    first = build_vectors(tmp_path / "out", large)
    again = build_vectors(tmp_path / "out", large)
    assert again.reused
    assert again.recipe_id == first.recipe_id
    with pytest.raises(UsageError, match="different dtype"):
        build_vectors(tmp_path / "out", large, dtype="float16")
    shard = tmp_path / "out" / "embedding" / "00000.npy"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=r"embedding/00000\.npy"):
        build_vectors(tmp_path / "out", large)
    replaced = build_vectors(tmp_path / "out", large, dtype="float16", overwrite=True)
    assert not replaced.reused
    with large.open("r+b") as stream:
        stream.seek(-5, 2)
        stream.write(b"\1")
    with pytest.raises(UsageError, match=r"the input x\.npy has changed"):
        build_vectors(tmp_path / "out", large, dtype="float16")


def test_another_kind_of_dataset(tmp_path: Path, large: Path) -> None:
    """Tokens and embeddings do not take one another's place unless asked to."""
    text = tmp_path / "x.txt"
    text.write_text("some text")
    tokens = BuildOptions(input=(str(text),), out=tmp_path / "out", split="train=1", workers=1)
    build(tokens)
    with pytest.raises(UsageError, match="another kind") as caught:
        build_vectors(tmp_path / "out", large)
    assert caught.value.code == "E_EXISTS"
    build_vectors(tmp_path / "out", large, overwrite=True)
    with pytest.raises(UsageError, match="another kind"):
        build(tokens)


def test_held_by_another(tmp_path: Path, large: Path) -> None:
    """A build with other options that is under way is not disturbed."""
    other = Staging(tmp_path / "out", "0" * 16)
    other.create()
    with other.locked(), pytest.raises(BusyError):
        build_vectors(tmp_path / "out", large)


def test_progress_and_estimate(tmp_path: Path, large: Path, small_units: None, here: None) -> None:
    """Progress reaches all rows; the estimate foretells rows and bytes."""
    seen: list[Progress] = []
    options = EmbeddingOptions(
        input=(str(large),), out=tmp_path / "out", columns=ALL_COLUMNS, workers=1
    )
    found = estimate_embeddings(options)
    report = build_embeddings(options, progress=seen.append)
    assert [one.stage for one in seen][:1] == ["plan"]
    assert seen[-1].stage == "commit"
    assert seen[-1].documents == found.rows == 400
    assert seen[-1].bytes_done == seen[-1].bytes_total
    stored = sum(entry.bytes for entry in report.manifest.files)
    assert abs(stored - found.output_bytes) < 8000
    assert found.as_dict()["row_bytes"]["embedding"] == 32
    assert estimate_embeddings(options).notes


def test_a_split_key_of_few_values(tmp_path: Path) -> None:
    """That is said, and which splits are empty for it; also where nothing decides but the rows."""
    data = tmp_path / "x.jsonl"
    rows = [{"embedding": [n, 1.0], "split": ["train", "val", "test"][n % 3]} for n in range(90)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = build_vectors(tmp_path / "keyed", data, split_key="split").notes
    assert note.startswith("nothing fell to the split")
    assert "the field 'split' has only 3 distinct values" in note
    data.write_text(json.dumps(rows[0]) + "\n")
    (note,) = build_vectors(tmp_path / "one", data).notes
    assert "too few documents" in note


def test_a_field_with_a_dot_in_its_name(tmp_path: Path) -> None:
    """It goes before one inside an object, as in Parquet."""
    data = tmp_path / "x.jsonl"
    row = {"a.b": [1.0, 2.0], "a": {"b": [3.0, 4.0], "n": 5}}
    data.write_text((json.dumps(row) + "\n") * 3)
    build_vectors(tmp_path / "out", data, columns=["embedding=a.b", "n=a.n"], split="train=1")
    found = arrays_of(tmp_path / "out")
    assert found["embedding"].tolist() == [[1.0, 2.0]] * 3
    assert found["n"].tolist() == [5] * 3
