"""Every call of this process that changes the disk, seen before and after it is made.

`watch` puts itself around the functions of `os` (which pathlib and shutil use as well) and around
the one system call that is made through ctypes. A call counts if what it changes lies below
`scope`; opening counts if it creates or truncates, closing if the descriptor could be written to.
`test_syscalls.py` compares what is seen here with what the kernel saw.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dataprep.formats import storage

__all__ = ["NAMES", "Call", "watch"]

NAMES = (
    "open", "write", "writev", "pwrite", "pwritev", "ftruncate", "truncate", "posix_fallocate",
    "copy_file_range", "sendfile", "fsync", "fdatasync", "close", "rename", "replace", "link",
    "symlink", "unlink", "remove", "rmdir", "mkdir", "chmod", "fchmod", "utime", "setxattr",
)  # fmt: skip
_EXCHANGE = "_exchange"
_SECOND = ("rename", "replace", "link", "symlink")  # the second argument is what comes to be


class Call(NamedTuple):
    """One call: the name of the function and the path that it changes."""

    name: str
    path: str


def watch(
    scope: Path,
    around: Callable[[Call, Callable[[], Any]], Any],
    put: Callable[[object, str, Any], None] = setattr,
) -> None:
    """Have every call that changes something below `scope` made by `around(call, make_it)`.

    `put` sets an attribute, as `setattr` or a `monkeypatch` does.
    """
    for name in NAMES:
        if hasattr(os, name):
            put(os, name, _wrapped(str(scope), name, getattr(os, name), around))
    exchange = getattr(storage, _EXCHANGE)

    def renameat2(source: Path, target: Path) -> bool:
        call = Call("renameat2", str(target))
        done: bool = around(call, lambda: exchange(source, target))
        return done

    put(storage, _EXCHANGE, renameat2)


def _wrapped(
    scope: str,
    name: str,
    function: Callable[..., Any],
    around: Callable[[Call, Callable[[], Any]], Any],
) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        path = _changed(name, arguments, named)
        if path is None or not path.startswith(scope):
            return function(*arguments, **named)
        return around(Call(name, path), lambda: function(*arguments, **named))

    return call


def _changed(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """The path that a call changes, if it changes one."""
    if name == "open" and not arguments[1] & (os.O_CREAT | os.O_TRUNC):
        return None
    if name == "close" and not _writable(arguments[0]):
        return None
    target = arguments[1 if name in _SECOND else 0]
    if isinstance(target, int):
        return _path_of(target)
    path = os.fsdecode(target)
    folder = named.get("dir_fd")
    return path if folder is None else f"{_path_of(folder)}/{path}"


def _writable(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
