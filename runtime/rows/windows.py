"""Token windows: fixed-length pieces of a split's stream, as int64 or int32 tensors.

Window `i` starts at token `i * stride` of the split; a window may cross the end of a shard. The ids
of a batch are copied in their stored type (2 or 4 bytes) and then converted to the type of the
batch. The dataset has no state for an epoch: worker processes need only the indices that they
receive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, repeat
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import InputError, require
from dataprep.formats.read.dataset import Split

from ..checks import whole_number
from ..sample_numbers import PADDING, Indices, Ints, check_samples, sample_numbers
from ..types import IGNORED_LABEL, Batch, BatchDataset, Labels, numpy_dtype
from .buffer_pool import Buffers
from .segments import SegmentFields, Segments, of_windows

__all__ = ["WindowDataset", "window_count"]

_BATCHES_AT_ONCE = 64  # most batches whose places, and documents, are looked up together
_GROWTH = 4  # factor by which their number grows, so that the first batch does not wait for many
_TOKENS_AT_ONCE = 1 << 23  # most tokens in them, as all are announced to the kernel at once
_DOCUMENTS_AT_ONCE = 1 << 20  # most tokens in them if documents are looked up: each may be one


class WindowDataset(BatchDataset):
    """Map-style dataset of the windows of one split.

    Each sample is a dict of tensors: `input_ids` [seq_len], and `labels` [seq_len] unless `labels`
    is None. The option `dtype` is their type, torch.int64 or torch.int32. With ``"shifted"``
    labels, label `j` is the token after input `j`. A window then reads `seq_len` + 1 tokens, and
    its last label is the token after the window. ``"unshifted"`` labels equal the inputs, for
    models that shift labels themselves. If the dataset has a loss mask, the labels of tokens not to
    train on are `IGNORED_LABEL`.

    The option `stride` is the distance in tokens between the starts of two windows. It defaults to
    `seq_len`. Tokens after the last complete window are not used. The options `position_ids`,
    `doc_ids` and `cu_seqlens` add the tensors of `SegmentFields`, made from the stored offsets. A
    batch takes twice as long with one of these options, 2.5 times with two, and 3 times with three.

    With `sample_mask`, batches also say which rows are real samples (see `batch`).

    Raises `InputError` if the split has fewer tokens than one window. A pickle holds a path and a
    few numbers.

        >>> windows = WindowDataset(dataset.split("train"), seq_len=1024)   # doctest: +SKIP
        >>> windows[0]["input_ids"].shape                                   # doctest: +SKIP
        torch.Size([1024])
    """

    def __init__(
        self,
        split: Split,
        *,
        seq_len: int,
        stride: int | None = None,
        labels: Labels | None = "shifted",
        sample_mask: bool = False,
        position_ids: bool = False,
        doc_ids: bool = False,
        cu_seqlens: bool | int = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.split = split
        self.dtype, self._dtype = dtype, numpy_dtype(dtype, split)
        self.seq_len = whole_number("seq_len", seq_len, 1)
        self.stride = self.seq_len if stride is None else whole_number("stride", stride, 1)
        self.labels = labels
        self.sample_mask = sample_mask
        self.fields = SegmentFields(
            position_ids=position_ids, doc_ids=doc_ids, cu_seqlens=cu_seqlens
        )
        require(self.stride < 1 << 62, "stride", f"must be below 2**62 tokens, got {stride}")
        known = (None, *get_args(Labels))
        require(labels in known, "labels", f"must be one of {known}, got {labels!r}")
        self._buffers = Buffers()
        self._span = self.seq_len + (labels == "shifted")
        self._windows = window_count(split.tokens, self._span, self.stride)
        if self._windows == 0:
            raise _too_few_tokens(split, self.seq_len, self._span)

    def __len__(self) -> int:
        return self._windows

    def __repr__(self) -> str:
        return (
            f"<dataprep.WindowDataset {self.split.name}: {len(self):,} windows of {self.seq_len:,}>"
        )

    @property
    def unread_tokens(self) -> int:
        """Number of tokens that no window contains because `stride` leaves gaps between windows.

        The number is 0 if closing the gaps would not give more windows.
        """
        if self.stride <= self._span:
            return 0
        closest = window_count(self.split.tokens, self._span, self._span)
        return self.split.tokens - self._windows * self._span if closest > self._windows else 0

    @property
    def definition(self) -> dict[str, str | int | None]:
        """JSON values that, together with the split's `content_id`, determine tokens and labels."""
        return {
            "kind": "windows", "split": self.split.name, "seq_len": self.seq_len,
            "stride": self.stride, "labels": self.labels,
        }  # fmt: skip

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays: where each of `samples` starts and stops in the split's stream.

        Samples that are `PADDING` have no entry. Raise `IndexError` for a sample outside
        0 .. len - 1.
        """
        starts = self._starts(samples[samples != PADDING])
        return starts, starts + self._span

    def covering(self, start: int, stop: int) -> Ints:
        """Return the windows with tokens at positions `start` to `stop` - 1 of the split.

        The result is an increasing int64 array. If labels are shifted, the token after a window
        counts as a token of the window, because it is a label. No file is read.
        """
        first = max(0, -((self._span - 1 - start) // self.stride))  # ceil((start - span + 1) / ...)
        last = min(self._windows - 1, (stop - 1) // self.stride)
        return np.arange(first, last + 1 if start < stop else first, dtype=np.int64)

    def batch(self, indices: Indices) -> Batch:
        """Return the windows at `indices`: tensors [len(indices), seq_len] that share no memory.

        With `sample_mask` there is also a bool tensor [len(indices)] of that name, which is False
        in the rows whose index is `PADDING`. The labels of such a row are all `IGNORED_LABEL`, and
        in the attention tensors the row is one segment of padding.

        Raise `IndexError` for an index outside 0 .. len - 1, and `UsageError` for a row with more
        segments than the option `cu_seqlens` allows.
        """
        samples = sample_numbers(indices, len(self))
        starts, real = self._places(samples)
        segments = of_windows(self.split, starts, self.seq_len, real=real) if self.fields else None
        return self._batch(self.split.gather(starts, self._span), starts, real, segments)

    def in_turn(self, asked: Iterator[Ints]) -> Iterator[Batch]:
        """Yield a batch for each array of samples that the iterator `asked` yields.

        Up to 4, then 16, then 64 arrays are taken from `asked` and processed at once, because
        finding windows and their documents costs little more for many batches than for one.
        """
        many = 1
        for first in asked:
            most = _DOCUMENTS_AT_ONCE if self.fields else _TOKENS_AT_ONCE
            fit = most // max(1, len(first) * self.seq_len)
            many = min(_GROWTH * many, _BATCHES_AT_ONCE)
            more = islice(asked, max(1, min(fit, many)) - 1)
            yield from self._at_once([first, *more])

    def _at_once(self, batches: list[Ints]) -> Iterator[Batch]:
        starts, real = self._places(np.concatenate(batches))
        rows = [len(batch) for batch in batches]
        ids = self.split.gather_in_turn(starts, self._span, rows)
        if not self.fields and real is None and not self.split.has_mask:
            yield from map(self._tensors, ids)
            return
        parts: Iterable[Segments | None] = repeat(None)
        if self.fields:
            parts = of_windows(self.split, starts, self.seq_len, real=real).parted(rows)
        for stop, count, part in zip(accumulate(rows), rows, parts, strict=False):
            mine = slice(stop - count, stop)
            # A name for the ids would keep their memory in use while the next ones are gathered.
            yield self._batch(next(ids), starts[mine], None if real is None else real[mine], part)

    def _batch(
        self,
        ids: npt.NDArray[Any],
        starts: Ints,
        real: npt.NDArray[np.bool_] | None,
        segments: Segments | None,
    ) -> Batch:
        batch = self._ids(ids, starts)
        if segments is not None:
            batch.update(self.fields.tensors(segments, self._buffers.empty, dtype=self._dtype))
        if real is not None:
            mask = batch["sample_mask"] = torch.from_numpy(real)
            if "labels" in batch:
                batch["labels"][~mask] = IGNORED_LABEL
        return batch

    def _places(self, samples: Ints) -> tuple[Ints, npt.NDArray[np.bool_] | None]:
        """Return the start of each sample in the split's stream, and a mask of real samples.

        The mask is False where a sample is `PADDING`. Return None in place of the mask if the
        dataset has no `sample_mask`.
        """
        if not self.sample_mask:
            return self._starts(samples), None
        real = samples != PADDING
        return self._starts(np.where(real, samples, 0)), real

    def _starts(self, samples: Ints) -> Ints:
        """Return the position in the split's stream at which each of `samples` starts.

        Raise `IndexError` for a sample that does not exist.
        """
        # Checked before the multiplication, which could overflow into the valid range.
        check_samples(samples, self._windows)
        return samples * self.stride

    def _ids(self, ids: npt.NDArray[Any], starts: Ints) -> Batch:
        batch = self._tensors(ids)
        if self.labels is not None and self.split.has_mask:
            mask = self.split.gather_mask(starts + (self._span - self.seq_len), self.seq_len)
            batch["labels"][torch.from_numpy(mask == 0)] = IGNORED_LABEL
        return batch

    def _tensors(self, ids: npt.NDArray[Any]) -> Batch:
        if self.labels is None:
            return {"input_ids": self._widen(ids)}
        ahead = self._span - self.seq_len  # of the inputs
        inputs = self._widen(ids[:, : self.seq_len])
        return {"input_ids": inputs, "labels": self._widen(ids[:, ahead:])}

    def _widen(self, ids: npt.NDArray[Any]) -> torch.Tensor:
        wide = self._buffers.empty(ids.shape, self._dtype)
        wide[...] = ids
        return torch.from_numpy(wide)


def window_count(tokens: int, span: int, stride: int) -> int:
    """Return the number of windows in a stream of `tokens` tokens.

    Each window has `span` tokens, and windows begin `stride` tokens apart.

    >>> window_count(9, 5, 4), window_count(8, 5, 4), window_count(4, 5, 4)
    (2, 1, 0)
    """
    return (tokens - span) // stride + 1 if tokens >= span else 0


def _too_few_tokens(split: Split, seq_len: int, span: int) -> InputError:
    extra = span - seq_len
    largest = split.tokens - extra
    size = f"{span:,} tokens (seq_len {seq_len:,} + {extra} for the shifted labels)"
    smaller = f"Use seq_len={largest} or less, or build" if largest >= 1 else "Build"
    return InputError(
        f"has {split.tokens:,} tokens, fewer than one window of {size if extra else seq_len}",
        where=f"split {split.name}",
        code="E_TOO_FEW_TOKENS",
        remedy=f"{smaller} with more data or a larger share for this split.",
    )
