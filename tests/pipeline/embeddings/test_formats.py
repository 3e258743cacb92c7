"""The same vectors give the same arrays and splits, whatever file they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.arrays import load
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.embeddings.arrow_rows import arrow_rows
from dataprep.pipeline.embeddings.rows import Column
from dataprep.pipeline.plan.splits import assign, hash_keys, thresholds
from dataprep.pipeline.read.sources import Source
from tests.scenes.embed_inputs import (
    ALL_COLUMNS,
    FORMATS,
    Records,
    arrays_of,
    build_vectors,
    make_records,
    write_records,
)

pytestmark = pytest.mark.usefixtures("one_child")

SPLIT = "train=0.6,val=0.3,test=0.1"
NO_TEXT = ("x.safetensors", "x.pt")
"""Formats that hold numbers only."""


@pytest.fixture(scope="module")
def records() -> Records:
    return make_records()


@pytest.fixture(scope="module")
def reference(
    records: Records, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, npt.NDArray[Any]]:
    """The arrays built from JSONL."""
    place = tmp_path_factory.mktemp("reference")
    path = write_records(place, "x.jsonl", records)
    build_vectors(place / "out", path, columns=ALL_COLUMNS, split=SPLIT)
    return arrays_of(place / "out")


def test_the_reference_is_what_was_written(
    records: Records, reference: dict[str, npt.NDArray[Any]]
) -> None:
    """Every number comes back, and every row is in one split."""
    np.testing.assert_array_equal(reference["embedding"], records.vector)
    np.testing.assert_array_equal(reference["id"], records.id)
    np.testing.assert_array_equal(reference["score"], records.score)
    np.testing.assert_array_equal(reference["flag"], records.flag)
    names = sorted(set(records.topic))
    assert [names[code] for code in reference["label"].tolist()] == records.topic
    rows = np.concatenate([reference[f"split {name}"] for name in ("train", "val", "test")])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(records.id)))
    assert min(len(reference[f"split {name}"]) for name in ("train", "val", "test")) > 5


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "x.jsonl"])
def test_every_format_gives_the_same(
    records: Records, reference: dict[str, npt.NDArray[Any]], tmp_path: Path, name: str
) -> None:
    """Arrays, categories and splits are equal; provenance tells rows, or bytes of JSONL."""
    columns = [c for c in ALL_COLUMNS if name not in NO_TEXT or c != "label=topic"]
    path = write_records(tmp_path, name, records)
    report = build_vectors(tmp_path / "out", path, columns=columns, split=SPLIT)
    found = arrays_of(tmp_path / "out")
    provenance = found.pop("provenance")
    if not name.startswith("x.jsonl"):
        np.testing.assert_array_equal(provenance[:, 1], np.arange(len(records.id)))
    missing = {"provenance"} | ({"label"} if name in NO_TEXT else set())
    assert found.keys() == reference.keys() - missing
    for key, array in found.items():
        assert array.dtype == reference[key].dtype, key
        np.testing.assert_array_equal(array, reference[key], key)
    if "label" in report.manifest.arrays:
        names = report.manifest.arrays["label"].categories
        assert names == tuple(sorted(set(records.topic)))


def test_the_only_vectors_are_taken(records: Records, tmp_path: Path) -> None:
    """Without --columns the one field that holds vectors becomes `embedding`, and nothing else."""
    path = write_records(tmp_path, "x.parquet", records)
    report = build_vectors(tmp_path / "out", path)
    assert set(report.manifest.arrays) == {"embedding", "provenance"}


def test_several_vectors_ask_for_a_choice(records: Records, tmp_path: Path) -> None:
    """The error lists the candidates and shows how to name one; naming both makes two arrays."""
    np.savez(tmp_path / "x.npz", query=records.vector, passage=records.vector[:, :3])
    with pytest.raises(InputError) as caught:
        build_vectors(tmp_path / "out", tmp_path / "x.npz")
    assert str(caught.value) == (
        "error[E_COLUMNS] x.npz: 2 fields hold vectors: 'query', 'passage'. Choose with --columns "
        "NAME=FIELD, for example embedding=query; several can be named."
    )
    build_vectors(
        tmp_path / "out", tmp_path / "x.npz", columns={"q": "query", "passage": "passage"}
    )
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["q"], records.vector)
    np.testing.assert_array_equal(found["passage"], records.vector[:, :3])


def test_files_follow_one_another(records: Records, tmp_path: Path) -> None:
    """Rows of several files and formats, in the order of the files."""
    paths = [write_records(tmp_path, name, records) for name in ("x.jsonl", "x.parquet", "x.npz")]
    build_vectors(tmp_path / "out", *paths, columns=ALL_COLUMNS)
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["embedding"], np.concatenate([records.vector] * 3))
    np.testing.assert_array_equal(np.bincount(found["provenance"][:, 0].astype(int)), [300] * 3)


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "|i1", "<i4", "<u2"])
def test_numbers_of_any_type(tmp_path: Path, dtype: str) -> None:
    """Vectors of other types become float32."""
    vectors = (np.arange(40).reshape(10, 4) + 1).astype(dtype)
    np.save(tmp_path / "x.npy", vectors)
    build_vectors(tmp_path / "out", tmp_path / "x.npy")
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], vectors)


def test_bfloat16_files(tmp_path: Path) -> None:
    """safetensors and .pt files of bfloat16 are read as the numbers they stand for."""
    import torch
    from safetensors.torch import save_file

    tensor = torch.randn(50, 4).to(torch.bfloat16)
    save_file({"embedding": tensor}, str(tmp_path / "x.safetensors"))
    torch.save(tensor, tmp_path / "x.pt")
    for name in ("x.safetensors", "x.pt"):
        build_vectors(tmp_path / f"out {name}", tmp_path / name, split="train=1")
        found = arrays_of(tmp_path / f"out {name}")["embedding"]
        np.testing.assert_array_equal(found, tensor.float().numpy())


def test_bfloat16_single_numbers(tmp_path: Path) -> None:
    """A column of single bfloat16 is what it stands for, and no bits."""
    import torch
    from safetensors.torch import save_file

    numbers = torch.tensor([0.5, -2.0, 3.0]).to(torch.bfloat16)
    tensors = {"embedding": torch.ones(3, 4), "score": numbers}
    save_file(tensors, str(tmp_path / "x.safetensors"))
    torch.save(tensors, tmp_path / "x.pt")
    for name in ("x.safetensors", "x.pt"):
        build_vectors(tmp_path / f"out {name}", tmp_path / name, columns=["embedding", "score"])
        assert arrays_of(tmp_path / f"out {name}")["score"].tolist() == [0.5, -2.0, 3.0]


def test_what_else_an_archive_holds(tmp_path: Path) -> None:
    """Single numbers and objects beside the vectors of a .npz file are not in the way."""
    vectors = np.ones((3, 4), np.float32)
    meta = np.array([{}, {}], object)
    np.savez(
        tmp_path / "x.npz", vec=vectors, dim=np.array(4), meta=meta, t=np.asfortranarray(vectors)
    )
    build_vectors(tmp_path / "out", tmp_path / "x.npz", columns=["embedding=vec"])
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], vectors)


def test_the_width_is_told_by_the_first_vector_there_is(tmp_path: Path) -> None:
    """Rows without numbers, and files without rows, say nothing of it."""
    kind = pa.list_(pa.float32())
    for name, rows in (("a", []), ("b", [[], None, [1.0, 2.0]])):
        pq.write_table(pa.table({"v": pa.array(rows, kind)}), tmp_path / f"{name}.parquet")
    report = build_vectors(tmp_path / "out", tmp_path, on_error="skip")
    assert arrays_of(tmp_path / "out")["embedding"].tolist() == [[1.0, 2.0]]
    assert report.manifest.records.rejected == {"missing": 1, "wrong_width": 1}


def test_tensors_of_arrow(tmp_path: Path) -> None:
    """One of one dimension is a vector; a matrix is none, as in any other format."""
    make = pa.FixedShapeTensorArray.from_numpy_ndarray
    pq.write_table(pa.table({"v": make(np.ones((3, 4), np.float32))}), tmp_path / "a.parquet")
    build_vectors(tmp_path / "out", tmp_path / "a.parquet")
    assert arrays_of(tmp_path / "out")["embedding"].shape == (3, 4)
    pq.write_table(pa.table({"v": make(np.ones((3, 2, 2), np.float32))}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="no field holds vectors"):
        build_vectors(tmp_path / "no", tmp_path / "b.parquet")


def test_files_without_records_give_none(tmp_path: Path) -> None:
    """An empty file among others, wherever it stands."""
    for name, lines in (("a", ""), ("b", '{"v": [1, 2]}\n'), ("c", "\n"), ("d", '{"v": [3, 4]}\n')):
        (tmp_path / f"{name}.jsonl").write_text(lines)
    np.save(tmp_path / "none.npy", np.empty((0, 2), np.float32))
    np.save(tmp_path / "one.npy", np.ones((1, 2), np.float32))
    build_vectors(tmp_path / "json", *(tmp_path / f"{name}.jsonl" for name in "abcd"))
    assert arrays_of(tmp_path / "json")["embedding"].tolist() == [[1, 2], [3, 4]]
    build_vectors(tmp_path / "npy", tmp_path / "none.npy", tmp_path / "one.npy")
    assert arrays_of(tmp_path / "npy")["provenance"].tolist() == [[1, 0]]


@pytest.mark.parametrize("slice_of", ["list", "large_list", "fixed", "list_view", "float16"])
def test_slices_of_arrow_lists(slice_of: str) -> None:
    """An Arrow array may be a slice of a larger one: what lies before it is not looked at."""
    vectors = np.arange(1, 41, dtype=np.float32).reshape(10, 4)
    kinds = {
        "list": pa.list_(pa.float32()), "large_list": pa.large_list(pa.float64()),
        "fixed": pa.list_(pa.float32(), 4), "list_view": pa.list_view(pa.float32()),
        "float16": pa.list_(pa.float16()),
    }  # fmt: skip
    lists = [row.astype(np.float16) if slice_of == "float16" else row for row in vectors]
    array = pa.array([list(row) for row in lists], kinds[slice_of])
    batch = pa.record_batch({"v": array}).slice(3, 5)
    column = Column(name="v", field="v", kind="vector", width=4)
    rows = arrow_rows(batch, [column], Source(path="x", name="x", format="arrow"), 0)
    np.testing.assert_array_equal(rows.columns["v"].array, vectors[3:8])
    assert not rows.columns["v"].problems


def test_nested_fields(tmp_path: Path) -> None:
    """Dots reach into objects of JSONL and structs of Parquet alike."""
    rows = [{"meta": {"v": [1.0, 2.0 + n], "n": n}} for n in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    build_vectors(
        tmp_path / "out", tmp_path / "x.parquet", columns=["embedding=meta.v", "n=meta.n"]
    )
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["embedding"], [[1.0, 2.0 + n] for n in range(5)])
    np.testing.assert_array_equal(found["n"], np.arange(5))


def test_equal_vectors_are_in_one_split(reference: dict[str, npt.NDArray[Any]]) -> None:
    """Rows are dealt out by their numbers, so a repeated vector never straddles splits."""
    _, number = np.unique(reference["embedding"], axis=0, return_inverse=True)
    parts = [set(number[reference[f"split {name}"]].tolist()) for name in ("train", "val", "test")]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    assert len(set(number.tolist())) < len(number)


def test_a_key_decides_as_in_a_build_of_text(records: Records, tmp_path: Path) -> None:
    """--split-key puts a record where a text build with the same key and seed puts it."""
    path = write_records(tmp_path, "x.jsonl", records)
    build_vectors(
        tmp_path / "out", path, columns=["embedding=vector"], split_key="id", seed=3,
        split="train=0.5,val=0.5",
    )  # fmt: skip
    hashes = hash_keys([b"%d" % key for key in records.id.tolist()], 3)
    parts = assign(hashes, thresholds([0.5, 0.5]))  # val first, train last
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["split val"], np.flatnonzero(parts == 0))
    np.testing.assert_array_equal(found["split train"], np.flatnonzero(parts == 1))


def test_exact_split_sizes(records: Records, tmp_path: Path) -> None:
    """--split-mode count gives the sizes that are asked for."""
    path = write_records(tmp_path, "x.parquet", records)
    build_vectors(tmp_path / "out", path, split="train=rest,val=17", split_mode="count")
    found = arrays_of(tmp_path / "out")
    assert (len(found["split train"]), len(found["split val"])) == (283, 17)
    with pytest.raises(UsageError, match="ask for 1000"):
        build_vectors(tmp_path / "no", path, split="train=rest,val=1000", split_mode="count")


def test_the_manifest_tells_all(records: Records, tmp_path: Path) -> None:
    """Kind, inputs, counts and options stand in config.json, and the report repeats them."""
    path = write_records(tmp_path, "x.parquet", records)
    report = build_vectors(
        tmp_path / "out", path, columns=ALL_COLUMNS, dtype="int8", normalize=True
    )
    manifest = load(tmp_path / "out")
    assert (manifest.kind, manifest.rows) == ("embeddings", 300)
    entry = manifest.arrays["embedding"]
    assert (entry.dtype, entry.scale, entry.unit) == ("|i1", "embedding_scale", True)
    assert manifest.inputs[0].records == 300
    assert manifest.options["columns"] == list(ALL_COLUMNS)
    told = report.as_dict()
    assert told["arrays"]["embedding"]["bytes"] == 300 * 8 + 4096
    assert told["splits"]["train"]["rows"] == manifest.splits["train"].rows
    assert verify(tmp_path / "out").ok
    with open_arrays(tmp_path / "out") as data:
        assert data.recipe_id == report.recipe_id
