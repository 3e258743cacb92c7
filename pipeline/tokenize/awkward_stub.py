"""Replacement for the package awkward, for processes that do nothing but encode.

gigatoken returns the ids of a batch as an awkward Array, from which a build takes only the numbers.
Importing awkward takes a quarter of a second in every worker, and making and checking the Arrays
takes a fifth of the time of encoding. gigatoken calls only one function of awkward. In the
replacement, this function returns its arguments.

The replacement is used only in worker processes, because no user code runs there. It is not
installed in a process that has already loaded awkward. The engine checks that ids stay the same
with the replacement, and otherwise removes the replacement.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Ragged", "install_stand_in", "remove_stand_in"]

_NAME = "awkward"


class Ragged(NamedTuple):
    """Rows of different lengths: the items of all rows, and the number of items in each row."""

    items: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]


class _StandIn(ModuleType):
    """Module that contains only those names of awkward that gigatoken uses to encode a list."""

    class Array:
        """Class that gigatoken uses in `isinstance` checks of its input. It has no instances."""

    @staticmethod
    def unflatten(items: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Ragged:
        """Return `items` and `counts` unchanged. In awkward, this function makes an Array."""
        return Ragged(items, counts)


def install_stand_in() -> bool:
    """Make `import awkward` find the replacement. Return False if awkward was loaded before."""
    return isinstance(sys.modules.setdefault(_NAME, _StandIn(_NAME)), _StandIn)


def remove_stand_in() -> None:
    """Make `import awkward` find the real module again."""
    with contextlib.suppress(KeyError):
        if isinstance(sys.modules[_NAME], _StandIn):
            del sys.modules[_NAME]
