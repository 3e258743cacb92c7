"""Changes of bytes, as disks, copies and enemies make them; the same for the same seed."""

from __future__ import annotations

import random
import re

__all__ = ["mutated"]

_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 65535, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 63) - 1)
_WORDS = (b"0", b"-1", b"1e999", b"null", b"9" * 30, b'""', b"{}", b"[" * 70, b"\xff\xfe", b"\n\n")
_EDGE = 512


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return `data` with one to four changes, half of them near its ends."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _CHANGES[draw.randrange(len(_CHANGES))](found, draw)
    return bytes(found)


def _place(data: bytearray, draw: random.Random) -> int:
    size = len(data) or 1
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randrange(min(size, _EDGE))
    return size - 1 - draw.randrange(min(size, _EDGE)) if kind == 1 else draw.randrange(size)


def _flip(data: bytearray, draw: random.Random) -> None:
    at = _place(data, draw)
    data[at : at + 1] = bytes([(data[at] if data else 0) ^ (1 << draw.randrange(8))])


def _set(data: bytearray, draw: random.Random) -> None:
    at = _place(data, draw)
    data[at : at + 1] = bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))])


def _number(data: bytearray, draw: random.Random) -> None:
    at, size = _place(data, draw), draw.choice((2, 4, 8))
    value = draw.choice(_NUMBERS) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, draw.choice(("little", "big")))


def _cut(data: bytearray, draw: random.Random) -> None:
    at = _place(data, draw)
    del data[at : at + draw.choice((1, 2, 8, 64, len(data)))]


def _double(data: bytearray, draw: random.Random) -> None:
    at, size = _place(data, draw), draw.choice((1, 4, 64, 1000))
    data[at:at] = data[at : at + size]


def _move(data: bytearray, draw: random.Random) -> None:
    at, to, size = _place(data, draw), _place(data, draw), draw.choice((1, 8, 32))
    part = data[at : at + size]
    data[to : to + len(part)] = part


def _word(data: bytearray, draw: random.Random) -> None:
    """Replace a number that is written in digits, or put a word somewhere."""
    at = _place(data, draw)
    found = re.compile(rb"\d+").search(data, at)
    start, stop = found.span() if found else (at, at)
    data[start:stop] = draw.choice(_WORDS)


_CHANGES = (_flip, _flip, _set, _set, _number, _cut, _double, _move, _word)
