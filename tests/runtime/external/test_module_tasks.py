"""Data modules by task: the collate function that a preset chooses, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.formats.errors import InputError, UsageError
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.registry import CollatorRegistry
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.task import TaskSpec
from tests.scenes.datasets import make_dataset, random_split


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


@pytest.mark.parametrize(
    ("name", "kind", "modality"), [("mood", "classification", "text"), ("mood", "lm", "vision")]
)
def test_labels_by_the_name_that_the_task_says(name: str, kind: str, modality: str) -> None:
    """They were left under it, and the batch had no labels."""
    task = TaskSpec(name="moods", task_type=kind, modality=modality, target_field=name)
    data = [{"pixel_values": torch.zeros(3, 2, 2), "input_ids": [1], name: n} for n in range(8)]
    batch = first_batch(data, task, tokenizer=Tokenizer())
    assert name not in batch
    assert sorted(batch["labels"].tolist()) == list(range(8))
    both = [{**row, "labels": 0} for row in data]
    with pytest.raises(InputError, match=r"sample .*, field 'mood': has labels, too"):
        first_batch(both, task, tokenizer=Tokenizer())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tokenizer": Tokenizer()}, "tokenizer: needs a task_spec or a collator_name"),
        ({"collator_options": {"pad_id": 1}}, "collator_options: need a task_spec"),
        ({"task_spec": "lm_tiny"}, "task_spec: is a name; use TaskSpec.preset"),
        ({"rows": {"seq_len": 8}}, "rows: are options of datasets that were built"),
        ({"dp_rank": "0", "dp_size": 2}, "dp_rank: must be a whole number, got '0'"),
        ({"dp_rank": 2, "dp_size": 2}, "dp_rank: 2 is not in 0 .. 1"),
    ],
)
def test_nothing_is_ignored(options: dict[str, Any], problem: str) -> None:
    """A tokenizer without a task would not have been asked what to pad with."""
    with pytest.raises(UsageError, match=problem):
        UniversalDataModule(TEXTS, **options)


def test_what_the_task_or_the_tokenizer_says_is_heard() -> None:
    """A pad id of the task needs no tokenizer, and a start token may be 0."""
    padded = TaskSpec(name="x", task_type="lm", preprocessing_config={"pad_id": 5})
    assert first_batch([{"input_ids": [1]}, {"input_ids": [1, 2]}], padded)["input_ids"].max() == 5

    class Starts(Tokenizer):
        decoder_start_token_id = 0

    batch = first_batch(PAIRS, TaskSpec.seq2seq_tiny(), tokenizer=Starts())
    assert batch["decoder_input_ids"][:, 0].tolist() == [0] * 8


def test_two_normalisations_are_one_too_many() -> None:
    """The name was passed over."""
    options = {"normalize": "cifar10", "mean": [0.5] * 3, "std": [0.5] * 3}
    with pytest.raises(UsageError, match="normalize: is 'cifar10', and mean and std are given"):
        first_batch(IMAGES, TaskSpec.vision_tiny(), collator_options=options)


def test_validation_has_to_end() -> None:
    """An infinite stream is for training."""
    endless = StreamingPreprocessedDataset(range(3), infinite=True)
    module = UniversalDataModule([1, 2, 3], endless)
    with pytest.raises(UsageError, match="val_data: is an infinite stream"):
        module.val_dataloader()


def test_a_collator_for_a_dataset_with_one_of_its_own(tmp_path: Path) -> None:
    """What was built makes its batches itself."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[200]], seed=1)})
    with pytest.raises(UsageError, match="collator_name: means nothing for a dataset that makes"):
        UniversalDataModule(path, collator_name="padded", rows={"seq_len": 8})
