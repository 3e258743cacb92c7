"""The orders of a stream, and where in them other blocks begin to be read.

A **chunk** is some consecutive positions of an epoch whose samples come from the same few blocks:
what a reader fetches and holds together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from ..order.blocks import Blocks
from ..order.permutation import Positions, Sequential
from .deal import Ranges
from .shuffle_buffer import ShuffleBuffer

__all__ = [
    "Chunk",
    "Shuffle",
    "StreamOrder",
    "chunks",
    "described",
    "stream_order",
    "stream_sizes",
]

Shuffle = Literal["blocks", "buffer"]
StreamOrder = Sequential | Blocks | ShuffleBuffer

_BLOCK_BYTES = 2 << 20  # a read of this costs most storage little more than the way to it
_WINDOW_BYTES = 512 << 20  # 256 blocks: a source of 1 % is in every window (benchmarks/shares.py)
_MAX_BLOCK = 8192  # samples: bounds what is held besides tokens where samples are tiny


def stream_sizes(sample_bytes: int) -> tuple[int, int]:
    """`block` and `window` for samples of so many bytes on disk: 2 MiB, and 512 MiB of blocks.

    So a window has 256 blocks or more, up to samples of 2 MiB. With half as many, a source of 1 %
    that is stored in one piece misses whole windows. A worker holds one window in memory and reads
    it before its first batch.

    >>> stream_sizes(4096), stream_sizes(16 << 20)
    ((512, 256), (1, 32))
    """
    block = min(_MAX_BLOCK, max(1, _BLOCK_BYTES // max(1, sample_bytes)))
    window = min(_WINDOW_BYTES // max(1, block * sample_bytes), 1024)
    return block, max(4, window)


def stream_order(
    content_id: str,
    seed: int,
    *,
    shuffle: Shuffle | None,
    block: int,
    window: int,
    buffer: int,
) -> StreamOrder:
    """The order that `shuffle` names. A buffer is fed with permuted blocks."""
    blocks = Blocks(
        content_id=content_id, seed=seed, purpose="stream", block=block,
        window=window if shuffle == "blocks" else 1,
    )  # fmt: skip
    if shuffle is None:
        return Sequential()
    if shuffle == "blocks":
        return blocks
    return ShuffleBuffer(
        source=blocks, content_id=content_id, seed=seed, purpose="stream", size=buffer
    )


def described(order: StreamOrder) -> dict[str, Any]:
    """The options that decide the order, as JSON values."""
    if isinstance(order, Blocks):
        return {"shuffle": "blocks", "block": order.block, "window": order.window}
    if isinstance(order, ShuffleBuffer):
        block = cast(Blocks, order.source).block
        return {"shuffle": "buffer", "block": block, "buffer": order.size}
    return {"shuffle": None}


class Chunk(NamedTuple):
    """The `samples` of some consecutive positions, and all that are to be `held` meanwhile."""

    samples: Positions
    held: Positions


def chunks(order: StreamOrder, block: int, ranges: Ranges, n: int, epoch: int) -> Iterator[Chunk]:
    """Cut `ranges` where the order goes on to other blocks of `block` samples."""
    for start, stop in ranges.as_list():
        at = start
        while at < stop:
            cut = min(_cut(order, block, at, n, epoch), stop)
            if isinstance(order, ShuffleBuffer):
                yield Chunk(*order.chunk(at, cut, stop, n, epoch))
            else:
                samples = order.samples(np.arange(at, cut), n, epoch)
                yield Chunk(samples, samples)
            at = cut


def _cut(order: StreamOrder, block: int, at: int, n: int, epoch: int) -> int:
    """The first position behind `at` with which other blocks begin."""
    if isinstance(order, Sequential):
        return (at // block + 1) * block
    if isinstance(order, ShuffleBuffer):
        # As much enters as whole blocks bring, at least half of what is carried over.
        size, source = min(order.size, n), cast(Blocks, order.source)  # windows of one block
        further = min(block, n) * (max(1, -(-size // (2 * block))) - 1)
        if at >= n - size:
            return n
        entered = source.window_end(min(at + size + further, n - 1), n, epoch)
        return min(max(entered - size, at + 1), n - size)
    return order.window_end(at, n, epoch)
