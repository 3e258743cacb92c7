"""Packed rows: tensors of one length, each with the tokens of several documents.

The rows follow a plan (runtime/rows/packing.py), which is made once from the lengths of the
documents and stored in a cache (runtime/rows/plan_cache.py). Opening a stored plan reads a
kilobyte. To make a batch, its rows are looked up in the plan, each document (or part of a document)
is copied in the stored type of the ids, and all ids are converted together to the type of the
batch. Labels never cross from one document to the next. Position ids and the tensors for
variable-length attention come from the same plan.

Use windows (runtime/rows/windows.py) if rows must contain every token and no padding. Use documents
(runtime/rows/documents.py) if each row must contain exactly one document.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import InputError, IntegrityError, UsageError
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import distinct

from ..choices import Algorithm, PackedOverlong
from ..sample_numbers import PADDING, Indices, Ints, check_samples, sample_numbers
from ..types import IGNORED_LABEL, Batch, BatchDataset, Labels, numpy_dtype, reopened
from .gather import copy_mask, copy_tokens
from .packing import PackingOptions, PackingReport
from .packing_plan import packing_definition, packing_plan, pieces_of_tokens
from .segments import SegmentFields, Segments, too_many_segments

__all__ = ["PackedDataset", "padding_id"]

_ROWS = 1 << 16  # rows of a plan that are checked in one step


class PackedDataset(BatchDataset):
    """Map-style dataset of the packed rows of one split.

    Each sample is a dict of tensors: `input_ids` [seq_len], and `labels` [seq_len] unless `labels`
    is None. The documents of a row follow one another from its start, and the rest is filled with
    `pad_id`. Label `j` is

    - ``"shifted"``: the token after input `j` in the same document, or `IGNORED_LABEL` (-100) at
      the end of a document. If a document was cut into pieces, the label at the end of a piece is
      the first token of the next piece.
    - ``"unshifted"``: input `j`, for models that shift labels themselves; -100 at the start of each
      document, which such a model would predict from the document before.

    Labels are -100 in padding, and wherever the loss mask of the dataset says not to train.

    Arguments:
        seq_len: number of tokens in a row.
        algorithm: ``"first-fit"`` (first fit decreasing) or ``"best-fit"`` (best fit decreasing).
        overlong: what happens to documents over `seq_len`; see `PackingOptions`.
        position_ids: adds `position_ids` [seq_len], which count from 0 in every document.
        doc_ids: adds int64 `doc_ids` [seq_len], the document's index in the split, -1 in padding.
        cu_seqlens: adds int32 `cu_seqlens` and int64 `max_seqlen`; see `SegmentFields`. A number is
            the most segments that a row may have; if a row has more, `UsageError` (E_SEGMENTS) is
            raised. True: a sufficient number is found automatically.
        pad_id: the id in padding. None: the tokenizer's pad, else its eos, else 0.
        plan_dir: the folder of plans; see `stored_plan`.
        sample_mask: adds bool `sample_mask`, False where the index is `PADDING`. A row with False
            is all padding.
        dtype: the type of ids, labels and position ids: torch.int64 or torch.int32.

    The attribute `report` counts the documents and tokens that are packed, and those that are left
    out. Raises `InputError` if there are no rows. A pickle holds a path and a few numbers, and
    unpickling opens the plan or makes it again.

        >>> packed = PackedDataset(dataset.split("train"), seq_len=2048)   # doctest: +SKIP
        >>> print(packed.report)                                           # doctest: +SKIP
        7,437 documents in 4,210 rows of 2,048 tokens, 99.98% full, 820 documents split
    """

    def __init__(
        self,
        split: Split,
        *,
        seq_len: int,
        algorithm: Algorithm = "first-fit",
        overlong: PackedOverlong = "split",
        labels: Labels | None = "shifted",
        position_ids: bool = False,
        doc_ids: bool = False,
        cu_seqlens: bool | int = False,
        pad_id: int | None = None,
        plan_dir: str | Path | None = None,
        sample_mask: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        known = (None, *get_args(Labels))
        if labels not in known:
            raise UsageError(f"must be one of {known}, got {labels!r}", where="labels")
        self.split = split
        self.dtype, self._dtype = dtype, numpy_dtype(dtype, split)
        self.options = PackingOptions(seq_len=seq_len, algorithm=algorithm, overlong=overlong)
        self.seq_len = self.options.seq_len
        self.labels = labels
        self.pad_id = padding_id(split, pad_id)
        self.plan_dir = plan_dir
        self.sample_mask = sample_mask
        self.plan = packing_plan(split, self.options, plan_dir)
        report = dict(self.plan.report)
        self._most_pieces = report.pop("most_pieces")
        self.report = PackingReport(**report)
        self._rows = self.report.rows
        if self._rows == 0:
            raise _no_rows(split, self.report)
        most = min(self._most_pieces + 1, self.seq_len)  # + padding
        fields = SegmentFields(position_ids=position_ids, doc_ids=doc_ids, cu_seqlens=cu_seqlens)
        self.fields = replace(fields, cu_seqlens=most) if fields.cu_seqlens is True else fields
        if 0 < self.fields.cu_seqlens < most:
            self._require_room(self.fields.cu_seqlens)

    def _require_room(self, room: int) -> None:
        """Raise `UsageError` if a row has more than `room` segments, counting padding as a segment.

        The function reads the bounds of all rows and the lengths of all pieces, in blocks of rows.
        """
        bounds, row, most = self.plan.arrays["rows"], 0, 0
        for first in range(0, self._rows, _ROWS):
            edges = np.asarray(bounds[first : min(first + _ROWS, self._rows) + 1], np.int64)
            pieces = np.diff(edges)
            self._check_plan((pieces >= 1) & (edges[:-1] >= 0) & (edges[1:] <= self.report.pieces))
            length = np.asarray(self.plan.arrays["length"][edges[0] : edges[-1]], np.int64)
            used = np.add.reduceat(length, edges[:-1] - edges[0])
            segments = pieces + (used < self.seq_len)
            if segments.max() > most:
                row, most = first + int(segments.argmax()), int(segments.max())
        if most > room:
            raise too_many_segments(f"packed row {row:,}", most, room)

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the split's `content_id`, determine tokens and labels."""
        return {**packing_definition(self.split, self.options), "labels": self.labels}

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return (
            f"<dataprep.PackedDataset {self.split.name}: {len(self):,} rows of {self.seq_len:,}, "
            f"{self.report.fill:.2%} full>"
        )

    def __reduce__(self) -> tuple[object, ...]:
        options = {
            "seq_len": self.seq_len, "algorithm": self.options.algorithm,
            "overlong": self.options.overlong, "labels": self.labels,
            "position_ids": self.fields.position_ids, "doc_ids": self.fields.doc_ids,
            "cu_seqlens": self.fields.cu_seqlens, "pad_id": self.pad_id,
            "plan_dir": self.plan_dir, "sample_mask": self.sample_mask, "dtype": self.dtype,
        }  # fmt: skip
        return reopened, (PackedDataset, self.split, options)

    def batch(self, indices: Indices) -> Batch:
        """Return the rows at `indices`: tensors [len(indices), seq_len] that share no memory.

        Raise `IndexError` for an index outside 0 .. len - 1, and `IntegrityError` if the plan was
        changed on disk. Also raise the errors of `SegmentFields.tensors`.
        """
        samples = sample_numbers(indices, len(self))
        segments, starts, lengths = self._pieces(samples)
        # One column more, for shifted labels: it takes the next token of a split document.
        ids = np.empty((len(samples), self.seq_len + 1), self.split.dtype)
        at = segments.begin + segments.row
        try:
            copy_tokens(self.split, starts, lengths, ids.reshape(-1), at)
        except IndexError:
            raise self._changed() from None
        tails = _tails(segments)
        for row, used in tails:
            ids[row, used:] = self.pad_id
        batch = {"input_ids": torch.from_numpy(self._widen(ids[:, :-1]))}
        if self.labels is not None:
            labels = self._labels(ids, segments, lengths, tails)
            if self.split.has_mask:
                mask = np.zeros(ids.shape, np.uint8)
                copy_mask(self.split, starts, lengths, mask.reshape(-1), at)
                labels[self._beside(mask) == 0] = IGNORED_LABEL
            batch["labels"] = torch.from_numpy(labels)
        if self.fields:
            batch.update(self.fields.tensors(segments, dtype=self._dtype))
        if self.sample_mask:
            batch["sample_mask"] = torch.from_numpy(samples != PADDING)
        return batch

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays: where the pieces of `samples` start and stop in the split's stream.

        Samples that are `PADDING` have no pieces. Raise `IndexError` for a sample outside
        0 .. len - 1.
        """
        _, start, length = self._pieces(samples[samples != PADDING])
        return start, start + length

    def covering(self, start: int, stop: int) -> Ints:
        """Return the rows with tokens at positions `start` to `stop` - 1 of the split.

        The result is an increasing int64 array. If labels are shifted and a document was cut into
        pieces, the token after a piece counts as a token of the row, because it is a label. The
        function reads the chunks of the plan that hold these tokens, which takes a few
        milliseconds.
        """
        pieces = pieces_of_tokens(self.plan, start, stop, ahead=self.labels == "shifted")
        bounds = self.plan.arrays["rows"]
        rows = bounds.searchsorted(pieces, "right") - 1
        self._check_plan((rows >= 0) & (rows < self._rows))
        self._check_plan((bounds[rows] <= pieces) & (pieces < bounds[rows + 1]))
        return distinct(rows)

    def _pieces(self, samples: Ints) -> tuple[Segments, Ints, Ints]:
        """Return the segments of the rows `samples`, and two arrays with an entry for each segment.

        The arrays hold the start of each segment in the split's stream, and the number of tokens to
        read there. Raise `IntegrityError` if the plan is invalid.
        """
        row, at = self._pieces_of_rows(samples)
        document, start, length, more = (
            self.plan.arrays[name][at].astype(np.int64)
            for name in ("document", "start", "length", "more")
        )
        self._check_plan(
            (start >= 0) & (length >= 1) & (start <= self.split.tokens - length - more)
        )
        self._check_plan(document < self.split.documents)
        before = np.cumsum(length) - length
        before -= before[np.searchsorted(row, row)]
        self._check_plan(before + length <= self.seq_len)
        segments = Segments(
            rows=len(samples), seq_len=self.seq_len, begin=row * self.seq_len + before,
            length=length, document=document,
        )  # fmt: skip
        # Where a document continues in another piece, the label of the last token is read, too.
        return segments, start, length + more * (self.labels == "shifted")

    def _pieces_of_rows(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays with an entry for each piece in the rows `samples`.

        The first array holds the row of the batch that contains the piece. The second holds the
        index of the piece in the plan. Samples that are `PADDING` have no pieces. Raise
        `IndexError` for a sample that does not exist, and `IntegrityError` if the plan is invalid.
        """
        real = samples != PADDING if self.sample_mask else np.ones(len(samples), np.bool_)
        rows = samples[real]
        check_samples(rows, self._rows)
        first, stop = self.plan.arrays["rows"][rows], self.plan.arrays["rows"][rows + 1]
        self._check_plan((first >= 0) & (first < stop) & (stop - first <= self._most_pieces))
        self._check_plan(stop <= self.report.pieces)
        which, pieces, _ = ragged(first, stop)
        return np.flatnonzero(real)[which], pieces

    def _check_plan(self, holds: npt.NDArray[np.bool_]) -> None:
        """Raise `IntegrityError` unless all of `holds` are True.

        The error says that the plan was changed after it was made.
        """
        if not holds.all():
            raise self._changed()

    def _changed(self) -> IntegrityError:
        return IntegrityError(
            "the plan was changed after it was made", where=str(self.plan.path), code="E_PLAN",
            remedy="Remove this file: the plan is made again.",
        )  # fmt: skip

    def _beside(self, columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the columns that hold labels: `seq_len` of the `seq_len` + 1 in `columns`.

        If labels are shifted, these are all columns but the first, otherwise all but the last.
        """
        return columns[:, 1:] if self.labels == "shifted" else columns[:, :-1]

    def _labels(
        self, ids: npt.NDArray[Any], segments: Segments, read: Ints, tails: list[tuple[int, int]]
    ) -> npt.NDArray[Any]:
        labels = self._widen(self._beside(ids))
        ends = segments.length == read  # else the token read after the piece is a label
        lasts = segments.begin + segments.length - 1
        edges = lasts[ends] if self.labels == "shifted" else segments.begin
        labels.reshape(-1)[edges] = IGNORED_LABEL
        for row, used in tails:
            labels[row, used:] = IGNORED_LABEL
        return labels

    def _widen(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return ids.astype(self._dtype, order="C")


def padding_id(split: Split, pad_id: int | None) -> int:
    """Return `pad_id`. If it is None, return the tokenizer's pad id, else its eos id, else 0.

    Raise `UsageError` for an id that the vocabulary does not have.
    """
    manifest = split.dataset.manifest
    token = manifest.tokenizer.pad or manifest.tokenizer.eos
    if pad_id is None:
        return token.id if token else 0
    size = manifest.tokens.vocab_size
    if not 0 <= pad_id < size:
        raise UsageError(f"must be from 0 to {size - 1:,}, got {pad_id}", where="pad_id")
    return pad_id


def _tails(segments: Segments) -> list[tuple[int, int]]:
    """Return a pair (row, column) for each row that ends in padding.

    Padding begins in `column`.
    """
    used = np.zeros(segments.rows, np.int64)
    np.maximum.at(used, segments.row, segments.start + segments.length)
    short = np.flatnonzero(used < segments.seq_len)
    return list(zip(short.tolist(), used[short].tolist(), strict=True))


def _no_rows(split: Split, report: PackingReport) -> InputError:
    return InputError(
        f"no row can be packed: of {report.documents:,} documents {report.empty_documents:,} are "
        f"empty and {report.dropped_documents:,} have more than seq_len {report.seq_len:,} tokens",
        where=f"split {split.name}", code="E_TOO_FEW_TOKENS",
        remedy="Use overlong='split' or a larger seq_len, or build with more data.",
    )  # fmt: skip
