"""Dealing an epoch to ranks and workers, against plain lists."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, zip_longest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.stream.deal import (
    MAX_STAGES,
    Deal,
    Ranges,
    Stage,
    StreamEnd,
    Topology,
    advance,
    enter,
    left_after,
    runs_of,
)
from tests.support import REPOSITORY, examples

topologies = st.builds(
    Topology,
    dp_size=st.integers(1, 4),
    workers=st.integers(1, 5),
    batch_size=st.integers(1, 4),
)
ends = st.sampled_from(["drop", "pad"])
Batches = list[list[int]]


def dealt(left: list[int], topology: Topology, end: StreamEnd) -> list[list[Batches]]:
    """The definition, on lists: rank -> worker -> batches of positions."""
    ranks, workers, size = topology.dp_size, topology.workers, topology.batch_size
    step = ranks * size
    steps = len(left) // step if end == "drop" else -(-len(left) // step)
    found = []
    for rank in range(ranks):
        if end == "drop":
            share = left[rank * steps * size : (rank + 1) * steps * size]
        else:
            share = left[len(left) * rank // ranks : len(left) * (rank + 1) // ranks]
        batches = [share[i * size : (i + 1) * size] for i in range(steps)]
        counts = [steps // workers + (worker < steps % workers) for worker in range(workers)]
        forward = iter(batches)
        found.append([list(islice(forward, count)) for count in counts])
    return found


def in_turn(workers: list[Batches]) -> Batches:
    """What a DataLoader hands over: one batch of each worker, round after round."""
    rounds = zip_longest(*workers)
    return [batch for row in rounds for batch in row if batch is not None]


def served(
    n: int, stages: tuple[Stage, ...], end: StreamEnd, *, epochs: int = 1
) -> list[list[Batches]]:
    """What `runs_of` says: rank -> worker -> batches of positions."""
    topology = stages[-1].topology
    ranks = []
    for rank in range(topology.dp_size):
        workers = []
        for worker in range(topology.workers):
            runs = runs_of(
                n, 0, stages, end, rank=rank, worker=worker, infinite=epochs > 1
            )  # fmt: skip
            batches = []
            for run in runs:
                if run.epoch >= epochs:
                    break
                positions = [p for a, b in run.positions.as_list() for p in range(a, b)]
                size = topology.batch_size
                batches += [positions[i * size : (i + 1) * size] for i in range(run.items)]
            workers.append(batches)
        ranks.append(workers)
    return ranks


@given(n=st.integers(0, 80), topology=topologies, end=ends)
def test_deals_as_defined(n: int, topology: Topology, end: StreamEnd) -> None:
    """Every position once (but fewer than a global batch), forward, in equally many steps."""
    found = served(n, (Stage(topology=topology),), end)
    assert found == dealt(list(range(n)), topology, end)
    steps = {sum(map(len, workers)) for workers in found}
    assert steps == {Deal(samples=n, topology=topology, end=end).steps}
    every = [p for workers in found for batches in workers for batch in batches for p in batch]
    assert every == list(range(len(every)))
    dropped = n - len(every)
    assert dropped == (n % (topology.dp_size * topology.batch_size) if end == "drop" else 0)


@examples(60)
@given(n=st.integers(1, 80), end=ends, data=st.data())
def test_every_stop_and_topology_leaves_the_rest(
    n: int, end: StreamEnd, data: st.DataObject
) -> None:
    """Stop anywhere, go on under any topology, again and again: each position at most once, and
    what is left is what was not served. Under the same topology nothing is different at all.
    """
    seen: list[int] = []
    stages: tuple[Stage, ...] = ()
    for _ in range(data.draw(st.integers(1, 4))):
        topology = data.draw(topologies)
        epoch, entered = enter(n, 0, stages, topology, end)
        left = sorted(set(range(n)) - set(seen))
        if epoch == 1:  # what is left makes no step
            assert len(left) < (topology.dp_size * topology.batch_size if end == "drop" else 1)
            assert entered == (Stage(topology=topology),)
            return
        whole = [in_turn(workers) for workers in served(n, entered, end)]
        if stages and stages[-1].topology != topology:
            assert whole == [in_turn(workers) for workers in dealt(left, topology, end)]
        taken = data.draw(st.integers(0, len(whole[0])))
        for batches in whole:
            seen += [p for batch in batches[:taken] for p in batch]
        stages = entered
        for _ in range(taken):
            stages = advance(stages)
        assert len(set(seen)) == len(seen)
        rest = left_after(n, stages, end).as_list()
        assert [p for a, b in rest for p in range(a, b)] == sorted(set(range(n)) - set(seen))
        epoch, again = enter(n, 0, stages, topology, end)
        if taken == len(whole[0]):
            assert epoch == 1
        else:
            assert [in_turn(w) for w in served(n, again, end)] == [b[taken:] for b in whole]


@examples(50)
@given(n=st.integers(4, 40), workers=st.integers(1, 5), taken=st.integers(0, 9), end=ends)
def test_infinite_is_one_epoch_after_the_other(
    n: int, workers: int, taken: int, end: StreamEnd
) -> None:
    """Handed over in turn, the batches of three epochs are those of each epoch in a row."""
    topology = Topology(dp_size=2, workers=workers, batch_size=2)
    epoch = served(n, (Stage(topology=topology),), end)
    steps = len(in_turn(epoch[0]))
    start = (Stage(topology=topology, steps=taken % steps),)
    found = served(n, start, end, epochs=3)
    assert [in_turn(workers) for workers in found] == [
        in_turn(workers)[taken % steps :] + 2 * in_turn(workers) for workers in epoch
    ]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_ranges_are_a_sequence(lengths: list[tuple[int, int]], cuts: list[int]) -> None:
    """Selecting stretches of ranges selects them from the list that the ranges spell out."""
    starts, stops, at = [], [], 0
    for gap, length in lengths:
        starts.append(at + gap)
        at += gap + length
        stops.append(at)
    ranges = Ranges.of(np.array(starts, np.int64), np.array(stops, np.int64))
    spelled = [p for a, b in zip(starts, stops, strict=True) for p in range(a, b)]
    assert [p for a, b in ranges.as_list() for p in range(a, b)] == spelled
    assert ranges.total == len(spelled)
    edges = sorted(min(cut, len(spelled)) for cut in cuts)[: len(cuts) // 2 * 2]
    firsts, ends = np.array(edges[::2], np.int64), np.array(edges[1::2], np.int64)
    wanted = [p for a, b in zip(firsts, ends, strict=True) for p in spelled[a:b]]
    chosen = ranges.select(firsts, ends)
    assert [p for a, b in chosen.as_list() for p in range(a, b)] == wanted
    assert all(a < b for a, b in chosen.as_list())


def test_golden() -> None:
    """Resumed runs depend on these: a change here needs a new version of the state."""
    drop = Deal(samples=1_000, topology=Topology(dp_size=3, workers=4, batch_size=7), end="drop")
    assert (drop.steps, drop.items(0), drop.items(3)) == (47, 12, 11)
    assert [drop.run(1, run) for run in range(4)] == [
        (329, 413), (413, 497), (497, 581), (581, 658)
    ]  # fmt: skip
    assert drop.left(45).tolist() == [
        [161, 168], [245, 252], [490, 497], [574, 581], [819, 826], [903, 910], [987, 1000]
    ]  # fmt: skip
    pad = Deal(samples=1_000, topology=Topology(dp_size=3, workers=4, batch_size=7), end="pad")
    assert (pad.steps, pad.run(1, 0), pad.run(1, 3)) == (48, (333, 417), (585, 666))
    stages = (
        Stage(topology=Topology(dp_size=2, workers=3, batch_size=5), steps=50),
        Stage(topology=Topology(dp_size=4, workers=1, batch_size=8), steps=9),
    )
    assert left_after(1_000, stages, "drop").as_list() == [
        (157, 170), (255, 290), (442, 490), (647, 670), (755, 780), (932, 1000)
    ]  # fmt: skip


def test_large_numbers() -> None:
    """64 bits everywhere, and a cost that does not know the size."""
    topology = Topology(dp_size=1 << 10, workers=8, batch_size=64)
    stages = (Stage(topology=topology, steps=1_000_003),)
    left = left_after(1 << 48, stages, "drop")
    assert left.total == (1 << 48) - 1_000_003 * topology.dp_size * topology.batch_size
    assert len(left.starts) <= topology.dp_size * topology.workers + 1
    _, entered = enter(1 << 48, 0, stages, Topology(dp_size=1_000, workers=3), "pad")
    last = next(runs_of(1 << 48, 0, entered, "pad", rank=999, worker=2))
    assert last.positions.as_list()[-1][1] == 1 << 48


def test_impossible_stages_are_refused() -> None:
    """More steps than there are, topologies of nothing, and too many of them."""
    topology = Topology(dp_size=2, workers=2, batch_size=2)
    with pytest.raises(UsageError, match=r"26 steps of 2 ranks x 2 workers.* of 25"):
        left_after(100, (Stage(topology=topology, steps=26),), "drop")
    with pytest.raises(UsageError, match="1 to 2"):
        Topology(dp_size=0)
    stages: tuple[Stage, ...] = ()
    for number in range(MAX_STAGES):
        _, stages = enter(10_000, 0, stages, Topology(workers=number + 1), "drop")
        stages = advance(stages)
    with pytest.raises(UsageError, match=f"{MAX_STAGES} topologies"):
        enter(10_000, 0, stages, Topology(dp_size=2), "drop")


def test_needs_no_torch() -> None:
    """The arithmetic of order and dealing can be asked where torch is not wanted."""
    code = (
        "import sys, dataprep.runtime.stream.deal, dataprep.runtime.stream.order; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
