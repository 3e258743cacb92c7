"""Embeddings and pairs: splits, rejects, negatives and the manifest must agree with the arrays."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import index_file as torchfile
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify import arrays as verify_arrays
from dataprep.formats.verify.verify import verify
from tests.scenes.array_datasets import make_embeddings, make_pairs
from tests.scenes.verified import content_of, put, reseal
from tests.scenes.verified_arrays import MANY, Copied
from tests.scenes.verified_arrays import check_bytes as _check_bytes
from tests.support import examples

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
    verify_arrays._IN_MEMORY, verify_arrays._BINS = held, bins
    try:
        findings = verify(path, "structure").findings
    finally:
        verify_arrays._IN_MEMORY, verify_arrays._BINS = 1 << 22, 1 << 16
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
    reseal(path, content_of(path))
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


def _records(**fields: Any) -> Callable[[ArrayManifest], ArrayManifest]:
    """A change of fields of the records of the manifest."""
    return lambda manifest: msgspec.structs.replace(
        manifest, records=msgspec.structs.replace(manifest.records, **fields)
    )


REFUSED: dict[str, tuple[str, Callable[[ArrayManifest], ArrayManifest], str]] = {
    "no array": ("pairs", _without("negative_tiers"), "needs the array negative_tiers"),
    "width": ("pairs", _arrays("source_embs", row=(9,)), "source_embs: shape .16, 9., must be"),
    "rows": (
        "pairs", _arrays("pair_keyword_offsets", rows=15),
        r"pair_keyword_offsets: shape .15., must be .16. .ends.",
    ),
    "no vectors": ("pairs", _arrays("question_embs", row=()), "question_embs: a row is not a list"),
    "dim": ("pairs", _pairs(dim=9), "pairs.dim is 9, the arrays have 8"),
    "negatives": ("pairs", _pairs(negatives=3), "pairs.negatives is 3, the arrays have 4"),
    "clusters": ("pairs", _pairs(clusters={"count": 3}), "pairs.clusters is 3, the arrays have 2"),
    "more written": ("pairs", _records(written=16), "records.written differs from the rows"),
    "lost": (
        "pairs", _records(read=16), "differs from written . rejected . removed[.] Restore",
    ),
    "none merged": (
        "pairs", _pairs(counts={"merged": 1}), "read differs from written . .* removed . merged",
    ),
    "no count": ("pairs", _pairs(counts={"merged": -1}), "pairs.counts.merged is no count"),
    "no counts": ("pairs", _pairs(counts=[1]), "pairs.counts.merged is no count"),
    "inputs": ("pairs", _records(read=16, removed=1), "differs from the records of the inputs"),
    "scale of float": ("embeddings", _arrays("half", scale="small_scale"), "only int8 numbers"),
    "scale of two": ("embeddings", _arrays("small", scale="embedding"), "not one float32 for each"),
    "length of ids": ("embeddings", _arrays("number", unit=True), "number: only vectors of real"),
    "unsorted": ("embeddings", _arrays("label", categories=("b", "a")), "unsorted or repeat"),
    "texts of reals": ("embeddings", _arrays("weight", categories=("a",)), "only single int64"),
    "provenance": ("embeddings", _arrays("provenance", row=(3,)), "provenance"),
}  # fmt: skip


def test_every_record_of_pairs_is_accounted_for(copied: Copied) -> None:
    """Written, rejected, removed, or merged into a pair that stood there."""
    path = copied("pairs")

    def change(manifest: ArrayManifest) -> ArrayManifest:
        read = manifest.rows + 6
        inputs = (msgspec.structs.replace(manifest.inputs[0], records=read),)
        counted = _records(read=read, removed=2)(_pairs(counts={"merged": 4})(manifest))
        return msgspec.structs.replace(counted, inputs=inputs)

    reseal(path, change)
    assert verify(path, "full").findings == ()


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
