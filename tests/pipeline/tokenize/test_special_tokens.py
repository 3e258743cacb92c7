"""Control tokens: found, and kept out of text; `test_real_tokenizers` does it with real files."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.manifest.tokens import SpecialToken
from dataprep.pipeline.tokenize.load import (
    resolve_tokenizer,
)
from dataprep.pipeline.tokenize.special_tokens import (
    find_role,
    literal_config,
    parse_config,
    template_bos,
    vocab_size,
)
from dataprep.pipeline.tokenize.tiktoken import (
    byte_level_config,
)
from tests.scenes.tokenizer_files import (
    from_config,
    hf_ids,
    load_json,
)
from tests.support import needs_shared_data


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


PIECES = st.text(st.sampled_from('ab<>|/"\\\u00e9'), min_size=1, max_size=3)


@given(
    st.lists(PIECES, max_size=6),
    st.lists(st.tuples(PIECES, PIECES), max_size=6),
    st.lists(PIECES, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_merges_that_are_not_parsed(
    pieces: list[str],
    pairs: list[tuple[str, str]],
    special: list[str],
    as_text: bool,
    as_ascii: bool,
) -> None:
    """The quick look at the merges as they stand finds every special token that takes part."""
    parts = [part for pair in pairs for part in (*pair, "".join(pair))]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys([*pieces, *parts]))}
    merges = [" ".join(pair) if as_text else list(pair) for pair in pairs]
    added = [{"id": vocab.get(one, 99), "content": one, "special": True} for one in special]
    model = {"vocab": vocab, "merges": merges}
    raw = msgspec.Raw(json.dumps(merges, ensure_ascii=as_ascii).encode())
    parsed = literal_config({"added_tokens": added, "model": model})
    unparsed = literal_config({"added_tokens": added, "model": model | {"merges": raw}})
    assert msgspec.json.decode(msgspec.json.encode(unparsed)) == parsed


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
    assert template_bos({"post_processor": template}) == SpecialToken(id=5, token="<s>")
    for none in ({"post_processor": None}, {}, {"post_processor": byte_level}):
        assert template_bos(none) is None


def test_an_explicit_role_that_the_tokenizer_lacks_falls_back() -> None:
    """A pad token that transformers would add later is not in the file, so it has no id."""
    config = json.loads(resolve_tokenizer(None).json)
    found = find_role(config, {"pad_token": "[NEW]"}, "pad")
    assert found == SpecialToken(id=32_756, token="<|pad|>")
