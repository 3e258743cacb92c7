"""Datasets of other layouts where ours are expected: named, with the command that converts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import dataprep
from dataprep.cli import main
from dataprep.formats.errors import InputError
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.build import build_embeddings
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.interop.convert import convert
from dataprep.runtime.arrays.pair_data import open_pairs
from tests.scenes import jasper
from tests.scenes.pair_datasets import random_pairs, write_pairs


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
    found = re.search("[Rr]un `dataprep (.*?)` and open", remedy or "")
    assert found
    words = shlex.split(found[1])
    run(*words)
    batch = next(iter(dataprep.create_loader(words[-1], "train", 4)))
    assert len(batch["question_emb"]) == 4


@pytest.mark.parametrize("name", ["my vectors.safetensors", "my vectors.h5"])
def test_vectors_of_others_are_read_by_build(tmp_path: Path, name: str) -> None:
    """A file that is no dataset: every command refuses it alike, and says what works."""
    file = tmp_path / name
    vectors = np.arange(24, dtype=np.float32).reshape(8, 3) + 1
    if file.suffix == ".h5":
        import h5py

        with h5py.File(file, "w") as stream:
            stream["embedding"] = vectors
    else:
        save_file({"embedding": vectors}, file)
    tries: list[Callable[[], object]] = [partial(opener, file) for opener in OPENERS.values()]
    tries.append(lambda: convert(file, tmp_path / "converted"))
    if file.suffix == ".h5":
        options = EmbeddingOptions(out=tmp_path / "built", input=(str(file),))
        tries.append(lambda: build_embeddings(options))
    remedies = set()
    for attempt in tries:
        with pytest.raises(InputError) as caught:
            attempt()
        assert caught.value.exit_code == 7
        remedies.add((caught.value.remedy or "").partition("Vectors alone")[2])
    [remedy] = remedies
    *before, last = [shlex.split(command) for command in re.findall("`(.*?)`", remedy)]
    for words in before:
        assert words[0] == "python"
        subprocess.run([sys.executable, *words[1:]], check=True, cwd=tmp_path)
    assert last[0] == "dataprep"
    run(*last[1:])
    assert len(next(iter(dataprep.create_loader(last[-1], "train", 4)))["embedding"]) == 4


def test_other_files_are_not_taken_for_datasets(tmp_path: Path) -> None:
    """A file or directory of no known layout is told for what it is."""
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(InputError, match="is a file, not the directory of a dataset"):
        dataprep.open_dataset(tmp_path / "a.txt")
    with pytest.raises(dataprep.DataprepError, match="there is no config"):
        dataprep.open_dataset(tmp_path)
