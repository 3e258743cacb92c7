"""Which documents of a split have tokens enough to be served, by number and without a list of them.

Only the documents left out are listed, in a stored plan; a sample's document is found by bisection
in that. Where the manifest shows that nothing is left out there is no list and nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep.formats.read.dataset import Split

from ..types import check_samples
from .packing_plan import document_lengths
from .plan_cache import Emit, stored_plan

__all__ = ["KeptDocuments", "kept_documents"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptDocuments:
    """`count` documents in stored order, numbered anew.

    `before` is int64 of one entry a document left out: how many that are kept come before it.

        >>> kept = KeptDocuments(count=4, before=np.array([0, 0, 2]))  # 0, 1 and 4 are left out
        >>> kept.documents(np.arange(4)).tolist()
        [2, 3, 5, 6]
    """

    count: int
    before: Counts

    def __len__(self) -> int:
        return self.count

    def documents(self, samples: Counts) -> Counts:
        """The document of each sample; raises `IndexError` outside 0 .. count - 1."""
        check_samples(samples, self.count)
        return samples + self.before.searchsorted(samples, "right")

    def samples(self, documents: Counts) -> Counts:
        """The samples that some of `documents` (increasing) are; those left out are passed over.

        >>> KeptDocuments(count=4, before=np.array([0, 0, 2])).samples(np.arange(7)).tolist()
        [0, 1, 2, 3]
        """
        # Left out is, for every k, document before[k] + k: of these, how many come before each?
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
    """Those with `min_tokens` tokens or more.

    The first time it reads the lengths of all documents, unless the manifest tells that all have
    enough; later a kilobyte.
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
    """A number of tokens that every document has, as far as the manifest tells."""
    tokenizer = split.dataset.manifest.tokenizer
    return tokenizer.add_bos + tokenizer.add_eos + (split.entry.zero_token_documents == 0)
