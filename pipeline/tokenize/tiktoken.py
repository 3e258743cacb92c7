"""Converter from tiktoken rank files to tokenizer.json, so that both engines can use them.

A rank file contains only the vocabulary: the bytes and the rank of each token. The split pattern
and the special tokens are part of tiktoken's code. The table `ENCODINGS` has a copy of them for
each encoding that tiktoken names. A file with any other name raises an error, because a guessed
pattern could give wrong ids without an error.

tiktoken stores no merges. At each step it looks for the two neighbours whose joined bytes have the
lowest rank, and joins the leftmost such pair. In a tokenizer.json, every way to cut a token into
two tokens therefore becomes a merge, and the merges are sorted by the rank of the joined token.
Merges that give the same token can have any order among themselves, unless two of them overlap in a
text (as in `ab|a|ba`, if `aba` is a token). Even then, no difference was seen in any text that was
tried. A word that is itself a token is not divided (`ignore_merges`).

The conversion takes about a second for 100,000 ranks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dataprep.formats.errors import InputError

__all__ = [
    "CL100K_PATTERN",
    "ENCODINGS",
    "TiktokenEncoding",
    "byte_level_config",
    "byte_symbols",
    "parse_ranks",
    "ranks_to_json",
]

# Character for character as in the published tokenizer.json files: gigatoken knows a pattern by its
# text. tiktoken itself uses faster spellings that split equally.
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TiktokenEncoding:
    """The split pattern and special tokens of an encoding, which a rank file does not contain."""

    pattern: str | None
    """The split pattern; None: GPT-2's, which is built into the byte-level pre-tokenizer."""
    specials: Mapping[str, int]
    """Text and id of the special tokens."""


_END = "<|endoftext|>"
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_GPT2 = TiktokenEncoding(pattern=None, specials={_END: 50256})

ENCODINGS: Mapping[str, TiktokenEncoding] = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": _GPT2,
    "p50k_edit": TiktokenEncoding(
        pattern=None,
        specials={_END: 50256, **{token: 50281 + i for i, token in enumerate(_FIM)}},
    ),
    "cl100k_base": TiktokenEncoding(
        pattern=CL100K_PATTERN,
        specials={
            _END: 100257,
            **{token: 100258 + i for i, token in enumerate(_FIM)},
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": TiktokenEncoding(
        pattern=_O200K_PATTERN, specials={_END: 199999, "<|endofprompt|>": 200018}
    ),
}


def parse_ranks(data: bytes, where: str) -> dict[bytes, int]:
    """Return the rank of each token in a .tiktoken file, which has lines ``BASE64 RANK``.

    Raise `InputError` about `where` if the file is damaged.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            token, rank = _parse_line(line, f"{where}:{number}")
            ranks[token] = rank
    _check_ranks(ranks, where)
    return ranks


def ranks_to_json(ranks: Mapping[bytes, int], encoding: TiktokenEncoding) -> bytes:
    """Return a tokenizer.json that gives the same ids as tiktoken with `ranks` and `encoding`."""
    symbols = byte_symbols()
    table = {byte: ord(symbol) for byte, symbol in enumerate(symbols)}
    names = {token: token.decode("latin-1").translate(table) for token in ranks}
    vocab = {names[token]: rank for token, rank in sorted(ranks.items(), key=lambda item: item[1])}
    merges = [f"{names[left]} {names[right]}" for left, right in _merges(ranks)]
    config = byte_level_config(
        vocab | dict(encoding.specials), merges, encoding.specials,
        pattern=encoding.pattern, ignore_merges=True,
    )  # fmt: skip
    return msgspec.json.encode(config)


def byte_level_config(
    vocab: Mapping[str, int],
    merges: list[str],
    specials: Mapping[str, int],
    *,
    pattern: str | None,
    ignore_merges: bool,
) -> dict[str, Any]:
    """Return a byte-level BPE tokenizer.json as a dict, in the form of the published cl100k_base.

    The arguments `vocab` and `merges` are written in the byte-level alphabet (see `byte_symbols`).
    The argument `specials` maps special tokens to ids. If `pattern` is None, text is split as GPT-2
    splits it. If `ignore_merges` is True, a word that is in the vocabulary becomes one token, even
    if the merges would divide it.
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags, "special": True}
            for token, number in specials.items()
        ],
        "normalizer": None,
        "pre_tokenizer": _byte_level(use_regex=True) if pattern is None else _split(pattern),
        "post_processor": None,
        "decoder": {**_byte_level(use_regex=True), "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": dict(vocab),
            "merges": merges,
        },
    }


def byte_symbols() -> str:
    """Return the byte-level alphabet: the character that represents each of the 256 bytes.

    >>> byte_symbols()[32], byte_symbols()[65], len(set(byte_symbols()))
    ('Ġ', 'A', 256)
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def _split(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    merges: list[tuple[bytes, bytes]] = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [cut for cut in cuts if cut[0] in ranks and cut[1] in ranks]
        merges += sorted(known, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
    return merges


def _parse_line(line: bytes, where: str) -> tuple[bytes, int]:
    try:
        token, rank = line.split()
        return base64.b64decode(token, validate=True), int(rank)
    except (ValueError, binascii.Error):
        raise _damaged(f"not BASE64 RANK: {line[:60]!r}", where) from None


def _check_ranks(ranks: Mapping[bytes, int], where: str) -> None:
    if not ranks:
        raise _damaged("there are no ranks in this file", where)
    missing = sum(bytes([byte]) not in ranks for byte in range(256))
    if missing:
        raise _damaged(f"{missing} of the 256 single bytes have no rank", where)
    if len(set(ranks.values())) != len(ranks) or min(ranks.values()) < 0:
        raise _damaged("ranks repeat or are negative", where)


def _damaged(problem: str, where: str) -> InputError:
    return InputError(
        problem, where=where, code="E_TOKENIZER",
        remedy="Download the .tiktoken file again; the text is one `BASE64 RANK` per line.",
    )  # fmt: skip
