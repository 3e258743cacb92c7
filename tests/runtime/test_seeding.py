"""Global seeds, worker seeds, and the isolation of draws."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dataprep.formats.errors import UsageError
from dataprep.runtime.seeding import (
    isolated,
    seed_all,
    seed_for,
    seed_here,
    seed_worker,
    seeded_generator,
)


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    """What a test seeds or switches, the next test does not see."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    workspace = os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    with isolated():
        yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if workspace is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace


def draws() -> tuple[float, float, float]:
    """One number of each generator."""
    return random.random(), float(np.random.random()), torch.rand(1).item()


def test_all_three_generators_are_seeded() -> None:
    """Item 29: the same seed gives the same draws of Python, NumPy and torch; another others."""
    seen = []
    for seed in (5, 5, 6, 5 + (1 << 40), 6 + (1 << 40)):
        seed_all(seed)
        seen.append(draws())
    assert seen[0] == seen[1]
    for column in zip(*seen[1:], strict=True):
        assert len(set(column)) == 4


def test_each_mode_undoes_the_other() -> None:
    """Item 29: fast after deterministic leaves no deterministic switch behind."""
    seed_all(1, "deterministic")
    assert torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    seed_all(1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (False, True)


def test_bad_seeds_are_refused() -> None:
    """No negative seed, none beyond 2**63, no unknown mode."""
    for seed in (-1, 1 << 63, 1.5):
        with pytest.raises(UsageError) as caught:
            seed_all(seed)  # type: ignore[arg-type]
        assert caught.value.where == "seed"
    with pytest.raises(UsageError, match="mode: must be one of"):
        seed_all(0, "slow")  # type: ignore[arg-type]


class Draws(Dataset[torch.Tensor]):
    """Eight samples of what the three generators give."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(draws(), dtype=torch.float64)


def test_workers_of_a_stock_loader_are_seeded() -> None:
    """Item 26: Python, NumPy and torch differ between workers, and are the same in every run."""
    runs = []
    for seed in (1, 1, 2):
        loader = DataLoader(
            Draws(), batch_size=4, num_workers=2, worker_init_fn=seed_worker,
            generator=seeded_generator(seed), multiprocessing_context="fork",
        )  # fmt: skip
        runs.append(torch.cat(list(loader)).tolist())
    assert runs[0] == runs[1] != runs[2]
    for column in zip(*runs[0], strict=True):
        assert len(set(column)) == 8


def test_seeds_of_many_things_are_unrelated() -> None:
    """No sum: (seed 0, epoch 1) is not (seed 1, epoch 0), and a 1 is not followed by a 2."""
    found = {seed_for(seed, "epoch", epoch) for seed in range(30) for epoch in range(30)}
    assert len(found) == 900
    assert all(0 <= seed < 1 << 63 for seed in found)
    assert seed_for(1, 23) != seed_for(12, 3)


def test_isolated_draws_leave_no_trace() -> None:
    """What is drawn inside, even in an error, does not move the generators outside."""
    seed_all(3)
    expected = [draws(), draws()]
    seed_all(3)
    found = [draws()]
    with pytest.raises(ValueError, match="inside"), isolated():
        seed_here(9)
        draws()
        raise ValueError("inside")
    found.append(draws())
    assert found == expected
