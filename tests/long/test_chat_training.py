"""A small model learns from packed conversations what the assistant says, and nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dataprep import open_dataset
from dataprep.runtime.specs import RowKind
from tests.scenes.chats import TALKS, build_chats
from tests.scenes.loaders import make_loader
from tests.support import REPOSITORY, SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "examples" / "finetune_chat.py"))


@needs_shared_data
def test_loss_on_the_assistant_falls(tmp_path: Path, example: dict[str, Any]) -> None:
    """A minute on 4,785 real conversations: from chance to far below it."""
    source = SHARED_DATA / "chat" / "chat_messages.jsonl"
    build_chats(tmp_path / "shards", source, tokenizer=None)
    losses = example["main"]([str(tmp_path / "shards"), "--seconds", "60"])
    assert losses[0] > 10
    assert sum(losses[-5:]) / 5 < losses[0] - 1.5


def test_what_users_say_is_no_label(tmp_path: Path, example: dict[str, Any]) -> None:
    """Other labels on the turns of users change neither the loss nor one gradient."""
    build_chats(tmp_path / "shards", TALKS, split="train=1")
    model, batch = prepared(tmp_path / "shards", example, rows="packed")
    split = open_dataset(tmp_path / "shards").split("train")
    trained = batch["labels"] != -100
    assert 0.1 < trained.float().mean() < 0.9
    before = gradients(model, batch, example["loss_of"])
    shifted = torch.roll(batch["input_ids"], -1, 1)
    assert torch.equal(batch["labels"][trained], shifted[trained])
    noise = torch.randint(0, split.dataset.manifest.tokens.vocab_size, shifted.shape)
    changed = {**batch, "labels": torch.where(trained, shifted, noise).where(trained, -100)}
    after = gradients(model, changed, example["loss_of"])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    wrong = {**batch, "labels": torch.where(trained, shifted, noise)}
    other = gradients(model, wrong, example["loss_of"])
    assert not torch.equal(before[0], other[0])  # the test would see it


def test_packed_and_unpacked_losses_agree(tmp_path: Path, example: dict[str, Any]) -> None:
    """The same conversations, side by side or one a row: the same loss, but for rounding."""
    build_chats(tmp_path / "shards", TALKS, split="train=1")
    model, packed = prepared(tmp_path / "shards", example, rows="packed")
    _, alone = prepared(tmp_path / "shards", example, rows="documents")
    count, width = alone["input_ids"].shape
    alone["doc_ids"] = torch.arange(count)[:, None].expand(count, width)
    loss_of: Callable[..., Tensor] = example["loss_of"]
    assert (packed["labels"] != -100).sum() == (alone["labels"] != -100).sum() > 500
    assert len(packed["input_ids"]) < count / 3
    one, other = loss_of(model, packed, "sum"), loss_of(model, alone, "sum")
    assert torch.allclose(one, other, rtol=1e-5)
    mixed = {**packed, "doc_ids": torch.zeros_like(packed["doc_ids"])}
    assert not torch.allclose(loss_of(model, mixed, "sum"), other, rtol=1e-5)


def prepared(
    shards: Path, example: dict[str, Any], *, rows: RowKind
) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    """A model, and all conversations in one batch."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"doc_ids": True, "algorithm": "best-fit"} if rows == "packed" else {}
    loader = make_loader(
        shards, "train", batch_size=1000, rows=rows, seq_len=1024, position_ids=True,
        drop_last=False, shuffle=False, **options,
    )  # fmt: skip
    vocab_size = open_dataset(shards).manifest.tokens.vocab_size
    [batch] = list(loader)
    return example["ChatGPT"](vocab_size, 1024), batch


def gradients(
    model: torch.nn.Module, batch: dict[str, Tensor], loss_of: Callable[..., Tensor]
) -> list[Tensor]:
    """The loss and all gradients."""
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    found = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *(grad.clone() for grad in found if grad is not None)]
