"""Proofs about whole blocks of JSON lines, a few vectorised passes each.

The decoder takes one field and skips the rest: it does not mind several objects on a line, depth,
or bytes in other fields that are not UTF-8. These checks do. They are allowed to say no to a block
that is in order (it is then looked at line by line), and never yes to one that is not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = [
    "count_at_most",
    "count_of",
    "holds",
    "is_utf8",
    "line_starts",
    "lines_of_brackets",
    "one_object_a_line",
    "too_deep",
]

Octets = npt.NDArray[np.uint8]
Starts = npt.NDArray[np.int64]

_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_SCAN_BYTES = 1 << 20
_LOOK_BYTES = 64 << 10
_FEW_LINES = 64
_PAIR = 2
_SLICE_BYTES = 256 << 10


def _table(characters: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


_BEFORE_BRACKET = _table(b"[,: \t\r\n")  # what can stand before a bracket that opens a value
_IN_ARRAY = _table(b' \t\r"[{]-0123456789tfn')
_IN_OBJECT = _table(b' \t\r"}')


def line_starts(data: bytes) -> Starts:
    """Where each line of `data` starts; a newline at the end starts no other.

    >>> line_starts(b"ab\\nc\\n").tolist()
    [0, 3]
    """
    head = data[:_LOOK_BYTES]
    ends = _ends_of_long_lines(data) if head.count(b"\n") < _FEW_LINES else _line_ends(data)
    return np.concatenate([[0], ends[: -1 if data.endswith(b"\n") else None]])


def _line_ends(data: bytes) -> Starts:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1


def _ends_of_long_lines(data: bytes) -> Starts:
    """The same, one search a line: faster where there are thousands of bytes between two."""
    ends = []
    end = data.find(b"\n") + 1
    while end:
        ends.append(end)
        end = data.find(b"\n", end) + 1
    return np.array(ends, np.int64)


def one_object_a_line(octets: Octets, starts: Starts) -> bool:
    """Whether every line starts with `{`, and every newline between two follows `}` (or `}\\r`).

    Inside one JSON value a newline never stands so: a comma would have to be there, and strings
    hold no raw newline. So if the block parses as a sequence of as many objects, each line is one.
    """
    if not len(octets) or octets[0] != ord("{"):
        return False
    inner = starts[1:]
    before = octets[inner - 2]
    before = np.where(before == ord("\r"), octets[inner - 3], before)
    return bool(np.all(before == ord("}")) and np.all(octets[inner] == ord("{")))


def lines_of_brackets(octets: Octets, starts: Starts, limit: int) -> list[int]:
    """The numbers of the lines that may open more than `limit` brackets outside strings.

    Brackets are told from those in strings by their neighbours, so that program text passes.
    """
    brackets = _brackets(octets)
    counts = np.diff(np.searchsorted(brackets, np.append(starts, len(octets))))
    if not np.any(counts > limit):
        return []
    following = octets[np.minimum(brackets + 1, len(octets) - 1)]
    fits = _IN_ARRAY[following]
    objects = octets[brackets] == ord("{")
    fits[objects] = _IN_OBJECT[following[objects]]
    fits &= _BEFORE_BRACKET[octets[np.maximum(brackets - 1, 0)]] | (brackets == 0)
    brackets = brackets[fits]
    counts = np.diff(np.searchsorted(brackets, np.append(starts, len(octets))))
    return np.flatnonzero(counts > limit).tolist()


def _brackets(octets: Octets) -> npt.NDArray[np.int64]:
    """Where `{` and `[` stand, which differ in one bit; in slices that stay in the cache."""
    found = [
        np.flatnonzero((octets[start : start + _SLICE_BYTES] | 0x20) == ord("{")) + start
        for start in range(0, len(octets), _SLICE_BYTES)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


def is_utf8(data: bytes) -> bool:
    """Whether `data` is valid UTF-8. Arrow checks 20 GB/s of English, 1 GB/s of other scripts.

    >>> is_utf8("caf\\u00e9".encode()), is_utf8(b"caf\\xe9")
    (True, False)
    """
    if data.isascii():
        return True
    import pyarrow as pa

    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    text = pa.Array.from_buffers(pa.large_utf8(), 1, [None, ends, pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def count_of(octets: Octets, needle: bytes) -> int:
    """How often `needle`, of at least four bytes, stands in `octets`; overlaps count.

    At under half of what `bytes.count` takes where the first character is frequent.

    >>> count_of(np.frombuffer(b"abcdeabcdf.abcde", np.uint8), b"abcde")
    2
    """
    found = 0
    for start, quads in enumerate(_quads(octets, needle)):
        at = np.flatnonzero(quads) * 4 + start
        at = at[at <= len(octets) - len(needle)]
        for place in range(4, len(needle)):
            at = at[octets[at + place] == needle[place]]
        found += len(at)
    return found


def count_at_most(octets: Octets, needle: bytes) -> int:
    """A number that `needle`, of at least four bytes, is not found more often than in `octets`.

    >>> count_at_most(np.frombuffer(b"abcdeabcdf.abcde", np.uint8), b"abcde")
    3
    """
    return sum(int(np.count_nonzero(quads)) for quads in _quads(octets, needle))


def _quads(octets: Octets, needle: bytes) -> Iterator[npt.NDArray[np.bool_]]:
    """Where the first four bytes of `needle` stand: at 0, 4, 8 ..., at 1, 5, 9 ... and so on."""
    quad = int.from_bytes(needle[:4], "little")
    for start in range(min(4, len(octets))):
        end = start + (len(octets) - start) // 4 * 4
        yield octets[start:end].view("<u4") == quad


def too_deep(raw: bytes, limit: int) -> bool:
    """Whether brackets outside strings nest deeper than `limit`.

    >>> too_deep(b'{"a[": [1]}', 2), too_deep(b'{"a": [[1]]}', 2)
    (False, True)
    """
    if raw.count(b"{") + raw.count(b"[") <= limit:
        return False
    # Backslashes pair up from the left, so one that is left before a quote hides it.
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_MARKS)
    quotes = depth = 0
    for start in range(0, len(bare), _SCAN_BYTES):
        part = np.frombuffer(bare, np.uint8, min(_SCAN_BYTES, len(bare) - start), start)
        open_quotes = np.cumsum(part == ord('"'), dtype=np.int64) + quotes
        folded = np.where(open_quotes & 1, 0, part | 0x20)
        steps = (folded == ord("{")).astype(np.int8) - (folded == ord("}")).astype(np.int8)
        depths = np.cumsum(steps, dtype=np.int64) + depth
        if depths.max() > limit:
            return True
        quotes, depth = int(open_quotes[-1]), int(depths[-1])
    return False


def holds(data: bytes, opening: bytes) -> bool:
    """Whether `opening` stands in `data`; for two bytes ten times as fast as `in`.

    >>> holds(b"a<|b", b"<|"), holds(b"<a|", b"<|"), holds(b"<|", b"<|"), holds(b"<", b"<|")
    (True, False, True, False)
    """
    if len(opening) != _PAIR:
        return opening in data
    pair = int.from_bytes(opening, "little")
    even = np.frombuffer(data, "<u2", len(data) // 2)
    odd = np.frombuffer(data, "<u2", max(len(data) - 1, 0) // 2, min(1, len(data)))
    return bool((even == pair).any() or (odd == pair).any())
