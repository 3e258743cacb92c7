"""Rows of one document each, padded to the longest document of the batch.

Such rows are for fine-tuning and scoring. Documents are numbered as they are stored. Documents with
fewer than `min_tokens` tokens are left out, because a row without a token breaks the loss (a mean
of 0 / 0) and attention (a softmax without entries). If the manifest shows that there are no such
documents, nothing is read when the dataset is opened. Otherwise their list is read, which is made
once and stored in the cache of plans (runtime/rows/plan_cache.py).

A batch costs one copy of each document, and one conversion of the padded rows from the stored type
to that of the batch. Use packed rows (runtime/rows/packed.py) if padding would be most of a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from dataprep.formats.errors import InputError
from dataprep.formats.read.dataset import Split

from ..checks import flag, one_of, whole_number
from ..padding import Padding, PadTo, Side, Truncate
from ..sample_numbers import PADDING, Indices, Ints, sample_numbers
from ..types import Batch, BatchDataset, Labels, numpy_dtype, reopened
from .document_lengths import kept_documents
from .gather import document_spans, padded_rows
from .packed import padding_id

__all__ = ["DocumentDataset"]


class DocumentDataset(BatchDataset):
    """Map-style dataset of the documents of one split.

    Each batch is a dict of tensors [rows, L] of type `dtype`: `input_ids`, `attention_mask` (1 for
    tokens, 0 in padding), and `labels` unless the option `labels` is None. The dict also has int64
    `lengths` [rows], the number of tokens in each row. L is the length of the longest row in the
    batch, or `max_length`, rounded up to a multiple of `multiple`.

    With ``"shifted"`` labels, label `j` is the token after input `j`, and `IGNORED_LABEL` (-100)
    for the last token. ``"unshifted"`` labels equal the inputs, for models that shift labels
    themselves, and the first label is -100, because nothing predicts the first token. Both kinds
    are -100 in padding, and wherever the loss mask of the dataset says not to train.

    Arguments:
        max_length: the largest number of tokens in a row; None: any number.
        truncate: the end at which longer documents are cut, ``"right"`` or ``"left"``. With
            ``"error"``, a batch with a longer document raises `InputError`.
        pad_to: with ``"longest"``, L is the length of the longest row in the batch. With
            ``"max_length"``, all batches have the same L.
        multiple: L is a multiple of this; 8 or 64 suit tensor cores.
        padding_side: the side that is filled with `pad_id`; ``"left"`` for generation.
        position_ids: adds `position_ids` [rows, L], from 0 at the first token; 0 in padding.
        pad_id: the id in padding. None: the tokenizer's pad, else its eos, else 0.
        min_tokens: documents with fewer tokens (including BOS and EOS) are left out. With 0, all
            documents are used, so sample `i` is document `i`.
        plan_dir: the folder for the list of documents left out; see `stored_plan`.
        sample_mask: adds bool `sample_mask` [rows], False where the index is `PADDING`. A row with
            False is all padding.
        dtype: the type of ids, labels, mask and position ids: torch.int64 or torch.int32.

    The attribute `left_out` is the number of documents with too few tokens. Raises `InputError` if
    all documents have too few.

        >>> documents = DocumentDataset(dataset.split("val"), max_length=512)  # doctest: +SKIP
        >>> documents.batch([0, 7])["attention_mask"].sum(1)            # doctest: +SKIP
        tensor([ 98, 512])
    """

    def __init__(
        self,
        split: Split,
        *,
        max_length: int | None = None,
        truncate: Truncate = "right",
        pad_to: PadTo = "longest",
        multiple: int = 1,
        padding_side: Side = "right",
        labels: Labels | None = "shifted",
        position_ids: bool = False,
        pad_id: int | None = None,
        min_tokens: int = 1,
        plan_dir: str | Path | None = None,
        sample_mask: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.split = split
        self.dtype, self._dtype = dtype, numpy_dtype(dtype, split)
        self.padding = Padding(
            side=padding_side, max_length=max_length, pad_to=pad_to, multiple=multiple,
            truncate=truncate,
        )  # fmt: skip
        self.max_length = self.padding.max_length
        one_of("labels", labels, (None, *get_args(Labels)))
        self.labels = labels
        self.position_ids = flag("position_ids", position_ids)
        self.min_tokens = whole_number("min_tokens", min_tokens)
        self.plan_dir = plan_dir
        self.sample_mask = sample_mask
        self.pad_id = padding_id(split, pad_id)
        self._kept = kept_documents(split, min_tokens, plan_dir)
        if len(self) == 0:
            raise InputError(
                f"none of {split.documents:,} documents has {min_tokens:,} tokens or more",
                where=f"split {split.name}", code="E_TOO_FEW_TOKENS",
                remedy="Use a smaller min_tokens, or build with more data.",
            )  # fmt: skip

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the split's `content_id`, determine tokens and labels."""
        return {
            "kind": "documents", "split": self.split.name, "max_length": self.max_length,
            "truncate": self.padding.truncate, "min_tokens": self.min_tokens,
            "labels": self.labels,
        }  # fmt: skip

    @property
    def left_out(self) -> int:
        """Number of documents with fewer than `min_tokens` tokens."""
        return self.split.documents - len(self)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<dataprep.DocumentDataset {self.split.name}: {len(self):,} documents>"

    def __reduce__(self) -> tuple[object, ...]:
        padding = self.padding
        options = {
            "max_length": self.max_length, "truncate": padding.truncate, "pad_to": padding.pad_to,
            "multiple": padding.multiple, "padding_side": padding.side, "labels": self.labels,
            "position_ids": self.position_ids, "pad_id": self.pad_id,
            "min_tokens": self.min_tokens, "plan_dir": self.plan_dir,
            "sample_mask": self.sample_mask, "dtype": self.dtype,
        }  # fmt: skip
        return reopened, (DocumentDataset, self.split, options)

    def batch(self, indices: Indices) -> Batch:
        """Return the documents at `indices` as one batch; no two tensors share memory.

        Raise `IndexError` for an index outside 0 .. len - 1, and `InputError` for a document over
        `max_length` if `truncate` is ``"error"``.
        """
        samples = sample_numbers(indices, len(self))
        starts, lengths = self._read(samples)
        width = self.padding.width(int(lengths.max(initial=1)))
        rows = padded_rows(
            self.split, starts, lengths, width, pad_id=self.pad_id, left=self.padding.side == "left"
        )
        batch = {
            "input_ids": torch.from_numpy(rows.ids.astype(self._dtype)),
            "attention_mask": torch.from_numpy(rows.real.astype(self._dtype)),
            "lengths": torch.from_numpy(lengths),
        }
        if self.labels is not None:
            batch["labels"] = torch.from_numpy(rows.labels(self.labels, self._dtype))
        if self.position_ids:
            batch["position_ids"] = torch.from_numpy(rows.positions(self._dtype))
        if self.sample_mask:
            batch["sample_mask"] = torch.from_numpy(samples != PADDING)
        return batch

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays: where each of `samples` starts and stops in the split's stream.

        Samples that are `PADDING` have no entry. Raise the same errors as `batch`.
        """
        starts, lengths = self._read(samples[samples != PADDING])
        return starts, starts + lengths

    def covering(self, start: int, stop: int) -> Ints:
        """Return the samples with tokens at positions `start` to `stop` - 1 of the split.

        The result is an increasing int64 array. A token that is cut off because of `max_length`
        does not count. The function costs as much as `spans`, plus a few binary searches.
        """
        if start >= stop:
            return np.empty(0, np.int64)
        first, last = self.split.parts(np.array([start, stop - 1], np.int64), 1).document.tolist()
        samples = self._kept.samples(np.arange(first, last + 1, dtype=np.int64))
        starts, stops = self.spans(samples)
        return samples[(starts < stop) & (stops > np.maximum(starts, start))]

    def documents(self, samples: Ints) -> Ints:
        """Return the document of each of `samples`, as an index in the split."""
        return self._kept.documents(samples)

    def _read(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays: where each sample starts in the split's stream, and its length.

        The length is 0 for `PADDING`. Raise `InputError` for a document over `max_length` if
        `truncate` is ``"error"``.
        """
        starts, lengths = np.zeros_like(samples), np.zeros_like(samples)
        real = np.flatnonzero(samples != PADDING) if self.sample_mask else np.arange(len(samples))
        documents = self._kept.documents(samples[real])
        starts[real], stops = document_spans(self.split, documents)
        lengths[real] = stops - starts[real]
        if self.max_length is None:
            return starts, lengths
        over = np.maximum(lengths - self.max_length, 0)
        if self.padding.truncate == "error" and over.any():
            worst = int(np.argmax(over))
            raise _too_long(int(documents[real == worst][0]), int(lengths[worst]), self.max_length)
        return (starts + over if self.padding.truncate == "left" else starts), lengths - over


def _too_long(document: int, tokens: int, max_length: int) -> InputError:
    return InputError(
        f"has {tokens:,} tokens, more than max_length {max_length:,}",
        where=f"document {document}", code="E_OVERLONG",
        remedy="Use truncate='right' or 'left', or a larger max_length.",
    )  # fmt: skip
