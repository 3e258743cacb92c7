"""Rows of conversations: what they are by default, and that packing them changes no loss."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.types import IGNORED_LABEL, Batch, Labels
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.support import examples

LENGTHS = [[9, 30, 14], [], [22, 5, 11, 40, 17, 8]]
Masks = list[list[np.ndarray]]


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


def talk(path: Path, lengths: list[list[int]] = LENGTHS, *, seed: int = 0) -> Path:
    """Conversations of these lengths: about half of each is to be trained on, never nothing."""
    masks = random_split(lengths, seed=seed + 1, vocab_size=2)
    for mask in (mask for shard in masks for mask in shard if len(mask)):
        mask[-1] = 1
    return make_dataset(
        path, {"train": random_split(lengths, seed=seed)}, masks={"train": masks}, form="chat"
    )


def test_rows_that_a_build_is_for(tmp_path: Path) -> None:
    """Conversations are packed best-fit and never cut; texts are windows, as ever."""
    chat = talk(tmp_path / "chat")
    text = make_dataset(tmp_path / "text", {"train": random_split(LENGTHS)})
    samples: Any = make_loader(chat, "train", 1, seq_len=40).dataset_obj
    assert isinstance(samples, PackedDataset)
    assert (samples.options.algorithm, samples.options.overlong) == ("best-fit", "error")
    plain: Any = make_loader(text, "train", 1, seq_len=40).dataset_obj
    assert isinstance(plain, WindowDataset)
    packed: Any = make_loader(text, "train", 1, seq_len=40, rows="packed").dataset_obj
    assert (packed.options.algorithm, packed.options.overlong) == ("first-fit", "split")
    asked: Any = make_loader(chat, "train", 1, seq_len=40, rows="windows").dataset_obj
    assert isinstance(asked, WindowDataset)
    module = UniversalDataModule(str(chat), batch_size=1, rows={"seq_len": 40})
    assert isinstance(module.train_dataloader().dataset_obj, PackedDataset)


def test_nothing_is_cut_without_asking(tmp_path: Path) -> None:
    """The document that is too long is named when the loader is made, and what would do."""
    chat = talk(tmp_path / "chat")
    for options in ({}, {"rows": "packed"}, {"rows": "documents"}):
        with pytest.raises(InputError) as caught:
            make_loader(chat, "train", 1, seq_len=39, **options)
        assert (caught.value.code, caught.value.where) == (
            "E_OVERLONG", f"document 6 of {chat}",
        )  # fmt: skip
        assert "40 tokens" in caught.value.problem
    for overlong in ("split", "truncate", "drop"):
        make_loader(chat, "train", 1, seq_len=39, overlong=overlong)
    for overlong, part in (("truncate", slice(None, 39)), ("truncate-left", slice(1, None))):
        data = make_loader(
            chat, "train", 1, rows="documents", seq_len=39, overlong=overlong
        ).dataset_obj  # fmt: skip
        ids = open_dataset(chat).split("train").document(6)[part]
        assert data[6]["input_ids"].tolist() == ids.tolist()
    for rows, overlong in (
        ("documents", "split"),
        ("packed", "truncate-left"),
        ("windows", "drop"),
    ):
        with pytest.raises(UsageError) as refused:
            make_loader(
                chat, "train", 1, rows=rows, overlong=overlong
            )  # fmt: skip
        assert refused.value.where == "overlong"


def reference_labels(batch: Batch, masks: list[np.ndarray], labels: Labels) -> list[list[int]]:
    """Labels of packed rows by document number and place, one token at a time."""
    found = []
    columns = (batch["input_ids"], batch["doc_ids"], batch["position_ids"])
    for ids, documents, places in zip(*(c.tolist() for c in columns), strict=True):
        row = [IGNORED_LABEL] * len(ids)
        for at, (document, place) in enumerate(zip(documents, places, strict=True)):
            if document >= 0 and place > 0 and masks[document][place]:
                row[at - 1 if labels == "shifted" else at] = ids[at]
        found.append(row)
    return found


@examples(20)
@given(
    lengths=st.lists(st.lists(st.integers(0, 14), max_size=5), min_size=1, max_size=3),
    labels=st.sampled_from(["shifted", "unshifted"]),
    pack=st.sampled_from(["first-fit", "best-fit"]),
)
def test_everything_restarts_with_each_conversation(
    lengths: list[list[int]], labels: Labels, pack: Any
) -> None:
    """Positions, cu_seqlens and labels of packed rows, over any sharding: token by token."""
    if not any(sum(shard) for shard in lengths):
        lengths = [[3]]
    with TemporaryDirectory() as folder:
        split = open_dataset(talk(Path(folder) / "d", lengths)).split("train")
        data = PackedDataset(
            split, seq_len=14, algorithm=pack, labels=labels, position_ids=True, doc_ids=True,
            cu_seqlens=True, plan_dir=Path(folder) / "plans",
        )  # fmt: skip
        batch = data.batch(range(len(data)))
        masks = [split.masks.read(*split.span(number)) for number in range(split.documents)]
        documents = [split.document(number).tolist() for number in range(split.documents)]
    assert batch["labels"].tolist() == reference_labels(batch, masks, labels)
    flat = {name: batch[name].reshape(-1) for name in ("input_ids", "doc_ids", "position_ids")}
    seen = []
    bounds = torch.unique(batch["cu_seqlens"]).tolist()
    for start, stop in pairwise(bounds):
        (number,) = set(flat["doc_ids"][start:stop].tolist())
        if number >= 0:
            seen.append(number)
            assert flat["input_ids"][start:stop].tolist() == documents[number]
            assert flat["position_ids"][start:stop].tolist() == [*range(stop - start)]
    assert sorted(seen) == [number for number, ids in enumerate(documents) if ids]


class Model(torch.nn.Module):
    """One layer of attention with positions, restricted to what `segments` says; float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(EOS_ID + 1, 16, dtype=torch.float64)
        self.places = torch.nn.Embedding(64, 16, dtype=torch.float64)
        self.mix = torch.nn.Linear(16, 48, dtype=torch.float64)
        self.head = torch.nn.Linear(16, EOS_ID + 1, dtype=torch.float64)

    def loss(self, batch: Batch, segments: torch.Tensor) -> torch.Tensor:
        """Mean over all labels of a batch."""
        hidden = self.words(batch["input_ids"]) + self.places(batch["position_ids"])
        query, key, value = self.mix(hidden).chunk(3, -1)
        causal = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
        allowed = causal & (segments[:, :, None] == segments[:, None, :])
        hidden = hidden + scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return cross_entropy(self.head(hidden).flatten(0, 1), batch["labels"].flatten(),
                             ignore_index=IGNORED_LABEL)  # fmt: skip


def test_packing_changes_no_loss(tmp_path: Path) -> None:
    """Loss and gradients of packed rows are those of one conversation a row, to rounding.

    Only if attention stays inside of each: without that restriction they differ.
    """
    split = open_dataset(talk(tmp_path / "chat")).split("train")
    packed = PackedDataset(
        split, seq_len=64, algorithm="best-fit", position_ids=True, doc_ids=True
    ).batch([0, 1, 2])
    assert len(set(packed["doc_ids"].flatten().tolist()) - {-1}) == split.documents
    rows = DocumentDataset(split, position_ids=True).batch(range(split.documents))
    alone = rows["attention_mask"] - 1 + torch.arange(split.documents)[:, None]
    model, losses, gradients = Model(), [], []
    for batch, segments in ((packed, packed["doc_ids"]), (rows, alone)):
        model.zero_grad()
        loss = model.loss(batch, segments)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    assert (packed["labels"] >= 0).sum() == (rows["labels"] >= 0).sum()
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(*gradients)
    mixed = model.loss(packed, torch.zeros_like(packed["doc_ids"])).item()
    assert mixed != pytest.approx(losses[1], rel=1e-3)


def test_what_the_user_says_is_no_label(tmp_path: Path) -> None:
    """Other ids in the places that are not trained on: labels are the same everywhere."""
    path = talk(tmp_path / "chat")
    split = open_dataset(path).split("train")
    masks = [split.masks.read(*split.span(number)) for number in range(split.documents)]
    before = DocumentDataset(split).batch(range(split.documents))["labels"]
    changed = [
        np.where(mask, split.document(number), 3).tolist() for number, mask in enumerate(masks)
    ]
    other = make_dataset(
        tmp_path / "o", {"train": [changed]}, masks={"train": [masks]}, form="chat"
    )
    after = DocumentDataset(open_dataset(other).split("train")).batch(range(len(masks)))
    assert torch.equal(before, after["labels"])
