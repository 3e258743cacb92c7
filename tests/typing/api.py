"""How the public surface is typed: mypy checks this file (`make lint`), nobody runs it.

What `reveal`-like assignments claim here is what users' editors and type checkers will see.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from dataprep import external, profile, seeding, text
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.inspect.profile import CollatorProfile, LoaderProfile
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.loader.worker_count import Advice

__all__ = ["Mine", "use"]


class Mine:
    """A data module by its methods alone."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches to train on."""
        return DataLoader(TensorDataset(torch.zeros(4)))

    def val_dataloader(self) -> None:
        """None."""


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    """A collate function of one's own."""
    return {"n": torch.tensor(samples)}


def use() -> None:
    """One of each."""
    task: external.TaskSpec = external.TaskSpec.lm_tiny()
    values: dict[str, Any] = task.to_dict()
    task = external.TaskSpec.from_dict(values)
    config: external.LoaderConfig = external.LoaderConfig(batch_size=8, num_workers="auto")
    builder: DataLoaderBuilder = (
        external.DataLoaderBuilder()
        .with_dataset([1, 2])
        .with_workers(2, pin_memory=True)
        .with_collate_fn(collate)
        .with_config(config)
        .with_buckets(external.Buckets(lengths=[1, 2]))
    )
    loader: Loader = builder.build()
    ranks: list[Loader] = builder.build_ranks(2)
    module: external.DataModule = external.UniversalDataModule([1], task_spec=task)
    module = Mine()
    train: Iterable[Any]
    val: Iterable[Any] | None
    train, val = external.loaders_of(module)
    seen: LoaderProfile = profile.profile_loader(loader)
    cost: CollatorProfile = profile.profile_collator(collate, [1])
    advice: Advice = profile.suggest_workers("heavy")
    generator: torch.Generator = seeding.seeded_generator(1)
    share: float = seen.overhead + cost.overhead(0.01)
    state: dict[str, Any] = loader.state_dict()
    loader.load_state_dict(state)
    engine = external.TokenizeEngine(tokenizer=task, keep=("label",))
    wrapped: external.PreprocessedDataset = external.PreprocessedDataset([1], engine)
    part: external.PreprocessedDataset = wrapped.select([0])
    stream = external.StreamingPreprocessedDataset(lambda: iter([1]), engine, infinite=True)
    counts: dict[str, int] = stream.skips()
    pair: tuple[Loader, Loader | None] = text.create_dataloaders("a.txt", "b.txt", None, 8)
    seeding.seed_all(1, "deterministic")
    # What must not pass is marked; mypy fails where a mark is no longer needed.
    seeding.seed_all("1")  # type: ignore[arg-type]
    external.LoaderConfig(8)  # type: ignore[call-arg]
    builder.with_padding("middle")  # type: ignore[arg-type]
    wrong: external.DataModule = [1]  # type: ignore[assignment]
    external.PreprocessedDataset([1], collate)  # type: ignore[arg-type]
    print(part, counts, pair, ranks, train, val, advice, generator, share, wrong)
