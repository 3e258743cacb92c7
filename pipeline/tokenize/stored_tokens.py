"""The tokens that a dataset stores: the ids from an engine, with BOS and EOS added."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError

__all__ = ["EncodingSettings", "with_bos_eos"]

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

_LONG = 1000  # ids a document on average, above which copying each document is faster


class EncodingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide which token ids a dataset stores for a text."""

    engine: str
    dtype: str
    vocab_size: int
    bos: int | None
    eos: int | None
    special_tokens: dict[str, int]
    unknown: int | None
    """Id that the model gives to unknown text: it may be a special token that no text spells."""
    special_text: str

    @property
    def added(self) -> int:
        """Return the number of tokens that are added to each document: BOS, EOS, both or none."""
        return (self.bos is not None) + (self.eos is not None)


def with_bos_eos(
    ids: Ids, offsets: Offsets, *, bos: int | None, eos: int | None, dtype: str, vocab_size: int
) -> tuple[npt.NDArray[Any], Offsets]:
    """Return the stored tokens of a batch, concatenated, and the number of tokens per document.

    The arrays `ids` [n] and `offsets` [documents + 1] come from an engine. The tokens `bos` and
    `eos` are added to each document unless they are None. The tokens in the result have the type
    `dtype`. Raise `DataprepError` for an id that is not below `vocab_size`, because such an id may
    not fit into `dtype`.
    """
    if len(ids) and int(ids.max()) >= vocab_size:
        raise DataprepError(
            f"the engine gave id {int(ids.max())}, but the vocabulary ends at {vocab_size - 1}",
            where="tokenizer",
        )
    extra = (bos is not None) + (eos is not None)
    lengths = np.diff(offsets) + extra
    if not extra:
        return ids.astype(dtype), lengths
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype)
    starts = ends - lengths
    if bos is not None:
        out[starts] = bos
        starts += 1
    if eos is not None:
        ends -= 1
        out[ends] = eos
    if len(ids) > _LONG * len(lengths):
        for start, (first, last) in zip(starts.tolist(), pairwise(offsets.tolist()), strict=True):
            out[start : start + last - first] = ids[first:last]
        return out, lengths
    body = np.ones(len(out), bool)
    if bos is not None:
        body[starts - 1] = False
    if eos is not None:
        body[ends] = False
    out[body] = ids
    return out, lengths
