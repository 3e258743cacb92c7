"""Our collators give what those of transformers give, wherever both have the same rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
from dataprep.runtime.collate.tokenizer_ids import continuations, token_ids
from tests.support import SHARED_DATA, needs_shared_data

transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")


@pytest.fixture(params=["right", "left"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "[PAD]", "[MASK]", "a", "b", "##c", "d", "e"]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]",
        padding_side=request.param,
    )  # fmt: skip


def samples(**fields: list[Any]) -> list[dict[str, Any]]:
    rows = [[3, 4, 5], [6], [7, 3]]
    return [
        {"input_ids": row, "attention_mask": [1] * len(row), **{k: v[i] for k, v in fields.items()}}
        for i, row in enumerate(rows)
    ]


def lists(batch: Any) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


def test_padding_equals_tokenizer_pad(tokenizer: Any) -> None:
    """Item 12: by our own padding, and by tokenizer.pad itself, with and without a multiple."""
    some = samples(token_type_ids=[[0, 1, 1], [0], [0, 1]])
    ids = token_ids(tokenizer)
    assert (ids.pad_id, ids.mask_id, ids.padding_side) == (1, 2, tokenizer.padding_side)
    for multiple in (None, 8):
        expected = lists(tokenizer.pad(some, pad_to_multiple_of=multiple, return_tensors="np"))
        options: Any = {"padding_side": ids.padding_side, "multiple": multiple or 1}
        assert lists(Padded(pad_id=ids.pad_id, **options)(some)) == expected
        assert lists(Padded(tokenizer=tokenizer, **options)(some)) == expected


def test_causal_lm_equals(tokenizer: Any) -> None:
    """Items 13, 75: the same labels, but that theirs loses tokens equal to the pad."""
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)(samples())
    ours = CausalLM(pad_id=1, padding_side=tokenizer.padding_side)(samples())
    assert lists(ours) == lists(theirs)


def test_seq2seq_and_token_classification_equal(tokenizer: Any) -> None:
    """Items 14, 76: labels of decoders and of tokens, padded with -100."""
    side = tokenizer.padding_side
    some = samples(labels=[[7, 8], [9, 9, 9, 9], [3]])
    theirs = transformers.DataCollatorForSeq2Seq(tokenizer)(some)
    ours = Seq2Seq(decoder_start_id=0, pad_id=1, padding_side=side, target_side=side)(some)
    assert lists(theirs) == {k: v for k, v in lists(ours).items() if "decoder" not in k}
    some = samples(labels=[[1, 0, 2], [1], [0, 2]])
    tokens = transformers.DataCollatorForTokenClassification(tokenizer)(some)
    assert lists(Classification(kind="token", pad_id=1, padding_side=side)(some)) == lists(tokens)


@needs_shared_data
def test_continuations_of_real_vocabularies() -> None:
    """Item 16: what goes on with a word, by the vocabulary, is what the tokenizer itself says."""
    folder = SHARED_DATA / "tokenizers"
    text = "Uncharacteristically, the antidisestablishmentarians recalibrated hyperparameters."
    for name in ("bert_base_uncased", "gpt2"):
        model = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / name / "tokenizer.json")
        )
        found = model(text, add_special_tokens=False)
        goes_on = set(continuations(model))
        words = found.word_ids()
        letters = model.convert_ids_to_tokens(found["input_ids"])
        for place in range(1, len(words)):
            if letters[place].strip("Ġ#").isalpha() and letters[place - 1].strip("Ġ#").isalpha():
                same = words[place] == words[place - 1]
                assert (found["input_ids"][place] in goes_on) == same
