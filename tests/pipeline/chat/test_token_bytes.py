"""Which bytes tokens stand for, and which of them are trained on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataprep.formats.errors import DataprepError, IncompatibleError
from dataprep.pipeline.chat.encode import MarkedEncoder, _split_at_special_tokens
from dataprep.pipeline.chat.render.marked_texts import (
    Marked,
    MarkedTexts,
    Spans,
    byte_edges,
    marked,
)
from dataprep.pipeline.chat.token_bytes import PieceSizes, covered
from dataprep.pipeline.tokenize.engines import GIGATOKEN, TOKENIZERS, load_gigatoken, make_encoder
from dataprep.pipeline.tokenize.load import resolve_tokenizer
from dataprep.pipeline.tokenize.special_tokens import parse_config, special_tokens, vocab_size
from dataprep.pipeline.tokenize.stored_tokens import EncodingSettings
from tests.support import SHARED_DATA, examples, needs_shared_data

BYTE_LEVEL = ("gpt2", "gpt_neox_20b", "minimind_6400", "olmo_dolma2", "qwen2_5", "cl100k_base")
OTHERS = ("bert_base_uncased", "mistral_v3", "t5_small")
QUICK = ("qwen2_5", "gpt2", "mistral_v3", "t5_small")
LATER = [name for name in (*BYTE_LEVEL, *OTHERS) if name not in QUICK]
NASTY = [
    "plain text", "", " leading", "trailing ", "caf\u00e9 na\u00efve", "e\u0301 decomposed",
    "\U0001f600\U0001f469\u200d\U0001f680 emoji", "\u6211\u4eec\u5b66\u4e60", "a\n\n\nb\t\tc",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "x" * 500, "1234567890", "\u1e9b\u0323",
    "\x00\x01",
]  # fmt: skip


@cache  # loading a large one takes a second
def encoder_of(
    name: str | None, engine: str | None = None
) -> tuple[MarkedEncoder, Tokenizer, dict[str, int]]:
    """Our encoder of a tokenizer, and the same tokenizer in the library that knows offsets."""
    spec = None if name is None else str(SHARED_DATA / "tokenizers" / name)
    config = resolve_tokenizer(spec).config
    engine_json = msgspec.json.encode(parse_config(config))
    if engine is None:
        engine = GIGATOKEN if load_gigatoken(engine_json)[0] is not None else TOKENIZERS
    encoding = EncodingSettings(
        engine=engine, dtype="<u4", vocab_size=vocab_size(config), bos=None, eos=None,
        special_tokens=special_tokens(config), unknown=None, special_text="parse",
    )  # fmt: skip
    ours = MarkedEncoder(encoding, make_encoder(engine, engine_json), engine_json)
    return ours, Tokenizer.from_buffer(engine_json), special_tokens(config)


def by_characters(
    tokenizer: Tokenizer, text: str, spans: list[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Ids, and 1 for each token that has a character of a span: the definition."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    trained = {place for start, stop in spans for place in range(start, stop)}
    mask = [int(any(at in trained for at in range(*place))) for place in encoded.offsets]
    return encoded.ids, mask


def texts_of(*documents: tuple[str, Spans], literal: Spans = ()) -> MarkedTexts:
    """Documents of texts with spans of characters; the first one with `literal` text too."""
    found = MarkedTexts()
    found.extend(
        marked(text, spans, literal if number == 0 else ())
        for number, (text, spans) in enumerate(documents)
    )
    return found


@given(st.data())
@examples(200)
def test_covered_is_what_it_means(data: st.DataObject) -> None:
    """A token is covered if it shares a byte with a span, whatever the spans and tokens."""
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=20))
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total = int(edges[-1])
    cuts = sorted(data.draw(st.sets(st.integers(0, total), max_size=8)))
    spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    array = np.array(spans, np.int64).reshape(-1, 2)
    found = covered(edges[:-1], edges[1:], array[:, 0], array[:, 1])
    expected = [
        int(any(a < end and b > start for a, b in spans))
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    assert found.tolist() == expected


@given(st.text(), st.data())
def test_byte_edges_are_those_of_characters(text: str, data: st.DataObject) -> None:
    """The bytes of a byte span are those of its characters."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    raw = text.encode("utf-8", "surrogatepass")
    if raw != text.encode("utf-8", "replace"):
        return
    edges = byte_edges(text, spans)
    for (start, stop), first, last in zip(spans, edges[::2], edges[1::2], strict=True):
        assert raw[first:last].decode() == text[start:stop]


@needs_shared_data
@pytest.mark.parametrize(
    "name",
    [*QUICK, None, *(pytest.param(n, marks=pytest.mark.long) for n in LATER)],
)
def test_masks_are_those_of_the_offsets_of_tokenizers(name: str | None) -> None:
    """Ids and masks of nasty texts with spans everywhere equal the definition, engine by engine."""
    assert_masks_are_defined(name)


@pytest.mark.parametrize("engine", [GIGATOKEN, TOKENIZERS])
def test_masks_of_the_built_in_tokenizer(engine: str) -> None:
    """The same of the tokenizer that is always there, by the bytes of pieces and by offsets."""
    assert_masks_are_defined(None, engine)


def assert_masks_are_defined(name: str | None, engine: str | None = None) -> None:
    ours, reference, _ = encoder_of(name, engine)
    documents, expected = [], []
    for text in NASTY:
        for cut in range(0, len(text) + 1, max(1, len(text) // 7)):
            spans = [(0, cut // 2), (cut, len(text))]
            kept = [(start, stop) for start, stop in spans if start < stop]
            kept = kept if len(kept) < 2 or kept[0][1] <= kept[1][0] else kept[:1]
            documents.append((text, kept))
            expected.append(by_characters(reference, text, kept))
    ids, offsets, mask = ours.encode(texts_of(*documents))
    for number, document in enumerate(documents):
        own = slice(offsets[number], offsets[number + 1])
        assert (ids[own].tolist(), mask[own].tolist()) == expected[number], document


@needs_shared_data
@pytest.mark.parametrize("name", ["gpt2", "minimind_6400", "qwen2_5"])
def test_sizes_of_pieces_are_known(name: str) -> None:
    """All byte-level tokenizers take the fast way, and all others must not."""
    config = resolve_tokenizer(str(SHARED_DATA / "tokenizers" / name)).config
    assert PieceSizes.of(config, vocab_size(config)) is not None


@needs_shared_data
@pytest.mark.parametrize("name", OTHERS)
def test_sizes_of_other_tokenizers_are_not(name: str) -> None:
    """Metaspaces, normalizers and word pieces do not keep the bytes of the text."""
    config = resolve_tokenizer(str(SHARED_DATA / "tokenizers" / name)).config
    assert PieceSizes.of(config, vocab_size(config)) is None


@needs_shared_data
@pytest.mark.parametrize("name", ["qwen2_5", "gpt2", "mistral_v3", None])
def test_text_of_messages_stays_text(name: str | None) -> None:
    """A special token spelled in a literal span gives none; elsewhere the template's own stand."""
    ours, _, special = encoder_of(name)
    token = next(iter(special))
    text = f"{token}user says {token} loudly{token}"
    at = text.index(token, 1)
    span = [(at, at + len(token))]
    ids, _, mask = ours.encode(texts_of((text, span), ("plain", []), literal=span))
    found = ids[: len(ids) - 1]
    assert (found == special[token]).sum() == 2
    trained = ids[mask == 1].tolist()
    assert trained
    assert special[token] not in trained


def test_pieces_between_control_tokens_are_encoded_alone() -> None:
    """With a literal span the other ids are those that the tokenizer gives without it."""
    ours, reference, special = encoder_of(None)
    text = "<|im_start|>user\nHello  <b>\n<|im_end|>\n<|im_start|>assistant\nYes!<|im_end|>\n"
    for word in ("Hello", "Yes", " <b>"):
        at = text.index(word)
        span = [(at, at + len(word))]  # nothing special in it: the same ids must come out
        ids, _, mask = ours.encode(texts_of((text, span), literal=span))
        expected_ids, expected_mask = by_characters(reference, text, span)
        assert ids.tolist() == expected_ids
        assert mask.tolist() == expected_mask
    assert special["<|im_start|>"] in ids.tolist()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_literal_text_of_any_document_of_a_batch(at: int) -> None:
    """Wherever the document with literal text stands: it gives no special token, others do."""
    ours, _, special = encoder_of(None)
    token, documents = "<|im_start|>", MarkedTexts()
    for number in range(3):
        literal = [(0, len(token))] if number == at else []
        documents.extend([marked(f"{token} says", [], literal)])
    ids, offsets, _ = ours.encode(documents)
    found = [special[token] in ids[first:last] for first, last in pairwise(offsets)]
    assert found == [number != at for number in range(3)]


def test_an_engine_that_gives_other_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sizes of its pieces do not fit the text, the reference is asked, and is right."""
    honest, ours = type(encoder_of(None)[0]._encoder).encode, encoder_of(None)[0]

    def wrong(self: Any, texts: Any) -> Any:
        ids, offsets = honest(self, texts)
        ids = ids.copy()
        ids[0] = ours._special["<|im_start|>"]
        return ids, offsets

    monkeypatch.setattr(type(ours._encoder), "encode", wrong)
    with pytest.raises(IncompatibleError, match="different ids for b'words of a text'") as caught:
        ours.encode(texts_of(("words of a text", [(0, 5)])))
    assert caught.value.code == "E_ENGINE"


def test_an_id_past_the_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be stored as another one, in fewer bytes; the last one there is passes."""
    ours, _, _ = encoder_of(None)
    documents = texts_of(("words of a text", []))
    largest = int(ours.encode(documents)[0].max())
    monkeypatch.setattr(ours, "_vocab_size", largest + 1)
    ours.encode(documents)
    monkeypatch.setattr(ours, "_vocab_size", largest)
    with pytest.raises(DataprepError, match=f"gave id {largest}, .* ends at {largest - 1}"):
        ours.encode(documents)


@needs_shared_data
def test_real_conversations() -> None:
    """Batches of real text, long and short together: the fast way gives what the slow one gives."""
    fast, reference, _ = encoder_of(None)
    lines = (SHARED_DATA / "chat" / "chat_messages.jsonl").read_text("utf-8").splitlines()[:300]
    texts = [str(turn["content"]) for line in lines for turn in json.loads(line)["messages"]]
    spans = [[(len(text) // 3, len(text))] if len(text) > 2 else [] for text in texts]
    ids, offsets, mask = fast.encode(texts_of(*zip(texts, spans, strict=True)))
    for number, (first, last) in enumerate(pairwise(offsets)):
        found = ids[first:last].tolist(), mask[first:last].tolist()
        assert found == by_characters(reference, texts[number], spans[number])
    assert _nothing(np.diff(offsets)) == sum(not text for text in texts)


@needs_shared_data
@examples(60)
@given(
    st.lists(
        st.sampled_from(["", "plain words", "caf\u00e9", "cafe\u0301", "\u4e2d\u6587"]), max_size=9
    )
)
def test_a_text_out_of_the_ordinary_is_looked_at_alone(texts: list[str]) -> None:
    """Qwen's tokenizer composes letters: such texts have the definition's mask, and so have all."""
    ours, reference, _ = encoder_of("qwen2_5")
    spans = [[(1, len(text))] if len(text) > 1 else [] for text in texts]
    asked: list[str] = []
    with patch.object(MarkedEncoder, "_by_offsets", _counting(asked)):
        ids, offsets, mask = ours.encode(texts_of(*zip(texts, spans, strict=True)))
    for number, (first, last) in enumerate(pairwise(offsets)):
        found = ids[first:last].tolist(), mask[first:last].tolist()
        assert found == by_characters(reference, texts[number], spans[number])
    assert asked == [text for text in texts if text == "cafe\u0301"]


def _counting(asked: list[str]) -> Callable[..., Any]:
    slow = MarkedEncoder._by_offsets

    def counted(self: MarkedEncoder, document: Marked, known: Any) -> Any:
        asked.append(document.text.decode())
        return slow(self, document, known)

    return counted


@given(
    st.lists(st.tuples(st.text("a\u00e9<", max_size=5), st.booleans(), st.booleans()), max_size=8)
)
def test_columns_give_back_what_was_put_in(rows: list[tuple[str, bool, bool]]) -> None:
    """Texts, spans and literal spans of each document, whether added or taken over."""
    halves = MarkedTexts(), MarkedTexts()
    expected = []
    for number, (text, spanned, spelled) in enumerate(rows):
        spans = [(0, len(text))] if spanned and text else []
        literal = [(0, 1)] if spelled and text else []
        halves[2 * number >= len(rows)].extend([marked(text, spans, literal)])
        raw = text.encode()
        left = [0, len(text[:1].encode())] if literal else ()
        one = Marked(raw, [0, len(raw)] if spans else [], left)
        expected.append(one)
    whole = halves[0]
    whole.extend(halves[1])
    assert [whole[number] for number in range(len(whole))] == expected
    for first in range(len(rows)):
        base, edges = 0, []
        for one in expected[first:]:
            edges += [[base + edge for edge in one.edges]] if one.edges else []
            base += len(one.text)
        assert whole.edges(first, len(rows)).tolist() == edges


def _nothing(lengths: npt.NDArray[np.int64]) -> int:
    return int((lengths == 0).sum())


_SPACES = "\t\n\x0b\x0c\r \x1c\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000\u200b"


@examples(30)
@given(st.lists(st.sampled_from([*_SPACES, "a", "<l>", "<r>", "<b>"]), max_size=12).map("".join))
def test_white_space_beside_control_tokens_is_taken_as_the_tokenizer_takes_it(text: str) -> None:
    ours, tokenizer, control = _stripping()
    found = list(
        _split_at_special_tokens(
            text.encode(), [], control, {name: _FLAGS[name] for name in control}
        )
    )
    ids: list[int] = []
    for first, last, token in found:
        part = text.encode()[first:last].decode()
        ids += [token] if token is not None else ours.encode(part, add_special_tokens=False).ids
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids


_FLAGS = {"<l>": (True, False), "<r>": (False, True), "<b>": (True, True)}


@cache
def _stripping() -> tuple[Tokenizer, Tokenizer, dict[str, int]]:
    """A tokenizer, and the same with tokens that take the white space beside them away."""
    config = {**resolve_tokenizer(None).config, "post_processor": None}
    size = vocab_size(config)
    added = [
        {
            "id": size + number, "content": name, "single_word": False, "lstrip": left,
            "rstrip": right, "normalized": False, "special": True,
        }
        for number, (name, (left, right)) in enumerate(_FLAGS.items())
    ]  # fmt: skip
    plain = Tokenizer.from_buffer(msgspec.json.encode({**config, "added_tokens": []}))
    whole = {**config, "added_tokens": [*config["added_tokens"], *added]}
    ids = {name: size + number for number, name in enumerate(_FLAGS)}
    return plain, Tokenizer.from_buffer(msgspec.json.encode(whole)), ids


def test_a_text_of_nothing_but_control_tokens_takes_no_longer_than_others() -> None:
    name, count = b"<|im_end|>", 30_000
    literal = [(at + stop) * len(name) for at in range(count) for stop in (0, 1)]
    started = time.process_time()
    pieces = list(_split_at_special_tokens(name * (2 * count), literal, {name.decode(): 1}, {}))
    assert len(pieces) == 2 * count + 1
    assert time.process_time() - started < 1
