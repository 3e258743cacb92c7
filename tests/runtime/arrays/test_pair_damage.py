"""Pairs with edited files: wrong numbers are named at opening or when they are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import IntegrityError
from dataprep.formats.read.arrays import NamedArray
from dataprep.runtime.arrays import tables as pair_tables
from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.arrays.stored_rows import ValueRules
from tests.scenes.pair_datasets import Pairs, random_pairs, write_pairs

CORRUPT: dict[str, list[tuple[Any, float, str]]] = {
    "pair_index": [((11, 0), 20, "20, but there are 20 questions"),
                   ((11, 1), -1, "-1, but there are 40 sources")],
    "hard_negatives": [((11, 4), 1 << 40, "1,099,511,627,776, but there are 40 sources")],
    "pair_cluster_id": [(11, 4, "is 4, must be -1 to 3"), (11, -2, "is -2, must be -1 to 3")],
    "pair_relevance": [(11, 7.5, "is 7.5, must be 0 to 1"), (11, np.nan, "is nan, must be 0 to")],
    "negative_tiers": [((11, 2), 9, "is 9, must be 1 to 4"), ((11, 2), 0, "is 0, must be 1 to")],
    "centroid_distances": [(11, 2.5, "is 2.5, must be 0 to 2")],
}  # fmt: skip


def edited(folder: Path, given: Pairs, name: str, place: Any, value: float) -> Path:
    """Write `given` with one number changed."""
    damaged = {**given.arrays, name: given.arrays[name].copy()}
    damaged[name][place] = value
    splits = {"train": np.arange(60)}
    return write_pairs(folder / "p", Pairs(arrays=damaged, splits=splits), shard_bytes=160)


@pytest.mark.parametrize("when", ["opened", "served", "preloaded"])
@pytest.mark.parametrize(
    ("name", "place", "value", "problem"),
    [(name, *case) for name, cases in CORRUPT.items() for case in cases],
)
def test_corrupt_tables(
    tmp_path: Path, given: Pairs, monkeypatch: pytest.MonkeyPatch, *,
    name: str, place: Any, value: float, problem: str, when: str,
) -> None:  # fmt: skip
    """Item 129: wrong small numbers are named at opening; of large tables, while gathering."""
    made = edited(tmp_path, given, name, place, value)
    if when != "opened":
        monkeypatch.setattr(pair_tables, "_CHECKED_AT_OPENING", 0)
    with pytest.raises(IntegrityError, match=problem) as caught:
        if when == "served":
            pairs = open_pairs(made).split("train")
            for _ in range(2):
                pairs.batch([10, 12])
            pairs.batch([12, 11])
        else:
            open_pairs(made, preload=when == "preloaded")
    row_bytes = given.arrays[name][0].nbytes
    per_shard = max(1, 160 // row_bytes)
    assert caught.value.where == f"{name}/{11 // per_shard:05d}.npy"
    assert caught.value.problem.startswith(f"row {11 % per_shard}")


@pytest.mark.parametrize(
    ("name", "place", "value", "file", "problem"),
    [
        ("pair_keyword_ids", 3, 15, "pair_keyword_ids/00000.npy", "row 3 holds 15, but there are"),
        ("pair_keyword_ids", 3, -1, "pair_keyword_ids/00000.npy", "row 3 holds -1, but there are"),
        ("pair_keyword_offsets", 0, 1, "pair_keyword_offsets/00000.npy", "row 0 is 1, but offset"),
        ("pair_keyword_offsets", 30, -5, "pair_keyword_offsets/00001.npy", "row 10 is -5, but"),
        ("pair_keyword_offsets", 60, 99, "pair_keyword_offsets/00003.npy", "row 0 is 99, but off"),
    ],
)
def test_corrupt_keywords_are_named_at_opening(
    tmp_path: Path, given: Pairs, name: str, place: int, value: int, file: str, problem: str
) -> None:
    """Item 129: no batch serves them, so opening alone can tell."""
    with pytest.raises(IntegrityError) as caught:
        open_pairs(edited(tmp_path, given, name, place, value))
    assert caught.value.where == file
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize(
    ("name", "row"),
    [("question_embs", 3), ("source_embs", 7), ("steering_centroid", 11), ("source_embs", 9)],
)
def test_vectors_that_are_not_finite_are_not_served(
    tmp_path: Path, given: Pairs, name: str, row: int, preload: bool
) -> None:
    """The batch that meets one names file and row, every time; with preload, opening does."""
    made = edited(tmp_path, given, name, (row, 2), np.inf)

    def serve() -> None:
        pairs = open_pairs(made, preload=preload).split("train")
        pairs.force_steering("centroid")
        ends, negatives = given.pair_index, given.hard_negatives
        meets = {
            "question_embs": ends[:, 0] == row, "steering_centroid": np.arange(60) == row,
            "source_embs": (ends[:, 1] == row) | (negatives == row).any(axis=1),
        }[name]  # fmt: skip
        sound, broken = np.flatnonzero(~meets), np.flatnonzero(meets)
        pairs.batch(sound)
        for pair in (*broken, *broken):
            with pytest.raises(IntegrityError):
                pairs.batch([*sound[:3], pair])
        pairs.batch(sound)
        pairs.batch(broken[:1])

    with pytest.raises(IntegrityError, match=r"\[2\] is inf, must be finite") as caught:
        serve()
    assert caught.value.code == "E_FINITE"
    assert (caught.value.where or "").startswith(f"{name}/")


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
@pytest.mark.parametrize("preload", [False, True])
def test_every_number_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, *, preload: bool
) -> None:
    """Rows that were found sound are not checked again, nor are tables that are held read twice."""
    made = write_pairs(tmp_path / "p", random_pairs(dtype=dtype))
    reads: list[Any] = []
    checks: list[ValueRules] = []
    read, check_values = NamedArray.read, ValueRules.check

    def counted(array: NamedArray, *rows: int) -> Any:
        reads.append((array.name, *rows))
        return read(array, *rows)

    def noted(rules: ValueRules, *given: Any) -> None:
        checks.append(rules)
        check_values(rules, *given)

    monkeypatch.setattr(NamedArray, "read", counted)
    monkeypatch.setattr(ValueRules, "check", noted)
    pairs = open_pairs(made, preload=preload).split("train")
    numbers = [name for name, *_ in reads if name in pair_tables.NUMBERS]
    assert sorted(numbers) == sorted(pair_tables.NUMBERS)
    pairs.force_steering("centroid")
    checks.clear()
    pairs.batch([1, 2, 3])
    assert bool(checks) != preload
    checks.clear()
    pairs.batch([3, 1, 2])
    assert checks == []


def test_other_negatives_are_checked_anew(tmp_path: Path, given: Pairs) -> None:
    """A vector that no stored negative points at is looked at when another one does."""
    answers = given.pair_index[given.pair_index[:, 0] == given.pair_index[0, 0], 1]
    row = min({*range(40)} - {*given.hard_negatives[0].tolist()} - {*answers.tolist()})
    pairs = open_pairs(edited(tmp_path, given, "source_embs", (row, 0), np.nan)).split("train")
    pairs.force_steering("zero")
    pairs.batch([0])
    other = given.hard_negatives.copy()
    other[0, 0] = row
    pairs.reload_negatives((other, given.negative_tiers))
    with pytest.raises(IntegrityError, match="is nan, must be finite"):
        pairs.batch([0])
