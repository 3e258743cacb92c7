"""Assembling: BOS and EOS in their places, and no id that does not fit."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError
from dataprep.pipeline.tokenize import stored_tokens as module
from dataprep.pipeline.tokenize.stored_tokens import with_bos_eos

VOCAB = {"<u2": 1 << 16, "<u4": 1 << 32}


def one_by_one(
    documents: list[list[int]], *, bos: int | None, eos: int | None
) -> tuple[list[int], list[int]]:
    """The tokens and lengths that `with_bos_eos` must give, one document at a time."""
    tokens: list[int] = []
    lengths = []
    for ids in documents:
        whole = ([] if bos is None else [bos]) + ids + ([] if eos is None else [eos])
        tokens += whole
        lengths.append(len(whole))
    return tokens, lengths


@pytest.mark.parametrize("long", [0, 1000])
@given(
    st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=8),
    st.one_of(st.none(), st.integers(0, 65535)),
    st.one_of(st.none(), st.integers(0, 65535)),
    st.sampled_from(["<u2", "<u4"]),
)
def test_assembling_is_the_reference(
    long: int, documents: list[list[int]], bos: int | None, eos: int | None, dtype: str
) -> None:
    """Whole batches give what one document at a time gives, both ways, empty ones included."""
    ids = np.array([one for document in documents for one in document], np.uint32)
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    with mock.patch.object(module, "_LONG", long):
        tokens, lengths = with_bos_eos(
            ids, offsets, bos=bos, eos=eos, dtype=dtype, vocab_size=VOCAB[dtype]
        )
    assert tokens.dtype == np.dtype(dtype)
    assert (tokens.tolist(), lengths.tolist()) == one_by_one(documents, bos=bos, eos=eos)


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize("largest", [50_000, 65_535])
def test_ids_outside_the_vocabulary(dtype: str, eos: int | None, largest: int) -> None:
    """The largest id passes; one more raises, and does not wrap."""
    offsets = np.array([0, 2], np.int64)

    def run(last: int) -> list[int]:
        ids = np.array([7, last], np.uint32)
        tokens, _ = with_bos_eos(
            ids, offsets, bos=None, eos=eos, dtype=dtype, vocab_size=largest + 1
        )  # fmt: skip
        return [int(token) for token in tokens]

    assert run(largest)[:2] == [7, largest]
    for wrong in (largest + 1, 65_536 + 7, (1 << 32) - 1):
        with pytest.raises(
            DataprepError, match=f"id {wrong}, but the vocabulary ends at {largest}"
        ):
            run(wrong)


def test_wide_ids() -> None:
    """Four-byte tokens keep ids above 65,535."""
    ids = np.array([70_000, 151_665], np.uint32)
    offsets = np.array([0, 1, 2], np.int64)
    tokens, lengths = with_bos_eos(
        ids, offsets, bos=151_643, eos=None, dtype="<u4", vocab_size=151_666
    )
    assert tokens.tolist() == [151_643, 70_000, 151_643, 151_665]
    assert lengths.tolist() == [2, 2]
