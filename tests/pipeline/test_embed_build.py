"""Builds of embeddings: the same bytes whatever happens, resumed, refused, encoded."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.formats.errors import BusyError, InputError, IntegrityError, RecordError, UsageError
from dataprep.formats.verify import verify
from dataprep.pipeline.build import build
from dataprep.pipeline.embeddings.build import build_embeddings
from dataprep.pipeline.embeddings.estimate import estimate_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions, parse_columns
from dataprep.pipeline.fingerprint import fingerprint_files
from dataprep.pipeline.ongoing import Ongoing
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.progress import Progress
from dataprep.pipeline.staging import Staging
from dataprep.pipeline.worker import Event
from tests.pipeline.embed_inputs import (
    ALL_COLUMNS,
    Records,
    arrays_of,
    build_vectors,
    digests,
    make_records,
    write_records,
)

UNITS = 5


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 8 KiB, so that a small input has several."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._SMALL_UNIT_BYTES", 8 << 10)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are done in this process, where tests can change how."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.build._Build._workers_for", lambda *_: 0)


@pytest.fixture(scope="module")
def records() -> Records:
    return make_records(400)


@pytest.fixture
def large(tmp_path: Path, records: Records) -> Path:
    """A .npz is one unit; a structured .npy of 400 records of 113 bytes is several."""
    return write_records(tmp_path, "x.npy", records)


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
    for module in ("fingerprint", "embeddings.readers"):
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
    monkeypatch.setattr("dataprep.pipeline.embeddings.unit_rows.LINK_BYTES", 1)
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


class _Stop(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """Stop builds in this process after so many units."""
    original, finished = Ongoing.note, []

    def note(self: Ongoing, event: Event) -> None:
        original(self, event)
        finished.extend([event.unit] if event.finished else [])
        if len(finished) == units:
            raise _Stop

    monkeypatch.setattr(Ongoing, "note", note)


@pytest.mark.parametrize("damage", [None, "label.npy", "unit.json"])
def test_a_stopped_build_goes_on(
    tmp_path: Path, large: Path, small_units: None, here: None,
    monkeypatch: pytest.MonkeyPatch, damage: str | None,
) -> None:  # fmt: skip
    """Finished units are kept if they are whole, and done again if they are not."""
    build_vectors(tmp_path / "reference", large, columns=ALL_COLUMNS)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(_Stop):
            build_vectors(tmp_path / "out", large, columns=ALL_COLUMNS)
    assert not (tmp_path / "out").exists()
    if damage is not None:
        (path,) = tmp_path.glob(f".out.building-*/units/unit-000001/{damage}")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else b"x")
    report = build_vectors(tmp_path / "out", large, columns=ALL_COLUMNS)
    assert report.resumed_units == (3 if damage is None else 2)
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "reference", "x.npy"]


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
    assert again.build_id == first.build_id
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


# Texts


def fake(texts: list[str]) -> npt.NDArray[np.float64]:
    """A vector of a text: its length, and sums over its bytes."""
    return np.array([[len(text), sum(text.encode()), 1 + len(set(text))] for text in texts], float)


def lines(tmp_path: Path, count: int = 100) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "text {n}", "id": {n}}}\n' for n in range(count)))
    return path


def test_texts_are_encoded(tmp_path: Path) -> None:
    """In their order, so many at a time, beside other columns; equal texts share a split."""
    sizes = []

    def encoder(texts: list[str]) -> npt.NDArray[np.float64]:
        sizes.append(len(texts))
        return fake(texts)

    report = build_vectors(
        tmp_path / "out", lines(tmp_path), text_field="text", encoder=encoder, encode_batch=30,
        columns=["id"],
    )  # fmt: skip
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["embedding"], fake([f"text {n}" for n in range(100)]))
    np.testing.assert_array_equal(found["id"], np.arange(100))
    assert sizes == [1, 30, 30, 30, 10]  # the first is the probe
    assert report.manifest.options["encoder"].endswith("test_texts_are_encoded.<locals>.encoder")


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.arrow", "hf"])
def test_texts_of_any_input(tmp_path: Path, records: Records, name: str) -> None:
    """Whatever holds a text column."""
    path = write_records(tmp_path, name, records)
    build_vectors(tmp_path / "out", path, text_field="topic", encoder=fake)
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], fake(records.topic))


def test_encoding_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of finished units are not encoded again; the bytes are those of one run."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._TEXT_UNIT_BYTES", 500)
    path = lines(tmp_path)
    build_vectors(tmp_path / "reference", path, text_field="text", encoder=fake)
    seen: list[str] = []
    failing = [True]

    def fake_2(texts: list[str]) -> npt.NDArray[np.float64]:
        seen.extend(texts)
        if failing[0] and "text 60" in texts:
            raise RuntimeError("out of luck")
        return fake(texts)

    fake_2.__qualname__, fake_2.__module__ = fake.__qualname__, fake.__module__
    with pytest.raises(Exception, match="out of luck"):
        build_vectors(tmp_path / "out", path, text_field="text", encoder=fake_2)
    failing[0] = False
    seen.clear()
    report = build_vectors(tmp_path / "out", path, text_field="text", encoder=fake_2)
    assert report.resumed_units > 2
    assert "text 0" not in seen
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")


def test_another_encoder_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of an encoder that gave other vectors are not mixed with new ones."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._TEXT_UNIT_BYTES", 500)
    path = lines(tmp_path)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(_Stop):
            build_vectors(tmp_path / "out", path, text_field="text", encoder=fake)

    def other(texts: list[str]) -> npt.NDArray[np.float64]:
        return fake(texts) * 2

    other.__qualname__, other.__module__ = fake.__qualname__, fake.__module__
    report = build_vectors(tmp_path / "out", path, text_field="text", encoder=other)
    assert report.resumed_units == 0
    assert report.notes  # about the unfinished one


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (lambda texts: np.ones(3), r"gave float64 \[3\]"),
        (lambda texts: np.ones((len(texts) + 1, 3)), "for 1 texts"),
        (lambda texts: [["a"]], "gave <U1"),
        (lambda texts: np.ones((len(texts), 3 + (len(texts) > 1))), r"not floats \[100, 3\]"),
    ],
)
def test_encoders_that_are_refused(
    tmp_path: Path, encoder: Callable[[list[str]], Any], problem: str
) -> None:
    """One vector for each text, all of one width."""
    with pytest.raises(InputError, match=problem):
        build_vectors(tmp_path / "out", lines(tmp_path), text_field="text", encoder=encoder)


def test_bad_texts_and_vectors_of_texts(tmp_path: Path) -> None:
    """Empty texts, and texts for which an encoder gives no number, are rejects."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": ""}\n{"text": "nan"}\n{"text": "b"}\n')

    def encoder(texts: list[str]) -> npt.NDArray[np.float64]:
        assert "" not in texts
        return np.array([[np.nan if text == "nan" else 1.0, 2.0] for text in texts])

    report = build_vectors(
        tmp_path / "out", path, text_field="text", encoder=encoder, on_error="skip"
    )
    assert report.manifest.records.rejected == {"empty": 1, "not_finite": 1}
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], [[1, 2]] * 2)


def test_a_model_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentence-transformers the error says what to install."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UsageError) as caught:
        build_vectors(tmp_path / "out", lines(tmp_path), text_field="text", encoder="some/model")
    assert str(caught.value) == (
        "error[E_MISSING_LIBRARY] --encoder: 'some/model' needs sentence-transformers, which is "
        "not installed. Install it: pip install 'dataprep[embed]'."
    )


# Options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": ["Bad=x"]}, "cannot name an array"),
        ({"columns": ["a=x", "a=y"]}, "two arrays 'a'"),
        ({"columns": ["provenance"]}, "two arrays 'provenance'"),
        ({"columns": 3}, "must be NAME=FIELD"),
        ({"columns": ["a", "a_scale"], "dtype": "int8"}, "two arrays 'a_scale'"),
        ({"columns": ["a" * 32], "dtype": "int8"}, "at most 26"),
        ({"encoder": "x"}, "needs --text-field"),
        ({"text_field": "x"}, "needs --encoder"),
        ({"encoder": 3, "text_field": "x"}, "the name of a model"),
        ({"dim": 0}, "must be from 1"),
        ({"encode_batch": 0}, "must be from 1"),
        ({"dtype": "float8"}, "must be one of float32"),
        ({"normalize": 1}, "must be bool"),
        ({"max_rejects": 1}, "only means something"),
        ({"split": "train=2"}, "is not a ratio"),
        ({"text_field": "t", "encoder": len, "columns": ["embedding=v"]}, "two arrays 'embedding'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], problem: str) -> None:
    """At once, as `UsageError`."""
    with pytest.raises(UsageError, match=problem):
        EmbeddingOptions(input="x.npy", out=Path("out"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name", "field", "kind"),
    [
        ("a", "a", "a", None),
        ("a=b", "a", "b", None),
        ("a:int", "a", "a", "int"),
        ("a=b.c:float", "a", "b.c", "float"),
        ("label=label", "label", "label", None),
        ("a=x:y", "a", "x:y", None),
        ("a=b=c", "a", "b=c", None),
    ],
)
def test_columns_are_understood(text: str, name: str, field: str, kind: str | None) -> None:
    """NAME, =FIELD and :KIND."""
    (wish,) = parse_columns([text])
    assert (wish.name, wish.field, wish.kind) == (name, field, kind)
