"""Conversations over the limit, and those without anything to train on, against a plain version."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.chat.overlong import OVERLONG, UNDECIDED, Cutter
from dataprep.pipeline.chat.plan import ChatPlan
from tests.support import examples

POLICIES = ("error", "drop", "truncate-left", "truncate-right", "split", None)


def plan(**changes: Any) -> ChatPlan:
    """A plan of which only the limit matters here."""
    given: dict[str, Any] = {
        "template": "", "template_origin": "", "variables": {}, "date": None,
        "train_on": "assistant", "form": "chat", "shape": None, "columns": (), "system": None,
        "literal": True, "max_tokens": None, "overlong": None, "keep_untrained": False,
    }  # fmt: skip
    return ChatPlan(**(given | changes))


def cut_reference(
    documents: list[tuple[int, list[int]]], chat: ChatPlan
) -> tuple[list[tuple[int, list[int]]], dict[int, str]]:
    """The same, one conversation at a time: (record, mask) in, those that stay out."""
    kept: list[tuple[int, list[int]]] = []
    refused: dict[int, str] = {}
    for record, mask in documents:
        parts = [mask]
        if chat.max_tokens is not None and len(mask) > chat.max_tokens:
            limit = chat.max_tokens
            if chat.overlong == "truncate-left":
                parts = [mask[-limit:]]
            elif chat.overlong == "truncate-right":
                parts = [mask[:limit]]
            elif chat.overlong == "split":
                parts = [mask[at : at + limit] for at in range(0, len(mask), limit)]
            else:
                refused.setdefault(record, OVERLONG if chat.overlong else UNDECIDED)
        if not chat.keep_untrained:
            trained = [part for part in parts if any(part)]
            if not trained:
                refused.setdefault(record, "untrained")
            parts = trained
        kept += [(record, part) for part in parts]
    return [(record, part) for record, part in kept if record not in refused], refused


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
             max_size=8),
    st.sampled_from(POLICIES), st.one_of(st.none(), st.integers(1, 6)), st.booleans(),
    st.sampled_from(["chat", "pairs"]),
)  # fmt: skip
@examples(300)
def test_cut_is_what_it_means(
    documents: list[tuple[int, list[int]]], policy: Any, limit: int | None, keep: bool, form: Any
) -> None:
    """Whatever the lengths, masks, policies: the parts and the refusals of the plain version."""
    if policy == "split" and form != "chat":
        return
    documents = sorted(documents, key=lambda pair: pair[0])
    if form == "chat":  # one conversation a record
        documents = [(number, mask) for number, (_, mask) in enumerate(documents)]
    chat = plan(
        max_tokens=limit, overlong=policy if limit else None, keep_untrained=keep, form=form
    )
    offsets = np.cumsum([0, *(len(mask) for _, mask in documents)])
    flat = np.array([one for _, mask in documents for one in mask], np.uint8)
    owners = np.array([record for record, _ in documents], np.int64)
    parts, refused = Cutter(chat, Counter()).cut(offsets, flat, owners)
    found = [
        (int(owners[document]), flat[start:stop].tolist())
        for start, stop, document in zip(
            parts.starts.tolist(), parts.stops.tolist(), parts.documents.tolist(), strict=True
        )
    ]
    expected, reasons = cut_reference(documents, chat)
    assert found == expected
    if form == "chat":
        assert {record: one.reason for record, one in refused.items()} == reasons
    assert set(refused) == set(reasons)
    assert parts.whole(len(flat)) == (sum(len(mask) for _, mask in found) == len(flat))


@pytest.mark.parametrize("policy", ["drop", "truncate-left", "truncate-right", "split", "error"])
def test_measures_are_counted(policy: Any) -> None:
    """Every conversation that a measure was taken with is counted under its name."""
    counts: Counter[str] = Counter()
    cutter = Cutter(plan(max_tokens=2, overlong=policy), counts)
    cutter.cut(np.array([0, 3, 5, 9]), np.ones(9, np.uint8), np.arange(3))
    assert counts == {policy: 2}
