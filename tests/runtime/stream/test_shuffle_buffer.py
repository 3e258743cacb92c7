"""The shuffle buffer against a loop that keeps one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.order.permutation import Sequential, key, permute
from dataprep.runtime.stream.order import ShuffleBuffer
from tests.support import examples


def buffer(size: int, seed: int = 0, block: int | None = None) -> ShuffleBuffer:
    source = (
        Sequential() if block is None
        else Blocks(content_id="build", seed=seed, purpose="test", block=block, window=1)
    )  # fmt: skip
    return ShuffleBuffer(source=source, content_id="build", seed=seed, purpose="test", size=size)


def reference(order: ShuffleBuffer, n: int, epoch: int) -> list[int]:
    """A buffer as every streaming loader has it, one draw at a time."""
    size = min(order.size, n)
    slots_key = key(order.content_id, order.seed, epoch, f"{order.purpose}/buffer slots")
    rest_key = key(order.content_id, order.seed, epoch, f"{order.purpose}/buffer rest")
    waiting = iter(order.source.samples(np.arange(n), n, epoch).tolist())
    slots = [next(waiting) for _ in range(size)]
    draws = permute(np.arange(n - size), -(-n // size) * size, slots_key) % size
    out = []
    for slot, arriving in zip(draws.tolist(), waiting, strict=True):
        out.append(slots[slot])
        slots[slot] = arriving
    return out + [slots[i] for i in permute(np.arange(size), size, rest_key).tolist()]


sizes = st.tuples(st.integers(1, 90), st.integers(1, 30), st.integers(0, 3))


@examples(60)
@given(sizes, st.one_of(st.none(), st.integers(1, 20)), st.data())
def test_is_the_loop(numbers: tuple[int, int, int], block: int | None, data: st.DataObject) -> None:
    """Asked for anything in any order, and backwards, it answers what the loop would have done."""
    n, size, seed = numbers
    order = buffer(size, seed, block)
    expected = reference(order, n, 1)
    assert sorted(expected) == list(range(n))
    assert order.samples(np.arange(n), n, 1).tolist() == expected
    some = data.draw(st.lists(st.integers(0, n - 1), max_size=6))
    asked = np.array(some, np.int64)
    assert order.samples(asked, n, 1).tolist() == [expected[i] for i in some]
    assert order.positions(np.array(expected), n, 1).tolist() == list(range(n))
    assert order.positions(asked.reshape(1, -1), n, 1).tolist() == [
        [expected.index(sample) for sample in some]
    ]


@given(sizes, st.data())
def test_chunks_hold_what_is_needed(numbers: tuple[int, int, int], data: st.DataObject) -> None:
    """What is held meanwhile: all that has come and will be served, and never more than there is
    room for.
    """
    n, size, seed = numbers
    order = buffer(size, seed)
    expected = reference(order, n, 0)
    start, stop, last = sorted(data.draw(st.tuples(*[st.integers(0, n)] * 3)))
    samples, held = (found.tolist() for found in order.chunk(start, stop, last, n, 0))
    assert samples == expected[start:stop]
    entered = min(min(size, n) + stop, n)
    needed = {sample for sample in expected[start:last] if sample < entered}
    assert needed <= set(held) <= set(range(entered)) - set(expected[:start])
    assert len(set(held)) == len(held)


def test_golden() -> None:
    """Resumed runs depend on these."""
    order = buffer(4)
    assert order.samples(np.arange(12), 12, 0).tolist() == GOLDEN[0]
    assert order.samples(np.arange(12), 12, 1).tolist() == GOLDEN[1]
    assert buffer(1000).samples(np.arange(10**12, 10**12 + 5), 10**13, 7).tolist() == GOLDEN[2]


GOLDEN = [
    [2, 0, 4, 5, 1, 8, 9, 3, 6, 11, 7, 10],
    [0, 2, 5, 3, 1, 8, 4, 7, 11, 9, 6, 10],
    [999999999766, 999999998747, 1000000000867, 1000000000984, 1000000000148],
]


def test_distances_are_those_of_a_buffer() -> None:
    """A sample waits for a mean of `size` draws, geometrically: 63 % leave before that."""
    n, size = 200_000, 500
    samples = buffer(size).samples(np.arange(n), n, 0)
    assert np.array_equal(np.sort(samples), np.arange(n))
    parts = [buffer(size).samples(np.arange(at, at + 2_500), n, 0) for at in range(0, n, 20_000)]
    assert np.array_equal(parts, samples.reshape(-1, 2_500)[::8])
    waited = np.arange(n) - samples + size
    waited = waited[size : n - 20 * size]
    assert waited.min() >= 1
    assert abs(waited.mean() / size - 1) < 0.02
    assert abs((waited <= size).mean() - (1 - np.exp(-1))) < 0.01
    assert abs((waited <= 3 * size).mean() - (1 - np.exp(-3))) < 0.01


def test_epochs_and_seeds_differ() -> None:
    """Nothing in common beyond chance."""
    at = np.arange(20_000)
    first = buffer(100).samples(at, len(at), 0)
    for other in (buffer(100).samples(at, len(at), 1), buffer(100, seed=1).samples(at, len(at), 0)):
        assert (first == other).mean() < 0.02


def test_bad_arguments() -> None:
    with pytest.raises(UsageError) as caught:
        buffer(0)
    assert caught.value.where == "buffer"
    for outside in (-1, 10):
        with pytest.raises(IndexError):
            buffer(3).samples(np.array([outside]), 10, 0)
        with pytest.raises(IndexError):
            buffer(3).positions(np.array([outside]), 10, 0)
    assert buffer(3).samples(np.empty(0, np.int64), 0, 0).tolist() == []
