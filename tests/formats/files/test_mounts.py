"""How files are read where nothing is said: maps on local file systems, reads on remote ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dataprep.formats.errors import UsageError
from dataprep.formats.files import mounts
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.read.open_files import choose_io
from dataprep.runtime.create import create_loader
from dataprep.runtime.rows.windows import WindowDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.pair_datasets import make_pairs

LINE = "36 27 {device} / {place} rw,relatime shared:1 - {kind} server:/share rw,vers=4.2"


def fabricated(folder: Path, kind: str) -> Path:
    """A list of mounts in which the file system of `folder` is of another kind."""
    device = folder.stat().st_dev
    own = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        LINE.format(device=f"1{own}", place="/other", kind="ext4"),
        LINE.format(device=own, place="/data", kind=kind),
        LINE.format(device=f"{own}0", place="/more", kind="ext4"),
    ]
    file = folder / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("kind", "io"),
    [
        ("nfs4", "pread"), ("nfs", "pread"), ("cifs", "pread"), ("smb3", "pread"),
        ("lustre", "pread"), ("gpfs", "pread"), ("9p", "pread"), ("fuse.sshfs", "pread"),
        ("fuse", "pread"), ("ceph", "pread"), ("ext4", "mmap"), ("xfs", "mmap"),
        ("tmpfs", "mmap"), ("overlay", "mmap"), ("fuseblk", "mmap"), ("nfsd", "mmap"),
    ],
)  # fmt: skip
def test_remote_file_systems_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, io: str
) -> None:
    """Datasets of every kind, and loaders, choose by the type; what is asked for holds."""
    make_dataset(tmp_path / "d", {"train": random_split([[30]])})
    make_pairs(tmp_path / "p")
    monkeypatch.setattr(mounts, "_MOUNTS", fabricated(tmp_path, kind))
    assert open_dataset(tmp_path / "d").io == open_arrays(tmp_path / "p").io == io
    rows = create_loader(tmp_path / "d", "train", 1, seq_len=4).dataset_obj
    assert isinstance(rows, WindowDataset)
    assert rows.split.dataset.io == io
    assert open_dataset(tmp_path / "d", io="mmap").io == "mmap"
    assert open_dataset(tmp_path / "d", io="pread").io == "pread"


def test_here(tmp_path: Path) -> None:
    """The disk of the tests is known for what it is, and is mapped."""
    device = tmp_path.stat().st_dev
    if mounts._MOUNTS.exists():
        text = mounts._MOUNTS.read_text()
        assert mounts.mounted_type(text, os.major(device), os.minor(device)) is not None
    assert choose_io(None, tmp_path) == "mmap"
    assert choose_io(None, tmp_path / "missing") == "mmap"
    with pytest.raises(UsageError, match="must be one of mmap, pread, got 'direct'"):
        choose_io("direct", tmp_path)  # type: ignore[arg-type]


def test_without_a_list_of_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, files are mapped."""
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "none")
    assert choose_io(None, tmp_path) == "mmap"
