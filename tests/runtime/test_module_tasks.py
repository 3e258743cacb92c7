"""Data modules by task: the collate function that a preset chooses, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate_default import Default
from dataprep.runtime.collators import CollatorRegistry
from dataprep.runtime.data_module import UniversalDataModule
from dataprep.runtime.tasks import TaskSpec


@dataclass
class Tokenizer:
    """As much of one as collators look at."""

    pad_token_id: int = 7
    all_special_ids: tuple[int, ...] = (7,)

    def get_vocab(self) -> dict[str, int]:
        return {"a": 1, "[PAD]": 7}


TEXTS = [{"input_ids": list(range(1, n + 1)), "label": n % 2} for n in range(1, 9)]
PAIRS = [{"input_ids": [1] * n, "labels": [2] * (9 - n)} for n in range(1, 9)]
IMAGES = [{"pixel_values": torch.full((3, 4, 4), n, dtype=torch.uint8), "labels": n}
          for n in range(8)]  # fmt: skip


def first_batch(data: Any, task: TaskSpec | None, **options: Any) -> dict[str, torch.Tensor]:
    module = UniversalDataModule(data, None, task, batch_size=8, val_split=0, **options)
    batch: dict[str, torch.Tensor] = next(iter(module.train_dataloader()))
    return batch


@pytest.mark.parametrize(
    ("task", "data", "fields"),
    [
        (TaskSpec.lm_tiny(), [{"input_ids": row["input_ids"]} for row in TEXTS],
         {"input_ids": (8, 8), "attention_mask": (8, 8), "labels": (8, 8)}),
        (TaskSpec.cls_tiny(), TEXTS,
         {"input_ids": (8, 8), "attention_mask": (8, 8), "labels": (8,)}),
        (TaskSpec.seq2seq_tiny(), PAIRS,
         {"input_ids": (8, 8), "decoder_input_ids": (8, 8), "labels": (8, 8)}),
        (TaskSpec.vision_tiny(), IMAGES, {"pixel_values": (8, 3, 4, 4), "labels": (8,)}),
    ],
    ids=lambda value: value.name if isinstance(value, TaskSpec) else "",
)  # fmt: skip
def test_presets_choose_what_collates(
    task: TaskSpec, data: Any, fields: dict[str, tuple[int, ...]]
) -> None:
    """Items 43, 44: each preset, with a tokenizer where it is of text, serves its batches."""
    batch = first_batch(data, task, tokenizer=Tokenizer())
    assert {name: tuple(batch[name].shape) for name in fields} == fields


def test_options_go_from_the_call_to_the_maker() -> None:
    """Items 45, 47: those of the call, and the task's own; what is not taken is refused."""
    data = [{"input_ids": row["input_ids"]} for row in TEXTS]
    lm = TaskSpec.lm_tiny()
    batch = first_batch(data, lm, tokenizer=Tokenizer())
    assert batch["input_ids"].min() == 1 and batch["input_ids"].max() == 8
    assert 7 in batch["input_ids"][:, -1]
    batch = first_batch(data, lm, tokenizer=Tokenizer(), collator_options={"padding_side": "left"})
    assert (batch["attention_mask"][:, -1] == 1).all()
    own = TaskSpec(name="own", task_type="lm", special_tokens={"pad": 0},
                   preprocessing_config={"max_length": 4})  # fmt: skip
    batch = first_batch(data, own)
    assert batch["input_ids"].shape == (8, 4)
    assert 0 in batch["input_ids"]
    with pytest.raises(UsageError, match="no such option: n_fft"):
        first_batch(data, lm, tokenizer=Tokenizer(), collator_options={"n_fft": 1})
    with pytest.raises(UsageError, match="need a task_spec or a collator_name"):
        first_batch(data, None, collator_options={"pad_id": 1})
    with pytest.raises(UsageError, match="needs a tokenizer"):
        first_batch(data, lm)


def test_a_registry_of_one_s_own_by_name() -> None:
    """Items 45, 47: a collator that was registered, by its name, for this module alone."""
    mine = CollatorRegistry()

    @mine.register("waves", modality="audio", description="adds the rate", precedence=1)
    def make(task_spec: TaskSpec | None = None, rate: int = 16000) -> Any:
        def collate(samples: list[Any]) -> dict[str, Any]:
            return {**Default(report=False)(samples), "rate": torch.tensor(rate)}

        return collate

    data = [{"waveform": torch.zeros(4)} for _ in range(8)]
    task = TaskSpec(name="speech", modality="audio", task_type="classification")
    options: dict[str, Any] = {"collator_registry": mine, "collator_options": {"rate": 22050}}
    assert first_batch(data, task, **options)["rate"] == 22050
    assert first_batch(data, None, collator_name="waves", **options)["rate"] == 22050


def test_ragged_tensors_of_a_text_task_are_padded() -> None:
    """Item 30: bare tensors of several lengths are a language model's rows."""
    rows = [torch.arange(1, n + 2) for n in range(8)]
    batch = first_batch(rows, TaskSpec.lm_tiny(), tokenizer=Tokenizer())
    assert batch["input_ids"].shape == (8, 8)
    assert sorted(batch["attention_mask"].sum(1).tolist()) == list(range(1, 9))
