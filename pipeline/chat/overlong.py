"""Policies for conversations with too many tokens, and for those with none to train on.

They work on parts of documents: a document is one part until it is cut. No token is copied before
it is known which parts stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .plan import ChatPlan

__all__ = ["OVERLONG", "UNDECIDED", "Cutter", "Parts", "Refusal"]

OVERLONG = "overlong"
"""Reason of a record that is left out because it has too many tokens."""
UNDECIDED = "undecided"
"""Reason of a build that stops at such a record because no policy was named."""
_ASK = ", and nothing says what is to become of it"

Counts = npt.NDArray[np.int64]


@dataclass(kw_only=True, slots=True)
class Parts:
    """Tokens that stay: from `starts` to `stops`, with the document of each part."""

    starts: Counts
    stops: Counts
    documents: Counts

    def whole(self, tokens: int) -> bool:
        """Return whether all of `tokens` tokens stay."""
        ends = np.concatenate([[0], self.stops])
        return bool(np.array_equal(self.starts, ends[:-1]) and ends[-1] == tokens)


@dataclass(kw_only=True, slots=True)
class Refusal:
    """Reason for leaving out the record of a document."""

    reason: str
    detail: str


class Cutter:
    """The limit and the policy of `chat`, applied to batches of documents.

    `counts` receives the number of conversations that each measure affected.
    """

    def __init__(self, chat: ChatPlan, counts: Counter[str]) -> None:
        self._chat = chat
        self._counts = counts

    def cut(
        self, offsets: Counts, mask: npt.NDArray[np.uint8], owners: Counts
    ) -> tuple[Parts, dict[int, Refusal]]:
        """Return the parts of documents to keep, and the records (`owners`) to leave out.

        `offsets` [documents + 1] bound the tokens of each document, `owners` [documents] holds the
        record of each.
        """
        parts = Parts(
            starts=offsets[:-1].copy(), stops=offsets[1:].copy(), documents=np.arange(len(owners))
        )
        refused: dict[int, Refusal] = {}
        limit = self._chat.max_tokens
        if limit is not None and len(owners) and int(np.diff(offsets).max()) > limit:
            parts = self._shorten(parts, owners, limit, refused)
        if not self._chat.keep_untrained:
            parts = self._only_trained(parts, mask, owners, refused)
        if refused:
            parts = _those(parts, ~np.isin(owners[parts.documents], list(refused)))
        return parts, refused

    def _shorten(
        self, parts: Parts, owners: Counts, limit: int, refused: dict[int, Refusal]
    ) -> Parts:
        policy = self._chat.overlong
        lengths = parts.stops - parts.starts
        long = np.flatnonzero(lengths > limit)
        if policy is not None:
            self._counts[policy] += len(long)
        if policy == "truncate-left":
            parts.starts[long] = parts.stops[long] - limit
        elif policy == "truncate-right":
            parts.stops[long] = parts.starts[long] + limit
        elif policy == "split":
            return _split(parts, lengths, limit)
        else:
            reason, more = (OVERLONG, "") if policy else (UNDECIDED, _ASK)
            for document in long.tolist():
                detail = f"{int(lengths[document])} tokens, over the limit of {limit}{more}"
                refused.setdefault(int(owners[document]), Refusal(reason=reason, detail=detail))
        return parts

    def _only_trained(
        self, parts: Parts, mask: npt.NDArray[np.uint8], owners: Counts, refused: dict[int, Refusal]
    ) -> Parts:
        """Return the parts with something to train on; refuse a record with none left.

        A record of preferences that has lost a single answer is refused, too.
        """
        edges = np.stack([parts.starts, parts.stops], 1).reshape(-1)
        # The added token is for parts that end with the last one; results of reduceat for empty
        # parts (the token behind) and between parts are not used.
        padded = np.append(mask, np.uint8(0))
        most = np.maximum.reduceat(padded, edges)[::2] if len(edges) else edges
        trained = (most > 0) & (parts.stops > parts.starts)
        if trained.all():
            return parts
        bare = parts.documents[~trained]
        others = parts.documents[trained] if self._chat.form == "chat" else bare[:0]
        spare = np.isin(bare, others)
        if spare.any():
            self._counts["untrained_parts"] += int(spare.sum())
        for document in bare[~spare].tolist():
            refused.setdefault(int(owners[document]), _UNTRAINED)
        return _those(parts, trained)


def _those(parts: Parts, kept: npt.NDArray[np.bool_]) -> Parts:
    return Parts(
        starts=parts.starts[kept], stops=parts.stops[kept], documents=parts.documents[kept]
    )


def _split(parts: Parts, lengths: Counts, limit: int) -> Parts:
    pieces = np.maximum(1, -(-lengths // limit))
    documents = np.repeat(parts.documents, pieces)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = parts.starts[documents] + number * limit
    stops = np.minimum(starts + limit, parts.stops[documents])
    return Parts(starts=starts, stops=stops, documents=documents)


_UNTRAINED = Refusal(reason="untrained", detail="no token is left to train on")
