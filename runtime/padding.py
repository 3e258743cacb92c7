"""`Padding`: options for the width of padded rows, and for cutting long rows.

Datasets of documents and preferences (runtime/rows) use them, and so do collate functions. The
padded arrays are written in runtime/rows/gather.py and runtime/collate/ragged.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dataprep.formats.errors import require

from .checks import whole_number

__all__ = ["PadTo", "Padding", "Side", "Truncate"]

Side = Literal["right", "left"]
Truncate = Literal["right", "left", "error"]
PadTo = Literal["longest", "max_length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Options of padded rows.

    - `side`: the end that is padded.
    - `max_length`: the maximum number of elements in a row. None: no maximum.
    - `pad_to`: pad to the ``"longest"`` row of the batch, or always to ``"max_length"``. None:
      to `max_length` if that is given, else to the longest row.
    - `multiple`: round the width up to a multiple of this; 8 or 64 suit tensor cores.
    - `truncate`: the end at which rows longer than `max_length` are cut, ``"right"`` or
      ``"left"``; ``"error"`` raises an error for such rows. None: the side that is padded, so that
      with right padding the beginning of a row remains.
    """

    side: Side = "right"
    max_length: int | None = None
    pad_to: PadTo | None = None
    multiple: int = 1
    truncate: Truncate | None = None

    def __post_init__(self) -> None:
        for name, known in (("side", Side), ("pad_to", PadTo), ("truncate", Truncate)):
            value, allowed = getattr(self, name), get_args(known)
            fine = value in allowed or (value is None and name != "side")
            where = "padding_side" if name == "side" else name
            require(fine, where, f"must be one of {', '.join(allowed)}, got {value!r}")
        for name in ("max_length", "multiple"):
            value = getattr(self, name)
            if value is not None or name == "multiple":
                object.__setattr__(self, name, whole_number(name, value, 1))
        if self.pad_to == "max_length":
            require(self.max_length is not None, "max_length", "pad_to='max_length' needs it")

    def width(self, longest: int) -> int:
        """Return the width of a batch whose longest row has `longest` elements, before truncation.

        >>> Padding(multiple=8).width(9), Padding(max_length=12).width(9)
        (16, 12)
        """
        limit = self.max_length
        if limit is not None and (longest > limit or self.pad_to != "longest"):
            longest = limit
        return -(-longest // self.multiple) * self.multiple
