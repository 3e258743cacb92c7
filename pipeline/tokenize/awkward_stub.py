"""A stand-in for awkward, for processes that do nothing but encode.

gigatoken returns its ids as an awkward Array, which a build takes apart at once. Importing awkward
takes a quarter of a second in every worker, and wrapping and checking each batch a fifth of the
time of encoding. No user code runs in a worker process, so there this module replaces the one
function that gigatoken calls; it keeps the two arrays unchanged. It is never installed in a process
of the user, nor where awkward is loaded already; engines.py proves that it gives the same ids, and
removes it if not.
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
    """Rows of different lengths: the items of all rows, and the number in each."""

    items: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]


class _StandIn(ModuleType):
    """A module with the names of awkward that gigatoken uses to encode a list."""

    class Array:
        """A type of input for which gigatoken looks; no input has it."""

    @staticmethod
    def unflatten(items: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Ragged:
        """Return the two arrays that `awkward.unflatten` would wrap."""
        return Ragged(items, counts)


def install_stand_in() -> bool:
    """Answer `import awkward` with the stand-in; return False if awkward was loaded before."""
    return isinstance(sys.modules.setdefault(_NAME, _StandIn(_NAME)), _StandIn)


def remove_stand_in() -> None:
    """Let `import awkward` find the real module again."""
    with contextlib.suppress(KeyError):
        if isinstance(sys.modules[_NAME], _StandIn):
            del sys.modules[_NAME]
