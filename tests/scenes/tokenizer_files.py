"""Tokenizer files among the shared data, and how tests run them."""

from __future__ import annotations

import json
from functools import cache, cached_property
from typing import Any

import gigatoken
import numpy as np
from tokenizers import Tokenizer

from dataprep.pipeline.tokenize.engines import EngineChoice, choose_engine
from dataprep.pipeline.tokenize.load import resolve_tokenizer
from dataprep.pipeline.tokenize.special_tokens import literal_config, parse_config
from dataprep.pipeline.tokenize.tiktoken import parse_ranks
from tests.support import SHARED_DATA

TOKENIZERS = SHARED_DATA / "tokenizers"
CL100K_RANKS = TOKENIZERS / "cl100k_base" / "cl100k_base.tiktoken"
MISTRAL_MODEL = TOKENIZERS / "mistral_v3" / "mistral_instruct_tokenizer_240323.model.v3"
NINE = (
    "bert_base_uncased", "cl100k_base", "gpt2", "gpt_neox_20b", "minimind_6400", "mistral_v3",
    "olmo_dolma2", "qwen2_5", "t5_small",
)  # fmt: skip
GIGATOKEN_TAKES = set(NINE) - {"bert_base_uncased", "t5_small"}

PROSE = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "  Leading, inner   and trailing blanks  ",
    "Größe, naïve café; 1,234.5 km²; Ελληνικά, русский, हिन्दी, 中文字符, 日本語",
    "def f(x):\n    return x + 1  # comment\n\n\tEnd\r\n",
    "e\u0301 👩‍👩‍👧‍👦 🏳️‍🌈",
    " ",
    "",
]


def load_json(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((TOKENIZERS / name / "tokenizer.json").read_bytes())
    return config


def records(name: str, step: int) -> list[str]:
    lines = (SHARED_DATA / "corpora" / name).read_text().splitlines()
    return [json.loads(line)["text"] for line in lines[::step]]


@cache
def real_texts() -> list[str]:
    naughty = (SHARED_DATA / "corpora" / "edge" / "blns.txt").read_text().split("\n")[::3]
    docs = [text[:3000] for text in records("docs_en.jsonl", 500)]
    return PROSE + records("xquad_multi.jsonl", 60) + docs + naughty


def hf_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [one.ids for one in encoded]


def from_config(config: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(config))


def gigatoken_ids(data: bytes | str, texts: list[str]) -> list[list[int]]:
    tokenizer = gigatoken.Tokenizer.from_json(data)
    return [tokenizer.encode(text).tolist() for text in texts]


class Real:
    """One of `NINE`, of which each form is loaded once: the largest take a second each time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config = load_json(name)
        self.literal = literal_config(self.config)

    @cached_property
    def _published(self) -> Tokenizer:
        return from_config(self.config)

    def published(self, *, encode_special_tokens: bool = False) -> Tokenizer:
        """The file as it is; with or without special tokens in text."""
        self._published.encode_special_tokens = encode_special_tokens
        return self._published

    def json(self, mode: str) -> bytes:
        """The configuration in which text never becomes a special token, or in which it does."""
        return json.dumps(self.literal if mode == "literal" else parse_config(self.config)).encode()

    @cached_property
    def literal_tokenizer(self) -> Tokenizer:
        """The first of them, loaded."""
        return Tokenizer.from_buffer(self.json("literal"))

    @cached_property
    def parsed_tokenizer(self) -> Tokenizer:
        """The other, loaded."""
        return Tokenizer.from_buffer(self.json("parse"))

    @cached_property
    def literal_choice(self) -> EngineChoice:
        """The engine that is chosen for the first of them."""
        return self.choose("literal")

    def choose(self, mode: str, wanted: str = "auto") -> EngineChoice:
        """The engine that is chosen."""
        return choose_engine(self.json(mode), wanted, [text.encode() for text in real_texts()])

    def chosen_ids(self, texts: list[str]) -> list[list[int]]:
        """What the engine chosen for the literal configuration gives."""
        ids, offsets = self.literal_choice.encoder.encode([text.encode() for text in texts])
        return [part.tolist() for part in np.split(ids, offsets[1:-1])]


@cache
def cl100k_json() -> bytes:
    return resolve_tokenizer(str(CL100K_RANKS)).json


@cache
def cl100k_vectors() -> list[tuple[str, list[int]]]:
    """Text and ids by tiktoken; the texts are what the ids spell by the ranks themselves."""
    ranks = parse_ranks(CL100K_RANKS.read_bytes(), "ranks")
    spelled = {rank: token for token, rank in ranks.items()}
    lines = (SHARED_DATA / "vectors" / "cl100k_base.jsonl").read_text().splitlines()
    rows = [json.loads(line)["ids"] for line in lines]
    return [(b"".join(spelled[number] for number in ids).decode(), ids) for ids in rows]
