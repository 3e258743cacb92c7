"""Reader that divides a file that is one JSON array into its elements, chunk by chunk.

Brackets, commas and quotes alone decide where elements begin and end. A few vectorised passes over
each chunk find them. Each element is parsed separately, so an invalid element does not affect the
rest. An array that is never closed, or that is followed by more text, raises `InputError`: the
elements after such damage cannot be found, and no element may be dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from .line_stream import MAX_BLOCK_LINES
from .records import MAX_RECORD_BYTES
from .sources import input_error

__all__ = ["Elements", "elements_of"]

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_HEAD_BYTES = 4096
_SLICE_BYTES = 256 << 10
_SLASH = ord("\\")
_INDENT = 16  # blanks before elements that are skipped together; further ones singly
_IS_BLANK = np.zeros(256, bool)
_IS_BLANK[list(_BLANK)] = True
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


@dataclass(kw_only=True, slots=True)
class Elements:
    """Consecutive elements of a JSON array. Element `i` is ``data[starts[i]:ends[i]]``.

    Elements have no white space around them. `data` begins at byte `offset` of the (decompressed)
    file. `lines` holds the index of the line on which each element begins. If `too_long` is not 0,
    there is a single element of that many bytes, and `data` may hold only its beginning. `consumed`
    is the number of bytes from the end of the previous `Elements` to the end of these.
    """

    offset: int
    data: bytes
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    consumed: int = 0
    too_long: int = 0


def elements_of(chunks: Iterable[bytes], name: str) -> Iterator[Elements]:
    """Yield the elements of the JSON array in `chunks`, which are the bytes of the file `name`.

    Raise `InputError` if the file is damaged.

    >>> [one.data[a:b] for one in elements_of([b'[{"a"', b': 1}, 2]'], "x.json")
    ...  for a, b in zip(one.starts, one.ends)]
    [b'{"a": 1}', b'2']
    """
    parts = iter(chunks)
    opening, rest = _opening(parts, name)
    array = _ArrayBuffer(opening, name)
    for chunk in chain([rest], parts):
        yield from array.take(chunk)
    yield array.finish()


def _opening(parts: Iterator[bytes], name: str) -> tuple[bytes, bytes]:
    """Return the bytes up to and including the opening bracket, and the rest of the last part read.

    The bytes before the bracket can be a byte order mark and white space. Raise `InputError` if
    anything else comes first, or if no bracket is found in the first `_HEAD_BYTES` bytes.
    """
    head = b""
    for part in parts:
        head += part
        blanks = len(head) - len(head.removeprefix(_BOM).lstrip(_BLANK))
        if blanks < len(head) and head != _BOM[: len(head)]:
            if head[blanks] == ord("["):
                return head[: blanks + 1], head[blanks + 1 :]
            break
        if len(head) > _HEAD_BYTES:
            break
    raise input_error("this is no JSON array", name, "Say with --format what it is.", "E_FORMAT")


class _Scanner:
    """Scanner that finds the ends of elements in a file that is read part by part.

    A part may end at any byte. The attribute `closed` becomes True when the closing bracket of the
    array is found.
    """

    def __init__(self) -> None:
        self._quoted = 0
        self._slash = 0  # whether the last byte was a backslash that escapes the next one
        self._depth = 1
        self.closed = False

    def cuts(self, part: bytes) -> list[int]:
        """Return the offset in `part` of each character that ends an element.

        These characters are the commas between elements, and the closing bracket of the array.
        """
        octets = np.frombuffer(part, np.uint8)
        marks = _marks(octets)
        found = octets[marks]
        quotes = found == ord('"')
        quotes[quotes] = ~self._escaped(part, octets, marks[quotes])
        quoted = (np.cumsum(quotes, dtype=np.int64) + self._quoted) & 1
        outside = ~quotes & (quoted == 0)
        marks, steps = marks[outside], _STEPS[found[outside]]
        depths = np.cumsum(steps, dtype=np.int64) + self._depth
        closings = np.flatnonzero(depths <= 0)
        self.closed = len(closings) > 0
        stop = int(closings[0]) + 1 if self.closed else len(marks)
        self._quoted = int(quoted[-1]) if len(quoted) else self._quoted
        self._depth = int(depths[-1]) if len(depths) else self._depth
        cut = (depths[:stop] == 1) & (steps[:stop] == 0) | (depths[:stop] <= 0)
        return [int(place) for place in marks[:stop][cut].tolist()]

    def _escaped(
        self, part: bytes, octets: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return whether each quote in `part` is escaped, as a boolean array [quotes].

        The argument `octets` holds the bytes of `part`, and `quotes` the offsets of the quotes. A
        quote is escaped if it follows an odd number of backslashes.
        """
        slashes = np.flatnonzero(octets == _SLASH)
        hidden = np.zeros(len(quotes), bool)
        if len(slashes):
            first = np.append(True, np.diff(slashes) != 1)  # of a run
            starts = slashes[np.maximum.accumulate(np.where(first, np.arange(len(slashes)), 0))]
            after = np.flatnonzero((octets[quotes - 1] == _SLASH) & (quotes > 0))
            places = quotes[after]
            runs = starts[np.searchsorted(slashes, places - 1)]
            hidden[after] = (places - runs + (self._slash & (runs == 0))) & 1
        if self._slash and len(quotes) and quotes[0] == 0:
            hidden[0] = True
        run = len(part) - len(part.rstrip(b"\\"))
        self._slash = (run + self._slash if run == len(part) else run) & 1
        return hidden


def _marks(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the offsets of brackets, quotes and commas in `octets`.

    The search proceeds in slices that fit into the processor cache.
    """
    found = [np.empty(0, np.int64)]
    for start in range(0, len(octets), _SLICE_BYTES):
        part = octets[start : start + _SLICE_BYTES]
        folded = part | 0x20  # maps square brackets to curly ones
        mask = (folded == ord("{")) | (folded == ord("}")) | (part == ord('"')) | (part == ord(","))
        found.append(np.flatnonzero(mask) + start)
    return np.concatenate(found)


class _ArrayBuffer:
    """Buffer for the chunks of an array. Its methods return elements once they are complete."""

    def __init__(self, opening: bytes, name: str) -> None:
        self._name = name
        self._scanner = _Scanner()
        self._waiting: list[bytes] = []  # the beginning of an incomplete element
        self._size = 0  # of that element so far, with the bytes that were dropped
        self._offset = len(opening)  # of that element in the file
        self._line = opening.count(b"\n")  # on which it starts
        self._passed_lines = 0  # line ends in its bytes that were dropped
        self._consumed = 0  # bytes of the file counted so far
        self._number = 0  # elements so far

    def take(self, chunk: bytes) -> Iterator[Elements]:
        """Yield the elements that end in `chunk`, and buffer the rest."""
        if self._scanner.closed:
            self._keep(chunk)
            return
        cuts = self._scanner.cuts(chunk)
        if cuts and self._size > MAX_RECORD_BYTES:
            yield self._too_long(chunk[: cuts[0]])
            chunk, cuts = chunk[cuts[0] + 1 :], [cut - cuts[0] - 1 for cut in cuts[1:]]
        if cuts:
            before = self._size
            data = b"".join([*self._waiting, chunk[: cuts[-1]]])
            chunk = chunk[cuts[-1] + 1 :]
            yield from self._whole(data, [before + cut for cut in cuts])
        self._keep(chunk)

    def finish(self) -> Elements:
        """Return an empty `Elements`. Its `consumed` is the number of bytes after the last element.

        Raise `InputError` if the array was not closed.
        """
        if not self._scanner.closed:
            raise input_error(
                f"the JSON array is not closed: it breaks off in element {self._number + 1}, after "
                f"line {self._line + 1} (byte {self._offset}), or a bracket or a quote is missing "
                "there", self._name,
                "Fetch the file again, or mend it: what follows cannot be told apart, so it is "
                "not skipped.", "E_JSON_ARRAY",
            )  # fmt: skip
        return self._consumed_until(
            Elements(offset=self._offset, data=b""), self._offset + self._size
        )

    def _keep(self, chunk: bytes) -> None:
        """Buffer `chunk`, in which no element ends.

        If the array has been closed, raise `InputError` unless `chunk` is only white space.
        """
        if self._scanner.closed and chunk.strip(_BLANK):
            raise input_error(
                f"the JSON array ends before byte {self._offset + self._size}, and something "
                "follows it: a bracket is missing or too many", self._name,
                "Mend the file: what follows cannot be told apart, so it is not skipped.",
                "E_JSON_ARRAY",
            )  # fmt: skip
        self._size += len(chunk)
        self._waiting.append(chunk)
        if self._size > MAX_RECORD_BYTES or self._scanner.closed:
            head = b"".join(self._waiting)
            self._waiting = [head[:_HEAD_BYTES]]
            self._passed_lines += head.count(b"\n", _HEAD_BYTES)

    def _too_long(self, rest: bytes) -> Elements:
        """Return an `Elements` with only the buffered element, which is too long.

        The argument `rest` holds the last bytes of this element. The result has the beginning of
        the element and its full size.
        """
        head = b"".join(self._waiting)
        size = self._size + len(rest)
        start, _ = _trimmed(head, 0, len(head))
        found = Elements(
            offset=self._offset, data=head[:_HEAD_BYTES], starts=[start], ends=[size],
            lines=[self._line + head.count(b"\n", 0, start)], too_long=size - start,
        )  # fmt: skip
        self._line += head.count(b"\n") + self._passed_lines + rest.count(b"\n")
        self._passed_lines = 0
        self._begin_after(size)
        return self._consumed_until(found, self._offset)

    def _whole(self, data: bytes, cuts: list[int]) -> Iterator[Elements]:
        """Yield the elements in `data`. Each ends at one of the offsets `cuts`."""
        spans = _spans(data, np.array(cuts, np.int64))
        if self._scanner.closed and not self._number and spans == [(cuts[0], cuts[0])]:
            spans = []  # [] holds no element, [,] two empty ones
        breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        lines = self._line + np.searchsorted(breaks, np.array(spans, np.int64).reshape(-1, 2)[:, 0])
        for run in _runs(spans):
            starts, ends = ([span[side] for span in spans[run]] for side in (0, 1))
            long = ends[0] - starts[0] > MAX_RECORD_BYTES
            found = Elements(
                offset=self._offset, data=data, starts=starts, ends=ends,
                lines=lines[run].tolist(), too_long=ends[0] - starts[0] if long else 0,
            )  # fmt: skip
            yield self._consumed_until(found, self._offset + ends[-1])
        self._line += len(breaks)
        self._number += len(spans)
        self._begin_after(cuts[-1])

    def _begin_after(self, size: int) -> None:
        """Clear the buffer, and move its start by `size` bytes and one more for a separator."""
        self._offset += size + 1
        self._size = 0
        self._waiting = []

    def _consumed_until(self, found: Elements, offset: int) -> Elements:
        found.consumed = offset - self._consumed
        self._consumed = offset
        return found


def _spans(data: bytes, cuts: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the (start, stop) offsets of the elements in `data`, without white space around them.

    Each element ends at one of the offsets `cuts`.
    """
    begins = np.append(0, cuts[:-1] + 1)
    if not data:
        return [(0, 0)]
    octets = np.frombuffer(data, np.uint8)
    starts, last = begins, len(octets) - 1
    for _ in range(_INDENT):
        blank = _IS_BLANK[octets[np.minimum(starts, last)]]
        if not blank.any():
            break
        starts = starts + blank
    odd = (starts >= cuts) | _IS_BLANK[octets[np.minimum(starts, last)]]
    odd |= _IS_BLANK[octets[np.maximum(cuts - 1, 0)]]
    spans = list(zip(starts.tolist(), cuts.tolist(), strict=True))
    for at in np.flatnonzero(odd).tolist():
        spans[at] = _trimmed(data, int(begins[at]), int(cuts[at]))
    return spans


def _trimmed(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return `start` and `stop`, moved inwards past white space.

    >>> _trimmed(b" a b ", 0, 5), _trimmed(b"  ", 0, 2)
    ((1, 4), (2, 2))
    """
    first = _NOT_BLANK.search(data, start, stop)
    if first is None:
        return stop, stop
    start = first.start()
    return start, start + len(data[start:stop].rstrip(_BLANK))


def _runs(spans: list[tuple[int, int]]) -> Iterator[slice]:
    """Yield slices that divide `spans` into groups. Each group becomes one `Elements`.

    A group has at most `MAX_BLOCK_LINES` elements. An element that is too long has a group of its
    own.
    """
    start = 0
    for at, (first, last) in enumerate(spans):
        long = last - first > MAX_RECORD_BYTES
        if at > start and (long or at - start == MAX_BLOCK_LINES):
            yield slice(start, at)
            start = at
        if long:
            yield slice(at, at + 1)
            start = at + 1
    if start < len(spans):
        yield slice(start, len(spans))
