"""Special tokens that a record contains as plain text, and their spans in the rendering.

Special tokens that the template writes are encoded as special tokens. Special tokens in the text of
a record must stay text. Otherwise, a record could end its own turn. To locate them, the record is
rendered a second time with a noncharacter before and after each special token in it. Apart from
these marks, both renderings must be the same. If they are not, the record is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

__all__ = ["Spelling", "texts_in"]

Span = tuple[int, int]


class Spelling:
    """Pattern that matches special tokens in plain text. Longer tokens are tried first."""

    def __init__(self, special_tokens: Sequence[str]) -> None:
        longest = sorted(filter(None, set(special_tokens)), key=len, reverse=True)
        self._firsts = sorted({token[0] for token in longest})
        self._are_escaped = any(msgspec.json.encode(token) != b'"%b"' % token.encode()
                                for token in longest)  # fmt: skip
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")

    def spans(self, text: str, start: int = 0) -> list[Span]:
        """Return the spans of special tokens in `text`, with `start` added to each position."""
        if not any(first in text for first in self._firsts):
            return []
        found = self._pattern.finditer(text)
        return [(start + match.start(), start + match.end()) for match in found]

    def counts(self, texts: Iterable[str]) -> Counter[str] | None:
        """Return how often each special token occurs in `texts`, or None if none does.

        This takes 50 ns per text.
        """
        counts: Counter[str] | None = None
        for text in texts:
            for first in self._firsts:
                if first in text and (found := self._pattern.findall(text)):
                    counts = counts or Counter()
                    counts.update(found)
                    break
        return counts

    def texts(self, values: Sequence[Any]) -> list[str]:
        """Return each text in `values`, and all texts of objects that may contain special tokens.

        To find out whether an object may contain one, it is searched as one JSON text. This takes a
        tenth of the time of visiting all its texts.
        """
        texts: list[str] = []
        for value in values:
            if type(value) is str:
                texts.append(value)
            elif self._may_be_in(value):
                texts += texts_in(value)
        return texts

    def _may_be_in(self, value: Any) -> bool:
        if self._are_escaped:
            return True
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError):  # a number of 20 digits, say
            return True
        return self._pattern.search(text) is not None

    def marked(self, value: Any, marks: str) -> Any:
        """Return a copy of `value` with marks around each special token in its texts.

        The text `marks` consists of the mark before a token and the mark after it.
        """
        if isinstance(value, str):
            return self._pattern.sub(rf"{marks[0]}\g<0>{marks[1]}", value)
        if isinstance(value, dict):
            return {
                self.marked(key, marks): self.marked(item, marks) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.marked(item, marks) for item in value]
        return value

    def unmark(self, marked: str, marks: str) -> tuple[str, list[Span]]:
        """Return `marked` without the two `marks`, and the spans of special tokens between them."""
        parts = re.split(f"([{marks}])", marked)
        pieces: list[str] = []
        spans: list[Span] = []
        length = 0
        for at, part in enumerate(parts):
            if at % 2:
                continue
            opened = at > 0 and parts[at - 1] == marks[0]
            closed = at + 1 < len(parts) and parts[at + 1] == marks[1]
            if opened and closed and self._pattern.fullmatch(part):
                spans.append((length, length + len(part)))
            pieces.append(part)
            length += len(part)
        return "".join(pieces), spans


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, including the names in objects.

    >>> list(texts_in({"a": ["b", 1, {"c": None}]}))
    ['a', 'b', 'c']
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
