"""Rendered conversations in UTF-8 with the spans to train on, stored as columns.

Columns are used because a batch has thousands of texts: creating an object for each text would take
as long as computing its mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Filled", "Marked", "MarkedTexts", "Spans", "byte_edges", "marked"]

Spans = Sequence[tuple[int, int]]
_TEXT, _EDGES = itemgetter(0), itemgetter(1)


class Marked(NamedTuple):
    """A text in UTF-8 with the spans that are trained on.

    The list `edges` is [start, stop, start, stop, ...] in bytes. The spans are in order and do not
    overlap. The sequence `literal` holds spans in the same form: each is a special token that the
    record contains as plain text, and that must be encoded as text.
    """

    text: bytes
    edges: Sequence[int]
    literal: Sequence[int] = ()


Filled = tuple[bytes, Sequence[int], Sequence[int]]
"""The fields of a `Marked` as a plain tuple, which is made in half the time."""


class MarkedTexts:
    """Rendered texts in order, each with the spans that `Marked` describes.

    >>> texts = MarkedTexts()
    >>> texts.extend([marked("caf\u00e9!", [(3, 4)])])
    >>> texts[0]
    Marked(text=b'caf\\xc3\\xa9!', edges=[3, 5], literal=())
    """

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.flat: list[int] = []
        """The edges of all texts, one after the other."""
        self.bounds = [0]
        """Position in `flat` at which the edges of each text begin, and the end of the last."""
        self.literal: dict[int, Sequence[int]] = {}
        """Literal spans by number of the text, for texts that have some."""

    def extend(self, texts: Iterable[Filled]) -> None:
        """Append `texts`."""
        added = list(texts)
        edges = list(map(_EDGES, added))
        first = len(self.texts)
        self.bounds += accumulate(map(len, edges), initial=self.bounds.pop())
        self.texts += map(_TEXT, added)
        self.flat += chain.from_iterable(edges)
        self.literal |= {first + at: literal for at, (_, _, literal) in enumerate(added) if literal}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> Marked:
        edges = self.flat[self.bounds[number] : self.bounds[number + 1]]
        return Marked(self.texts[number], edges, self.literal.get(number, ()))

    def __iter__(self) -> Iterator[Marked]:
        return map(self.__getitem__, range(len(self)))

    def edges(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the spans to train on in the texts `first` to `stop` - 1, as int64 [spans, 2].

        Each row is the start and the stop of a span, in bytes of the concatenation of these texts.
        """
        bounds = np.array(self.bounds[first : stop + 1], np.int64)
        flat = np.array(self.flat[bounds[0] : bounds[-1]], np.int64)
        sizes = np.fromiter(map(len, self.texts[first:stop]), np.int64, stop - first)
        return (flat + np.repeat(np.cumsum(sizes) - sizes, np.diff(bounds))).reshape(-1, 2)


def marked(text: str, spans: Spans, literal: Spans = ()) -> Marked:
    """Return `text` in UTF-8, with character spans converted to byte spans.

    The argument `spans` holds the spans to train on. The argument `literal` holds the spans of
    special tokens that must stay text.
    """
    return Marked(text.encode(), byte_edges(text, spans), byte_edges(text, literal) or ())


def byte_edges(text: str, spans: Spans) -> list[int]:
    """Convert `spans` of characters to positions in the UTF-8 bytes of `text`.

    The result is [start, stop, start, stop, ...].

    >>> byte_edges("éa", [(0, 1), (1, 2)])
    [0, 2, 2, 3]
    """
    edges = list(chain.from_iterable(spans))
    if text.isascii():
        return edges
    pieces = (text[start:stop] for start, stop in pairwise([0, *edges]))
    return list(accumulate(len(piece.encode()) for piece in pieces))
