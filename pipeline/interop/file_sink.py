"""A file that a library writes, whose failures stay ours.

HDF5 that is refused a write cannot close its file, and crashes the process at its end. So it is
given this object: the first failure is kept, everything after it is taken and dropped, the library
closes in peace, and then the failure is raised.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from dataprep.formats.storage import storage_errors

__all__ = ["FileSink"]


class FileSink:
    """A new file `path` for reading and writing; as a context manager it raises what went wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: OSError | None = None
        with storage_errors(path):
            self._file = path.open("x+b", buffering=0)

    def check(self) -> None:
        """Raise the first failure as a `StorageError`, if there was one."""
        if self.failure is not None:
            with storage_errors(self.path):
                raise self.failure

    def write(self, data: Any) -> int:
        """Write all of `data` where the file stands, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        while view and self.failure is None:
            done = self._kept(lambda: os.write(self._file.fileno(), view))  # noqa: B023
            view = view[done:]
        return size

    def readinto(self, buffer: Any) -> int:
        """Read what was written."""
        return self._kept(lambda: self._file.readinto(buffer) or 0)

    def read(self, size: int = -1) -> bytes:
        """Read what was written."""
        return self._file.read(size) or b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to another place."""
        return self._kept(lambda: self._file.seek(offset, whence))

    def tell(self) -> int:
        """The place."""
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        return self._kept(lambda: self._file.truncate(size))

    def flush(self) -> None:
        """Nothing is buffered."""

    def _kept(self, call: Callable[[], int]) -> int:
        if self.failure is None:
            try:
                return call()
            except OSError as error:
                self.failure = error
        return 0

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if self.failure is not None:
            with storage_errors(self.path):
                raise self.failure from error
