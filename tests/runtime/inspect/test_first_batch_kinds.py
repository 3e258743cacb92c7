"""`validate_first_batch` over every kind of batch that loaders make, and over damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from dataprep.formats.errors import IncompatibleError
from dataprep.runtime.collate.audio import Audio
from dataprep.runtime.collate.images import Vision, VisionText
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.preference import GRPO, KTO, Preference
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.task import TaskSpec
from dataprep.runtime.inspect.first_batch import check_batch, check_collated, validate_first_batch
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.pair_datasets import make_embeddings, make_pairs
from tests.scenes.preferences import Answer, make_preferences

N, ROWS = 13, 4
draw = np.random.default_rng(0)
TEXTS: list[dict[str, Any]] = [
    {"input_ids": draw.integers(10, 90, 3 + n % 5).tolist()} for n in range(N)
]
IMAGES = [draw.integers(0, 256, (3, 4, 4), dtype=np.uint8) for _ in range(N)]


def with_(**fields: Callable[[int], Any]) -> list[dict[str, Any]]:
    """The texts with further fields."""
    made = [{name: make(n) for name, make in fields.items()} for n in range(N)]
    return [text | more for text, more in zip(TEXTS, made, strict=True)]


def ids(n: int) -> list[int]:
    return draw.integers(10, 90, 2 + n % 3).tolist()  # type: ignore[no-any-return]


def own_function(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as views of one tensor."""
    rows = torch.tensor([sample["input_ids"][:3] for sample in samples])
    return rows[:, :-1], rows[:, 1:]


COLLATED: dict[str, tuple[Any, Any]] = {
    "causal": (TEXTS, CausalLM()),
    "causal shifted": (TEXTS, CausalLM(shift=True)),
    "masked": (TEXTS, MaskedLM(mask_id=3, vocab_size=100)),
    "masked, nothing hidden": (TEXTS, MaskedLM(mask_id=3, vocab_size=100, probability=1e-9)),
    "classes": (with_(label=lambda n: n % 2), Classification()),
    "several classes": (with_(label=lambda n: [n % 2, 1]), Classification(kind="multi")),
    "regression": (with_(label=lambda n: n / 3), Classification(kind="regression")),
    "classes of tokens": (
        with_(labels=lambda n: [n % 3] * (3 + n % 5)), Classification(kind="token")
    ),
    "no labels": (TEXTS, Classification()),
    "seq2seq": (with_(labels=ids), Seq2Seq(decoder_start_id=0)),
    "seq2seq of equal widths": (
        with_(labels=lambda n: [1, *range(20, 22 + n % 5)]), Seq2Seq(decoder_start_id=0)
    ),
    "seq2seq without labels": (with_(decoder_input_ids=ids), Seq2Seq(decoder_start_id=0)),
    "padded": (with_(name=lambda n: f"sample {n}"), None),
    "padded with targets": (with_(labels=ids), Padded()),
    "preference": (
        [{"chosen_input_ids": ids(n), "rejected_input_ids": ids(n + 1)} for n in range(N)],
        Preference(),
    ),
    "kto": (with_(tag=lambda n: n % 2), KTO()),
    "grpo": (with_(responses=lambda n: [ids(n), ids(n + 1)], scores=lambda n: [0, 1.0]), GRPO()),
    "images": ([{"image": image, "label": n} for n, image in enumerate(IMAGES)], Vision()),
    "images in tuples": ([(image, n) for n, image in enumerate(IMAGES)], Vision()),
    "images with texts": (with_(image=lambda n: IMAGES[n]), VisionText()),
    "sound": ([{"waveform": [0.5] * (2 + n), "label": n} for n in range(N)], Audio()),
    "tensors": ([torch.tensor([n, n]) for n in range(N)], None),
    "TensorDataset": (TensorDataset(torch.arange(N), torch.randn(N, 2)), None),
    "numbers": (list(range(N)), None),
    "dicts": ([{"n": n, "label": -n, "name": str(n)} for n in range(N)], None),
    "lists": (TensorDataset(torch.arange(N), torch.randn(N, 2)), default_collate),
    "views": (TEXTS, own_function),
}  # fmt: skip


@pytest.mark.parametrize("kind", COLLATED)
@pytest.mark.parametrize("end", ["partial", "drop", "mask", "buckets", "module"])
def test_batches_of_collate_functions_are_good(kind: str, end: str) -> None:
    """Item 132: every collator, tuples and tensors, each end of an epoch; the batch comes next."""
    data, collate = COLLATED[kind]
    make = DataLoaderBuilder().with_dataset(data).with_batch_size(ROWS).with_collate_fn(collate)
    if end == "drop":
        make.with_drop_last()
    if end == "buckets":
        make.with_buckets(lengths=[1 + n % 3 for n in range(N)], max_tokens=9)
    if end == "mask":
        loaders = [*make.with_drop_last(False).build_ranks(3)]
    elif end == "module":
        module = UniversalDataModule(data, data_collator=collate, batch_size=ROWS)
        loaders = [module.train_dataloader(), module.val_dataloader()]
    else:
        loaders = [make.build()]
    for loader in loaders:
        shown = validate_first_batch(loader, vocab_size=100)
        assert str(shown) == str(next(iter(loader)))
        if end == "mask":  # the last step too, of which ranks have no row
            *_, last = loader.sampler_obj.steps(loader.epoch)
            check_collated(
                loader.dataset_obj.batch(last.samples), loader.dataset_obj.collate, rows=ROWS
            )


@pytest.mark.parametrize("kind", COLLATED)
def test_batches_of_streams_are_good(kind: str) -> None:
    """Item 132: of a stream nothing is counted, drawn or moved."""
    data, collate = COLLATED[kind]
    rows = [data[n] for n in range(N)]
    make = DataLoaderBuilder().with_dataset(lambda: iter(rows)).with_batch_size(ROWS)
    loader = make.with_collate_fn(collate).build()
    state = loader.state_dict()
    shown = validate_first_batch(loader)
    assert loader.state_dict() == state
    assert str(shown) == str(next(iter(loader)))


def test_what_a_stream_skips_is_not_counted() -> None:
    """Item 132: looking at a batch leaves the count of skipped rows as it is."""

    def odd(example: dict[str, int]) -> dict[str, int]:
        if example["n"] % 2 == 0:
            raise ValueError
        return example

    data = StreamingPreprocessedDataset(
        lambda: ({"n": n} for n in range(20)), transform=odd, skip_errors=True
    )
    loader = DataLoaderBuilder().with_dataset(data).with_batch_size(4).build()
    assert all(n % 2 for n in validate_first_batch(loader)["n"].tolist())
    assert data.skipped == 0


@pytest.mark.parametrize("task", ["lm_tiny", "cls_tiny", "seq2seq_tiny", "vision_tiny"])
def test_batches_of_tasks_are_good(task: str) -> None:
    """Item 132: those that a data module chooses a collate function for."""
    data: Any = {
        "lm_tiny": TEXTS, "cls_tiny": with_(label=lambda n: n % 2),
        "seq2seq_tiny": with_(labels=ids),
        "vision_tiny": [{"pixel_values": image, "labels": n} for n, image in enumerate(IMAGES)],
    }[task]  # fmt: skip
    options = {} if task == "vision_tiny" else {"pad_id": 0}
    if task == "seq2seq_tiny":
        options["decoder_start_id"] = 0
    for spec in (TaskSpec.preset(task), replace(TaskSpec.preset(task), name="other")):
        module = UniversalDataModule(data, task_spec=spec, collator_options=options, batch_size=4)
        validate_first_batch(module.train_dataloader())


def preferences(path: Path, form: str) -> Path:
    answers = 1 if form == "labels" else 2
    records = [
        [Answer(ids=[5, 6, 7 + slot], mask=[0, 1, 1], score=float(slot)) for slot in range(answers)]
        for _ in range(N)
    ]
    return make_preferences(path, form, [records])


def own(path: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    splits = {"train": random_split([[200, 41], [90]], seed=1)}
    tokens = make_dataset(path / "tokens", splits)
    for rows in ("windows", "packed", "documents"):
        for labels in ("shifted", "unshifted", None):
            yield rows, tokens, {"rows": rows, "labels": labels, "seq_len": 16}
    yield "fields", tokens, {
        "rows": "packed", "seq_len": 64, "position_ids": True, "doc_ids": True, "cu_seqlens": True,
    }  # fmt: skip
    for form in ("pairs", "labels", "groups"):
        yield form, preferences(path / form, form), {"seq_len": 16}
    vectors = {"embedding": draw.standard_normal((30, 5)).astype("f4"), "label": np.arange(30)}
    yield "embeddings", make_embeddings(path / "vectors", vectors), {}
    yield "pairs of vectors", make_pairs(path / "steered", 60), {}


def test_batches_of_built_datasets_are_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item 132: windows, packed rows, documents, preferences, embeddings and pairs."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    for name, path, options in own(tmp_path):
        for ranks in ({}, {"drop_last": False}, {"drop_last": False, "dp_rank": 1, "dp_size": 2}):
            loader = make_loader(path, "train", 3, **(options | ranks))
            shown = validate_first_batch(loader)
            again = next(iter(loader))
            assert all(torch.equal(shown[field], again[field]) for field in again), name


def moved(batch: Any, by: int) -> None:
    batch["labels"] = batch["input_ids"].roll(-by, 1)


def moved_by_two(batch: Any) -> None:
    moved(batch, 2)


def ignored(batch: Any) -> None:
    batch["labels"] = torch.full_like(batch["labels"], -100)


def no_class(batch: Any) -> None:
    batch["labels"][1] = -1


def not_finite(batch: Any) -> None:
    batch["pixel_values"][2, 0, 1, 1] = float("nan")


def row_missing(batch: Any) -> None:
    batch["labels"] = batch["labels"][1:].clone()


def shared(batch: Any) -> None:
    batch["labels"] = batch["input_ids"]


def too_large(batch: Any) -> None:
    batch["input_ids"][1, 1] = 100


def negative(batch: Any) -> None:
    batch["input_ids"][1, 1] = -5


def mask_narrow(batch: Any) -> None:
    batch["attention_mask"] = batch["attention_mask"][:, 1:].clone()


def as_list(batch: Any) -> None:
    batch["input_ids"] = batch["input_ids"].tolist()


def as_floats(batch: Any) -> None:
    batch["input_ids"] = batch["input_ids"].float()


def decoder_unmoved(batch: Any) -> None:
    batch["decoder_input_ids"] = batch["labels"].clamp(0)


def emptied(batch: Any) -> None:
    batch.clear()


def my_own(samples: list[Any]) -> dict[str, torch.Tensor]:
    return dict(CausalLM()(samples))


@pytest.mark.parametrize(
    ("kind", "damage", "where"),
    [
        ("causal", moved_by_two, "labels"), ("causal", ignored, "labels"),
        ("causal", shared, "labels"), ("causal", too_large, "input_ids"),
        ("causal", negative, "input_ids"), ("causal", mask_narrow, "attention_mask"),
        ("causal", as_list, "input_ids"), ("causal", as_floats, "input_ids"),
        ("causal", row_missing, "labels"), ("causal", emptied, "batch"),
        ("classes", ignored, "labels"), ("classes", no_class, "labels"),
        ("classes", row_missing, "labels"), ("classes", too_large, "input_ids"),
        ("classes of tokens", ignored, "labels"), ("masked", too_large, "input_ids"),
        ("images", no_class, "labels"), ("images", not_finite, "pixel_values"),
        ("images", row_missing, "labels"), ("seq2seq of equal widths", decoder_unmoved, "labels"),
        ("seq2seq", ignored, "labels"), ("padded", as_list, "input_ids"),
    ],
)  # fmt: skip
def test_mistakes_are_named(kind: str, damage: Callable[[Any], None], where: str) -> None:
    """Item 132: each in a batch that was good."""
    data, collate = COLLATED[kind]
    loader = DataLoaderBuilder().with_dataset(data).with_batch_size(ROWS).with_seed(2)
    made = loader.with_collate_fn(collate).build()
    batch, collate = next(iter(made)), made.dataset_obj.collate
    check_collated(batch, collate, rows=ROWS, vocab_size=100)
    damage(batch)
    with pytest.raises(IncompatibleError) as told:
        check_collated(batch, collate, rows=ROWS, vocab_size=100)
    assert (told.value.where, told.value.code) == (where, "E_BATCH")


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
def test_inputs_that_are_changed_afterwards_are_good(tmp_path: Path, labels: str) -> None:
    """Item 132: where tokens are hidden or drawn anew; labels moved too far are found there too."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[300]], seed=1)})
    loader = make_loader(path, "train", 4, seq_len=16, labels=labels)
    batch = next(iter(loader))
    ids = batch["input_ids"].clone()
    batch["input_ids"][:, ::5] = 3
    check_batch(batch, changed=True)
    batch["labels"] = torch.where(batch["input_ids"] == 3, ids, -100)  # hidden tokens alone
    check_batch(batch, changed=True)
    batch["labels"] = ids.roll(-2, 1)
    with pytest.raises(IncompatibleError, match="moved by 2"):
        check_batch(batch, changed=True)


def test_labels_of_a_function_of_one_s_own_are_looked_at() -> None:
    """Item 132: where they are tokens, they are the inputs, or moved by one."""
    batch = my_own(TEXTS[:ROWS])
    check_collated(batch, my_own, rows=ROWS)
    moved_by_two(batch)
    with pytest.raises(IncompatibleError, match="are the inputs moved by 2, and not by 0 or 1"):
        check_collated(batch, my_own, rows=ROWS)
    with pytest.raises(IncompatibleError, match=r"place 1: .* the batch has 4 rows"):
        check_collated((torch.zeros(4), torch.zeros(3)), my_own, rows=4)
    with pytest.raises(IncompatibleError, match="without a tensor"):
        check_collated(("a", "b"), my_own)
