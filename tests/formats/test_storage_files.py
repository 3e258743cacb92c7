"""Files that are written, synced, linked: a refusal is one named error and leaves no half file."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from dataprep.formats import storage
from dataprep.formats.errors import StorageError
from tests.scenes.refusals import CODES, FAULTS, failing


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


def test_a_file_of_several_blocks_is_written_and_hashed_whole(tmp_path: Path) -> None:
    """At one go, and as it is hashed: no byte is left out or repeated between two blocks."""
    data = np.random.default_rng(0).bytes((16 << 20) + 5)
    found = storage.write_file(tmp_path / "file", data)
    assert found.size == len(data)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "file").read_bytes() == data
