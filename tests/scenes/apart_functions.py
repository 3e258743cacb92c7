"""Functions that run apart: in a module that imports little, for the child process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dataprep.pipeline.read.child_process import apart, streamed_apart

__all__ = [
    "HoldingError",
    "Named",
    "TwoWordsError",
    "counted",
    "end_by",
    "fail",
    "fail_holding",
    "fail_with_two_words",
    "forever",
    "loaded",
    "many_lists",
    "process_of",
    "three_steps",
]


@dataclass
class Named:
    name: str


class TwoWordsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class HoldingError(Exception):
    """Holds what cannot be pickled."""


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
def fail_holding(source: Named) -> None:
    error = HoldingError("a lambda")
    error.held = lambda: None  # type: ignore[attr-defined]
    raise error


@apart
def fail_with_two_words(source: Named) -> None:
    raise TwoWordsError("two", "words")


@apart
def forever(source: Named) -> None:
    """Run for hours in code that lets no other thread run."""
    print("begun", flush=True)
    re.match(r"(a+)+$", "a" * 50 + "b")


@apart
def many_lists(source: Named) -> list[list[int]]:
    """Return so many objects that the garbage collector runs where they are unpickled."""
    return [[number] for number in range(20_000)]


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
