"""Nine real tokenizers: each has its engine; special tokens are found, kept out, and counted.

The tests of one tokenizer run one after the other, and share what was loaded of it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import IncompatibleError
from dataprep.pipeline.tokenize.engines import GIGATOKEN
from dataprep.pipeline.tokenize.special_text import SpecialTextCounter
from dataprep.pipeline.tokenize.special_tokens import (
    find_role,
    special_tokens,
    template_bos,
    vocab_size,
)
from tests.pipeline.tokenize.test_special_text import reference
from tests.scenes.sources import encoding
from tests.scenes.tokenizer_files import GIGATOKEN_TAKES, NINE, Real, hf_ids, real_texts
from tests.support import needs_shared_data

UNKNOWN = {"<unk>", "[UNK]"}
ROLES: dict[str, tuple[int, str, str | None, str | None]] = {
    # name: vocab_size, EOS, BOS, PAD
    "bert_base_uncased": (30_522, "[SEP]", "[CLS]", "[PAD]"),
    "cl100k_base": (100_277, "<|endoftext|>", None, None),
    "gpt2": (50_257, "<|endoftext|>", None, None),
    "gpt_neox_20b": (50_277, "<|endoftext|>", None, "<|padding|>"),
    "minimind_6400": (6_400, "<|endoftext|>", None, None),
    "mistral_v3": (32_768, "</s>", "<s>", None),
    "olmo_dolma2": (100_278, "<|endoftext|>", None, "<|pad|>"),
    "qwen2_5": (151_665, "<|endoftext|>", None, None),
    "t5_small": (32_100, "</s>", None, "<pad>"),
}

pytestmark = needs_shared_data


@pytest.fixture(scope="module", params=NINE)
def real(request: pytest.FixtureRequest) -> Real:
    """One of the nine after the other."""
    return Real(request.param)


def test_literal_config_changes_nothing_but_special_tokens(real: Real) -> None:
    """Real texts in many scripts give the ids of `tokenizers` with special tokens switched off."""
    expected = hf_ids(real.published(encode_special_tokens=True), real_texts())
    assert hf_ids(real.literal_tokenizer, real_texts()) == expected
    assert Real(real.name).config == real.config  # making the other did not change it
    assert vocab_size(real.literal) == vocab_size(real.config)


@pytest.mark.parametrize("mode", ["literal", "parse"])
def test_the_choice_of_an_engine(real: Real, mode: str) -> None:
    """gigatoken serves the BPE ones, with the reference's ids on real texts; not the others."""
    choice = real.literal_choice if mode == "literal" else real.choose(mode)
    assert (choice.name == GIGATOKEN) == (real.name in GIGATOKEN_TAKES)
    if choice.name == GIGATOKEN:
        tokenizer = real.literal_tokenizer if mode == "literal" else real.parsed_tokenizer
        expected = hf_ids(tokenizer, real_texts())
        ids, offsets = choice.encoder.encode([text.encode() for text in real_texts()])
        assert ids.tolist() == [*itertools.chain.from_iterable(expected)]
        assert offsets.tolist() == [0, *itertools.accumulate(map(len, expected))]
        assert "equal to tokenizers" in choice.reason
    else:
        assert "gigatoken refuses" in choice.reason
        with pytest.raises(IncompatibleError) as caught:
            real.choose(mode, GIGATOKEN)
        assert caught.value.code == "E_ENGINE"


def spelled_out(config: dict[str, Any]) -> list[str]:
    """Each special token alone, as a word, glued, doubled, and all of them together."""
    names = list(special_tokens(config))
    forms = ["{0}", "a {0} b", "a{0}b", "{0}{0}", " {0}\n", "▁{0}"]
    return [form.format(name) for name in names[:60] for form in forms] + ["".join(names)]


def test_text_never_becomes_a_special_token(real: Real) -> None:
    """Every special token spelled out gives ordinary ids; parsing gives the tokens."""
    texts = spelled_out(real.config)
    specials = special_tokens(real.config)
    control = {number for token, number in specials.items() if token not in UNKNOWN}
    literal = hf_ids(real.literal_tokenizer, texts)
    assert control.isdisjoint(itertools.chain.from_iterable(literal))
    parsed = hf_ids(real.parsed_tokenizer, texts)
    assert control.intersection(parsed[-1]) == control
    assert real.chosen_ids(texts) == literal
    if real.name not in {"t5_small", "bert_base_uncased"}:
        assert hf_ids(real.published(encode_special_tokens=True), texts) == literal


def test_special_text_is_counted(real: Real) -> None:
    """Every special token stays text when literal, and is counted."""
    config = real.config
    tokens = special_tokens(config)
    texts = [f"before {token} after{token}" for token in tokens]
    model = config["model"]
    unknown = model.get("unk_id")
    if isinstance(model["vocab"], dict):
        unknown = model["vocab"].get(model.get("unk_token"))
    sizes = {"vocab_size": vocab_size(config), "unknown": unknown}
    expected = reference(list(tokens), texts)
    modes = {"literal": real.literal_tokenizer, "parse": real.parsed_tokenizer}
    for mode, tokenizer in modes.items():
        counter = SpecialTextCounter(encoding(special_tokens=tokens, special_text=mode, **sizes))
        ids = np.array([*itertools.chain.from_iterable(hf_ids(tokenizer, texts))], np.uint32)
        counter.count([text.encode() for text in texts], ids)
        assert set(counter.found) == set(tokens)
        assert counter.found == expected


def test_templates_agree_with_what_tokenizers_adds(real: Real) -> None:
    """The token read from the file is the one that an encoding of real text starts with."""
    tokenizer = real.published()
    plain = tokenizer.encode("some text", add_special_tokens=False).ids
    first = template_bos(real.config)
    expected = [first.id, *plain] if first else plain
    assert tokenizer.encode("some text").ids[: len(expected)] == expected


def test_sizes_and_roles(real: Real) -> None:
    """vocab_size is max id + 1, and roles come from well-known names where nothing names them."""
    size, eos, bos, pad = ROLES[real.name]
    assert vocab_size(real.config) == size
    found = {role: find_role(real.config, {}, role) for role in ("eos", "bos", "pad")}
    assert {role: token and token.token for role, token in found.items()} == {
        "eos": eos, "bos": bos, "pad": pad,
    }  # fmt: skip
    tokenizer = real.published()
    assert all(tokenizer.token_to_id(t.token) == t.id for t in found.values() if t)
