"""Counter of special tokens that texts contain as plain text.

It can also check that such plain text does not become a special token.

A search for each special token would take longer than tokenizing. So all special tokens with the
same first character are combined in one regular expression, which has a branch wherever the tokens
differ. It is used only for texts that contain the prefix that these tokens share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IncompatibleError

from .stored_tokens import EncodingSettings

__all__ = ["SpecialTextCounter"]

_FEW = 3
_LONG = 1000  # bytes of a text on average, from which texts are searched separately
_MAX_BRANCHES = 50  # depth of a pattern; tokens can be prefixes of each other without limit
_SEPARATOR = b"\xff"  # occurs in no UTF-8 text


class SpecialTextCounter:
    """Counter of the special tokens that texts contain as plain text.

    The attribute `found` maps the text of each special token to its count.
    """

    def __init__(self, encoding: EncodingSettings) -> None:
        self.found: Counter[str] = Counter()
        self._literal = encoding.special_text == "literal"
        special = set(encoding.special_tokens.values()) - {encoding.unknown}
        self._ids = np.array(sorted(special), np.uint32)
        by_first: dict[bytes, list[bytes]] = {}
        for token in filter(None, map(str.encode, encoding.special_tokens)):
            by_first.setdefault(token[:1], []).append(token)
        self._patterns = [
            (_parts(_common_prefix(min(tokens), max(tokens))), re.compile(_pattern(tokens)))
            for tokens in by_first.values()
        ]

    def count(self, texts: Sequence[bytes], ids: npt.NDArray[np.uint32]) -> None:
        """Add to `found` the special tokens that `texts` contain as plain text.

        The argument `ids` holds the ids of the encoded texts. With ``--special-text literal``,
        raise `IncompatibleError` if the id of a special token is among them. They are searched only
        if `texts` contain a special token as plain text, because other text cannot produce one.
        """
        if sum(map(len, texts)) < _LONG * len(texts):
            texts = [_SEPARATOR.join(texts)]  # a call for each short text would cost more
        spelled = 0
        for parts, pattern in self._patterns:
            for text in texts:
                found = pattern.findall(text) if all(part in text for part in parts) else []
                for token, times in Counter(found).items() if found else ():
                    self.found[token.decode()] += times
                    spelled += times
        if spelled and self._literal and np.isin(ids, self._ids).any():
            raise IncompatibleError(
                "this tokenizer turns text that spells a special token into that token",
                where="--special-text literal", code="E_SPECIAL_TEXT",
                remedy="Allow it with --special-text parse, or use another tokenizer.",
            )  # fmt: skip


def _parts(prefix: bytes) -> list[bytes]:
    """Return byte strings that are in every text with `prefix`, the fastest search first.

    They are the bytes of the prefix that are not ASCII letters or digits, and the prefix itself. A
    single byte is found ten times as fast as several.

    >>> _parts(b"<|im_"), _parts(b"[")
    ([b'<', b'|', b'_', b'<|im_'], [b'['])
    """
    marks = [prefix[at : at + 1] for at in range(len(prefix)) if not prefix[at : at + 1].isalnum()]
    return list(dict.fromkeys([*marks, prefix]))


def _pattern(tokens: Sequence[bytes], depth: int = 0) -> bytes:
    """Return a regular expression that matches the longest of `tokens` at a position.

    >>> _pattern([b"<a>", b"<ab>", b"<c>"]), _pattern([b"a", b"ab"])
    (b'<(?:a(?:>|b>)|c>)', b'a(?:(?:b))?')
    """
    if depth > _MAX_BRANCHES:
        return b"(?:" + b"|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + b")"
    common = _common_prefix(min(tokens), max(tokens))
    below: dict[bytes, list[bytes]] = {}
    for rest in (token[len(common) :] for token in tokens):
        below.setdefault(rest[:1], []).append(rest)
    ends = below.pop(b"", None)
    if not below:
        return re.escape(common)
    branches = b"(?:" + b"|".join(_pattern(below[at], depth + 1) for at in sorted(below)) + b")"
    if len(below) > _FEW:  # one lookahead instead of a trial of each branch
        branches = b"(?=[" + b"".join(map(re.escape, sorted(below))) + b"])" + branches
    return re.escape(common) + (b"(?:" + branches + b")?" if ends else branches)


def _common_prefix(one: bytes, other: bytes) -> bytes:
    same = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(same, min(len(one), len(other)))]
