"""Writer of the test vectors: `python data_fixtures/make_vectors.py --write`.

`vectors.json` has one vector for each line, in sections; docs/order.md describes the sections. A
program in another language that reproduces these results serves the same samples. Integers of
2**53 and more are decimal strings. Existing vectors may not change within format version 1: a
change means that the served samples have changed, and needs another algorithm number.
"""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import chain, product
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from dataprep.formats.canonical import canonical_json  # noqa: E402
from dataprep.formats.checksums import FileHasher  # noqa: E402
from dataprep.formats.manifest.arrays import ArrayEntry  # noqa: E402  (the path is needed)
from dataprep.formats.manifest.curriculum import Curriculum  # noqa: E402
from dataprep.formats.manifest.identity import (  # noqa: E402
    TokenContent,
    array_content_id,
)
from dataprep.pipeline.plan import splits as splitting  # noqa: E402
from dataprep.runtime.arrays.curriculum import VariantDraw, thresholds  # noqa: E402
from dataprep.runtime.collate.masked_lm import MaskedLM  # noqa: E402
from dataprep.runtime.external.iterable_rows import through_buffer  # noqa: E402
from dataprep.runtime.external.random_split import split_by_fraction  # noqa: E402
from dataprep.runtime.loader.batch_sampler import GlobalBatchSampler  # noqa: E402
from dataprep.runtime.loader.token_budget import TokenBudgetSampler  # noqa: E402
from dataprep.runtime.loader.transformed import TransformedDataset  # noqa: E402
from dataprep.runtime.mixture.order import WeightedSource, WeightedSources  # noqa: E402
from dataprep.runtime.mixture.schedule import Schedule, whole_weights  # noqa: E402
from dataprep.runtime.order.blocks import Blocks  # noqa: E402
from dataprep.runtime.order.buckets import Bucketed  # noqa: E402
from dataprep.runtime.order.lengths import KnownLengths  # noqa: E402
from dataprep.runtime.order.order_checksum import contributions, digest_seed  # noqa: E402
from dataprep.runtime.order.permutation import Shuffled, key, permute, unpermute  # noqa: E402
from dataprep.runtime.order.skips import Skips  # noqa: E402
from dataprep.runtime.rows.packing import Packer, PackingOptions  # noqa: E402
from dataprep.runtime.sample_numbers import PADDING, Indices, Ints  # noqa: E402
from dataprep.runtime.stream.deal import Deal, Topology  # noqa: E402
from dataprep.runtime.stream.order import ShuffleBuffer  # noqa: E402
from dataprep.runtime.types import BatchDataset  # noqa: E402

VECTORS = HERE / "vectors.json"
ONE, TWO = (hashlib.sha256(name).hexdigest() for name in (b"one", b"two"))
SIZES = (1, 2, 3, 5, 8, 9, 16, 63, 64, 65, 1000, 1 << 20, (1 << 32) + 7, 1 << 48)
WINDOWS = "windows"

Vector = dict[str, Any]


def keys() -> list[Vector]:
    """Return the hashed name, and the multiplier and addend of each of the 32 rounds."""
    asked = [(ONE, 0, 0, WINDOWS), (ONE, 1, 2, WINDOWS), (TWO, (1 << 63) - 1, 7, "mixture/0")]
    return [{"key": list(names), "rounds": key(*names).rounds} for names in asked]


def permutations() -> list[Vector]:
    """Return whole small orders and chosen positions of large ones; without and with streams."""
    found = []
    for n, seed in product(SIZES, (0, 1)):
        names = (ONE, seed, 3, WINDOWS)
        positions = places(n)
        streams = positions * 0 if seed == 0 else (positions * 7 + 1) % (1 << 40)
        samples = permute(positions, n, key(*names), streams)
        assert unpermute(samples, n, key(*names), streams).tolist() == positions.tolist()
        found.append({
            "key": list(names), "n": n, "positions": positions.tolist(),
            "streams": streams.tolist(), "samples": samples.tolist(),
        })  # fmt: skip
    return found


def places(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return positions of 0 .. n - 1: all if n is at most 65, else the ends and some between."""
    if n <= 65:
        return np.arange(n, dtype=np.int64)
    between = [n * part // 23 for part in range(1, 23)]
    return np.array([0, 1, 2, *between, n - 2, n - 1], np.int64)


def blocks() -> list[Vector]:
    """Return orders of blocks: a short last block, one window, unequal windows, one block."""
    cases = [
        (10, 3, 2), (64, 4, 4), (65, 4, 4), (65, 4, 5), (7, 8, 3), (24, 4, 100), (1, 1, 1),
        (100, 1, 7), (1_000_003, 512, 32), ((1 << 33) + 5, 1024, 256),
    ]  # fmt: skip
    found = []
    for n, block, window in cases:
        order = Blocks(content_id=ONE, seed=5, purpose=WINDOWS, block=block, window=window)
        positions = np.arange(n, dtype=np.int64) if n <= 100 else places(n)
        samples = order.samples(positions, n, 1)
        assert order.positions(samples, n, 1).tolist() == positions.tolist()
        found.append({
            "content_id": ONE, "seed": 5, "epoch": 1, "purpose": WINDOWS, "n": n, "block": block,
            "window": window, "positions": positions.tolist(), "samples": samples.tolist(),
        })  # fmt: skip
    return found


def skips() -> list[Vector]:
    """Return the sample at each place of an order that leaves samples out."""
    found = []
    for n, left_out in ((10, [0, 3, 9]), (40, [5, 6, 7, 8, 21, 39])):
        order = Shuffled(content_id=ONE, seed=2, purpose=WINDOWS)
        skip = Skips(left_out)
        served = np.arange(n - len(left_out), dtype=np.int64)
        positions = skip.positions(served, order, n, 4)
        found.append({
            "key": [ONE, 2, 4, WINDOWS], "n": n, "skip": left_out,
            "positions": positions.tolist(), "samples": order.samples(positions, n, 4).tolist(),
        })  # fmt: skip
    return found


def digests() -> list[Vector]:
    """Return the terms of samples in the digest of an epoch, and the sum."""
    samples = np.array([0, 1, 5, (1 << 48) - 1], np.int64)
    positions = np.array([3, 2, 1, 1 << 40], np.int64)
    found = []
    for content, epoch in (([ONE], 0), ([ONE], 9), ([TWO], 0), ([ONE, TWO], 0)):
        parts = contributions(samples, positions, epoch, digest_seed(content)).tolist()
        found.append({
            "content": content, "epoch": epoch, "samples": samples.tolist(),
            "positions": positions.tolist(), "contributions": parts,
            "digest": f"{sum(parts) % (1 << 64):016x}",
        })  # fmt: skip
    return found


def weights() -> list[Vector]:
    """Return weights, as decimals, and the whole numbers of a period."""
    asked: list[list[float]] = [
        [3, 1], [0.7, 0.3], [1, 1e-6], [1 / 3, 2 / 3], [0.1, 0.2, 0.7], [5, 5], [1],
        [0.123456789, 0.987654321], [2.718281828459045, 3.141592653589793, 1.4142135623730951],
    ]  # fmt: skip
    digests = [hashlib.sha256(b"%d" % number).digest() for number in range(50)]
    asked.append([int.from_bytes(digest[:6], "big") / (1 << 48) for digest in digests])
    asked.append([1.0 / (number + 1) for number in range(20)])
    found = [(given, whole_weights(given)) for given in asked]
    return [
        {"weights": list(map(repr, given)), "whole": one.weights, "period": one.period}
        for given, one in found
    ]


def schedules() -> list[Vector]:
    """Return the source and earlier draws of each draw: two periods, or some draws."""
    found = []
    for whole in ([1], [1, 1], [3, 1], [2, 1, 1], [7, 3], [5, 3, 2, 1], [1, 1000], [40, 31, 17]):
        schedule = Schedule(whole)
        positions = np.arange(min(2 * schedule.period, 40), dtype=np.int64)
        positions = np.append(positions, schedule.period * 12_345_678 + schedule.period // 2)
        source, number = schedule.at(positions)
        found.append({
            "weights": whole, "positions": positions.tolist(), "sources": source.tolist(),
            "numbers": number.tolist(),
        })  # fmt: skip
    return found


def mixtures() -> list[Vector]:
    """Return the samples of a mixture in the order of its sequence, and as dealt to the ranks.

    They are numbered source after source; two sources may be one dataset.
    """
    found: list[Vector] = []
    for whole, sources in (
        ((3, 1), ((ONE, 9), (TWO, 2))),
        ((5, 3, 2), ((ONE, 6), (TWO, 40), (ONE, 6))),
    ):
        mixture = WeightedSources([
            WeightedSource(name=str(number), content_id=content, samples=samples, weight=weight)
            for number, (weight, (content, samples)) in enumerate(zip(whole, sources, strict=True))
        ])  # fmt: skip
        order = mixture.order(seed=11)
        positions = np.arange(mixture.samples, dtype=np.int64)
        for epoch, batch, dp_size, end in ((0, 4, 1, "drop"), (1, 1, 4, "drop"), (6, 3, 2, "pad")):
            shared: Any = {"order": order, "epoch": epoch, "dp_size": dp_size, "end": end}
            parts = [
                list(GlobalBatchSampler(mixture.samples, batch, dp_rank=rank, **shared))
                for rank in range(dp_size)
            ]
            found.append({
                "content": [content for content, _ in sources],
                "samples_of": [samples for _, samples in sources], "weights": whole, "seed": 11,
                "epoch": epoch,
                "samples": order.samples(positions, mixture.samples, epoch).tolist(),
                "batch_size": batch, "dp_size": dp_size, "end": end, "steps": steps_of(parts),
            })  # fmt: skip
    return found


def ranks() -> list[Vector]:
    """Return the samples of every rank in every step of an epoch of one dataset."""
    one = Shuffled(content_id=ONE, seed=2, purpose=WINDOWS)
    found = []
    for dp_size, end in ((1, "drop"), (1, "partial"), (2, "drop"), (3, "pad"), (4, "pad")):
        shared: Any = {"order": one, "epoch": 1, "dp_size": dp_size, "end": end}
        parts = [list(GlobalBatchSampler(20, 3, dp_rank=rank, **shared)) for rank in range(dp_size)]
        found.append({
            "key": [ONE, 2, 1, WINDOWS], "n": 20, "batch_size": 3, "dp_size": dp_size, "end": end,
            "steps": steps_of(parts),
        })  # fmt: skip
    return found


def steps_of(parts: list[list[list[int]]]) -> list[list[list[int | None]]]:
    """Return the parts of the ranks of each step; a row that only fills a batch is null."""
    return [
        [[None if sample == PADDING else sample for sample in part] for part in step]
        for step in zip(*parts, strict=True)
    ]


def streams() -> list[Vector]:
    """Return the positions that each run of each rank of a stream reads, and the rest."""
    found = []
    for samples, ranks_, workers, batch, end in (
        (23, 2, 2, 3, "drop"), (23, 2, 3, 2, "pad"), (10, 1, 2, 2, "partial"),
    ):  # fmt: skip
        topology = Topology(dp_size=ranks_, workers=workers, batch_size=batch)
        deal = Deal(samples=samples, topology=topology, end=end)  # type: ignore[arg-type]
        found.append({
            "samples": samples, "dp_size": ranks_, "workers": workers, "batch_size": batch,
            "end": end, "steps": deal.steps,
            "runs": [[deal.run(rank, run) for run in range(workers)] for rank in range(ranks_)],
            "left_after_3": deal.left(3).tolist(),
        })  # fmt: skip
    return found


def buffers() -> list[Vector]:
    """Return the order of a shuffle buffer, fed with permuted blocks."""
    source = Blocks(content_id=ONE, seed=3, purpose="stream", block=4, window=1)
    found = []
    for size in (5, 30):
        order = ShuffleBuffer(source=source, content_id=ONE, seed=3, purpose="stream", size=size)
        samples = order.samples(np.arange(23, dtype=np.int64), 23, 1)
        found.append({
            "content_id": ONE, "seed": 3, "epoch": 1, "purpose": "stream", "n": 23,
            "block": 4, "buffer": size, "samples": samples.tolist(),
        })  # fmt: skip
    return found


def row_buffers() -> list[Vector]:
    """Return rows of a user's own stream through a buffer of rows."""
    found = []
    for rows, size, seed, epoch in ((12, 4, 0, 0), (12, 4, 9, 3), (3, 8, 0, 0), (5, 1, 0, 0)):
        numbered = through_buffer(((row, row) for row in range(rows)), size, seed, epoch)
        found.append({
            "rows": rows, "buffer": size, "seed": seed, "epoch": epoch,
            "served": [row for row, _ in numbered],
        })  # fmt: skip
    return found


def parts() -> list[Vector]:
    """Return the samples of both parts of a user's dataset divided by `split_by_fraction`."""
    found = []
    for n, fraction, seed in ((10, 0.2, 0), (7, 0.5, 3)):
        train, val = split_by_fraction(list(range(n)), fraction, seed)
        found.append({
            "n": n, "fraction": fraction, "seed": seed, "train": list(train), "val": list(val),
        })  # fmt: skip
    return found


def buckets() -> list[Vector]:
    """Return samples of similar length in blocks of a batch, for a full shuffle."""
    lengths = [9, 1, 8, 2, 7, 3, 6, 4, 5, 1, 9, 2, 8, 3, 7]
    inner = Shuffled(content_id=ONE, seed=4, purpose=WINDOWS)
    order = Bucketed(
        order=inner, lengths=KnownLengths(lengths), batch=2, content_id=ONE, seed=4,
        purpose=WINDOWS, pool=6,
    )  # fmt: skip
    samples = order.samples(np.arange(15, dtype=np.int64), 15, 1)
    return [{
        "key": [ONE, 4, 1, WINDOWS], "lengths": lengths, "batch": 2, "pool": 6,
        "samples": samples.tolist(),
    }]  # fmt: skip


def steering() -> list[Vector]:
    """Return thresholds of an epoch and variants of some pairs; epoch null: no movement."""
    cases: list[tuple[Any, int | None]] = [
        ({}, 0), ({}, None), ({"probabilities": (0, 1, 0, 0)}, 1),
        ({"probabilities": (0.1, 0.2, 0.3, 0.4)}, 9), ({"mode": "linear"}, 33),
        ({"mode": "linear", "zero_start": 0.1, "zero_end": 0.9, "epochs": 7}, 3),
        *(({"mode": "cosine", "probabilities": (0.4, 0.3, 0.2, 0.1)}, e) for e in (0, 1, 50, 99)),
        ({"mode": "cosine", "zero_end": 0}, 4_000_000),
    ]  # fmt: skip
    pairs = np.array([0, 1, 2, 3, 4, 5, 6, 7, 1 << 20, (1 << 40) - 1], np.int64)
    found = []
    for fields, epoch in cases:
        draw = VariantDraw(
            Curriculum(**fields), content_id=ONE, seed=8, moving=epoch is not None
        )  # fmt: skip
        epochs = np.full(len(pairs), epoch or 0)
        found.append({
            "curriculum": msgspec.to_builtins(draw.curriculum), "content_id": ONE, "seed": 8,
            "epoch": epoch, "thresholds": thresholds(draw.curriculum, epoch or 0),
            "pairs": pairs.tolist(), "variants": draw.variants(pairs, epochs).tolist(),
        })  # fmt: skip
    return found


def masked_rows() -> list[Vector]:
    """Return tokens that `MaskedLM.hide` hides, from the seed of each row."""
    rows = np.array([list(range(40)), list(range(60, 100))])
    labels = rows.copy()
    labels[1, :3] = -100
    hide = MaskedLM(mask_id=3, vocab_size=100, special_ids=(0, 1), probability=0.4, seed=6).hide
    found = []
    for seed, epoch, samples in ((0, 0, [0, 1]), (5, 7, [123_456_789, 2])):
        batch = {"input_ids": torch.from_numpy(rows), "labels": torch.from_numpy(labels)}
        seeds: list[int] = []

        def seen(batch: Any, given: Any, seeds: list[int] = seeds) -> Any:
            seeds.extend(given.tolist())
            return hide(batch, given)

        source = _Rows({name: field.clone() for name, field in batch.items()})
        noisy = TransformedDataset(source, seen, seed=seed)
        noisy.set_epoch(epoch)
        hidden = noisy.batch(samples)
        found.append({
            "seed": seed, "epoch": epoch, "samples": samples, "row_seeds": seeds, "mask_seed": 6,
            "mask_id": 3, "vocab_size": 100, "special_ids": [0, 1], "probability": 0.4,
            "rows": rows.tolist(), "labels_before": labels.tolist(),
            "input_ids": hidden["input_ids"].tolist(), "labels": hidden["labels"].tolist(),
        })  # fmt: skip
    return found


class _Rows(BatchDataset):
    """Dataset in which every batch is the same two rows."""

    def __init__(self, rows: dict[str, torch.Tensor]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return 1 << 32

    @property
    def definition(self) -> dict[str, Any]:
        """Return no definition."""
        return {}

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Read no tokens."""
        return samples, samples

    def batch(self, indices: Indices) -> dict[str, torch.Tensor]:
        """Return the two rows."""
        return self._rows


def token_budgets() -> list[Vector]:
    """Return the samples of every rank in steps of as many tokens as fit."""
    lengths = [9, 1, 8, 2, 7, 3, 6, 4, 5, 1, 9, 2, 8, 3, 7]
    found = []
    for dp_size, end in ((1, "partial"), (2, "drop"), (2, "pad")):
        inner = Shuffled(content_id=ONE, seed=4, purpose=WINDOWS)
        shared: Any = {
            "order": inner, "content_id": ONE, "seed": 4, "purpose": "train", "pool": 8,
            "max_rows": 4, "rows_multiple": 2, "dp_size": dp_size, "end": end, "epoch": 1,
        }  # fmt: skip
        parts = [
            list(TokenBudgetSampler(KnownLengths(lengths), 24, dp_rank=rank, **shared))
            for rank in range(dp_size)
        ]
        found.append({
            "key": [ONE, 4, 1, WINDOWS], "budget_key": [ONE, 4, 1, "train/token budget"],
            "lengths": lengths, "max_tokens": 24, "max_rows": 4, "rows_multiple": 2, "pool": 8,
            "dp_size": dp_size, "end": end, "steps": steps_of(parts),
        })  # fmt: skip
    return found


def packing() -> list[Vector]:
    """Return the pieces of each row: document, first token in the stream, length, continuation."""
    lengths = [5, 12, 9, 0, 9, 45, 2, 1, 20, 16, 1, 7, 3, 3, 2, 11]
    found = []
    for algorithm, overlong in (
        ("first-fit", "split"), ("best-fit", "split"), ("first-fit", "truncate"),
        ("best-fit", "drop"),
    ):  # fmt: skip
        options: Any = {"algorithm": algorithm, "overlong": overlong}
        (rows,) = Packer(PackingOptions(seq_len=20, **options)).rows([np.array(lengths)])
        found.append({
            "lengths": lengths, "seq_len": 20, **options, "pieces": rows.pieces.tolist(),
            "document": rows.document.tolist(), "start": rows.start.tolist(),
            "length": rows.length.tolist(), "more": rows.more.astype(int).tolist(),
        })  # fmt: skip
    return found


def split_hashes() -> list[Vector]:
    """Return XXH3-64 of keys of all lengths at which the algorithm has another branch."""
    lengths = (0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025)
    texts = [("dataprep " * 200)[:length] for length in lengths] + ["Zürich", "-17"]
    return [
        {"key": text, "seed": seed, "hash": int(splitting.hash_keys([text.encode()], seed)[0])}
        for text, seed in product(texts, (0, (1 << 63) - 1))
    ]


def splits() -> list[Vector]:
    """Return the ends of parts, and the part of each hash, by ratio and by count."""
    hashes = splitting.hash_keys([b"%d" % number for number in range(40)], 0)
    hashes[7], records = hashes[3], np.arange(40, dtype=np.int64)
    found: list[Vector] = []
    for ratios in ([0.25, 0.75], [0.1, 0.2, 0.7], [0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]):
        ends = splitting.thresholds(ratios)
        parts = splitting.assign(hashes, ends).tolist()
        found.append({
            "mode": "ratio", "shares": ratios, "hashes": hashes.tolist(), "ends": ends,
            "parts": parts,
        })  # fmt: skip
    for shares in ([10, None], [0.29, 0.71], [3, 0.25, None], [0.5, 0.5]):
        sizes = splitting.exact_sizes(shares, len(hashes))
        cuts = splitting.cut_points(lambda: [(hashes, records)], sizes)
        parts = splitting.assign_exactly(hashes, records, cuts).tolist()
        found.append({
            "mode": "count", "shares": shares, "hashes": hashes.tolist(), "sizes": sizes,
            "cuts": cuts, "parts": parts,
        })  # fmt: skip
    return found


def content_ids() -> list[Vector]:
    """Return content ids of splits of tokens: ids of each document, and the loss mask if any."""
    some = [[5, 6, 7], [], [399], [0, 1]]
    cases: list[tuple[str, list[list[int]], list[int]]] = [
        ("<u2", some, []), ("<u4", some, []), ("<u4", [[70_000, 1], [2]], []),
        ("<u2", some, [0, 1, 1, 0, 1, 0]), ("<u2", [], []),
    ]  # fmt: skip
    found = []
    for dtype, documents, mask in cases:
        content, ids = TokenContent(dtype), np.array([*chain(*documents)], dtype)
        lengths = np.array(list(map(len, documents)), "<u8")
        content.add("tokens", len(ids), crc32(ids.tobytes()))
        content.add("lengths", len(lengths), crc32(lengths.tobytes()))
        if mask:
            content.add("mask", len(mask), crc32(bytes(mask)))
        found.append({
            "dtype": dtype, "documents": documents, "mask": mask, "content_id": content.content_id,
        })  # fmt: skip
    return found


def array_content_ids() -> list[Vector]:
    """Return the content id of a split of arrays, from the CRC-32 of the numbers of each."""
    arrays = {
        "embedding": ArrayEntry(dtype="<f4", row=(8,), rows=3, shards=(), unit=True),
        "label": ArrayEntry(dtype="<i8", row=(), rows=3, shards=(), categories=("a", "\u00e9")),
        "provenance": ArrayEntry(dtype="<u8", row=(2,), rows=3, shards=()),
    }
    crcs = {"embedding": 0xDEADBEEF, "label": 1, "provenance": 2}
    index = crc32(np.array([0, 2], "<i8").tobytes())
    return [{
        "kind": "embeddings", "arrays": msgspec.to_builtins(arrays), "crc32": crcs,
        "index": [0, 2], "content_id": array_content_id("embeddings", arrays, crcs, 2, index),
    }]  # fmt: skip


def canonical() -> list[Vector]:
    """Return values, their canonical JSON and its SHA-256."""
    values: list[Any] = [
        None, [], {}, {"b": [1, 2.5], "a": "é\U0001f600\u2028\"\\/\n\x7f"}, 1e16, 1e-7, 0.1,
        [1 << 64, -1, True], ["dataprep content 1", "tokens", []],
    ]  # fmt: skip
    return [
        {"json": text.decode(), "sha256": hashlib.sha256(text).hexdigest()}
        for text in map(canonical_json, values)
    ]


def crc_tables() -> list[Vector]:
    """Return the CRC-32 of each MiB of a file in which byte number i is i * i mod 251."""
    found = []
    for size in (0, 1, 1000, 1 << 20, (1 << 20) + 1, (2 << 20) + 12_345):
        numbers = np.arange(size, dtype=np.int64)
        hasher = FileHasher()
        hasher.update((numbers * numbers % 251).astype(np.uint8).tobytes())
        done = hasher.finish()
        found.append({"bytes": size, "crc32": done.crc32.tolist(), "sha256": done.sha256})
    return found


SECTIONS = (
    keys, permutations, blocks, skips, digests, weights, schedules, mixtures, ranks, streams,
    buffers, row_buffers, parts, buckets, token_budgets, packing, steering, masked_rows,
    split_hashes, splits, content_ids, array_content_ids, canonical, crc_tables,
)  # fmt: skip


def vectors() -> str:
    """Return the text of vectors.json."""
    parts = [f'"{make.__name__}": [\n' + ",\n".join(map(line, make())) + "\n]" for make in SECTIONS]
    return '{\n"format": "dataprep vectors 1",\n"algorithm": 1,\n' + ",\n".join(parts) + "\n}\n"


def line(vector: Vector) -> str:
    """Return one vector as JSON."""
    return json.dumps(plain(vector), separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return `value` with integers that a double cannot represent as decimal strings."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole and abs(value) >= 1 << 53 else value


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    VECTORS.write_text(vectors(), encoding="ascii")
