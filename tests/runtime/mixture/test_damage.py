"""Damage in one of several datasets: the error says in which, as all have files of these names."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import DataprepError, IntegrityError, StorageError
from dataprep.formats.read import directory
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.rows.windows import WindowDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.runner import run_here

TOKENS = "train/tokens-00000.bin"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets a, b and c."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate("abc"):
        make_dataset(tmp_path / name, {"train": random_split([[90, 300, 80]], seed=number)})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def spoil(path: Path) -> None:
    path.write_text("{")


def make(**options: Any) -> Any:
    return make_loader({"a": 1, "b": 1, "c": 1}, "train", 2, seq_len=8, **options)


DAMAGE = [
    (cut, TOKENS, "E_SIZE"),
    (spoil, "config.json", "E_MANIFEST"),
    (Path.unlink, TOKENS, "E_MISSING"),
]


@pytest.mark.parametrize(("damage", "file", "code"), DAMAGE)
def test_opening_names_the_dataset(damage: Any, file: str, code: str, capsys: Any) -> None:
    """In Python and on the command line; of a single dataset the file alone stays."""
    damage(Path("b", file))
    with pytest.raises(DataprepError) as caught:
        make()
    assert (caught.value.code, caught.value.where) == (code, f"b/{file}")
    weights = ("--weight", "1", "--weight", "1")
    options = ("--step", "0", "--batch-size", "2", "--seq-len", "8")
    done = run_here(capsys, "order", "a", "b", *weights, *options)
    assert done.stderr.startswith(f"dataprep: error[{code}] b/{file}: ")
    done = run_here(capsys, "order", "b", *options)
    assert done.stderr.startswith(f"dataprep: error[{code}] {file}: ")


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_names_the_dataset(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut off while it is read without a map, with and without workers."""
    monkeypatch.setattr(directory, "is_remote", lambda _: True)
    loader = make(num_workers=workers)
    cut(Path("b", TOKENS))
    with pytest.raises((IntegrityError, StorageError)) as caught:
        list(itertools.islice(loader, 50))
    assert caught.value.where == f"b/{TOKENS}"


def test_sources_by_other_names() -> None:
    """A source that is not called by its path is named by it all the same."""
    parts = {
        name.upper(): WindowDataset(open_dataset(name, io="pread").split("train"), seq_len=8)
        for name in "ab"
    }
    both = MixtureDataset(parts)
    cut(Path("b", TOKENS))
    with pytest.raises((IntegrityError, StorageError)) as caught:
        both.batch([0, len(both) - 1])
    assert caught.value.where == str(Path("b", TOKENS).absolute())


@pytest.mark.parametrize("asked", [("--step", "0"), ("--doc", "1", "--source", "1")])
def test_tracing_names_the_dataset(asked: tuple[str, ...], capsys: Any) -> None:
    """Offsets that no build wrote are met when documents are looked up."""
    file = Path("b/train/docs-00000.npy")
    data = bytearray(file.read_bytes())
    data[-32:] = b"\xff" * 32
    file.write_bytes(data)
    weights = ("--weight", "1", "--weight", "1")
    done = run_here(
        capsys, "order", "a", "b", *weights, *asked, "--batch-size", "9", "--seq-len", "8"
    )
    assert "error[" in done.stderr
    assert "b/train/docs-00000.npy: " in done.stderr


def test_rows_that_do_not_fit_name_the_dataset() -> None:
    """Nothing is damaged, and still one wants to know where."""
    shutil.rmtree("b")
    make_dataset(Path("b"), {"train": random_split([[3]])})
    with pytest.raises(DataprepError) as caught:
        make()
    assert caught.value.where == "split train of b"
