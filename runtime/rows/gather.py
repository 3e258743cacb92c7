"""Functions that copy pieces of a split, of different lengths, into one buffer or into padded rows.

Pieces are copied one after the other. Each copy has a fixed cost of about 0.4 microseconds.
Indexing all tokens in one NumPy operation would be faster only for pieces of fewer than 16 tokens
(measured on batches of 65,536 uint16 tokens). Datasets of documents and of preferences use the
padded rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import distinct

from ..sample_numbers import Ints
from ..types import IGNORED_LABEL, Labels

__all__ = ["PaddedRows", "copy_mask", "copy_tokens", "document_spans", "padded_rows"]

Array = npt.NDArray[Any]


def copy_tokens(split: Split, starts: Ints, lengths: Ints, out: Array, at: Ints) -> None:
    """Copy `lengths[k]` tokens at position `starts[k]` of the stream to `out[at[k]:]`, for all k.

    The array `out` must be one-dimensional, contiguous, and of the type of the split. The tokens
    for each k must lie in one shard, as the tokens of a document do. Otherwise raise `IndexError`
    before anything is copied.
    """
    split.stream.copy(starts, lengths, out, at)


def copy_mask(split: Split, starts: Ints, lengths: Ints, out: Array, at: Ints) -> None:
    """Copy the loss mask of the pieces that `copy_tokens` would copy with the same arguments.

    The array `out` must be uint8. A 1 marks a token to train on. Raise `UsageError` if the split
    has no mask, and the errors of `copy_tokens`.
    """
    split.masks.copy(starts, lengths, out, at)


def document_spans(split: Split, documents: Ints) -> tuple[Ints, Ints]:
    """Return two int64 arrays: where each of `documents` starts and stops in the split's stream.

    This costs about 10 microseconds for each shard that holds some of the documents. Raise
    `IndexError` for a document that does not exist, and `IntegrityError` for damaged offsets.
    """
    if len(documents) and not 0 <= int(documents.min()) <= int(documents.max()) < split.documents:
        raise IndexError(
            f"documents {documents.min()} to {documents.max()} are outside 0:{split.documents}"
        )
    starts, stops = np.empty_like(documents), np.empty_like(documents)
    shard = split.document_base.searchsorted(documents, "right") - 1
    for number in distinct(shard).tolist():
        there = np.flatnonzero(shard == number)
        local = documents[there] - split.document_base[number]
        offsets = split.offsets(number)
        base = split.stream.base[number]
        length = split.stream.base[number + 1] - base
        first, last = offsets[local].astype(np.int64), offsets[local + 1].astype(np.int64)
        wrong = np.flatnonzero((first < 0) | (first > last) | (last > length))
        if len(wrong):
            split.span(int(documents[there[wrong[0]]]))  # raises, naming it
        starts[there], stops[there] = base + first, base + last
    return starts, stops


_Flags = npt.NDArray[np.bool_]


class PaddedRows(NamedTuple):
    """Rows padded to one width, and the pieces of `split` that they contain.

    Row k holds the `lengths[k]` tokens of the stream that begin at position `starts[k]`. Its first
    token is in column `first[k]`. The array `ids` [n, width] has the type of the split, and `real`
    [n, width] is False in padding.
    """

    split: Split
    starts: Ints
    lengths: Ints
    ids: npt.NDArray[Any]
    first: Ints
    real: _Flags

    def trained(self) -> _Flags:
        """Return bool [n, width]: True for tokens to train on.

        Without a loss mask, these are all tokens.
        """
        if not self.split.has_mask:
            return self.real
        rows, width = self.ids.shape
        mask = np.zeros((rows, width), np.uint8)
        at = np.arange(rows, dtype=np.int64) * width + self.first
        copy_mask(self.split, self.starts, self.lengths, mask.reshape(-1), at)
        train: _Flags = mask != 0
        return train

    def positions(self, dtype: np.dtype[Any]) -> Array:
        """Return the position of each token in its row: [n, width] of type `dtype`.

        Positions count from 0 at the first token of a row. They are 0 in padding.
        """
        columns = np.arange(self.ids.shape[1], dtype=dtype)
        places: Array = (columns - self.first[:, None].astype(dtype)) * self.real
        return places

    def labels(self, kind: Labels, dtype: np.dtype[Any]) -> Array:
        """Return ``"shifted"`` or ``"unshifted"`` labels of the rows: [n, width] of type `dtype`.

        For their meaning see `DocumentDataset`.
        """
        labels = np.full(self.ids.shape, IGNORED_LABEL, dtype)
        train = self.trained()
        both = train[:, 1:] & self.real[:, :-1]  # tokens to train on with one before them
        target = labels[:, :-1] if kind == "shifted" else labels[:, 1:]
        np.copyto(target, self.ids[:, 1:], where=both)
        return labels


def padded_rows(
    split: Split, starts: Ints, lengths: Ints, width: int, *, pad_id: int, left: bool = False
) -> PaddedRows:
    """Return padded rows of `width` columns.

    Row k has `lengths[k]` tokens of the stream, from position `starts[k]` on. The rest is filled
    with `pad_id`: on the right, or on the left if `left` is True. Raise `IndexError` if the tokens
    of a row are not all in the same shard.
    """
    first = width - lengths if left else np.zeros_like(lengths)
    ids = np.full((len(lengths), width), pad_id, split.dtype)
    at = np.arange(len(lengths), dtype=np.int64) * width + first
    copy_tokens(split, starts, lengths, ids.reshape(-1), at)
    columns = np.arange(width, dtype=np.int64)
    real = columns >= first[:, None] if left else columns < lengths[:, None]
    return PaddedRows(split, starts, lengths, ids, first, real)
