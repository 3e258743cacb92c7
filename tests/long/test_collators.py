"""Collators in processes of their own, and at sizes that take time."""

from __future__ import annotations

import multiprocessing

import pytest

from dataprep.runtime.collate_masked import MaskedLM

pytestmark = pytest.mark.long


def test_collators_work_in_a_spawned_process() -> None:
    """Item 78: the batch that a spawned process makes is the batch made here."""
    collate = MaskedLM(mask_id=9, vocab_size=10, continuations=(3,), whole_words=True)
    samples = [{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}, {"input_ids": [5, 6]}]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(collate, (samples,))
    here = collate(samples)
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in here.items()}
