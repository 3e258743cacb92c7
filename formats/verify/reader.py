"""State of one verification, its threads, and a reader that hashes files while they are checked.

Every check of content gets its data from a `Reader`. At the level full, the reader also hashes the
data, so an intact file is read only once. Files are read and not memory-mapped, so that a read
error or a file that shrinks raises an exception. Links, directories and pipes are refused, and
opening a pipe does not block. A reader uses two MiB of memory. It reads and hashes a MiB at a time:
with smaller pieces, threads would pass the interpreter's lock to each other more often.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checksums import BLOCK_BYTES, FileHash, FileHasher, block_count
from ..errors import DataprepError, IntegrityError
from ..files import npy
from ..files.safe_open import open_ordinary, wrong_size
from ..manifest.common import CONFIG_NAME, CRC_NAME, FileEntry
from ..manifest.identity import crc32_of_numbers
from ..storage import storage_errors
from .hashes import Hashes
from .report import Finding, Findings, Refused
from .rules import Rule, index_in_row

__all__ = [
    "ProgressCallback",
    "Reader",
    "Task",
    "Verification",
    "VerificationStopped",
    "VerifyPlan",
    "run_tasks",
]

ProgressCallback = Callable[[int, int], None]
Task = Callable[[], int | None]
_QUICK_BYTES = 1 << 20  # smaller datasets are read before threads have started


class VerificationStopped(Exception):  # noqa: N818 (not an error: the caller was interrupted)
    """Exception that ends a worker thread after the verification was interrupted."""


class Verification:
    """State of one verification, shared by its checks in several threads.

    `files` are the entries of all files in the manifest, in the order of the manifest and of
    crc32.npy. `hashing` is true if hashes are checked. `workers` is the number of threads.
    """

    def __init__(
        self,
        directory: Path,
        files: Sequence[FileEntry],
        *,
        hashing: bool,
        workers: int,
        progress: ProgressCallback | None,
    ) -> None:
        self.directory = directory
        self.hashing = hashing
        self.workers = workers
        self.findings = Findings()
        self.notes: list[str] = []
        self.files = {entry.name: entry for entry in files}
        self.stop = threading.Event()
        self.content_crcs: dict[str, int] = {}
        """CRC-32 of the content of each sound file that was hashed."""
        self.total = 0
        self._done = 0
        self._progress = progress
        self._lock = threading.Lock()
        self._blocks, self._block_total = _block_starts(files)
        self._crc_usable = False

    def sound(self, name: str) -> bool:
        """Return whether the file `name` has no findings so far."""
        return not self.findings.any_in(name)

    def advance(self, count: int) -> None:
        """Add `count` to the number of bytes read, and report the progress.

        Raise `VerificationStopped` after an interruption.
        """
        if self.stop.is_set():
            raise VerificationStopped
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._done, self.total)

    def open(self, stack: contextlib.ExitStack, name: str) -> Reader | None:
        """Return a reader for the file `name` of the manifest, or None if the file has findings.

        The exit stack `stack` closes the reader. If the file cannot be opened, add a finding and
        return None.
        """
        if not self.sound(name):
            return None
        try:
            return stack.enter_context(Reader(self, self.files[name]))
        except DataprepError as error:
            self.findings.add_error(error, name)
            return None

    def check_crc_file(self) -> None:
        """Check crc32.npy. If it is intact, it is used to locate damage in other files."""
        with contextlib.ExitStack() as stack:
            reader = self.open(stack, CRC_NAME)
            if reader is not None:
                reader.expect_array("<u4", (self._block_total,))
        self._crc_usable = self.hashing and self.sound(CRC_NAME)

    def has_contents(self, names: Iterable[str]) -> bool:
        """Return whether every file in `names` has a known CRC-32 of its data and no findings."""
        return all(name in self.content_crcs and self.sound(name) for name in names)

    def check_content(self, split: str, stored: str, found: str) -> None:
        """Add a finding if the stored content id of a split differs from the computed one."""
        if stored != found:
            self.findings.add(Finding(
                code="E_CONTENT", file=CONFIG_NAME,
                problem=f"splits.{split}.content_id is {stored[:16]}..., the data give "
                f"{found[:16]}...",
            ))  # fmt: skip

    def expected_crcs(self, entry: FileEntry) -> npt.NDArray[np.uint32] | None:
        """Return the stored CRC-32s (uint32) of the file `entry`, one for each MiB.

        Return None if the level needs no hashes, or if crc32.npy is damaged or has no entry for the
        file.
        """
        if not self._crc_usable or entry.name not in self._blocks:
            return None
        header = npy.begin(self.files[CRC_NAME].bytes, "<u4", (self._block_total,)) or 0
        with open_ordinary(self.directory / CRC_NAME, CRC_NAME) as stream:
            stream.seek(header + 4 * self._blocks[entry.name])
            return np.frombuffer(stream.read(4 * block_count([entry.bytes])), "<u4")


class Reader:
    """Context manager that reads one file from beginning to end and hashes it.

    On entry it opens the file, and raises `IntegrityError` if the size is wrong. On exit, if hashes
    are checked, it reads the rest of the file and adds a finding if a hash differs. If the ``with``
    block raises `Refused` or `DataprepError`, the exception is suppressed and becomes a finding.
    """

    def __init__(self, run: Verification, entry: FileEntry) -> None:
        self.name = entry.name
        self.size = entry.bytes
        self.at = 0
        self._run = run
        self._entry = entry
        self._hashes = Hashes(entry, run.expected_crcs(entry)) if run.hashing else None
        self._failed = False
        self._header = b""
        self.content_crc: int | None = None
        """CRC-32 of the content of the file; None until the end if that is its numbers."""
        self._buffer = bytearray(min(BLOCK_BYTES, max(entry.bytes, 1)))

    def __enter__(self) -> Reader:
        self._stream = open_ordinary(self._run.directory / self.name, self.name)
        size = os.fstat(self._stream.fileno()).st_size
        if size != self.size:  # it changed since the sizes were compared
            self._stream.close()
            raise self._short(size)
        _expect_sequential(self._stream.fileno())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        with self._stream:
            ours = isinstance(error, DataprepError | Refused)
            if isinstance(error, DataprepError | Refused):
                self._run.findings.add_error(error, self.name)
            if error is not None and not ours:
                return False
            self._finish()
        return True

    def _finish(self) -> None:
        if self._hashes is None or self._failed:
            return
        try:
            while self.read():
                pass
            sound = True
            for finding in self._hashes.findings(self._read_again):
                self._run.findings.add(finding)
                sound = False
            if sound:
                self._store_content(self._hashes.table)
        except DataprepError as error:
            self._run.findings.add_error(error, self.name)

    def _store_content(self, table: npt.NDArray[np.uint32] | None) -> None:
        """Store the CRC-32 of the content of the file, from which content ids are computed.

        If a check has set the attribute `content_crc`, store its value. Otherwise compute it from
        `table` (the CRC-32 of each MiB of the file). If both are None, store nothing.
        """
        if self.content_crc is None and table is not None:
            hashed = FileHash(size=self.size, sha256=self._entry.sha256, crc32=table)
            self.content_crc = crc32_of_numbers(hashed, self._header)
        if self.content_crc is not None:
            self._run.content_crcs[self.name] = self.content_crc

    def read(self, limit: int = BLOCK_BYTES) -> memoryview:
        """Return the next `limit` bytes, or fewer at the end of the file.

        The bytes are valid until the next call. Raise `IntegrityError` if the file is shorter than
        the manifest says.
        """
        view = memoryview(self._buffer)[: min(limit, self.size - self.at)]
        filled = 0
        while filled < len(view):
            piece = view[filled:]
            count = self._readinto(piece)
            if not count:
                self._failed = True
                raise self._short(self.at + filled)
            if self._hashes is not None:
                self._hashes.update(piece[:count])
            filled += count
        if filled:
            self._run.advance(filled)
        self.at += filled
        return view

    def _read_again(self) -> FileHash:
        """Read the whole file again and return its hashes, with the CRC-32 of each MiB.

        Raise `IntegrityError` if the file is shorter than the manifest says.
        """
        hasher, left, view = FileHasher(), self.size, memoryview(self._buffer)
        self._stream.seek(0)
        while left:
            self._run.advance(0)
            count = self._readinto(view[:left])
            if not count:
                raise self._short(self.size - left)
            hasher.update(view[:count])
            left -= count
        return hasher.finish()

    def _readinto(self, view: memoryview) -> int:
        try:
            with storage_errors(self.name):
                return int(self._stream.readinto(view) or 0)
        except DataprepError:
            self._failed = True
            raise

    def arrays(self, dtype: str, stop: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Yield the numbers from the current position to byte `stop`, in arrays of at most a MiB.

        If `stop` is None, yield all numbers to the end of the file. Each array is valid until the
        next one is requested.
        """
        stop = self.size if stop is None else stop
        while self.at < stop:
            yield np.frombuffer(self.read(min(BLOCK_BYTES, stop - self.at)), dtype)

    def rows(self, dtype: str, width: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the rest of the file in arrays of shape [k, width], which hold k whole rows.

        Each array is valid until the next one is requested. A row larger than one MiB is assembled
        in memory.
        """
        size = width * np.dtype(dtype).itemsize
        step = max(1, BLOCK_BYTES // max(1, size)) * size
        while self.at < self.size:
            data: memoryview | bytearray = self.read(min(step, BLOCK_BYTES))
            if size > BLOCK_BYTES:
                data = bytearray(data)
                while len(data) < size:
                    data += self.read(size - len(data))
            yield np.frombuffer(data, dtype).reshape(-1, width)

    def checked(
        self, dtype: str, shape: tuple[int, ...], rules: Sequence[Rule], what: str = "row",
        first: int = 0,
    ) -> Iterator[npt.NDArray[Any]]:  # fmt: skip
        """Check the rows of a .npy file against `rules`, and yield the rows in blocks [k, width].

        Add a finding about the first number that breaks a rule. From then on, this rule is not
        checked. The other rules are checked again from the next block on, so a number has only one
        finding. When all rules are broken, no more blocks are yielded. The argument `what` is the
        word for a row in findings, and `first` is the number of the first row of the file.

        Raise `Refused` if the file does not have the type `dtype` and this `shape`.
        """
        self.expect_array(dtype, shape)
        left, width = list(rules), prod(shape[1:])
        for block in self.rows("|u1" if dtype == "|b1" else dtype, width):
            begin = self.at - block.nbytes
            for rule in left:
                found = rule.find(block)
                if found is not None:
                    at, problem = found
                    row, start = first + at // width, begin + at * block.itemsize
                    where = f"{what} {row}{index_in_row(shape[1:], at % width)}"
                    self._run.findings.add(self.finding(
                        rule.code, f"{where} {problem}", start, start + block.itemsize, row
                    ))  # fmt: skip
                    left.remove(rule)
                    break  # a number that breaks one rule need not be reported again
            if not left:
                return
            yield block
            first += len(block)

    def check(
        self, dtype: str, shape: tuple[int, ...], rules: Sequence[Rule], what: str = "row",
        first: int = 0,
    ) -> None:  # fmt: skip
        """Check a .npy file against `rules`, as `checked` does with the same arguments."""
        for _ in self.checked(dtype, shape, rules, what, first):
            pass

    def expect_array(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Read the header of a .npy file and return the size of the header in bytes.

        Raise `Refused` if the file does not have this type and shape.
        """
        described = self._entry.dtype == dtype and self._entry.shape == shape
        begin = npy.begin(self.size, dtype, shape)
        if not described or begin is None:
            raise Refused(self.finding(
                "E_ARRAY", f"must be a .npy array of type {dtype} and shape {shape}: its "
                f"{self.size} bytes are not a header and these numbers",
            ))  # fmt: skip
        self._header = bytes(self.read(begin))
        if not npy.describes(self._header, dtype, shape):
            problem = f"its header does not say type {dtype} and shape {shape}"
            raise Refused(self.finding("E_ARRAY", problem, 0, begin))
        return begin

    def finding(
        self,
        code: str,
        problem: str,
        start: int | None = None,
        stop: int | None = None,
        row: int | None = None,
    ) -> Finding:
        """Return a finding about bytes `start` to `stop` of this file, or about the whole file."""
        block = None if start is None else start // BLOCK_BYTES
        return Finding(
            code=code, file=self.name, problem=problem, start=start, stop=stop, block=block, row=row
        )

    def _short(self, size: int) -> IntegrityError:
        return wrong_size(self.name, self.size, size)


def _block_starts(files: Sequence[FileEntry]) -> tuple[dict[str, int], int]:
    """Return the index of each file's first block in crc32.npy, and the number of all blocks."""
    starts, at = {}, 0
    for entry in files:
        if entry.name != CRC_NAME:
            starts[entry.name] = at
            at += block_count([entry.bytes])
    return starts, at


def _expect_sequential(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyPlan:
    """The checks of one dataset, made from its manifest.

    `folders` are folders that may exist without files. `counts` are the totals for the report.
    `read` are the names of the files whose content is checked, not only hashed. The function
    ``check(run, tasks)`` checks the content of these files. At the same time it runs `tasks`, which
    may be any other tasks.
    """

    kind: str
    recipe_id: str
    files: tuple[FileEntry, ...]
    folders: frozenset[str]
    counts: dict[str, int]
    read: frozenset[str]
    check: Callable[[Verification, Sequence[Task]], None]


def run_tasks(tasks: Sequence[Task], run: Verification) -> list[int | None]:
    """Run `tasks` and return their results in the same order.

    If the files are large, `run.workers` tasks run at the same time, each in a thread. A result or
    a finding must not depend on whether another of `tasks` has ended.
    """
    workers = min(run.workers, len(tasks))
    if workers <= 1 or run.total <= _QUICK_BYTES:
        return [task() for task in tasks]
    with ThreadPoolExecutor(workers, "dataprep-verify") as pool:
        try:
            return [future.result() for future in [pool.submit(task) for task in tasks]]
        except BaseException:
            run.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
