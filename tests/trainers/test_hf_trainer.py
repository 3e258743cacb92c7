"""The Trainer of transformers, given the loader as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.runtime.loader.loader import Loader
from tests.trainers.scenes import TinyModel, make_loader, make_shards, marks

transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")


class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
    """Trains on a dataprep loader, and writes down on what."""

    def __init__(self, loader: Loader, **options: Any) -> None:
        super().__init__(model=TinyModel(), **options)
        self.loader = loader
        self.seen: list[list[tuple[int, ...]]] = []

    def get_train_dataloader(self) -> Loader:
        return self.loader

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> torch.Tensor:
        self.seen.append(marks(inputs))
        loss: torch.Tensor = super().training_step(model, inputs, *rest)
        return loss


def train(shards: Path, folder: Path, steps: int, resume: bool = False) -> Trainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=7, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(make_loader(shards), args=arguments)
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


@pytest.mark.parametrize("stop", [14, 28])
def test_trains_and_resumes(tmp_path: Path, stop: int) -> None:
    """Stopped in the first or in the second epoch, the resumed run goes on with the next batch."""
    shards = make_shards(tmp_path)
    loader = make_loader(shards)
    expected = [marks(batch) for _ in range(3) for batch in loader]
    first = train(shards, tmp_path / "out", stop)
    assert first.seen == expected[:stop]
    second = train(shards, tmp_path / "out", 45, resume=True)
    assert second.seen == expected[stop:45]
