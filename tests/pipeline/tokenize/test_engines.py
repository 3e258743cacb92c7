"""Engines: the fast one gives the reference's ids, or it is not used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError, InputError
from dataprep.pipeline.tokenize import engines as engine
from dataprep.pipeline.tokenize.engines import GIGATOKEN, TOKENIZERS, choose_engine, make_encoder
from dataprep.pipeline.tokenize.load import resolve_tokenizer
from dataprep.pipeline.tokenize.special_tokens import literal_config
from tests.support import examples

BUILT_IN = json.dumps(literal_config(json.loads(resolve_tokenizer(None).json))).encode()
ENGINES = (GIGATOKEN, TOKENIZERS)


@cache
def encoder(name: str) -> engine.Encoder:
    return make_encoder(name, BUILT_IN)


def encode(name: str, texts: Sequence[str]) -> tuple[list[int], list[int]]:
    ids, offsets = encoder(name).encode([text.encode() for text in texts])
    assert (ids.dtype, offsets.dtype) == (np.dtype(np.uint32), np.dtype(np.int64))
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    return ids.tolist(), offsets.tolist()


@pytest.mark.parametrize("name", ENGINES)
def test_batches_of_nothing(name: str) -> None:
    """No texts, and texts without characters, have no ids."""
    assert encode(name, []) == ([], [0])
    assert encode(name, [""]) == ([], [0, 0])
    assert encode(name, ["", "", ""]) == ([], [0, 0, 0, 0])


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_is_its_texts(name: str) -> None:
    """Each text has the ids that it has alone, wherever it stands."""
    texts = ["", "one", " two", "", "three words here", "é😀", ""]
    ids, offsets = encode(name, texts)
    for number, text in enumerate(texts):
        assert ids[offsets[number] : offsets[number + 1]] == encode(name, [text])[0]


@examples(200)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=5))
def test_engines_agree_on_anything(texts: list[str]) -> None:
    """Whatever the text, both engines give the same ids and offsets."""
    data = [text.encode() for text in texts]
    one, other = (encoder(name).encode(data) for name in ENGINES)
    assert one[0].tolist() == other[0].tolist()
    assert one[1].tolist() == other[1].tolist()


def test_a_huge_text() -> None:
    """A single text of several megabytes is encoded whole, without and with spaces."""
    for text in ("word " * 600_000, "x" * 200_000):
        one, other = encode(GIGATOKEN, [text]), encode(TOKENIZERS, [text])
        assert one == other


@pytest.mark.parametrize(
    "fault",
    [
        "ids",
        "offsets",
        "raises",
    ],
)
def test_a_disagreement_falls_back(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """One wrong id on one text is enough: the reference is used, and the text is named."""
    honest = engine._Gigatoken.encode

    def wrong(self: Any, texts: Sequence[bytes]) -> Any:
        ids, offsets = honest(self, texts)
        ids, offsets = ids.copy(), offsets.copy()
        if fault == "raises":
            raise RuntimeError("an engine that breaks")
        if fault == "ids":
            ids[offsets[1]] += 1
        else:
            offsets[2] -= 1
        return ids, offsets

    monkeypatch.setattr(engine._Gigatoken, "encode", wrong)
    texts = [b"first words", b"second words", b"third words"]
    choice = choose_engine(BUILT_IN, "auto", texts)
    assert choice.name == TOKENIZERS
    assert "second words" in choice.reason or fault == "raises"
    with pytest.raises(IncompatibleError) as caught:
        choose_engine(BUILT_IN, GIGATOKEN, texts)
    assert (caught.value.code, caught.value.exit_code) == ("E_ENGINE", 6)
    asked = choose_engine(BUILT_IN, TOKENIZERS, texts)
    assert (asked.name, asked.reason) == (TOKENIZERS, "asked for with --engine")


def test_threads_change_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of them encodes."""
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # restored in the end
    texts = [f"text number {number}".encode() for number in range(100)]
    spread = make_encoder(TOKENIZERS, BUILT_IN)
    found = []
    for threads in (1, 3, 1):
        spread.spread(threads)
        found.append([part.tolist() for part in spread.encode(texts)])
    assert found[0] == found[1] == found[2]


def test_a_refusal_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """gigatoken refusing with an empty message is a refusal like any other."""

    def refuse(self: Any, engine_json: bytes) -> None:
        raise ValueError

    monkeypatch.setattr(engine._Gigatoken, "__init__", refuse)
    choice = choose_engine(BUILT_IN, "auto", [b"text"])
    assert choice.name == TOKENIZERS
    assert "refuses" in choice.reason


def test_a_tokenizer_that_none_takes() -> None:
    """It is the input's fault, in one line."""
    with pytest.raises(InputError) as caught:
        choose_engine(b'{"version": "1.0"}', "auto", [])
    assert caught.value.code == "E_TOKENIZER"
    assert "\n" not in str(caught.value)


def test_a_text_that_the_reference_fails_on() -> None:
    """A panic of the library names the text; others are encoded as before."""
    config = json.loads(BUILT_IN)
    config["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(a+)+$"}
    encoder = make_encoder(TOKENIZERS, json.dumps(config).encode())
    with pytest.raises(InputError, match="fails on 'aaaa") as caught:
        encoder.encode([b"plain", b"a" * 60 + b"!", b"plain"])
    assert "\n" not in str(caught.value)
    assert len(encoder.encode([b"plain"])[0])
