"""Special text: spelled special tokens are counted, and proved to have stayed text."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError
from dataprep.pipeline.tokenize.special_text import SpecialTextCounter
from tests.scenes.sources import encoding

NO_IDS = np.empty(0, np.uint32)


def counted(tokens: list[str], texts: list[str]) -> dict[str, int]:
    counter = SpecialTextCounter(
        encoding(special_tokens={token: n for n, token in enumerate(tokens)})
    )
    counter.count([text.encode() for text in texts], NO_IDS)
    return dict(counter.found)


def reference(tokens: list[str], texts: list[str]) -> dict[str, int]:
    """Left to right, the longest token that starts here, no overlap within one first letter."""
    found: Counter[str] = Counter()
    for first in {token[0] for token in tokens if token}:
        group = sorted((token for token in tokens if token[:1] == first), key=len, reverse=True)
        for text in texts:
            at = 0
            while at < len(text):
                token = next((token for token in group if text.startswith(token, at)), None)
                found.update([token] if token else [])
                at += len(token) if token else 1
    return dict(found)


alphabet = st.text(st.sampled_from("<|>ab[]\né"), max_size=12)
some_tokens = st.lists(
    st.sampled_from(["<|a|>", "<|a|>b", "<a>", "<", "[b]", "\n", "é<", "|>", "aa", ""]),
    unique=True,
    max_size=5,
)


@given(some_tokens, st.lists(alphabet, max_size=5))
@example(["\n"], ["a", "b"])
@example(["<", "<a>"], ["<a><"])
@example(["<|a|>"], ["<|a", "|>"])
@example([""], ["a"])
def test_counts(tokens: list[str], texts: list[str]) -> None:
    """Counts are those of a naive scan of each text; none is found across texts."""
    assert counted(tokens, texts) == reference(tokens, texts)


@given(st.sampled_from(["<|e|>", "[SEP]", "é!", "x"]), st.lists(alphabet, max_size=4))
def test_one_token_is_str_count(token: str, texts: list[str]) -> None:
    """With one token the count is that of `str.count`."""
    texts = [*texts, f"a{token}b{token}", token]
    assert counted([token], texts) == {token: sum(text.count(token) for text in texts)}


@given(st.lists(st.text(st.sampled_from("ab|]^-"), max_size=5), unique=True, max_size=12),
       st.lists(st.text(st.sampled_from("ab|]^-"), max_size=30), max_size=3))  # fmt: skip
def test_counts_of_tokens_that_share_beginnings(tokens: list[str], texts: list[str]) -> None:
    """Branching patterns find what a naive scan finds, whatever the characters."""
    assert counted(tokens, texts) == reference(tokens, texts)


def test_tokens_that_are_prefixes_of_each_other() -> None:
    """Hundreds of them, nested, make a pattern that compiles; the longest wins."""
    tokens = ["<" + "a" * length for length in range(1, 400)]
    texts = ["<" + "a" * length for length in (1, 40, 60, 399, 500)]
    found = {"<a": 1, "<" + "a" * 40: 1, "<" + "a" * 60: 1, "<" + "a" * 399: 2}
    assert counted(tokens, texts) == found


def test_nothing_but_openings_costs_little() -> None:
    """A megabyte of `<|` costs no more with 256 special tokens than a few times that of one."""
    text = "<|" * (1 << 19)
    tokens = [f"<|{chr(97 + n // 16)}{n}|>" for n in range(256)]
    assert counted(tokens, [text + tokens[7]]) == {tokens[7]: 1}

    def seconds(some: list[str]) -> float:
        started = time.process_time()
        counted(some, [text])
        return time.process_time() - started

    one = min(seconds(tokens[:1]) for _ in range(3))
    assert min(seconds(tokens) for _ in range(3)) < 10 * one + 0.02


def test_counts_add_up_over_batches() -> None:
    """One counter serves many batches."""
    counter = SpecialTextCounter(encoding(special_tokens={"<e>": 1}))
    for _ in range(3):
        counter.count([b"<e>", b"no", b"<e><e>"], NO_IDS)
    assert counter.found == {"<e>": 9}


def test_the_proof() -> None:
    """Text that became a token raises where it must stay text, and nowhere else."""
    tokens = {"<e>": 1, "<unk>": 0}
    ids = np.array([5, 1], np.uint32)
    with pytest.raises(IncompatibleError) as caught:
        SpecialTextCounter(encoding(special_tokens=tokens)).count([b"a <e>"], ids)
    assert caught.value.code == "E_SPECIAL_TEXT"
    assert "--special-text parse" in str(caught.value)
    SpecialTextCounter(encoding(special_tokens=tokens, special_text="parse")).count([b"a <e>"], ids)
    SpecialTextCounter(encoding(special_tokens=tokens)).count(
        [b"a <e>"], np.array([5, 6], np.uint32)
    )
    unknown = np.array([5, 0], np.uint32)
    SpecialTextCounter(encoding(special_tokens=tokens, unknown=0)).count([b"a <e>"], unknown)
