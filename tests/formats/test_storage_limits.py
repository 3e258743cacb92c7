"""Disks that are really full, a limit on the size of files, a directory without permission."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.formats import storage
from dataprep.formats.errors import StorageError


def test_a_full_device_for_real() -> None:
    """/dev/full refuses every write with ENOSPC."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(StorageError) as caught, storage.storage_errors("/dev/full"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    assert caught.value.code == "E_NOSPACE"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_for_real(tiny_disk: Path) -> None:
    """Writing past the end of the disk is E_NOSPACE, and the space comes back."""
    before = storage.free_bytes(tiny_disk)
    with pytest.raises(StorageError, match="bytes are free") as caught:
        storage.write_file(tiny_disk / "file", bytes(2 << 20))
    assert caught.value.code == "E_NOSPACE"
    assert not list(tiny_disk.iterdir())
    assert storage.free_bytes(tiny_disk) == before


_LIMITED = """
import resource, sys
from pathlib import Path
from dataprep.formats.errors import StorageError
from dataprep.formats.storage import write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
path = Path(sys.argv[1])
try:
    write_file(path, bytes(200_000))
except StorageError as error:
    print(error.code, error.exit_code, path.exists())
"""


def test_the_file_size_limit_for_real(tmp_path: Path) -> None:
    """RLIMIT_FSIZE gives a short write and then EFBIG: an error with the limit's name."""
    output = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "file")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert output.split() == ["E_TOOBIG", "4", "False"]


def test_a_read_only_directory(tmp_path: Path) -> None:
    """Without permission to write: E_READONLY, for all but root."""
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError) as caught:
        storage.write_file(tmp_path / "file", b"x")
    assert caught.value.code == "E_READONLY"


def test_free_bytes_of_what_does_not_exist_yet(tmp_path: Path) -> None:
    """The nearest folder that exists answers."""
    assert storage.free_bytes(tmp_path / "a" / "b" / "c") > 0
