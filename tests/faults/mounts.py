"""File systems of a test's own: made, mounted, cut from their power, taken down again.

All mounts live in a mount namespace that only this process and its children see, so nobody else
meets them, and they go with the process even if it is killed. Loop devices detach by themselves at
the unmount. Whatever cannot be had here skips the test and says why.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = [
    "DATA_LOST",
    "NAMES_KEPT",
    "FileSystem",
    "cut_power",
    "mounted_at",
    "needs_commands",
    "needs_mounts",
    "run_quietly",
    "scratch_folder",
]

NAMES_KEPT = 1
"""The journal reaches the disk, the data that nobody synced does not."""
DATA_LOST = 2
"""Nothing reaches the disk that nobody synced."""
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN
_CLONE_NEWNS = 0x20000
_MEGABYTES = {"ext4": 64, "xfs": 400}  # mkfs.xfs takes no less than 300
_FORMAT = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_BUSY_SECONDS = 5


def run_quietly(*command: str | Path) -> None:
    """Run a command; its complaint is in the error if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise OSError(f"{' '.join(words)}: {complaint}")


def cut_power(place: Path, flag: int) -> None:
    """Shut the file system at `place` down, as a power cut does; see the flags above."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", flag))
    finally:
        os.close(descriptor)


def needs_commands(*names: str) -> None:
    """Skip where a command is not installed."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def needs_mounts() -> None:
    """Skip where this process may not mount; from here on it has mounts of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    problem = _own_namespace()
    if problem:
        pytest.skip(problem)


@functools.cache
def _own_namespace() -> str | None:
    """What keeps this process from having a mount namespace of its own; it has one afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        return f"no mount namespace can be made here: {os.strerror(ctypes.get_errno())}"
    try:
        run_quietly("mount", "--make-rprivate", "/")
    except OSError as error:
        return f"mounting is not allowed here: {error}"
    return None


@contextmanager
def scratch_folder(fallback: Path) -> Iterator[Path]:
    """A folder for disk images: in memory, where a sync costs nothing, or else `fallback`."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield fallback
        return
    folder = memory / f"dataprep-faults-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def mounted_at(place: Path) -> bool:
    """Whether something is mounted at `place`, be it shut down."""
    real = os.path.realpath(place)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == real for line in lines)


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """A file system of `kind` in the file `image`, to be mounted at the folder `place`."""

    kind: str
    image: Path
    place: Path
    options: str = ""

    def make(self) -> None:
        """Make it anew, empty."""
        with self.image.open("wb") as stream:
            stream.truncate(_MEGABYTES[self.kind] << 20)
        run_quietly(*_FORMAT[self.kind], self.image)

    def mount(self, *options: str) -> None:
        """Mount it; what its journal says is done first."""
        words = ",".join(["loop", *filter(None, [self.options]), *options])
        run_quietly("mount", "-t", self.kind, "-o", words, self.image, self.place)

    def make_or_skip(self) -> None:
        """Make it anew; skips where that, or mounting it, is not possible."""
        try:
            self.make()
            self.mount()
        except OSError as error:
            pytest.skip(f"{self.kind} cannot be mounted here: {error}")
        self.unmount()

    def unmount(self) -> None:
        """Unmount it, if it is mounted; waits for a process that is just ending."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while mounted_at(self.place):
            try:
                run_quietly("umount", self.place)
            except OSError:
                if time.monotonic() > deadline:
                    run_quietly("umount", "--lazy", self.place)
                    raise
                time.sleep(0.02)

    def remount(self) -> None:
        """Unmount and mount: what comes back is what was on the disk."""
        self.unmount()
        self.mount()

    @property
    def saved(self) -> Path:
        """Where `save` keeps a copy."""
        return self.image.with_name("saved")

    def save(self) -> None:
        """Unmount it and keep its state."""
        self.unmount()
        run_quietly("cp", "--sparse=always", self.image, self.saved)

    def restore(self) -> None:
        """Go back, unmounted, to the state that was kept."""
        self.unmount()
        run_quietly("cp", "--sparse=always", self.saved, self.image)
