"""Where a stream's positions are cut: what a worker reads and holds together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.stream.deal import Ranges
from dataprep.runtime.stream.order import StreamShuffle, chunks, stream_order, stream_sizes


def ranges(cuts: list[int]) -> Ranges:
    """Of four cuts: from the first to the second and from the third to the fourth."""
    return Ranges.of(np.array(cuts[0::2]), np.array(cuts[1::2]))


@given(
    shuffle=st.sampled_from(["blocks", "buffer", None]), n=st.integers(1, 300),
    block=st.integers(1, 40), window=st.integers(1, 12), buffer=st.integers(1, 80), data=st.data(),
)  # fmt: skip
def test_chunks_are_the_order(
    shuffle: StreamShuffle | None, n: int, block: int, window: int, buffer: int, data: st.DataObject
) -> None:
    """Laid end to end, the chunks are the samples at the positions, each with few blocks."""
    order = stream_order("c", 3, shuffle=shuffle, block=block, window=window, buffer=buffer)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=4, max_size=4)))
    positions = np.concatenate([np.arange(*cuts[:2]), np.arange(*cuts[2:])])
    found = list(chunks(order, block, ranges(cuts), n, 1))
    served = np.concatenate([np.empty(0, np.int64), *(chunk.samples for chunk in found)])
    assert np.array_equal(served, order.samples(positions, n, 1))
    for chunk in found:
        assert np.isin(chunk.samples, chunk.held).all()
        if isinstance(order, Blocks):
            assert len(np.unique(chunk.samples // block)) <= window


@given(n=st.integers(1, 300), block=st.integers(1, 40), window=st.integers(1, 12))
def test_each_block_is_in_one_chunk(n: int, block: int, window: int) -> None:
    """A whole epoch reads every block once, also the short one and those of short windows."""
    order = stream_order("c", 3, shuffle="blocks", block=block, window=window, buffer=1)
    found = list(chunks(order, block, ranges([0, n, n, n]), n, 0))
    blocks = [number for chunk in found for number in np.unique(chunk.samples // block).tolist()]
    assert sorted(blocks) == list(range(-(-n // block)))
    assert len(found) == -(-len(blocks) // window)


@pytest.mark.parametrize(
    ("sample_bytes", "expected"),
    [(0, (8192, 1024)), (128, (8192, 512)), (4096, (512, 256)), (3000, (699, 256)),
     (2 << 20, (1, 256)), (16 << 20, (1, 32)), (1 << 40, (1, 4))],
)  # fmt: skip
def test_sizes_follow_from_bytes(sample_bytes: int, expected: tuple[int, int]) -> None:
    """2 MiB to a block, 512 MiB to a window; bounds for samples that are tiny or huge."""
    assert stream_sizes(sample_bytes) == expected
