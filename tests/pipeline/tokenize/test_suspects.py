"""Texts with characters that the engines may read differently have the reference's ids."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Iterator
from operator import length_hint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.read.dataset import open_dataset
from dataprep.pipeline.tokenize import engines as engine
from dataprep.pipeline.tokenize import suspects
from dataprep.pipeline.tokenize.engines import GIGATOKEN, TOKENIZERS, choose_engine, make_encoder
from dataprep.pipeline.tokenize.suspects import Suspects, suspects_of
from tests.scenes.chats import build_chats, chatml
from tests.scenes.corpora import build_into
from tests.scenes.probing import (
    CONTEXTS,
    MISREAD,
    PATTERNS,
    both_engines,
    differing,
    probe_config,
    probe_json,
)
from tests.support import examples

SCHEMES = (*PATTERNS, "gpt2+NFC", "qwen2+NFC")
KNOWN = suspects_of(compared=True, nfc=False)
OTHER = suspects_of(compared=False, nfc=False)
FOUND = [
    "\u0628\u08ca\u08d0", "\u0356\u1dfa", "\u09ac\u09fe\u09bc", "a\ua7d2b", "a\U000323b0b",
    "1\U00011de1", "\U000113c2\U000113c2", "\U000105d2\u0307", "a\u1ad0b", "a\U0001faea\u0301",
]  # fmt: skip
"""Texts of which gigatoken alone gives other ids in some scheme."""
ALL = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
STRANGE = [code for code in ALL if code in KNOWN]
EDGES = sorted({code + step for code in STRANGE for step in (-1, 1)} - set(STRANGE))
"""What stands beside a range of them."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_that_gigatoken_alone_gets_wrong(scheme: str) -> None:
    """Alone, beside others and among plain texts, they have the ids of the reference."""
    texts = ["plain", *FOUND, "", "é中", *map("a{} b".format, FOUND)]
    assert differing(*both_engines(scheme), texts) == []


def test_they_are_wrong_without_the_search() -> None:
    """gigatoken alone gives other ids for each of them in some scheme."""
    wrong = set()
    for scheme in SCHEMES:
        alone = engine._Gigatoken(probe_json(scheme))
        wrong.update(differing(alone, both_engines(scheme)[1], FOUND))
    assert wrong == set(FOUND)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_missed_at_the_edges(scheme: str) -> None:
    """What stands beside a range of suspects is read alike by gigatoken alone."""
    alone, reference = engine._Gigatoken(probe_json(scheme)), both_engines(scheme)[1]
    texts = [one.format(chr(code)) for one in CONTEXTS for code in EDGES]
    assert differing(alone, reference, texts) == []


def characters() -> st.SearchStrategy[str]:
    """All of Unicode, and oftener what the engines may differ on, marks and ASCII."""
    return st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(STRANGE).map(chr),
        st.characters(codec="utf-8", categories=["Mn", "Mc", "Nd", "Lm", "Zs"]),
        st.sampled_from("aAsStT1 '\n/!\u0301\u0345\u0334\u0323\u017f\u212a\u037e"),
    )


@examples(400)
@given(st.sampled_from(SCHEMES), st.lists(st.text(characters(), max_size=20), max_size=6))
def test_all_of_unicode(scheme: str, texts: list[str]) -> None:
    """Whatever the texts, the ids that a build stores are the reference's."""
    assert differing(*both_engines(scheme), texts) == []


@examples(200)
@given(st.lists(st.text(characters(), max_size=20), max_size=6), st.sampled_from([KNOWN, OTHER]))
def test_the_search_misses_nothing(texts: list[str], sought: Suspects) -> None:
    """It finds the texts that a look at each character finds."""
    expected = [
        number for number, text in enumerate(texts) if any(ord(one) in sought for one in text)
    ]
    assert sought.among([text.encode() for text in texts]) == expected


def test_the_search_knows_each_code_point() -> None:
    """A code point beyond ASCII is found if it is one of them, and only then."""
    codes = sorted({*ALL[0x80::11], *STRANGE, *EDGES})
    texts = [chr(code).encode() for code in codes]
    for sought in (KNOWN, OTHER):
        expected = [number for number, code in enumerate(codes) if code in sought]
        assert sought.among(texts) == expected


def test_the_search_in_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lies across the border of two pieces is found once, in its text."""
    monkeypatch.setattr(suspects, "_PIECE", 8)
    for before in range(20):
        texts = ["x" * before, "\u0e01" * 3 + "\U000323b0\u0e01", "", "\u088f"]
        assert KNOWN.among([text.encode() for text in texts]) == [1, 3]


def test_ascii_needs_no_table() -> None:
    """The code points are not even asked for before the first text beyond ASCII."""
    asked = iter([(0xE9, 0xE9), (0x2019, 0x2019)])
    sought = Suspects(asked)
    assert sought.among([b"plain", b""]) == []
    assert length_hint(asked) == 2
    assert sought.among(["\u2019".encode(), b"", "\xe9".encode(), "\u2018".encode()]) == [0, 2]


def test_planes_without_decompositions() -> None:
    """Nothing decomposes in the planes in which decompositions are not looked for."""
    last = suspects._PLANES.stop
    assert not any(map(unicodedata.decomposition, map(chr, range(last, 0x110000))))


def test_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of versions that were not compared, all is suspect that Unicode may yet change."""
    assert all(code in OTHER for code in STRANGE)
    assert all(ord(one) not in OTHER for one in "éß€жשع中ひ한ไ\u2019\u2014")
    assert all(ord(one) in OTHER for one in "\U0001fae0\u0378")  # an emoji, and nothing yet
    monkeypatch.setattr(suspects, "_NORMALIZED", "")
    monkeypatch.setattr(suspects, "_CLASSIFIED", "")
    monkeypatch.setattr(engine, "COMPARED", {GIGATOKEN: "0.9", TOKENIZERS: "0.21"})
    for scheme in ("deepseek", "qwen2+NFC"):
        encoder = make_encoder(GIGATOKEN, probe_json(scheme))
        assert differing(encoder, both_engines(scheme)[1], FOUND) == []
    assert "were not compared" in choose_engine(probe_json("gpt2"), GIGATOKEN, [b"text"]).reason


def test_added_tokens_in_normalized_text() -> None:
    """Text that NFC makes or unmakes an added token of has the reference's ids."""
    added = ["<a>", "K9", "fin", "\u00e9t", "  "]
    data = json.dumps(probe_config(PATTERNS["qwen2"], normalizer="NFC", added=added)).encode()
    wrong = ["<a>\u0338x", "x\u212a9", "fin\u0303", "xe\u0301t"]
    texts = [*wrong, "<a>", "K9 fin", "  \u0301", "\u00e9t"]
    encoder, reference = make_encoder(GIGATOKEN, data), make_encoder(TOKENIZERS, data)
    assert differing(engine._Gigatoken(data), reference, texts) == wrong
    assert differing(encoder, reference, texts) == []


def test_a_pattern_that_gigatoken_misreads() -> None:
    """Where `{1,3}+` stands in a pattern the reference is used, whatever the sample says."""
    data = json.dumps(probe_config([MISREAD])).encode()
    reference = make_encoder(TOKENIZERS, data)
    assert differing(engine._Gigatoken(data), reference, ["\u3225" * 4]) != []
    choice = choose_engine(data, "auto", [b"1234567"])
    assert choice.name == TOKENIZERS
    assert "{1,3}+" in choice.reason
    with pytest.raises(IncompatibleError, match="1,3"):
        choose_engine(data, GIGATOKEN, [b"text"])


def documents() -> Iterator[str]:
    for number, found in enumerate(itertools.islice(itertools.cycle(FOUND), 300)):
        yield f"document {number} " + ("plain" if number % 3 else found)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build(workers: int, tmp_path: Path) -> None:
    """Stored ids are the reference's, whichever process encoded them."""
    (tmp_path / "probe.json").write_bytes(probe_json("qwen2+NFC"))
    texts = list(documents())
    with (tmp_path / "in.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    report = build_into(
        tmp_path / "out", tmp_path / "in.jsonl", tokenizer=str(tmp_path / "probe.json"),
        eos="none", split="train=1", workers=workers, engine="gigatoken",
    )  # fmt: skip
    assert report.manifest.tokenizer.engine == GIGATOKEN
    expected, _ = both_engines("qwen2+NFC")[1].encode([text.encode() for text in texts])
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        assert split.read(0, split.tokens).tolist() == expected.tolist()


def test_a_build_of_conversations(tmp_path: Path) -> None:
    """So are those of conversations."""
    (tmp_path / "probe.json").write_bytes(probe_json("qwen2+NFC"))
    talks = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} too"}]
        for text in documents()
    ]
    with (tmp_path / "in.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"messages": talk}) + "\n" for talk in talks)
    build_chats(
        tmp_path / "out", tmp_path / "in.jsonl", tokenizer=str(tmp_path / "probe.json"),
        split="train=1", engine="gigatoken",
    )  # fmt: skip
    texts = [chatml(talk)[0].encode() for talk in talks]
    expected, _ = both_engines("qwen2+NFC")[1].encode(texts)
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        assert split.read(0, split.tokens).tolist() == expected.tolist()
