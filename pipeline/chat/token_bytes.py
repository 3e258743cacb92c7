"""Positions of tokens in the bytes of their text, computed from the ids alone.

In a byte-level BPE, the concatenated bytes of all tokens are the text. The end of a token is
therefore the running sum of token sizes, which are looked up in one table for a whole batch. The
sums are used for a text only if the last sum is the length of the text, and if the tokenizer
normalizes nothing in the text. Otherwise the library `tokenizers` computes the offsets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

__all__ = ["Offsets", "PieceSizes", "covered"]

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
_OUT_AND_IN = np.array([0, 1], np.uint8)
NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]


class PieceSizes:
    """Table of the size in bytes of each token of a byte-level tokenizer.

    The sequence `forms` lists the Unicode normal forms that the tokenizer applies to texts.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], forms: Sequence[NormalForm]) -> None:
        # A table of a narrow dtype fits the caches.
        self._sizes = sizes.astype(np.min_scalar_type(int(sizes.max(initial=0))))
        self._forms = tuple(forms)

    @staticmethod
    def of(config: dict[str, Any], size: int) -> PieceSizes | None:
        """Return the table for `config`, a parsed tokenizer.json with `size` ids.

        Return None if the tokenizer is not byte-level, or if it changes texts by anything other
        than Unicode normalization.
        """
        forms = _forms(config.get("normalizer"))
        vocab = config["model"].get("vocab")
        if forms is None or not _byte_level(config) or not isinstance(vocab, dict):
            return None
        sizes = np.zeros(size, np.int64)
        sizes[np.fromiter(vocab.values(), np.int64, len(vocab))] = list(map(len, vocab))
        for token in config.get("added_tokens") or []:  # their text is stored as it is
            sizes[int(token["id"])] = len(str(token["content"]).encode())
        return PieceSizes(sizes, forms)

    def ends(self, ids: Ids) -> Offsets:
        """Return the position at which each token of `ids` ends, int64 [tokens].

        Positions are bytes from the start of the first token.
        """
        return np.cumsum(self._sizes.take(ids), dtype=np.int64)

    def doubtful(self, texts: Sequence[bytes], ends: Offsets, offsets: Offsets) -> set[int]:
        """Return the indexes of the texts for which `ends` may be wrong.

        The array `ends` holds the result of the method `ends` for the tokens of all `texts`. The
        tokens of text i are those from `offsets[i]` to `offsets[i + 1]`.
        """
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        bounds = np.append(ends, 0)[offsets - 1]  # the 0 is where the first text begins
        found = set(np.flatnonzero(np.diff(bounds) != sizes).tolist())
        return found | self._changed(texts)

    def _changed(self, texts: Sequence[bytes]) -> set[int]:
        """Return the indexes of the texts that normalization changes.

        ASCII texts never change. The other texts are first checked together, joined by line feeds,
        because usually none of them changes. A line feed does not combine with the characters
        beside it.
        """
        if not self._forms:
            return set()
        others = {number: text for number, text in enumerate(texts) if not text.isascii()}
        if self._is_normal(b"\n".join(others.values())):
            return set()
        return {number for number, text in others.items() if not self._is_normal(text)}

    def _is_normal(self, text: bytes) -> bool:
        return all(unicodedata.is_normalized(form, text.decode()) for form in self._forms)


def covered(starts: Offsets, ends: Offsets, first: Offsets, last: Offsets) -> npt.NDArray[np.uint8]:
    """Return a uint8 mask [tokens] that is 1 for each token that shares a byte with a span.

    Token i covers the bytes from `starts[i]` to `ends[i]`, and span i covers the bytes from
    `first[i]` to `last[i]`. Tokens and spans must be in order, and spans must not overlap.

    >>> tokens = np.array([0, 2, 5, 7])
    >>> covered(tokens[:-1], tokens[1:], np.array([3]), np.array([6]))
    array([0, 1, 1], dtype=uint8)
    """
    begin = np.searchsorted(ends, first, "right")  # the first token that ends behind the start
    end = np.searchsorted(starts, last, "left")  # the first token that starts at the end, or behind
    np.maximum(begin[1:], end[:-1], out=begin[1:])  # two spans may share a token
    edges = np.stack([begin, np.maximum(begin, end)], 1).reshape(-1)
    found = np.repeat(np.tile(_OUT_AND_IN, len(begin)), np.diff(edges, prepend=0))
    mask = np.zeros(len(starts), np.uint8)
    mask[: len(found)] = found
    return mask


def _byte_level(config: dict[str, Any]) -> bool:
    parts = [config.get("pre_tokenizer"), config.get("model")]
    for part in parts[:1]:
        parts += (part or {}).get("pretokenizers") or []
    kinds = {(part or {}).get("type") for part in parts}
    return "ByteLevel" in kinds and config["model"].get("type", "BPE") == "BPE"


def _forms(normalizer: Any) -> list[NormalForm] | None:
    """Return the normal forms that `normalizer` applies, or None if it makes other changes."""
    if normalizer is None:
        return []
    parts = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    kinds = [part.get("type") for part in parts or []]
    return kinds if all(kind in get_args(NormalForm) for kind in kinds) else None
