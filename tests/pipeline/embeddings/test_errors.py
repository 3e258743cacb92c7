"""Rows that cannot be used: each is refused with its place and reason, or skipped and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import DataprepError, InputError, RecordError
from dataprep.formats.verify.verify import verify
from tests.scenes.embed_inputs import arrays_of, build_vectors

pytestmark = pytest.mark.usefixtures("one_child")

GOOD = [1.0, 2.0, 3.0]
NAN, INF = float("nan"), float("inf")
SKIP = "or leave such records out and list them with --on-error skip."

BAD: dict[str, tuple[Any, str, str]] = {
    "nan": ([1.0, NAN, 3.0], "E_NOT_FINITE", "number 1 of the field 'v' is NaN. Mend it,"),
    "inf": ([1.0, 2.0, -INF], "E_NOT_FINITE", "number 2 of the field 'v' is infinite. Mend it,"),
    "zero": ([0.0, -0.0, 0.0], "E_ALL_ZERO", "all 3 numbers of the field 'v' are zero. Mend it,"),
    "narrow": (
        [1.0, 2.0], "E_WRONG_WIDTH",
        "the field 'v' has 2 numbers, not 3. Say with --dim what they should have,",
    ),
    "wide": (
        [1.0] * 5, "E_WRONG_WIDTH",
        "the field 'v' has 5 numbers, not 3. Say with --dim what they should have,",
    ),
    "empty": (
        [], "E_WRONG_WIDTH",
        "the field 'v' has 0 numbers, not 3. Say with --dim what they should have,",
    ),
    "null": (
        None, "E_MISSING",
        "the field 'v' is missing or null. Name another field with --columns,",
    ),
    "large": (
        [1.0, 1e300, 3.0], "E_OVERFLOW",
        "number 1 of the field 'v' is 1e+300: float32 ends at 3.4e38. Mend it,",
    ),
}  # fmt: skip


def write(path: Path, values: list[Any]) -> Path:
    """A file of records with the field `v` (NaN written as Python writes it)."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
    else:
        kind = pa.list_(pa.float64())
        pq.write_table(pa.table({"v": pa.array(values, kind)}), path)
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_vector_stops_the_build(tmp_path: Path, name: str, kind: str) -> None:
    """The error names the file, the row or line, the field and what mends it."""
    value, code, problem = BAD[kind]
    path = write(tmp_path / name, [GOOD] * 4 + [value, GOOD])
    with pytest.raises(RecordError) as caught:
        build_vectors(tmp_path / "out", path)
    line = len(json.dumps({"v": GOOD})) + 1
    where = f"x.jsonl:5 (byte {4 * line})" if name == "x.jsonl" else "x.parquet row 4"
    assert str(caught.value) == f"error[{code}] {where}: {problem} {SKIP}"
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_bad_vectors_are_skipped_and_named(tmp_path: Path, name: str) -> None:
    """With --on-error skip all of them are in rejects.jsonl, and the good ones in the dataset."""
    values = [GOOD]
    for value, _, _ in BAD.values():
        values += [value, [float(len(values)), 2.0, 3.0]]
    report = build_vectors(tmp_path / "out", write(tmp_path / name, values), on_error="skip")
    found = arrays_of(tmp_path / "out")
    rows = [row for row, value in enumerate(values) if row % 2 == 0]
    np.testing.assert_array_equal(found["embedding"], [values[row] for row in rows])
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in lines]
    assert [one["record"] for one in rejects] == list(range(1, len(values), 2))
    assert [f"E_{one['reason'].upper()}" for one in rejects] == [
        code for _, code, _ in BAD.values()
    ]
    if name == "x.jsonl":
        assert [one["line"] for one in rejects] == list(range(2, len(values) + 1, 2))
        assert rejects[0]["excerpt"] == '{"v": [1.0, NaN, 3.0]}\n'
        stored = (tmp_path / name).read_bytes()
        offsets = found["provenance"][:, 1].tolist()
        assert [json.loads(stored[at:].split(b"\n")[0])["v"] for at in offsets] == [
            values[row] for row in rows
        ]
    else:
        np.testing.assert_array_equal(found["provenance"][:, 1], rows)
    assert sum(report.manifest.records.rejected.values()) == len(BAD)
    assert report.manifest.records.read == len(values)


@pytest.mark.parametrize("form", ["x.jsonl", "x.parquet", "x.npz"])
@pytest.mark.parametrize(("value", "what"), [(NAN, "NaN"), (-INF, "infinite")])
def test_a_single_number_that_is_none(tmp_path: Path, form: str, value: float, what: str) -> None:
    """What `verify` refuses no build writes: NaN and infinity in a column of single numbers."""
    vectors, scores = np.array([GOOD, GOOD, GOOD]), np.array([0.5, 1.0, value])
    path = tmp_path / form
    if form == "x.npz":
        np.savez(path, v=vectors, s=scores)
    elif form == "x.parquet":
        pq.write_table(pa.table({"v": vectors.tolist(), "s": scores}), path)
    else:
        rows = zip(vectors.tolist(), scores.tolist(), strict=True)
        path.write_text("".join(json.dumps({"v": v, "s": s}) + "\n" for v, s in rows))
    options: dict[str, Any] = {"columns": ["embedding=v", "s:float"]}
    with pytest.raises(RecordError) as caught:
        build_vectors(tmp_path / "out", path, **options)
    assert (caught.value.code, caught.value.problem) == ("E_NOT_FINITE", f"the field 's' is {what}")
    build_vectors(tmp_path / "out", path, on_error="skip", **options)
    assert arrays_of(tmp_path / "out")["s"].tolist() == [0.5, 1.0]
    assert verify(tmp_path / "out").ok


def test_splits_of_what_is_left(tmp_path: Path) -> None:
    """A row's split is that of its own numbers, however many before it were rejected."""
    good = np.random.default_rng(3).standard_normal((60, 3)).tolist()
    mixed = [row for one in good for row in ([NAN] * 3, one)]
    options = {"split": "train=0.5,val=0.5", "on_error": "skip"}
    found = []
    for name, values in (("good.jsonl", good), ("mixed.jsonl", mixed)):
        out = tmp_path / f"{name} out"
        build_vectors(out, write(tmp_path / name, values), **options)
        found.append(arrays_of(out))
    np.testing.assert_array_equal(found[0]["embedding"], found[1]["embedding"])
    np.testing.assert_array_equal(found[0]["split val"], found[1]["split val"])


def test_max_rejects(tmp_path: Path) -> None:
    """More rejects than allowed stop the build."""
    path = write(tmp_path / "x.jsonl", [GOOD, [NAN] * 3, [NAN] * 3])
    with pytest.raises(InputError) as caught:
        build_vectors(tmp_path / "out", path, on_error="skip", max_rejects=1)
    assert caught.value.code == "E_MAX_REJECTS"


def test_nothing_usable(tmp_path: Path) -> None:
    """A dataset without rows is not made, and nothing is left behind."""
    path = write(tmp_path / "x.jsonl", [GOOD, [NAN] * 3])
    with pytest.raises(InputError, match="none of the 2 records could be used"):
        build_vectors(tmp_path / "out", path, on_error="skip", dim=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jsonl"]


@pytest.mark.parametrize(
    ("dtype", "value", "code"),
    [
        ("float16", [1.0, 70000.0, 2.0], "E_OVERFLOW"),
        ("float16", [1e-9, 1e-10, 0.0], "E_UNDERFLOW"),
        ("bfloat16", [1.0, 3.4e38, 2.0], "E_OVERFLOW"),
        ("int8", [1e-44, 0.0, 0.0], "E_UNDERFLOW"),
    ],
)
def test_numbers_that_a_type_cannot_hold(
    tmp_path: Path, dtype: str, value: list[float], code: str
) -> None:
    """A number too large for the stored type, or a row that would become nothing, is refused."""
    np.save(tmp_path / "x.npy", np.array([GOOD, value], np.float32))
    with pytest.raises(RecordError) as caught:
        build_vectors(tmp_path / "out", tmp_path / "x.npy", dtype=dtype)
    assert (caught.value.code, caught.value.where) == (code, "x.npy row 1")
    build_vectors(tmp_path / "fine", tmp_path / "x.npy", dtype="float32")


SCALARS: dict[str, tuple[str, str, str]] = {
    "text for a number": ('{"v": [1], "n": "7", "t": "a"}', "E_WRONG_TYPE", "not an integer"),
    "a bool for a number": ('{"v": [1], "n": true, "t": "a"}', "E_WRONG_TYPE", "a JSON boolean"),
    "a fraction for an integer": ('{"v": [1], "n": 1.5, "t": "a"}', "E_WRONG_TYPE", "JSON number"),
    "too large": ('{"v": [1], "n": 9223372036854775808, "t": "a"}', "E_OVERFLOW", "2**63 - 1"),
    "no label": ('{"v": [1], "n": 1}', "E_MISSING_FIELD", "no field 't'"),
    "a number for a label": ('{"v": [1], "n": 1, "t": 2}', "E_WRONG_TYPE", "not text"),
    "half a pair": (r'{"v": [1], "n": 1, "t": "\ud800"}', "E_LONE_SURROGATE", "half of a"),
    "a text among numbers": ('{"v": ["1"], "n": 1, "t": "a"}', "E_WRONG_TYPE", "JSON string among"),
    "a null among numbers": ('{"v": [null], "n": 1, "t": "a"}', "E_MISSING", "number 0 of"),
    "twice": ('{"v": [1], "v": [2], "n": 1, "t": "a"}', "E_DUPLICATE_FIELD", "stands twice"),
    "no JSON": ('{"v": [1], "n": 1, "t": "a"', "E_INVALID_JSON", "not one JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALARS)
def test_bad_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What else can be wrong with a line, each with its own code."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.jsonl_rows._LOOK_LINES", 1)
    line, code, problem = SCALARS[kind]
    (tmp_path / "x.jsonl").write_text('{"v": [1], "n": 1, "t": "b"}\n\n' + line + "\n")
    with pytest.raises(RecordError, match=r"x\.jsonl:3 ") as caught:
        build_vectors(tmp_path / "out", tmp_path / "x.jsonl", columns=["embedding=v", "n", "t"])
    assert caught.value.code == code
    assert problem in caught.value.problem


def test_nulls_in_columns(tmp_path: Path) -> None:
    """A null number, label or key rejects its record, in Parquet as in JSONL."""
    table = pa.table(
        {
            "v": pa.array([[1.0]] * 4 + [[None]], pa.list_(pa.float32(), 1)),
            "n": pa.array([1, None, 3, 4, 5]),
            "t": pa.array(["a", "b", None, "d", "e"]).dictionary_encode(),
            "k": pa.array([1, 2, 3, None, 5], pa.uint8()),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    report = build_vectors(
        tmp_path / "out", tmp_path / "x.parquet", columns=["embedding=v", "n", "t"], split_key="k",
        on_error="skip",
    )  # fmt: skip
    assert report.manifest.records.rejected == {"missing": 4}
    assert report.manifest.arrays["t"].categories == ("a",)


def test_an_unsigned_integer_too_large(tmp_path: Path) -> None:
    """Integers are stored as int64: what does not fit is refused, never wrapped."""
    for name in ("x.npz", "x.parquet"):
        found: dict[str, Any] = {"v": np.ones((2, 1)), "n": np.array([1, 1 << 63], np.uint64)}
        if name == "x.npz":
            np.savez(tmp_path / name, **found)
        else:
            lists = [row.tolist() for row in found["v"]]
            pq.write_table(pa.table({"v": lists, "n": found["n"]}), tmp_path / name)
        with pytest.raises(RecordError) as caught:
            build_vectors(tmp_path / "out", tmp_path / name, columns=["embedding=v", "n"])
        assert (caught.value.code, caught.value.where) == ("E_OVERFLOW", f"{name} row 1")


# Files


def _objects(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], object), allow_pickle=True)


def _columnwise(path: Path) -> None:
    np.save(path, np.asfortranarray(np.ones((4, 3))))


def _cut(path: Path) -> None:
    np.save(path, np.ones((4, 3)))
    path.write_bytes(path.read_bytes()[:-8])


def _pickle(path: Path) -> None:
    import pathlib

    import torch

    torch.save({"embedding": torch.ones(2, 2), "where": pathlib.PurePosixPath("a")}, path)


def _old_torch(path: Path) -> None:
    import torch

    torch.save(torch.ones(2, 2), path, _use_new_zipfile_serialization=False)


def _header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def _outside(path: Path) -> None:
    text = '{"embedding":{"dtype":"F32","shape":[1000000000,4],"data_offsets":[0,16000000000]}}'
    path.write_bytes(_header(text) + bytes(64))


def _large_header(path: Path) -> None:
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def _damaged_zip(path: Path) -> None:
    np.savez(path, embedding=np.arange(1, 4097, dtype=np.float32).reshape(-1, 4))
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


FILES: dict[str, tuple[Any, str, str]] = {
    "objects.npy": (_objects, "E_PICKLE", "which only a pickle can bring back"),
    "columns.npy": (_columnwise, "E_ORDER", "column by column"),
    "cut.npy": (_cut, "E_NPY", "its header says"),
    "pickle.pt": (_pickle, "E_PICKLE", "asks for more than plain data (pathlib"),
    "old.pt": (_old_torch, "E_PT", "is not an archive"),
    "garbage.pt": (lambda path: path.write_bytes(b"no" * 99), "E_PT", "is not an archive"),
    "outside.safetensors": (_outside, "E_SAFETENSORS", "does not lie where its header says"),
    "header.safetensors": (_large_header, "E_SAFETENSORS", "its header has"),
    "damaged.npz": (_damaged_zip, "E_NPZ", "Bad CRC-32"),
    "garbage.npz": (lambda path: path.write_bytes(b"no" * 99), "E_NPZ", "not a zip file"),
    "garbage.parquet": (lambda path: path.write_bytes(b"no" * 99), "E_PARQUET", ""),
    "garbage.arrow": (lambda path: path.write_bytes(b"no" * 99), "E_ARROW", ""),
    "none.npy": (lambda path: np.save(path, np.array(1.0)), "E_SHAPE", "has no rows"),
    "text.npy": (lambda path: np.save(path, np.array(["a"])), "E_COLUMNS", "no field holds"),
    "cube.npy": (lambda path: np.save(path, np.ones((2, 2, 2))), "E_COLUMNS", "float64 [2, 2, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(tmp_path: Path, name: str) -> None:
    """No pickle, no size that the file does not have, no traceback."""
    write_it, code, problem = FILES[name]
    write_it(tmp_path / name)
    with pytest.raises(DataprepError) as caught:
        build_vectors(tmp_path / "out", tmp_path / name)
    assert caught.value.code == code
    assert problem in caught.value.problem
    assert caught.value.remedy
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ({"columns": ["embedding=w"]}, "E_FIELD", "there is no field 'w'; there are 'v'"),
        ({"columns": ["n"]}, "E_COLUMNS", "names no field with vectors"),
        ({"columns": ["embedding=v", "x=n:label"]}, "E_FIELD", "not text"),
        ({"columns": ["embedding=n:vector"], "dim": 3}, "E_FIELD", "not vectors"),
        ({"split_key": "v"}, "E_FIELD", "not text or integers"),
        ({"text_field": "t", "encoder": len}, "E_ENCODER", "gave int64 []"),
        ({"hf_split": "train"}, "E_USAGE", "means nothing"),
    ],
)
def test_fields_that_are_not_there(
    tmp_path: Path, options: dict[str, Any], code: str, problem: str
) -> None:
    """Before any work, with what there is instead."""
    (tmp_path / "x.jsonl").write_text('{"v": [1, 2], "n": 1, "t": "a"}\n')
    with pytest.raises(DataprepError) as caught:
        build_vectors(tmp_path / "out", tmp_path / "x.jsonl", **options)
    assert caught.value.code == code
    assert problem in caught.value.problem
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jsonl"]


def test_fields_of_different_lengths(tmp_path: Path) -> None:
    """Arrays of one file must have a row for every record."""
    np.savez(tmp_path / "x.npz", v=np.ones((4, 2)), n=np.arange(3))
    with pytest.raises(InputError, match="'v' has 4, 'n' has 3"):
        build_vectors(tmp_path / "out", tmp_path / "x.npz", columns=["embedding=v", "n"])


def test_another_width_in_another_file(tmp_path: Path) -> None:
    """A file whose vectors all have another width is refused before any work."""
    np.save(tmp_path / "a.npy", np.ones((4, 2)))
    np.save(tmp_path / "b.npy", np.ones((4, 3)))
    with pytest.raises(InputError, match="rows of 3 numbers, not 2"):
        build_vectors(tmp_path / "out", tmp_path)


def test_too_many_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Categories stand in config.json: a column of names is no label."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.assemble.MAX_CATEGORIES", 2)
    rows = "".join(f'{{"v": [1], "t": "{n}"}}\n' for n in range(3))
    (tmp_path / "x.jsonl").write_text(rows)
    with pytest.raises(InputError) as caught:
        build_vectors(tmp_path / "out", tmp_path / "x.jsonl", columns=["embedding=v", "t"])
    assert caught.value.code == "E_CATEGORIES"


def test_splits_that_ask_for_too_much_leave_nothing(tmp_path: Path) -> None:
    """No other command can use what was done: the next one has other splits."""
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    with pytest.raises(DataprepError, match="ask for 9 documents, but there are 4"):
        build_vectors(
            tmp_path / "out", tmp_path / "x.npy", split="train=rest,val=9", split_mode="count"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_parquet_file_with_damaged_pages(tmp_path: Path) -> None:
    """Found when its fields are looked at, as well as later."""
    path = write(tmp_path / "x.parquet", [[n / 7, n + 0.1, 3.0] for n in range(1, 3000)])
    data = bytearray(path.read_bytes())
    data[20:2000] = b"\xa5" * 1980
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        build_vectors(tmp_path / "out", path)
    assert caught.value.code == "E_PARQUET"
