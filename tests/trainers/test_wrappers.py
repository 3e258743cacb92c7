"""Text windows and wrapped streams under Lightning and the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.tokenize_engine import TokenizeEngine
from dataprep.text import create_dataloaders
from tests.trainers.scenes import TinyModel, marks

# These use what torch and others deprecate; that is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def texts() -> Iterator[dict[str, str]]:
    return ({"text": f"Row {n} of all."} for n in range(40))


def of_text(folder: Path) -> Any:
    path = folder / "a.txt"
    path.write_text("\n\n".join(f"Document number {n}." for n in range(100)))
    return create_dataloaders(path, None, Bytes(), 4, 16, seed=1, cache_dir=folder / "cache")[0]


def of_stream(_: Path) -> Any:
    engine = TokenizeEngine(tokenizer=Bytes(), max_length=12)
    data = StreamingPreprocessedDataset(texts, engine)

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        ids = torch.stack([sample["input_ids"] for sample in samples])
        return {"input_ids": ids, "labels": ids}

    return UniversalDataModule(data, data_collator=collate, batch_size=4).train_dataloader()


@pytest.mark.parametrize("make", [of_text, of_stream])
def test_lightning_trains(tmp_path: Path, make: Any) -> None:
    """Items 61, 119: over two epochs it is served what a plain loop is."""
    lightning = pytest.importorskip("lightning", reason="make test-trainers installs it")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = TinyModel()
            self.seen: list[Any] = []

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            self.seen.append(marks(batch))
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    lightning.Trainer(
        max_epochs=2, logger=False, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, use_distributed_sampler=False,
    ).fit(module, make(tmp_path))  # fmt: skip
    plain = make(tmp_path)
    assert module.seen == [marks(batch) for _ in range(2) for batch in plain]


@pytest.mark.parametrize("make", [of_text, of_stream])
def test_the_trainer_of_transformers_trains(tmp_path: Path, make: Any) -> None:
    """Items 61, 119: a few steps, more than an epoch, of the rows that a plain loop has."""
    transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")
    seen: list[Any] = []

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return make(tmp_path)

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> torch.Tensor:
            seen.append(marks(inputs))
            loss: torch.Tensor = super().training_step(model, inputs, *rest)
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=15, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    Trainer(model=TinyModel(), args=arguments).train()
    plain = make(tmp_path)
    expected = [marks(batch) for _ in range(2) for batch in plain]
    assert seen == expected[:15]
