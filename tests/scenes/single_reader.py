"""What a process reads of a single file: in a module that imports little, for those spawned."""

from __future__ import annotations

from typing import Any

from dataprep.pipeline.interop.single_file import SingleFile

__all__ = ["put_some", "read_some"]


def read_some(single: SingleFile) -> list[Any]:
    """A few rows of arrays and of a split."""
    return [single.read(name, 0, 5).tolist() for name in ("a0", "a1", "splits/train")]


def put_some(single: SingleFile, queue: Any) -> None:
    """The same, for whoever waits at the other end."""
    queue.put(read_some(single))
