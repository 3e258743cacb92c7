"""A disk that fills up in the middle of a build: one line that says what is free and needed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats import storage
from dataprep.formats.errors import StorageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.run import check_disk, used_bytes
from tests.faults.mounts import needs_mounts, run_quietly
from tests.scenes.corpora import STORIES, build_into, write_large
from tests.support import REPOSITORY

TOKENIZER = str(REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json")
SAID = re.compile(
    r"error\[E_NOSPACE\] \S+: No space left on device; ([\d,]+) bytes are free, "
    r"about ([\d,]+) are needed to finish\. Free some space [^\n]+"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    needs_mounts()
    place = tmp_path / "disk"
    place.mkdir()
    run_quietly("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place)
    yield place
    run_quietly("umount", place)


def fill_after_check(monkeypatch: pytest.MonkeyPatch, disk: Path, leave: int) -> Path:
    """Something else takes the space, but for `leave` bytes, once the build has found enough."""
    filler = disk / "filler"

    def check_and_fill(*arguments: Any, **named: Any) -> None:
        check_disk(*arguments, **named)
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - leave))

    monkeypatch.setattr("dataprep.pipeline.run.check_disk", check_and_fill)
    return filler


def figures(error: StorageError) -> tuple[int, int]:
    """Bytes that are free and needed, as the message says."""
    said = SAID.fullmatch(str(error))
    assert said is not None, str(error)
    free, needed = (int(number.replace(",", "")) for number in said.groups())
    return free, needed


@pytest.mark.parametrize("leave", [64 << 10, 16 << 20])
def test_both_figures(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int
) -> None:
    """Full in the first unit or a later one: what is needed is more than is free, and suffices."""
    large = write_large(tmp_path / "large.jsonl", 17)
    with monkeypatch.context() as patch:
        filler = fill_after_check(patch, disk, leave)
        with pytest.raises(StorageError) as caught:
            build_into(disk / "out", large, tokenizer=TOKENIZER)
    free, needed = figures(caught.value)
    assert free < leave
    assert needed > free
    taken = used_bytes(disk) - filler.stat().st_size
    assert (taken > 0) == (leave > 1 << 20)  # finished units are kept
    filler.unlink()
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - needed - (64 << 10)))
    report = build_into(disk / "out", large, tokenizer=TOKENIZER)
    assert (report.resumed_units > 0) == (taken > 0)
    assert verify(disk / "out").findings == ()


def test_the_check_before_the_start_says_it_once(disk: Path) -> None:
    """A disk that is full to begin with is refused with its two figures, and no third."""
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - (16 << 10)))
    with pytest.raises(StorageError, match=r"needed and [\d,]+ are free") as caught:
        build_into(disk / "out", STORIES, tokenizer=TOKENIZER)
    assert str(caught.value).count("needed") == 1


def test_no_inodes(tmp_path: Path) -> None:
    """Where no more files fit, free bytes are not what is missing, and the message says so."""
    needs_mounts()
    place = tmp_path / "disk"
    place.mkdir()
    run_quietly("mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=3", "tmpfs", place)
    try:
        storage.write_file(place / "a", b"")
        storage.write_file(place / "b", b"")
        with pytest.raises(StorageError, match=r"device; no more files fit \(no inodes\), [\d,]+ "):
            storage.write_file(place / "c", b"")
    finally:
        run_quietly("umount", place)


def test_links_count_once(tmp_path: Path) -> None:
    """A file with two names is on the disk once; a folder that is not there holds nothing."""
    (tmp_path / "a").write_bytes(bytes(1000))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/c").write_bytes(bytes(50))
    assert used_bytes(tmp_path) == 1050
    assert used_bytes(tmp_path / "none") == 0
