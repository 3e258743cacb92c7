"""Says early, and in one line, that a worker process could not be given something.

Started by ``"spawn"`` or ``"forkserver"``, a worker gets the dataset and the collate function
pickled. Where that fails, torch fails in the middle of the first epoch with a traceback of the
pickling of its own objects. Here the same is tried when the loader is made, written to nowhere.
"""

from __future__ import annotations

import pickle
from typing import Any

from dataprep.formats.errors import UsageError

__all__ = ["require_picklable"]

_ENOUGH = 64 << 20  # bytes of a dataset that are pickled to see that it can be


class _EnoughError(Exception):
    """So much was pickled that the rest will be too."""


class _Nowhere:
    """A file that counts."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
        self.written += size
        if self.written > _ENOUGH:
            raise _EnoughError
        return int(size)


def require_picklable(where: str, value: Any, start_method: str) -> None:
    """Raise `UsageError` about the argument `where` if a worker could not be given `value`.

    Under ``"fork"`` nothing is pickled, and nothing is tried. Otherwise costs the pickling of the
    first 64 MiB.

    >>> require_picklable("collate_fn", print, "spawn")
    """
    if start_method == "fork":
        return
    try:
        pickle.Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except _EnoughError:
        return
    except Exception as error:
        raise UsageError(
            f"{type(value).__name__} cannot be sent to worker processes started by "
            f"{start_method!r} ({type(error).__name__}: {error})", where=where,
            remedy="Define functions and classes at the top of a module, not inside functions; or "
            "use num_workers=0.",
        ) from None  # fmt: skip
