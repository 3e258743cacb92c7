"""Whatever the operating system refuses ends as one named error, and never as a false success."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats import storage
from dataprep.formats.errors import BusyError, StorageError

CODES = {
    errno.ENOSPC: "E_NOSPACE",
    errno.EDQUOT: "E_NOSPACE",
    errno.EIO: "E_IO",
    errno.EROFS: "E_READONLY",
    errno.EFBIG: "E_TOOBIG",
}
FAULTS = pytest.mark.parametrize("number", CODES, ids=errno.errorcode.get)


def failing(number: int, *, after: int = 0) -> Callable[..., Any]:
    """A system call that fails with `number` once `after` calls have gone by."""
    calls = iter(range(1 << 30))
    real = os.write

    def call(*arguments: Any, **_: Any) -> Any:
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    return call


def test_what_is_written_is_read_back_and_hashed(tmp_path: Path) -> None:
    """The hash is of the bytes on disk, whatever the pieces."""
    with storage.FileWriter(tmp_path / "file") as writer:
        assert writer.write(b"abc") == 3
        assert writer.write(np.arange(5, dtype="<u8").data) == 40
        assert writer.write(b"") == 0
        found = writer.close()
    data = (tmp_path / "file").read_bytes()
    assert found.size == len(data) == 43
    assert found.sha256 == hashlib.sha256(data).hexdigest()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A file that is there stays as it is; a link is not written through."""
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("new")
    for name in ("file", "link"):
        with pytest.raises(StorageError, match="exists") as caught:
            storage.write_file(tmp_path / name, b"new")
        assert caught.value.code == "E_EXISTS"
    assert (tmp_path / "file").read_bytes() == b"old"
    assert not (tmp_path / "new").exists()


@FAULTS
@pytest.mark.parametrize("after", [0, 1])
def test_a_failed_write_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int
) -> None:
    """At the first write or a later one: the right code, the path, and no half file."""
    monkeypatch.setattr(os, "write", failing(number, after=after))
    path = tmp_path / "file"
    with pytest.raises(StorageError) as caught, storage.FileWriter(path) as writer:
        writer.write(b"a")
        writer.write(b"b")
        writer.close()
    assert (caught.value.code, caught.value.exit_code) == (CODES[number], 4)
    assert caught.value.where == str(path)
    assert caught.value.remedy
    assert not path.exists()


def test_no_space_says_how_much_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the number that decides what to do next."""
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"No space left on device; [\d,]+ bytes are free"):
        storage.write_file(tmp_path / "file", b"abc")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes part of the data is followed by one with the rest."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    data = bytes(range(256))
    found = storage.write_file(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data
    assert found.sha256 == hashlib.sha256(data).hexdigest()


def test_a_write_that_takes_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes written is an error, not an endless loop."""
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(StorageError) as caught:
        storage.write_file(tmp_path / "file", b"abc")
    assert caught.value.code == "E_IO"


def test_a_failed_close_is_an_error_and_closes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS reports lost writes at close; the descriptor is gone and must not be closed again."""
    closed: list[int] = []
    real = os.close

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        real(descriptor)
        raise OSError(errno.EIO, "lost")

    path = tmp_path / "file"
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        with pytest.raises(StorageError):
            storage.write_file(path, b"abc")
    assert len(closed) == 1
    assert not path.exists()


@FAULTS
def test_a_failed_fsync_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The file is gone afterwards, so that no second fsync can call lost data safe."""
    path = tmp_path / "file"
    storage.write_file(path, b"abc")
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError) as caught:
        storage.sync_file(path)
    assert caught.value.code == CODES[number]
    assert len(calls) == 1
    assert not path.exists()
    with pytest.raises(StorageError):
        storage.sync_directory(tmp_path)


@FAULTS
@pytest.mark.parametrize("operation", [storage.publish_directory, storage.replace_directory])
def test_a_failed_rename_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    operation: Callable[[Path, Path], None],
) -> None:
    """The new directory keeps its temporary name, and the old one stands."""
    source, target = _pair(tmp_path)

    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "rename", fail)
    monkeypatch.setattr(storage, "_exchange", fail)
    with pytest.raises(StorageError) as caught:
        operation(source, target)
    assert caught.value.code == CODES[number]
    assert caught.value.where == str(target)
    assert (source / "data").read_bytes() == b"new"
    assert (target / "data").read_bytes() == b"old"


def test_the_second_rename_failing_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no exchange and the second rename fails, the old dataset returns."""
    source, target = _pair(tmp_path)
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self == source:
            raise OSError(errno.EIO, "no")
        return real(self, to)

    monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(StorageError):
        storage.replace_directory(source, target)
    assert (target / "data").read_bytes() == b"old"
    assert (source / "data").read_bytes() == b"new"


@pytest.mark.parametrize("exchange", [True, False])
def test_replacing_under_an_open_map_keeps_the_old_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """A reader that mapped the old file goes on reading it; the name has the new one."""
    source, target = _pair(tmp_path)
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)
        storage.create_directory(source.with_name("staging.replaced"))  # left by a killed run
    mapped = np.memmap(target / "data", np.uint8, "r")
    storage.replace_directory(source, target)
    assert bytes(mapped) == b"old"
    assert (target / "data").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def _pair(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "staging", tmp_path / "shards"
    for path, data in ((source, b"new"), (target, b"old")):
        path.mkdir()
        storage.write_file(path / "data", data)
    return source, target


def test_publishing_where_something_stands(tmp_path: Path) -> None:
    """A directory that holds anything is another build's (5); an empty one is taken."""
    source, target = _pair(tmp_path)
    with pytest.raises(BusyError) as caught:
        storage.publish_directory(source, target)
    assert caught.value.exit_code == 5
    (target / "data").unlink()
    storage.publish_directory(source, target)
    assert (target / "data").read_bytes() == b"new"
    assert not source.exists()


def test_publishing_onto_a_file_is_refused(tmp_path: Path) -> None:
    """A file in the place of the directory stays."""
    source, _ = _pair(tmp_path)
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(StorageError) as caught:
        storage.publish_directory(source, tmp_path / "file")
    assert caught.value.code == "E_EXISTS"
    assert (tmp_path / "file").read_bytes() == b"mine"


RACERS, TRIALS = 8, 20

_RACE = """
import sys
from pathlib import Path
from dataprep.formats.errors import BusyError
from dataprep.formats.storage import publish_directory, write_file
base, racer, racers, trials = Path(sys.argv[1]), *map(int, sys.argv[2:])
for trial in range(trials):
    source = base / f"{trial}" / f"staging-{racer}"
    source.mkdir()
    write_file(source / "owner", str(racer).encode())
    (base / f"ready-{trial}-{racer}").touch()
    while not all((base / f"ready-{trial}-{other}").exists() for other in range(racers)):
        pass
    try:
        publish_directory(source, base / f"{trial}" / "shards")
        print(trial, racer)
    except BusyError:
        pass
"""


def test_of_racing_builders_exactly_one_wins(tmp_path: Path) -> None:
    """Eight processes publish at once, twenty times: one wins, seven are told, nothing is mixed."""
    for trial in range(TRIALS):
        (tmp_path / str(trial)).mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, str(tmp_path), str(racer), str(RACERS), str(TRIALS)],
            stdout=subprocess.PIPE, text=True,
        )
        for racer in range(RACERS)
    ]  # fmt: skip
    wins = [line.split() for process in processes for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in processes] == [0] * RACERS
    assert sorted(int(trial) for trial, _ in wins) == list(range(TRIALS))
    for where, racer in wins:
        assert (tmp_path / where / "shards" / "owner").read_text() == racer
        assert len(list((tmp_path / where).iterdir())) == RACERS  # the losers' stagings, shards


@FAULTS
def test_a_failed_link_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An error that does not mean "no hard links here" is an error."""
    storage.write_file(tmp_path / "source", b"abc")
    monkeypatch.setattr(os, "link", failing(number))
    with pytest.raises(StorageError) as caught:
        storage.link_file(tmp_path / "source", tmp_path / "target")
    assert caught.value.code == CODES[number]
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK])
def test_without_hard_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The copy is complete, and never over a file that is there."""
    data = os.urandom(100_000)
    storage.write_file(tmp_path / "source", data)
    monkeypatch.setattr(os, "link", failing(number))
    storage.link_file(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    with pytest.raises(StorageError):
        storage.link_file(tmp_path / "source", tmp_path / "target")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a copy is removed."""
    storage.write_file(tmp_path / "source", b"abc")
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(StorageError) as caught:
        storage.link_file(tmp_path / "source", tmp_path / "target")
    assert caught.value.code == "E_NOSPACE"
    assert not (tmp_path / "target").exists()


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


def test_removing_and_making_directories(tmp_path: Path) -> None:
    """Removing what is not there is fine; making what is there is not, unless said."""
    storage.remove_tree(tmp_path / "nothing")
    storage.create_directory(tmp_path / "one")
    storage.create_directory(tmp_path / "one", exist_ok=True)
    with pytest.raises(StorageError) as caught:
        storage.create_directory(tmp_path / "one")
    assert caught.value.code == "E_EXISTS"
    storage.write_file(tmp_path / "one" / "file", b"x")
    storage.remove_tree(tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_free_bytes_of_what_does_not_exist_yet(tmp_path: Path) -> None:
    """The nearest folder that exists answers."""
    assert storage.free_bytes(tmp_path / "a" / "b" / "c") > 0
