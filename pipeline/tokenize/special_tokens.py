"""Special tokens of a tokenizer.json, and configurations that treat them as text or as tokens.

The functions take a parsed tokenizer.json that `tokenizers` can load, and do not change it. The
merges, which are most of the file, may be left unparsed (`msgspec.Raw`). `literal_config` returns a
configuration with which no text can become a special token. `parse_config` returns one with which
the text of a special token becomes that token. Both are for encoding only. Decode with the file
itself, because special tokens have different names in a literal configuration.

Removing a special token from `added_tokens` is not enough to make it plain text, because models
also find tokens in their vocabulary. A Unigram model recognizes all its pieces in text (T5 would
turn the text `</s>` into the token). A BPE model with `ignore_merges` and a WordPiece model
recognize whole words. So a literal configuration gives the piece in the vocabulary a name that
cannot occur in text. The name contains a NUL, spaces and a line feed, and byte-level alphabets,
metaspaces and word splitters never leave these inside a piece. Ids do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dataprep.formats.errors import InputError
from dataprep.formats.manifest.tokens import SpecialToken

__all__ = [
    "BOS_NAMES",
    "EOS_NAMES",
    "PAD_NAMES",
    "Role",
    "find_role",
    "literal_config",
    "parse_config",
    "special_tokens",
    "template_bos",
    "vocab_size",
]

Role = Literal["bos", "eos", "pad"]
Config = dict[str, Any]
Merges = msgspec.Raw | list[str | list[str]]

_PLAIN = re.compile(r"[ !#-.0-\[\]-~]+")  # ASCII without quote, slash and backslash

EOS_NAMES = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[SEP]",
)  # fmt: skip
BOS_NAMES = (
    "<s>", "<|begin_of_text|>", "<bos>", "<|bos|>", "<|startoftext|>", "[BOS]",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "[CLS]",
)  # fmt: skip
PAD_NAMES = ("<pad>", "<|pad|>", "<|padding|>", "[PAD]")

_NAMES: Mapping[Role, tuple[str, ...]] = {"bos": BOS_NAMES, "eos": EOS_NAMES, "pad": PAD_NAMES}


def vocab_size(config: Config) -> int:
    """Return the largest id of the vocabulary and the added tokens, plus one.

    This is the size that an embedding needs. `Tokenizer.get_vocab_size()` counts entries instead,
    and is too small where ids have gaps (cl100k_base: 100,261 entries, 100,277 ids).

    >>> vocab_size({"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": []})
    8
    """
    added = max((int(token["id"]) for token in _added(config)), default=-1)
    vocab = config["model"]["vocab"]
    largest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    return int(max(added, largest)) + 1


def special_tokens(config: Config) -> dict[str, int]:
    """Return a mapping from the text of each special added token to its id, in file order.

    >>> special_tokens({"added_tokens": [{"id": 3, "content": "</s>", "special": True}]})
    {'</s>': 3}
    """
    return {token["content"]: int(token["id"]) for token in _added(config) if token.get("special")}


def find_role(config: Config, roles: Mapping[str, str], role: Role) -> SpecialToken | None:
    """Return the token with the given `role`, or None if no token is known to have it.

    The argument `roles` maps names such as `bos_token`, `eos_token` and `pad_token` to texts, as in
    tokenizer_config.json. If the tokenizer has the token that `roles` names, return that token.
    Otherwise return the first of `BOS_NAMES`, `EOS_NAMES` or `PAD_NAMES` among the added tokens.

    `<|endoftext|>` becomes the padding token only if `roles` says so. Trainers ignore padding in
    the loss, so they would no longer learn where documents end.

    >>> config = {"added_tokens": [{"id": 3, "content": "</s>"}], "model": {"vocab": {}}}
    >>> find_role(config, {}, "eos")
    SpecialToken(id=3, token='</s>')
    """
    explicit = roles.get(f"{role}_token")
    if explicit is not None and (found := _id_of(config, explicit)) is not None:
        return SpecialToken(id=found, token=explicit)
    added = {token["content"]: int(token["id"]) for token in _added(config)}
    for name in _NAMES[role]:
        if name in added:
            return SpecialToken(id=added[name], token=name)
    return None


def template_bos(config: Config) -> SpecialToken | None:
    """Return the first token that the post-processor adds before a single text.

    Return None if it adds no token there.
    """
    return _template_bos(config.get("post_processor"))


def parse_config(config: Config) -> Config:
    """Return a copy of `config` for encoding, with which text can become special tokens.

    The copy adds no BOS or EOS, and does not truncate or pad. It shares the vocabulary object with
    `config`, so modify neither of them.
    """
    return {**config, "post_processor": None, "truncation": None, "padding": None}


def literal_config(config: Config) -> Config:
    """Return a copy of `config` for encoding, with which no text becomes a special token.

    The ids of all pieces stay the same. Ordinary text gets the ids that `tokenizers` gives with
    `encode_special_tokens` set and `add_special_tokens=False`. Added tokens that are not marked
    special (runs of spaces, for example) are still recognized.
    """
    names = {content: _sentinel(number) for content, number in special_tokens(config).items()}
    literal = parse_config(config)
    literal["added_tokens"] = [token for token in _added(config) if not token.get("special")]
    literal["model"] = _renamed_model(config, names)
    return literal


def _added(config: Config) -> list[Config]:
    return config.get("added_tokens") or []


def _id_of(config: Config, content: str) -> int | None:
    for token in _added(config):
        if token["content"] == content:
            return int(token["id"])
    vocab = config["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab.get(content)
    return next((number for number, (piece, _) in enumerate(vocab) if piece == content), None)


def _template_bos(processor: Config | None) -> SpecialToken | None:
    kind = processor.get("type") if processor else None
    if processor is None or kind not in _READERS:
        return None
    if kind == "Sequence":
        parts = (_template_bos(part) for part in processor["processors"])
        return next((part for part in parts if part is not None), None)
    if kind == "TemplateProcessing":
        return _from_template(processor)
    content, number = processor["cls"]
    return SpecialToken(id=int(number), token=content)


_READERS = {"Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing"}


def _from_template(processor: Config) -> SpecialToken | None:
    single = processor["single"]
    if not single or "SpecialToken" not in single[0]:
        return None
    entry = processor["special_tokens"][single[0]["SpecialToken"]["id"]]
    return SpecialToken(id=int(entry["ids"][0]), token=entry["tokens"][0])


def _sentinel(number: int) -> str:
    return f"\x00 special {number}\n"


def _renamed_model(config: Config, names: Mapping[str, str]) -> Config:
    model = dict(config["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = _renamed_dict(config, names)
    else:
        model["vocab"] = _renamed_list(config, names)
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    vocab = config["model"]["vocab"]
    if model.get("merges") and not names.keys().isdisjoint(vocab):
        prefix = model.get("continuing_subword_prefix") or ""
        if _may_take_part(names, vocab, prefix, model["merges"]) and (
            merges := _parsed_merges(model["merges"])
        ):
            model["merges"] = _merges_without(merges, names, len(prefix))
    return model


def _renamed_dict(config: Config, names: Mapping[str, str]) -> dict[str, int]:
    vocab: dict[str, int] = dict(config["model"]["vocab"])
    for name, renamed in names.items():
        if name in vocab:
            vocab[renamed] = vocab.pop(name)
    # `tokenizers` numbers added tokens that the model lacks by their place in the list. Without
    # some of them the others would move, so all of them become part of the model.
    if any(name not in vocab for name in names.values()):
        for token in _added(config):
            vocab.setdefault(names.get(token["content"], token["content"]), int(token["id"]))
    return vocab


def _renamed_list(config: Config, names: Mapping[str, str]) -> list[list[Any]]:
    vocab = [[names.get(piece, piece), score] for piece, score in config["model"]["vocab"]]
    added = {int(token["id"]): token["content"] for token in _added(config)}
    # The lowest score there is: a lower one would change what an unknown character costs.
    lowest = min((score for _, score in vocab), default=0.0)
    for number in range(len(vocab), max(added, default=-1) + 1):
        content = added.get(number, "")
        vocab.append([names.get(content, content) or _sentinel(number), lowest])
    return vocab


def _may_take_part(
    names: Iterable[str], vocab: Mapping[str, int], prefix: str, merges: Merges
) -> bool:
    """Return whether any of `names` may be a part or the result of a merge.

    If the answer is False, it is certain. It may be True although no merge has any of the names:
    merges that are already parsed, and models with a `prefix`, are not examined. In unparsed
    merges, a name can be a part only if it occurs in the JSON text, and the result only if it
    consists of two parts that are in `vocab`.
    """
    if prefix or not isinstance(merges, msgspec.Raw):
        return True
    text = bytes(merges)
    for name in names:
        if not _PLAIN.fullmatch(name) or name.encode() in text:
            return True
        if any(name[:at] in vocab and name[at:] in vocab for at in range(1, len(name))):
            return True
    return b"\\u00" in text  # a character of a name may be written as an escape


def _parsed_merges(merges: Merges) -> list[str | list[str]]:
    if not isinstance(merges, msgspec.Raw):
        return merges
    try:
        parsed: list[str | list[str]] = msgspec.json.decode(merges)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"the merges are not valid JSON ({error})", where="--tokenizer", code="E_TOKENIZER",
            remedy="Download the file again.",
        ) from None  # fmt: skip
    return parsed


def _merges_without(
    merges: Sequence[str | list[str]], names: Mapping[str, str], prefix: int
) -> list[str | list[str]]:
    """Return all `merges` except those in which one of `names` is a part or the result.

    The argument `prefix` is the length of the prefix that the model puts before pieces inside
    words.
    """
    kept = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if left not in names and right not in names and left + right[prefix:] not in names:
            kept.append(merge)
    return kept
