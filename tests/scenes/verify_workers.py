"""Verifies with several numbers of workers, and the last task first: the report is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from dataprep.formats.errors import DataprepError
from dataprep.formats.verify import reader
from dataprep.formats.verify.verify import VerifyReport, verify

__all__ = ["verify_all_ways", "verify_two_ways"]


def verify_all_ways(path: Path, level: Any = "full", **options: Any) -> VerifyReport:
    """As `verify`, with 1, 2 and 4 workers, and with the last task first."""
    return _verify(_WAYS, path, level, **options)


def verify_two_ways(path: Path, level: Any = "full", **options: Any) -> VerifyReport:
    """As `verify`, with 1 worker and in another way, which is another one each time."""
    return _verify((next(_turns),), path, level, **options)


def _verify(ways: Any, path: Path, level: Any, **options: Any) -> VerifyReport:
    if options.keys() & {"workers", "progress"}:
        return verify(path, level, **options)
    expected = _ended(path, level, workers=1, **options)
    for way in ways:
        with way() as count:
            found = _ended(path, level, workers=count, **options)
        assert _told(found) == _told(expected)
    if isinstance(expected, DataprepError):
        raise expected
    return expected


def _ended(path: Path, level: Any, **options: Any) -> VerifyReport | DataprepError:
    try:
        return verify(path, level, **options)
    except DataprepError as error:
        return error


def _told(end: VerifyReport | DataprepError) -> object:
    return (type(end), end.as_dict()) if isinstance(end, DataprepError) else end


@contextmanager
def _threads(count: int) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_QUICK_BYTES", 0)  # so that small files are divided too
        yield count


@contextmanager
def _last_first() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_QUICK_BYTES", 0)
        patch.setattr(reader, "ThreadPoolExecutor", _LastFirst)
        yield 2


class _LastFirst:
    """Pool that runs its tasks in this thread, the last one first."""

    def __init__(self, workers: int, name: str) -> None:
        self._waiting: list[_Later] = []

    def __enter__(self) -> _LastFirst:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Do nothing: no task runs."""

    def submit(self, task: Callable[[], Any]) -> _Later:
        """Keep `task` until the first result is asked for."""
        self._waiting.append(_Later(self, task))
        return self._waiting[-1]

    def run(self) -> None:
        """Run what waits."""
        while self._waiting:
            self._waiting.pop().run()


class _Later:
    def __init__(self, pool: _LastFirst, task: Callable[[], Any]) -> None:
        self._pool = pool
        self._task = task
        self._result: Any = None

    def run(self) -> None:
        self._result = self._task()

    def result(self) -> Any:
        self._pool.run()
        return self._result


_WAYS = (partial(_threads, 2), partial(_threads, 4), _last_first)
_turns = cycle(_WAYS)
