"""What a build says of its content: splits without documents, text that the tokenizer lost."""

from __future__ import annotations

import pytest

from dataprep.formats.manifest.tokens import SplitEntry
from dataprep.pipeline.plan.splits import split_notes
from dataprep.pipeline.tokens.assemble import unknown_notes


def split(documents: int, tokens: int) -> SplitEntry:
    return SplitEntry(
        content_id="0" * 64, index="x_idx.pt", documents=documents, tokens=tokens, text_bytes=0,
        zero_token_documents=0,
        shards=(),
    )  # fmt: skip


SPLITS = {"train": split(9, 900), "val": split(1, 100)}
SIZES = {"train": 9, "val": 1}
SHARES = {"train": None, "val": 0.1}


def test_nothing_is_said_of_an_ordinary_build() -> None:
    """All splits have documents; one token in a hundred may be unknown."""
    assert list(unknown_notes(SPLITS, 0)) == []
    assert list(unknown_notes(SPLITS, 10)) == []
    assert list(split_notes(SIZES, SHARES)) == []
    assert list(split_notes(SIZES, SHARES, key="topic", keys=11)) == []


def test_many_unknown_tokens() -> None:
    """More than one in a hundred: how many, and what can be done."""
    (note,) = unknown_notes(SPLITS, 11)
    assert note.startswith("11 tokens, 1.1% of all, are the unknown token")
    assert "--tokenizer" in note


@pytest.mark.parametrize(
    ("share", "named"), [(0.01, True), (5, True), (None, True), (0, False), (0.0, False)]
)
def test_splits_without_documents(share: float | int | None, named: bool) -> None:
    """Named where a share was asked for: a ratio, a number, or the rest, but not nothing."""
    sizes = {**SIZES, "test": 0}
    notes = list(split_notes(sizes, {**SHARES, "test": share}))
    assert len(notes) == named
    if named:
        assert notes[0].startswith("nothing fell to the split test: too few documents")
    sizes["extra"] = 0
    both = list(split_notes(sizes, {**SHARES, "test": share, "extra": 0.5}))
    assert both[0].startswith(
        f"nothing fell to the {'splits test, extra' if named else 'split extra'}: "
    )


def test_few_values_of_the_field_that_splits() -> None:
    """The number is said, and what to do where the field names splits."""
    sizes, shares = {"train": 9, "val": 0}, {"train": 0.9, "val": 0.1}
    (note,) = split_notes(sizes, shares, key="split", keys=3)
    assert note.startswith(
        "nothing fell to the split val: the field 'split' has only 3 distinct values, and "
        "records with equal values stay together"
    )
    assert "too few documents" not in note
    assert "--split NAME=1" in note
    (note,) = split_notes(SIZES, shares, key="split", keys=10)
    assert note.startswith("the field 'split' has only 10 distinct values")
    (note,) = split_notes(SIZES, shares, key="split", keys=1, exact=True)
    assert "only one value, and exact sizes cut the records of one value apart" in note
    (note,) = split_notes(sizes, shares, key="split", keys=101)
    assert "too few documents" in note
    assert list(split_notes({"train": 9}, {"train": 1.0}, key="split", keys=1)) == []


def test_an_empty_dataset_has_no_share_of_anything() -> None:
    """Documents without a single token."""
    assert list(unknown_notes({"train": split(3, 0)}, 0)) == []
