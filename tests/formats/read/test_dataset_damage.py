"""A directory that is not as it was written is refused, when it is opened or when it is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataprep.formats.errors import IntegrityError
from dataprep.formats.read.dataset import Split, open_dataset


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def _grow(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"\0")


def _link(file: Path) -> None:
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_cut, "E_SIZE"),
    "grown": (_grow, "E_SIZE"),
    "missing": (Path.unlink, "E_MISSING"),
    "link": (_link, "E_NAME"),
    "folder": (_folder, "E_NAME"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name",
    ["train/tokens-00000.bin", "train/docs-00004.npy", "train/source-00001.npy", "train_idx.pt",
     "tokenizer.json", "crc32.npy"],
)  # fmt: skip
def test_opening_refuses_damage(path: Path, damage: str, name: str) -> None:
    """A file of the wrong size, kind, or no file at all is named when the dataset is opened."""
    harm, code = DAMAGE[damage]
    harm(path / name)
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path)
    assert (caught.value.code, caught.value.where) == (code, name)


def test_opening_refuses_a_folder_that_is_a_link(path: Path) -> None:
    """Though every file behind it is right; the link may lead to another tomorrow."""
    (path / "val").rename(path.parent / "elsewhere")
    (path / "val").symlink_to(path.parent / "elsewhere")
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path)
    assert (caught.value.code, caught.value.where) == ("E_NAME", "val")
    (path / "val").unlink()
    shutil.copytree(path.parent / "elsewhere", path / "val")
    assert open_dataset(path).split("val").documents == 2
    path.rename(path.parent / "moved")  # how one gets to the directory is the caller's affair
    path.symlink_to(path.parent / "moved")
    assert open_dataset(path).split("val").documents == 2


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("train/tokens-00000.bin", lambda split: split.read(0, 3)),
        ("train/tokens-00004.bin", lambda split: split.gather(np.array([20, 30]), 5)),
        ("train/tokens-00004.bin", lambda split: split.gather(np.array([0, 30]), 5)),
        ("train/docs-00000.npy", lambda split: split.document(1)),
        ("train/source-00000.npy", lambda split: split.source(1)),
    ],
)
@pytest.mark.parametrize("harm", [_cut, Path.unlink])
def test_reading_refuses_later_damage(
    path: Path, name: str, ask: Callable[[Split], object], harm: Callable[[Path], None]
) -> None:
    """A file that shrinks or goes after opening, but before its first use, is named."""
    split = open_dataset(path).split("train")
    harm(path / name)
    with pytest.raises(IntegrityError) as caught:
        ask(split)
    assert caught.value.where == name


def test_offsets_that_lie_are_refused(path: Path) -> None:
    """A span that runs backwards or past its shard is damage, not a wrong document."""
    file = path / "train/docs-00000.npy"
    data = bytearray(file.read_bytes())
    data[-24:-16] = (1 << 40).to_bytes(8, "little")
    file.write_bytes(bytes(data))
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path).split("train").document(0)
    assert caught.value.code == "E_OFFSETS"


@pytest.mark.parametrize("number", [1, 5])
def test_source_that_lies_is_refused(path: Path, number: int) -> None:
    """An input number that the manifest does not list is damage."""
    file = path / "train/source-00000.npy"
    data = bytearray(file.read_bytes())
    data[-16:-8] = number.to_bytes(8, "little")
    file.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match=f"input {number} of 1"):
        open_dataset(path).split("train").source(2)


def test_another_tokenizer_is_refused(path: Path) -> None:
    """The same size is not enough: text is never decoded with another tokenizer."""
    file = path / "tokenizer.json"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"!"', b'"?"', 1))
    with pytest.raises(IntegrityError) as caught:
        open_dataset(path).split("train").text(0)
    assert caught.value.code == "E_HASH"
