"""Training on one's own texts, and the facts that the built-in tokenizer's page states."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks import default_tokenizer
from dataprep.formats.errors import InputError, StorageError, UsageError
from dataprep.pipeline.tokenize.load import resolve_tokenizer
from dataprep.pipeline.tokenize.special_tokens import special_tokens, vocab_size
from dataprep.pipeline.tokenize.train import (
    DEFAULT_SPECIAL_TOKENS,
    train_json,
    train_tokenizer,
)
from tests.scenes.tokenizer_files import PROSE, gigatoken_ids, hf_ids
from tests.support import REPOSITORY, needs_shared_data

SOURCES = sorted((REPOSITORY / "pipeline").rglob("*.py"))[:50]


def own_texts() -> Iterator[str]:
    """This package's own source: real text that every checkout has."""
    for path in SOURCES:
        yield path.read_text(encoding="utf-8")


def test_training_writes_a_tokenizer_that_both_engines_run(tmp_path: Path) -> None:
    """Exactly the size asked for, special tokens last, lossless, equal in both engines."""
    out = tmp_path / "mine.json"
    report = train_tokenizer(own_texts(), vocab_size=1000, out=out)
    data = resolve_tokenizer(str(out)).json
    config = json.loads(data)
    assert report.vocab_size == vocab_size(config) == 1000
    first = 1000 - len(DEFAULT_SPECIAL_TOKENS)
    assert list(special_tokens(config)) == list(DEFAULT_SPECIAL_TOKENS)
    assert list(special_tokens(config).values()) == [*range(first, 1000)]
    texts = [*PROSE, *own_texts()]
    tokenizer = Tokenizer.from_buffer(data)
    ids = hf_ids(tokenizer, texts)
    assert [tokenizer.decode(one, skip_special_tokens=False) for one in ids] == texts
    assert gigatoken_ids(data, texts) == ids


def test_the_report_counts_what_was_used(tmp_path: Path) -> None:
    """Texts, bytes, hash and ratio can each be worked out from the outside."""
    out = tmp_path / "mine.json"
    texts = list(own_texts())
    report = train_tokenizer(iter(texts), vocab_size=1000, out=out)
    assert report.texts == len(texts) <= 64
    assert report.bytes == sum(len(text.encode()) for text in texts)
    assert report.sha256 == hashlib.sha256(out.read_bytes()).hexdigest()
    tokens = sum(map(len, hf_ids(Tokenizer.from_buffer(out.read_bytes()), texts)))
    assert report.bytes_per_token == pytest.approx(report.bytes / tokens)
    assert report.bytes_per_token > 2


def test_training_twice_gives_the_same_bytes() -> None:
    """Neither hash seeds nor threads decide ties."""
    assert train_json(own_texts(), vocab_size=900) == train_json(own_texts(), vocab_size=900)


def test_reading_stops_at_max_bytes(tmp_path: Path) -> None:
    """An endless stream ends; the text that crosses the limit is the last."""

    def endless() -> Iterator[str]:
        number = 0
        while True:
            yield f"text number {number} of a stream without an end\n"
            number += 1

    report = train_tokenizer(endless(), vocab_size=300, out=tmp_path / "t.json", max_bytes=10_000)
    assert 10_000 <= report.bytes < 10_100


def test_a_text_longer_than_a_piece_is_cut_at_line_ends() -> None:
    """Cutting a long text changes nothing that is learned, where it has lines."""
    line = "one line of a long text, which is repeated\n"
    long = line * (3 * (1 << 20) // len(line))
    assert train_json([long], vocab_size=290) == train_json([line] * 5000, vocab_size=290)


def test_megabytes_without_a_blank_take_seconds() -> None:
    """Words are learned from in parts: whole, this one alone would take the trainer hours."""
    start = time.monotonic()
    for text in ("ab" * (1 << 20), " " * (1 << 20)):
        data = train_json([text], vocab_size=272)
        assert vocab_size(json.loads(data)) == 272
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text_is_an_input_error_and_leaves_no_file(texts: list[str], tmp_path: Path) -> None:
    """Nothing to train on is said before anything is written."""
    with pytest.raises(InputError, match="no text to train on"):
        train_tokenizer(iter(texts), vocab_size=1000, out=tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_too_little_text_says_how_many_tokens_it_gives(tmp_path: Path) -> None:
    """A vocabulary smaller than asked for is never passed off as the one asked for."""
    with pytest.raises(InputError, match="give only") as caught:
        train_tokenizer(iter(["tiny text, tiny text"]), vocab_size=5000, out=tmp_path / "t.json")
    assert caught.value.remedy is not None
    most = int(caught.value.remedy.rstrip(".").split()[-1])
    report = train_tokenizer(
        iter(["tiny text, tiny text"]), vocab_size=most, out=tmp_path / "t.json"
    )
    assert report.vocab_size == most > 256 + len(DEFAULT_SPECIAL_TOKENS)


@pytest.mark.parametrize("size", [0, -1, 268, (1 << 20) + 1])
def test_impossible_sizes_are_usage_errors(size: int, tmp_path: Path) -> None:
    """256 bytes and the special tokens are the least, 2**20 ids the most."""
    with pytest.raises(UsageError, match=r"must be from 269 .* to 1048576"):
        train_tokenizer(own_texts(), vocab_size=size, out=tmp_path / "t.json")


@pytest.mark.parametrize("specials", [("<a>", "<a>"), ("",), ("the",), ("A",)])
def test_special_tokens_must_be_distinct_from_text(
    specials: tuple[str, ...], tmp_path: Path
) -> None:
    """One that repeats, is empty or is an ordinary token would share an id."""
    texts = iter(["the the the the theory of a thesis\n"] * 9)
    with pytest.raises(UsageError) as caught:
        train_tokenizer(texts, vocab_size=265, out=tmp_path / "t.json", special_tokens=specials)
    assert caught.value.where == "special_tokens"


def test_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    """Text that is not Unicode text is refused by its number, not by the trainer's exception."""
    with pytest.raises(InputError, match="half a surrogate pair at character 4") as caught:
        train_tokenizer(iter(["fine", "bad \ud800"]), vocab_size=300, out=tmp_path / "t.json")
    assert caught.value.where == "text 1"


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    """Refused before the training starts: not one text is read."""
    out = tmp_path / "t.json"
    out.write_text("mine")

    read: list[str] = []

    def unread() -> Iterator[str]:
        read.append("a text")
        yield "a text"

    with pytest.raises(UsageError, match="exists already"):
        train_tokenizer(unread(), vocab_size=300, out=out)
    assert (out.read_text(), read) == ("mine", [])
    link = tmp_path / "link.json"
    link.symlink_to("nothing")
    with pytest.raises(UsageError, match="exists already"):
        train_tokenizer(unread(), vocab_size=300, out=link)
    with pytest.raises(StorageError, match="folder does not exist"):
        train_tokenizer(unread(), vocab_size=300, out=tmp_path / "no" / "t.json")


# --- the built-in tokenizer and its page ---


def test_the_asset_is_what_was_measured() -> None:
    """The results name the file by its hash."""
    found = json.loads(default_tokenizer.RESULTS.read_text())
    data = resolve_tokenizer(None).json
    assert hashlib.sha256(data).hexdigest() == found["sha256"]
    assert len(data) == found["file_bytes"] < 2_500_000
    assert found["bytes_per_token"]["built-in"] == found["recipes"][found["recipe"]]


def test_the_page_shows_the_measured_figures() -> None:
    """The tables in docs/tokenizers.md are generated from the results file."""
    found = json.loads(default_tokenizer.RESULTS.read_text())
    assert default_tokenizer.measured_section(found) in default_tokenizer.PAGE.read_text()


@needs_shared_data
def test_the_measured_figures_can_be_measured_again() -> None:
    """Bytes per token on one of the texts, counted by `tokenizers`; the results used gigatoken."""
    found = json.loads(default_tokenizer.RESULTS.read_text())
    text = default_tokenizer.measured_texts(default_tokenizer.ROOT.parent / "shared" / "data")[
        "wikitext2_test"
    ][0]
    tokenizer = Tokenizer.from_buffer(resolve_tokenizer(None).json)
    ratio = len(text.encode()) / len(tokenizer.encode(text).ids)
    assert round(ratio, 3) == found["bytes_per_token"]["built-in"]["wikitext2_test"]
