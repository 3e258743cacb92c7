"""Datasets of conversations and preferences of known content, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.scenes.datasets import make_dataset

__all__ = ["Answer", "Record", "make_preferences", "random_records", "written"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A whole document: the prompt, then an answer: `mask` is 1 where it is trained on."""

    ids: list[int]
    mask: list[int]
    score: float


Record = list[Answer]


def random_records(
    form: str, count: int, *, seed: int = 0, longest: int = 12, group: int = 4
) -> list[Record]:
    """`count` records with a prompt and answers of 1 to `longest` tokens each."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        prompt = random.integers(0, 256, random.integers(1, longest + 1)).tolist()
        answers = {"pairs": 2, "labels": 1}.get(form) or int(random.integers(1, group + 1))
        scores = _scores(form, answers, random)
        record = []
        for score in scores:
            ids = random.integers(0, 256, random.integers(1, longest + 1)).tolist()
            # An answer begins with a trained token; what a tool says in it is not trained on.
            mask = [1, *random.integers(0, 2, len(ids) - 1).tolist()]
            record.append(Answer(ids=prompt + ids, mask=[0] * len(prompt) + mask, score=score))
        found.append(record)
    return found


def _scores(form: str, answers: int, random: np.random.Generator) -> list[float]:
    if form == "pairs":
        return [1.0, 0.0]
    if form == "labels":
        return [float(random.integers(0, 2))]
    given = random.random() < 0.7
    rewards: list[float] = random.normal(size=answers).astype(np.float32).tolist()
    return rewards if given else [float("nan")] * answers


def make_preferences(
    path: Path, form: str, shards: Sequence[Sequence[Record]], *, empty: Sequence[str] = ()
) -> Path:
    """Write a dataset whose split `train` has these records by shard; return `path`.

    `empty` are the names of splits without records.
    """
    nothing: dict[str, list[Any]] = {name: [] for name in empty}
    answers = [[answer for record in shard for answer in record] for shard in shards]
    return make_dataset(
        path,
        {"train": [[answer.ids for answer in shard] for shard in answers], **nothing},
        masks={"train": [[answer.mask for answer in shard] for shard in answers], **nothing},
        form=form,
        scores={
            "train": [[[a.score for a in record] for record in shard] for shard in shards],
            **nothing,
        },
    )


def written(path: Path, form: str, *counts: int, seed: int = 0) -> list[Record]:
    """Make a dataset of shards with so many random records; the records."""
    records = random_records(form, sum(counts), seed=seed)
    ends = np.cumsum([0, *counts])
    make_preferences(path, form, [records[a:b] for a, b in pairwise(ends.tolist())])
    return records
