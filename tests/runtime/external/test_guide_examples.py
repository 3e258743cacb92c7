"""The examples of documents 000 and 001, in the order in which they stand there.

Where names differ, those of this package are used: `LoaderConfig` for `DataLoaderConfig`,
`DataLoaderBuilder` for `DataLoaderFactory`, `CausalLM` and `Vision` for the collators.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import tokenizers
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dataprep
from dataprep.collate import CausalLM, CollatorRegistry, Vision
from dataprep.external import (
    DataLoaderBuilder,
    DataModule,
    LoaderConfig,
    TaskSpec,
    UniversalDataModule,
    loaders_of,
)
from tests.scenes.datasets import byte_tokenizer

LINES = [
    "",
    " = A title = \n",
    "",
    " One sentence of a page .\n",
    " Another , longer than it .\n",
] * 20


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    """Bytes, with an end of text for padding."""
    return tokenizers.Tokenizer.from_buffer(byte_tokenizer())


def make(dataset: Any, config: LoaderConfig) -> Any:
    """`DataLoaderFactory().create_dataloader(dataset, config)`."""
    return DataLoaderBuilder().with_dataset(dataset).with_config(config).build()


class Images(Dataset[Any]):
    """`MyDataset` of the guide, of smaller images."""

    def __init__(self, samples: int = 100) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        return {"pixel_values": torch.randn(3, 24, 24), "labels": index % 10}


class Mine:
    """`MyDataModule`: whatever has the two methods."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Images(), batch_size=32)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Images(10), batch_size=32)


def test_1_a_data_module_by_its_methods() -> None:
    """Item 124: the protocol needs no base class."""
    module: DataModule = Mine()
    assert isinstance(module, DataModule)
    assert len(list(module.train_dataloader())) == 4


def test_2_collators_from_a_task_or_by_name(tokenizer: tokenizers.Tokenizer) -> None:
    """Item 124: vision and text by the task, CIFAR-10 normalisation by the name."""
    registry = CollatorRegistry.get_instance()
    assert isinstance(registry.get_collator(task_spec=TaskSpec.vision_tiny()), Vision)
    text = registry.get_collator(task_spec=TaskSpec.lm_tiny(), tokenizer=tokenizer)
    assert isinstance(text, CausalLM)
    named = registry.get_collator(
        collator_name="vision", normalize=True, mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5]
    )
    batch = named([{"pixel_values": np.zeros((3, 2, 2), np.uint8), "labels": 1}])
    assert batch["pixel_values"].unique().tolist() == [-1.0]
    task = TaskSpec.vision_tiny()
    config = task.preprocessing_config
    assert config.get("normalize") == "imagenet"
    assert config.get("mean") is None


def test_3_a_collator_of_one_s_own() -> None:
    """Item 124: sound to spectrograms, registered for a modality, with options."""
    registry = CollatorRegistry()  # `get_instance` is everybody's

    @registry.register("audio", modality="audio", description="Audio collator with spectrogram")
    def create_audio_collator(
        task_spec: Any = None, sample_rate: int = 16000, n_fft: int = 512
    ) -> Any:
        def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            waveforms = torch.stack([item["waveform"] for item in batch])
            window = torch.hann_window(n_fft)
            spectrograms = torch.stft(waveforms, n_fft, window=window, return_complex=True).abs()
            labels = torch.tensor([item["label"] for item in batch])
            return {"spectrograms": spectrograms, "labels": labels}

        assert (sample_rate, task_spec.name) == (22050, "speech_recognition")
        return collate

    task = TaskSpec(name="speech_recognition", modality="audio", task_type="classification")
    collator = registry.get_collator(task_spec=task, sample_rate=22050)
    data = [{"waveform": torch.randn(2048), "label": n % 4} for n in range(20)]
    module = UniversalDataModule(
        data, task_spec=task, collator_registry=registry, collator_options={"sample_rate": 22050}
    )
    (batch,) = module.train_dataloader()
    assert batch["spectrograms"].shape == (16, 257, 17)
    assert collator(data[:2])["labels"].tolist() == [0, 1]


def test_3_an_image_and_a_text() -> None:
    """Item 124: two collators of this package in one; `VisionText` is the same ready made."""
    registry = CollatorRegistry()

    @registry.register("multimodal", modality="vision", description="Vision-language collator")
    def create_multimodal_collator(task_spec: Any = None, normalize: str = "imagenet") -> Any:
        vision, text = Vision(normalize=normalize), CausalLM()

        def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
            vision_out = vision([{"pixel_values": item["pixel_values"]} for item in batch])
            text_out = text([{"input_ids": item["input_ids"]} for item in batch])
            return {"pixel_values": vision_out["pixel_values"], **text_out}

        return collate

    samples = [{"pixel_values": np.ones((3, 2, 2)), "input_ids": [1] * n} for n in (2, 3)]
    batch = registry.get_collator("multimodal")(samples)
    assert sorted(batch) == ["attention_mask", "input_ids", "labels", "pixel_values"]
    assert batch["input_ids"].shape == (2, 3)
    ready = registry.get_collator("vision_text", tokenizer=None, pad_id=0)(samples)
    assert all(torch.equal(ready[name], batch[name]) for name in batch)


@pytest.mark.filterwarnings("ignore:pin_memory is left out")
def test_4_loaders_by_a_config() -> None:
    """Item 124: pinned where it can be, workers that persist, the same order for the same seed."""
    dataset = TensorDataset(torch.randn(100, 32))
    config = LoaderConfig(
        batch_size=32, shuffle=True, num_workers=2, pin_memory=True, prefetch_factor=2, seed=42,
        multiprocessing_context="fork",
    )  # fmt: skip
    loader = make(dataset, config)
    assert [len(batch[0]) for batch in loader] == [32, 32, 32, 4]
    accelerator = torch.accelerator.is_available()
    loader = make(dataset, LoaderConfig(batch_size=32, pin_memory=None, persistent_workers=None))
    assert (loader.pin_memory, loader.prefetch_factor) == (accelerator, None)
    config = LoaderConfig(batch_size=32, shuffle=True, seed=42, num_workers=0)
    batch1, batch2 = (next(iter(make(dataset, config))) for _ in range(2))
    assert torch.equal(batch1[0], batch2[0])


def test_5_a_hugging_face_dataset_of_texts(tokenizer: tokenizers.Tokenizer) -> None:
    """Item 124: tokenized by the tokenizer that is given; empty lines are left out, and counted."""
    dataset = datasets.Dataset.from_dict({"text": LINES})
    options: dict[str, Any] = {
        "task_spec": TaskSpec.lm_tiny(), "tokenizer": tokenizer, "batch_size": 32, "val_split": 0.1,
        "num_workers": 0, "seed": 42,
    }  # fmt: skip
    with pytest.warns(UserWarning, match="40 of 100 texts are empty") as warned:
        module = UniversalDataModule(train_data=dataset, **options)
    assert warned[0].filename == __file__
    found = []
    for loader in (module.train_dataloader(), module.val_dataloader()):
        for batch in loader:
            assert torch.equal(
                batch["labels"], batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            )
            rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
            found += [tokenizer.decode(ids[mask == 1].tolist()) for ids, mask in rows]
    assert sorted(found) == sorted(text for text in LINES if text)
    dataprep.profile.validate_first_batch(module.train_dataloader())
    for same in (LINES, [{"text": text} for text in LINES]):  # lists, too
        with pytest.warns(UserWarning, match="40 of 100 texts are empty"):
            again = UniversalDataModule(train_data=same, **options)
        again.set_epoch(module.train_dataloader().epoch)
        pair = (next(iter(one.train_dataloader()))["input_ids"] for one in (module, again))
        assert torch.equal(*pair)


def test_5_texts_with_classes(tokenizer: tokenizers.Tokenizer) -> None:
    """Item 124: labels stay with their texts; of a torch dataset an empty text is an error."""
    texts = [f"text {n}" for n in range(30)]
    rows = [{"text": text, "label": n % 2, "id": n} for n, text in enumerate(texts)]

    class Texts(Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return rows[index]

    for data in (rows, datasets.Dataset.from_list(rows), Texts()):
        module = UniversalDataModule(
            data, rows[:5], TaskSpec.cls_tiny(), tokenizer, batch_size=10, test_data=rows[:3]
        )
        seen = []
        for batch in module.train_dataloader():
            assert set(batch) == {"input_ids", "attention_mask", "labels"}
            for ids, mask, label in zip(
                batch["input_ids"], batch["attention_mask"], batch["labels"].tolist(), strict=True
            ):
                seen.append((tokenizer.decode(ids[mask == 1].tolist()), label))
        assert sorted(seen) == sorted((row["text"], row["label"]) for row in rows)
        assert [len(b["labels"]) for b in module.val_dataloader()] == [5]
        assert [len(b["labels"]) for b in module.test_dataloader()] == [3]
    rows[7]["text"] = ""
    with pytest.raises(dataprep.DataprepError, match=r"row 7.*has no tokens"):
        module = UniversalDataModule(Texts(), None, TaskSpec.cls_tiny(), tokenizer)
        list(module.train_dataloader())
        list(module.val_dataloader())  # where the row is held out


@pytest.mark.filterwarnings("ignore:images with fractions below 0")
def test_5_images_of_a_torch_dataset() -> None:
    """Item 124: `torch.randn` images with `vision_tiny`; a fifth held out."""
    module = UniversalDataModule(
        train_data=Images(), task_spec=TaskSpec.vision_tiny(), batch_size=32, val_split=0.2, seed=42
    )
    batches = list(module.train_dataloader())
    assert [tuple(batch["pixel_values"].shape) for batch in batches] == [
        (32, 3, 24, 24), (32, 3, 24, 24), (16, 3, 24, 24),
    ]  # fmt: skip
    assert batches[0]["labels"].dtype == torch.int64
    assert sum(len(batch["labels"]) for batch in module.val_dataloader()) == 20
    dataprep.profile.validate_first_batch(module.train_dataloader())


def test_5_validation_data_of_its_own() -> None:
    """Item 124: images as CIFAR-10 has them; `val_split` then holds nothing out."""
    features = datasets.Features(
        {"img": datasets.Array3D((8, 8, 3), "uint8"), "label": datasets.Value("int64")}
    )
    draw = np.random.default_rng(0)
    train, val = (
        datasets.Dataset.from_dict(
            {"img": draw.integers(0, 256, (n, 8, 8, 3), np.uint8), "label": [n % 10] * n}, features
        ).with_format("numpy")
        for n in (70, 20)
    )
    module = UniversalDataModule(
        train_data=train, val_data=val, task_spec=TaskSpec.vision_tiny(), batch_size=64,
        val_split=0.0, seed=42, collator_options={"layout": "HWC"},
    )  # fmt: skip
    assert [len(batch["labels"]) for batch in module.train_dataloader()] == [64, 6]
    assert [len(batch["labels"]) for batch in module.val_dataloader()] == [20]


def test_5_a_list_of_tensors() -> None:
    """Items 123, 124: the rows of the list, in tuples, a fifth of them held out."""
    train_data = [torch.randint(0, 1000, (128,)) for _ in range(500)]
    module = UniversalDataModule(train_data=train_data, batch_size=32, val_split=0.2, seed=42)
    train = [rows for (rows,) in module.train_dataloader()]
    val = [rows for (rows,) in module.val_dataloader()]
    assert (train[0].shape, len(torch.cat(train)), len(torch.cat(val))) == ((32, 128), 400, 100)
    served = sorted(torch.cat([*train, *val]).tolist())
    assert served == sorted(torch.stack(train_data).tolist())


@pytest.mark.filterwarnings("ignore:pin_memory is left out")
def test_options_of_the_chapter_on_performance() -> None:
    """Item 124: every config that the guide shows can be made and is kept."""
    for options in (
        {"batch_size": 32, "num_workers": 0},
        {
            "batch_size": 32, "num_workers": 4, "pin_memory": True, "prefetch_factor": 2,
            "persistent_workers": True,
        },
        {"pin_memory": None}, {"pin_memory": torch.cuda.is_available()},
        {"num_workers": 2, "prefetch_factor": 2}, {"num_workers": 4, "prefetch_factor": 4},
        {"shuffle": True, "seed": 42}, {"shuffle": True}, {"num_workers": 8}, {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": False},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": None}, {"collate_fn": CausalLM()},
    ):  # fmt: skip
        config = LoaderConfig(**options)
        assert {name: getattr(config, name) for name in options} == options


def test_going_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Item 124: the seed of the module in a checkpoint, and here also where the run stood."""
    data = [torch.tensor([n]) for n in range(64)]
    module = UniversalDataModule(train_data=data, batch_size=4, seed=9)
    train = module.train_dataloader()
    iterator = iter(train)
    for _ in range(3):
        next(iterator)
    custom = {"data_module_seed": module.seed, "step": 3 % len(train), "data": module.state_dict()}
    (tmp_path / "checkpoint.json").write_text(json.dumps(custom))
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    again = UniversalDataModule(train_data=data, batch_size=4, seed=state["data_module_seed"])
    again.load_state_dict(state["data"])
    rest = [rows.tolist() for (rows,) in iterator]
    assert [rows.tolist() for (rows,) in again.train_dataloader()] == rest


class Lightning:
    """`MyLightningModule`, which passes on the loaders of a data module."""

    def __init__(self, data_module: DataModule) -> None:
        self.data_module = data_module

    def train_dataloader(self) -> Any:
        return self.data_module.train_dataloader()

    def val_dataloader(self) -> Any:
        return self.data_module.val_dataloader()


def test_loaders_through_another_module() -> None:
    """Item 124: a data module inside a module of a trainer."""
    train, val = loaders_of(Lightning(UniversalDataModule(list(range(10)), batch_size=4)))
    assert val is not None
    assert (sum(map(len, train)), sum(map(len, val))) == (8, 2)


def test_the_time_of_loading_and_collating() -> None:
    """Item 124: the loops of the chapters on profiles and troubleshooting run."""
    dataset = TensorDataset(torch.randn(100, 32))
    loader = make(dataset, LoaderConfig(batch_size=32))
    start = time.perf_counter()
    assert len(list(loader)) == 4
    assert time.perf_counter() > start
    collator = CausalLM()
    batch = [{"input_ids": [n, n]} for n in range(32)]
    assert collator([batch[n] for n in range(32)])["input_ids"].shape == (32, 2)
    assert dataprep.profile.profile_loader(loader, step=0.001, batches=2, warmup=1)


def test_000_from_a_data_loader_to_a_data_module() -> None:
    """Items 123, 124: the migration that document 000 shows."""
    train_data = TensorDataset(torch.arange(70))
    old = DataLoader(
        train_data, batch_size=32, shuffle=True, worker_init_fn=dataprep.seeding.seed_worker,
        generator=dataprep.seeding.seeded_generator(42),
    )  # fmt: skip
    new = UniversalDataModule(train_data=train_data, batch_size=32, seed=42, val_split=0)
    served = [
        sorted(torch.cat([b[0] for b in one]).tolist()) for one in (old, new.train_dataloader())
    ]
    assert served[0] == served[1] == list(range(70))
    with pytest.warns(UserWarning, match="is empty"):  # shuffle=True raised
        assert list(make(TensorDataset(torch.zeros(0)), LoaderConfig())) == []
