"""Vectors of the distinct texts of a build of pairs, read from a file or made by an encoder.

A .npy file has one row for each text, in the order in which the texts first appear in the tables. A
Parquet file has a column of texts and a column of vectors (lists of numbers). Its rows may be in
any order, and rows with a text that is in no pair are ignored. An encoder gets each distinct text
once.

A vector is invalid if it contains NaN or infinity, if it contains only zeros, or if its width
differs from the width of the first vector. An `InputError` then names the text and the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.library_errors import decoding, each_decoded

from ..embeddings.convert import unit
from ..encode.encoder import TextEncoder
from ..read.arrow import BatchLimits, arrow_errors, open_table
from ..read.child_process import streamed_apart
from ..read.sources import Source, check_unchanged, input_error, reading
from ..staging.checkpoints import Checkpoints
from .merge import MergedPairs
from .options import PairOptions
from .search import Floats
from .table import PairInputs

__all__ = [
    "EmbeddingStep",
    "Vectors",
    "as_stored",
    "given_width",
    "read_vectors",
    "require_vectors",
]

Array = npt.NDArray[Any]

_CHECKPOINT = 8192
"""Number of texts whose encoded vectors form one checkpoint."""
_FILES = ("question_embs", "source_embs", "keyword_embs")
_NUMERIC = "fiu"
_LIMITS = BatchLimits(rows=_CHECKPOINT, bytes=64 << 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vectors:
    """Vectors of all questions, sources and keywords, [n, dim] each, as float32 or float16."""

    questions: Array
    sources: Array
    keywords: Array

    @property
    def dim(self) -> int:
        """Width of the vectors: the number of components of each."""
        return int(self.questions.shape[1])


def require_vectors(options: PairOptions, inputs: PairInputs, pairs: MergedPairs) -> bool:
    """Return whether some texts have no file of vectors, so that an encoder is needed.

    Raise `UsageError` if an encoder is needed and the options name none.
    """
    needed = {
        what: len(words)
        for what, words in _texts(pairs).items() if words and f"{what}_embs" not in inputs.others
    }  # fmt: skip
    if options.encoder is None:
        for what, count in needed.items():
            leave_out = ", or leave them out with --keywords ignore" if what == "keyword" else ""
            raise UsageError(
                f"there are {count} distinct {what}s and nothing that makes vectors of them",
                where=f"--{what}-embs", remedy=f"Give it, or an --encoder{leave_out}.",
            )  # fmt: skip
    return bool(needed)


def _texts(pairs: MergedPairs) -> dict[str, list[str]]:
    return {"question": pairs.questions, "source": pairs.sources, "keyword": pairs.keywords}


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingStep:
    """Step of a pairs build that reads vectors from files, or makes them with an encoder.

    Vectors from an encoder are stored as checkpoints, in blocks.
    """

    options: PairOptions
    inputs: PairInputs
    encoder: TextEncoder | None
    checkpoints: Checkpoints
    progress: Callable[[int, int], None]

    def vectors_of(self, pairs: MergedPairs) -> Vectors:
        """Return the vectors of all texts of `pairs`.

        Raise `InputError` if a vector is missing or invalid, or if the vectors differ in width.
        """
        texts = _texts(pairs)
        found: dict[str, Array] = {}
        done, total = 0, sum(map(len, texts.values()))
        for what, words in texts.items():
            dim = found["question"].shape[1] if found else self.options.dim
            found[what] = self._all(what, words, dim, partial(self._report, done, total))
            done += len(words)
            self.progress(done, total)
        return Vectors(
            questions=found["question"], sources=found["source"], keywords=found["keyword"]
        )

    def _report(self, before: int, total: int, done: int) -> None:
        self.progress(before + done, total)

    def _all(
        self, what: str, texts: list[str], dim: int | None, progress: Callable[[int], None]
    ) -> Array:
        source = self.inputs.others.get(f"{what}_embs")
        options = self.options
        if not texts:
            vectors = np.empty((0, dim or 0), np.float32)
        elif source is not None:
            columns = options.vector_columns()
            vectors = read_vectors(source, texts, what, columns, fold=what == "keyword")
        else:
            parts: list[Floats] = []
            for start in range(0, len(texts), _CHECKPOINT):
                width = parts[0].shape[1] if parts else None
                parts.append(self._encoded(what, texts, start, width))
                progress(start + len(parts[-1]))
            vectors = np.concatenate(parts)
        if dim is not None and vectors.shape[1] != dim:
            expected = "--dim says" if what == "question" else "those of questions"
            raise InputError(
                f"the vectors of {what}s have {vectors.shape[1]} numbers, {expected} {dim}",
                where=source.name if source else f"--encoder {options.encoder}", code="E_DIM",
                remedy="Make all embeddings with one encoder.",
            )  # fmt: skip
        return as_stored(vectors, texts, what, dtype=options.dtype, normalize=options.normalise)

    def _encoded(self, what: str, texts: list[str], start: int, width: int | None) -> Floats:
        encoder = cast("TextEncoder", self.encoder)
        block = texts[start : start + _CHECKPOINT]

        def make() -> Floats:
            vectors = encoder.encode(block, self.options.batch_size, width)
            _check(vectors, block, what, f"--encoder {encoder.name}", start)
            return vectors

        return self.checkpoints.array(f"{what}-{start:012d}", make)


def read_vectors(
    source: Source, texts: Sequence[str], what: str, columns: Sequence[str], fold: bool = False
) -> Floats:
    """Return float32 [texts, dim]: the vectors of `texts` in a .npy or Parquet file.

    The word `what` names the texts in errors. `columns` names the column of texts and the column of
    vectors in a Parquet file. With `fold` the texts in the file are casefolded before they are
    compared. Raise `InputError` if a vector is missing or invalid.
    """
    check_unchanged(source)
    with reading(source.path):
        found = (
            _from_parquet(source, texts, what, columns, fold)
            if source.format == "parquet"
            else _from_npy(source, texts, what)
        )
    check_unchanged(source)
    _check(found, texts, what, source.name)
    return found


def given_width(options: PairOptions, inputs: PairInputs) -> int:
    """Return the width of the vectors in the first file of vectors, or 0 if no file is given."""
    source = next((inputs.others[name] for name in _FILES if name in inputs.others), None)
    if source is None:
        return 0
    with reading(source.path):
        if source.format != "parquet":
            return int(_open_npy(source).shape[1])
        with closing(_parquet_batches(source, options.vector_columns())) as batches:
            return max((vectors.shape[1] for _, vectors, _ in islice(batches, 1)), default=0)


def _from_npy(source: Source, texts: Sequence[str], what: str) -> Floats:
    array = _open_npy(source)
    if len(array) != len(texts):
        raise input_error(
            f"{len(array)} rows for {len(texts)} distinct {what}s", source.name,
            f"Give one row for each distinct {what}, in the order of first appearance "
            "(`dataprep.pipeline.pairs.table.pair_texts` lists them), or a Parquet file with a "
            "column of texts.", "E_ROWS",
        )  # fmt: skip
    return _narrow(array)


def _open_npy(source: Source) -> Array:
    """Return the array in a .npy file, mapped into memory.

    Raise `InputError` unless the array is numeric and has the shape [n, dim].
    """
    again = "Write it with numpy.save, as numbers."
    with decoding(source.name, ".npy array", code="E_INPUT", remedy=again):
        array = np.lib.format.open_memmap(source.path, mode="r")
    if array.ndim != 2 or array.dtype.kind not in _NUMERIC:
        shown = f"{array.dtype} {array.shape}"
        raise input_error(f"{shown} is no table of vectors", source.name, "Write a [n, dim] array.")
    return array


def _from_parquet(
    source: Source, texts: Sequence[str], what: str, columns: Sequence[str], fold: bool
) -> Floats:
    rows = {text: row for row, text in enumerate(texts)}
    result: Floats | None = None
    seen = np.zeros(len(texts), np.bool_)
    for names, vectors, first in _parquet_batches(source, columns):
        keys = [name.strip() if name else "" for name in names]
        places = [rows.get(key.casefold() if fold else key, -1) for key in keys]
        if result is None:
            result = np.zeros((len(texts), vectors.shape[1]), np.float32)
        if vectors.shape[1] != result.shape[1]:
            raise _width(vectors.shape[1], result.shape[1], source.name, first)
        for row, place in enumerate(places):
            if place >= 0 and seen[place] and (result[place] != vectors[row]).any():
                raise input_error(
                    f"the {what} {texts[place][:80]!r} has two vectors",
                    f"{source.name} row {first + row}", "Leave one out.", "E_REPEATED",
                )  # fmt: skip
            if place >= 0 and not seen[place]:
                seen[place], result[place] = True, vectors[row]
    if result is None or not seen.all():
        missing = int(np.argmin(seen))
        raise input_error(
            f"{len(texts) - int(seen.sum())} of {len(texts)} {what}s have no vector "
            f"(the first: {texts[missing][:80]!r})", source.name,
            "Add them, with the text as it stands in the input.", "E_ROWS",
        )  # fmt: skip
    return result


@streamed_apart
def _parquet_batches(
    source: Source, columns: Sequence[str]
) -> Iterator[tuple[list[str | None], Floats, int]]:
    text, vector = columns
    with open_table(source) as table:
        for name in columns:
            if name not in table.schema.names:
                raise input_error(
                    f"there is no column {name}, only {', '.join(table.schema.names)}",
                    source.name, "Name both with --embedding-columns TEXT,VECTOR.", "E_COLUMN",
                )  # fmt: skip
        _require_texts(table.schema.field(text).type, source, text)
        first = 0
        for batch in each_decoded(table.batches(table.whole, columns, _LIMITS), table.decoding):
            with table.decoding():
                texts = batch.column(text).to_pylist()
            with table.decoding(arrow_errors()):
                vectors = _vectors(batch.column(vector), source.name, first)
            yield texts, vectors, first
            first += len(texts)


def _require_texts(kind: Any, source: Source, name: str) -> None:
    import pyarrow.types as is_a

    value = kind.value_type if is_a.is_dictionary(kind) else kind
    if not (
        is_a.is_string(value)
        or is_a.is_large_string(value)
        or is_a.is_string_view(value)
        or is_a.is_null(value)
    ):
        raise input_error(
            f"the column {name} holds {kind}, not texts", source.name,
            "Name both with --embedding-columns TEXT,VECTOR.", "E_COLUMN",
        )  # fmt: skip


def _vectors(column: Any, where: str, first: int) -> Floats:
    """Return a column of an Arrow table as float32 [n, dim].

    Raise `InputError` unless the column contains lists of numbers of the same length. The error
    names the file `where` and the row; `first` is the row number of the first list.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_a = pa.types
    lists = is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind)
    numbers = lists and (is_a.is_integer(kind.value_type) or is_a.is_floating(kind.value_type))
    if not numbers:
        raise input_error(f"the vectors are {kind}, no lists of numbers", where, "Write lists.")
    if not len(column):
        return np.empty((0, 0), np.float32)
    widths = np.asarray(pc.fill_null(pc.list_value_length(column), -1), np.int64)
    odd = np.flatnonzero((widths != widths[0]) | (widths < 1))
    if len(odd):
        raise _width(int(widths[odd[0]]), int(widths[0]), where, first + int(odd[0]))
    flat = column.flatten()  # nulls among the numbers come out as NaN
    return _narrow(flat.to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _narrow(numbers: Array) -> Floats:
    """Return `numbers` as float32. Numbers out of range become infinite, which `_check` refuses."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float32)


def _width(found: int, expected: int, where: str, row: int) -> InputError:
    return input_error(
        f"a vector of {max(found, 0)} numbers among ones of {expected}", f"{where} row {row}",
        "Make all of them with one encoder.", "E_DIM",
    )  # fmt: skip


def _check(vectors: Floats, texts: Sequence[str], what: str, where: str, first: int = 0) -> None:
    """Raise `InputError` for the first vector that is all zeros or contains NaN or infinity.

    `first` is the row number of ``vectors[0]`` for the error message.
    """
    for start in range(0, len(vectors), _CHECKPOINT):
        part = vectors[start : start + _CHECKPOINT]
        tests = (
            ("holds NaN or Inf", np.isfinite(part).all(axis=1)),
            ("is all zero", part.any(axis=1)),
        )
        for problem, good in tests:
            if not good.all():
                row = start + int(np.argmin(good))
                raise input_error(
                    f"the vector of the {what} {texts[row][:80]!r} (row {first + row}) {problem}",
                    where, "Leave the text out, or make its vector again.", "E_VECTOR",
                )  # fmt: skip


def as_stored(
    vectors: Floats, texts: Sequence[str], what: str, *, dtype: str, normalize: bool
) -> Array:
    """Return `vectors` as `dtype`, divided by their lengths if `normalize` is true.

    Raise `InputError` if a vector overflows `dtype`, or becomes all zeros in it.
    """
    found = unit(vectors) if normalize else vectors
    with np.errstate(over="ignore"):
        stored = found.astype(dtype)
    if dtype != "float32":
        for start in range(0, len(stored), _CHECKPOINT):
            part = stored[start : start + _CHECKPOINT]
            bad = ~np.isfinite(part).all(axis=1) | ~part.any(axis=1)
            if bad.any():
                row = start + int(np.argmax(bad))
                raise InputError(
                    f"the vector of the {what} {texts[row][:80]!r} does not fit {dtype}",
                    where="--dtype", code="E_VECTOR",
                    remedy="Store float32, or --normalise them.",
                )  # fmt: skip
    return stored
