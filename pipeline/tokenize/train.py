"""Trainer of byte-level BPE tokenizers, which makes files that both engines accept.

The tokenizer splits text as cl100k_base does. It knows all 256 bytes, so no text is unknown and
decoding gives back the text. Its special tokens have the last ids. The same texts in the same order
give the same file. The built-in tokenizer was made by this module.

Training processes about 3 MB/s on one core. It needs memory for the distinct words of all texts and
for the longest single text, so pass separate documents and not one string of a gigabyte. For
WordPiece, Unigram or another way to split text, train with `tokenizers` itself and pass the
tokenizer.json to the build.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dataprep.formats.errors import InputError, StorageError, UsageError
from dataprep.formats.files.paths import local_path
from dataprep.formats.storage import write_file

from .tiktoken import CL100K_PATTERN, byte_level_config, byte_symbols

__all__ = [
    "DEFAULT_SPECIAL_TOKENS",
    "MAX_VOCAB_SIZE",
    "TrainReport",
    "train_json",
    "train_tokenizer",
]

DEFAULT_SPECIAL_TOKENS = (
    "<|endoftext|>", "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>",
    *(f"<|reserved_{number}|>" for number in range(8)),
)  # fmt: skip
MAX_VOCAB_SIZE = 1 << 20

_PIECE_CHARACTERS = 1 << 20
# The trainer is quadratic in the length of a word: a megabyte of base64 would take it hours.
_LONG_RUN = re.compile(r"\S{1024,}|\s{1024,}")
_LONG_BLANK = re.compile(r"\s{1024}")
_RUN_CHARACTERS = 1024
_SAMPLE_CHARACTERS = 1 << 16
_SAMPLES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainReport:
    """Report on a trained tokenizer: its size, its compression, and the texts used for training."""

    vocab_size: int
    """Number of ids, special tokens included."""
    texts: int
    bytes: int
    """UTF-8 bytes of the texts that were used."""
    bytes_per_token: float
    """Measured on up to 64 evenly spaced texts of the training data; other text gives less."""
    sha256: str
    """Hex digest of the tokenizer.json."""


def train_tokenizer(
    texts: Iterator[str],
    *,
    vocab_size: int,
    out: Path,
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS,
    min_frequency: int = 2,
    max_bytes: int = 256 << 20,
) -> TrainReport:
    """Train a tokenizer on `texts` and write it to the file `out`, which must not exist.

    The `special_tokens` get the last ids, in the given order. No further texts are read after
    `max_bytes` bytes of UTF-8. A pair of tokens is merged only if it occurs at least
    `min_frequency` times.

    Raise `UsageError` for impossible arguments, if `out` exists, or if a special token also becomes
    an ordinary token. Raise `InputError` if the texts are empty or too few for `vocab_size`, or
    contain half a surrogate pair. Raise `StorageError` if `out` cannot be written.
    """
    if max_bytes < 1:
        raise UsageError(f"must be at least 1, got {max_bytes}", where="max_bytes")
    local_path(out)
    _check_absent(out)
    feed = _Feed(texts, max_bytes)
    data = train_json(
        feed, vocab_size=vocab_size, special_tokens=special_tokens, min_frequency=min_frequency
    )
    ratio = _bytes_per_token(data, feed.samples)
    write_file(out, data)
    return TrainReport(
        vocab_size=vocab_size, texts=feed.texts, bytes=feed.bytes, bytes_per_token=ratio,
        sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip


def train_json(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS,
    min_frequency: int = 2,
) -> bytes:
    """Return a compact tokenizer.json of exactly `vocab_size` ids, trained on all of `texts`.

    Raise `UsageError` for impossible sizes or special tokens, and `InputError` if the texts are
    empty or too few for `vocab_size`.
    """
    _check_sizes(vocab_size, special_tokens, min_frequency)
    pieces = itertools.chain.from_iterable(map(_pieces, texts))
    first = next(pieces, None)
    if first is None:
        raise InputError(
            "there is no text to train on", code="E_EMPTY",
            remedy="Check the input and its field: every text is empty.",
        )  # fmt: skip
    ordinary = vocab_size - len(special_tokens)
    vocab, merges = _train_model(itertools.chain([first], pieces), ordinary, min_frequency)
    specials = {token: ordinary + place for place, token in enumerate(special_tokens)}
    _check_result(vocab, specials, vocab_size)
    config = byte_level_config(
        vocab | specials, merges, specials, pattern=CL100K_PATTERN, ignore_merges=False
    )
    return msgspec.json.encode(config)


class _Feed:
    """Iterator over texts that stops once it has yielded `max_bytes` bytes.

    It counts the texts and their bytes, and stores up to 64 evenly spaced texts as samples.
    """

    def __init__(self, texts: Iterable[str], max_bytes: int) -> None:
        self.texts = 0
        self.bytes = 0
        self.samples: list[str] = []
        self._source = texts
        self._max_bytes = max_bytes
        self._stride = 1

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            if self.bytes >= self._max_bytes:
                return
            self.bytes += self._size(text)
            self._keep(text)
            self.texts += 1
            yield text

    def _size(self, text: str) -> int:
        try:
            return len(text.encode())
        except UnicodeEncodeError as error:
            raise InputError(
                f"half a surrogate pair at character {error.start}", where=f"text {self.texts}",
                code="E_RECORD", remedy="Repair or leave out this text.",
            ) from None  # fmt: skip

    def _keep(self, text: str) -> None:
        if self.texts % self._stride == 0 and text:
            self.samples.append(text[:_SAMPLE_CHARACTERS])
        if len(self.samples) > _SAMPLES:
            self.samples = self.samples[::2]
            self._stride *= 2


def _train_model(
    texts: Iterable[str], size: int, min_frequency: int
) -> tuple[dict[str, int], list[str]]:
    """Return the vocabulary and merges of a BPE of at most `size` tokens, trained on `texts`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_frequency, show_progress=False,
        initial_alphabet=sorted(byte_symbols()),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    model = msgspec.json.decode(tokenizer.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return vocab, [" ".join(merge) for merge in model["merges"]]


def _pieces(text: str) -> Iterator[str]:
    """Yield `text` in parts for the trainer, cut at line ends if possible.

    A part has at most 2**20 characters, because the trainer needs about thirty bytes of memory for
    each character. Long words and long white space are also cut (see `_without_long_runs`).
    """
    start = 0
    while start < len(text):
        end = start + _PIECE_CHARACTERS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        piece = text[start:end]
        yield from _without_long_runs(piece) if _has_long_run(piece) else (piece,)
        start = end


def _has_long_run(text: str) -> bool:
    """Return whether `text` may contain a match of `_LONG_RUN`.

    Without this check, searching all texts for the pattern would take longer than training.
    """
    words = max(map(len, text.split()), default=0)
    return words >= _RUN_CHARACTERS or _LONG_BLANK.search(text) is not None


def _without_long_runs(text: str) -> Iterator[str]:
    """Yield parts of `text`, cut so that no word or white space has more than 1,024 characters."""
    done = 0
    for run in _LONG_RUN.finditer(text):
        yield text[done : run.start()]
        for start in range(run.start(), run.end(), _RUN_CHARACTERS):
            yield text[start : min(start + _RUN_CHARACTERS, run.end())]
        done = run.end()
    yield text[done:]


def _bytes_per_token(data: bytes, samples: list[str]) -> float:
    from tokenizers import Tokenizer

    encodings = Tokenizer.from_buffer(data).encode_batch(samples, add_special_tokens=False)
    tokens = sum(len(encoding.ids) for encoding in encodings)
    return sum(len(sample.encode()) for sample in samples) / max(tokens, 1)


def _check_absent(out: Path) -> None:
    """Raise `UsageError` if `out` exists, or `StorageError` if its folder does not exist."""
    if os.path.lexists(out):
        raise UsageError(
            "exists already", where=str(out), remedy="Choose another --out.", code="E_EXISTS"
        )
    if not out.parent.is_dir():
        raise StorageError(
            "its folder does not exist", where=str(out), remedy="Make it first.", code="E_NOT_FOUND"
        )


def _check_sizes(vocab_size: int, special_tokens: tuple[str, ...], min_frequency: int) -> None:
    for token in special_tokens:
        if not token or not token.isprintable() or special_tokens.count(token) > 1:
            raise UsageError(
                f"{token!a} repeats, is empty or cannot be printed", where="special_tokens",
                remedy="Name each token once, as in '[PAD],[CLS],[SEP],[MASK]'.",
            )  # fmt: skip
    smallest = 256 + len(special_tokens)
    if not smallest <= vocab_size <= MAX_VOCAB_SIZE:
        raise UsageError(
            f"must be from {smallest} (256 bytes and {len(special_tokens)} special tokens) "
            f"to {MAX_VOCAB_SIZE}, got {vocab_size}",
            where="vocab_size",
        )
    if min_frequency < 1:
        raise UsageError(f"must be at least 1, got {min_frequency}", where="min_frequency")


def _check_result(vocab: dict[str, int], specials: dict[str, int], wanted: int) -> None:
    got = len(vocab) + len(specials)
    if got < wanted:
        raise InputError(
            f"the texts give only {got:,} tokens, fewer than the {wanted:,} asked for",
            where="vocab_size", code="E_VOCAB_SIZE",
            remedy=f"Give more text, or ask for at most {got}.",
        )  # fmt: skip
    taken = sorted(vocab.keys() & specials.keys())
    if taken:
        raise UsageError(
            f"{taken[0]!r} is an ordinary token too", where="special_tokens",
            remedy="Put it between signs, as [CLS] or <|cls|>.",
        )  # fmt: skip
