"""Random transforms of foreign datasets: functions of seed, epoch and sample."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.random_split import split_by_fraction
from dataprep.runtime.external.randomness import draws_nothing
from dataprep.runtime.loader.loader import Loader


class Augmented(Dataset[Any]):
    """Twelve samples, each with a draw of every generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = [random.random(), float(np.random.random()), torch.rand(1).item()]
        return {"n": index, "drawn": torch.tensor(drawn, dtype=torch.float64)}


def noisy(samples: list[Any]) -> dict[str, torch.Tensor]:
    batch: dict[str, torch.Tensor] = default_collate(samples)
    return {**batch, "noise": torch.rand(len(samples))}


def make(batch_size: int = 3, **options: Any) -> Loader:
    builder = DataLoaderBuilder().with_dataset(Augmented()).with_batch_size(batch_size)
    builder.with_seed(options.pop("seed", 1))
    if "workers" in options:
        builder.with_workers(options.pop("workers"), multiprocessing_context="fork")
    loader: Loader = builder.build()
    return loader


def drawn(loader: Loader) -> dict[int, list[float]]:
    return {
        n: row for batch in loader
        for n, row in zip(batch["n"].tolist(), batch["drawn"].tolist(), strict=True)
    }  # fmt: skip


def test_draws_follow_seed_epoch_and_sample_alone() -> None:
    """Items 26, 28: workers, persistent or none, and batch sizes leave what is drawn unchanged."""
    here = make()
    epochs = [drawn(here), drawn(here)]
    assert len({tuple(row) for epoch in epochs for row in epoch.values()}) == 24
    spread = make(workers=2)
    assert [drawn(spread), drawn(spread)] == epochs
    assert drawn(make(batch_size=5)) == epochs[0]
    assert drawn(make(seed=2)) != epochs[0]


def test_validation_workers_are_reproducible() -> None:
    """Item 28: an unshuffled loader with workers draws the same in every run."""
    runs = []
    for _ in range(2):
        builder = DataLoaderBuilder().with_dataset(Augmented()).with_shuffle(False)
        builder.with_workers(2, multiprocessing_context="fork").with_batch_size(4)
        runs.append([batch["drawn"].tolist() for batch in builder.build()])
    assert runs[0] == runs[1]
    assert [drawn_ for batch in runs[0] for drawn_ in batch] == list(
        drawn(DataLoaderBuilder().with_dataset(Augmented()).with_shuffle(False).build()).values()
    )


def test_a_resumed_pass_draws_what_it_would_have() -> None:
    """Item 51: the tail after a saved state is the tail, transforms and noise included."""
    builder = DataLoaderBuilder().with_dataset(Augmented()).with_batch_size(3)
    builder.with_collate_fn(noisy)
    loader = builder.build()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    again = builder.build()
    again.load_state_dict(state)
    for expected, found in zip(rest, again, strict=True):
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_trainer_s_generators_are_left_alone() -> None:
    """Nothing that a sample draws here moves what the trainer draws, and nothing runs ahead."""
    torch.manual_seed(5)
    expected = torch.rand(8).tolist()
    torch.manual_seed(5)
    loader = make()
    found = [torch.rand(1).item() for _ in zip(range(8), [*loader, *loader], strict=False)]
    assert found == expected
    assert loader.prefetch == 0


def test_what_is_known_to_draw_nothing() -> None:
    """Lists, tensors and plain Hugging Face data get the thread; anything else is not trusted."""
    import datasets

    table = datasets.Dataset.from_dict({"a": [1, 2, 3, 4]})
    part, _ = split_by_fraction(table, 0.5, seed=0)
    known = [[1], (1,), range(3), TensorDataset(torch.zeros(2)), table, part]
    assert [draws_nothing(data, default_collate) for data in known] == [True] * 6
    custom, _ = split_by_fraction(table.with_transform(lambda rows: rows), 0.5, seed=0)
    unknown = [Augmented(), table.with_transform(lambda rows: rows), custom]
    assert [draws_nothing(data, default_collate) for data in unknown] == [False] * 3
    assert not draws_nothing([1], noisy)
    assert DataLoaderBuilder().with_dataset([1, 2]).build().prefetch == 2


def test_a_dataset_says_whether_it_draws() -> None:
    """An attribute of the dataset or the collate function is believed, of parts too."""
    pure = Augmented()
    pure.draws = False  # type: ignore[attr-defined]
    assert draws_nothing(pure, default_collate)
    assert draws_nothing(split_by_fraction(pure, 0.5, seed=0)[1], default_collate)
    noisy.draws = False  # type: ignore[attr-defined]
    assert draws_nothing([1], noisy)
    del noisy.draws  # type: ignore[attr-defined]


@pytest.mark.parametrize("declared", [True, False])
def test_what_draws_may_be_declared(declared: bool) -> None:
    """`draws` overrules what is guessed."""
    from dataprep.runtime.external.config import LoaderConfig
    from dataprep.runtime.external.map_loader import foreign_loader

    loader = foreign_loader(Augmented(), LoaderConfig(draws=declared))
    assert (loader.prefetch == 0) == declared
