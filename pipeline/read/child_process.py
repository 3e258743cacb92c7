"""Child process for libraries that may crash while they read a file.

One wrong byte in a Parquet file can abort the process that reads it, without an exception. Inside a
`reading_apart()` block, functions decorated with `apart` or `streamed_apart` therefore run in a
child process, and a crash becomes an error about the file. The first call starts the child, and all
later calls use it. Outside such a block the functions run in the calling process. Workers need no
such block, because the coordinator reports their crashes. Decorated functions must be defined at
the top level of a module, and their arguments and results must be picklable.

On Linux the child is a fork, which starts in a few milliseconds. On other systems, or if this
process has several threads and has loaded a library that uses threads or locks, the child is a new
interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

import dataprep
from dataprep.formats.errors import DataprepError, InputError, StorageError, describe_exit

from .process_limits import end_without_reader

if TYPE_CHECKING:  # at run time only a process with such a child loads it
    from multiprocessing.connection import Connection

__all__ = [
    "CRASHES",
    "LIBRARY_FORMATS",
    "apart",
    "crash_error",
    "reading_apart",
    "serve",
    "streamed_apart",
]

CRASHES = frozenset({
    signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
})  # fmt: skip
"""Signals that end a process because of a fault in its code."""

_WITH_LOCKS = ("tokenizers", "gigatoken", "torch", "pyarrow", "datasets", "h5py")
"""Libraries with threads or locks."""

LIBRARY_FORMATS = ("parquet", "arrow", "hf", "pt")
"""Formats that libraries in C or C++ read."""

_PARALLELISM = "TOKENIZERS_PARALLELISM"

P = ParamSpec("P")
T = TypeVar("T")


def crash_error(where: str, number: int) -> InputError:
    """Return the error about the file `where`, whose reader crashed with the signal `number`."""
    return InputError(
        f"cannot be read: the library that reads it crashed ({signal.Signals(number).name})",
        where=where, code="E_CRASH", remedy="Fetch or write the file again.",
    )  # fmt: skip


class _Child:
    """Child process and the connection to it. It answers one request at a time."""

    def __init__(self) -> None:
        from multiprocessing.connection import Pipe

        ours, theirs = Pipe()
        with theirs:
            alone = threading.active_count() == 1 or sys.modules.keys().isdisjoint(_WITH_LOCKS)
            free = sys.platform == "linux" and alone
            self._process = _fork(theirs) if free else _spawn(theirs)
        self._connection: Connection = ours
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._given_up: list[int] = []
        self._status: int | None = None

    def ask(self, where: str, *request: object, done: Callable[..., object] | None = None) -> Any:
        """Return the child's answer to `request`, or raise the exception that the child reports.

        If the child dies, raise an error about the file `where`. If the called function reports
        progress before it returns, `done` is called in this process with the reported values.
        """
        with self._lock:
            given_up = [self._given_up.pop() for _ in range(len(self._given_up))]
            try:
                found = self._exchange(where, given_up, *request)
                while found[0] is None:
                    if done is not None:
                        done(*found[1])
                    found = self._exchange(where)
            except BaseException:  # the child has ended, or a signal came before the answer
                if _scope.child is self:
                    _scope.child = None
                self.end()
                raise
        good, answer = found
        if not good:
            raise answer
        return answer

    def _exchange(self, where: str, *request: object) -> Any:
        """Send `request`, if there is one, and return the next message from the child.

        Raise an error about the file `where` if the child has ended.
        """
        try:
            if request:
                self._connection.send(request)
            return self._connection.recv()
        except (EOFError, OSError):  # it has ended, now or in an earlier request
            raise self._death(where) from None

    def stream(self, where: str, function: object, arguments: object) -> Generator[Any]:
        """Yield the items of the generator `function`, which runs in the child process.

        The child computes each item only when it is requested.
        """
        number = next(self._numbers)
        self.ask(where, "open", number, function, arguments)
        try:
            while item := self.ask(where, "next", number):
                yield item[0]
        finally:  # no request: this may run in the garbage collector, in the middle of `ask`
            self._given_up.append(number)

    def _death(self, where: str) -> DataprepError:
        self.end()
        status = self._status or 0
        if -status in CRASHES:
            return crash_error(where, -status)
        return StorageError(
            f"the process that read it {describe_exit(status)}", where=where, code="E_WORKER",
            remedy="If memory ran out, free some; then run the command again.",
        )  # fmt: skip

    def end(self) -> None:
        """Kill the child unless it has ended. The child only reads files, so nothing is lost."""
        self._connection.close()
        if self._status is None:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if not ended:
                os.kill(self._process, signal.SIGKILL)  # no effect if it has just ended
                status = os.waitpid(self._process, 0)[1]
            self._status = os.waitstatus_to_exitcode(status)


class _Scope:
    """State of `reading_apart`: how many of its blocks are open, and the child process or None."""

    def __init__(self) -> None:
        self.depth = 0
        self.child: _Child | None = None
        self.lock = threading.RLock()  # the garbage collector may end a block while it is held

    def child_or_none(self) -> _Child | None:
        with self.lock:
            if self.depth and self.child is None:
                self.child = _Child()
            return self.child


_scope = _Scope()


@contextlib.contextmanager
def reading_apart() -> Iterator[None]:
    """Run functions decorated with `apart` in a child process within the block.

    Blocks may be nested. The child process ends with the outermost block.
    """
    with _scope.lock:
        _scope.depth += 1
    try:
        yield
    finally:
        with _scope.lock:
            _scope.depth -= 1
            child = _scope.child if not _scope.depth else None
            if child is not None:
                _scope.child = None
        if child is not None:
            child.end()


def apart(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate `function` so that it runs in the child process inside `reading_apart` blocks.

    The first argument of the function must be a path, or an object whose attribute `name` is the
    name of a file. Errors contain this name. The function may take a callable `done` and call it to
    report progress. The `done` that the caller passes then runs in the caller's process.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        child = _scope.child_or_none()
        if child is None:
            return function(*args, **kwargs)
        done = cast("Callable[..., object] | None", kwargs.pop("done", None))
        answer: T = child.ask(
            _name(args[0]), "call", run, (args, kwargs), done is not None, done=done
        )
        return answer

    return run


def streamed_apart(function: Callable[P, Iterator[T]]) -> Callable[P, Generator[T]]:
    """Decorate a generator function so that it runs in the child process, as with `apart`."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        child = _scope.child_or_none()
        if child is None:
            yield from function(*args, **kwargs)
        else:
            yield from child.stream(_name(args[0]), run, (args, kwargs))

    return run


def _name(file: object) -> str:
    return str(file) if isinstance(file, str | Path) else str(getattr(file, "name", file))


def _fork(theirs: Connection) -> int:
    with _as_if_configured(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about idle threads of libraries
        pid = os.fork()
    if not pid:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            kept = theirs.fileno()
            os.closerange(3, kept)  # locks and pipes, which must be closed when this process ends
            os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
            serve(kept)
        finally:
            os._exit(1)
    return pid


@contextlib.contextmanager
def _as_if_configured() -> Iterator[None]:
    """Set TOKENIZERS_PARALLELISM within the block, so that `tokenizers` does not warn about forks.

    The warning is not needed, because the child does not use `tokenizers`.
    """
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = before or "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]


def _spawn(theirs: Connection) -> int:
    import subprocess

    root = str(Path(dataprep.__path__[0]).parent)
    start = (
        f"import sys; sys.path.append({root!r}); "
        f"from dataprep.pipeline.read.child_process import serve; serve({theirs.fileno()})"
    )
    process = subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, "-P", "-c", start], stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
    )  # fmt: skip
    process.returncode = 0  # keeps Popen from waiting for it, as `_Child.end` does
    return process.pid


def serve(descriptor: int) -> NoReturn:
    """Answer requests on the connection `descriptor`, and exit when its other end is closed.

    This is the main loop of the child process.
    """
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    os.dup2(2, 1)  # output of libraries must not mix with results
    _scope.depth, _scope.child, _scope.lock = 0, None, threading.RLock()
    end_without_reader(descriptor)
    faulthandler.disable()
    _leave_no_core()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the threads of OpenMP do not survive a fork
    pipe = Connection(descriptor)
    opened: dict[int, Iterator[Any]] = {}
    while True:
        try:
            pipe.send(_answer(pipe, opened, *pipe.recv()))
        except (EOFError, ConnectionError):
            os._exit(0)


def _answer(
    pipe: Connection,
    opened: dict[int, Iterator[Any]],
    given_up: Sequence[int],
    verb: str,
    *request: Any,
) -> tuple[bool, Any]:
    try:
        for number in given_up:
            opened.pop(number).close()  # type: ignore[attr-defined]
        match verb, request:
            case "call", (function, (args, kwargs), tells):
                told = {"done": lambda *values: pipe.send((None, values))} if tells else {}
                return True, function(*args, **kwargs, **told)
            case "open", (number, function, (args, kwargs)):
                opened[number] = function(*args, **kwargs)
            case "next", (number,):
                for item in opened[number]:
                    return True, (item,)
    except DataprepError as error:
        return False, error
    except MemoryError:
        return False, MemoryError()
    except Exception as error:  # raised in the parent, with its traceback as a note
        import traceback

        return False, _picklable(error, traceback.format_exc())
    return True, None


def _picklable(error: Exception, trace: str) -> Exception:
    """Return `error` with the traceback `trace` as a note.

    If `error` cannot be pickled, return a `RuntimeError` with its type and message instead.
    """
    error.add_note(trace)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
    except Exception:  # exceptions of other libraries may hold anything
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(trace)
    return error


def _leave_no_core() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
