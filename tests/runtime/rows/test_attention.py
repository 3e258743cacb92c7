"""Attention over a batch of documents equals attention over each document by itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import Batch
from tests.scenes.datasets import make_dataset, random_split

HEADS, WIDTH, VOCABULARY, SEQ_LEN = 2, 8, 257, 24
SAMPLES = [0, PADDING, 3, 2, 1]
LENGTHS = [[5, 9, 0, 40], [1, 1, 17], [], [12, 33, 8]]


@pytest.fixture
def split(tmp_path: Path) -> Split:
    shards = random_split(LENGTHS, vocab_size=VOCABULARY)
    return open_dataset(make_dataset(tmp_path / "ds", {"train": shards})).split("train")


@pytest.fixture
def batch(split: Split) -> Batch:
    """Four windows: inside a document, over short ones, over shards' ends; and one that fills."""
    windows = WindowDataset(
        split, seq_len=SEQ_LEN, sample_mask=True, position_ids=True, doc_ids=True, cu_seqlens=8
    )
    return windows.batch(SAMPLES)


def attend(ids: torch.Tensor, positions: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """[tokens, HEADS * WIDTH] of one attention layer with positions, over one row of tokens."""
    made = torch.Generator().manual_seed(0)
    table = torch.randn(VOCABULARY, 3, HEADS, WIDTH, generator=made, dtype=torch.float64)
    places = torch.randn(SEQ_LEN, 3, HEADS, WIDTH, generator=made, dtype=torch.float64)
    query, key, value = (table[ids] + places[positions]).permute(1, 2, 0, 3)
    found = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
    return found.transpose(0, 1).reshape(len(ids), -1)


def causal(tokens: int) -> torch.Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def by_cu_seqlens(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """Which token of the flattened batch may look at which, as a variable-length kernel sees it."""
    run = torch.bucketize(torch.arange(tokens), cu_seqlens[1:].long(), right=True)
    return causal(tokens) & (run[:, None] == run)


def by_doc_ids(doc_ids: torch.Tensor) -> torch.Tensor:
    """The same from document numbers, for rows that do not look at one another."""
    row = torch.arange(len(doc_ids)).repeat_interleave(doc_ids.shape[1])
    flat = doc_ids.reshape(-1)
    return causal(len(flat)) & (row[:, None] == row) & (flat[:, None] == flat)


def one_by_one(split: Split, batch: Batch) -> torch.Tensor:
    """Each document of each row alone and counted from 0, cut out by the spans of the split."""
    parts = []
    for ids, sample in zip(batch["input_ids"], SAMPLES, strict=True):
        if sample == PADDING:
            nothing = torch.zeros(SEQ_LEN, dtype=torch.int64)
            parts.append(attend(ids, nothing, causal(SEQ_LEN)))
            continue
        first = sample * SEQ_LEN
        for document in range(split.documents):
            start, stop = (min(max(at - first, 0), SEQ_LEN) for at in split.span(document))
            if start < stop:
                part = ids[start:stop]
                parts.append(attend(part, torch.arange(len(part)), causal(len(part))))
    return torch.cat(parts)


def packed(batch: Batch, allowed: torch.Tensor) -> torch.Tensor:
    return attend(batch["input_ids"].reshape(-1), batch["position_ids"].reshape(-1), allowed)


def test_restricted_attention_equals_each_document_alone(split: Split, batch: Batch) -> None:
    """By cu_seqlens and by doc_ids alike; and without the restriction it does not."""
    tokens = batch["input_ids"].numel()
    alone = one_by_one(split, batch)
    runs = by_cu_seqlens(batch["cu_seqlens"], tokens)
    torch.testing.assert_close(packed(batch, runs), alone)
    torch.testing.assert_close(packed(batch, by_doc_ids(batch["doc_ids"])), alone)
    assert not torch.allclose(packed(batch, causal(tokens)), alone)


def test_a_boundary_moved_by_one_changes_the_output(split: Split, batch: Batch) -> None:
    """Every inner boundary, one token early and one late."""
    tokens = batch["input_ids"].numel()
    alone = one_by_one(split, batch)
    bounds = sorted({*batch["cu_seqlens"].tolist()} - {0, tokens})
    assert len(bounds) >= 8
    for number, bound in enumerate(bounds, 1):
        for moved in (bound - 1, bound + 1):
            wrong = batch["cu_seqlens"].clone()
            wrong[number] = moved
            found = packed(batch, by_cu_seqlens(wrong, tokens))
            assert not torch.allclose(found, alone), (bound, moved)


def test_positions_restart_with_each_document(batch: Batch) -> None:
    """0, 1, 2, ... between any two boundaries, and another start changes the output."""
    positions = batch["position_ids"].reshape(-1)
    real = batch["doc_ids"].reshape(-1) >= 0
    for start, stop in pairwise(batch["cu_seqlens"].tolist()):
        expected = torch.arange(stop - start) * real[start:stop]
        assert torch.equal(positions[start:stop], expected)
    running = {**batch, "position_ids": torch.arange(SEQ_LEN).expand(len(batch["doc_ids"]), -1)}
    runs = by_cu_seqlens(batch["cu_seqlens"], len(positions))
    assert not torch.allclose(packed(running, runs), packed(batch, runs))


def test_the_longest_run_is_max_seqlen(batch: Batch) -> None:
    """What a variable-length kernel is told must be no less than any run."""
    assert batch["max_seqlen"].item() == batch["cu_seqlens"].diff().max().item() == SEQ_LEN
