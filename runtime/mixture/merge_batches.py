"""Rows of several sources put into one batch, in the order asked for.

Tensors with an axis of rows are scattered, one memory copy each; those that speak of the rows laid
end to end (`cu_seqlens`, `max_seqlen`) are made anew from those of the sources. What does not fit
is an error that says which sources differ, and in what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import UsageError

from ..types import IGNORED_LABEL, Batch

__all__ = ["Filling", "Part", "check_fit", "merge"]


class Filling(NamedTuple):
    """How a source fills up rows that are padded to the longest of their batch."""

    pad_id: int
    left: bool


class Part(NamedTuple):
    """The rows of a batch that come from one source, and what it gave for them.

    `filling` is None where its rows are equally long in all batches.
    """

    name: str
    rows: npt.NDArray[np.int64]
    batch: Batch
    filling: Filling | None = None


def merge(parts: Sequence[Part], rows: int) -> Batch:
    """One batch of all rows of `parts`."""
    if len(parts) == 1:
        return parts[0].batch
    check_fit(parts)
    return {
        name: _MERGED[name](parts, rows) if name in _MERGED else _scatter(name, parts, rows)
        for name in parts[0].batch
    }


def _scatter(name: str, parts: Sequence[Part], rows: int) -> torch.Tensor:
    first = parts[0].batch[name]
    shapes = [part.batch[name].shape[1:] for part in parts]
    shape = tuple(map(max, zip(*shapes, strict=True)))  # the longest of the sources
    out = torch.empty((rows, *shape), dtype=first.dtype)
    target = out.numpy()  # whose copy by rows is twice as fast as torch's
    for part in parts:
        _put(target, name, part)
    return out


def _put(target: npt.NDArray[Any], name: str, part: Part) -> None:
    """The rows of `part`, padded on to the width of `target` where they are shorter."""
    values = part.batch[name].numpy()
    if part.filling is None or values.shape[1:] == target.shape[1:]:
        target[part.rows] = values
        return
    missing = [to - of for to, of in zip(target.shape[1:], values.shape[1:], strict=True)]
    sides = [(more, 0) if part.filling.left else (0, more) for more in missing]
    blank = _blank(name, part.filling.pad_id)
    target[part.rows] = np.pad(values, ((0, 0), *sides), constant_values=blank)


def _blank(name: str, pad_id: int) -> int:
    """What the field `name` has in padding.

    >>> [_blank(name, 9) for name in ("input_ids", "chosen_labels", "doc_ids", "attention_mask")]
    [9, -100, -1, 0]
    """
    if name.endswith("input_ids") or name == "responses":
        return pad_id
    if name.endswith("labels"):
        return IGNORED_LABEL
    return -1 if name == "doc_ids" else 0


def _merge_cu_seqlens(parts: Sequence[Part], rows: int) -> torch.Tensor:
    """Where the segments of all rows, laid end to end in the batch's order, stop.

    No segment reaches from a row into the next, so each moves with its row.
    """
    begins = []
    for part in parts:
        stops = part.batch["cu_seqlens"].numpy().astype(np.int64)
        begin = stops[:-1][stops[1:] > stops[:-1]]
        row, inside = np.divmod(begin, stops[-1] // len(part.rows))
        begins.append(part.rows[row] * (stops[-1] // len(part.rows)) + inside)
    tokens = sum(int(part.batch["cu_seqlens"][-1]) for part in parts)
    out = np.full(rows * _room(parts[0]) + 1, tokens, np.int32)
    begun = np.sort(np.concatenate(begins))
    out[: len(begun)] = begun
    return torch.from_numpy(out)


def _merge_max_seqlen(parts: Sequence[Part], rows: int) -> torch.Tensor:
    return torch.stack([part.batch["max_seqlen"] for part in parts]).max()


# Tensors without an axis of rows, and how those of the sources become one.
_MERGED = {"cu_seqlens": _merge_cu_seqlens, "max_seqlen": _merge_max_seqlen}


def check_fit(parts: Sequence[Part]) -> None:
    """Raise unless all have the same tensors, with rows of the same shape and type.

    Rows that are padded to the longest may differ in that length, and then must in all sources.
    Each part has one row or more.
    """
    first = parts[0]
    for part in parts[1:]:
        if not _fits(first, part):
            mine, other = _rows(first), _rows(part)
            raise _unfit(f"differ: {first.name} has {mine}, {part.name} has {other}")
    if "cu_seqlens" in first.batch:
        _check_room(parts)


def _fits(one: Part, other: Part) -> bool:
    return one.batch.keys() == other.batch.keys() and all(
        tensor.dtype == other.batch[name].dtype
        and (name in _MERGED or _shape(one, name) == _shape(other, name))
        for name, tensor in one.batch.items()
    )


def _shape(part: Part, name: str) -> tuple[int | str, ...]:
    """That of a row; "longest" stands for a length which is up to the batch."""
    shape = part.batch[name].shape[1:]
    return ("longest",) * len(shape) if part.filling is not None else tuple(shape)


def _check_room(parts: Sequence[Part]) -> None:
    least, most = (choose(parts, key=_room) for choose in (min, max))
    if _room(least) != _room(most):
        raise _unfit(
            f"differ: {least.name} has cu_seqlens with room for {_room(least):,} segments a row, "
            f"{most.name} for {_room(most):,}", f"Make all of them with cu_seqlens={_room(most)}.",
        )  # fmt: skip


def _room(part: Part) -> int:
    return (len(part.batch["cu_seqlens"]) - 1) // len(part.rows)


def _rows(part: Part) -> str:
    found = []
    for name, tensor in sorted(part.batch.items()):
        dtype, shape = str(tensor.dtype).removeprefix("torch."), _shape(part, name)
        found.append(f"{name} {dtype} [{', '.join(map(str, shape))}]")
    return ", ".join(found)


def _unfit(
    problem: str, remedy: str = "Make them with the same seq_len, labels and other fields."
) -> UsageError:
    return UsageError(
        f"the rows of the sources {problem}", where="sources", code="E_MIXTURE", remedy=remedy
    )
