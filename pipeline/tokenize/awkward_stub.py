"""Replacement for the package awkward, for processes that do nothing but encode.

gigatoken returns its ids as an awkward Array, which a build takes apart at once. Importing awkward
takes a quarter of a second in every worker. Making and checking the Array of each batch takes a
fifth of the time of encoding. No user code runs in a worker process, so a worker can use this
module in place of awkward. The only function of awkward that gigatoken calls is replaced by a
function that returns its arguments. The replacement is not installed in the user's process, nor in
a process that has loaded awkward already. The engine checks that the replacement gives the same
ids, and removes it if not.
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
    """Module with the names of awkward that gigatoken uses to encode a list."""

    class Array:
        """Class that gigatoken uses in `isinstance` checks of its input. It has no instances."""

    @staticmethod
    def unflatten(items: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Ragged:
        """Return the arguments, which `awkward.unflatten` would combine into an Array."""
        return Ragged(items, counts)


def install_stand_in() -> bool:
    """Make `import awkward` find the replacement. Return False if awkward was loaded before."""
    return isinstance(sys.modules.setdefault(_NAME, _StandIn(_NAME)), _StandIn)


def remove_stand_in() -> None:
    """Make `import awkward` find the real module again."""
    with contextlib.suppress(KeyError):
        if isinstance(sys.modules[_NAME], _StandIn):
            del sys.modules[_NAME]
