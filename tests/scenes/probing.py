"""Small tokenizers whose ids show what an engine makes of characters, and how they are compared.

Their vocabulary is the 256 bytes and merges of the bytes at which two characters may meet. So the
ids are the bytes of the normalized text, and tell wherever a split pattern has cut it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dataprep.pipeline.tokenize.engines import GIGATOKEN, TOKENIZERS, Encoder, make_encoder

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2": [r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "gpt4": [
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _BLANKS
    ],
    "qwen35": [
        _CONTRACTION
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        + _BLANKS
    ],
    "olmo3": [
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _BLANKS
    ],
    "o200k": [
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BLANKS
    ],
    "nemotron": [
        f"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BLANKS
    ],
    "deepseek": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
        "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
}
"""All that gigatoken takes and reads rightly, as they stand in the files of real tokenizers."""
MISREAD = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""One that it takes and misreads: to `tokenizers`, `{1,3}+` repeats as often as it can."""

CONTEXTS = (
    "{0}", "a{0}b", "A{0}B", "a{0}B", "A{0}b", "a{0}Ab", "1{0}2", "!{0}?", " {0} ", "\n{0}\n",
    "'{0}b", "'{0}l", "'l{0}", "'v{0}", "'{0}e", "'r{0}", "{0}'s", "{0}/", "{0}{0}",
    "\u0301{0}\u0301b", "!\u0345{0}\u0334", "a{0}\u0301",
)  # fmt: skip
"""What each code point is put between: characters of all classes, and marks that NFC reorders."""
_LEFT, _RIGHT = b"aA1! \n'lvr/", b"bB2? \nles/"
_LEADS, _TRAILS = range(0xC2, 0xF5), range(0x80, 0xC0)


def probe_config(
    patterns: Sequence[str], *, normalizer: str | None = None, added: Iterable[str] = ()
) -> dict[str, Any]:
    """A tokenizer with these split patterns; `added` tokens are looked for in normalized text."""
    pairs = [
        *itertools.product(_LEFT, _LEADS),
        *itertools.product(_TRAILS, _RIGHT),
        *itertools.product(_TRAILS, _LEADS),
    ]
    names = byte_names()
    merges = [[names[one], names[other]] for one, other in pairs]
    vocab = {name: number for number, name in enumerate([*names, *map("".join, merges)])}
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokens = [
        {"id": len(vocab) + number, "content": content, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": True, "special": False}
        for number, content in enumerate(added)
    ]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": normalizer and {"type": normalizer},
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [*splits, {**level, "use_regex": False}],
        },
        "post_processor": None, "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def byte_names() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown}
    names |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    return [names[byte] for byte in range(256)]


@cache
def probe_json(scheme: str) -> bytes:
    """The tokenizer of a scheme, with NFC where its name ends in +NFC."""
    name, _, normalizer = scheme.partition("+")
    return json.dumps(probe_config(PATTERNS[name], normalizer=normalizer or None)).encode()


@cache
def both_engines(scheme: str) -> tuple[Encoder, Encoder]:
    """What a build has for a scheme, and the reference."""
    data = probe_json(scheme)
    return make_encoder(GIGATOKEN, data), make_encoder(TOKENIZERS, data)


def differing(one: Encoder, other: Encoder, texts: Sequence[str]) -> list[str]:
    """The `texts` for which they do not give the same ids."""
    data = [text.encode() for text in texts]
    (ids, offsets), (expected, ends) = one.encode(data), other.encode(data)
    if np.array_equal(ids, expected) and np.array_equal(offsets, ends):
        return []
    cut = [np.split(*found) for found in ((ids, offsets[1:-1]), (expected, ends[1:-1]))]
    pairs = zip(texts, *cut, strict=True)
    return [text for text, found, wanted in pairs if not np.array_equal(found, wanted)]


def loads(data: bytes) -> Tokenizer:
    """The tokenizer in the reference library."""
    return Tokenizer.from_buffer(data)
