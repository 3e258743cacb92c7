"""What does not belong to a dataset, or is no ordinary file, is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import Finding, verify
from tests.scenes.verified import LEVELS, codes, outcome


def test_files_that_do_not_belong_are_named(dataset: Path) -> None:
    """At any level, in the directory and in the folders; folders are named, not searched."""
    extras = ["notes.txt", ".hidden", "train/tokens-00009.bin", "train/.tmp", "config.json.bak"]
    for name in extras:
        (dataset / name).write_bytes(b"x")
    (dataset / "test" / "deep").mkdir(parents=True)
    expected = {("E_EXTRA", name) for name in [*extras, "test"]}
    for level in LEVELS:
        assert codes(verify(dataset, level)) == expected


def test_names_from_outside_cannot_play_with_the_terminal(dataset: Path) -> None:
    """Control characters and broken bytes in the name of a stray file are printed escaped."""
    (dataset / "a\x1b[2Jb\nc").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(dataset) + b"/\xff\xfe")).write_bytes(b"")
    for finding in verify(dataset, "stat").findings:
        assert finding.code == "E_EXTRA"
        assert str(finding).isprintable() and str(finding).isascii()


def test_unfinished_builds_beside_it_are_noted(dataset: Path) -> None:
    """A leftover of a killed build is no failure of this dataset."""
    (dataset.parent / ".shards.building-abc").mkdir()
    report = verify(dataset, "stat")
    assert report.ok
    assert any(".shards.building-abc" in note for note in report.notes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "kind",
    ["link", "dangling", "pipe", "folder", "socket"],
)
def test_only_ordinary_files_count(dataset: Path, level: verify_report.Level, kind: str) -> None:
    """A link to the right bytes, a pipe, a folder or a socket in the place of a file: named."""
    for name in ("train/tokens-00000.bin", "crc32.npy", "tokenizer.json", "val_idx.pt"):
        path = dataset / name
        aside = dataset.parent / "aside"
        path.rename(aside)
        _put(path, kind, aside)
        assert set(outcome(dataset, level)) == {name}
        path.rmdir() if kind == "folder" else path.unlink()
        aside.rename(path)
    assert verify(dataset, level).ok


def _put(path: Path, kind: str, aside: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # socket names are short
            server.bind(path.name)
            os.chdir("/")
    else:
        path.symlink_to(aside if kind == "link" else "nowhere")


@pytest.mark.parametrize("kind", ["link", "file", "nothing"])
def test_a_split_folder_must_be_one(dataset: Path, kind: str) -> None:
    """A link to the right folder, a file, or nothing in its place."""
    (dataset / "val").rename(dataset.parent / "val")
    if kind == "link":
        (dataset / "val").symlink_to(dataset.parent / "val")
    elif kind == "file":
        (dataset / "val").write_bytes(b"")
    report = verify(dataset)
    assert ("E_MISSING", "val/tokens-00000.bin") in codes(report)
    assert (("E_NAME", "val") in codes(report)) == (kind != "nothing")


def test_findings_are_bounded(dataset: Path) -> None:
    """Ten thousand strays give a thousand findings and no more."""
    for number in range(3000):
        (dataset / f"stray-{number}").touch()
    assert len(verify(dataset, "stat").findings) == verify_report.MAX_FINDINGS
    findings = verify_report.Findings(limit=2)
    for number in range(5):
        findings.add(Finding(code="E_X", file=str(number), problem="x"))
    assert len(findings.sorted()) == 2 and findings.dropped == 3
    assert findings.any_in("4")


def test_unreadable_files_are_an_environment_problem(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO while reading is reported for its file, ends with 4, and the others are still checked."""
    import errno
    import io

    real = io.FileIO

    class Broken(real):  # type: ignore[misc, valid-type]
        def readinto(self, buffer: Any) -> int:
            if self.fileno() in broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return int(super().readinto(buffer) or 0)

    broken: set[int] = set()
    target = os.stat(dataset / "train/docs-00000.npy").st_ino

    def opened(descriptor: int) -> io.FileIO:
        stream = Broken(descriptor)
        broken.discard(descriptor)
        if os.fstat(descriptor).st_ino == target:
            broken.add(descriptor)
        return stream

    monkeypatch.setattr("dataprep.formats.files.safe_open.io.FileIO", opened)
    report = verify(dataset)
    assert codes(report) == {("E_IO", "train/docs-00000.npy")}
    assert report.exit_code == 4
