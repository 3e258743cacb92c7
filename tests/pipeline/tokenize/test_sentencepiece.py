"""sentencepiece models against sentencepiece itself and its ids."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError
from dataprep.formats.manifest.tokens import SpecialToken
from dataprep.pipeline.tokenize.load import (
    resolve_tokenizer,
)
from dataprep.pipeline.tokenize.sentencepiece import model_to_json, parse_model
from dataprep.pipeline.tokenize.special_tokens import (
    find_role,
    literal_config,
    vocab_size,
)
from tests.scenes.tokenizer_files import (
    MISTRAL_MODEL,
    PROSE,
    cl100k_vectors,
    from_config,
    gigatoken_ids,
    hf_ids,
)
from tests.support import SHARED_DATA, examples, needs_shared_data


@examples(200)
@given(st.binary(max_size=300))
def test_any_bytes_as_a_model_are_refused_or_read(data: bytes) -> None:
    """The protobuf reader ends in an `InputError` for whatever is no model."""
    with pytest.raises(InputError) as caught:
        model_to_json(parse_model(b"\n" + data, "x.model"), "x.model")
    assert caught.value.code == "E_TOKENIZER"


@needs_shared_data
def test_mistral_model_gives_the_ids_of_sentencepiece() -> None:
    """1,030 texts; `tokenizers` and, where it accepts the file, gigatoken."""
    config = literal_config(json.loads(resolve_tokenizer(str(MISTRAL_MODEL)).json))
    lines = (SHARED_DATA / "vectors" / "mistral_v3.jsonl").read_text().splitlines()
    expected = [json.loads(line)["ids"] for line in lines]
    texts = [text for text, _ in cl100k_vectors()]
    assert hf_ids(from_config(config), texts) == expected
    assert gigatoken_ids(json.dumps(config), texts) == expected


@needs_shared_data
def test_mistral_model_decodes_and_names_its_roles() -> None:
    """Decoding takes the leading space away again; </s> ends a text."""
    config = json.loads(resolve_tokenizer(str(MISTRAL_MODEL)).json)
    tokenizer = from_config(config)
    for text in PROSE:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert find_role(config, {}, "eos") == SpecialToken(id=2, token="</s>")
    assert find_role(config, {}, "bos") == SpecialToken(id=1, token="<s>")
    assert vocab_size(config) == 32_768


def train_sentencepiece(**options: Any) -> bytes:
    """A model trained here, on text with digits, capitals and a few scripts."""
    sentences = [
        f"{animal} number {n} sees {n * 7} Ärger, naïve café, привет мир, 你好 ﬁne ½ {n % 13}th!"
        for n in range(300)
        for animal in ("The fox", "A dog", "my lovely cat", "quickly, the unbelievable horse")
    ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, minloglevel=2, num_threads=1,
        hard_vocab_limit=False, **options,
    )  # fmt: skip
    return model.getvalue()


MODELS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 200},
    "unigram-user": {
        "model_type": "unigram", "vocab_size": 200, "user_defined_symbols": ["<sep>"],
        "add_dummy_prefix": False,
    },
    "unigram-identity": {
        "model_type": "unigram", "vocab_size": 200, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe": {"model_type": "bpe", "vocab_size": 300},
    "bpe-bytes": {
        "model_type": "bpe", "vocab_size": 600, "byte_fallback": True,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
    },
    "bpe-no-prefix": {"model_type": "bpe", "vocab_size": 300, "add_dummy_prefix": False},
}  # fmt: skip
SPELLED = [
    "The fox sees 7 Ärger", "  A  dog ﬁne  ½  ", "quickly </s> my <s> cat <unk>",
    "zzz ẞ unknown ☃☃ ☃", "привет 你好", "", "   ", "cat\u3000dog",
    "unbelievable horses number 1234", " ▁ odd ▁▁",
]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_trained_models_give_the_ids_of_sentencepiece(name: str, tmp_path: Path) -> None:
    """Unigram and BPE, with and without prefix, whitespace folding, byte fallback."""
    data = train_sentencepiece(**MODELS[name])
    path = tmp_path / "spiece.model"
    path.write_bytes(data)
    config = literal_config(json.loads(resolve_tokenizer(str(path)).json))
    reference = sentencepiece.SentencePieceProcessor(model_proto=data)
    expected = [reference.encode(text) for text in SPELLED]
    assert hf_ids(from_config(config), SPELLED) == expected
    assert vocab_size(config) == reference.vocab_size()


def test_user_defined_pieces_stay_tokens_in_literal_text() -> None:
    """They are part of the text's alphabet, not special tokens."""
    model = parse_model(train_sentencepiece(**MODELS["unigram-user"]), "m")
    config = json.loads(model_to_json(model, "m"))
    number = next(token["id"] for token in config["added_tokens"] if token["content"] == "<sep>")
    assert number in from_config(literal_config(config)).encode("A dog<sep>my cat").ids


def test_word_models_are_refused_by_name() -> None:
    """A kind that tokenizer.json has no model for."""
    model = parse_model(train_sentencepiece(model_type="word", vocab_size=100), "w.model")
    with pytest.raises(InputError, match="type word, neither BPE nor Unigram"):
        model_to_json(model, "w.model")
