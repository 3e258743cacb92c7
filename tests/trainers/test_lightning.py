"""Lightning's Trainer: serves what a plain loop serves, and resumes from its own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.runtime.loader.loader import Loader
from tests.trainers.scenes import EPOCH, TinyModel, make_loader, make_shards, marks

lightning = pytest.importorskip("lightning", reason="make test-trainers installs it")

# Lightning uses what torch and others deprecate; that is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Writes down what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel()
        self.seen: list[list[tuple[int, ...]]] = []

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        self.seen.append(marks(batch))
        loss: torch.Tensor = self.model(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder: Path, loader: Loader, steps: int, save_at: int, resume: Path | None) -> Module:
    """Train to `steps` steps, with a checkpoint after `save_at`."""
    module = Module()
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, logger=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=save_at, save_top_k=-1
        )],
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=resume)
    return module


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=["thread", "workers"])
@pytest.mark.parametrize("stop", [7, EPOCH, EPOCH + 13])
def test_resumes_from_its_own_checkpoints(tmp_path: Path, options: Any, stop: int) -> None:
    """From a checkpoint in mid-epoch or at its end, a fresh Trainer goes on with the next batch."""
    shards = make_shards(tmp_path)
    plain = make_loader(shards)
    expected = [marks(batch) for _ in range(3) for batch in plain][:45]
    through = train(tmp_path, make_loader(shards, **options), 45, stop, None)
    assert through.seen == expected
    saved = tmp_path / f"step={stop}.ckpt"
    again = train(tmp_path / "again", make_loader(shards, **options), 45, stop, saved)
    assert again.seen == expected[stop:]
