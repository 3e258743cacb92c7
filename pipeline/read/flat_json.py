"""Lines of flat objects, decoded whole: then nothing about the rest of a line is left to prove.

Most JSONL files hold objects with the same few fields, all of them strings or numbers. A decoder
that demands exactly the fields of one line proves of all others, in the pass that is needed anyway,
that they are valid UTF-8 throughout and do not nest. It pays where lines are long: the values of
the other fields become objects too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["FlatLines", "attribute"]

_MAX_FIELDS = 16
_WORTH_BYTES = 300  # of line for each other field
_PATIENCE = 3
_UNUSABLE = re.compile(r'[\x00-\x1f"\\]')  # in a name: msgspec takes none of these
_SCALAR = str | int | float | bool | None


def attribute(name: str) -> str:
    """A Python name that stands for the field `name`, whatever that is.

    >>> attribute("a b")
    'f_612062'
    """
    return f"f_{name.encode().hex()}"


class FlatLines:
    """Decodes blocks of lines whose objects have the same fields as the first line.

    `wanted` are the fields that are asked for, and the types they must have.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._wanted = wanted
        self._decoder: msgspec.json.Decoder[list[Any]] | None = None
        self._patience = _PATIENCE

    def rows(self, data: bytes, lines: int) -> list[Any] | None:
        """All rows of `data`, or None: it is not worth it, or some line is different."""
        if not self._patience:
            return None
        if self._decoder is None and not self._learn(
            data[: data.find(b"\n") + 1], len(data) // lines
        ):
            return None
        try:
            return self._decoder.decode_lines(data) if self._decoder else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._decoder = None
            self._patience -= 1
            return None

    def _learn(self, line: bytes, size: int) -> bool:
        """Make a decoder for lines like `line`; whether lines of `size` bytes are worth it."""
        try:
            record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if not self._wanted.keys() <= record.keys():
            return False
        others = record.keys() - self._wanted.keys()
        if len(record) > _MAX_FIELDS or size < _WORTH_BYTES * len(others):
            return False
        if any(_UNUSABLE.search(name) for name in others):
            return False
        types = {name: self._wanted.get(name, _SCALAR) for name in record}
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                "FlatRow",
                [(attribute(name), kind) for name, kind in types.items()],
                rename={attribute(name): name for name in types},
                forbid_unknown_fields=True,
                gc=False,
            )
        )
        return True
