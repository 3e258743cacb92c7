"""One sequence of pairs with their variants, whatever divides it: the whole grid."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.manifest.curriculum import Curriculum
from dataprep.runtime.arrays.curriculum import probabilities
from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.arrays.pairs import PairDataset
from dataprep.runtime.create import create_loader
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.loader.serve import build_order, serve
from tests.scenes.pair_datasets import make_embeddings, make_pairs

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]

GLOBAL = 12
EPOCHS = 3
STARTS = [
    *(("pairs", *how) for how in ((0, None), (2, "fork"), (5, "fork"), (2, "spawn"), (5, "spawn"))),
    *(("embeddings", *how) for how in ((0, None), (5, "fork"), (2, "spawn"))),
    ("pairs", 2, "forkserver"),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: Any) -> dict[str, Path]:
    """Pairs in shards of some rows, and rows of embeddings."""
    root = tmp_path_factory.mktemp("topologies")
    rows = np.random.default_rng(0).standard_normal((300, 8)).astype("f4")
    return {
        "pairs": make_pairs(root / "pairs", 300),
        "embeddings": make_embeddings(root / "e", {"embedding": rows}, shard_bytes=1000),
    }


def ranks(path: Path, size: int, workers: int, method: str | None, **options: Any) -> list[Loader]:
    return [
        create_loader(
            path, "train", GLOBAL // size, workers, seed=2, dp_rank=rank, dp_size=size,
            multiprocessing_context=method, **options,
        )
        for rank in range(size)
    ]  # fmt: skip


def digest(loaders: list[Loader]) -> str:
    """Of every field of the rows of all ranks together, over some epochs with live workers."""
    found = hashlib.sha256()
    for _ in range(EPOCHS):
        for step in zip(*loaders, strict=True):
            for name in step[0]:
                found.update(name.encode())
                for batch in step:
                    found.update(batch[name].numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("kind", "workers", "method"), STARTS, ids=str)
def test_every_topology(
    paths: dict[str, Path], size: int, kind: str, workers: int, method: Any
) -> None:
    """Items 87, 93: workers x ranks x start methods serve what one process serves."""
    (alone,) = ranks(paths[kind], 1, 0, None)
    assert digest(ranks(paths[kind], size, workers, method)) == digest([alone])


@pytest.mark.parametrize("workers", [0, 2, 5])
def test_going_on(paths: dict[str, Path], workers: int) -> None:
    """A state taken after any step goes on with the same batches, in other processes too."""
    method = "fork" if workers else None
    whole = digest(ranks(paths["pairs"], 1, 0, None, epoch=1))
    for steps in (1, 7, 16):
        (begun,) = ranks(paths["pairs"], 1, 0, None, epoch=1)
        served = list(itertools.islice(begun, steps))
        (later,) = ranks(paths["pairs"], 1, workers, method)
        later.load_state_dict(begun.state_dict())
        found = hashlib.sha256()
        rest = [*later, *(batch for _ in range(EPOCHS - 1) for batch in later)]
        for batch in (*served, *rest):
            for name in batch:
                found.update(name.encode() + batch[name].numpy().tobytes())
        assert found.hexdigest() == whole


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_changes_reach_workers(paths: dict[str, Path], method: str) -> None:
    """Item 95: forced steering in workers however they are started."""
    (loader,) = ranks(paths["pairs"], 1, 2, method)
    dataset = loader.dataset_obj
    assert isinstance(dataset, PairDataset)
    for variant, name in enumerate(("zero", "centroid", "keyword", "residual")):
        dataset.force_steering(name)
        assert {v for b in loader for v in b["steering_variant"].tolist()} == {variant}


@pytest.mark.parametrize("mode", ["fixed", "linear", "cosine"])
def test_frequencies_over_a_run(tmp_path: Path, mode: str) -> None:
    """Item 91: chi-square at each of eight epochs of 6,000 pairs, served by two workers."""
    made = make_pairs(tmp_path / "p", 6000, questions=300, dim=2, negatives=2, val=0.0)
    schedule = Curriculum(mode=mode, zero_start=0.8, zero_end=0.05, epochs=6)  # type: ignore[arg-type]
    pairs = open_pairs(made).split("train", schedule=schedule)
    order, definition = build_order(pairs, pairs.split, seed=0, shuffle=True)
    served = serve(
        pairs, 100, order=order, definition=definition, num_workers=2,
        multiprocessing_context="fork",
    )  # fmt: skip
    for epoch in range(8):
        counts = np.zeros(4)
        for batch in served:
            counts += np.bincount(batch["steering_variant"], minlength=4)
        expected = probabilities(schedule, epoch) * 6000
        assert ((counts - expected) ** 2 / expected).sum() < 31
