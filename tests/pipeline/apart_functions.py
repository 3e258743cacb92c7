"""Functions that run apart: in a module that imports little, for the child process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dataprep.pipeline.apart import apart, streamed_apart

__all__ = ["Named", "counted", "end_by", "fail", "loaded", "process_of", "three_steps"]


@dataclass
class Named:
    name: str


@apart
def process_of(source: Named) -> int:
    return os.getpid()


@streamed_apart
def counted(source: Named, count: int) -> Iterator[int]:
    for _ in range(count):
        yield os.getpid()


@apart
def fail(source: Named, error: BaseException) -> None:
    raise error


@apart
def end_by(source: Named, number: int) -> None:
    os.kill(os.getpid(), number)


@apart
def loaded(source: Named) -> set[str]:
    return set(sys.modules)


@apart
def three_steps(source: Named, *, done: Callable[[int], None]) -> str:
    for step in (1, 2, 3):
        done(step)
    return "over"
