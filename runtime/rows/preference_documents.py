"""The documents of some records: where their answers begin, and what prompts they share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import InputError
from dataprep.formats.read.dataset import Split

from ..types import IGNORED_LABEL, Batch
from .gather import copy_mask
from .padded_rows import padded_rows

__all__ = ["Taken", "answer_too_long", "prompts_of", "shared_prompts", "token_views"]

Counts = npt.NDArray[np.int64]


class Taken(NamedTuple):
    """The documents of some records, one record after the other: int64 arrays by document."""

    row: Counts
    """Of the batch, in which the record stands."""
    slot: Counts
    """The place of the document in its record."""
    starts: Counts
    """Where its tokens start in the stream of the split."""
    lengths: Counts
    heads: Counts
    """By record: where its documents begin in these arrays."""

    def at(self, slot: int) -> Taken:
        """The documents at one place of their records."""
        here = self.slot == slot
        return Taken(
            self.row[here], self.slot[here], self.starts[here], self.lengths[here], self.heads
        )


def prompts_of(split: Split, taken: Taken) -> Counts:
    """How many tokens of each document come before the first one to train on; int64.

    All of them where there is none to train on. Costs a copy of their loss masks.
    """
    mask = np.zeros((len(taken.starts), int(taken.lengths.max(initial=0)) + 1), np.uint8)
    at = np.arange(len(mask), dtype=np.int64) * mask.shape[1]
    copy_mask(split, taken.starts, taken.lengths, mask.reshape(-1), at)
    np.put_along_axis(mask, taken.lengths[:, None], 1, axis=1)
    found: Counts = mask.argmax(axis=1)
    return found


def shared_prompts(split: Split, taken: Taken) -> Counts:
    """The same, as far as all documents of a record agree: by document, equal within a record.

    A tokenizer may join the end of a prompt with the beginning of an answer, and of another answer
    not; what is cut off behind the last token that all have is part of the answers then.
    """
    if not len(taken.starts):
        return taken.starts
    record = np.repeat(np.arange(len(taken.heads)), np.diff([*taken.heads, len(taken.starts)]))
    prompts = prompts_of(split, taken)
    width = int(prompts.max()) + 1
    ids = padded_rows(split, taken.starts, prompts, width, pad_id=0).ids
    differ = ids != ids[taken.heads][record]
    differ[np.arange(len(differ)), prompts] = True
    found: Counts = np.minimum.reduceat(differ.argmax(axis=1), taken.heads)[record]
    return found


def token_views(form: str, batch: Batch) -> dict[str, Batch]:
    """Parts of a batch of preferences that `check_batch` can look at, by the prefix of their names.

    >>> batch = {"chosen_input_ids": torch.ones(1, 2), "rejected_input_ids": torch.ones(1, 3)}
    >>> {prefix: list(view) for prefix, view in token_views("pairs", batch).items()}
    {'chosen_': ['input_ids'], 'rejected_': ['input_ids']}
    """
    if form == "labels":
        return {"": {name: tensor for name, tensor in batch.items() if name != "tag"}}
    if form == "pairs":
        return {prefix: _beginning(prefix, batch) for prefix in ("chosen_", "rejected_")}
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


def _beginning(prefix: str, batch: Batch) -> Batch:
    """The fields of one side of pairs, and what is of both."""
    found = {n.removeprefix(prefix): tensor for n, tensor in batch.items() if n.startswith(prefix)}
    both = {name: tensor for name, tensor in batch.items() if name == "sample_mask"}
    return found | both


def answer_too_long(document: int, tokens: int, prompt: int, max_length: int) -> InputError:
    """The error of a record that is over the limit even without its prompt."""
    return InputError(
        f"has {tokens:,} tokens, {prompt:,} of them before the answer: cutting the prompt does not "
        f"bring its record to {max_length:,}", where=f"document {document}", code="E_OVERLONG",
        remedy="Use a larger seq_len, or build with --max-tokens.",
    )  # fmt: skip
