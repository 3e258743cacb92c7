"""Lightning takes a data module of ours, and goes on from its own checkpoints in mid-epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.runtime.external.data_module import DataModule, UniversalDataModule

lightning = pytest.importorskip("lightning", reason="make test-trainers installs it")

# Lightning uses what torch and others deprecate; that is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


class Data(UniversalDataModule, lightning.LightningDataModule):  # type: ignore[misc,name-defined]
    """Ours, as Lightning wants its `datamodule=` to be."""


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Writes down what it was trained and validated on; may have loaders of its own."""

    def __init__(self, data: DataModule | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.validated: list[list[int]] = []
        if data is not None:
            self.train_dataloader = data.train_dataloader
            self.val_dataloader = data.val_dataloader

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        self.seen.append(batch["n"].tolist())
        loss: torch.Tensor = self.layer(batch["n"].float()[:, None]).mean()
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        self.validated.append(batch["n"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def make(kind: type[UniversalDataModule] = Data, **options: Any) -> UniversalDataModule:
    return kind([{"n": n} for n in range(50)], batch_size=4, **options)


def train(
    folder: Path, steps: int, *, data: Any = None, module: Module | None = None, save_at: int = 3,
    resume: Path | None = None, **options: Any,
) -> Module:  # fmt: skip
    module = module or Module()
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, logger=False, accelerator="cpu", num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=save_at, save_top_k=-1
        )],
        **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    return module


def expected() -> list[list[int]]:
    loader = make().train_dataloader()
    return [batch["n"].tolist() for _ in range(3) for batch in loader]


@pytest.mark.parametrize("stop", [3, 10, 14])
def test_a_data_module_resumes_with_its_trainer(tmp_path: Path, stop: int) -> None:
    """Items 2, 38, 51: from a checkpoint in mid-epoch or at its end, the next batch comes next."""
    through = train(tmp_path, 25, data=make(), save_at=stop)
    assert through.seen == expected()[:25]
    saved = tmp_path / f"step={stop}.ckpt"
    again = train(tmp_path / "again", 25, data=make(), save_at=stop, resume=saved)
    assert again.seen == expected()[stop:25]


def test_validation_runs_after_each_epoch(tmp_path: Path) -> None:
    """Item 2: the held-out samples, in their order, each time."""
    val = [batch["n"].tolist() for batch in make().val_dataloader()]
    assert train(tmp_path, 20, data=make()).validated == val * 2
    assert train(tmp_path, 5, data=make(val_split=0), limit_val_batches=0).validated == []


def test_a_module_hands_on_the_loaders_of_a_data_module(tmp_path: Path) -> None:
    """Item 2: as the guide of document 001 shows it."""
    found = train(tmp_path, 12, module=Module(make(UniversalDataModule)))
    assert found.seen == expected()[:12]
    assert len(found.validated) == 3
