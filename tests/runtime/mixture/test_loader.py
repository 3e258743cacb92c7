"""`create_loader` over several datasets: paths, rows, weights, what was drawn."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.mixture.loader import mean_tokens, realised
from dataprep.runtime.mixture.order import MixtureOrder
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader

LENGTHS = {"a": [30, 2, 9, 41, 8], "b": [3, 4, 2, 5, 3, 2, 6, 0, 4, 3] * 3, "c": [60, 61]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a, b and c: long documents, short ones, and two of more than a row."""
    root = tmp_path_factory.mktemp("mixed")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        make_dataset(root / name, {"train": random_split([lengths], seed=number)})
    return root


@pytest.fixture(autouse=True)
def _here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("DATAPREP_CACHE", str(root / "cache"))


def make(weights: Mapping[Any, float], **options: Any) -> Loader:
    return make_loader(weights, "train", 4, **{"seq_len": 8, "seed": 5} | options)


def rows(loader: Loader) -> list[list[int]]:
    """The input ids of one pass."""
    return [row for batch in loader for row in batch["input_ids"].tolist()]


def test_a_path_may_be_spelled_in_any_way(root: Path) -> None:
    """The order, and whose states are taken, follow from the datasets and not from their paths."""
    plain = make({"a": 1, "c": 1})
    others = [make({"./a": 1, str(root / "c"): 1}), make({root / "a": 1, open_dataset("c"): 1})]
    iterator = iter(plain)
    next(iterator)
    state = json.loads(json.dumps(plain.state_dict()))
    following = next(iterator)["input_ids"].tolist()
    for other in others:
        other.load_state_dict(state)
        assert next(iter(other))["input_ids"].tolist() == following
    assert list(realised(others[0])) == ["./a", str(root / "c")]
    assert all(os.fspath(root) not in json.dumps(o.state_dict()) for o in others)


def test_one_build_twice_has_two_orders() -> None:
    """Two spellings of one dataset are two sources, each with an order of its own."""
    loader = make({"b": 1, "./b": 1})
    order = loader.sampler_obj.order
    n = loader.sampler_obj.samples
    samples = order.samples(np.arange(n), n, 0)
    assert samples[samples < n // 2].tolist() != (samples[samples >= n // 2] - n // 2).tolist()
    with pytest.raises(UsageError, match="b is given twice"):
        make({"b": 1, Path("b"): 1})


def test_states_of_others_are_refused() -> None:
    """Other datasets, weights, order of datasets, rows and shuffles have other orders."""
    state = make({"a": 1, "b": 1}).state_dict()
    with pytest.raises(IncompatibleError, match="another dataset"):
        make({"a": 1, "c": 1}).load_state_dict(state)
    for other in (
        make({"a": 2, "b": 1}), make({"b": 1, "a": 1}), make({"a": 1, "b": 1}, seq_len=7),
        make({"a": 1, "b": 1}, shuffle=False), make({"a": 1, "b": 1}, shuffle="blocks"),
        make({"a": 1, "b": 1}, seed=6),
    ):  # fmt: skip
        with pytest.raises(IncompatibleError):
            other.load_state_dict(state)
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize("labels", ["shifted", None])
def test_documents_of_unequal_lengths_are_served(labels: Any) -> None:
    """A batch is as wide as its longest row, whichever dataset that is of."""
    loader = make(
        {"a": 1, "b": 1}, rows="documents", seq_len=64, labels=labels, drop_last=False,
        position_ids=True,
    )  # fmt: skip
    seen = 0
    for batch in loader:
        assert batch["input_ids"].shape[1] == batch["lengths"].max()
        assert torch.equal(batch["attention_mask"].sum(1), batch["lengths"])
        seen += len(batch["lengths"])
    assert seen == len(loader.dataset_obj)


def test_cu_seqlens_have_room_for_every_dataset() -> None:
    """With True the room is that of the fullest row of any, and equal in all batches."""
    options = {"rows": "packed", "cu_seqlens": True, "seq_len": 12, "source_ids": True}
    loader = make({"a": 1, "b": 1}, **options)
    rooms = {
        name: PackedDataset(open_dataset(name).split("train"), seq_len=12, cu_seqlens=True)
        for name in "ab"
    }
    most = max(int(part.fields.cu_seqlens) for part in rooms.values())
    assert len({int(part.fields.cu_seqlens) for part in rooms.values()}) == 2
    mixes = set()
    for batch in loader:
        assert batch["cu_seqlens"].shape == (4 * most + 1,)
        assert int(batch["cu_seqlens"][-1]) == 4 * 12
        mixes.add(len(set(batch["source"].tolist())))
    assert 2 in mixes


def test_shuffles_by_name() -> None:
    """Blocks, whole and none; anything else is refused and not taken for a yes."""
    for odd in ("nonsense", 1, "none"):
        with pytest.raises(UsageError, match="must be a bool, 'full' or 'blocks'") as caught:
            make({"a": 1, "b": 1}, shuffle=odd)
        assert caught.value.where == "shuffle"
    whole, blocks, stored = (make({"a": 1, "b": 1}, shuffle=s) for s in (True, "blocks", False))
    assert rows(make({"a": 1, "b": 1}, shuffle="full")) == rows(whole)
    order = blocks.sampler_obj.order
    assert isinstance(order, MixtureOrder)
    assert all(isinstance(own, Blocks) for own in order.orders)
    found = [rows(loader) for loader in (make({"a": 1, "b": 1}), blocks, stored)]
    assert len({str(f) for f in found}) == 3
    again = make({"./a": 1, "b": 1}, shuffle="blocks")
    assert rows(again) == found[1]


def test_weights_are_shares_of_tokens_where_asked() -> None:
    """Documents of 18 and of 32/9 tokens on average: the short ones are drawn more often."""
    means = [Counter({"tokens": sum(n), "rows": sum(x > 0 for x in n)}) for n in LENGTHS.values()]
    loader = make({"a": 1, "b": 1}, rows="documents", seq_len=64, by="tokens")
    drawn = realised(loader)
    order = loader.sampler_obj.order
    assert isinstance(order, MixtureOrder)
    wanted = (means[1]["tokens"] * means[0]["rows"], means[0]["tokens"] * means[1]["rows"])
    first, second = order.mixture.schedule.weights
    assert first * wanted[1] == second * wanted[0]
    assert drawn["a"] == {"samples": 0, "tokens": 0, "passes": 0.0}
    assert make({"a": 1, "b": 1}, by="tokens").order["weights"] == [1, 1]  # equal windows
    with pytest.raises(UsageError, match="must be one of") as caught:
        make({"a": 1, "b": 1}, by="bytes")
    assert caught.value.where == "by"


def test_mean_tokens_equal_a_count() -> None:
    """Of all three kinds of rows: the tokens that all samples have, padding not counted."""
    for name in LENGTHS:
        split = open_dataset(name).split("train")
        packed = PackedDataset(split, seq_len=12, cu_seqlens=True, doc_ids=True)
        real = sum(int((packed[i]["doc_ids"] >= 0).sum()) for i in range(len(packed)))
        assert mean_tokens(packed) * len(packed) == real
        for longest, least in ((None, 1), (9, 3), (9, 0)):
            documents = DocumentDataset(split, max_length=longest, min_tokens=least)
            every = documents.batch(np.arange(len(documents)))
            assert mean_tokens(documents) * len(documents) == int(every["lengths"].sum())


@pytest.mark.parametrize("drop_last", [True, False])
def test_realised_counts_what_was_handed_over(drop_last: bool) -> None:
    """By the sources of the rows: over several epochs, within one, and after a resume."""
    loader = make({"a": 2, "b": 1}, source_ids=True, drop_last=drop_last)
    counts: Counter[int] = Counter()
    for _ in range(3):
        for batch in loader:
            counts.update(batch["source"].tolist())
    for batch in itertools.islice(loader, 2):
        counts.update(batch["source"].tolist())
    found = realised(loader)
    assert [found["a"]["samples"], found["b"]["samples"]] == [counts[0], counts[1]]
    assert found["a"]["tokens"] == 8 * counts[0]
    other = make({"a": 2, "b": 1}, drop_last=drop_last)
    other.load_state_dict(loader.state_dict())
    assert realised(other) == found


def test_the_loader_of_one_dataset_has_no_shares() -> None:
    with pytest.raises(UsageError, match="no mixture"):
        realised(make_loader("a", "train", 4, seq_len=8))
    with pytest.raises(UsageError, match="skip"):
        make({"a": 1, "b": 1}, skip=[3])
    documents = realised(make({"a": 1, "b": 1}, rows="documents"))
    assert documents["a"]["tokens"] is None  # not counted where the order does not need it
    assert "source" not in next(iter(make({"a": 1, "b": 1})))
