"""A stand-in for awkward, for interpreters that do nothing but encode.

gigatoken hands back its ids as an awkward Array, which a build takes apart again at once. Importing
awkward takes a quarter of a second in every worker, and wrapping and checking each batch a fifth of
the time that encoding does. A worker process is ours alone, so there the one function that
gigatoken calls is answered by this module, which keeps the two arrays as they are. It is never
installed in a process of the user's, nor where awkward is loaded already; `engine` proves on the
probes that it gives the same ids, and takes it away again if not.
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
    """Rows of different lengths: the items of all of them, and how many each has."""

    items: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]


class _StandIn(ModuleType):
    """Has what gigatoken asks of awkward when it encodes a list, and nothing else."""

    class Array:
        """gigatoken asks whether its input is one; it never is."""

    @staticmethod
    def unflatten(items: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Ragged:
        """What `awkward.unflatten` is called for."""
        return Ragged(items, counts)


def install_stand_in() -> bool:
    """Answer `import awkward` with the stand-in; whether it could still be done."""
    return isinstance(sys.modules.setdefault(_NAME, _StandIn(_NAME)), _StandIn)


def remove_stand_in() -> None:
    """Let `import awkward` find the real one again."""
    with contextlib.suppress(KeyError):
        if isinstance(sys.modules[_NAME], _StandIn):
            del sys.modules[_NAME]
