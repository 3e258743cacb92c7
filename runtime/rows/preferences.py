"""Preferences as batches: pairs (DPO), single judgements (KTO), groups of answers (GRPO).

A sample is a record with all its documents. `dataprep.runtime.collate.preference` makes the same
batches from records that are Python lists. This module makes them from the stored arrays, copying
each document once, and creating no Python object per token; this takes half the time. For groups,
the loss masks are also read.

Opening a split reads nothing, unless documents over `max_length` are an error and the build did not
enforce that limit. In that case, the lengths of all documents are read once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from dataprep.formats.errors import InputError, UsageError, require
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import distinct

from ..choices import PreferenceOverlong
from ..padding import Padding, PadTo
from ..sample_numbers import PADDING, Indices, Ints, check_samples, sample_numbers
from ..types import (
    IGNORED_LABEL,
    Batch,
    BatchDataset,
    Labels,
    empty_split,
    numpy_dtype,
    reopened,
)
from .document_lengths import require_fit, too_long
from .gather import copy_mask, document_spans, padded_rows
from .packed import padding_id

__all__ = ["PreferenceDataset"]


class PreferenceDataset(BatchDataset):
    """Map-style dataset of the records of one split of preferences.

    A batch is a dict of tensors, of type `dtype` unless another type is named. Its fields depend on
    the form of the records:

    - **pairs**: `chosen_input_ids`, `chosen_attention_mask` and `chosen_labels` [rows, width] of
      the chosen conversation (prompt and answer), and the same three fields of the rejected one,
      with the prefix `rejected_`.
    - **labels**: `input_ids`, `attention_mask` and `labels` [rows, width], and bool `tag` [rows],
      True for a good answer.
    - **groups**: `input_ids` and `attention_mask` [rows, width] of the prompts; `responses`,
      `responses_attention_mask` and `responses_loss_mask` [rows, group, width] of the answers; and
      float32 `scores` [rows, group], NaN for a record without scores. `group` is the largest number
      of answers that a record of the batch has. For a record with fewer, the missing answers are
      all padding, with score 0.

    Labels are as in `DocumentDataset`: ``"shifted"`` or ``"unshifted"``, and -100 wherever the loss
    mask says not to train. Only answers are trained on. Groups have `responses_loss_mask` in place
    of labels. The prompt of a group is the longest beginning that is the same in all its
    conversations and has no token to train on. The rest of each conversation is an answer.

    Arguments:
        max_length: the largest number of tokens of a conversation, prompt and answer together;
            None: any number.
        overlong: with ``"error"``, a split with longer conversations raises `InputError`. With
            ``"truncate-left"``, prompts of longer conversations lose tokens at the beginning,
            equally many in all conversations of a record. If that is not enough, the batch raises
            `InputError`.
        pad_to: with ``"longest"``, rows are as wide as the longest row of the batch. With
            ``"max_length"``, they always have that width.
        multiple: widths are multiples of this.
        equal_widths: for pairs, both sides get the width of the wider side, so that a loss function
            can join them in one tensor.
        pad_id: the id in padding. None: the tokenizer's pad, else its eos, else 0.
        plan_dir: the folder in which the length of the longest document is stored; see
            `stored_plan`.
        sample_mask: adds bool `sample_mask` [rows], False where the index is `PADDING`. A row with
            False is all padding.
        dtype: the type of ids, labels and masks: torch.int64 or torch.int32.

    Raises `UsageError` for a split without preferences, and `InputError` for a split without
    records.

        >>> pairs = PreferenceDataset(dataset.split("train"), max_length=2048)  # doctest: +SKIP
        >>> pairs.batch([0, 7])["chosen_input_ids"].shape                # doctest: +SKIP
        torch.Size([2, 731])
    """

    def __init__(
        self,
        split: Split,
        *,
        max_length: int | None = None,
        overlong: PreferenceOverlong = "error",
        labels: Labels | None = "shifted",
        pad_to: PadTo = "longest",
        multiple: int = 1,
        equal_widths: bool = False,
        pad_id: int | None = None,
        plan_dir: str | Path | None = None,
        sample_mask: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.split = split
        self.dtype, self._dtype = dtype, numpy_dtype(dtype, split)
        self.form = str(split.form)
        self.overlong, self.labels = overlong, labels
        self.padding = Padding(max_length=max_length, pad_to=pad_to, multiple=multiple)
        self.max_length, self.equal_widths = self.padding.max_length, equal_widths
        self.plan_dir, self.sample_mask = plan_dir, sample_mask
        self._check()
        self.pad_id = padding_id(split, pad_id)
        self._groups = split.groups
        if max_length is not None and overlong == "error":
            require_fit(split, max_length, plan_dir)

    def _check(self) -> None:
        for name, value, known in (
            ("overlong", self.overlong, get_args(PreferenceOverlong)),
            ("labels", self.labels, (None, *get_args(Labels))),
        ):
            require(value in known, name, f"must be one of {known}, got {value!r}")
        if not self.split.documents:
            raise empty_split(self.split)
        if not self.split.has_groups:
            raise UsageError(
                "has no preferences", where=f"split {self.split.name}", code="E_NO_GROUPS",
                remedy="Use rows='packed' or 'documents'.",
            )  # fmt: skip
        if self.form == "groups":
            unshifted = self.labels == "unshifted"
            require(not unshifted, "labels", "groups have responses_loss_mask, and no labels")
        require(not self.equal_widths or self.form == "pairs", "equal_widths", "is for pairs")

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the split's `content_id`, determine tokens and labels."""
        return {
            "kind": self.form, "split": self.split.name, "max_length": self.max_length,
            "overlong": self.overlong, "labels": self.labels,
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"<dataprep.PreferenceDataset {self.split.name}: {len(self):,} {self.form}>"

    def __reduce__(self) -> tuple[object, ...]:
        options = {
            "max_length": self.max_length, "overlong": self.overlong, "labels": self.labels,
            "pad_to": self.padding.pad_to, "multiple": self.padding.multiple,
            "equal_widths": self.equal_widths, "pad_id": self.pad_id, "plan_dir": self.plan_dir,
            "sample_mask": self.sample_mask, "dtype": self.dtype,
        }  # fmt: skip
        return reopened, (PreferenceDataset, self.split, options)

    def batch(self, indices: Indices) -> Batch:
        """Return the records at `indices` as one batch; no two tensors share memory.

        Raise `IndexError` for an index outside 0 .. len - 1, and `InputError` for a conversation
        over `max_length` that cannot be cut.
        """
        samples = sample_numbers(indices, len(self))
        taken, documents = self._read(samples)
        rows = len(samples)
        if self.form == "pairs":
            sides = taken.at(0), taken.at(1)
            least = int(taken.lengths.max(initial=1)) if self.equal_widths else 1
            batch = {
                name: tensor
                for prefix, side in zip(("chosen_", "rejected_"), sides, strict=True)
                for name, tensor in self._rows(side, rows, prefix, least).items()
            }
        elif self.form == "labels":
            batch = self._rows(taken, rows)
            tag = np.zeros(rows, np.bool_)
            tag[taken.row] = self._groups.scores(documents) == 1
            batch["tag"] = torch.from_numpy(tag)
        else:
            batch = self._group_batch(taken, rows, documents)
        if self.sample_mask:
            batch["sample_mask"] = torch.from_numpy(samples != PADDING)
        return batch

    def _rows(self, taken: _Documents, rows: int, prefix: str = "", least: int = 1) -> Batch:
        """Return the ids, attention mask and labels of `rows` rows with at most one document each.

        The rows have at least `least` columns. The names of the tensors begin with `prefix`. Rows
        without a document are padding.
        """
        starts, lengths = np.zeros((2, rows), np.int64)
        starts[taken.row], lengths[taken.row] = taken.starts, taken.lengths
        width = self.padding.width(max(int(lengths.max(initial=1)), least))
        found = padded_rows(self.split, starts, lengths, width, pad_id=self.pad_id)
        batch = {
            f"{prefix}input_ids": torch.from_numpy(found.ids.astype(self._dtype)),
            f"{prefix}attention_mask": torch.from_numpy(found.real.astype(self._dtype)),
        }
        if self.labels is not None:
            batch[f"{prefix}labels"] = torch.from_numpy(found.labels(self.labels, self._dtype))
        return batch

    def _group_batch(self, taken: _Documents, rows: int, documents: Ints) -> Batch:
        """Return the batch of groups: prompts, answers and scores (see `PreferenceDataset`).

        The array `documents` holds, for each document in `taken`, its index in the split.
        """
        group = int(taken.slot.max(initial=0)) + 1
        at = taken.row * group + taken.slot
        prompts = _shared_prompts(self.split, taken)
        starts, lengths = np.zeros((2, rows), np.int64)
        owners = taken.row[taken.heads]
        starts[owners], lengths[owners] = taken.starts[taken.heads], prompts[taken.heads]
        width = self.padding.width(int(lengths.max(initial=1)))
        prompt = padded_rows(self.split, starts, lengths, width, pad_id=self.pad_id)
        starts, lengths = np.zeros((2, rows * group), np.int64)
        starts[at], lengths[at] = taken.starts + prompts, taken.lengths - prompts
        width = self.padding.width(int(lengths.max(initial=1)))
        answers = padded_rows(self.split, starts, lengths, width, pad_id=self.pad_id)
        scores = np.zeros(rows * group, np.float32)
        scores[at] = self._groups.scores(documents)
        wide = {
            "input_ids": prompt.ids, "attention_mask": prompt.real,
            "responses": answers.ids.reshape(rows, group, width),
            "responses_attention_mask": answers.real.reshape(rows, group, width),
            "responses_loss_mask": answers.trained().reshape(rows, group, width),
        }  # fmt: skip
        batch = {name: torch.from_numpy(array.astype(self._dtype)) for name, array in wide.items()}
        batch["scores"] = torch.from_numpy(scores.reshape(rows, group))
        return batch

    def _read(self, samples: Ints) -> tuple[_Documents, Ints]:
        """Return the documents of `samples`, and the index of each document in the split.

        Prompts are cut if a document is too long and `overlong` allows it. Raise `InputError` if a
        document is still too long.
        """
        real = np.flatnonzero(samples != PADDING) if self.sample_mask else np.arange(len(samples))
        check_samples(samples[real], len(self))
        first, stop = self._groups.documents(samples[real])
        which, documents, heads = ragged(first, stop)
        starts, stops = document_spans(self.split, documents)
        taken = _Documents(real[which], documents - first[which], starts, stops - starts, heads)
        over = taken.lengths - (self.max_length or np.iinfo(np.int64).max)
        if not len(over) or int(over.max()) <= 0:
            return taken, documents
        if self.overlong == "error":
            worst = int(over.argmax())
            raise too_long(int(documents[worst]), int(taken.lengths[worst]), self.max_length or 0)
        cut = np.maximum.reduceat(np.maximum(over, 0), heads)[which]
        prompts = _prompt_lengths(self.split, taken)
        if (cut >= np.maximum(prompts, 1)).any():
            worst = int((cut - prompts).argmax())
            raise _answer_too_long(int(documents[worst]), int(taken.lengths[worst]),
                                   int(prompts[worst]), self.max_length or 0)  # fmt: skip
        return taken._replace(starts=starts + cut, lengths=taken.lengths - cut), documents

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two arrays: where the documents of `samples` start and stop in the split's stream.

        Samples that are `PADDING` have no documents. Raise the same errors as `batch`.
        """
        taken, _ = self._read(samples[samples != PADDING])
        return taken.starts, taken.starts + taken.lengths

    def covering(self, start: int, stop: int) -> Ints:
        """Return the samples with tokens at positions `start` to `stop` - 1 of the split.

        The result is an increasing int64 array. Tokens that are cut off do not count. The function
        costs as much as `spans`, plus a few binary searches.
        """
        if start >= stop:
            return np.empty(0, np.int64)
        ends = self.split.parts(np.array([start, stop - 1], np.int64), 1).document
        first, last = self._groups.holding(ends).tolist()
        taken, _ = self._read(np.arange(first, last + 1, dtype=np.int64))
        touched = (taken.starts < stop) & (taken.starts + taken.lengths > max(start, 0))
        found: Ints = first + distinct(taken.row[touched])
        return found

    def lengths_of(self, samples: Ints) -> Ints:
        """Return the length in tokens of the longest document of each of `samples`: int64 [n]."""
        taken, _ = self._read(samples)
        found = np.zeros(len(samples), np.int64)
        np.maximum.at(found, taken.row, taken.lengths)
        return found

    def token_views(self, batch: Batch) -> dict[str, Batch]:
        """Return those parts of `batch` that are batches of token rows, such as the chosen side.

        The key of a part is the prefix that its field names have in `batch`. The function
        `check_batch` checks each part.
        """
        return _token_views(self.form, batch)


class _Documents(NamedTuple):
    """Documents of some records, in order of the records: int64 arrays.

    All arrays but `heads` have one entry for each document.
    """

    row: Ints
    """Row of the batch that has the record."""
    slot: Ints
    """Number of the document in its record."""
    starts: Ints
    """First token in the stream of the split."""
    lengths: Ints
    heads: Ints
    """By record: the index of its first document in these arrays."""

    def at(self, slot: int) -> _Documents:
        """Return the documents with index `slot` in their record, such as all rejected answers.

        The array `heads` of the result is not adapted to the selection, so do not use it.
        """
        here = self.slot == slot
        return _Documents(
            self.row[here], self.slot[here], self.starts[here], self.lengths[here], self.heads
        )


def _prompt_lengths(split: Split, taken: _Documents) -> Ints:
    """Return, for each document, the number of its tokens before the first token to train on.

    For a document that has no token to train on, this is the number of all its tokens. The function
    copies the loss masks of all documents.
    """
    mask = np.zeros((len(taken.starts), int(taken.lengths.max(initial=0)) + 1), np.uint8)
    at = np.arange(len(mask), dtype=np.int64) * mask.shape[1]
    copy_mask(split, taken.starts, taken.lengths, mask.reshape(-1), at)
    np.put_along_axis(mask, taken.lengths[:, None], 1, axis=1)
    found: Ints = mask.argmax(axis=1)
    return found


def _shared_prompts(split: Split, taken: _Documents) -> Ints:
    """Return, for each document, the length of the prompt that all documents of its record share.

    A tokenizer may merge the end of the prompt with the beginning of an answer, so that the last
    tokens of the prompt differ between documents. Those tokens then belong to the answers.
    """
    if not len(taken.starts):
        return taken.starts
    record = np.repeat(np.arange(len(taken.heads)), np.diff([*taken.heads, len(taken.starts)]))
    prompts = _prompt_lengths(split, taken)
    width = int(prompts.max()) + 1
    ids = padded_rows(split, taken.starts, prompts, width, pad_id=0).ids
    differ = ids != ids[taken.heads][record]
    differ[np.arange(len(differ)), prompts] = True
    found: Ints = np.minimum.reduceat(differ.argmax(axis=1), taken.heads)[record]
    return found


def _token_views(form: str, batch: Batch) -> dict[str, Batch]:
    """Return those parts of `batch` that are batches of token rows, such as the chosen side.

    The argument `form` is the form of the records: "pairs", "labels" or "groups". The key of a part
    is the prefix that its field names have in `batch`.

    >>> batch = {"chosen_input_ids": torch.ones(1, 2), "rejected_input_ids": torch.ones(1, 3)}
    >>> {prefix: list(view) for prefix, view in _token_views("pairs", batch).items()}
    {'chosen_': ['input_ids'], 'rejected_': ['input_ids']}
    """
    if form == "labels":
        return {"": {name: tensor for name, tensor in batch.items() if name != "tag"}}
    if form == "pairs":
        return {prefix: _side(prefix, batch) for prefix in ("chosen_", "rejected_")}
    own = ("input_ids", "attention_mask", "sample_mask")
    prompt = {name: tensor for name, tensor in batch.items() if name in own}
    ids, mask, train = (
        batch[f"responses{name}"].flatten(0, 1) for name in ("", "_attention_mask", "_loss_mask")
    )
    labels = torch.where(train != 0, ids, IGNORED_LABEL)
    answers = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if "sample_mask" in batch:
        group = batch["responses"].shape[1]
        answers["sample_mask"] = batch["sample_mask"].repeat_interleave(group)
    return {"": prompt, "responses_": answers}


def _side(prefix: str, batch: Batch) -> Batch:
    """Return the fields of one side of pairs, with `prefix` removed from their names.

    If the batch has the field `sample_mask`, which belongs to both sides, it is also included.
    """
    found = {n.removeprefix(prefix): tensor for n, tensor in batch.items() if n.startswith(prefix)}
    both = {name: tensor for name, tensor in batch.items() if name == "sample_mask"}
    return found | both


def _answer_too_long(document: int, tokens: int, prompt: int, max_length: int) -> InputError:
    """Return the error for a document whose record is too long even with its prompt cut."""
    return InputError(
        f"has {tokens:,} tokens, {prompt:,} of them before the answer: cutting the prompt does not "
        f"bring its record to {max_length:,}", where=f"document {document}", code="E_OVERLONG",
        remedy="Use a larger seq_len, or build with --max-tokens.",
    )  # fmt: skip
