"""Every record stands in exactly one split or in rejects.jsonl, or verify says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import CONFIG_NAME, Manifest
from dataprep.formats.verify.records import Bits
from dataprep.formats.verify.verify import VerifyReport, verify
from tests.scenes.verified import MIB, codes, reseal

WRONG_INDEXES: dict[str, tuple[list[int], str]] = {
    "not increasing": ([0, 2, 1, 3], "train_idx.pt"),
    "equal": ([0, 1, 1, 3], "train_idx.pt"),
    "negative": ([-1, 1, 2, 3], "train_idx.pt"),
    "beyond": ([0, 1, 2, 6], "train_idx.pt"),
    "far beyond": ([0, 1, 2, (1 << 63) - 1], "train_idx.pt"),
    "in two splits": ([0, 1, 2, 4], "val_idx.pt"),
}


@pytest.mark.parametrize(("ids", "blamed"), WRONG_INDEXES.values(), ids=WRONG_INDEXES.keys())
def test_indexes_that_do_not_fit(dataset: Path, ids: list[int], blamed: str) -> None:
    """Record ids increase within a split, are records that were read, and stand in one split."""
    _write_index(dataset, "train_idx.pt", ids)
    reseal(dataset)
    assert codes(verify(dataset, "structure")) == {("E_INDEX", blamed)}


def _write_index(path: Path, name: str, ids: list[int]) -> None:
    import io

    from dataprep.formats.files.index_file import write_index

    stream = io.BytesIO()
    write_index(stream, [np.array(ids, np.int64)], len(ids))
    (path / name).write_bytes(stream.getvalue())


def _count(**changes: Any) -> Callable[[Manifest], Manifest]:
    """A manifest whose inputs and records say that more was read."""

    def change(manifest: Manifest) -> Manifest:
        records = msgspec.structs.replace(manifest.records, **changes)
        inputs = (msgspec.structs.replace(manifest.inputs[0], records=records.read),)
        return msgspec.structs.replace(manifest, records=records, inputs=inputs)

    return change


def reject(record: int, reason: str = "empty", **changes: Any) -> bytes:
    entry = {
        "record": record, "line": record + 1, "offset": 0, "bytes": 2, "reason": reason,
        "detail": "nothing", "excerpt": "{}", "input": 0, **changes,
    }  # fmt: skip
    return json.dumps(entry).encode() + b"\n"


def rejecting(path: Path, lines: bytes, rejected: dict[str, int]) -> VerifyReport:
    """`path` with these rejects, and a manifest that counts `rejected`."""
    if lines:
        (path / "rejects.jsonl").write_bytes(lines)
    reseal(path, _count(read=6 + sum(rejected.values()), rejected=rejected))
    return verify(path)


def test_rejects_complete_the_records(dataset: Path) -> None:
    """Records in splits and rejects cover what was read, in any order of the rejects."""
    lines = reject(8, "too_deep") + reject(6) + reject(7, line=None, bytes=None)
    report = rejecting(dataset, lines, {"empty": 2, "too_deep": 1, "invalid_json": 0})
    assert report.findings == ()


WRONG_REJECTS: dict[str, tuple[bytes, dict[str, int], str]] = {
    "none": (b"", {"empty": 1}, CONFIG_NAME),
    "too few": (reject(6), {"empty": 2}, "rejects.jsonl"),
    "other reason": (reject(6, "too_deep"), {"empty": 1}, "rejects.jsonl"),
    "twice": (reject(6) * 2, {"empty": 2}, "rejects.jsonl"),
    "in a split": (reject(0), {"empty": 1}, "rejects.jsonl"),
    "beyond": (reject(7), {"empty": 1}, "rejects.jsonl"),
    "negative": (reject(-1), {"empty": 1}, "rejects.jsonl"),
    "no such input": (reject(6, input=1), {"empty": 1}, "rejects.jsonl"),
    "no JSON": (b"{" * 60 + b"\n", {"empty": 1}, "rejects.jsonl"),
    "deep JSON": (b"[" * 100_000 + b"\n", {"empty": 1}, "rejects.jsonl"),
    "no UTF-8": (reject(6).replace(b"nothing", b"\xff\xfe"), {"empty": 1}, "rejects.jsonl"),
    "blank line": (reject(6) + b"\n", {"empty": 1}, "rejects.jsonl"),
    "line without end": (reject(6)[:-1], {"empty": 1}, "rejects.jsonl"),
    "endless line": (b" " * (3 * MIB), {"empty": 1}, "rejects.jsonl"),
    "missing key": (
        b'{"record": 6, "input": 0, "reason": "empty"}\n',
        {"empty": 1},
        "rejects.jsonl",
    ),
    "not an integer": (reject(6, offset=0.5), {"empty": 1}, "rejects.jsonl"),
}


@pytest.mark.parametrize("case", WRONG_REJECTS.values(), ids=WRONG_REJECTS.keys())
def test_rejects_that_do_not_fit(dataset: Path, case: tuple[bytes, dict[str, int], str]) -> None:
    """Each is found, in rejects.jsonl or where its absence contradicts the counts."""
    lines, rejected, blamed = case
    report = rejecting(dataset, lines, rejected)
    assert {finding.file for finding in report.findings} == {blamed}


def test_lost_records_are_counted_and_the_first_is_named(dataset: Path) -> None:
    """Two records vanish from an index and its split, and turn up nowhere else."""
    lines = reject(6) + reject(9)
    (dataset / "rejects.jsonl").write_bytes(lines)
    _write_index(dataset, "val_idx.pt", [5, 8])
    reseal(dataset, _count(read=10, written=8, rejected={"empty": 2}))
    with pytest.raises(IntegrityError):
        verify(dataset)  # written is not what the splits hold
    reseal_free(dataset, read=10, rejected={"empty": 4})
    report = verify(dataset)
    assert ("E_REJECTS", "rejects.jsonl") in codes(report)
    (dataset / "rejects.jsonl").write_bytes(lines + reject(7) + reject(5))
    reseal_free(dataset, read=10, rejected={"empty": 4})
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}  # 5 stands in val


def reseal_free(path: Path, **counts: Any) -> None:
    """As `reseal`, from a manifest whose counts are wrong already."""
    blob = json.loads((path / CONFIG_NAME).read_bytes())
    blob["records"].update(counts, written=6)
    blob["inputs"][0]["records"] = counts["read"]
    manifest = msgspec.convert(blob, Manifest)
    (path / CONFIG_NAME).write_bytes(dump_json(manifest))
    reseal(path)


def test_a_record_that_is_nowhere(dataset: Path) -> None:
    """Counts agree, yet record 3 is lost: the ids skip it and another takes its place."""
    _write_index(dataset, "train_idx.pt", [0, 1, 2, 6])
    (dataset / "rejects.jsonl").write_bytes(reject(7))
    reseal(dataset, _count(read=8, rejected={"empty": 2}))
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}
    reseal(dataset, _count(read=7, rejected={"empty": 1}))
    (dataset / "rejects.jsonl").write_bytes(reject(6))
    _write_index(dataset, "train_idx.pt", [0, 1, 2, 6])
    reseal(dataset)
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}


@given(st.integers(1, 300), st.data())
def test_the_record_set_counts_what_is_missing(count: int, data: st.DataObject) -> None:
    """Against a Python set: first double, number and first of the missing."""
    bits, seen = Bits(count), set[int]()
    for _ in range(3):
        ids = sorted(data.draw(st.sets(st.integers(0, count - 1))))
        taken = bits.add(np.array(ids, np.int64))
        expected = next((at for at, one in enumerate(ids) if one in seen), None)
        assert taken == expected
        if expected is None:
            seen.update(ids)
    missing = sorted(set(range(count)) - seen)
    assert bits.missing() == (len(missing), missing[0] if missing else None)
