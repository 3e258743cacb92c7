"""Records of preferences against the collators, which make batches of lists."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.read.dataset import ReadBy, open_dataset
from dataprep.runtime.choices import FORMS, PreferenceOverlong
from dataprep.runtime.collate.preference import GRPO, KTO, Preference
from dataprep.runtime.rows.preferences import PreferenceDataset
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import IGNORED_LABEL, Labels
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.owned import check_owned
from tests.scenes.preferences import Answer, Record, make_preferences, written
from tests.support import examples


def of(path: Path, **options: Any) -> PreferenceDataset:
    options = {"plan_dir": path.parent / "plans"} | options
    return PreferenceDataset(open_dataset(path).split("train"), **options)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (name, found[name].dtype) == (name, tensor.dtype)
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)


def labelled(answer: Answer, labels: Labels | None, prefix: str = "") -> dict[str, list[int]]:
    """One document as a sample for a collator, one token at a time."""
    later = [t if m else IGNORED_LABEL for t, m in zip(answer.ids, answer.mask, strict=True)][1:]
    shifted, unshifted = [*later, IGNORED_LABEL], [IGNORED_LABEL, *later]
    own = {"shifted": shifted, "unshifted": unshifted}
    found = {f"{prefix}input_ids": answer.ids}
    return found if labels is None else found | {f"{prefix}labels": own[labels]}


def reference(
    form: str, records: list[Record], labels: Labels | None, **options: Any
) -> dict[str, torch.Tensor]:
    """What the collators of the package make of `records` as lists."""
    if form == "pairs":
        samples: list[dict[str, Any]] = [
            labelled(chosen, labels, "chosen_") | labelled(rejected, labels, "rejected_")
            for chosen, rejected in records
        ]
        batch = Preference(pad_id=EOS_ID, **options)(samples)
        names = [
            side + name
            for side in ("chosen_", "rejected_")
            for name in ("input_ids", "attention_mask", "labels")
        ]
        return {name: batch[name] for name in names if name in batch}
    if form == "labels":
        samples = [{**labelled(one, labels), "tag": one.score == 1} for (one,) in records]
        batch = KTO(pad_id=EOS_ID, **options)(samples)
        names = ["input_ids", "attention_mask", "labels", "tag"]
        return {name: batch[name] for name in names if name in batch}
    prompts = [common(record) for record in records]
    both = list(zip(records, prompts, strict=True))
    samples = [
        {"input_ids": record[0].ids[:at], "responses": [answer.ids[at:] for answer in record],
         "scores": [answer.score for answer in record]}
        for record, at in both
    ]  # fmt: skip
    batch = GRPO(pad_id=EOS_ID, **options)(samples)
    masks = [
        {"input_ids": [0], "responses": [answer.mask[at:] for answer in record]}
        for record, at in both
    ]
    batch["responses_loss_mask"] = GRPO(pad_id=0, **options)(masks)["responses"]
    order = ["input_ids", "attention_mask", "responses", "responses_attention_mask",
             "responses_loss_mask", "scores"]  # fmt: skip
    return {name: batch[name] for name in order}


def common(record: Record) -> int:
    """How many tokens all answers of a record begin with, none of them trained on."""
    at = 0
    while all(len(a.ids) > at and not a.mask[at] for a in record) and (
        len({a.ids[at] for a in record}) == 1
    ):
        at += 1
    return at


def cut(record: Record, limit: int) -> Record | None:
    """The record with the beginnings of its prompts cut off; None where that is not enough."""
    over = max(len(answer.ids) for answer in record) - limit
    if over <= 0:
        return record
    if any(over >= answer.mask.index(1) for answer in record):
        return None
    return [
        Answer(ids=a.ids[over:], mask=a.mask[over:], score=a.score) for a in record
    ]  # fmt: skip


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("form", FORMS)
@examples(15)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    limit=st.none() | st.integers(4, 26),
    labels=st.sampled_from([None, "shifted", "unshifted"]),
    multiple=st.integers(1, 9),
    equal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_batches_equal_the_collators(
    form: str,
    io: ReadBy,
    counts: list[int],
    limit: int | None,
    labels: Labels | None,
    multiple: int,
    equal: bool,
    seed: int,
) -> None:
    """Over any sharding, in any order, each record alone as well."""
    if form == "groups":
        labels = "shifted"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "d"
        records: list[Any] = [*written(path, form, *counts, seed=seed)]
        split = open_dataset(path, io=io).split("train")
        overlong: PreferenceOverlong = "error" if limit is None else "truncate-left"
        options: dict[str, Any] = {
            "max_length": limit, "overlong": overlong, "labels": labels,
            "multiple": multiple, "plan_dir": Path(folder) / "plans",
        }  # fmt: skip
        own: dict[str, Any] = {"multiple": multiple}
        if form == "pairs":
            options["equal_widths"] = own["equal_widths"] = equal
        if not records:
            with pytest.raises(InputError, match="has 0 documents"):
                PreferenceDataset(split, **options)
            return
        data = PreferenceDataset(split, **options)
        assert len(data) == len(records)
        served = []
        for number, record in enumerate(records):
            wanted = record if limit is None else cut(record, limit)
            if wanted is None:
                with pytest.raises(InputError, match="before the answer"):
                    data[number]
                continue
            same(data.batch([number]), reference(form, [wanted], labels, **own))
            served.append((number, wanted))
        order = np.random.default_rng(seed).permutation(len(served))
        if served:
            batch = data.batch([served[at][0] for at in order])
            same(batch, reference(form, [served[at][1] for at in order], labels, **own))


@pytest.fixture(params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written(tmp_path / "d", request.param, 7, 0, 6)
    return tmp_path / "d"


def test_tensors_share_nothing(path: Path) -> None:
    """Writing into one changes neither the others nor the next batch."""
    data = of(path)
    others = {"labels": {"tag": torch.bool}, "groups": {"scores": torch.float32}}
    check_owned(data, [0, 2], others.get(data.form))


def test_padding_rows(path: Path) -> None:
    """Rows that only fill up are padding all over, False in the mask; others stay."""
    data, plain = of(path, sample_mask=True, pad_id=3), of(path, pad_id=3)
    batch = data.batch([PADDING, 2])
    assert batch.pop("sample_mask").tolist() == [False, True]
    for name, tensor in plain.batch([2, 2]).items():
        assert torch.equal(batch[name][1], tensor[0]) or name == "scores"
        blank = 3 if name.endswith(("input_ids", "responses")) else 0
        blank = IGNORED_LABEL if name.endswith("labels") else blank
        assert (batch[name][0] == blank).all()
    only = data.batch([PADDING])
    assert all(len(tensor) == 1 for tensor in only.values())
    assert all(len(tensor) == 0 for tensor in data.batch([]).values())
    assert len(data.spans(np.array([PADDING]))[0]) == 0
    with pytest.raises(IndexError):
        plain.batch([PADDING])


def test_indices_follow_python(path: Path) -> None:
    """Negative indices count from the end; beyond either end is an IndexError."""
    data = of(path)
    for name, tensor in data[-1].items():
        torch.testing.assert_close(tensor, data[12][name], equal_nan=True)
    for index in (13, -14, 1 << 62):
        with pytest.raises(IndexError):
            data[index]


def test_pickles(path: Path) -> None:
    """As a path and a few numbers, as worker processes get it."""
    data = of(path, sample_mask=True, multiple=4, pad_id=9)
    again = pickle.loads(pickle.dumps(data))
    assert again.definition == data.definition
    same(again.batch([3, PADDING]), data.batch([3, PADDING]))


def test_spans_and_covering_are_inverse(path: Path) -> None:
    """Of every token, the record that has it; of what was cut off, none."""
    for options in ({}, {"max_length": 13, "overlong": "truncate-left"}):
        data = of(path, **options)
        owner = [-1] * data.split.tokens
        for sample in range(len(data)):
            for start, stop in zip(*data.spans(np.array([sample])), strict=True):
                owner[start:stop] = [sample] * int(stop - start)
        for token in range(data.split.tokens):
            found = data.covering(token, token + 1).tolist()
            assert found == [owner[token]] * (owner[token] >= 0)
        assert data.covering(5, 60).tolist() == sorted({*owner[5:60]} - {-1})
        assert len(data.covering(7, 7)) == 0
        assert (-1 in owner) == bool(options)


def test_what_is_too_long_is_told_at_once(path: Path) -> None:
    """By the longest document, when the dataset is made; and what would do."""
    split = open_dataset(path).split("train")
    lengths = split.lengths()
    longest = int(lengths.max())
    for limit in (longest, longest + 1):
        assert len(of(path, max_length=limit)) == 13
    with pytest.raises(InputError) as caught:
        of(path, max_length=longest - 1)
    error = caught.value
    assert (error.code, error.where) == ("E_OVERLONG", f"document {lengths.argmax()}")
    assert f"seq_len={longest}" in str(error.remedy)


def test_prompts_that_tokenize_differently(tmp_path: Path) -> None:
    """What answers do not share is theirs, though none of it is trained on."""
    record = [
        Answer(ids=[5, 6, 7, 1], mask=[0, 0, 0, 1], score=0.5),
        Answer(ids=[5, 6, 8, 9, 2], mask=[0, 0, 0, 0, 1], score=1),
    ]
    single = [Answer(ids=[4, 3], mask=[0, 0], score=0)]  # nothing is trained on: all is the prompt
    make_preferences(tmp_path / "d", "groups", [[record, single]])
    batch = of(tmp_path / "d").batch([0, 1])
    assert batch["input_ids"].tolist() == [[5, 6], [4, 3]]
    assert batch["responses"][0].tolist() == [[7, 1, EOS_ID], [8, 9, 2]]
    assert batch["responses_loss_mask"].tolist() == [[[0, 1, 0], [0, 0, 1]], [[0] * 3] * 2]
    assert batch["responses_attention_mask"][1].sum() == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "overlong": ({"overlong": "drop"}, "overlong"),
    "labels": ({"labels": "moved"}, "labels"),
    "max_length": ({"max_length": 0}, "max_length"),
    "multiple": ({"multiple": 0}, "multiple"),
    "pad_to": ({"pad_to": "max_length"}, "max_length"),
    "pad_id": ({"pad_id": 257}, "pad_id"),
}


@pytest.mark.parametrize(("options", "where"), REFUSED.values(), ids=REFUSED.keys())
def test_arguments_that_cannot_be_met(path: Path, options: dict[str, Any], where: str) -> None:
    """Each is named."""
    with pytest.raises(UsageError) as caught:
        of(path, **options)
    assert caught.value.where == where


def test_options_of_other_forms(tmp_path: Path) -> None:
    """Equal widths are of pairs, labels are not of groups, and texts have no records."""
    written(tmp_path / "groups", "groups", 3)
    for options in ({"equal_widths": True}, {"labels": "unshifted"}):
        with pytest.raises(UsageError, match=r"pairs|responses_loss_mask"):
            of(tmp_path / "groups", **options)
    make_dataset(tmp_path / "text", {"train": random_split([[4]])})
    with pytest.raises(UsageError, match="has no preferences"):
        of(tmp_path / "text")


def test_nothing_is_read_at_open(path: Path) -> None:
    """Not even the groups, where there is no limit."""
    groups = path / "train" / "groups-00000.npy"
    groups.write_bytes(b"\0" * groups.stat().st_size)
    assert len(of(path)) == 13
