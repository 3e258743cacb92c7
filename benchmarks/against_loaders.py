"""Configurations of `create_loader` and `stream_loader`, for benchmarks/against.py.

    python against_loaders.py DATASETS [WORDS [--states FILE]]

DATASETS is where the steps of against_builds.py built theirs. Prints one line of JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from against_serving import Case, create, each, main, name
from torch.utils.data import DataLoader

import dataprep

Rows = Mapping[str, Any]
FIELDS = ("position_ids", "doc_ids", "cu_seqlens")
LABELS = ("shifted", "unshifted", None)
OLDER = {"algorithm": "pack", "padding_side": "padding", "multiple": "pad_to_multiple"}
"""Arguments of datasets, and their names in an older checkout."""


def case(title: str, *words: Any, **options: Any) -> Case:
    """One loader."""
    return Case(title, partial(create, *words, **options))


def ranks(title: str, *words: Any, sizes: tuple[int, ...] = (2, 3, 4), **options: Any
          ) -> Iterator[Case]:  # fmt: skip
    """Make the loaders of the first and last rank, of every size, both ways to end an epoch."""
    for size in sizes:
        for rank in {0, size - 1}:
            for drop in (True, False):
                yield case(f"{title} rank {rank}/{size} drop={drop}", *words, dp_rank=rank,
                           dp_size=size, drop_last=drop, **options)  # fmt: skip


def hide() -> Any:
    """Return a transform that hides tokens."""
    return name("MaskedLM")(mask_id=4, vocab_size=32_768, special_ids=(0, 1, 2)).hide


def noise(batch: Any, seeds: Any) -> Any:
    """Draw from the seeds of the rows."""
    for ids, seed in zip(batch["input_ids"], seeds.tolist(), strict=True):
        ids[torch.from_numpy(np.random.default_rng(seed).random(len(ids)) < 0.1)] = 0
    return batch


def windows(at: Path) -> Iterator[Case]:
    """Rows of the stream of tokens."""
    docs, size = str(at / "docs_2"), 8
    base: Rows = {"of": "windows", "seq_len": 128}
    for labels in LABELS:
        for stride in (None, 32, 1):
            rows = {**base, "labels": labels, "stride": stride}
            yield case(f"windows labels={labels} stride={stride}", docs, "train", size, rows)
    for shuffle in (True, "blocks", False):
        for fields in (FIELDS[:1], FIELDS[1:2], FIELDS[2:], FIELDS):
            rows = {**base, **dict.fromkeys(fields, True)}
            yield case(f"windows {'+'.join(fields)} shuffle={shuffle}", docs, "train", size, rows,
                       shuffle=shuffle)  # fmt: skip
    yield case("windows cu=40", docs, "train", size, {**base, "cu_seqlens": 40})
    for split in ("train", "val", "test"):
        for drop in (None, True, False):
            yield case(f"windows {split} drop={drop}", docs, split, 7, base, drop_last=drop)
    yield from ranks("windows", docs, "val", 4, base, shuffle=True)
    yield from ranks("windows fields", docs, "val", 4, {**base, **dict.fromkeys(FIELDS, True)})
    for workers in (1, 2):
        yield case(f"windows workers={workers}", docs, "train", size, base, num_workers=workers)
    yield from ranks("windows workers", docs, "val", 4, base, sizes=(2,), num_workers=2)
    for title, options in each({
        "epoch": {"epoch": 5}, "seed 1": {"seed": 1}, "seed big": {"seed": 2**63 - 1},
        "mmap": {"io": "mmap"}, "pread": {"io": "pread"}, "mock": {"mock": True},
        "prefetch 0": {"prefetch": 0}, "prefetch 7": {"prefetch": 7},
        "pin": {"pin_memory": False}, "skip": {"skip": [5, 17, 18, 19, 400]},
        "skip blocks": {"skip": range(0, 900, 3), "shuffle": "blocks"},
        "skip off": {"skip": [0, 1, 2], "shuffle": False},
        "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    }):  # fmt: skip
        yield case(f"windows {title}", docs, "train", size, base, **options)
    yield from ranks("windows skip", docs, "val", 4, base, sizes=(3,), skip=[2, 3, 30])
    for other in ("corpora_1", "t_cl100k_base", "t_bert_base_uncased", "c_qwen_1", "b_skip_1"):
        yield case(f"windows {other}", str(at / other), "train", size, {**base, "seq_len": 512})
        yield case(f"windows {other} blocks", str(at / other), "train", 4, base, shuffle="blocks")
    for title, options in each({"plain": {}, "workers": {"num_workers": 2}, "blocks": {
        "shuffle": "blocks"}, "seed": {"seed": 9}, "rank": {"dp_rank": 1, "dp_size": 2},
    }):  # fmt: skip
        unshifted = {**base, "labels": "unshifted"}
        yield case(f"hide {title}", docs, "train", size, unshifted, transform=hide(), **options)
        yield case(f"noise {title}", docs, "train", size, {**base, "stride": 16}, transform=noise,
                   **options)  # fmt: skip
    yield case("defaults", docs, "train", None)
    yield case("defaults val", docs, "val", None, seq_len=64)
    for text in ("windows", "packed", "documents"):
        yield case(f"text {text}", docs, "train", 4, text, seq_len=200)


def packed(at: Path) -> Iterator[Case]:
    """Rows of whole documents side by side."""
    docs = str(at / "docs_2")
    base: Rows = {"of": "packed", "seq_len": 256}
    for algorithm in ("first-fit", "best-fit", None):
        for overlong in ("split", "truncate", "drop", None):
            rows = {**base, "algorithm": algorithm, "overlong": overlong}
            yield case(f"packed {algorithm} {overlong}", docs, "train", 4, rows)
    yield case("packed error", docs, "train", 4, {**base, "overlong": "error"})
    for labels in LABELS:
        rows = {**base, **dict.fromkeys(FIELDS, True), "labels": labels, "algorithm": "best-fit"}
        for shuffle in (True, "blocks", False):
            yield case(f"packed fields {labels} {shuffle}", docs, "train", 4, rows, shuffle=shuffle)
    yield from ranks("packed", docs, "val", 2, {**base, **dict.fromkeys(FIELDS, True)})
    yield case("packed workers", docs, "train", 4, base, num_workers=2)
    yield case("packed skip", docs, "train", 4, base, skip=[1, 2, 3])
    yield case("packed cu=200", docs, "train", 4, {**base, "cu_seqlens": 200})
    for chat in ("c_qwen_1", "c_l_split", "c_on_last", "c_count"):
        for more in ({"seq_len": 4096, "cu_seqlens": True, "position_ids": True},
                     {"seq_len": 512, "overlong": "truncate"}):  # fmt: skip
            rows = {**base, **more}
            yield case(f"packed {chat} {rows['seq_len']}", str(at / chat), "train", 4, rows)
        yield case(f"defaults {chat}", str(at / chat), "train", 4)
        yield case(f"hide {chat}", str(at / chat), "train", 4, transform=noise, seq_len=4096)


def documents(at: Path) -> Iterator[Case]:
    """One document a row."""
    docs, chat = str(at / "docs_2"), str(at / "c_qwen_1")
    for overlong in ("truncate", "truncate-left", "error", None):
        for labels in LABELS:
            rows = {"of": "documents", "seq_len": 200, "overlong": overlong, "labels": labels}
            yield case(f"documents {overlong} {labels}", docs, "train", 4, rows)
    long: Rows = {"of": "documents", "seq_len": 4096, "position_ids": True}
    for shuffle in (True, "blocks", False):
        yield case(f"documents {shuffle}", docs, "val", 4, long, shuffle=shuffle)
        yield case(f"documents chat {shuffle}", chat, "train", 4, long, shuffle=shuffle)
    yield from ranks("documents", docs, "val", 4, long)
    yield from ranks("documents chat", chat, "val", 4, long, sizes=(3,))
    yield case("documents workers", docs, "train", 4, long, num_workers=2, skip=[4, 5])


def preferences(at: Path) -> Iterator[Case]:
    """Pairs, labels, groups."""
    for form in ("pairs", "labels", "groups"):
        place = str(at / f"c_{form}")
        rows: Rows = {"of": "preferences", "seq_len": 8192, "form": form}
        for labels in LABELS:
            yield case(f"{form} {labels}", place, "train", 4, {**rows, "labels": labels})
        yield case(f"{form} built limit", str(at / f"c_{form}_q"), "train", 4)
        left = {**rows, "seq_len": 4000, "overlong": "truncate-left"}
        yield case(f"{form} left", place, "train", 4, left)
        yield case(f"{form} error", place, "train", 4, {**rows, "seq_len": 20})
        yield case(f"{form} blocks", place, "train", 4, rows, shuffle="blocks")
        yield case(f"{form} off", place, "val", 4, rows, skip=[1])
        yield case(f"{form} workers", place, "train", 4, rows, num_workers=2)
        yield case(f"{form} text", place, "train", 4, form, seq_len=8192)
        yield from ranks(form, place, "val", 4, rows, sizes=(2, 3))
    yield case("pairs as groups", str(at / "c_pairs"), "train", 4, "groups", seq_len=8192)


def arrays(at: Path) -> Iterator[Case]:
    """Embeddings, and pairs of them."""
    for data in ("v_npy", "v_int8", "v_bfloat16", "v_float16", "v_parquet", "v_jsonl", "v_npz"):
        yield case(f"embeddings {data}", str(at / data), "train", 16)
    npy, table, int8 = (str(at / f"v_{data}") for data in ("npy", "parquet", "int8"))
    kind: Rows = {"of": "embeddings"}
    for title, rows in each({
        "one": {"fields": ["embedding"]}, "two": {"fields": ["year", "embedding"]},
        "half": {"dtype": torch.float16}, "double": {"dtype": torch.float64},
    }):  # fmt: skip
        yield case(f"embeddings {title}", table, "train", 16, {**kind, **rows})
    yield case("embeddings raw", int8, "train", 16, {**kind, "raw": True})
    yield case("embeddings int8 half", int8, "train", 16, {**kind, "dtype": torch.bfloat16})
    for title, options in each({
        "blocks": {"shuffle": "blocks"}, "off": {"shuffle": False}, "workers": {"num_workers": 2},
        "skip": {"skip": [1, 2, 3]}, "seed": {"seed": 3}, "pread": {"io": "pread"},
        "mock": {"mock": True}, "epoch": {"epoch": 2},
    }):  # fmt: skip
        yield case(f"embeddings {title}", npy, "train", 16, **options)
    yield from ranks("embeddings", npy, "val", 16, kind)
    of: Rows = {"of": "pairs"}
    for data in ("p_topic_1", "p_words", "p_plain", "api_pairs", "api_split_pairs"):
        yield case(f"vectors {data}", str(at / data), "train", 8)
        yield case(f"vectors {data} val", str(at / data), "val", 8)
    topic = str(at / "p_topic_1")
    for title, rows in each({
        "clusters": {"clusters": [0, 2]}, "all": {"curriculum": "all"},
        "train": {"curriculum": "train"}, "preload": {"preload": True},
        "device": {"device": "cpu"}, "mapped": {"preload": False, "clusters": [1]},
    }):  # fmt: skip
        yield case(f"vectors {title}", topic, "train", 8, {**of, **rows})
        yield case(f"vectors {title} val", topic, "val", 8, {**of, **rows}, seed=4)
    for title, options in each({
        "workers": {"num_workers": 2}, "blocks": {"shuffle": "blocks"}, "seed": {"seed": 11},
        "skip": {"skip": [0, 9]}, "off": {"shuffle": False}, "epoch": {"epoch": 40},
    }):  # fmt: skip
        yield case(f"vectors {title}", topic, "train", 8, **options)
    yield from ranks("vectors", topic, "val", 4, of, sizes=(2, 3))


def mixtures(at: Path) -> Iterator[Case]:
    """Several datasets."""
    docs, one, keyed = (str(at / part) for part in ("docs_2", "o_one", "o_keyed"))
    chat, last = str(at / "c_chatml"), str(at / "c_on_last")
    rows: Rows = {"of": "windows", "seq_len": 128}
    two = {docs: 3, one: 1}
    for title, weights, more in (
        ("3:1", two, None), ("0.7:0.3", {docs: 0.7, one: 0.3}, None),
        ("three", {docs: 0.5, one: 0.3, keyed: 0.2}, {"source_ids": True}),
        ("tokens", two, {"by": "tokens"}), ("sources", two, {"source_ids": True}),
        ("odd", {docs: 1 / 3, one: 0.1234567}, None), ("one", {docs: 1}, None),
    ):  # fmt: skip
        yield case(f"mixture {title}", weights, "train", 8, rows, more)
    kinds: dict[str, Rows] = {
        "packed": {"of": "packed", "seq_len": 256, "algorithm": "best-fit", "cu_seqlens": True},
        "documents": {"of": "documents", "seq_len": 300},
        "fields": {**rows, **dict.fromkeys(FIELDS, True)},
    }
    for title, kind in kinds.items():
        for by in ("samples", "tokens"):
            yield case(f"mixture {title} {by}", two, "train", 8, kind,
                       {"by": by, "source_ids": True})  # fmt: skip
    yield case("mixture chats", {chat: 2, last: 1}, "train", 4, None, {"source_ids": True},
               seq_len=4096)  # fmt: skip
    yield case("mixture of kinds", {docs: 2, chat: 1}, "train", 4,
               {**kinds["packed"], "overlong": "split"},
               {"mixed_tokenizers": True})  # fmt: skip
    yield case("mixture refused", {docs: 2, str(at / "t_gpt2"): 1}, "train", 4, rows)
    yield case("mixture tokenizers", {docs: 2, str(at / "t_gpt2"): 1}, "train", 4, rows,
               {"mixed_tokenizers": True})  # fmt: skip
    for title, options in each({
        "blocks": {"shuffle": "blocks"}, "off": {"shuffle": False}, "workers": {"num_workers": 2},
        "skip": {"skip": {docs: [5, 17], one: [3]}}, "seed": {"seed": 5}, "epoch": {"epoch": 1},
        "noise": {"transform": noise}, "val": {"drop_last": False},
    }):  # fmt: skip
        yield case(f"mixture {title}", two, "train", 8, rows, **options)
    counts = str(at / "o_counts")
    yield from ranks("mixture", {docs: 3, counts: 2}, "val", 4, rows, {"source_ids": True})
    changed = {"weights_changed": True}
    for title, weights in each({"1:2": {docs: 1, one: 2}, "added": {docs: 1, one: 1, keyed: 1},
                           "left": {docs: 1}}):  # fmt: skip
        for shuffle in (True, "blocks"):
            if shuffle == "blocks" and title != "1:2":
                continue
            first = partial(create, two, "train", 8, rows, shuffle=shuffle)
            then = partial(create, weights, "train", 8, rows, changed, shuffle=shuffle)
            yield Case(f"changed {title} {shuffle}", first, then)
    yield Case("other ranks", partial(create, two, "train", 8, rows),
               partial(create, two, "train", 2, rows, dp_rank=1, dp_size=4))  # fmt: skip
    yield Case("other size", partial(create, docs, "train", 8, rows),
               partial(create, docs, "train", 3, rows, num_workers=2, dp_rank=0, dp_size=2,
                       skip=[900, 901]))  # fmt: skip


def streams(at: Path) -> Iterator[Case]:
    """Samples read by blocks."""

    def stream(data: str, split: str, size: int, workers: int = 0, **options: Any) -> Any:
        rows = dataprep.open_dataset(str(at / data)).split(split)
        end = options.get("end", "drop")
        made = dataprep.WindowDataset(rows, seq_len=64, sample_mask=end == "pad")
        return dataprep.stream_loader(
            name("StreamDataset")(made, batch_size=size, **options), num_workers=workers
        )

    for shuffle in ("blocks", "buffer", None):
        for title, options in each({
            "": {}, "seed": {"seed": 7}, "small": {"block": 8, "window": 4},
            "rank": {"dp_rank": 1, "dp_size": 2}, "pad": {"end": "pad", "dp_rank": 2, "dp_size": 3},
            "partial": {"end": "partial"}, "infinite": {"infinite": True}, "epoch": {"epoch": 4},
        }):  # fmt: skip
            if shuffle != "blocks" and "window" in options:
                options = {"block": 8, **({"buffer": 64} if shuffle else {})}  # noqa: PLW2901
            make = partial(stream, "docs_2", "train", 8, shuffle=shuffle, **options)
            yield Case(f"stream {shuffle} {title}", make)
    for workers in (1, 2):
        yield Case(f"stream workers {workers}", partial(stream, "docs_2", "train", 8, workers))
        yield Case(f"stream workers {workers} pad",
                   partial(stream, "docs_2", "val", 4, workers, end="pad"))  # fmt: skip
    yield Case("stream corpora", partial(stream, "corpora_1", "train", 32, block=64, window=16))


def stocks(at: Path) -> Iterator[Case]:
    """Every dataset class in a DataLoader of torch's, and what else loaders and datasets do."""

    def stock(kind: str, data: str, workers: int = 0, **options: Any) -> Any:
        arrays = kind in ("EmbeddingDataset", "PairDataset")
        opened = (dataprep.open_arrays if arrays else dataprep.open_dataset)(str(at / data))
        known = inspect.signature(name(kind)).parameters
        for now, before in OLDER.items():
            if now in options and now not in known:
                options[before] = options.pop(now)
        rows = name(kind)(opened.split("train"), **options)
        if kind == "WindowDataset" and workers:
            rows = name("TransformedDataset")(rows, noise, seed=3)
        draws = torch.Generator().manual_seed(0)
        return DataLoader(rows, 4, shuffle=True, num_workers=workers, generator=draws)

    for title, words, options in (
        ("windows", ("WindowDataset", "docs_2"), {"seq_len": 64, "cu_seqlens": True}),
        ("transformed", ("WindowDataset", "docs_2", 2), {"seq_len": 64}),
        ("packed", ("PackedDataset", "docs_2"), {"seq_len": 128, "algorithm": "best-fit"}),
        ("documents", ("DocumentDataset", "c_qwen_1"), {"position_ids": True}),
        ("documents left", ("DocumentDataset", "docs_2"), {
            "max_length": 90, "truncate": "left", "padding_side": "left", "multiple": 16}),
        ("pairs", ("PreferenceDataset", "c_pairs"), {"equal_widths": True}),
        ("groups", ("PreferenceDataset", "c_groups"), {"multiple": 8}),
        ("embeddings", ("EmbeddingDataset", "v_int8"), {}),
        ("vectors", ("PairDataset", "p_topic_1"), {"seed": 3}),
    ):  # fmt: skip
        yield Case(f"stock {title}", partial(stock, *words, **options))

    def larger() -> Any:
        loader = create(str(at / "docs_2"), "train", 4, seq_len=128, seed=3)
        next(iter(loader))
        return loader.with_batch_size(6)

    def steered() -> Any:
        loader = create(str(at / "p_topic_1"), "train", 8)
        loader.dataset_obj.force_steering("centroid")
        return loader

    def several() -> Any:
        split = dataprep.open_dataset(str(at / "docs_2")).split("train")
        rows = name("DocumentDataset")(split, max_length=50)
        return DataLoader(name("MixtureDataset")({"a": rows, "b": rows}, source_ids=True), 8)

    yield Case("with_batch_size", larger)
    yield Case("force_steering", steered)
    yield Case("stock mixture", several)


def cases(at: Path) -> Iterator[Case]:
    """Every configuration."""
    for part in (windows, packed, documents, preferences, arrays, mixtures, streams, stocks):
        yield from part(at)


if __name__ == "__main__":
    main(cases)
