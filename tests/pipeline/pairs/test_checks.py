"""The last checks: every fault of every array is seen, and says where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import DataprepError
from dataprep.pipeline.pairs.checks import check_links, check_numbers, check_splits

SIZES = [3, 4, 2, 2]  # questions, sources, keywords, clusters


def links() -> dict[str, Any]:
    """Five pairs that are in order."""
    return {
        "pair_index": np.array([[0, 0], [0, 1], [1, 1], [2, 3], [2, 0]]),
        "clusters": np.array([0, 1, -1, 1, 0]),
        "offsets": np.array([0, 1, 1, 3, 4, 4]),
        "keyword_ids": np.array([0, 0, 1, 1]),
    }


def test_item_115_links_in_order_pass() -> None:
    """Item 115: the checks do not cry wolf."""
    check_links(**links(), sizes=SIZES)


@pytest.mark.parametrize(
    ("name", "place", "value", "problem"),
    [
        ("pair_index", (3, 0), 3, r"pair_index \(questions\) row 3: are not all from 0 to 2"),
        ("pair_index", (3, 0), -1, r"pair_index \(questions\) row 3"),
        ("pair_index", (4, 1), 4, r"pair_index \(sources\) row 4: are not all from 0 to 3"),
        ("pair_index", (4, 1), 3, "pair_index: holds a pair twice"),
        ("clusters", 1, 2, "pair_cluster_id row 1: are not all from -1 to 1"),
        ("clusters", 1, -2, "pair_cluster_id row 1"),
        ("keyword_ids", 2, 2, "pair_keyword_ids row 2: are not all from 0 to 1"),
        ("offsets", 1, 2, "pair_keyword_offsets: do not cut"),
        ("offsets", 5, 3, "pair_keyword_offsets: do not cut"),
        ("offsets", 0, 1, "pair_keyword_offsets: do not cut"),
    ],
)
def test_item_115_faults_of_links(name: str, place: Any, value: int, problem: str) -> None:
    """Item 115: both bounds of every index, lengths, repeats."""
    found = links()
    found[name][place] = value
    with pytest.raises(DataprepError, match=problem):
        check_links(**found, sizes=SIZES)


@pytest.mark.parametrize("name", ["clusters", "offsets"])
def test_item_115_arrays_of_another_length(name: str) -> None:
    """Item 115: one row too few."""
    found = links()
    found[name] = found[name][:-1]
    with pytest.raises(DataprepError):
        check_links(**found, sizes=SIZES)


@pytest.mark.parametrize(
    ("value", "bounds", "bad"),
    [
        (np.nan, None, True), (np.inf, None, True), (9, None, False), (9, (0.0, 2.0), True),
        (-1e-3, (0.0, 2.0), True), (2, (0.0, 2.0), False), (np.nan, (0.0, 2.0), True),
    ],
)  # fmt: skip
def test_item_115_numbers(value: float, bounds: tuple[float, float] | None, bad: bool) -> None:
    """Item 115: NaN, Inf and what is outside; the row counts from the first of its block."""
    rows = np.ones((4, 2), np.float32)
    rows[2, 1] = value
    if not bad:
        check_numbers("name", rows, 10, bounds)
        return
    with pytest.raises(DataprepError, match="name row 12"):
        check_numbers("name", rows, 10, bounds)


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ({"train": [0, 1], "val": [2, 3, 4]}, None),
        ({"train": [0, 1, 2, 3, 4], "val": []}, None),
        ({"train": [0, 1], "val": [2, 3]}, "do not hold every pair once"),
        ({"train": [0, 1, 2], "val": [2, 3, 4]}, "do not hold every pair once"),
        ({"train": [0, 2, 1], "val": [3, 4]}, "are not in increasing order"),
        ({"train": [0], "val": [1, 2, 3, 4]}, "share a question"),
    ],
)
def test_item_115_splits(splits: dict[str, list[int]], problem: str | None) -> None:
    """Item 115: complete, disjoint, in order, by question."""
    found = {name: np.array(rows, np.int64) for name, rows in splits.items()}
    questions = links()["pair_index"][:, 0]
    if problem is None:
        check_splits(found, questions)
        return
    with pytest.raises(DataprepError, match=problem):
        check_splits(found, questions)
