"""Token windows straight from text files: `dataprep.text`."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dataprep.formats.errors import DataprepError, InputError, RecordError, UsageError
from dataprep.pipeline.text_cache import TextSource, cached_texts
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.tokenize_engine import TokenizeEngine
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.text import create_dataloaders, text_windows
from tests.scenes.datasets import EOS_ID, byte_tokenizer

DOCUMENTS = [f"Document {n} says{' so' * (n % 7)}." for n in range(60)]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tokenizer() -> Any:
    """Bytes and an end of text."""
    from tokenizers import Tokenizer

    return Tokenizer.from_buffer(byte_tokenizer())


class Marked:
    """Not a file: encode gives a dict, with [CLS] 0 and [SEP] 1 around bytes from 4."""

    def encode(self, text: str) -> dict[str, list[int]]:
        ids = [0, *(byte + 4 for byte in text.encode()), 1]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids)}


class Plain:
    """The same ids in a list."""

    pad_token_id = 3

    def encode(self, text: str) -> list[int]:
        return Marked().encode(text)["input_ids"]

    def get_vocab(self) -> dict[str, int]:
        return {str(n): n for n in range(260)}


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def stream_of(texts: list[str]) -> list[int]:
    """Documents end to end, each with its end of text: what all windows are of."""
    return [id_ for text in texts for id_ in [*text.encode(), EOS_ID]]


def windows_of(ids: list[int], length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """The reference: inputs and the tokens after them."""
    starts = range(0, len(ids) - length, stride)
    return [(ids[at : at + length], ids[at + 1 : at + length + 1]) for at in starts]


def pairs(batches: Any) -> list[tuple[list[int], list[int]]]:
    return [
        (row, labels)
        for batch in batches
        for row, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    ]


def test_jsonl_and_text_give_the_same_windows(tmp_path: Path, tokenizer: Any) -> None:
    """Item 116: by the name of the file, or as is said."""
    lines = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    blocks, named = tmp_path / "a.txt", tmp_path / "lines.data"
    blocks.write_text("\n\n".join(DOCUMENTS) + "\n")
    named.write_bytes(lines.read_bytes())
    expected = windows_of(stream_of(DOCUMENTS), 16, 16)
    for path, is_jsonl in ((lines, None), (blocks, None), (named, True), (lines, True)):
        data = text_windows(path, tokenizer, 16, is_jsonl)
        assert pairs([data.batch(range(len(data)))]) == expected
    _, val = create_dataloaders(lines, blocks, tokenizer, seq_length=16)
    assert val is not None
    assert pairs(val) == expected
    with pytest.raises(InputError, match=r"cannot tell what a .data file holds"):
        (tmp_path / "b.data").write_text("x")
        text_windows(tmp_path / "b.data", tokenizer)
    one = text_windows(blocks, tokenizer, 16, document="file")
    assert one[0]["input_ids"].tolist() == list(b"Document 0 says.")


@pytest.mark.parametrize("stride", [None, 1, 5, 40])
def test_strides_and_labels(tmp_path: Path, tokenizer: Any, stride: int | None) -> None:
    """Item 117: every window is the one of the plain definition; a bad number raises."""
    path = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    data = text_windows(path, tokenizer, 16, stride=stride)
    expected = windows_of(stream_of(DOCUMENTS), 16, stride or 16)
    assert len(data) == len(expected)
    assert pairs([data.batch(range(len(data)))]) == expected
    assert data[-1]["labels"].tolist() == expected[-1][1]
    for wrong in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[wrong]
    same = text_windows(path, tokenizer, 16, labels="unshifted")[0]
    assert torch.equal(same["input_ids"], same["labels"])
    with pytest.raises(UsageError, match="stride"):
        text_windows(path, tokenizer, 16, stride=0)


def test_documents_are_crossed_or_not(tmp_path: Path, tokenizer: Any) -> None:
    """Item 118: no label of another document, all documents whole, positions from 0."""
    path = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    crossing = text_windows(path, tokenizer, 64)
    assert EOS_ID in crossing[0]["input_ids"][:-1].tolist()
    rows = text_windows(path, tokenizer, 64, cross_documents=False)
    assert isinstance(rows, PackedDataset)
    found: list[list[int]] = []
    batch = rows.batch(range(len(rows)))
    ids_, labels_, places_ = (batch[k].tolist() for k in ("input_ids", "labels", "position_ids"))
    for ids, labels, places in zip(ids_, labels_, places_, strict=True):
        for at, (id_, label, place) in enumerate(zip(ids, labels, places, strict=True)):
            if label != -100:
                assert label == ids[at + 1]
                assert id_ != EOS_ID
            if place == 0 and label != -100:
                found.append([])
            if label != -100:
                found[-1].append(id_)
    assert sorted(bytes(ids).decode() for ids in found) == sorted(DOCUMENTS)
    train, _ = create_dataloaders(path, None, tokenizer, 2, 64, cross_documents=False)
    assert set(next(iter(train))) == {"input_ids", "labels", "position_ids"}
    with pytest.raises(UsageError, match=r"stride.*means nothing"):
        text_windows(path, tokenizer, 64, cross_documents=False, stride=2)


@pytest.mark.parametrize("kind", ["file", "function"])
def test_bad_and_blank_lines_are_named(tmp_path: Path, tokenizer: Any, kind: str) -> None:
    """Item 118: by file and line, whether they stop or are left out; with any tokenizer."""
    encoder = tokenizer if kind == "file" else Marked()
    path = tmp_path / "a.jsonl"
    good = json.dumps({"text": "All is well here."})
    path.write_text("\n".join([good, "", '{"text": 7}', good, "{", good]) + "\n")
    with pytest.raises(RecordError, match=r"a\.jsonl:3 .*the field 'text' is a JSON"):
        text_windows(path, encoder, 4)
    with pytest.raises(RecordError, match=r"another field with field, or .* on_error='skip'\.$"):
        text_windows(path, encoder, 4)
    with pytest.warns(UserWarning) as caught:
        data = text_windows(path, encoder, 4, on_error="skip")
    said = " ".join(str(one.message) for one in caught)
    assert "2 records were left out: a.jsonl:3" in said
    assert "a.jsonl:5" in said
    assert "1 blank lines were passed over: a.jsonl:2" in said
    assert len(data) == (3 * (17 + (1 if kind == "file" else 2)) - 1) // 4


def test_a_pair_of_loaders(tmp_path: Path, tokenizer: Any) -> None:
    """Item 119: train shuffled by the seed and without its rest, validation whole and in order."""
    train_path = jsonl(tmp_path / "train.jsonl", DOCUMENTS)
    val_path = jsonl(tmp_path / "val.jsonl", DOCUMENTS[:15])
    make = {"tokenizer": tokenizer, "batch_size": 16, "seq_length": 16}
    train, val = create_dataloaders(train_path, val_path, seed=1, **make)
    first, second = pairs(train), pairs(train)
    stored = windows_of(stream_of(DOCUMENTS), 16, 16)
    assert len(first) == len(stored) // 16 * 16
    assert all(pair in stored for pair in first)
    assert first != second
    assert val is not None
    assert pairs(val) == windows_of(stream_of(DOCUMENTS[:15]), 16, 16)
    again, none = create_dataloaders(train_path, None, seed=1, **make)
    assert none is None
    assert pairs(again) == first
    other, _ = create_dataloaders(train_path, None, seed=2, **make)
    assert pairs(other) != first
    ranks = [
        create_dataloaders(train_path, None, seed=1, dp_rank=rank, dp_size=2,
                           **{**make, "batch_size": 8})[0]
        for rank in range(2)
    ]  # fmt: skip
    both = [pairs([batch]) for rank in ranks for batch in rank]
    assert sorted(pair for batch in both for pair in batch) == sorted(first)


def test_workers_really_start(tmp_path: Path, tokenizer: Any) -> None:
    """Item 119: worker processes serve what none serve, by the usual way of the platform."""
    path = jsonl(tmp_path / "train.jsonl", DOCUMENTS)
    make = {"tokenizer": tokenizer, "batch_size": 8, "seq_length": 16, "seed": 1}
    plain, _ = create_dataloaders(path, None, **make)
    working, _ = create_dataloaders(path, None, num_workers=2, **make)
    iterator = iter(working)
    first = next(iterator)
    assert working.num_workers == 2
    assert torch.equal(first["input_ids"], next(iter(plain))["input_ids"])
    assert pairs([first, *iterator]) == pairs(create_dataloaders(path, None, **make)[0])


def test_a_short_corpus_is_explained(tmp_path: Path, tokenizer: Any) -> None:
    """Item 119: with its numbers: too short for a window, for a batch, or empty."""
    path = jsonl(tmp_path / "a.jsonl", ["Short.", "Text."])
    with pytest.raises(InputError, match=r"a\.jsonl: has 13 tokens, fewer than one window of 129"):
        create_dataloaders(path, None, tokenizer)
    with pytest.raises(InputError, match="It has 2 documents: use a shorter seq_length"):
        text_windows(path, tokenizer)
    with pytest.raises(UsageError, match="3 samples are fewer than one global batch of 16"):
        create_dataloaders(path, None, tokenizer, seq_length=4)
    assert list(create_dataloaders(path, None, tokenizer, seq_length=4, drop_last=False)[0])
    empty = jsonl(tmp_path / "b.jsonl", [])
    for encoder in (tokenizer, Marked()):
        with pytest.raises(DataprepError, match=r"empty|no (usable )?(record|document|text)"):
            text_windows(empty, encoder)
    with pytest.raises(InputError, match="no such file"):
        text_windows(tmp_path / "c.jsonl", tokenizer)


def test_the_cache_goes_by_content(tmp_path: Path, tokenizer: Any) -> None:
    """Item 120: compact ids on disk, built once for each content, tokenizer and option."""
    path = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    cache = tmp_path / "cache" / "texts"

    def built() -> set[str]:
        return {found.parent.name for found in cache.glob("*/config.json")}

    data = text_windows(path, tokenizer, 16)
    assert data.split.dtype.itemsize == 2
    assert len(built()) == 1
    text_windows(path, tokenizer, 8, stride=3)
    text_windows(jsonl(path, DOCUMENTS), tokenizer)  # another file of the same content
    assert len(built()) == 1
    jsonl(path, DOCUMENTS[:-1])
    assert len(text_windows(path, tokenizer, 16)) < len(data)
    text_windows(path, tokenizer, 16, eos="none")
    assert len(built()) == 3
    (cache / sorted(built())[0] / "tokenizer.json").unlink()  # damage is mended
    for eos in ("auto", "none"):
        text_windows(path, tokenizer, 16, eos=eos)
    jsonl(path, DOCUMENTS)
    text_windows(path, tokenizer, 16)
    assert len(built()) == 3
    assert not list(cache.glob(".ids-*"))
    own = text_windows(path, tokenizer, 16, cache_dir=tmp_path / "own")
    assert own.split.dataset.path.parent == tmp_path / "own"


@pytest.mark.parametrize("name", ["tokens-00000.bin", "docs-00000.npy", "tokenizer.json"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, tokenizer: Any, name: str) -> None:
    """A flipped bit in what is kept, the stored tokenizer included, changes no window."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(DOCUMENTS))

    def served() -> list[list[int]]:
        windows = text_windows(path, tokenizer, 16)
        return [windows[at]["input_ids"].tolist() for at in range(len(windows))]

    expected = served()
    files = list((tmp_path / "cache").rglob(name))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert served() == expected


def _served(path: Path, cache: Path, together: Any, answers: Any) -> None:
    together.wait()
    try:
        answers.put(cached_texts(TextSource(path=(str(path),)), cache).splits["text"].documents)
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")


def test_processes_that_find_the_cache_damaged(tmp_path: Path) -> None:
    """One makes it again, and the others wait for it as for the first build."""
    path, cache, fork = tmp_path / "a.txt", tmp_path / "own", multiprocessing.get_context("fork")
    path.write_text("\n\n".join(DOCUMENTS))
    cached_texts(TextSource(path=(str(path),)), cache)
    (file,) = cache.rglob("tokens-00000.bin")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    together, answers = fork.Barrier(3), fork.Queue()
    work = (path, cache, together, answers)
    processes = [fork.Process(target=_served, args=work) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [len(DOCUMENTS)] * 3
    for process in processes:
        process.join()


@pytest.mark.parametrize("encoder", [Marked(), Plain()], ids=["dict", "list"])
def test_any_tokenizer_with_encode(tmp_path: Path, encoder: Any) -> None:
    """Item 120: a dict or a list; ids exactly as it gives them, special tokens and all."""
    path = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    ids = [id_ for text in DOCUMENTS for id_ in Plain().encode(text)]
    data = text_windows(path, encoder, 16)
    assert pairs([data.batch(range(len(data)))]) == windows_of(ids, 16, 16)
    size = data.split.dataset.manifest.tokens.vocab_size
    assert size == (260 if isinstance(encoder, Plain) else max(ids) + 1)
    if isinstance(encoder, Plain):
        packed = text_windows(path, encoder, 64, cross_documents=False)
        assert isinstance(packed, PackedDataset)
        assert packed.pad_id == 3

    class Broken:
        def encode(self, text: str) -> list[int]:
            raise ValueError("no")

    with pytest.raises(InputError, match="document 0: encode raised ValueError: no"):
        text_windows(path, Broken(), 16)
    with pytest.raises(UsageError, match=r"has no encode\(text\)"):
        text_windows(path, 7, 16)


def byte_bpe() -> Any:
    """Byte-level BPE with [CLS] 0, [SEP] 1, [MASK] 2, [PAD] 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, min_frequency=2, special_tokens=["[CLS]", "[SEP]", "[MASK]", "[PAD]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    found.train_from_iterator(DOCUMENTS, trainer)
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return found


def test_byte_level_bpe_with_its_own_specials(tmp_path: Path) -> None:
    """Item 120: the windows are of what its encode gives; read compact, or tokenized on the fly."""
    bpe = byte_bpe()
    path = jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    ids = [id_ for text in DOCUMENTS for id_ in bpe.encode(text).ids]
    compact = text_windows(path, bpe, 16)
    assert pairs([compact.batch(range(len(compact)))]) == windows_of(ids, 16, 16)
    assert compact.split.dataset.manifest.tokenizer.pad is not None

    def lines() -> Any:
        return map(json.loads, path.read_text().splitlines())

    on_the_fly = StreamingPreprocessedDataset(lines, TokenizeEngine(tokenizer=bpe), buffer_size=0)
    assert [id_ for sample in on_the_fly for id_ in sample["input_ids"].tolist()] == ids


def test_inputs_and_labels_are_aligned(tmp_path: Path) -> None:
    """Item 120: with the built-in tokenizer, in every row of both loaders."""
    train_path = jsonl(tmp_path / "train.jsonl", DOCUMENTS * 20)
    train, val = create_dataloaders(str(train_path), str(train_path), batch_size=4, seq_length=32)
    assert val is not None
    for loader in (train, val):
        for batch in loader:
            assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
            assert batch["input_ids"].shape[1] == 32
            assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"data_path": None}, "path: must be a file, a folder or a glob, got None"),
        ({"data_path": ["a.txt", "b.txt"]}, "path: must be a file, .*; `dataprep build` takes"),
        ({"is_jsonl": "yes"}, "is_jsonl: must be a bool or None: 'yes'"),
        ({"seq_length": "16"}, "seq_length: must be a whole number, got '16'"),
        ({"seq_length": 0}, "seq_length: must be at least 1"),
        ({"bos": "<s>"}, "bos: '<s>' is unknown to a tokenizer that is only a function"),
    ],
)
def test_arguments_that_mean_nothing(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    """By the names they have here, and before anything is built."""
    (tmp_path / "a.txt").write_text("Once.")
    options = {"data_path": tmp_path / "a.txt", "tokenizer": Plain(), "cache_dir": tmp_path / "c"}
    with pytest.raises(UsageError, match=problem):
        text_windows(**{**options, **arguments})
    assert not list(tmp_path.glob("c/*/config.json"))


def test_a_type_that_is_not_known(tmp_path: Path) -> None:
    """The remedy is an argument of these functions, and works."""
    path = tmp_path / "a.log"
    path.write_text("Once upon a time. " * 20)
    options: dict[str, Any] = {"tokenizer": Plain(), "seq_length": 16, "cache_dir": tmp_path / "c"}
    with pytest.raises(InputError) as caught:
        text_windows(path, **options)
    assert caught.value.remedy == "Say it with is_jsonl=True for JSONL, or is_jsonl=False for text."
    assert len(text_windows(path, is_jsonl=False, **options)) > 0


def test_remedies_name_arguments_that_there_are(tmp_path: Path) -> None:
    """Of what can go wrong with texts, nothing is to be mended by an option of the command line."""
    table = pa.table({"body": ["Once upon a time."]})
    pq.write_table(table, tmp_path / "a.parquet")
    settings: dict[str, Any] = {"tokenizer": Plain(), "seq_length": 4, "cache_dir": tmp_path / "c"}
    with pytest.raises(InputError, match=r"Name one with field\.$"):
        text_windows(tmp_path / "a.parquet", **settings)
    assert len(text_windows(tmp_path / "a.parquet", field="body", **settings)) > 0
    saved = tmp_path / "saved"
    rows = datasets.Dataset.from_dict({"text": ["Once upon a time."]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(saved)
    with pytest.raises(InputError, match=r"Give the folder of one of them\.$"):
        text_windows(saved, **settings)
    assert len(text_windows(saved / "test", **settings)) > 0
    (tmp_path / "file").touch()
    with pytest.raises(DataprepError) as caught:
        text_windows(saved / "test", **{**settings, "cache_dir": tmp_path / "file"})
    assert "--" not in str(caught.value)
