"""Configurations of data from elsewhere and of collators, for benchmarks/against.py.

    python against_foreign.py DATASETS [WORDS [--states FILE]]

Lists, torch datasets, Hugging Face datasets and streams behind `DataLoaderBuilder`,
`UniversalDataModule` and `create_preprocessed_dataset`; text files; collators of every kind. Prints
one line of JSON.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from against_serving import Case, each, flat, main, name
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import dataprep

ROWS: list[dict[str, Any]] = [
    {"input_ids": list(range(n % 50 + 2)), "label": n % 2} for n in range(400)
]
TENSORS = [torch.full((3,), float(n)) for n in range(50)]
TEXTS = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(100)]


class Bytes:
    """A tokenizer whose ids are bytes."""

    def encode(self, text: str) -> dict[str, Any]:
        """Return the ids of `text`."""
        return {"input_ids": list(text.encode())}


class Drawing:
    """A dataset whose samples are drawn anew each time."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, number: int) -> dict[str, Any]:
        draws = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return {"n": number, "draws": torch.tensor(draws)}


def lines() -> Iterator[Any]:
    """Return rows of a stream."""
    return ({"n": n, "input_ids": list(range(n % 9 + 1))} for n in range(203))


def longer(example: Any) -> Any:
    """Change an example."""
    return {**example, "input_ids": [*example["input_ids"], 7]}


def unlucky(example: Any) -> Any:
    """Fail on some examples."""
    if example["n"] % 29 == 13:
        raise ValueError("unlucky")
    return longer(example)


def drawn(example: Any) -> Any:
    """Draw from a generator."""
    return {**example, "x": torch.rand(2)}


@cache
def hub() -> Any:
    """Return a Hugging Face dataset."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "text": f"row {n}"} for n, row in enumerate(ROWS[:200])])


def built(data: Any, **options: Any) -> Any:
    """Make a loader by `DataLoaderBuilder`: an option is a call."""
    builder = name("DataLoaderBuilder")().with_dataset(data() if callable(data) else data)
    for option, value in options.items():
        call = getattr(builder, f"with_{option}")
        builder = call(**value) if isinstance(value, dict) else call(value)
    return builder.build()


def builders() -> Iterator[Case]:
    """Make loaders call by call."""
    size: Any = {"batch_size": 16}
    tensors = TensorDataset(torch.stack(TENSORS), torch.arange(50))
    for title, data, options in (
        ("rows", ROWS, {}), ("seed", ROWS, {"seed": 7}), ("off", ROWS, {"shuffle": False}),
        ("drop", ROWS, {"drop_last": True}), ("workers", ROWS, {"workers": 2}),
        ("padding", ROWS, {"padding": {"padding_side": "left", "max_length": 64, "pad_id": 9}}),
        ("multiple", ROWS, {"padding": {"multiple": 8}}), ("tensors", TENSORS, {}),
        ("tuples", tensors, {}), ("numbers", list(range(64)), {}), ("hub", hub, {}),
        ("buckets", ROWS, {"buckets": {"lengths": [len(r["input_ids"]) for r in ROWS]}}),
        ("budget", ROWS, {"buckets": {"lengths": [len(r["input_ids"]) for r in ROWS],
                                      "max_tokens": 512}}),
        ("drawing", Drawing(), {}), ("drawing workers", Drawing(), {"workers": 2}),
        ("schema", ROWS, {"output_schema": {"schema": {"label": {"dtype": "float32"}}}}),
        ("purpose", ROWS, {"purpose": "val"}),
        ("sampler", ROWS, {"sampler": [5, 3, 1, 2] * 20}),
    ):  # fmt: skip
        yield Case(f"builder {title}", partial(built, data, **size, **options))
        for rank in (0, 2):
            world = {"distributed": {"rank": rank, "world_size": 3}}
            if title in ("rows", "tuples", "numbers", "buckets", "budget", "drop", "drawing"):
                yield Case(f"builder {title} rank {rank}",
                           partial(built, data, **size, **options, **world))  # fmt: skip
    yield Case("builder weighted", weighted)


def weighted() -> Any:
    """Make a loader with a sampler of torch's."""
    sampler = WeightedRandomSampler([1.0 + n % 2 for n in range(400)], num_samples=48)
    return built(ROWS, batch_size=8, sampler=sampler)


class Both:
    """The loaders of a data module in turn, with the state of the module."""

    def __init__(self, **options: Any) -> None:
        self.module = name("UniversalDataModule")(**options)
        self.train = self.module.train_dataloader()

    def __iter__(self) -> Iterator[Any]:
        yield from self.train

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on."""
        self.module.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Return the state of the module."""
        return self.module.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load it."""
        self.module.load_state_dict(state)
        self.train = self.module.train_dataloader()


def validation(**options: Any) -> Any:
    """Make the other loader of a module."""
    return name("UniversalDataModule")(**options).val_dataloader()


def module(title: str, **options: Any) -> Iterator[Case]:
    """Make both loaders of a data module."""
    yield Case(f"module {title}", partial(Both, **options))
    yield Case(f"module {title} val", partial(validation, **options))


def modules(at: Path) -> Iterator[Case]:
    """Make data modules over everything."""
    task = name("TaskSpec")
    pad: Any = {"collator_options": {"pad_id": 0}, "batch_size": 16}
    yield from module("class", train_data=ROWS, task_spec=task.cls_tiny(), **pad)
    yield from module("lm", train_data=ROWS, task_spec=task.lm_tiny(), seed=9, **pad)
    for rank in (0, 1):
        yield from module(f"rank {rank}", train_data=ROWS, task_spec=task.lm_tiny(), **pad,
                          dp_rank=rank, dp_size=2)  # fmt: skip
    yield from module("hub", train_data=hub(), task_spec=task.cls_tiny(), **pad)
    yield from module("workers", train_data=ROWS, task_spec=task.cls_tiny(), num_workers=2, **pad)
    yield Case("module lines", partial(Both, train_data=lines, batch_size=16))
    yield from module("drawing", train_data=Drawing(), batch_size=8, val_split=0.3)
    masked = task(name="fill", task_type="masked_lm")
    hide = {"mask_id": 4, "vocab_size": 32_768}
    for title, data, spec, options, rows in (
        ("masked", "docs_2", masked, hide, {"of": "windows", "seq_len": 64}),
        ("tokens", "docs_2", task.lm_tiny(), {}, {"of": "packed", "seq_len": 256}),
        ("plain", "docs_2", None, {}, {"of": "windows", "seq_len": 64, "labels": "shifted"}),
        ("chat", "c_chatml", task.lm_tiny(), {}, {"of": "packed", "seq_len": 4096}),
        ("dpo", "c_pairs", task(name="dpo", task_type="preference"), {},
         {"of": "preferences", "seq_len": 8192}),
        ("vectors", "v_npy", None, {}, None),
    ):  # fmt: skip
        given = rows and flat(rows)  # a dict leaves the labels to the task
        yield from module(title, train_data=str(at / data), task_spec=spec, rows=given,
                          collator_options=options or None, batch_size=4)  # fmt: skip


def wrapped(source: Any, size: int = 10, loader: dict[str, Any] | None = None, **options: Any
            ) -> Any:  # fmt: skip
    """Make a loader of a preprocessed dataset."""
    data = name("create_preprocessed_dataset")(source, **options)
    return Both(train_data=data, batch_size=size, **(loader or {}))


def preprocessed() -> Iterator[Case]:
    """Make what others' data becomes after preprocessing."""
    engine = name("TokenizeEngine")
    yield Case("wrapped texts", partial(
        wrapped, TEXTS, prompt_engine=engine(tokenizer=Bytes(), max_length=64, keep=("answer",)),
        column_mapping={"question": "text"},
    ))  # fmt: skip
    yield Case("wrapped rows", partial(wrapped, ROWS, transform=longer))
    yield Case("wrapped draws", partial(wrapped, ROWS, transform=drawn, draws=True))
    for title, options in each(
        {
            "lines": {},
            "small": {"buffer_size": 50},
            "none": {"buffer_size": 0},
            "skips": {"transform": unlucky, "skip_errors": True},
            "draws": {"transform": drawn, "draws": True},
        }
    ):
        yield Case(f"stream {title}", partial(wrapped, lines, **options))
        yield Case(f"stream {title} seed", partial(wrapped, lines, loader={"seed": 3}, **options))
        for rank in (0, 1):
            ranks = {"dp_rank": rank, "dp_size": 2}
            yield Case(
                f"stream {title} rank {rank}", partial(wrapped, lines, loader=ranks, **options)
            )
        yield Case(f"stream {title} workers",
                   partial(wrapped, lines, loader={"num_workers": 2}, **options))  # fmt: skip


def texts(at: Path) -> Iterator[Case]:
    """Make windows of text files."""
    folder = at.parent / "inputs"

    def both(which: int, tokenizer: Any, **options: Any) -> Any:
        made = dataprep.create_dataloaders(
            str(folder / "docs.jsonl"), str(folder / "small.jsonl"), tokenizer, 8, 64, **options
        )
        return made[which]

    for which in (0, 1):
        for title, tokenizer, options in (
            ("own", None, {}), ("bytes", Bytes(), {"seed": 4}), ("stride", None, {"stride": 16}),
            ("apart", None, {"cross_documents": False}), ("labels", None, {"labels": None}),
            ("rank", None, {"dp_rank": 1, "dp_size": 2, "drop_last": False}),
            ("workers", None, {"num_workers": 2}),
        ):  # fmt: skip
            yield Case(f"texts {title} {which}", partial(both, which, tokenizer, **options))
    for cross in (True, False):
        yield Case(f"text windows {cross}", partial(stock, folder, cross))


def stock(folder: Path, cross: bool) -> Any:
    """Make torch's own loader over windows of a text file."""
    windows = dataprep.text_windows(str(folder / "small.jsonl"), Bytes(), 96, cross_documents=cross)
    return DataLoader(windows, batch_size=4)


def samples(count: int = 24) -> list[dict[str, Any]]:
    """Return rows of every kind of field that collators know."""
    draw = np.random.default_rng(0)
    found = []
    for n in range(count):
        size, answer = int(draw.integers(1, 40)), int(draw.integers(1, 9))
        ids = draw.integers(5, 900, size)
        form = (ids, torch.from_numpy(ids), ids.tolist())[n // 8 % 3]
        found.append({"input_ids": form, "labels": draw.integers(5, 900, answer).tolist(),
                      "n": n})  # fmt: skip
    return found


def preference_samples(kind: str) -> list[dict[str, Any]]:
    """Return records of preferences as lists."""
    draw = np.random.default_rng(1)

    def ids(high: int = 12) -> list[int]:
        found: list[int] = draw.integers(5, 900, draw.integers(1, high)).tolist()
        return found

    if kind == "pairs":
        return [{"chosen_input_ids": ids(), "rejected_input_ids": ids()} for _ in range(24)]
    if kind == "labels":
        return [{"input_ids": ids(), "tag": bool(n % 2)} for n in range(24)]
    return [{"input_ids": ids(), "responses": [ids() for _ in range(n % 3 + 1)],
             "scores": [float(n)] * (n % 3 + 1)} for n in range(24)]  # fmt: skip


class Batches:
    """What a collator makes of samples, eight at a time."""

    def __init__(self, collate: Any, rows: list[Any]) -> None:
        self.collate, self.rows = collate, rows

    def __iter__(self) -> Iterator[Any]:
        return (self.collate(self.rows[at : at + 8]) for at in range(0, len(self.rows), 8))


def collators() -> Iterator[Case]:
    """Make every collator, with its options."""
    draw = np.random.default_rng(2)
    ids = [{"input_ids": row["input_ids"], "n": row["n"]} for row in samples()]
    single = [{**row, "label": n % 3} for n, row in enumerate(ids)]
    images = [{"pixel_values": draw.integers(0, 256, (3, 16, 16), np.uint8), "label": n % 4}
              for n in range(16)]  # fmt: skip
    sounds = [{"waveform": draw.random(n * 7 % 50 + 1).astype(np.float32), "label": n}
              for n in range(16)]  # fmt: skip
    both = [{**image, **{"input_ids": [1, 2, n + 1]}} for n, image in enumerate(images)]
    wide: list[dict[str, Any]] = [
        {}, {"padding_side": "left"}, {"max_length": 20}, {"multiple": 16}, {"pad_id": 3},
        {"max_length": 32, "pad_to": "max_length", "truncate": "left"}, {"tensors": False},
    ]  # fmt: skip
    hide: dict[str, Any] = {"mask_id": 4, "vocab_size": 1000, "special_ids": (0, 1)}
    makers: list[tuple[str, dict[str, Any], list[Any]]] = [
        *(("CausalLM", options, ids) for options in (*wide, {"shift": True})),
        *(("Classification", options, single) for options in wide[:4]),
        *(("Seq2Seq", {**options, "decoder_start_id": 2}, samples()) for options in (
            *wide[:4], {"max_target_length": 4}, {"target_side": "left"})),
        *(("MaskedLM", {**hide, **options}, ids) for options in (
            *wide[:3], {"probability": 0.5}, {"seed": 5, "epoch": 2}, {"random_share": 0.2})),
        *(("Preference", options, preference_samples("pairs")) for options in (
            *wide[:4], {"equal_widths": True})),
        *(("KTO", options, preference_samples("labels")) for options in wide[:4]),
        *(("GRPO", options, preference_samples("groups")) for options in wide[:4]),
        *(("Vision", options, images) for options in (
            {}, {"normalize": None}, {"normalize": "cifar10"}, {"scale": 0.5})),
        *(("Audio", options, sounds) for options in (
            {}, {"padding_side": "left"}, {"multiple": 8}, {"max_length": 20})),
        ("VisionText", {}, both),
    ]  # fmt: skip
    for number, (kind, options, rows) in enumerate(makers):
        yield Case(f"collate {kind} {number}", partial(collated, kind, options, rows))
    for kind, start in (("create_collate_fn", {}), ("create_causal_lm_collate", {"shift": True}),
                        ("create_seq2seq_collate", {"decoder_start_token_id": 2})):  # fmt: skip
        rows = samples() if "seq2seq" in kind else ids
        for options in ({}, {"pad_token_id": 5, "max_length": 30}, {"padding_side": "left"}):
            yield Case(
                f"collate {kind} {options}", partial(collated, kind, {**start, **options}, rows)
            )


def collated(kind: str, options: dict[str, Any], rows: list[Any]) -> Batches:
    """Make one collator."""
    return Batches(name(kind)(**options), rows)


def cases(at: Path) -> Iterator[Case]:
    """Every configuration."""
    yield from builders()
    yield from modules(at)
    yield from preprocessed()
    yield from texts(at)
    yield from collators()


if __name__ == "__main__":
    main(cases)
