"""The tensors that say where documents lie in a batch, in shapes that never change.

Kernels that are compiled or captured for one shape need the same shapes in every batch: so
`cu_seqlens` has room for as many segments as asked for, whatever the documents are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import UsageError

from ..checks import flag, whole_number
from .segments import Segments

__all__ = ["SegmentFields", "segments_a_row", "too_many_segments"]

Empty = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFields:
    """Which of these tensors a batch of [rows, seq_len] has.

    - `position_ids`: int64 [rows, seq_len], from 0 in each segment; 0 in padding.
    - `doc_ids`: int64 [rows, seq_len], the document's number in its split; -1 in padding.
    - `cu_seqlens`: int32 [rows x room + 1], where each segment of the flattened batch stops (see
      `Segments.cu_seqlens`), and with it `max_seqlen`: int64 [], the length of the longest. The
      room is `cu_seqlens` segments a row; True stands for seq_len, which is always enough.

        >>> begin, length, document = np.array([0]), np.array([3]), np.array([7])
        >>> batch = Segments(rows=1, seq_len=4, begin=begin, length=length, document=document)
        >>> SegmentFields(cu_seqlens=3).tensors(batch)["cu_seqlens"]
        tensor([0, 3, 4, 4], dtype=torch.int32)
    """

    position_ids: bool = False
    doc_ids: bool = False
    cu_seqlens: bool | int = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "position_ids", flag("position_ids", self.position_ids))
        set_(self, "doc_ids", flag("doc_ids", self.doc_ids))
        set_(self, "cu_seqlens", segments_a_row(self.cu_seqlens))

    def __bool__(self) -> bool:
        return self.position_ids or self.doc_ids or self.cu_seqlens is not False

    def tensors(self, segments: Segments, empty: Empty | None = None) -> dict[str, torch.Tensor]:
        """The tensors that were asked for, each its own memory.

        `empty(shape, dtype)` makes the arrays: memory that is used again makes this twice as fast.

        Raises `UsageError` where a row has more segments than `cu_seqlens` has room for. Costs a
        memory copy for each tensor of the size of `input_ids`.
        """
        found: dict[str, torch.Tensor] = {}
        empty = empty or np.empty
        shape = segments.rows, segments.seq_len
        if self.position_ids:
            found["position_ids"] = torch.from_numpy(segments.position_ids(empty(shape, np.int64)))
        if self.doc_ids:
            found["doc_ids"] = torch.from_numpy(segments.doc_ids(empty(shape, np.int64)))
        if self.cu_seqlens is not False:
            capacity = segments.rows * self._room(segments)
            cuts = segments.cu_seqlens(capacity, empty((capacity + 1,), np.int32))
            found["cu_seqlens"] = torch.from_numpy(cuts)
            found["max_seqlen"] = torch.from_numpy(segments.max_seqlen())
        return found

    def _room(self, segments: Segments) -> int:
        """Segments a row, none of which may have more."""
        if self.cu_seqlens is True:
            return segments.seq_len
        room = int(self.cu_seqlens)
        if len(segments.begin) + segments.rows > room:  # else no row can have more
            counts = segments.per_row()
            row = int(np.argmax(counts)) if len(counts) else 0
            if len(counts) and counts[row] > room:
                raise too_many_segments(f"row {row} of the batch", int(counts[row]), room)
        return room


def segments_a_row(value: Any) -> bool | int:
    """`cu_seqlens` as a bool or an int; `UsageError` for anything else, and below 1."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return whole_number("cu_seqlens", value, 1)


def too_many_segments(row: str, segments: int, room: int) -> UsageError:
    """The error of `row`, which has more segments than there is `room` for."""
    return UsageError(
        f"{row} holds {segments:,} segments, more than {room:,}",
        where="cu_seqlens", code="E_SEGMENTS",
        remedy=f"Use cu_seqlens={segments} or more; cu_seqlens=True always fits.",
    )  # fmt: skip
