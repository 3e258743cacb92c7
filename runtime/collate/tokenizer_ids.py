"""Ids of special tokens, and of tokens that continue a word, for a tokenizer of any library.

They are read without importing the library: from attributes such as `pad_token_id` and
`all_special_ids` (transformers), or from `get_vocab`, `get_added_tokens_decoder` and `padding`
(`tokenizers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataprep.formats.errors import UsageError

__all__ = ["TokenIds", "continuations", "token_ids"]

_STARTS = ("Ġ", "▁", "Ċ")  # space or line end, as byte-level BPE and SentencePiece write it
_MASKS = ("[MASK]", "<mask>", "<|mask|>")
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>")
_ENDS = ("<|endoftext|>", "</s>", "<|im_end|>", "<|end_of_text|>", "[SEP]")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """Special tokens, vocabulary size (largest id + 1) and padding side of a tokenizer.

    None stands for a token that the tokenizer does not have, or a padding side that it does not
    set.
    """

    pad_id: int
    mask_id: int | None
    special_ids: tuple[int, ...]
    vocab_size: int
    padding_side: str | None


def token_ids(tokenizer: Any) -> TokenIds:
    """Return the ids of special tokens, the vocabulary size and the padding side of `tokenizer`.

    If there is no pad token, the end-of-text token is used for padding. If there is no end-of-text
    token, the pad id is 0. Raise `UsageError` for an object without `get_vocab`.
    """
    vocabulary = _vocabulary(tokenizer)
    special = _special(tokenizer, vocabulary)
    pad = _first(tokenizer, vocabulary, "pad_token_id", _PADS)
    end = _first(tokenizer, vocabulary, "eos_token_id", _ENDS)
    padding = getattr(tokenizer, "padding", None)
    if isinstance(padding, dict):
        pad = padding.get("pad_id", pad)
    side = padding.get("direction") if isinstance(padding, dict) else None
    return TokenIds(
        pad_id=next((id_ for id_ in (pad, end) if id_ is not None), 0),
        mask_id=_first(tokenizer, vocabulary, "mask_token_id", _MASKS),
        special_ids=special,
        vocab_size=max(vocabulary.values(), default=-1) + 1,
        padding_side=side or getattr(tokenizer, "padding_side", None),
    )


def continuations(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of tokens that continue the word of the previous token, in increasing order.

    WordPiece marks these tokens (``##ing``). Byte-level BPE and SentencePiece mark tokens that
    begin a word (``Ġ``, ``▁``), so all other tokens continue a word. Raise `UsageError` for a
    vocabulary without such marks.
    """
    vocabulary = _vocabulary(tokenizer)
    special = set(_special(tokenizer, vocabulary))
    marked = {id_ for token, id_ in vocabulary.items() if token[:2] == "##" and len(token) > 2}
    starts = {id_ for token, id_ in vocabulary.items() if token.startswith(_STARTS)}
    if not marked and not starts:
        raise UsageError(
            "the vocabulary does not say where words begin", where="whole_words",
            remedy="Give the samples a field word_ids.",
        )  # fmt: skip
    if len(starts) > len(marked):  # GPT-2 has a few tokens like ###, which are not marks
        marked = set(vocabulary.values()) - starts
    return tuple(sorted(marked - special))


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    get = getattr(tokenizer, "get_vocab", None)
    if get is None:
        raise UsageError(
            f"a {type(tokenizer).__name__} has no get_vocab()", where="tokenizer",
            remedy="Give a tokenizer, or pad_id and the other ids.",
        )  # fmt: skip
    found: dict[str, int] = get()
    return found


def _special(tokenizer: Any, vocabulary: dict[str, int]) -> tuple[int, ...]:
    """Return the ids of all special tokens, in increasing order."""
    ids = getattr(tokenizer, "all_special_ids", None)
    added = getattr(tokenizer, "get_added_tokens_decoder", None)
    if ids is None:
        ids = [i for i, token in added().items() if token.special] if added is not None else []
        ids += [vocabulary[name] for name in (*_MASKS, *_PADS, *_ENDS) if name in vocabulary]
    return tuple(sorted(set(ids)))


def _first(
    tokenizer: Any, vocabulary: dict[str, int], attribute: str, names: tuple[str, ...]
) -> int | None:
    """Return the id of a special token, or None if the tokenizer does not have it.

    The id is the value of the tokenizer's attribute called `attribute`. If the attribute is missing
    or not an int, the first of the tokens `names` that is in the vocabulary is used.
    """
    found = getattr(tokenizer, attribute, None)
    if isinstance(found, int):
        return found
    return next((vocabulary[name] for name in names if name in vocabulary), None)
