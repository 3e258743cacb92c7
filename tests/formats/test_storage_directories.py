"""Directories are published and replaced as a whole or not at all, whoever else is at it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats import storage
from dataprep.formats.errors import BusyError, StorageError
from tests.scenes.refusals import CODES, FAULTS
from tests.synced import Synced


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
        left = source.with_name("staging.replaced")  # by a killed run
        left.mkdir()
        storage.write_file(left / "data", b"older")
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


_FEW = """
import resource, sys
from pathlib import Path
from dataprep.formats.storage import remove_tree
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
remove_tree(Path(sys.argv[1]))
"""


def test_a_deep_tree_is_removed_with_few_descriptors(tmp_path: Path) -> None:
    """Thirty levels, each with a file and a link, where a process may have 12 files open."""
    folder = tmp_path / "tree"
    for _ in range(30):
        folder /= "level"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x")
        (folder / "link").symlink_to(tmp_path)
    subprocess.run([sys.executable, "-c", _FEW, str(tmp_path / "tree")], check=True)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("exchange", [True, False])
def test_names_are_on_stable_storage_when_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Published or replaced, file or directory: the folder of the name is synced afterwards."""
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    synced = Synced(monkeypatch)
    for target in ("shards", "file", "shards"):
        source = tmp_path / "staging" / "new"
        source.parent.mkdir()
        if target == "file":
            storage.write_file(source, b"new")
            storage.publish_file(source, tmp_path / target)
        elif (tmp_path / target).exists():
            source.mkdir()
            storage.replace_directory(source, tmp_path / target)
        else:
            source.mkdir()
            storage.publish_directory(source, tmp_path / target, durable=False)
            assert synced.paths == []
            source.mkdir()
            storage.publish_directory(source, tmp_path / target)
        assert synced.paths == [tmp_path]
        assert synced.names[0] >= {target}
        synced.paths.clear()
        synced.names.clear()
        source.parent.rmdir()


def test_a_file_is_published_though_its_scratch_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has its name, the one it was written under may be gone already."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        source.unlink()

    monkeypatch.setattr(os, "link", link)
    storage.write_file(tmp_path / "scratch", b"new")
    storage.publish_file(tmp_path / "scratch", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"
