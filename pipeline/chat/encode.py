"""Rendered conversations encoded as ids with a loss mask for each token.

The whole text is tokenized at once, as a model would see it at inference; a token is trained on if
it shares a byte with a span that is. Control tokens that the template writes become tokens; the
same characters in a message stay text if that is asked for: then the text between the template's
own control tokens is encoded separately, as the tokenizer does it anyway.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError, IncompatibleError

from ..tokenize.engines import (
    TOKENIZERS,
    Encoded,
    Encoder,
    encoding_errors,
    load_reference,
)
from ..tokenize.special_tokens import literal_config, special_tokens, vocab_size
from ..tokenize.stored_tokens import EncodingSettings
from .render.marked_texts import Marked, MarkedTexts
from .token_bytes import Offsets, PieceSizes, covered

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["MarkedEncoder", "tables_of"]

# One character of Unicode's white space in UTF-8: what added tokens take away beside themselves.
_SPACE = re.compile(
    rb"[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]"
    rb"|\xe2\x81\x9f|\xe3\x80\x80"
)

MarkedIds = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.uint8]]


class Tables(NamedTuple):
    """Tables for encoding: the ids of control tokens by name, and how text is matched to them."""

    special: dict[str, int]
    flags: dict[str, tuple[bool, bool]]
    """For each added token whether it takes the white space before and behind it away."""
    sizes: PieceSizes | None


@lru_cache(maxsize=1)
def tables_of(engine_json: bytes) -> Tables:
    """Return the tables of a tokenizer.json; the first call takes a tenth of a second."""
    config: dict[str, Any] = msgspec.json.decode(engine_json)
    flags = {
        token["content"]: (bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in config.get("added_tokens") or []
    }
    return Tables(special_tokens(config), flags, PieceSizes.of(config, vocab_size(config)))


class MarkedEncoder:
    """Encoder of conversations for the tokenizer `engine_json`, which `encoder` has loaded."""

    def __init__(self, encoding: EncodingSettings, encoder: Encoder, engine_json: bytes) -> None:
        self._encoder = encoder
        self._engine_json = engine_json
        self._vocab_size = encoding.vocab_size
        self._slow = encoding.engine == TOKENIZERS
        self._special, self._flags, self._sizes = tables_of(engine_json)
        self._reference: Tokenizer | None = None
        self._literal: Tokenizer | None = None

    def encode(self, documents: MarkedTexts) -> MarkedIds:
        """Return the ids of all `documents`, int64 offsets [documents + 1] and the mask."""
        found = _joined([self._some(documents, part) for part in self._parts(documents)])
        ids = found[0]
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise DataprepError(
                f"the engine gave id {int(ids.max())}, but the vocabulary ends at "
                f"{self._vocab_size - 1}", where="tokenizer",
            )  # fmt: skip
        return found

    def _parts(self, documents: MarkedTexts) -> Iterator[range]:
        """Yield runs of documents of `batch_bytes`; one with literal text is a run of its own."""
        sizes = np.fromiter(map(len, documents.texts), np.int64, len(documents))
        bands = np.cumsum(sizes) // self._encoder.batch_bytes
        edges = {0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(documents)}
        edges |= {edge for number in documents.literal for edge in (number, number + 1)}
        yield from starmap(range, pairwise(sorted(edges)))

    def _some(self, documents: MarkedTexts, part: range) -> MarkedIds:
        if self._slow or part.start in documents.literal:
            return _joined([self._one(documents[number], None) for number in part])
        texts = documents.texts[part.start : part.stop]
        ids, offsets = self._encoder.encode(texts)
        sizes = self._sizes
        if sizes is None:
            return self._in_runs(documents, part, (ids, offsets), set(range(len(part))))
        ends = sizes.ends(ids)
        doubtful = sizes.doubtful(texts, ends, offsets)
        if doubtful:
            return self._in_runs(documents, part, (ids, offsets), doubtful)
        return ids, offsets, _mask_of(documents, part, ends)

    def _in_runs(
        self, documents: MarkedTexts, part: range, encoded: Encoded, doubtful: set[int]
    ) -> MarkedIds:
        """Return the same where the sizes of pieces do not fit the `doubtful` texts."""
        edges = {0, len(part), *doubtful, *(number + 1 for number in doubtful)}
        found = []
        for run in starmap(range, pairwise(sorted(edges))):
            ids, offsets = _run(encoded, run)
            those = part[run.start : run.stop]
            if self._sizes is None or run.start in doubtful:
                found.append(self._one(documents[those.start], ids))
            else:
                found.append((ids, offsets, _mask_of(documents, those, self._sizes.ends(ids))))
        return _joined(found)

    def _one(self, document: Marked, known: npt.NDArray[np.uint32] | None) -> MarkedIds:
        """Return the same for one document, by the offsets of the reference library."""
        ids, mask = (
            self._with_literal(document) if document.literal else self._by_offsets(document, known)
        )
        return ids, np.array([0, len(ids)]), mask

    def _by_offsets(
        self, document: Marked, known: npt.NDArray[np.uint32] | None
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        ids, starts, ends = _with_offsets(self._asked(), document.text.decode())
        if known is not None and not np.array_equal(ids, known):
            raise IncompatibleError(
                f"gigatoken and tokenizers give different ids for {document.text[:80]!r}",
                where="--engine", code="E_ENGINE", remedy="Use --engine tokenizers.",
            )  # fmt: skip
        return ids, _mask(document, starts, ends)

    def _with_literal(
        self, document: Marked
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Return ids and mask of a document with text that must not become control tokens."""
        text = document.text
        ids, starts, ends = [], [], []
        for first, last, token in _cut(text, document.literal, self._special, self._flags):
            if token is not None:
                ids.append(np.array([token], np.uint32))
                starts.append(np.array([first]))
                ends.append(np.array([last]))
            elif first < last:
                found = _with_offsets(self._plain(), text[first:last].decode())
                ids.append(found[0])
                starts.append(found[1] + first)
                ends.append(found[2] + first)
        none = [np.empty(0, np.int64)]
        mask = _mask(document, np.concatenate(none + starts), np.concatenate(none + ends))
        return np.concatenate([np.empty(0, np.uint32), *ids]), mask

    def _asked(self) -> Tokenizer:
        """Return the tokenizer in the reference library, which knows offsets."""
        if self._reference is None:
            self._reference = load_reference(self._engine_json)
        return self._reference

    def _plain(self) -> Tokenizer:
        """Return the same without control tokens, for literal text."""
        if self._literal is None:
            config = msgspec.json.decode(self._engine_json)
            self._literal = load_reference(msgspec.json.encode(literal_config(config)))
        return self._literal


def _joined(parts: Sequence[MarkedIds]) -> MarkedIds:
    """Return all of `parts` joined."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.diff(offsets) for _, offsets, _ in parts]
    return (
        np.concatenate([np.empty(0, np.uint32), *(ids for ids, _, _ in parts)]),
        np.concatenate([np.zeros(1, np.int64), *counts]).cumsum(),
        np.concatenate([np.empty(0, np.uint8), *(mask for _, _, mask in parts)]),
    )


def _run(encoded: Encoded, run: range) -> Encoded:
    """Return the ids and offsets of consecutive texts among those `encoded`."""
    ids, offsets = encoded
    own = offsets[run.start : run.stop + 1]
    return ids[own[0] : own[-1]], own - own[0]


def _mask_of(documents: MarkedTexts, part: range, ends: Offsets) -> npt.NDArray[np.uint8]:
    """Return the mask of `part`, whose tokens end at `ends` in the bytes of its texts."""
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    edges = documents.edges(part.start, part.stop)
    return covered(starts, ends, edges[:, 0], edges[:, 1])


def _mask(
    document: Marked, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    spans = np.array(document.edges, np.int64).reshape(-1, 2)
    return covered(starts, ends, spans[:, 0], spans[:, 1])


def _with_offsets(
    tokenizer: Tokenizer, text: str
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ids of `text` and the byte range of each, from the offsets of `tokenizers`."""
    with encoding_errors(tokenizer, [text]):
        encoded = tokenizer.encode(text, add_special_tokens=False)
    places = np.array(encoded.offsets, np.int64).reshape(-1, 2)
    if not text.isascii():
        sizes = np.fromiter((len(character.encode()) for character in text), np.int64, len(text))
        places = np.concatenate([[0], np.cumsum(sizes)])[places]
    return np.array(encoded.ids, np.uint32), places[:, 0], places[:, 1]


def _cut(
    text: bytes,
    literal: Sequence[int],
    special: dict[str, int],
    flags: dict[str, tuple[bool, bool]],
) -> Iterator[tuple[int, int, int | None]]:  # fmt: skip
    """Yield stretches of `text` in order, with the id of those that are control tokens.

    A token that begins in a span of `literal` is text. White space beside a token that takes it
    away belongs to no stretch.
    """
    names = sorted((name for name in special if name), key=len, reverse=True)
    pattern = re.compile(b"|".join(re.escape(name.encode()) for name in names))
    at = position = 0
    while names and (match := pattern.search(text, position)):
        if bisect_right(literal, match.start()) % 2:
            position = match.start() + 1
            continue
        name = match.group().decode()
        left, right = flags.get(name, (False, False))
        yield at, _without_space(text, at, match.start()) if left else match.start(), None
        yield match.start(), match.end(), special[name]
        at = position = _behind_space(text, match.end()) if right else match.end()
    yield at, len(text), None


def _behind_space(text: bytes, at: int) -> int:
    """Return the end of the white space that begins `at`."""
    while space := _SPACE.match(text, at):
        at = space.end()
    return at


def _without_space(text: bytes, start: int, end: int) -> int:
    """Return the end of text[start:end] without the white space at its end."""
    while start < end:
        before = next((n for n in (1, 2, 3) if _SPACE.fullmatch(text, end - n, end)), 0)
        if not before or end - before < start:
            break
        end -= before
    return end
