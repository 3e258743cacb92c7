"""Suspects: code points that the two engines may treat differently, and a search for them.

The ids of an engine depend on its Unicode tables: which characters are letters, digits, marks and
spaces, and how NFC composes and orders them. gigatoken has tables of a later Unicode version than
`tokenizers`, so a text with a suspect is encoded by `tokenizers`. For the library versions in
`COMPARED`, the suspects are the differences that a test of all code points found
(tests/long/test_suspects.py). For all other versions, every code point beyond ASCII is a suspect,
except those below U+30000 that have the same properties in Unicode 3.2 as in the Unicode version of
this Python.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

__all__ = ["COMPARED", "Suspects", "suspects_of"]

COMPARED = {"gigatoken": "0.10.0", "tokenizers": "0.23.3"}
"""The versions whose tables were compared."""

# Code points whose composition, decomposition or combining class differs.
_NORMALIZED = """
    7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ADD 1AE0-1AEB 1DF6-1DFA A82C 105C9 105D2
    105DA 105E4 10D24-10D27 10D69-10D6D 10EAB-10EAC 10EFA-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85
    11070 1133B 11382-11385 1138B 1138E 11390-11391 113C2 113C5 113C7-113C8 113CE-113D0 1145E
    11839-1183A 11935 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97
    11F41-11F42 1611E 16121-16129 1612F 16D63 16D67-16D6A 16FF0-16FF1 1E08F 1E130-1E136 1E2AE
    1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5
"""
# Code points whose general category differs so that some split pattern of gigatoken shows it.
_CLASSIFIED = """
    88F C5C CDC 1ACF-1ADD 1AE0-1AEB 20C1 2B96 A7CE-A7CF A7D2 A7D4 A7F1 FBC3-FBD2 FD90-FD91
    FDC8-FDCE 10940-10959 10EC5-10EC7 10ED0-10ED8 10EFA-10EFB 11B60-11B67 11DB0-11DDB
    11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2
    1CCFA-1CCFC 1CEBA-1CED0 1CEE0-1CEF0 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 1F6D8 1F777-1F77A
    1F8D0-1F8D8 1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA 2B73A-2B73F 2CEA2-2CEAD
    323B0-33479
"""
_PIECE = 1 << 20  # bytes searched at a time: each candidate takes 30 bytes of memory
_PLANES = range(0x80, 0x30000)  # those with all decompositions, and nearly all of Unicode 3.2

Range = tuple[int, int]


class Suspects:
    """Set of code points, with a search for texts that contain any of them.

    The search tables are made from `ranges` when the first text beyond ASCII is searched.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = ranges

    @cached_property
    def _member(self) -> npt.NDArray[np.bool_]:
        """Return for each code point whether it is in the set, as a boolean array [0x110000]."""
        member = np.zeros(0x110000, np.bool_)
        for first, last in self._ranges:
            member[first : last + 1] = True
        return member

    @cached_property
    def _pair(self) -> npt.NDArray[np.bool_]:
        """Return which pairs of bytes begin a code point of the set, as a boolean array [0x10000].

        The entry at ``256 * first + second`` is True if a code point of the set begins with the
        bytes `first` and `second`.
        """
        codes = np.flatnonzero(self._member)
        pair = np.zeros(0x10000, np.bool_)
        for stop, lead, shift in ((0x800, 0xC0, 6), (0x10000, 0xE0, 12), (0x110000, 0xF0, 18)):
            some, codes = codes[codes < stop], codes[codes >= stop]
            pair[(lead | some >> shift) << 8 | 0x80 | some >> (shift - 6) & 0x3F] = True
        return pair

    @cached_property
    def _least(self) -> int:
        """Return the smallest first byte that a code point of the set has in UTF-8."""
        return int(self._pair.argmax()) >> 8

    def __contains__(self, code: int) -> bool:
        """Return whether the code point is in the set."""
        return bool(self._member[code])

    def among(self, texts: Sequence[bytes]) -> list[int]:
        """Return the indices of those `texts` that contain a code point of the set.

        The texts must be UTF-8.
        """
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        if not numbers:
            return []
        searched = [texts[number] for number in numbers]
        data = np.frombuffer(b"".join(searched), np.uint8)
        places = [self._places(data, start) for start in range(0, len(data), _PIECE)]
        if not any(map(len, places)):
            return []
        ends = np.cumsum(np.fromiter(map(len, searched), np.int64, len(searched)))
        holding = np.searchsorted(ends, np.concatenate(places), side="right")
        return [numbers[place] for place in sorted(set(holding.tolist()))]

    def _places(self, data: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.intp]:
        """Return the offsets in `data` at which code points of the set begin.

        Only `_PIECE` bytes of `data` are searched, beginning at the offset `start`.
        """
        at: npt.NDArray[np.intp] = np.flatnonzero(data[start : start + _PIECE] >= self._least)
        at += start
        pair = data.take(at).astype(np.uint16)
        pair <<= 8
        pair |= data.take(at + 1)
        at = at[self._pair.take(pair)]
        if not len(at):
            return at
        lead = data.take(at).astype(np.int64)
        more = 1 + (lead >= 0xE0) + (lead >= 0xF0)
        codes = lead & 0x3F >> more
        for number in (1, 2, 3):
            further = codes << 6 | data.take(at + number, mode="clip") & 0x3F
            codes = np.where(number <= more, further, codes)
        found: npt.NDArray[np.intp] = at[self._member[codes]]
        return found


@cache
def suspects_of(*, compared: bool, nfc: bool) -> Suspects:
    """Return the set of code points that the two engines may treat differently.

    If `compared` is True, these are the differences that are known for the library versions in
    `COMPARED`. Otherwise, they are the code points beyond ASCII whose properties may differ between
    Unicode versions. If `nfc` is True, the set also contains the code points that NFC changes, or
    may combine with a preceding code point.
    """
    known = _parsed(_NORMALIZED + _CLASSIFIED) if compared else _changeable()
    return Suspects(chain(known, _changed_by_nfc() if nfc else ()))


def _parsed(ranges: str) -> Iterator[Range]:
    for part in ranges.split():
        first, _, last = part.partition("-")
        yield int(first, 16), int(last or first, 16)


def _changeable() -> Iterator[Range]:
    """Yield ranges of the code points whose properties may differ between Unicode versions.

    They are the code points beyond ASCII that Unicode 3.2 lacks, those whose properties in Unicode
    3.2 differ from those in the Unicode version of this Python, and all from U+30000 upwards.
    """
    old, new = unicodedata.ucd_3_2_0, unicodedata
    same = [one for one in map(chr, _PLANES) if old.category(one) != "Cn"]
    for name in ("category", "combining", "decomposition"):
        before, after = map(getattr(old, name), same), map(getattr(new, name), same)
        same = [one for one, was, now in zip(same, before, after, strict=True) if was == now]
    first = _PLANES.start
    for code in map(ord, same):
        if first < code:
            yield first, code - 1
        first = code + 1
    yield first, 0x10FFFF


def _changed_by_nfc() -> Iterator[Range]:
    """Yield ranges of the code points that NFC changes, or may combine with a preceding one."""
    yield 0x1161, 0x11FF  # vowels and final consonants of Hangul
    decompositions = map(unicodedata.decomposition, map(chr, _PLANES))
    for code, decomposition in zip(_PLANES, decompositions, strict=True):
        if decomposition and decomposition[0] != "<":
            if not unicodedata.is_normalized("NFC", chr(code)):
                yield code, code
            yield (second := int(decomposition.split()[-1], 16)), second
