"""The only module that creates, renames or removes files and directories.

`FileWriter` creates a file, never overwrites one, and hashes every byte that it writes. A directory
appears under its final name only when it is complete and on stable storage. If several builders
publish to the same name, exactly one succeeds. A failure of the operating system is raised as a
`StorageError` that names the path.

Files are written with a loop of `os.write` calls, because numpy's `tofile` hides the cause of a
failure, and writing to a memory map on a full disk kills the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from .checksums import FileHash, FileHasher
from .errors import BusyError, StorageError

__all__ = [
    "FileWriter",
    "create_directory",
    "create_file",
    "free_bytes",
    "link_file",
    "open_for_update",
    "overwrite",
    "publish_directory",
    "publish_file",
    "remove_empty_directory",
    "remove_file",
    "remove_tree",
    "rename",
    "replace_directory",
    "replace_file",
    "scratch_directory",
    "storage_errors",
    "sync_directory",
    "sync_file",
    "system_error",
    "unnamed_file",
    "write_file",
]

_WRITE_BYTES = 8 << 20
_FULL = ("E_NOSPACE", "Free some space and run the same command again: finished work is kept.")
_DENIED = ("E_READONLY", "Choose a place that can be written to.")
_EXISTS = ("E_EXISTS", "Something else stands there: remove it, or choose another place.")
_UNKNOWN = ("E_IO", "Check the disk, then run the command again.")
_MEANING = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL,
    errno.EACCES: _DENIED, errno.EPERM: _DENIED, errno.EROFS: _DENIED,
    errno.EEXIST: _EXISTS, errno.ENOTDIR: _EXISTS,
    errno.EFBIG: ("E_TOOBIG", "Raise the file size limit (ulimit -f) or use another file system."),
    errno.EMFILE: ("E_OPENFILES", "Raise the limit of open files (ulimit -n)."),
}  # fmt: skip
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Raise a `StorageError` about `path`, with advice, if the block raises an OSError."""
    try:
        yield
    except OSError as error:
        raise system_error(error, path) from error


def system_error(error: OSError, place: Path | str) -> StorageError:
    """Return `error` as a `StorageError` about the path `place`, with advice."""
    path = Path(place)
    reason = os.strerror(error.errno) if error.errno else str(error)
    code, remedy = _MEANING.get(error.errno or 0, _UNKNOWN)
    if code == "E_NOSPACE":
        reason += f"; {_free_files(path)}{free_bytes(path):,} bytes are free"
    return StorageError(reason, where=str(path), code=code, remedy=remedy)


def _free_files(path: Path) -> str:
    """Return a note for messages if the file system of `path` has no free inodes, else "".

    Such a file system accepts no new file, even if it has free bytes.
    """
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return "no more files fit (no inodes), " if found.f_files and not found.f_favail else ""
    return ""


def free_bytes(path: Path) -> int:
    """Return the number of bytes that an ordinary user can write on the file system of `path`.

    Return 0 if that is unknown.
    """
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


class FileWriter:
    """A new file whose content is hashed while it is written.

    Raises `StorageError` if the file exists. As a context manager it removes the file if the block
    fails. The method `close` returns the `FileHash`. The data is on stable storage only after a
    call of `sync_file`. To measure times, pass a function `lap`: it is called with ``"write"``
    after each block is written, and with ``"hash"`` after each block is hashed.
    """

    def __init__(self, path: Path, lap: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._lap = lap
        self._hasher = FileHasher()
        with storage_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = os.open(path, flags, 0o644)

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data` and return its size in bytes."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _WRITE_BYTES):
            block = view[start : start + _WRITE_BYTES]
            self._write(block)
            self._measured("write")
            self._hasher.update(block)
            self._measured("hash")
        return len(view)

    def _write(self, block: memoryview) -> None:
        with storage_errors(self.path):
            while block:
                done = os.write(self._descriptor, block)
                if done == 0:  # never for an ordinary file; the loop must not spin if it happens
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                block = block[done:]

    def _measured(self, stage: str) -> None:
        if self._lap is not None:
            self._lap(stage)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> FileHash:
        """Close the file and return its hash."""
        descriptor, self._descriptor = self._descriptor, -1  # a failed close closes all the same
        with storage_errors(self.path):
            os.close(descriptor)
        return self._hasher.finish()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        if kind is not None:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self.path.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> FileHash:
    """Create the file `path` with the content `data` and return its hash."""
    with FileWriter(path) as writer:
        writer.write(data)
        return writer.close()


def create_directory(
    path: Path, *, exist_ok: bool = False, parents: bool = False, private: bool = False
) -> None:
    """Create the directory `path`.

    With `parents`, missing parents are also created. Raise `StorageError` if the directory exists,
    unless `exist_ok` is True. With `private`, other users have no access.
    """
    with storage_errors(path):
        path.mkdir(0o700 if private else 0o777, parents=parents, exist_ok=exist_ok)


def create_file(path: Path) -> io.FileIO:
    """Create the file `path` and return it open for reading and writing, without a buffer.

    Raise `StorageError` if the file exists.
    """
    with storage_errors(path):
        return io.FileIO(path, "x+")


def unnamed_file(label: str, size: int) -> IO[bytes]:
    """Return an open file of `size` zero bytes that has no name in any directory.

    The file is in memory if the system has memfd_create. The text `label` is then its name in tools
    such as lsof. Otherwise it is a temporary file.
    """
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create(label), "w+b", buffering=0)
    else:
        import tempfile

        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    try:
        os.ftruncate(file.fileno(), size)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a directory with a unique name in `parent`, and remove it after the block."""
    import tempfile

    with storage_errors(parent):
        made = tempfile.TemporaryDirectory(dir=parent, prefix=prefix)
    with made as folder:
        yield Path(folder)


def open_for_update(path: Path, flags: int, *, create: bool) -> int:
    """Open `path` with `flags` and return its descriptor.

    With `create`, a missing file is created, and only this user may read and write it. Raise
    `OSError` if opening fails.
    """
    return os.open(path, flags | (os.O_CREAT if create else 0), 0o600)


def overwrite(descriptor: int, data: bytes) -> None:
    """Replace the content of an open file by `data`.

    A process that reads the file at the same time may see a mixture of old and new bytes.
    """
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def remove_file(path: Path) -> None:
    """Remove a file or a link if it exists."""
    with storage_errors(path):
        path.unlink(missing_ok=True)


def remove_empty_directory(path: Path) -> None:
    """Remove a directory. Raise `StorageError` if it is not empty."""
    with storage_errors(path):
        path.rmdir()


def rename(source: Path, target: Path) -> None:
    """Rename `source` to `target` without a sync. A crash may restore the old name."""
    with storage_errors(target):
        source.rename(target)


def sync_file(path: Path) -> None:
    """Force the content of the file `path` to stable storage.

    If this fails, remove the file and raise `StorageError`. The function does not try again: the
    kernel may have dropped the pages, and a second fsync would report success although data is
    lost (seen on ext4).
    """
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Force the names of the entries of the directory `path` to stable storage."""
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_file(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy if the file system has no hard links."""
    with storage_errors(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy_file(source, target)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as stream, FileWriter(target) as writer:
        while piece := stream.read(_WRITE_BYTES):
            writer.write(piece)
        writer.close()


def publish_directory(source: Path, target: Path, *, durable: bool = True) -> None:
    """Rename the directory `source` to `target`. Raise `BusyError` if `target` is not empty.

    The system call rename(2) replaces only an empty directory, so if several builds publish to
    `target`, exactly one succeeds. With `durable`, the new name is forced to stable storage.
    """
    with storage_errors(target):
        try:
            source.rename(target)
        except OSError as error:
            if error.errno in _TAKEN:
                raise BusyError(
                    "another build was published here first", where=str(target),
                    remedy="Use that one, or choose another --out.",
                ) from None  # fmt: skip
            raise
    if durable:
        sync_directory(target.parent)


def publish_file(source: Path, target: Path) -> None:
    """Give the file `source` the name `target`. Raise `BusyError` if `target` exists.

    The content of `source` must already be on stable storage. The system call link(2) never
    replaces a file, so if several processes publish to `target`, exactly one succeeds.

    If the file system has no hard links, the function checks that `target` does not exist, and then
    renames `source`. A `target` that is created between these two steps is replaced.
    """
    with storage_errors(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS | {errno.EEXIST}:
                raise
            if error.errno == errno.EEXIST or os.path.lexists(target):
                raise BusyError(
                    "another file was put here first", where=str(target),
                    remedy="Use that one, or choose another name.",
                ) from None  # fmt: skip
            source.rename(target)
        source.unlink(missing_ok=True)
    sync_directory(target.parent)


def replace_file(source: Path, target: Path, *, durable: bool = True) -> None:
    """Rename the file `source` to `target`. If `target` exists, it is replaced.

    The content of `source` must already be on stable storage. With `durable`, the new name is also
    forced to stable storage.
    """
    with storage_errors(target):
        source.replace(target)
    if durable:
        sync_directory(target.parent)


def replace_directory(source: Path, target: Path) -> None:
    """Rename the directory `source` to `target`, and remove the directory that was there.

    On local file systems of Linux this is one atomic exchange. Elsewhere two renames are needed,
    and `target` does not exist between them. Readers that mapped the old files can still use them.
    """
    with storage_errors(target):
        if _exchange(source, target):
            sync_directory(target.parent)
            with contextlib.suppress(StorageError):  # the new one stands; what is left does no harm
                remove_tree(source)
            return
        aside = source.with_name(source.name + ".replaced")
        remove_tree(aside)  # from a run that was killed below; `target` has been made since
        target.rename(aside)
        try:
            source.rename(target)
        except OSError:
            aside.rename(target)
            raise
    sync_directory(target.parent)
    with contextlib.suppress(StorageError):
        remove_tree(aside)


def _exchange(source: Path, target: Path) -> bool:
    """Exchange two directories in one step. Return False if the kernel cannot do that.

    Raise `OSError` for any other failure.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    code: int = rename(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE
    )
    if code == 0:
        return True
    error = ctypes.get_errno()
    if error in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(error, os.strerror(error))


def remove_tree(path: Path) -> None:
    """Remove a directory that this package made, with its content, if it exists.

    It is not an error if another process removes entries at the same time.
    """

    def go_on(_: object, __: str, failure: tuple[type, BaseException, object]) -> None:
        if not isinstance(failure[1], FileNotFoundError):
            raise failure[1]

    with storage_errors(path):
        try:
            shutil.rmtree(path, onerror=go_on)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            _remove_with_one_descriptor(path)


def _remove_with_one_descriptor(path: Path) -> None:
    """Remove a directory and its content using few file descriptors.

    In contrast, `shutil.rmtree` needs a descriptor for each level of directories.
    """
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            Path(folder, name).unlink(missing_ok=True)
        for name in folders:
            below = Path(folder, name)
            below.unlink() if below.is_symlink() else below.rmdir()
    path.rmdir()
