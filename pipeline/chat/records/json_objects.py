"""Decoding of JSON lines into Python objects, in about 3 microseconds per kilobyte.

All values of a line are decoded, which proves that the line is valid JSON in UTF-8. Three defects
that the decoder accepts are searched for in each block: several objects in a line, deep nesting,
and names that occur twice in an object. If a block has such a defect, each line is decoded
separately to find the reason. Both ways agree on every line:
`tests/pipeline/chat/records/test_lines.py` compares them with the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.read.sharded import distinct

from ...read.json_lines import BadLineError, fault_of, parse_unique
from ...read.json_proofs import (
    lines_of_brackets,
    one_object_a_line,
    too_deep,
)
from ...read.records import MAX_DEPTH

__all__ = ["names_once", "object_of", "objects_between", "objects_of", "value_of"]

_ANY_DECODER = msgspec.json.Decoder()
_LIST_DECODER = msgspec.json.Decoder(list[dict[str, Any]])
_DECODER = msgspec.json.Decoder(dict)  # at import: msgspec 0.22 crashes on first uses in threads
_REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NAME_END = re.compile(rb'(?<!\\)(?:\\\\)*"[ \t\r\n]*:')
_QUOTE, _SLASH = ord('"'), ord("\\")
_OPENS = np.zeros(256, bool)  # bytes that may stand before a quote that opens a string
_OPENS[list(b" \t\r\n,:[{")] = True
_AFTER = b", \t\r\n"


Objects = list[dict[str, Any]]
Starts = npt.NDArray[np.int64]


def objects_of(data: bytes, starts: Starts) -> Objects | None:
    """Return the object in each line of `data`, or None if a line may be defective.

    Line i starts at byte `starts[i]`. Names that occur twice in an object are not detected here;
    see `names_once`.
    """
    if not one_object_a_line(np.frombuffer(data, np.uint8), starts):
        return None
    try:
        found: Objects = _DECODER.decode_lines(data)
    except _REFUSALS:
        return None
    return found if _is_sound(found, data, starts) else None


def objects_between(data: bytes, starts: Starts) -> Objects | None:
    """Return the objects in some elements of a JSON array, or None if an element may be defective.

    The bytes `data` are the text of these elements, with the commas between them. Element i starts
    at byte `starts[i]`. An element is defective if it is not exactly one object, nests too deeply,
    or repeats a name in an object.
    """
    try:
        found: Objects = _LIST_DECODER.decode(b"[%b]" % data)
    except _REFUSALS:
        return None
    sound = _is_sound(found, data, starts) and names_once(data, starts, found)
    return found if sound else None


def value_of(text: str) -> Any:
    """Return the JSON value that `text`, a string in a record, contains.

    Raise `BadLineError` if the text is not valid JSON, nests too deeply, or repeats a name in an
    object.

    >>> value_of('{"a": 1}')
    {'a': 1}
    """
    raw = text.encode()
    try:
        found = _ANY_DECODER.decode(raw)
    except _REFUSALS as error:
        raise BadLineError("invalid_json", str(error)) from None
    if too_deep(raw, MAX_DEPTH):
        raise BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
    _refuse_twice(raw, found)
    return found


def _is_sound(found: Objects, data: bytes, starts: Starts) -> bool:
    """Return whether `found` has one object for each of `starts`, and none is nested too deeply.

    The array `starts` holds the position in `data` at which the text of each object starts.
    """
    octets = np.frombuffer(data, np.uint8)
    bounds = np.append(starts, len(data))
    deep = lines_of_brackets(octets, starts, MAX_DEPTH)
    return len(found) == len(starts) and not any(
        too_deep(data[bounds[line] : bounds[line + 1]], MAX_DEPTH) for line in deep
    )


def object_of(raw: bytes) -> dict[str, Any]:
    """Return the object in the line `raw`. Raise `BadLineError` if it is not one valid object."""
    try:
        found: dict[str, Any] = _DECODER.decode(raw)
    except _REFUSALS as error:
        raise fault_of(raw, error) from None
    if too_deep(raw, MAX_DEPTH):
        raise BadLineError("too_deep", f"nested deeper than {MAX_DEPTH}")
    _refuse_twice(raw, found)
    return found


def _refuse_twice(raw: bytes, found: Any) -> None:
    """Raise `BadLineError` if a name occurs twice in an object of `raw`.

    The argument `found` is the decoded value of `raw`.
    """
    names = _names_of(found)
    if raw.count(b":") != names and len(_NAME_END.findall(raw)) != names:
        parse_unique(raw)


def names_once(data: bytes, starts: Starts, found: Objects, names: int | None = None) -> bool:
    """Return whether no object in `found` contains a name twice.

    The array `starts` holds the position in `data` at which the text of each object begins. The
    decoder drops repeated names, so names are repeated if `data` has more colons after names than
    `found` has names. The argument `names` is the number of names in `found`, or None if they must
    be counted. Lines in which a colon may be inside a string are parsed again.
    """
    ends, unsure = _name_ends(np.frombuffer(data, np.uint8))
    missing = len(ends) - (_names_in(found) if names is None else names)
    if not missing:
        return True
    bounds = np.append(starts, len(data))
    seen = np.diff(np.searchsorted(ends, bounds))
    lines = distinct(np.searchsorted(bounds, unsure, "right") - 1).tolist()
    for line in lines:
        try:
            parse_unique(data[bounds[line] : bounds[line + 1]].rstrip(_AFTER))
        except BadLineError:
            return False
        missing -= int(seen[line]) - _names_in([found[line]])
    return not missing


def _name_ends(octets: npt.NDArray[np.uint8]) -> tuple[Starts, Starts]:
    """Return the positions of colons that may follow a name, and of those that are uncertain.

    A colon is uncertain if it may be inside a string. This is so in three cases:

    - The quote before the colon may open a string.
    - Several backslashes come before this quote.
    - White space separates the quote from the colon.
    """
    colons = np.flatnonzero(octets == ord(":"))
    before, second, third, fourth = (octets[colons - back] for back in (1, 2, 3, 4))
    close = (before == _QUOTE) & ~((second == _SLASH) & (third != _SLASH))
    unsure = close & (_OPENS[second] | (second == _SLASH))
    blank = _OPENS[before] & (before <= ord(" "))
    if blank.any():
        apart = (second == _QUOTE) & ~((third == _SLASH) & (fourth != _SLASH))
        blank &= apart | (_OPENS[second] & (second <= ord(" ")))
        close, unsure = close | blank, unsure | blank
    return np.asarray(colons[close], np.int64), np.asarray(colons[unsure], np.int64)


def _names_in(values: list[Any]) -> int:
    """Return the number of names (keys) in all objects in `values`, at any depth."""
    count = 0
    while True:
        kinds = set(map(type, values))
        objects, arrays = (
            values if kinds == {kind}  # nearly always: then none need be picked
            else [value for value in values if type(value) is kind] if kind in kinds else []
            for kind in (dict, list)
        )  # fmt: skip
        if not objects and not arrays:
            return count
        count += sum(map(len, objects))
        parts = chain.from_iterable(map(dict.values, objects))
        values = list(chain(parts, chain.from_iterable(arrays)))


def _names_of(value: Any) -> int:
    """Return the number of names (keys) in all objects in `value`, at any depth.

    For few names, this is faster than `_names_in`.
    """
    inner: Iterable[Any] = ()
    count = 0
    if type(value) is dict:
        count, inner = len(value), value.values()
    elif type(value) is list:
        inner = value
    for part in inner:
        if type(part) is dict or type(part) is list:
            count += _names_of(part)
    return count
