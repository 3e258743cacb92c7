"""Pieces of a split as rows of one array, filled up at one side: ids, what is real, labels.

What rows of documents (runtime/rows/documents.py) and of preferences (runtime/rows/preferences.py)
have in common. Costs one copy of each piece in the type that the ids are stored in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.dataset import Split

from ..types import IGNORED_LABEL, Labels
from .gather import copy_mask, copy_tokens

__all__ = ["PaddedRows", "padded_rows"]

Counts = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class PaddedRows(NamedTuple):
    """n rows of `width` tokens, and where they are from.

    `ids` are of the type of the split; `first` [n] is the column in which each row begins; `real`
    is False in padding.
    """

    split: Split
    starts: Counts
    lengths: Counts
    ids: npt.NDArray[Any]
    first: Counts
    real: _Flags

    def trained(self) -> _Flags:
        """Where the loss mask of the dataset says to train; without one, wherever a token is."""
        if not self.split.has_mask:
            return self.real
        rows, width = self.ids.shape
        mask = np.zeros((rows, width), np.uint8)
        at = np.arange(rows, dtype=np.int64) * width + self.first
        copy_mask(self.split, self.starts, self.lengths, mask.reshape(-1), at)
        train: _Flags = mask != 0
        return train

    def positions(self) -> Counts:
        """int64 like the rows, from 0 at the first token of each; 0 in padding."""
        places: Counts = np.arange(self.ids.shape[1], dtype=np.int64) - self.first[:, None]
        return places * self.real

    def labels(self, kind: Labels) -> Counts:
        """int64 like the rows; see `DocumentDataset`."""
        labels = np.full(self.ids.shape, IGNORED_LABEL, np.int64)
        train = self.trained()
        both = train[:, 1:] & self.real[:, :-1]  # tokens to train on with one before them
        target = labels[:, :-1] if kind == "shifted" else labels[:, 1:]
        np.copyto(target, self.ids[:, 1:], where=both)
        return labels


def padded_rows(
    split: Split, starts: Counts, lengths: Counts, width: int, *, pad_id: int, left: bool = False
) -> PaddedRows:
    """Rows of `width`: `lengths[k]` tokens of `split` from `starts[k]` on, `left` of them padding.

    Raises `IndexError` for a piece that is no part of a document.
    """
    first = width - lengths if left else np.zeros_like(lengths)
    ids = np.full((len(lengths), width), pad_id, split.dtype)
    at = np.arange(len(lengths), dtype=np.int64) * width + first
    copy_tokens(split, starts, lengths, ids.reshape(-1), at)
    columns = np.arange(width, dtype=np.int64)
    real = columns >= first[:, None] if left else columns < lengths[:, None]
    return PaddedRows(split, starts, lengths, ids, first, real)
