"""Converter from sentencepiece models (BPE, Unigram) to tokenizer.json.

A .model file is one protobuf message: pieces with a score and a type, and the settings of training
and of normalization. It is read without the libraries sentencepiece and protobuf. BPE models have
scores and no merges. Every way to cut a piece into two pieces therefore becomes a merge, and the
merges are sorted by score, best first. Control pieces become special tokens, and user-defined
pieces become ordinary added tokens.

A model with a feature that a tokenizer.json cannot express raises `InputError`. Such features are
word and character models, unused pieces, whitespace as suffix, and user-defined pieces that contain
a space.

`tokenizers` still differs from sentencepiece in three ways:

- It normalizes the text on each side of a user-defined piece separately. So a model that adds a
  leading space also adds a space after such a piece.
- It applies the normalization map to each grapheme separately.
- In a Unigram model with byte fallback, it recognizes pieces such as `<0x41>` in text that contains
  these characters.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from dataprep.formats.errors import InputError

__all__ = ["Model", "Piece", "model_to_json", "parse_model"]

_SPACE = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_KINDS = {3: "word", 4: "char"}

Value = int | bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Entry of the vocabulary. Its id is its index in the vocabulary."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The parts of a .model file that decide the ids of a text."""

    kind: int
    pieces: tuple[Piece, ...]
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def parse_model(data: bytes, where: str) -> Model:
    """Return the parsed .model file `data`.

    Raise `InputError` about `where` if it is not a sentencepiece model.
    """
    try:
        model = _read_model(data, where)
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise _refused(f"not a sentencepiece model ({error})", where) from None
    unknown = [piece for piece in model.pieces if piece.type == _UNKNOWN]
    if len(unknown) != 1:
        raise _refused(f"not a sentencepiece model ({len(unknown)} unknown pieces)", where)
    return model


def model_to_json(model: Model, where: str) -> bytes:
    """Return a tokenizer.json that gives the same ids as sentencepiece with `model`.

    The docstring of the module lists the few exceptions. Raise `InputError` about `where` if a
    tokenizer.json cannot express the model.
    """
    _check_expressible(model, where)
    config = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(model),
        "normalizer": _normalizer(model),
        "pre_tokenizer": _pre_tokenizer(model) if model.kind == _UNIGRAM else None,
        "post_processor": None,
        "decoder": _decoder(model),
        "model": _bpe(model) if model.kind == _BPE else _unigram(model),
    }
    return msgspec.json.encode(config)


def _bpe(model: Model) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": _unknown(model)[1],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {piece.text: number for number, piece in enumerate(model.pieces)},
        "merges": [list(merge) for merge in _merges(model)],
    }


def _unigram(model: Model) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": _unknown(model)[0],
        "vocab": [[piece.text, piece.score] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _merges(model: Model) -> list[tuple[str, str]]:
    """Return the merges as pairs of pieces, sorted by score, best first.

    Merges with equal scores are sorted by the id of the merged piece, then by the ids of its parts.
    """
    ids = {piece.text: n for n, piece in enumerate(model.pieces) if piece.type == _NORMAL}
    merges = []
    for text, number in ids.items():
        score = -model.pieces[number].score
        for at in range(1, len(text)):
            left, right = ids.get(text[:at]), ids.get(text[at:])
            if left is not None and right is not None:
                merges.append((score, number, left, right))
    merges.sort()
    return [(model.pieces[left].text, model.pieces[right].text) for _, _, left, right in merges]


def _unknown(model: Model) -> tuple[int, str]:
    pieces = enumerate(model.pieces)
    return next((number, piece.text) for number, piece in pieces if piece.type == _UNKNOWN)


def _added_tokens(model: Model) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": piece.text, **flags, "special": piece.type != _USER}
        for number, piece in enumerate(model.pieces)
        if piece.type in (_UNKNOWN, _CONTROL, _USER)
    ]


def _normalizer(model: Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.remove_extra_whitespaces:
        # Spaces only, as sentencepiece does: `Strip` would take other blanks too.
        steps.append(_replace({"Regex": r"\A +| +\z"}, ""))
        steps.append(_replace({"Regex": " {2,}"}, " "))
    # Not by `Metaspace`: that one adds no prefix to text that starts with a space.
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append(_replace({"String": " "}, _SPACE))
    return {"type": "Sequence", "normalizers": steps}


def _pre_tokenizer(model: Model) -> dict[str, Any]:
    # Words can be taken one by one only where no piece reaches over a space.
    crosses = any(_SPACE in piece.text[1:] for piece in model.pieces)
    return {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "never",
        "split": not crosses,
    }


def _decoder(model: Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        _replace({"String": _SPACE}, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _check_expressible(model: Model, where: str) -> None:
    if model.kind not in (_UNIGRAM, _BPE):
        name = _KINDS.get(model.kind, str(model.kind))
        raise _refused(f"a sentencepiece model of type {name}, neither BPE nor Unigram", where)
    if any(piece.type == _UNUSED for piece in model.pieces):
        raise _refused("the model has unused pieces", where)
    user = [piece.text for piece in model.pieces if piece.type == _USER]
    if any(_SPACE in text for text in user):
        raise _refused("the model has user-defined pieces with spaces", where)
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise _refused("pieces repeat", where)


def _read_model(data: bytes, where: str) -> Model:
    pieces: list[Piece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for field, value in _fields(data):
        if field == 1:
            pieces.append(_read_piece(dict(_fields(value))))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    if trainer.get(24) or not normalizer.get(5, 1):
        raise _refused("the model keeps whitespace as it is, or as a suffix", where)
    charsmap = normalizer.get(2, b"")
    return Model(
        kind=int(trainer.get(3, _UNIGRAM)),
        pieces=tuple(pieces),
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )


def _read_piece(fields: dict[int, Value]) -> Piece:
    text, score = fields.get(1, b""), fields.get(2, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece has fields of the wrong type")
    return Piece(
        text=text.decode(), score=struct.unpack("<f", score)[0], type=int(fields.get(3, _NORMAL))
    )


def _fields(message: Value) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a protobuf message.

    A value is an integer or bytes.
    """
    if isinstance(message, int):
        raise ValueError("a number stands where a message belongs")
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"cut off at byte {len(message)}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        byte = message[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError(f"a number at byte {at} does not end")


def _refused(problem: str, where: str) -> InputError:
    return InputError(
        problem, where=where, code="E_TOKENIZER",
        remedy="Give the tokenizer.json of this tokenizer instead.",
    )  # fmt: skip
