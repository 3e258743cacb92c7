"""From the ids of a batch to the stored tokens: BOS and EOS put in, checked and narrowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError

__all__ = ["assemble", "assemble_reference"]

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


def assemble(
    ids: Ids, offsets: Offsets, *, bos: int | None, eos: int | None, dtype: str, vocab_size: int
) -> tuple[npt.NDArray[Any], Offsets]:
    """Stored tokens of all documents of a batch, and the length of each.

    `ids` [n] and `offsets` [documents + 1] come from an engine. Every id is checked against
    `vocab_size` before it is narrowed: a cast would wrap it silently. About 1 ns a token.
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
    body = np.ones(len(out), bool)
    if bos is not None:
        starts = ends - lengths
        body[starts] = False
        out[starts] = bos
    if eos is not None:
        body[ends - 1] = False
        out[ends - 1] = eos
    out[body] = ids
    return out, lengths


def assemble_reference(
    documents: list[list[int]], *, bos: int | None, eos: int | None
) -> tuple[list[int], list[int]]:
    """What `assemble` means, one document at a time.

    >>> assemble_reference([[5, 6], []], bos=1, eos=2)
    ([1, 5, 6, 2, 1, 2], [4, 2])
    """
    tokens: list[int] = []
    lengths = []
    for ids in documents:
        whole = ([] if bos is None else [bos]) + ids + ([] if eos is None else [eos])
        tokens += whole
        lengths.append(len(whole))
    return tokens, lengths
