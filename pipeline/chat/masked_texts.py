"""Rendered conversations as UTF-8, with what is to be trained on: columns, not an object for each.

A batch has thousands, and an object for each would cost as much as its mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Marked", "MarkedTexts", "Spans", "byte_spans"]

Spans = list[tuple[int, int]]
_FIRST, _SECOND = itemgetter(0), itemgetter(1)


class Marked(NamedTuple):
    """One of them: byte spans to train on, and of text to be left alone."""

    text: bytes
    spans: Spans
    literal: Spans


class MarkedTexts:
    """Texts in order, each with its spans.

    >>> found = MarkedTexts()
    >>> found.add("caf\u00e9!", [(3, 4)], [])
    >>> found[0]
    Marked(text=b'caf\\xc3\\xa9!', spans=[(3, 5)], literal=[])
    """

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.flat: list[int] = []
        """Starts and stops of spans in bytes of their text, of all texts one after the other."""
        self.bounds = [0]
        """Where those of each text begin, and the last ones end."""
        self.literal: dict[int, Spans] = {}
        """By the number of the text, where there are any."""

    def add(self, text: str, spans: Spans, literal: Spans) -> None:
        """One more, with spans of its characters."""
        data = text.encode()
        if len(data) != len(text):
            spans, literal = byte_spans(text, spans), byte_spans(text, literal)
        if literal:
            self.literal[len(self.texts)] = literal
        self.texts.append(data)
        self.flat += chain.from_iterable(spans)
        self.bounds.append(len(self.flat))

    def put(self, filled: Sequence[tuple[bytes, list[int]]]) -> None:
        """More of them, in UTF-8: each with starts and stops of spans of its bytes."""
        edges = list(map(_SECOND, filled))
        self.bounds += accumulate(map(len, edges), initial=self.bounds.pop())
        self.texts += map(_FIRST, filled)
        self.flat += chain.from_iterable(edges)

    def extend(self, others: MarkedTexts) -> None:
        """All of `others`, behind these."""
        texts, edges = len(self.texts), len(self.flat)
        self.literal |= {texts + number: found for number, found in others.literal.items()}
        self.texts += others.texts
        self.flat += others.flat
        self.bounds += [edges + bound for bound in others.bounds[1:]]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> Marked:
        flat = self.flat[self.bounds[number] : self.bounds[number + 1]]
        spans = list(zip(flat[::2], flat[1::2], strict=True))
        return Marked(self.texts[number], spans, self.literal.get(number, []))

    def edges(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Starts and stops of the spans of texts `first` to `stop`, int64 [spans, 2].

        In bytes of these texts, one after the other.
        """
        bounds = np.array(self.bounds[first : stop + 1], np.int64)
        flat = np.array(self.flat[bounds[0] : bounds[-1]], np.int64)
        sizes = np.fromiter(map(len, self.texts[first:stop]), np.int64, stop - first)
        return (flat + np.repeat(np.cumsum(sizes) - sizes, np.diff(bounds))).reshape(-1, 2)


def byte_spans(text: str, spans: Spans) -> Spans:
    """Spans of characters of `text` as spans of the bytes of its UTF-8.

    >>> byte_spans("\u00e9a", [(0, 1), (1, 2)])
    [(0, 2), (2, 3)]
    """
    if text.isascii():
        return spans
    found, at, done = [], 0, 0
    for start, stop in spans:
        first = at + len(text[done:start].encode())
        at, done = first + len(text[start:stop].encode()), stop
        found.append((first, at))
    return found
