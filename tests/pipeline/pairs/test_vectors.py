"""Vectors of texts: given in every form, made by any encoder, refused by text and row."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.pipeline.encode.encoder import TextEncoder, load_encoder
from dataprep.pipeline.encode.options import Encoder
from dataprep.pipeline.pairs import vectors as pair_vectors
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.pairs.table import PairInputs, source_of
from dataprep.pipeline.pairs.vectors import EmbeddingStep, as_stored, read_vectors
from dataprep.pipeline.read.sources import Source
from dataprep.pipeline.staging.checkpoints import Checkpoints
from dataprep.pipeline.staging.directory import Staging

TEXTS = ["a", "b", "c"]
COLUMNS = ("text", "embedding")


def npy(path: Path, array: Any) -> Source:
    """A .npy file."""
    np.save(path, array)
    return source_of(path, str(path.parent), "npy")


def parquet(path: Path, texts: list[str], vectors: Any, **columns: Any) -> Source:
    """A Parquet file of texts and lists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = columns.pop("kind", pa.list_(pa.float32()))
    pq.write_table(pa.table({"text": texts, "embedding": pa.array(vectors, kind)}), path)
    return source_of(path, str(path.parent))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "<i4"])
def test_item_112_npy_in_the_order_of_texts(tmp_path: Path, dtype: str) -> None:
    """Item 112: any type of number."""
    found = read_vectors(
        npy(tmp_path / "a.npy", np.arange(1, 7).reshape(3, 2).astype(dtype)), TEXTS, "x", COLUMNS
    )
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_item_112_parquet_by_text(tmp_path: Path, kind: str) -> None:
    """Item 112: rows in any order, more than are wanted, keywords in any case."""
    import pyarrow as pa

    types_of = {
        "list": pa.list_(pa.float64()), "large": pa.large_list(pa.float32()),
        "fixed": pa.list_(pa.float32(), 2),
    }  # fmt: skip
    rows = [[5, 6], [9, 9], [1, 2], [3, 4], [1, 2]]
    source = parquet(tmp_path / "a.parquet", ["C ", "z", "a", "B", "A"], rows, kind=types_of[kind])
    found = read_vectors(source, TEXTS, "keyword", COLUMNS, fold=True)
    assert found.tolist() == [[1, 2], [3, 4], [5, 6]]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("vectors", "problem"),
    [
        ([[1, 2], [NAN, 1], [1, 1]], r"of the x 'b' \(row 1\) holds NaN or Inf"),
        ([[1, 2], [1, 1], [1, -INF]], r"of the x 'c' \(row 2\) holds NaN or Inf"),
        ([[1, 1e300], [1, 1], [1, 1]], r"of the x 'a' \(row 0\) holds NaN or Inf"),
        ([[1, 2], [0, 0], [1, 1]], r"of the x 'b' \(row 1\) is all zero"),
        ([[1, 2], [1, 1]], "2 rows for 3 distinct xs"),
        ([1, 2, 3], r"float64 \(3,\) is no table of vectors"),
        ([["1", "2"]] * 3, "is no table of vectors"),
        ([[None]] * 3, "not a readable .npy array"),
    ],
)
def test_item_112_bad_arrays_are_refused_by_text_and_row(
    tmp_path: Path, vectors: Any, problem: str
) -> None:
    """Item 112: NaN, Inf, zeros, too few, objects: nothing is guessed or unpickled."""
    array = np.array(vectors, object if vectors[0] == [None] else None)
    array = array.astype(np.float64) if array.dtype.kind == "i" else array
    with pytest.raises(InputError, match=problem):
        read_vectors(npy(tmp_path / "a.npy", array), TEXTS, "x", COLUMNS)


@pytest.mark.parametrize(
    ("texts", "vectors", "problem"),
    [
        (["a", "b"], [[1, 2], [1, 1]], r"1 of 3 xs have no vector \(the first: 'c'\)"),
        (["a", "b", "c"], [[1, 2], [1], [1, 1]], "a vector of 1 numbers among ones of 2"),
        (["a", "b", "c"], [[1, 2], None, [1, 1]], "a vector of 0 numbers among ones of 2"),
        (["a", "b", "c"], [[1, 2], [1, None], [1, 1]], "'b' .row 1. holds NaN"),
        (["a", "b", "c", "a"], [[1, 2], [1, 1], [1, 1], [2, 1]], "the x 'a' has two vectors"),
        ([], [], "3 of 3 xs have no vector"),
    ],
)
def test_item_112_bad_tables_are_refused(
    tmp_path: Path, texts: list[str], vectors: Any, problem: str
) -> None:
    """Item 112: missing texts, odd widths, nulls, two vectors for one text."""
    with pytest.raises(InputError, match=problem):
        read_vectors(parquet(tmp_path / "a.parquet", texts, vectors), TEXTS, "x", COLUMNS)


def test_item_112_files_of_another_kind(tmp_path: Path) -> None:
    """Item 112: an empty file, a damaged archive, numbers for texts, texts for numbers."""
    import pyarrow as pa

    path = tmp_path / "a.npy"
    for data in (b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"not a readable \.npy array"):
            read_vectors(source_of(path, str(tmp_path), "npy"), TEXTS, "x", COLUMNS)
    numbers: Any = [1, 2, 3]
    with pytest.raises(InputError, match="column text holds int64, not texts"):
        read_vectors(parquet(tmp_path / "a.parquet", numbers, [[1]] * 3), TEXTS, "x", COLUMNS)
    words = parquet(tmp_path / "b.parquet", TEXTS, [["x"]] * 3, kind=pa.list_(pa.string()))
    with pytest.raises(InputError, match="no lists of numbers"):
        read_vectors(words, TEXTS, "x", COLUMNS)


def test_columns_of_a_table_can_be_named(tmp_path: Path) -> None:
    """A wrong name lists the right ones."""
    source = parquet(tmp_path / "a.parquet", TEXTS, [[1, 2]] * 3)
    with pytest.raises(InputError, match="no column vector, only text, embedding"):
        read_vectors(source, TEXTS, "x", ("text", "vector"))


def letters(texts: list[str]) -> npt.NDArray[np.float64]:
    """A vector for each text: its length, and one."""
    return np.array([[len(text), 1.0] for text in texts])


def embedded(tmp_path: Path, texts: list[str], encoder: Encoder, batch: int = 2) -> Any:
    """The vectors of questions by `encoder`, from the step of a build."""
    options = PairOptions(input=("none",), out=tmp_path / "out", encoder="e", batch_size=batch)
    staging = Staging(tmp_path / "out", "0" * 16)
    staging.create()
    step = EmbeddingStep(
        options=options, inputs=PairInputs(tables=(), splits=(), others={}, fingerprints=()),
        encoder=TextEncoder("e", encoder), checkpoints=Checkpoints(staging),
        progress=lambda *_: None,
    )  # fmt: skip
    return step._all("question", texts, None, lambda _: None)


def test_item_112_any_callable_encodes_in_batches(tmp_path: Path) -> None:
    """Item 112: each text once, in order, so many at a time."""
    seen: list[list[str]] = []

    def encoder(texts: list[str]) -> Any:
        seen.append(texts)
        return letters(texts).tolist()

    assert embedded(tmp_path, ["a", "bb", "ccc"], encoder).tolist() == [[1, 1], [2, 1], [3, 1]]
    assert seen == [["a", "bb"], ["ccc"]]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (np.ones((1, 2)), r"gave float64 \[1, 2\] for 2 texts"),
        (np.ones(2), r"gave float64 \[2\] for 2 texts"),
        (np.array([[1, NAN], [1, 1]]), r"'a' \(row 0\) holds NaN"),
        (np.array([[1, 1], [0, 0]]), r"'bb' \(row 1\) is all zero"),
    ],
)
def test_item_112_encoders_are_not_trusted(tmp_path: Path, result: Any, problem: str) -> None:
    """Item 112: what they give is checked like what users give."""
    with pytest.raises(InputError, match=problem):
        embedded(tmp_path, ["a", "bb"], lambda _: result)


@pytest.mark.parametrize("checkpoint", [1, 8192])
def test_item_112_an_encoder_keeps_its_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: int
) -> None:
    """Item 112: within a checkpoint and from one to the next."""
    monkeypatch.setattr(pair_vectors, "_CHECKPOINT", checkpoint)
    with pytest.raises(InputError, match=r"gave float64 \[1, 3\] .* not floats \[1, 2\]"):
        embedded(tmp_path, ["a", "b"], lambda t: np.ones((1, 2 if t == ["a"] else 3)), batch=1)


def test_sentence_transformers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded when it is asked for; absent, it is said what to install."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UsageError, match=r"pip install 'dataprep-shards\[embed]'"):
        load_encoder("model")

    class Model:
        def __init__(self, name: str) -> None:
            assert name == "model"

        def encode(self, texts: list[str], *, batch_size: int, **_: Any) -> Any:
            assert batch_size == len(texts)
            return letters(texts)

    library = types.ModuleType("sentence_transformers")
    library.SentenceTransformer = Model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    assert load_encoder("model").encode(["abc"], 8).tolist() == [[3, 1]]
    with pytest.raises(InputError, match="not a model that sentence-transformers loads"):
        load_encoder("modle")


def test_what_is_stored_fits_its_type() -> None:
    """Length 1 where asked for; an overflow or a vanishing row in float16 is named."""
    vectors = np.array([[3, 4], [1e6, 0]], np.float32)
    with pytest.raises(DataprepError, match="of the x 'b' does not fit float16"):
        as_stored(vectors, TEXTS, "x", dtype="float16", normalize=False)
    found = as_stored(vectors, TEXTS, "x", dtype="float16", normalize=True)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, [[0.6, 0.8], [1.0, 0.0]], atol=1e-3)
    tiny = np.array([[1e-30, 0]], np.float32)
    with pytest.raises(DataprepError, match="does not fit"):
        as_stored(tiny, TEXTS, "x", dtype="float16", normalize=False)
