"""Functions that find the documents with enough tokens, or check that none has too many.

Nothing is read if the manifest already answers the question. Otherwise the lengths of all documents
are read once, 8 bytes each, and the result is stored (runtime/rows/plan_cache.py).

The result of `kept_documents` is stored as a sorted list with one entry for each document that is
too short. A binary search in this list finds the document of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataprep.formats.errors import InputError
from dataprep.formats.read.dataset import Split

from ..sample_numbers import Ints, check_samples
from .packing_plan import document_lengths
from .plan_cache import Emit, stored_plan

__all__ = ["KeptDocuments", "kept_documents", "longest_document", "require_fit", "too_long"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptDocuments:
    """The documents of a split that are long enough, in stored order, numbered 0 .. `count` - 1.

    The int64 array `before` has an entry for each document that is too short: the number of
    documents before it that are long enough.

        >>> kept = KeptDocuments(count=4, before=np.array([0, 0, 2]))  # 0, 1 and 4 are left out
        >>> kept.documents(np.arange(4)).tolist()
        [2, 3, 5, 6]
    """

    count: int
    before: Ints

    def __len__(self) -> int:
        return self.count

    def documents(self, samples: Ints) -> Ints:
        """Return the document of each of `samples`, as an index in the split.

        Raise `IndexError` for a sample outside 0 .. count - 1.
        """
        check_samples(samples, self.count)
        return samples + self.before.searchsorted(samples, "right")

    def samples(self, documents: Ints) -> Ints:
        """Return the samples of those `documents` that are long enough, in order.

        The indices in `documents` must increase. Documents that are too short have no entry.

        >>> KeptDocuments(count=4, before=np.array([0, 0, 2])).samples(np.arange(7)).tolist()
        [0, 1, 2, 3]
        """
        # Document before[k] + k is left out, for every k: find how many such precede each document.
        low, high = np.zeros_like(documents), np.full_like(documents, len(self.before))
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) // 2
            earlier = self.before[middle] + middle < documents[open_]
            low[open_[earlier]] = middle[earlier] + 1
            high[open_[~earlier]] = middle[~earlier]
        here = np.flatnonzero(low < len(self.before))
        out = here[self.before[low[here]] + low[here] == documents[here]]
        return np.delete(documents - low, out)


def kept_documents(
    split: Split, min_tokens: int, plan_dir: str | Path | None = None
) -> KeptDocuments:
    """Return the documents of `split` that have at least `min_tokens` tokens.

    Nothing is read if the manifest shows that all documents have enough. Otherwise the first call
    reads the lengths of all documents, and later calls read a kilobyte.
    """
    if min_tokens <= _fewest_tokens(split):
        return KeptDocuments(count=split.documents, before=np.empty(0, np.int64))
    definition = {
        "kind": "documents", "content_id": split.content_id, "split": split.name,
        "min_tokens": min_tokens, "version": 1,
    }  # fmt: skip

    def make(emit: Emit) -> dict[str, int]:
        kept = 0
        for lengths in document_lengths(split):
            enough = lengths >= min_tokens
            before = kept + np.cumsum(enough)
            emit({"before": before[~enough]})
            kept += int(enough.sum())
        return {"documents": split.documents, "kept": kept}

    plan = stored_plan(definition, {"before": "<i8"}, make, plan_dir, io=split.dataset.io)
    return KeptDocuments(count=plan.report["kept"], before=plan.arrays["before"])


def _fewest_tokens(split: Split) -> int:
    """Return a lower bound of the number of tokens in a document, known from the manifest."""
    tokenizer = split.dataset.manifest.tokenizer
    return tokenizer.add_bos + tokenizer.add_eos + (split.entry.zero_token_documents == 0)


def longest_document(split: Split, plan_dir: str | Path | None = None) -> tuple[int, int]:
    """Return the index of the longest document of `split`, and its length in tokens.

    Return (-1, 0) if no document has tokens.

    >>> longest_document(dataset.split("train"))                     # doctest: +SKIP
    (5121, 3077)
    """
    definition = {
        "kind": "longest", "content_id": split.content_id, "split": split.name, "version": 1,
    }  # fmt: skip

    def make(_: Emit) -> dict[str, int]:
        base, document, tokens = 0, -1, 0
        for lengths in document_lengths(split):
            if len(lengths) and int(lengths.max()) > tokens:
                document, tokens = base + int(lengths.argmax()), int(lengths.max())
            base += len(lengths)
        return {"document": document, "tokens": tokens}

    report = stored_plan(definition, {}, make, plan_dir, io=split.dataset.io).report
    return report["document"], report["tokens"]


def require_fit(split: Split, max_length: int, plan_dir: str | Path | None = None) -> None:
    """Raise an `InputError` if a document has more than `max_length` tokens.

    The error names the longest document.
    """
    chat = split.dataset.chat
    if chat is not None and chat.max_tokens is not None and chat.max_tokens <= max_length:
        return
    document, tokens = longest_document(split, plan_dir)
    if tokens > max_length:
        raise too_long(document, tokens, max_length)


def too_long(document: int, tokens: int, max_length: int) -> InputError:
    """Return the error for the document with index `document` and more than `max_length` tokens."""
    return InputError(
        f"has {tokens:,} tokens, more than seq_len {max_length:,}", where=f"document {document}",
        code="E_OVERLONG",
        remedy=f"Use seq_len={tokens}, another overlong, or build with --max-tokens.",
    )  # fmt: skip
