"""Control tokens of nine real tokenizers: found, and kept out of text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from dataprep.formats.manifest import SpecialToken
from dataprep.pipeline.special_tokens import (
    find_role,
    literal_config,
    parse_config,
    special_tokens,
    template_bos,
    template_eos,
    vocab_size,
)
from dataprep.pipeline.tiktoken_import import (
    byte_level_config,
)
from dataprep.pipeline.tokenizer_sources import (
    resolve_tokenizer,
)
from tests.support import needs_shared_data
from tests.tokenizer_files import (
    GIGATOKEN_TAKES,
    NINE,
    from_config,
    gigatoken_ids,
    hf_ids,
    load_json,
    real_texts,
)

UNKNOWN = {"<unk>", "[UNK]"}


@needs_shared_data
@pytest.mark.parametrize("name", NINE)
def test_literal_config_changes_nothing_but_special_tokens(name: str) -> None:
    """Real texts in many scripts give the ids of `tokenizers` with special tokens switched off."""
    config = load_json(name)
    original = json.dumps(config)
    reference = Tokenizer.from_str(original)
    reference.encode_special_tokens = True
    literal = literal_config(config)
    expected = hf_ids(reference, real_texts())
    assert hf_ids(from_config(literal), real_texts()) == expected
    assert json.dumps(config) == original
    assert vocab_size(literal) == vocab_size(config)
    if name in GIGATOKEN_TAKES:
        assert gigatoken_ids(json.dumps(literal), real_texts()) == expected


def spelled_out(config: dict[str, Any]) -> list[str]:
    """Each special token alone, as a word, glued, doubled, and all of them together."""
    names = list(special_tokens(config))
    forms = ["{0}", "a {0} b", "a{0}b", "{0}{0}", " {0}\n", "▁{0}"]
    return [form.format(name) for name in names[:60] for form in forms] + ["".join(names)]


@needs_shared_data
@pytest.mark.parametrize("name", NINE)
def test_text_never_becomes_a_special_token(name: str) -> None:
    """Every special token spelled out gives ordinary ids; parsing gives the tokens."""
    config = load_json(name)
    texts = spelled_out(config)
    specials = special_tokens(config)
    control = {number for token, number in specials.items() if token not in UNKNOWN}
    literal = hf_ids(from_config(literal_config(config)), texts)
    assert control.isdisjoint(itertools.chain.from_iterable(literal))
    parsed = hf_ids(from_config(parse_config(config)), texts)
    assert control.intersection(parsed[-1]) == control
    if name in GIGATOKEN_TAKES:
        assert gigatoken_ids(json.dumps(literal_config(config)), texts) == literal
    if name not in {"t5_small", "bert_base_uncased"}:
        reference = from_config(config)
        reference.encode_special_tokens = True
        assert hf_ids(reference, texts) == literal


@needs_shared_data
def test_unigram_finds_special_pieces_that_only_renaming_hides() -> None:
    """`encode_special_tokens` alone leaves T5's </s> and <pad> in the trie of the model."""
    config = load_json("t5_small")
    switched_off = from_config(config)
    switched_off.encode_special_tokens = True
    assert 1 in switched_off.encode("ends </s> here", add_special_tokens=False).ids
    literal = from_config(literal_config(config))
    ids = literal.encode("ends </s> here <pad>").ids
    assert not {0, 1} & set(ids)
    assert hf_ids(literal, ["\u2603"]) == hf_ids(switched_off, ["\u2603"])


def word_level(vocab: dict[str, int], added: list[dict[str, Any]]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0", "added_tokens": [{**flags, **token} for token in added],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    }  # fmt: skip


def test_words_that_are_special_tokens_become_unknown() -> None:
    """A word-level model would find the word in its vocabulary, added token or not."""
    added = [
        {"id": 0, "content": "[UNK]", "special": True},
        {"id": 1, "content": "</s>", "special": True},
    ]
    config = word_level({"[UNK]": 0, "</s>": 1, "word": 2}, added)
    assert from_config(parse_config(config)).encode("word </s> other").ids == [2, 1, 0]
    assert from_config(literal_config(config)).encode("word </s> other [UNK]").ids == [2, 0, 0, 0]


def test_added_tokens_keep_their_ids_when_special_ones_before_them_go() -> None:
    """`tokenizers` numbers what the model lacks by its place in the list."""
    added = [
        {"id": 2, "content": "@kept1", "special": False},
        {"id": 3, "content": "@gone", "special": True},
        {"id": 4, "content": "@kept2", "special": False},
    ]
    config = word_level({"[UNK]": 0, "word": 1}, added)
    literal = literal_config(config)
    assert from_config(literal).encode("word @kept1 @gone @kept2").ids == [1, 2, 0, 4]
    assert vocab_size(literal) == vocab_size(config) == 5


def test_merges_that_would_spell_a_special_token_go() -> None:
    """A special token that ordinary merges lead to is never produced, and the file still loads."""
    vocab = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    config = byte_level_config(vocab, ["a b", "ab c"], {"ab": 3}, pattern=None, ignore_merges=True)
    assert from_config(config).encode("ab").ids == [3]
    assert from_config(literal_config(config)).encode("ab").ids == [0, 1]


def test_templates_say_which_tokens_surround_a_text() -> None:
    """Every kind of post-processor that adds tokens, alone and in a sequence."""
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}
    roberta = {**bert, "type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "BEGIN"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"BEGIN": {"id": "BEGIN", "ids": [5], "tokens": ["<s>"]}},
    }
    byte_level = {"type": "ByteLevel"}
    for processor in (bert, roberta, {"type": "Sequence", "processors": [byte_level, bert]}):
        config = {"post_processor": processor}
        assert template_bos(config) == SpecialToken(id=101, token="[CLS]")
        assert template_eos(config) == SpecialToken(id=102, token="[SEP]")
    assert template_bos({"post_processor": template}) == SpecialToken(id=5, token="<s>")
    assert template_eos({"post_processor": template}) is None
    for none in ({"post_processor": None}, {}, {"post_processor": byte_level}):
        assert template_bos(none) is template_eos(none) is None


@needs_shared_data
@pytest.mark.parametrize("name", NINE)
def test_templates_agree_with_what_tokenizers_adds(name: str) -> None:
    """The tokens read from the file are those an encoding of real text starts and ends with."""
    config = load_json(name)
    tokenizer = from_config(config)
    plain = tokenizer.encode("some text", add_special_tokens=False).ids
    first, last = template_bos(config), template_eos(config)
    expected = [first.id] * (first is not None) + plain if first else plain
    assert tokenizer.encode("some text").ids == expected + ([last.id] if last else [])


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "size", "eos", "bos", "pad"),
    [
        ("bert_base_uncased", 30_522, "[SEP]", "[CLS]", "[PAD]"),
        ("cl100k_base", 100_277, "<|endoftext|>", None, None),
        ("gpt2", 50_257, "<|endoftext|>", None, None),
        ("gpt_neox_20b", 50_277, "<|endoftext|>", None, "<|padding|>"),
        ("minimind_6400", 6_400, "<|endoftext|>", None, None),
        ("mistral_v3", 32_768, "</s>", "<s>", None),
        ("olmo_dolma2", 100_278, "<|endoftext|>", None, "<|pad|>"),
        ("qwen2_5", 151_665, "<|endoftext|>", None, None),
        ("t5_small", 32_100, "</s>", None, "<pad>"),
    ],
)
def test_sizes_and_roles_of_real_tokenizers(
    name: str, size: int, eos: str, bos: str | None, pad: str | None
) -> None:
    """vocab_size is max id + 1, and roles come from well-known names where nothing names them."""
    config = load_json(name)
    assert vocab_size(config) == size
    found = {role: find_role(config, {}, role) for role in ("eos", "bos", "pad")}
    assert {role: token and token.token for role, token in found.items()} == {
        "eos": eos, "bos": bos, "pad": pad,
    }  # fmt: skip
    tokenizer = from_config(config)
    assert all(tokenizer.token_to_id(t.token) == t.id for t in found.values() if t)


def test_an_explicit_role_that_the_tokenizer_lacks_falls_back() -> None:
    """A pad token that transformers would add later is not in the file, so it has no id."""
    config = json.loads(resolve_tokenizer(None).json)
    found = find_role(config, {"pad_token": "[NEW]"}, "pad")
    assert found == SpecialToken(id=32_756, token="<|pad|>")
