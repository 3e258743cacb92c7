"""Wrappers and text windows under every start method, and on real text with real tokenizers."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.preprocessed_map import PreprocessedDataset
from dataprep.runtime.external.tokenize_engine import TokenizeEngine
from dataprep.text import create_dataloaders, text_windows
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:left out")]

METHODS: list[Any] = ["fork", "spawn", "forkserver"]


def texts() -> Iterator[dict[str, str]]:
    return ({"text": "" if n in (5, 31) else f"Row {n}"} for n in range(60))


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def text_of(samples: list[Any]) -> list[str]:
    return [bytes(sample["input_ids"].tolist()).decode() for sample in samples]


def served(batches: Any) -> list[tuple[int, ...]]:
    rows = (row for batch in batches for row in batch["input_ids"].tolist())
    return [tuple(id_ for id_ in row if id_) for row in rows]


@pytest.mark.parametrize("method", METHODS)
def test_streams_under_every_start_method(method: Any) -> None:
    """Items 62, 65, 66: rows, epochs and counts go there and back, also to kept workers."""

    def make() -> StreamingPreprocessedDataset:
        return StreamingPreprocessedDataset(
            texts, TokenizeEngine(tokenizer=Bytes()), skip_errors=True
        )

    expected = sorted(tuple(f"Row {n}".encode()) for n in range(60) if n not in (5, 31))
    data = make()
    stock: DataLoader[Any] = DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=method,
        persistent_workers=True,
    )  # fmt: skip
    orders = []
    for epoch in range(2):
        data.set_epoch(epoch)
        orders.append([tuple(sample["input_ids"].tolist()) for sample in stock])
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1]
    assert data.skips() == {"engine": 4}
    config = LoaderConfig(batch_size=4, num_workers=2, multiprocessing_context=method, seed=3)
    ours = UniversalDataModule(make(), config=config).train_dataloader()
    plain = UniversalDataModule(make(), batch_size=4, seed=3).train_dataloader()
    for _ in range(2):
        assert served(ours) == served(plain)


@pytest.mark.parametrize("method", METHODS)
def test_samples_under_every_start_method(method: Any) -> None:
    """Items 55, 56: workers serve the same, each with a cache of its own."""
    rows = [{"text": f"Row {n}"} for n in range(40)]
    data = PreprocessedDataset(rows, TokenizeEngine(tokenizer=Bytes()))
    config = LoaderConfig(batch_size=4, num_workers=2, multiprocessing_context=method, seed=3)
    ours = UniversalDataModule(data, val_split=0, config=config).train_dataloader()
    plain = UniversalDataModule(data, val_split=0, batch_size=4, seed=3).train_dataloader()
    for _ in range(2):
        assert served(ours) == served(plain)


def _opened(path: Path, cache: Path) -> tuple[int, str]:
    dataset = text_windows(path, None, 16, cache_dir=cache).split.dataset
    return len(text_windows(path, None, 16, cache_dir=cache)), str(dataset.path)


def test_processes_that_ask_together_share_one_build(tmp_path: Path) -> None:
    """Item 119: as the ranks of a run do; all get the same, nothing is left behind."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"Document {n} of many." for n in range(20_000)))
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        found = pool.starmap(_opened, [(path, tmp_path / "cache")] * 3)
    assert len(set(found)) == 1
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [Path(found[0][1]).name]


@needs_shared_data
@pytest.mark.parametrize("name", ["gpt2", "bert_base_uncased"])
def test_windows_of_real_text(tmp_path: Path, name: str) -> None:
    """Items 116, 117, 120: as file and as function the ids are those of the tokenizer itself."""
    path = SHARED_DATA / "corpora" / "wikitext-2" / "train_articles.jsonl"
    short = tmp_path / "articles.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:20]
    short.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(SHARED_DATA / "tokenizers" / name / "tokenizer.json"))
    documents = [json.loads(line)["text"] for line in lines]

    class Wrapped:
        """Hides that it is a file."""

        def encode(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": tokenizer.encode(text).ids}

    expected = [id_ for text in documents for id_ in tokenizer.encode(text).ids]
    as_function = text_windows(short, Wrapped(), 128, cache_dir=tmp_path / "cache")
    assert as_function.split.read(0, as_function.split.tokens).tolist() == expected
    as_file = text_windows(short, tokenizer, 128, cache_dir=tmp_path / "cache", eos="none")
    bare = [
        id_ for text in documents for id_ in tokenizer.encode(text, add_special_tokens=False).ids
    ]
    found = as_file.split.read(0, as_file.split.tokens).tolist()
    entry = as_file.split.dataset.manifest.tokenizer
    begins = entry.bos.id if entry.add_bos and entry.bos else -1
    assert [id_ for id_ in found if id_ != begins] == bare
    train, val = create_dataloaders(
        short, short, tokenizer, 8, 128, num_workers=2, cache_dir=tmp_path / "cache"
    )
    assert val is not None
    for loader in (train, val):
        for batch in loader:
            assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()


@needs_shared_data
def test_a_real_stream(tmp_path: Path) -> None:
    """Items 61, 62: Parquet as a Hugging Face stream; each question once over ranks and workers."""
    import datasets

    data = datasets.load_dataset(
        "parquet", data_files=str(SHARED_DATA / "parquet" / "gsm8k_train.parquet"),
        split="train", streaming=True, cache_dir=str(tmp_path),
    )  # fmt: skip
    texts_ = sorted(row["question"] for row in data)
    engine = TokenizeEngine(tokenizer=Bytes())
    found = []
    for rank in range(2):
        mine = StreamingPreprocessedDataset(
            data, engine, {"question": "text"}, rank=rank, world_size=2
        )
        loader: DataLoader[Any] = DataLoader(
            mine, batch_size=64, num_workers=2, multiprocessing_context="fork", collate_fn=text_of
        )
        found += [text for batch in loader for text in batch]
    assert sorted(found) == texts_
