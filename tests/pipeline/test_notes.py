"""What a build says of its content: splits without documents, text that the tokenizer lost."""

from __future__ import annotations

import pytest

from dataprep.formats.manifest import SplitEntry
from dataprep.pipeline.notes import content_notes


def split(documents: int, tokens: int) -> SplitEntry:
    return SplitEntry(
        index="x_idx.pt", documents=documents, tokens=tokens, text_bytes=0, zero_token_documents=0,
        shards=(),
    )  # fmt: skip


SPLITS = {"train": split(9, 900), "val": split(1, 100)}
SHARES = {"train": None, "val": 0.1}


def test_nothing_is_said_of_an_ordinary_build() -> None:
    """All splits have documents; one token in a hundred may be unknown."""
    assert list(content_notes(SPLITS, SHARES, 0)) == []
    assert list(content_notes(SPLITS, SHARES, 10)) == []


def test_many_unknown_tokens() -> None:
    """More than one in a hundred: how many, and what can be done."""
    (note,) = content_notes(SPLITS, SHARES, 11)
    assert note.startswith("11 tokens, 1.1% of all, are the unknown token")
    assert "--tokenizer" in note


@pytest.mark.parametrize(
    ("share", "named"), [(0.01, True), (5, True), (None, True), (0, False), (0.0, False)]
)
def test_splits_without_documents(share: float | int | None, named: bool) -> None:
    """Named where a share was asked for: a ratio, a number, or the rest, but not nothing."""
    splits = {**SPLITS, "test": split(0, 0)}
    notes = list(content_notes(splits, {**SHARES, "test": share}, 0))
    assert len(notes) == named
    if named:
        assert notes[0].startswith("no document fell to the split test: ")
    splits["extra"] = split(0, 0)
    both = list(content_notes(splits, {**SHARES, "test": share, "extra": 0.5}, 0))
    assert both[0].startswith(
        f"no document fell to the {'splits test, extra' if named else 'split extra'}: "
    )


def test_an_empty_dataset_has_no_share_of_anything() -> None:
    """Documents without a single token."""
    assert list(content_notes({"train": split(3, 0)}, {"train": 1.0}, 0)) == []
