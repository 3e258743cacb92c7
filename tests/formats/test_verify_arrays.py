"""Embeddings and pairs: every corrupted field is named (checklist 99 and 100)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats import array_manifest, npy, torchfile, verify_pairs, verify_report
from dataprep.formats.array_manifest import ArrayManifest, storage_dtype
from dataprep.formats.array_writer import ArrayWriter
from dataprep.formats.arrays import open_arrays
from dataprep.formats.envelope import CONFIG_NAME
from dataprep.formats.errors import IntegrityError
from dataprep.formats.verify import Finding, verify
from tests.array_datasets import bfloat16, make_embeddings, make_pairs, units
from tests.formats.verified import LEVELS, codes, files_of, outcome, put, reseal
from tests.support import examples

MANY = 100  # bytes of a shard: three vectors, twelve numbers
MAKERS: dict[str, Callable[..., ArrayManifest]] = {
    "embeddings": make_embeddings, "pairs": make_pairs
}  # fmt: skip


Copied = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Sound datasets by kind and size of a shard, each made once: not to be changed."""
    root = tmp_path_factory.mktemp("made")

    def find(kind: str, shard_bytes: int = 1 << 30) -> Path:
        path = root / f"{kind}-{shard_bytes}"
        if not path.exists():
            MAKERS[kind](path, shard_bytes=shard_bytes)
        return path

    return find


@pytest.fixture
def copied(made: Copied, tmp_path: Path) -> Copied:
    """The same, a copy each time."""

    def copy(kind: str, shard_bytes: int = 1 << 30) -> Path:
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        return Path(shutil.copytree(made(kind, shard_bytes), tmp_path / "d"))

    return copy


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
    writer.finish(
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


# Wrong numbers, whose hashes were made to fit


class Wrong(NamedTuple):
    """Number `at` of row `row` of `array` set to `value`: which code, and what is said."""

    array: str
    row: int
    at: int
    value: Any
    code: str
    says: str


FAR = (1 << 63) - 1
EMBEDDINGS = [
    Wrong("embedding", 3, 2, np.nan, "E_FINITE", "row 3[2] is nan, must be finite"),
    Wrong("embedding", 0, 0, -np.inf, "E_FINITE", "row 0[0] is -inf, must be finite"),
    Wrong("embedding", 11, 7, 3.0, "E_UNIT", "must be 1 within 0.001"),
    Wrong("embedding", 11, 7, 3e38, "E_UNIT", "has length inf, must be 1 within 0.001"),
    Wrong("half", 5, 1, np.inf, "E_FINITE", "row 5[1] is inf, must be finite"),
    Wrong("half", 5, 1, 2.0, "E_UNIT", "must be 1 within 0.002"),
    Wrong("brain", 4, 0, 0x7F80, "E_FINITE", "row 4[0] is inf, must be finite"),
    Wrong("brain", 4, 0, 0xFFC1, "E_FINITE", "row 4[0] is nan, must be finite"),
    Wrong("brain", 4, 0, 0x4000, "E_UNIT", "must be 1 within 0.01"),
    Wrong("small", 6, 3, -128, "E_UNIT", "times its scale in small_scale"),
    Wrong("small_scale", 6, 0, 0.0, "E_SCALE", "row 6 is 0.0, must be finite and above 0"),
    Wrong("small_scale", 6, 0, -1.0, "E_SCALE", "row 6 is -1.0, must be finite and above 0"),
    Wrong("small_scale", 6, 0, np.nan, "E_SCALE", "row 6 is nan, must be finite and above 0"),
    Wrong("small_scale", 6, 0, np.inf, "E_SCALE", "row 6 is inf, must be finite and above 0"),
    Wrong("label", 7, 0, 3, "E_RANGE", "row 7 is 3, must be 0 to 2 (3 categories)"),
    Wrong("label", 7, 0, -1, "E_RANGE", "row 7 is -1, must be 0 to 2 (3 categories)"),
    Wrong("weight", 9, 0, np.nan, "E_FINITE", "row 9 is nan, must be finite"),
    Wrong("flag", 8, 0, 2, "E_BOOL", "row 8 is 2, must be 0 or 1"),
    Wrong("provenance", 2, 0, 1, "E_SOURCE", "row 2[0] names input 1, must be below 1"),
    Wrong("provenance", 2, 1, 13, "E_SOURCE", "is position 13 of input 0, must be below 13"),
]
PAIRS = [
    Wrong("question_embs", 4, 1, np.nan, "E_FINITE", "row 4[1] is nan, must be finite"),
    Wrong("question_embs", 4, 1, 9.0, "E_UNIT", "must be 1 within 0.001"),
    Wrong("source_embs", 15, 7, np.inf, "E_FINITE", "row 15[7] is inf, must be finite"),
    Wrong("keyword_embs", 0, 0, np.nan, "E_FINITE", "row 0[0] is nan, must be finite"),
    Wrong("centroid_embs", 1, 0, np.nan, "E_FINITE", "row 1[0] is nan, must be finite"),
    Wrong("pair_index", 3, 0, 5, "E_RANGE", "row 3[0] is 5, must be at least 0 and below 5 (ro"),
    Wrong("pair_index", 3, 0, -1, "E_RANGE", "below 5 (rows of question_embs)"),
    Wrong("pair_index", 3, 1, 16, "E_RANGE", "row 3[1] is 16, must be at least 0 and below 16"),
    Wrong("pair_index", 3, 1, -FAR, "E_RANGE", "below 16 (rows of source_embs)"),
    Wrong("pair_cluster_id", 0, 0, 2, "E_RANGE", "row 0 is 2, must be -1 to 1 (-1 or a row of"),
    Wrong("pair_cluster_id", 0, 0, -2, "E_RANGE", "row 0 is -2, must be -1 to 1"),
    Wrong("pair_relevance", 14, 0, 1.5, "E_RANGE", "row 14 is 1.5, must be 0 to 1"),
    Wrong("pair_relevance", 14, 0, -0.5, "E_RANGE", "row 14 is -0.5, must be 0 to 1"),
    Wrong("pair_relevance", 14, 0, np.nan, "E_RANGE", "row 14 is nan, must be 0 to 1"),
    Wrong("pair_keyword_offsets", 0, 0, 1, "E_OFFSETS", "row 0 is 1, must be 0, where they"),
    Wrong("pair_keyword_offsets", 2, 0, 99, "E_OFFSETS", "row 3 is"),
    Wrong("pair_keyword_offsets", 9, 0, -1, "E_OFFSETS", "row 9 is -1, must not be below"),
    Wrong("pair_keyword_offsets", 12, 0, 0, "E_OFFSETS", "row 12 is 0, must not be below"),
    Wrong("pair_keyword_offsets", 15, 0, 99, "E_OFFSETS", "row 15 is 99, must be at most"),
    Wrong("pair_keyword_ids", 5, 0, 4, "E_RANGE", "row 5 is 4, must be at least 0 and below 4"),
    Wrong("pair_keyword_ids", 5, 0, -1, "E_RANGE", "below 4 (rows of keyword_embs)"),
    Wrong("hard_negatives", 6, 3, 16, "E_RANGE", "row 6[3] is 16, must be at least 0 and below"),
    Wrong("hard_negatives", 6, 3, -1, "E_RANGE", "below 16 (rows of source_embs)"),
    Wrong("negative_tiers", 6, 2, 0, "E_RANGE", "row 6[2] is 0, must be 1 to 4"),
    Wrong("negative_tiers", 6, 2, 5, "E_RANGE", "row 6[2] is 5, must be 1 to 4"),
    Wrong("steering_centroid", 1, 1, np.nan, "E_FINITE", "row 1[1] is nan, must be finite"),
    Wrong("steering_keyword_weighted", 1, 1, np.inf, "E_FINITE", "row 1[1] is inf, must be fi"),
    Wrong("steering_residual", 1, 1, np.nan, "E_FINITE", "row 1[1] is nan, must be finite"),
    Wrong("centroid_distances", 2, 0, 2.5, "E_RANGE", "row 2 is 2.5, must be 0 to 2"),
    Wrong("centroid_distances", 2, 0, -0.25, "E_RANGE", "row 2 is -0.25, must be 0 to 2"),
    Wrong("provenance", 2, 1, 15, "E_SOURCE", "is position 15 of input 0, must be below 15"),
]


ALL = [*(("embeddings", one) for one in EMBEDDINGS), *(("pairs", one) for one in PAIRS)]
LAST = {one.array: (kind, one) for kind, one in ALL}  # enough to see where shards end
OFFSETS = [(kind, one) for kind, one in ALL if "offsets" in one.array]


@pytest.mark.parametrize(
    ("kind", "wrong", "shard_bytes"),
    [
        *((*case, 1 << 30) for case in ALL),
        *((*case, MANY) for case in [*LAST.values(), *OFFSETS[:-1]]),
    ],
    ids=lambda value: f"{value.array}={value.value}" if isinstance(value, Wrong) else str(value),
)
def test_a_wrong_number_is_named(copied: Copied, kind: str, wrong: Wrong, shard_bytes: int) -> None:
    """File, row, value, limit and remedy; the bytes given are those of the number."""
    path = copied(kind, shard_bytes)
    manifest = array_manifest.load(path)
    file = put(path, manifest, wrong.array, wrong.row, wrong.at, wrong.value)
    reseal(path)
    (finding,) = verify(path).findings
    assert (finding.code, finding.file) == (wrong.code, file)
    assert wrong.says in finding.problem
    assert finding.remedy.startswith("Restore this file")
    assert f"row {finding.row}" in finding.problem
    _check_bytes(path, manifest, finding)
    assert verify(path, "structure").findings == (finding,)


@pytest.mark.parametrize("shard_bytes", [1 << 30, MANY])
def test_offsets_that_end_early(copied: Copied, shard_bytes: int) -> None:
    """Some keywords would be no pair's."""
    path = copied("pairs", shard_bytes)
    manifest = array_manifest.load(path)
    with open_arrays(path) as opened:
        before, end = opened.array("pair_keyword_offsets").read(14, 16).tolist()
    assert before < end
    put(path, manifest, "pair_keyword_offsets", 15, 0, before)
    reseal(path)
    (finding,) = verify(path).findings
    assert finding.code == "E_OFFSETS"
    assert f"row 15 is {before}, must be {end}, the rows of pair_k" in finding.problem
    _check_bytes(path, manifest, finding)


def _check_bytes(path: Path, manifest: ArrayManifest, finding: Finding) -> None:
    """The byte range of `finding` is one number, in the row that it names."""
    name = finding.file.partition("/")[0]
    entry = manifest.arrays[name]
    dtype = np.dtype(storage_dtype(entry.dtype))
    assert finding.start is not None and finding.stop is not None and finding.row is not None
    assert finding.stop - finding.start == dtype.itemsize
    first = 0
    for shard in entry.shards:
        if shard.file == finding.file:
            break
        first += shard.rows
    width = int(np.prod(entry.row, dtype=np.int64)) * dtype.itemsize
    header = len(npy.header(dtype.str, (shard.rows, *entry.row)))
    assert first + (finding.start - header) // width == finding.row
    value = np.frombuffer((path / finding.file).read_bytes()[finding.start : finding.stop], dtype)
    if " is " in finding.problem and entry.dtype != "bfloat16" and entry.dtype != "|b1":
        assert str(value[0]) in finding.problem


def test_an_overlong_row_is_checked(tmp_path: Path) -> None:
    """Rows of several MiB, put together to be measured."""
    path = tmp_path / "d"
    path.mkdir()
    manifest = make_embeddings(tmp_path / "small", rows=2)
    writer = ArrayWriter(path)
    rows = units(2, 700_001)
    writer.array("embedding", rows, unit=True)
    writer.array("brain", bfloat16(rows), dtype="bfloat16", unit=True)
    writer.split("train", np.arange(2))
    records = msgspec.structs.replace(manifest.records, read=3, written=2)
    records = msgspec.structs.replace(records, read=2, rejected={})
    inputs = [msgspec.structs.replace(manifest.inputs[0], records=2)]
    manifest = writer.finish(kind="embeddings", rows=2, inputs=inputs, records=records, options={})
    assert verify(path).findings == ()
    put(path, manifest, "embedding", 1, 700_000, 4.0)
    put(path, manifest, "brain", 1, 700_000, 0x7FC0)
    reseal(path)
    brain, embedding = verify(path).findings
    assert brain.problem == "row 1[700000] is nan, must be finite"
    assert embedding.problem.startswith("row 1[0] has length 4.1")


def test_an_index_within_a_row_has_all_its_dimensions(tmp_path: Path) -> None:
    """Of a row of matrices, as numpy writes it; each rule tells its first number only."""
    path = tmp_path / "d"
    path.mkdir()
    one = make_embeddings(tmp_path / "small", rows=2)
    writer = ArrayWriter(path)
    rows = np.zeros((12, 2, 3), np.float64)
    rows[7, 1, 0] = rows[9] = np.nan
    writer.array("embedding", rows)
    writer.split("train", np.arange(12))
    writer.finish(
        kind="embeddings", rows=12, options={},
        inputs=[msgspec.structs.replace(one.inputs[0], records=12)],
        records=msgspec.structs.replace(one.records, read=12, written=12, rejected={}),
    )  # fmt: skip
    (finding,) = verify(path).findings
    assert finding.problem == "row 7[1, 0] is nan, must be finite"


# Splits and rejects

WRONG_SPLITS: dict[str, tuple[list[int], str, str]] = {
    "not increasing": ([1, 4, 2, 5], "train_idx.pt", "position 2: row 2 is not larger than"),
    "twice": ([1, 2, 2, 4], "train_idx.pt", "position 2: row 2 is not larger than"),
    "negative": ([-1, 2, 4, 5], "train_idx.pt", "position 0: row -1 is not larger than"),
    "beyond": ([1, 2, 4, 6], "train_idx.pt", "row 6 is not below the number of rows, 6"),
    "in two splits": ([0, 1, 2, 4], "val_idx.pt", "row 0 is also in another split"),
}


@pytest.mark.parametrize(("rows", "file", "says"), WRONG_SPLITS.values(), ids=WRONG_SPLITS)
def test_wrong_splits(tmp_path: Path, rows: list[int], file: str, says: str) -> None:
    """Increasing, inside, disjoint; as many as there are rows, so none is missing."""
    path = tmp_path / "d"
    make_embeddings(path, rows=6)
    data = np.array(rows, "<i8").tobytes()
    (path / "train_idx.pt").write_bytes(
        torchfile.head(4) + data + torchfile.tail(4, zlib.crc32(data))
    )
    reseal(path)
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.file) == ("E_INDEX", file)
    assert says in finding.problem and finding.remedy


REJECT = {
    "record": 2, "input": 0, "line": None, "offset": 2, "bytes": None, "reason": "not_finite",
    "detail": "", "excerpt": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("rejects", "says"),
    [
        ([], "holds none; config.json says not_finite 1"),
        ([REJECT | {"record": 13}], "line 1 names record 13"),
        ([REJECT | {"input": 1}], "line 1 names input 1"),
        ([REJECT, REJECT], "record 2 stands in two places"),
        ([REJECT | {"reason": "zero"}], "holds zero 1; config.json says not_finite 1"),
    ],
)
def test_wrong_rejects(copied: Copied, rejects: list[dict[str, Any]], says: str) -> None:
    """As in a dataset of tokens."""
    path = copied("embeddings")
    (path / "rejects.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rejects))
    reseal(path)
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.file) == ("E_REJECTS", "rejects.jsonl")
    assert says in finding.problem


# Negatives against a plain reference


def reference(index: Any, negatives: Any) -> set[tuple[str, int]]:
    """Where a negative repeats or is a known positive of its question, by sets."""
    known = {(q, s) for q, s in index.tolist()}
    repeats = [row for row, one in enumerate(negatives.tolist()) if len({*one}) < len(one)]
    if repeats:
        return {("E_REPEAT", repeats[0])}  # negatives that are not sound are not compared
    for row, (one, (question, _)) in enumerate(
        zip(negatives.tolist(), index.tolist(), strict=True)
    ):
        if any((question, source) in known for source in one):
            return {("E_POSITIVE", row)}
    return set()


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), held=st.sampled_from([1, 4, 1 << 22]), bins=st.sampled_from([2, 1 << 16]))
def test_negatives_agree_with_a_reference(
    tmp_path: Path, data: st.DataObject, held: int, bins: int
) -> None:
    """Any pairs and negatives, held in parts or at once: the same row is named, or none."""
    clean = tmp_path / "clean"
    sizes = {"questions": 4, "sources": 30, "per_question": 3, "negatives": 3}
    if not clean.exists():
        make_pairs(clean, **sizes)
    manifest = array_manifest.load(clean)
    path = tmp_path / "d"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(clean, path)
    with open_arrays(clean) as opened:
        index = opened.array("pair_index").read(0, 12)
        negatives = opened.array("hard_negatives").read(0, 12)
    for array, values in (("pair_index", index), ("hard_negatives", negatives)):
        changes = st.lists(
            st.tuples(st.integers(0, 11), st.integers(0, values.shape[1] - 1), st.integers(0, 29)),
            max_size=3,
        )
        for row, at, value in data.draw(changes):
            fitting = value % 4 if array == "pair_index" and at == 0 else value
            values[row, at] = fitting
            put(path, manifest, array, row, at, fitting)
    verify_pairs._HELD, verify_pairs._BINS = held, bins
    try:
        findings = verify(path, "structure").findings
    finally:
        verify_pairs._HELD, verify_pairs._BINS = 1 << 22, 1 << 16
    found = {(finding.code, finding.row) for finding in findings}
    assert found == reference(index, negatives) or (
        # parts are looked through by question, so another row may come first
        {code for code, _ in found} == {"E_POSITIVE"} == {c for c, _ in reference(index, negatives)}
    )
    for finding in findings:
        _check_bytes(path, manifest, finding)


def test_a_known_positive_is_named(copied: Copied) -> None:
    """The source of another pair of the same question."""
    path = copied("pairs", MANY)
    manifest = array_manifest.load(path)
    with open_arrays(path) as opened:
        question, source = opened.array("pair_index").read(4, 5)[0].tolist()
    put(path, manifest, "hard_negatives", 3, 2, source)
    reseal(path)
    (finding,) = verify(path).findings
    assert finding.code == "E_POSITIVE"
    assert finding.problem == (
        f"row 3[2] is source {source}, must be no known positive of question {question}"
    )
    _check_bytes(path, manifest, finding)


def test_a_repeated_negative_is_named(copied: Copied) -> None:
    """Twice in one row."""
    path = copied("pairs")
    manifest = array_manifest.load(path)
    with open_arrays(path) as opened:
        value = int(opened.array("hard_negatives").read(7, 8)[0, 1])
    put(path, manifest, "hard_negatives", 7, 3, value)
    reseal(path)
    (finding,) = verify(path).findings
    assert finding.code == "E_REPEAT"
    assert finding.problem == f"row 7[3] is {value}, as [1] is: must not repeat"


def test_negatives_of_another_layout_are_as_they_were_there(copied: Copied) -> None:
    """They may repeat, and answer the question elsewhere; the pair's own source is refused."""
    path = copied("pairs")
    manifest = array_manifest.load(path)
    with open_arrays(path) as opened:
        pairs = opened.array("pair_index").read(3, 5).tolist()
        first = int(opened.array("hard_negatives").read(3, 4)[0, 0])
    for at, source in {1: pairs[1][1], 2: first}.items():
        put(path, manifest, "hard_negatives", 3, at, source)
    reseal(path)
    assert {finding.code for finding in verify(path).findings} == {"E_REPEAT"}
    reseal(path, _pairs(foreign={"n_neg": 4}))
    assert verify(path).findings == ()
    put(path, manifest, "hard_negatives", 4, 3, pairs[1][1])
    reseal(path)
    (finding,) = verify(path).findings
    assert (finding.code, finding.row) == ("E_POSITIVE", 4)
    _check_bytes(path, manifest, finding)


# Refused at open


def _arrays(name: str, **fields: Any) -> Callable[[ArrayManifest], ArrayManifest]:
    """A change of fields of one array of the manifest."""

    def change(manifest: ArrayManifest) -> ArrayManifest:
        entry = msgspec.structs.replace(manifest.arrays[name], **fields)
        return msgspec.structs.replace(manifest, arrays={**manifest.arrays, name: entry})

    return change


def _without(name: str) -> Callable[[ArrayManifest], ArrayManifest]:
    def change(manifest: ArrayManifest) -> ArrayManifest:
        kept = {key: entry for key, entry in manifest.arrays.items() if key != name}
        return msgspec.structs.replace(manifest, arrays=kept)

    return change


def _pairs(**fields: Any) -> Callable[[ArrayManifest], ArrayManifest]:
    return lambda manifest: msgspec.structs.replace(manifest, pairs={**manifest.pairs, **fields})  # type: ignore[dict-item]


def _added(manifest: ArrayManifest) -> ArrayManifest:
    extra = msgspec.structs.replace(manifest.arrays["pair_relevance"], shards=(), rows=0)
    arrays = {**manifest.arrays, "extra": msgspec.structs.replace(extra, table=True)}
    return msgspec.structs.replace(manifest, arrays=arrays)


REFUSED: dict[str, tuple[str, Callable[[ArrayManifest], ArrayManifest], str]] = {
    "no array": ("pairs", _without("negative_tiers"), "needs the array negative_tiers"),
    "another array": ("pairs", _added, "has no array extra"),
    "type": ("pairs", _arrays("pair_index", dtype="<u8"), "pair_index: type <u8, must be <i8"),
    "width": ("pairs", _arrays("source_embs", row=(9,)), "source_embs: shape .16, 9., must be"),
    "rows": (
        "pairs", _arrays("pair_keyword_offsets", rows=15),
        r"pair_keyword_offsets: shape .15., must be .16. .ends.",
    ),
    "no vectors": ("pairs", _arrays("question_embs", row=()), "question_embs: a row is not a list"),
    "dim": ("pairs", _pairs(dim=9), "pairs.dim is 9, the arrays have 8"),
    "negatives": ("pairs", _pairs(negatives=3), "pairs.negatives is 3, the arrays have 4"),
    "clusters": ("pairs", _pairs(clusters={"count": 3}), "pairs.clusters is 3, the arrays have 2"),
    "scale of float": ("embeddings", _arrays("half", scale="small_scale"), "only int8 numbers"),
    "scale of two": ("embeddings", _arrays("small", scale="embedding"), "not one float32 for each"),
    "length of ids": ("embeddings", _arrays("number", unit=True), "number: only vectors of real"),
    "unsorted": ("embeddings", _arrays("label", categories=("b", "a")), "unsorted or repeat"),
    "texts of reals": ("embeddings", _arrays("weight", categories=("a",)), "only single int64"),
    "provenance": ("embeddings", _arrays("provenance", row=(3,)), "provenance"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "says"), REFUSED.values(), ids=REFUSED)
def test_manifests_that_do_not_fit_are_refused_at_open(
    copied: Copied, kind: str, change: Callable[[ArrayManifest], ArrayManifest], says: str
) -> None:
    """Before any array is read: what the shapes and types alone can tell."""
    path = copied(kind)
    reseal(path, change)
    for refuse in (open_arrays, verify):
        with pytest.raises(IntegrityError, match=says) as caught:
            refuse(path)
        assert caught.value.where == CONFIG_NAME and caught.value.remedy


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


def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    """300,000 rows, 77 MB, in less than 40 MB over what the program itself takes."""
    path = tmp_path / "d"
    path.mkdir()
    small = make_embeddings(tmp_path / "small")
    writer = ArrayWriter(path)
    rows, block = 300_000, units(1000, 64)
    writer.array(
        "embedding", (block for _ in range(rows // 1000)), rows=rows, row=(64,), dtype="<f4",
        unit=True,
    )  # fmt: skip
    writer.split("train", np.arange(rows))
    writer.finish(
        kind="embeddings", rows=rows, options={},
        inputs=[msgspec.structs.replace(small.inputs[0], records=rows)],
        records=msgspec.structs.replace(small.records, read=rows, written=rows, rejected={}),
    )  # fmt: skip
    program = (
        "import resource, sys; from dataprep.formats.verify import verify\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "verify(sys.argv[1]); before = peak(); assert verify(sys.argv[2]).ok\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "small"), str(path)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 40_000
