"""All of Unicode by both engines: what `pipeline.suspects` calls equal is equal."""

from __future__ import annotations

import itertools
import json
import unicodedata
from bisect import bisect
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from dataprep.pipeline.tokenize.engines import TOKENIZERS, Encoder, _Gigatoken, make_encoder
from dataprep.pipeline.tokenize.suspects import suspects_of
from tests.scenes.probing import CONTEXTS, PATTERNS, both_engines, differing, probe_json
from tests.scenes.tokenizer_files import load_json
from tests.support import needs_shared_data

pytestmark = pytest.mark.long

_RUN = 32  # code points of one text: texts of their own would take three times as long
_BATCH = 4096


@cache
def trusted() -> list[str]:
    """Return all code points that both engines are said to treat equally."""
    known = suspects_of(compared=True, nfc=False)
    return [
        chr(code) for code in range(0x80, 0x110000)
        if not 0xD800 <= code < 0xE000 and code not in known
    ]  # fmt: skip


def below_private_use() -> list[str]:
    """Return the `trusted` code points below the planes of tags and private use."""
    return trusted()[: bisect(trusted(), "\U00033fff")]


def pieces(items: list[str], size: int) -> Iterator[list[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def unequal(
    codes: list[str], engines: tuple[Encoder, Encoder], forms: tuple[str, ...]
) -> list[str]:
    """Those `codes` that the two read otherwise in one of the `forms`."""
    found = []
    for batch in pieces(codes, _RUN * _BATCH):
        runs = {
            "".join(form.format(one) + " z\n" for one in run for form in forms): run
            for run in pieces(batch, _RUN)
        }
        for text in differing(*engines, list(runs)):
            each = [form.format(one) for one in runs[text] for form in forms]
            found += differing(*engines, each)
    return found


@pytest.mark.parametrize("scheme", [*PATTERNS, "qwen2+NFC"])
def test_each_code_point(scheme: str) -> None:
    """Each of 1,107,000 is cut alike between characters of all classes, and normalized alike."""
    engines = _Gigatoken(probe_json(scheme)), both_engines(scheme)[1]
    used = below_private_use()
    assert unequal(used, engines, CONTEXTS) == []
    assert unequal(trusted()[len(used) :], engines, ("a{0}b", "1{0}2", "!{0}\u0301")) == []


def test_marks_in_every_order() -> None:
    """Each mark is ordered alike before and behind a mark of each combining class."""
    marks = {unicodedata.combining(one): one for one in reversed(trusted())}
    engines = _Gigatoken(probe_json("qwen2+NFC")), both_engines("qwen2+NFC")[1]
    moved = [one for one in trusted() if unicodedata.combining(one)]
    pairs = itertools.product(moved, marks.values())
    texts = [f"a{one}{other}b{other}{one}" for one, other in pairs]
    assert len(texts) > 30_000
    assert differing(*engines, texts) == []


def test_what_composes() -> None:
    """Each pair that Unicode composes is composed alike, with marks between, and taken apart."""
    engines = _Gigatoken(probe_json("qwen2+NFC")), both_engines("qwen2+NFC")[1]
    texts = []
    for one in trusted():
        parts = unicodedata.decomposition(one).split()
        if parts and parts[0][0] != "<":
            pair = [chr(int(part, 16)) for part in parts]
            texts += ["".join(pair), one + "\u0334", "\u0323".join(pair), "\u0301".join(pair)]
            texts += [pair[0] + "\u0345" + pair[-1], one + one, pair[0] + one]
    hangul = [
        chr(code) for code in (0x1100, 0x1112, 0x1161, 0x1175, 0x11A7, 0x11A8, 0x11C2, 0xAC00)
    ]
    texts += ["".join(three) for three in itertools.product(hangul, repeat=3)]
    assert len(texts) > 10_000
    assert differing(*engines, texts) == []


@needs_shared_data
def test_a_charsmap() -> None:
    """Each code point is normalized alike by the charsmap of sentencepiece, in any cluster."""
    charsmap = load_json("t5_small")["normalizer"]["precompiled_charsmap"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
    model = {"vocab": {name: number for number, name in enumerate(names)}, "merges": []}
    config: dict[str, Any] = {
        "version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True,
        },
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, **model},
    }  # fmt: skip
    data = json.dumps(config).encode()
    forms = ("a{0}b", " {0} ", "a{0}\u0301", "\u0915\u094d{0}", "{0}\u200d{0}", "\U0001f1e6{0}",
             "\u1100{0}\u1161", "\r{0}\n")  # fmt: skip
    engines = _Gigatoken(data), make_encoder(TOKENIZERS, data)
    assert unequal(below_private_use(), engines, forms) == []
