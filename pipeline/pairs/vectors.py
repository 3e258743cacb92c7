"""The vectors of texts: read from a file of the user's, or made by an encoder; checked either way.

A .npy file has one row for each text, in the order of the texts; a Parquet file has a column of
texts, by which rows are found, and one of lists of numbers, and may hold more than is wanted. An
encoder gets each distinct text once, in batches, and may be any callable.

Refused, with the text and its row: a NaN or Inf, a row of zeros, a row of another width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.files.decoding import decoding, each_decoded

from ..encode.probe import Probe, make_probe
from ..read.child_process import streamed_apart
from ..read.parquet import arrow_errors, decoding_parquet, group_batches, open_parquet
from ..read.sources import Source, check_unchanged, input_error, reading
from .search import Floats, unit

__all__ = ["CHUNK", "Encoder", "as_stored", "encode", "load_encoder", "probe_of", "read_vectors"]

Array = npt.NDArray[Any]
Encoder = Callable[[list[str]], Any]
"""Texts in; what `numpy.asarray` makes a [n, dim] array of numbers of, out."""

CHUNK = 8192  # texts whose vectors are kept together
_KINDS = "fiu"


def read_vectors(
    source: Source, texts: Sequence[str], what: str, columns: Sequence[str], fold: bool = False
) -> Floats:
    """float32 [texts, dim] from a .npy or Parquet file; `what` the texts are, for messages.

    `columns` are those of texts and vectors in Parquet; with `fold` texts are casefolded there.
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


def _from_npy(source: Source, texts: Sequence[str], what: str) -> Floats:
    again = "Write it with numpy.save, as numbers."
    with decoding(source.name, ".npy array", code="E_INPUT", remedy=again):
        array = np.lib.format.open_memmap(source.path, mode="r")
    if array.ndim != 2 or array.dtype.kind not in _KINDS:
        shown = f"{array.dtype} {array.shape}"
        raise input_error(f"{shown} is no table of vectors", source.name, "Write a [n, dim] array.")
    if len(array) != len(texts):
        raise input_error(
            f"{len(array)} rows for {len(texts)} distinct {what}s", source.name,
            f"Give one row for each distinct {what}, in the order of first appearance "
            "(`dataprep.pipeline.pairs.prepare.pair_texts` lists them), or a Parquet file with a "
            "column of texts.", "E_ROWS",
        )  # fmt: skip
    return _narrow(array)


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
    within = partial(decoding_parquet, source)
    with open_parquet(source) as file, reading(source.path):
        with within():  # the footer
            for name in columns:
                if name not in file.schema_arrow.names:
                    raise input_error(
                        f"there is no column {name}, only {', '.join(file.schema_arrow.names)}",
                        source.name, "Name both with --embedding-columns TEXT,VECTOR.", "E_COLUMN",
                    )  # fmt: skip
            _require_texts(file.schema_arrow.field(columns[0]).type, source, columns[0])
            groups = range(file.metadata.num_row_groups)
        first = 0
        batches = chain.from_iterable(
            group_batches(source, file, group, [*columns], CHUNK) for group in groups
        )
        for batch in each_decoded(batches, within):
            with within():
                texts = batch.column(columns[0]).to_pylist()
            with within(of=arrow_errors()):
                vectors = _vectors(batch.column(columns[1]), source.name, first)
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
    """A column of lists of one length as float32 [n, dim]."""
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
    """As float32; what is too large becomes Inf, which is refused by name later."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float32)


def _width(found: int, expected: int, where: str, row: int) -> InputError:
    return input_error(
        f"a vector of {max(found, 0)} numbers among ones of {expected}", f"{where} row {row}",
        "Make all of them with one encoder.", "E_DIM",
    )  # fmt: skip


def load_encoder(name: str, batch_size: int) -> Encoder:
    """The sentence-transformers model `name`; `UsageError` without that library."""
    try:
        library: Any = import_module("sentence_transformers")
    except ImportError:
        raise UsageError(
            "an encoder by name needs sentence-transformers, which is not installed",
            where=f"--encoder {name}", code="E_MISSING_LIBRARY",
            remedy="Install it: pip install 'dataprep-shards[embed]', or give the embeddings.",
        ) from None  # fmt: skip
    try:
        model = library.SentenceTransformer(name)
    except Exception as error:  # theirs are of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"not a model that sentence-transformers loads ({reason})", where=name,
            code="E_ENCODER", remedy="Check --encoder: a name on the hub, or a folder.",
        ) from None  # fmt: skip

    def encoder(texts: list[str]) -> Any:
        return model.encode(
            texts, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False
        )

    return encoder


def encode(
    encoder: Encoder, texts: Sequence[str], what: str, *, batch_size: int, name: str
) -> Floats:
    """float32 [texts, dim], `batch_size` texts at a time; raises `InputError` for a bad result."""
    parts: list[Floats] = []
    where = f"--encoder {name}"
    for start in range(0, len(texts), batch_size):
        batch = list(texts[start : start + batch_size])
        found = _made(encoder, batch, where)
        if parts and found.shape[1] != parts[0].shape[1]:
            raise _width(found.shape[1], parts[0].shape[1], where, start)
        _check(found, batch, what, where, first=start)
        parts.append(found)
    return np.concatenate(parts)


def probe_of(encoder: Encoder, name: str, known: Iterable[object]) -> Probe:
    """Return the one of `known` that is of `encoder`, or its probe, where vectors may be zero."""
    return make_probe(lambda texts: _made(encoder, texts, f"--encoder {name}"), name, known)


def _made(encoder: Encoder, batch: list[str], where: str) -> Floats:
    given = encoder(batch)
    if hasattr(given, "detach"):  # a tensor, wherever it is
        given = given.detach().float().cpu()
    made = np.asarray(given)
    if made.ndim != 2 or len(made) != len(batch) or made.dtype.kind not in _KINDS:
        raise InputError(
            f"gave {made.dtype} {made.shape} for {len(batch)} texts", where=where, code="E_DIM",
            remedy="It must give one vector of numbers for each text.",
        )  # fmt: skip
    return _narrow(made)


def _check(vectors: Floats, texts: Sequence[str], what: str, where: str, first: int = 0) -> None:
    """Raise `InputError` for the first row that is not finite, or all zero."""
    for start in range(0, len(vectors), CHUNK):
        part = vectors[start : start + CHUNK]
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
    vectors: Floats, texts: Sequence[str], what: str, *, dtype: str, normalise: bool
) -> Array:
    """What is written: in length 1 if asked for, float32 or float16; nothing may overflow."""
    found = unit(vectors) if normalise else vectors
    with np.errstate(over="ignore"):
        stored = found.astype(dtype)
    if dtype != "float32":
        for start in range(0, len(stored), CHUNK):
            part = stored[start : start + CHUNK]
            bad = ~np.isfinite(part).all(axis=1) | ~part.any(axis=1)
            if bad.any():
                row = start + int(np.argmax(bad))
                raise InputError(
                    f"the vector of the {what} {texts[row][:80]!r} does not fit {dtype}",
                    where="--dtype", code="E_VECTOR",
                    remedy="Store float32, or --normalise them.",
                )  # fmt: skip
    return stored
