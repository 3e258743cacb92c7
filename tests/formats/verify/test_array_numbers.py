"""Embeddings and pairs: numbers that break a rule are named (checklist 99 and 100)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.formats.write.dataset_writer import ArrayWriter
from tests.scenes.array_datasets import bfloat16, make_embeddings, units
from tests.scenes.verified import put, reseal
from tests.scenes.verified_arrays import MANY, Copied
from tests.scenes.verified_arrays import check_bytes as _check_bytes


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
    Wrong("pair_keyword_offsets", 0, 0, 1, "E_OFFSETS", "row 0 is 1, must start at 0"),
    Wrong("pair_keyword_offsets", 2, 0, 99, "E_OFFSETS", "row 2 is 99, past the"),
    Wrong("pair_keyword_offsets", 9, 0, -1, "E_OFFSETS", "row 9 is -1, pair 8 has -"),
    Wrong("pair_keyword_offsets", 12, 0, 0, "E_OFFSETS", "row 12 is 0, pair 11 has -"),
    Wrong("pair_keyword_offsets", 15, 0, 99, "E_OFFSETS", "row 15 is 99, past the"),
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
    assert f"row 15 is {before}, must end at {end}, the rows of pair_k" in finding.problem
    _check_bytes(path, manifest, finding)


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
    manifest = writer.finish_arrays(
        kind="embeddings", rows=2, inputs=inputs, records=records, options={}
    )
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
    writer.finish_arrays(
        kind="embeddings", rows=12, options={},
        inputs=[msgspec.structs.replace(one.inputs[0], records=12)],
        records=msgspec.structs.replace(one.records, read=12, written=12, rejected={}),
    )  # fmt: skip
    (finding,) = verify(path).findings
    assert finding.problem == "row 7[1, 0] is nan, must be finite"
