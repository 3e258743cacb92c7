"""One sequence of global batches, whatever divides it: the whole grid of topologies."""

from __future__ import annotations

import hashlib
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from dataprep.runtime.create import create_loader
from dataprep.runtime.loader import prefetch as prefetching
from dataprep.runtime.loader.loader import Loader
from tests.scenes.datasets import make_dataset, random_split

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]

GLOBAL = 24
STEPS = 6
SIZES = (1, 2, 3, 4, 8)
Topology = tuple[int, int, str | None]

PLAIN: list[Topology] = [(0, prefetch, None) for prefetch in (0, 1, 4)]
BY_WORKERS: list[Topology] = [(workers, 1, "fork") for workers in (1, 2, 5)]
OTHER_STARTS = [(2, 4, "spawn"), (2, 4, "forkserver")]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 windows of 32 in five shards."""
    splits = {"train": random_split([[2000], [300, 1], [0], [3000, 900], [400]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("topologies") / "shards", splits)


@pytest.fixture(autouse=True)
def threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made ahead from the second on, however quick the loop here is."""
    monkeypatch.setattr(prefetching, "_HAND_OVER_S", -1.0)
    monkeypatch.setattr(prefetching, "_IN_A_ROW", 1)


def threads() -> int:
    return sum(thread.name == "dataprep-prefetch" for thread in threading.enumerate())


def digests(loaders: list[Loader]) -> tuple[str, set[str | None]]:
    """Of the rows of all ranks together, step by step; and what the loaders say themselves."""
    rows = hashlib.sha256()
    passes = [itertools.islice(iter(loader), STEPS) for loader in loaders]
    for number, step in enumerate(zip(*passes, strict=True)):
        if number == 1:  # the first is made here; later ones may be done already
            by_thread = [one for one in loaders if one.prefetch and not one.num_workers]
            assert threads() >= len(by_thread)
        for batch in step:
            rows.update(batch["input_ids"].numpy().tobytes())
    return rows.hexdigest(), {loader.order_digest for loader in loaders}


def ranks(shards: Path, size: int, workers: int, prefetch: int, method: str | None) -> list[Loader]:
    return [
        create_loader(
            shards, "train", GLOBAL // size, workers, seq_len=32, seed=2, epoch=3, dp_rank=rank,
            dp_size=size, prefetch=prefetch, multiprocessing_context=method,
        )
        for rank in range(size)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def expected(shards: Path) -> tuple[str, str]:
    """One by one: each row as a sample of the dataset, in the order of the sampler."""
    (loader,) = ranks(shards, 1, 0, 0, None)
    rows = hashlib.sha256()
    for step in itertools.islice(loader.sampler_obj.steps(3), STEPS):
        for sample in step.samples.tolist():
            rows.update(loader.dataset_obj[sample]["input_ids"].numpy().tobytes())
    total = sum(step.digest for step in itertools.islice(loader.sampler_obj.steps(3), STEPS))
    return rows.hexdigest(), f"{total & ((1 << 64) - 1):016x}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("workers", "prefetch", "method"), PLAIN + BY_WORKERS, ids=str)
def test_every_topology(
    shards: Path, expected: tuple[str, str], size: int, workers: int, prefetch: int, method: Any
) -> None:
    """Ranks x workers x prefetching: the same rows and the same digest."""
    found, said = digests(ranks(shards, size, workers, prefetch, method))
    assert (found, said) == (expected[0], {expected[1]})


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("workers", "prefetch", "method"), OTHER_STARTS, ids=str)
def test_every_start_method(
    shards: Path, expected: tuple[str, str], size: int, workers: int, prefetch: int, method: Any
) -> None:
    """However the workers are started."""
    found, said = digests(ranks(shards, size, workers, prefetch, method))
    assert (found, said) == (expected[0], {expected[1]})


def test_another_order_differs(shards: Path, expected: tuple[str, str]) -> None:
    """The digests do tell orders apart."""
    loader = create_loader(shards, "train", GLOBAL, seq_len=32, seed=3, epoch=3)
    found, said = digests([loader])
    assert found != expected[0]
    assert said != {expected[1]}
