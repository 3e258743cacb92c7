"""`create_loader` with a dataset and a split, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.runtime.create import create_loader
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.pair_datasets import make_embeddings, make_pairs
from tests.scenes.preferences import make_preferences, random_records


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


def make(kind: str, path: Path, longest: int = 900, max_tokens: int | None = None) -> Path:
    """A dataset of 40 rows or more."""
    lengths = [[longest, *range(300, 900)]]
    texts = {"train": random_split(lengths)}
    if kind == "tokens":
        return make_dataset(path, texts)
    if kind == "chat":
        masks = {"train": random_split(lengths, vocab_size=2)}
        return make_dataset(path, texts, masks=masks, form="chat", max_tokens=max_tokens)
    if kind == "preferences":
        return make_preferences(path, "pairs", [random_records("pairs", 40)])
    if kind == "embeddings":
        return make_embeddings(path, {"embedding": np.ones((80, 3), "f4")})
    return make_pairs(path, 80)


@pytest.mark.parametrize(
    ("kind", "field", "shape"),
    [
        ("tokens", "input_ids", (32, 1024)),
        ("chat", "input_ids", (32, 1024)),
        ("preferences", "chosen_input_ids", (32,)),
        ("embeddings", "embedding", (32, 3)),
        ("pairs", "question_emb", (32,)),
    ],
)
def test_nothing_but_dataset_and_split(
    tmp_path: Path, kind: str, field: str, shape: tuple[int, ...]
) -> None:
    """Item 121: batches of 32 rows, of what the dataset was built for."""
    loader = create_loader(make(kind, tmp_path / "d"), "train")
    batch = next(iter(loader))
    assert tuple(batch[field].shape[: len(shape)]) == shape
    assert loader.sampler_obj.batch_size == 32


def test_conversations_as_long_as_they_were_built(tmp_path: Path) -> None:
    """Item 121: rows hold what the build let through; without a limit the error says what to do."""
    limited = make("chat", tmp_path / "limited", longest=1500, max_tokens=1500)
    assert next(iter(create_loader(limited, "train")))["input_ids"].shape == (32, 1500)
    short = make("chat", tmp_path / "short", max_tokens=900)
    assert next(iter(create_loader(short, "train")))["input_ids"].shape == (32, 1024)
    free = make("chat", tmp_path / "free", longest=1500)
    with pytest.raises(InputError, match=r"has 1,500 tokens.* a larger seq_len"):
        create_loader(free, "train")
    assert next(iter(create_loader(free, "train", seq_len=1500)))["input_ids"].shape == (32, 1500)


def test_a_list_is_no_mixture(tmp_path: Path) -> None:
    """A list of datasets is answered by the weights to give; one of other things is no dataset."""
    path = make_dataset(tmp_path / "d", {"train": random_split([[5000]])})
    several: Any = [str(path), path]
    with pytest.raises(UsageError, match="with a weight each") as caught:
        create_loader(several, "train")
    assert caught.value.remedy == f'Pass {{"{path}": 2}}.'
    odd: Any = [path, 7]
    with pytest.raises(UsageError, match="must be a path or an open dataset"):
        create_loader(odd, "train")


def test_too_little_for_a_batch(tmp_path: Path) -> None:
    """Item 121: fewer rows than a batch: an error with the arithmetic, and a remedy that works."""
    path = make_dataset(tmp_path / "d", {"train": random_split([[5000]])})
    with pytest.raises(UsageError, match="batch_size") as caught:
        create_loader(path, "train", 32)
    assert "32" in str(caught.value)
    assert len(create_loader(path, "train", 4)) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stride", "; pass rows=Windows(stride=...)"),
        ("pack", "; pass rows=Packed(algorithm=...)"),
        ("weigh_by", "; pass dataset_dir=Mixture(weights, by=...)"),
        ("raw", "; pass rows=Embeddings(raw=...)"),
        ("io", "; pass dataset_dir=open_dataset(path, io=...)"),
        ("sead", ""),
    ],
)
def test_arguments_of_row_specs_are_pointed_out(name: str, hint: str) -> None:
    """An option of a spec is a TypeError that names the spec; any other name is a plain one."""
    options: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError) as caught:
        create_loader("shards", "train", **options)
    assert str(caught.value) == f"create_loader() got an unexpected keyword argument {name!r}{hint}"
