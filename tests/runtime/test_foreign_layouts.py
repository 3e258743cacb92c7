"""Datasets of other layouts where ours are expected: named, with the command that converts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import dataprep
from dataprep.cli import main
from dataprep.formats.arrays import open_arrays
from dataprep.formats.errors import InputError
from dataprep.runtime.pair_data import open_pairs
from tests.pair_datasets import random_pairs, write_pairs
from tests.pipeline import jasper


def _jasper(folder: Path) -> Path:
    jasper.write(folder / "theirs set", jasper.make())
    return folder / "theirs set"


def _jasper_h5(folder: Path) -> Path:
    jasper.write(folder / "theirs", jasper.make())
    jasper.write_h5(folder / "theirs", jasper.make())
    for file in (folder / "theirs").glob("*.pt"):
        file.unlink()
    return folder / "theirs"


def _converted(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        ours = write_pairs(folder / "ours", random_pairs())
        run("convert", str(ours), str(folder / f"theirs{suffix}"))
        return folder / f"theirs{suffix}"

    return make


def run(*words: str) -> None:
    """Run a command that must succeed."""
    assert main.run(words) == 0


MAKERS = {
    "jasper": _jasper, "jasper h5": _jasper_h5, "safetensors": _converted(".safetensors"),
    "hdf5": _converted(".h5"),
}  # fmt: skip
OPENERS: dict[str, Callable[[Path], object]] = {
    "create_loader": lambda path: dataprep.create_loader(path, "train", 4),
    "open_pairs": open_pairs,
    "open_arrays": open_arrays,
    "open_dataset": dataprep.open_dataset,
    "verify": dataprep.verify,
    "verify stat": lambda path: dataprep.verify(path, "stat"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_other_layouts_are_named_with_the_command(tmp_path: Path, name: str) -> None:
    """Item 128: each way to open one says what it is; the command works, and its result opens."""
    theirs = MAKERS[name](tmp_path)
    remedies = set()
    for opener in OPENERS.values():
        with pytest.raises(InputError, match=r"is (an?|a) .*, not one of dataprep") as caught:
            opener(theirs)
        assert caught.value.code == "E_LAYOUT"
        assert caught.value.where == str(theirs)
        remedies.add(caught.value.remedy)
    assert main.run(["inspect", str(theirs)]) == 7
    [remedy] = remedies
    found = re.search("Run `dataprep (.*?)` and open", remedy or "")
    assert found
    words = shlex.split(found[1])
    run(*words)
    batch = next(iter(dataprep.create_loader(words[-1], "train", 4)))
    assert len(batch["question_emb"]) == 4


def test_vectors_of_others_are_read_by_build(tmp_path: Path) -> None:
    """A .safetensors file that is no dataset: the other command of the message works."""
    file = tmp_path / "vectors.safetensors"
    save_file({"embedding": np.ones((8, 3), np.float32)}, file)
    with pytest.raises(InputError) as caught:
        dataprep.create_loader(file, "train", 4)
    found = re.search("by `dataprep (.*?)`", caught.value.remedy or "")
    assert found
    run(*shlex.split(found[1]))


def test_other_files_are_not_taken_for_datasets(tmp_path: Path) -> None:
    """A file or directory of no known layout is told as before."""
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(InputError, match="no such dataset directory"):
        dataprep.open_dataset(tmp_path / "a.txt")
    with pytest.raises(dataprep.DataprepError, match="there is no config"):
        dataprep.open_dataset(tmp_path)
