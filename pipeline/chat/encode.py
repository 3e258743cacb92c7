"""Encoding of rendered conversations as token ids and a loss mask with one value per token.

The whole text is tokenized at once, as at inference. A token is trained on if it shares a byte with
a span that is trained on. Each special token that the template writes becomes one token. If a
message contains the name of a special token as plain text, the text between the special tokens of
the template is encoded separately, by a tokenizer without special tokens.
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

from ..tokenize.engines import TOKENIZERS, Encoder
from ..tokenize.reference import Encoded, encoding_errors, load_reference
from ..tokenize.special_tokens import literal_config, special_tokens, vocab_size
from ..tokenize.stored_tokens import EncodingSettings
from .render.marked_texts import Marked, MarkedTexts
from .token_bytes import Offsets, PieceSizes, covered

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["MarkedEncoder", "tables_of"]

# One character of Unicode's white space in UTF-8; added tokens may absorb those beside them.
_SPACE = re.compile(
    rb"[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]"
    rb"|\xe2\x81\x9f|\xe3\x80\x80"
)

MarkedIds = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.uint8]]
"""Ids [tokens], offsets [documents + 1] and loss mask [tokens] of some documents."""


class TokenizerTables(NamedTuple):
    """Lookup tables that `MarkedEncoder` needs, made from a tokenizer.json."""

    special: dict[str, int]
    """Id of each special token."""
    flags: dict[str, tuple[bool, bool]]
    """For each added token whether it absorbs the white space before it, and that behind it."""
    sizes: PieceSizes | None
    """Bytes of each token; None unless the tokenizer is a byte-level BPE."""


@lru_cache(maxsize=1)
def tables_of(engine_json: bytes) -> TokenizerTables:
    """Return the tables of the tokenizer.json `engine_json`.

    Computing the tables takes 0.1 s, so the result of the last call is cached.
    """
    config: dict[str, Any] = msgspec.json.decode(engine_json)
    flags = {
        token["content"]: (bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in config.get("added_tokens") or []
    }
    return TokenizerTables(special_tokens(config), flags, PieceSizes.of(config, vocab_size(config)))


class MarkedEncoder:
    """Encoder that turns rendered conversations into token ids and a loss mask.

    The argument `engine_json` is the tokenizer.json that `encoder` has loaded.
    """

    def __init__(self, encoding: EncodingSettings, encoder: Encoder, engine_json: bytes) -> None:
        self._encoder = encoder
        self._engine_json = engine_json
        self._vocab_size = encoding.vocab_size
        self._slow = encoding.engine == TOKENIZERS
        self._special, self._flags, self._sizes = tables_of(engine_json)
        self._reference: Tokenizer | None = None
        self._literal: Tokenizer | None = None

    def encode(self, documents: MarkedTexts) -> MarkedIds:
        """Return the ids, the offsets and the loss mask of all `documents`, concatenated.

        Document i has the tokens from `offsets[i]` to `offsets[i + 1]`. Raise `DataprepError` if
        the engine returns an id outside the vocabulary. If the ends of a document's tokens cannot
        be computed from the ids, the library `tokenizers` encodes this document again. Raise
        `IncompatibleError` if the ids of the engine and of the library differ.
        """
        found = _joined([self._encode_run(documents, run) for run in self._runs(documents)])
        ids = found[0]
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise DataprepError(
                f"the engine gave id {int(ids.max())}, but the vocabulary ends at "
                f"{self._vocab_size - 1}", where="tokenizer",
            )  # fmt: skip
        return found

    def _runs(self, documents: MarkedTexts) -> Iterator[range]:
        """Yield consecutive ranges of document indexes that together cover all `documents`.

        The documents of a range together have about as many bytes as the engine encodes at once. A
        document that contains special tokens as plain text gets a range of its own.
        """
        sizes = np.fromiter(map(len, documents.texts), np.int64, len(documents))
        bands = np.cumsum(sizes) // self._encoder.batch_bytes
        edges = {0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(documents)}
        edges |= {edge for number in documents.literal for edge in (number, number + 1)}
        yield from starmap(range, pairwise(sorted(edges)))

    def _encode_run(self, documents: MarkedTexts, run: range) -> MarkedIds:
        if self._slow or run.start in documents.literal:
            return _joined([self._encode_one(documents[number], None) for number in run])
        texts = documents.texts[run.start : run.stop]
        ids, offsets = self._encoder.encode(texts)
        sizes = self._sizes
        if sizes is None:
            return self._mask_doubtful(documents, run, (ids, offsets), set(range(len(run))))
        ends = sizes.ends(ids)
        doubtful = sizes.doubtful(texts, ends, offsets)
        if doubtful:
            return self._mask_doubtful(documents, run, (ids, offsets), doubtful)
        return ids, offsets, _mask_of_run(documents, run, ends)

    def _mask_doubtful(
        self, documents: MarkedTexts, run: range, encoded: Encoded, doubtful: set[int]
    ) -> MarkedIds:
        """Return the ids, offsets and mask of the texts with the indexes `run`.

        The tuple `encoded` is the result of the engine for these texts. Text `run[i]` is doubtful
        if `doubtful` contains i: the ends of its tokens cannot be computed from the ids. The
        library `tokenizers` encodes each doubtful text again to compute its mask.
        """
        edges = {0, len(run), *doubtful, *(number + 1 for number in doubtful)}
        found = []
        for inner in starmap(range, pairwise(sorted(edges))):
            ids, offsets = _ids_of(encoded, inner)
            part = run[inner.start : inner.stop]
            if self._sizes is None or inner.start in doubtful:
                found.append(self._encode_one(documents[part.start], ids))
            else:
                found.append((ids, offsets, _mask_of_run(documents, part, self._sizes.ends(ids))))
        return _joined(found)

    def _encode_one(self, document: Marked, known: npt.NDArray[np.uint32] | None) -> MarkedIds:
        """Return the ids, offsets and mask of one document, encoded by the library `tokenizers`.

        The argument `known` holds the ids that the engine gave for the document, or None if the
        engine has not encoded it. Raise `IncompatibleError` if the ids of the library differ from
        `known`.
        """
        ids, mask = (
            self._with_literal(document) if document.literal else self._by_offsets(document, known)
        )
        return ids, np.array([0, len(ids)]), mask

    def _by_offsets(
        self, document: Marked, known: npt.NDArray[np.uint32] | None
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        ids, starts, ends = _with_offsets(self._reference_tokenizer(), document.text.decode())
        if known is not None and not np.array_equal(ids, known):
            raise IncompatibleError(
                f"gigatoken and tokenizers give different ids for {document.text[:80]!r}",
                where="--engine", code="E_ENGINE", remedy="Use --engine tokenizers.",
            )  # fmt: skip
        return ids, _mask(document, starts, ends)

    def _with_literal(
        self, document: Marked
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Return the ids and the mask of a document that contains special tokens as plain text.

        Only the special tokens that the template wrote are encoded as special tokens. The others
        are encoded as ordinary text.
        """
        text = document.text
        ids, starts, ends = [], [], []
        for first, last, token in _split_at_special_tokens(
            text, document.literal, self._special, self._flags
        ):
            if token is not None:
                ids.append(np.array([token], np.uint32))
                starts.append(np.array([first]))
                ends.append(np.array([last]))
            elif first < last:
                found = _with_offsets(self._literal_tokenizer(), text[first:last].decode())
                ids.append(found[0])
                starts.append(found[1] + first)
                ends.append(found[2] + first)
        none = [np.empty(0, np.int64)]
        mask = _mask(document, np.concatenate(none + starts), np.concatenate(none + ends))
        return np.concatenate([np.empty(0, np.uint32), *ids]), mask

    def _reference_tokenizer(self) -> Tokenizer:
        """Return the tokenizer loaded by the library `tokenizers`, which computes offsets."""
        if self._reference is None:
            self._reference = load_reference(self._engine_json)
        return self._reference

    def _literal_tokenizer(self) -> Tokenizer:
        """Return the tokenizer without its special tokens, loaded by the library `tokenizers`.

        It encodes text in which the name of a special token must stay text.
        """
        if self._literal is None:
            config = msgspec.json.decode(self._engine_json)
            self._literal = load_reference(msgspec.json.encode(literal_config(config)))
        return self._literal


def _joined(parts: Sequence[MarkedIds]) -> MarkedIds:
    """Return the concatenation of `parts`, with offsets into the concatenated ids."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.diff(offsets) for _, offsets, _ in parts]
    return (
        np.concatenate([np.empty(0, np.uint32), *(ids for ids, _, _ in parts)]),
        np.concatenate([np.zeros(1, np.int64), *counts]).cumsum(),
        np.concatenate([np.empty(0, np.uint8), *(mask for _, _, mask in parts)]),
    )


def _ids_of(encoded: Encoded, run: range) -> Encoded:
    """Return the ids and offsets of the texts with the indexes `run`.

    The argument `encoded` holds the ids and offsets of all texts. The returned offsets start at 0.
    """
    ids, offsets = encoded
    own = offsets[run.start : run.stop + 1]
    return ids[own[0] : own[-1]], own - own[0]


def _mask_of_run(documents: MarkedTexts, run: range, ends: Offsets) -> npt.NDArray[np.uint8]:
    """Return the loss mask of the documents with the indexes `run`, uint8 [tokens].

    The array `ends` holds the position at which each token ends, in bytes of the concatenated texts
    of these documents.
    """
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    edges = documents.edges(run.start, run.stop)
    return covered(starts, ends, edges[:, 0], edges[:, 1])


def _mask(
    document: Marked, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    spans = np.array(document.edges, np.int64).reshape(-1, 2)
    return covered(starts, ends, spans[:, 0], spans[:, 1])


def _with_offsets(
    tokenizer: Tokenizer, text: str
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ids of `text`, and the start and the end of each token in bytes.

    The positions are computed from the character offsets that the library `tokenizers` gives.
    """
    with encoding_errors(tokenizer, [text]):
        encoded = tokenizer.encode(text, add_special_tokens=False)
    places = np.array(encoded.offsets, np.int64).reshape(-1, 2)
    if not text.isascii():
        sizes = np.fromiter((len(character.encode()) for character in text), np.int64, len(text))
        places = np.concatenate([[0], np.cumsum(sizes)])[places]
    return np.array(encoded.ids, np.uint32), places[:, 0], places[:, 1]


def _split_at_special_tokens(
    text: bytes,
    literal: Sequence[int],
    special: dict[str, int],
    flags: dict[str, tuple[bool, bool]],
) -> Iterator[tuple[int, int, int | None]]:  # fmt: skip
    """Split `text` into (start, stop, id) for special tokens and (start, stop, None) for text.

    The sequence `literal` is [start, stop, start, stop, ...]: within each of these spans, special
    tokens count as text. White space that a special token strips is left out of the result.
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
        yield at, _before_space(text, at, match.start()) if left else match.start(), None
        yield match.start(), match.end(), special[name]
        at = position = _behind_space(text, match.end()) if right else match.end()
    yield at, len(text), None


def _behind_space(text: bytes, at: int) -> int:
    """Return the end of the white space that begins at `at`, or `at` if there is none."""
    while space := _SPACE.match(text, at):
        at = space.end()
    return at


def _before_space(text: bytes, start: int, end: int) -> int:
    """Return the start of the white space at the end of text[start:end].

    Return `end` if there is no white space.
    """
    while start < end:
        before = next((n for n in (1, 2, 3) if _SPACE.fullmatch(text, end - n, end)), 0)
        if not before or end - before < start:
            break
        end -= before
    return end
