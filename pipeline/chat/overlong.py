"""Policies for conversations with more tokens than the limit.

Conversations without a token to train on are refused here too, unless `keep_untrained` is set. The
policies work on parts of documents, which are ranges of tokens. A document that is not cut is one
part. No tokens are copied before the parts to store are known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .plan import ChatPlan

__all__ = ["OVERLONG", "UNDECIDED", "Cutter", "Parts", "Refusal"]

OVERLONG = "overlong"
"""Reject reason of a record with too many tokens."""
UNDECIDED = "undecided"
"""Reject reason of such a record where no policy was named; it stops the build."""
_NO_POLICY = ", and nothing says what is to become of it"

Counts = npt.NDArray[np.int64]


@dataclass(kw_only=True, slots=True)
class Parts:
    """Parts of documents to store.

    Part i consists of the tokens from `starts[i]` to `stops[i]`, and belongs to document
    `documents[i]`.
    """

    starts: Counts
    stops: Counts
    documents: Counts

    def whole(self, tokens: int) -> bool:
        """Return whether the parts contain every token of a batch with `tokens` tokens."""
        ends = np.concatenate([[0], self.stops])
        return bool(np.array_equal(self.starts, ends[:-1]) and ends[-1] == tokens)


@dataclass(kw_only=True, slots=True)
class Refusal:
    """Reason why a record is left out of the dataset."""

    reason: str
    detail: str


class Cutter:
    """Cutter that applies the token limit and the over-length policy of the plan `chat`.

    The method `cut` increases two items of `counts`:

    - the name of the policy, such as "split", by the number of documents over the limit
    - "untrained_parts", by the number of parts that are left out because they have no token to
      train on, although other parts of their document are stored
    """

    def __init__(self, chat: ChatPlan, counts: Counter[str]) -> None:
        self._chat = chat
        self._counts = counts

    def cut(
        self, offsets: Counts, mask: npt.NDArray[np.uint8], owners: Counts
    ) -> tuple[Parts, dict[int, Refusal]]:
        """Return the parts to store, and a dict from indexes of refused records to reasons.

        Document i has the tokens from `offsets[i]` to `offsets[i + 1]`, and belongs to record
        `owners[i]`. The array `mask` [tokens] is 1 where a token is trained on. Refused records
        have no parts in the result.
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
            parts = _selected(parts, ~np.isin(owners[parts.documents], list(refused)))
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
            reason, more = (OVERLONG, "") if policy else (UNDECIDED, _NO_POLICY)
            for document in long.tolist():
                detail = f"{int(lengths[document])} tokens, over the limit of {limit}{more}"
                refused.setdefault(int(owners[document]), Refusal(reason=reason, detail=detail))
        return parts

    def _only_trained(
        self, parts: Parts, mask: npt.NDArray[np.uint8], owners: Counts, refused: dict[int, Refusal]
    ) -> Parts:
        """Return the parts that have a token to train on.

        If no part of a document has such a token, the record of this document is added to
        `refused`. A preference record is therefore refused if one of its answers has no token to
        train on.
        """
        edges = np.stack([parts.starts, parts.stops], 1).reshape(-1)
        # `reduceat` needs a token at each edge: the added 0 is for the end of the last part. Its
        # results for empty parts (the token behind them) and between parts are not used.
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
        return _selected(parts, trained)


def _selected(parts: Parts, kept: npt.NDArray[np.bool_]) -> Parts:
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
