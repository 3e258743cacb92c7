"""Which steps see which document, of every kind of rows: against loaders that serve whole epochs.

In the datasets made here every token of a document is the number of that document, so that a batch
says what it holds, and how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.runtime.inspect.trace import (
    NOT_DRAWN,
    Traceable,
    splits_of,
    steps_of_document,
    trace_step,
)
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.rows import packing_plan as plans
from dataprep.runtime.rows.document_lengths import KeptDocuments
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.packing import Packer
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.types import IGNORED_LABEL
from tests.scenes.datasets import EOS_ID, make_dataset
from tests.scenes.loaders import make_loader
from tests.support import examples

LENGTHS = [[0, 5, 1, 0, 0, 40, 0], [], [12, 3], [0], [30, 0, 7, 1, 1, 1, 20, 9, 33, 2, 2, 16]]
OTHER = [[9, 0, 26], [3, 3]]
Seen = dict[tuple[int, int], set[tuple[int, int, int]]]  # (source, document): step, rank, row
Held = Counter[tuple[int, int]]  # tokens of (source, document)


def numbered(path: Path, lengths: list[list[int]]) -> Dataset:
    """A dataset whose documents, of these lengths, consist of their own number."""
    number, shards = 0, []
    for shard in lengths:
        shards.append([np.full(length, number + at) for at, length in enumerate(shard)])
        number += len(shard)
    return open_dataset(make_dataset(path, {"train": shards}))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, Dataset]]:
    """Two datasets, and a place of their own for plans."""
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAPREP_CACHE", str(folder / "cache"))
        yield numbered(folder / "one", LENGTHS), numbered(folder / "other", OTHER)


def weighed(both: tuple[Dataset, Dataset]) -> Any:
    """The two as a mixture: the small one is drawn five times as often."""
    return dict(zip(both, (1, 5), strict=True))


def held_in(batch: Mapping[str, torch.Tensor], row: int) -> Held:
    """What a row holds of which document, by looking at its ids, and at its labels."""
    source = int(batch["source"][row]) if "source" in batch else 0
    ids = Counter(batch["input_ids"][row].tolist())
    labels = Counter(batch["labels"][row].tolist()) if "labels" in batch else Counter()
    more = {number: 0 for number in labels if number not in ids}  # read for the label alone
    numbers = {**ids, **more}
    return Counter({(source, number): count for number, count in numbers.items()
                    if number not in (EOS_ID, IGNORED_LABEL)})  # fmt: skip


def served(make: Callable[..., Loader], ranks: int) -> dict[tuple[int, int, int], Held]:
    """What each row of an epoch holds, by step, rank and row, from the loaders of all ranks."""
    found = {}
    for rank in range(ranks):
        for step, batch in enumerate(make(dp_rank=rank, dp_size=ranks)):
            for row in range(len(batch["input_ids"])):
                if bool(batch["sample_mask"][row]) if "sample_mask" in batch else True:
                    found[step, rank, row] = held_in(batch, row)
    return found


def traced(loader: Loader) -> dict[tuple[int, int, int], Held]:
    """The same from the traces of all steps."""
    found: dict[tuple[int, int, int], Held] = {}
    samples: Any = loader.dataset_obj
    for step in range(len(loader)):
        trace = trace_step(samples, loader.sampler_obj, step, epoch=loader.epoch)
        pieces = trace.pieces
        rows = list(zip(trace.rank.tolist(), trace.row.tolist(), strict=True))
        found |= {(step, *row): Counter() for row in rows}
        columns = (pieces.row, pieces.source, pieces.document, pieces.first, pieces.stop)
        for row, *document, first, stop in zip(*(c.tolist() for c in columns), strict=True):
            found[(step, *rows[row])][tuple(document)] += stop - first
    return found


def check(make: Callable[..., Loader], ranks: int, *, labels: bool) -> None:
    """Every step and every document of an epoch are as the loaders serve them."""
    expected = served(make, ranks)
    loader = make(dp_rank=0, dp_size=ranks)
    found = traced(loader)
    if labels:  # of which a trace counts the token more that is read
        assert {at: set(held) for at, held in found.items()} == {
            at: set(held) for at, held in expected.items()
        }
    else:
        assert found == expected
    samples: Any = loader.dataset_obj
    seen: Seen = {}
    for at, held in expected.items():
        for document in held:
            seen.setdefault(document, set()).add(at)
    for source, split in enumerate(splits_of(samples)):
        for number in range(split.documents):
            trace = steps_of_document(
                samples, loader.sampler_obj, number, epoch=loader.epoch, source=source
            )
            columns = zip(trace.step.tolist(), trace.rank.tolist(), trace.row.tolist(), strict=True)
            steps = [at for at in columns if at[0] >= 0]
            assert sorted(steps) == sorted(seen.get((source, number), set()))
            assert steps == sorted(steps)


OPTIONS: dict[str, dict[str, Any]] = {
    "windows": {"seq_len": 9, "stride": 5},
    "packed": {"rows": "packed", "seq_len": 13},
    "packed best": {"rows": "packed", "seq_len": 64, "algorithm": "best-fit"},
    "packed, cut": {"rows": "packed", "seq_len": 20, "overlong": "truncate"},
    "packed, dropped": {"rows": "packed", "seq_len": 20, "overlong": "drop"},
    "documents": {"rows": "documents", "seq_len": 50},
    "documents, cut": {"rows": "documents", "seq_len": 10},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("labels", [None, "shifted"])
@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_one_dataset(both: tuple[Dataset, Dataset], name: str, labels: Any, shuffle: Any) -> None:
    """Ranks, a skip list, a last step that is not full: what is shown is what is served."""
    make = partial(
        make_loader, both[0], "train", 2, labels=labels, seed=3, epoch=1, shuffle=shuffle,
        drop_last=False, skip=[1], **OPTIONS[name],
    )  # fmt: skip
    check(make, 2, labels=labels is not None)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("epoch", [0, 2])
def test_mixture(both: tuple[Dataset, Dataset], name: str, epoch: int) -> None:
    """A source that is drawn more than once in an epoch, and one that is not drawn wholly."""
    make = partial(
        make_loader, weighed(both), "train", 2, labels=None, seed=3,
        epoch=epoch, source_ids=True, drop_last=False, **OPTIONS[name],
    )  # fmt: skip
    check(make, 2, labels=False)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_samples_of_a_mixture_that_are_not_drawn(both: tuple[Dataset, Dataset], epoch: int) -> None:
    """They are listed once, without a position; all others where the order has them, each time."""
    loader = make_loader(weighed(both), "train", 2, seq_len=4)
    samples: Any = loader.dataset_obj
    order: Any = loader.sampler_obj.order
    n = loader.sampler_obj.samples
    drawn = order.samples(np.arange(n), n, epoch).tolist()
    some_never = False
    for document in range(both[0].split("train").documents):
        trace = steps_of_document(samples, loader.sampler_obj, document, epoch=epoch)
        holding = samples.covering(trace.start, trace.stop).tolist()
        expected = [(at, sample) for at, sample in enumerate(drawn) if sample in holding]
        never = [(-1, sample) for sample in holding if sample not in drawn]
        found = list(zip(trace.position.tolist(), trace.sample.tolist(), strict=True))
        assert sorted(found) == sorted(expected + never)
        assert set(trace.step[trace.position < 0].tolist()) <= {NOT_DRAWN}
        assert NOT_DRAWN not in trace.step[trace.position >= 0]
        some_never |= bool(never)
    assert some_never


def makers() -> dict[str, Callable[[Dataset], Traceable]]:
    """Every kind of rows, from its own class."""
    made: dict[str, Callable[[Dataset], Traceable]] = {
        "windows": lambda d: WindowDataset(d.split("train"), seq_len=7, stride=3),
        "sparse windows": lambda d: WindowDataset(d.split("train"), seq_len=3, stride=8),
        "packed": lambda d: PackedDataset(d.split("train"), seq_len=16),
        "mixture": lambda d: PackedDataset(d.split("train"), seq_len=16),
        "packed, no labels": lambda d: PackedDataset(d.split("train"), seq_len=16, labels=None),
        "documents": lambda d: DocumentDataset(d.split("train"), max_length=8, min_tokens=3),
        "left": lambda d: DocumentDataset(d.split("train"), max_length=8, truncate="left"),
        "all": lambda d: DocumentDataset(d.split("train"), min_tokens=0),
    }  # fmt: skip
    return made


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", makers())
def test_covering_equals_looking_at_every_sample(
    both: tuple[Dataset, Dataset], name: str, io: Any
) -> None:
    """For any range of tokens, the samples are those whose spans touch it."""
    rows: Any = makers()[name](open_dataset(both[0].path, io=io))
    if name == "mixture":
        other: Any = makers()[name](both[1])
        rows = MixtureDataset({"one": rows, "other": other})
    spans = [rows.spans(np.array([sample])) for sample in range(len(rows))]
    tokens = sum(split.tokens for split in splits_of(rows))
    for start in range(0, tokens, 3):
        for stop in sorted({min(start + more, tokens) for more in (1, 2, 11, tokens)}):
            touching = [
                sample for sample, (first, last) in enumerate(spans)
                if ((first < stop) & (last > start) & (first < last)).any()
            ]  # fmt: skip
            assert rows.covering(start, stop).tolist() == touching
    assert rows.covering(5, 5).tolist() == []


@pytest.mark.parametrize("seq_len", [1, 16])
@pytest.mark.parametrize("ahead", [False, True])
def test_pieces_are_found_in_their_chunks(
    both: tuple[Dataset, Dataset], seq_len: int, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plans of many chunks as by looking at every piece, and a few chunks are read."""
    monkeypatch.setattr(plans, "CHUNK", 4)
    monkeypatch.setattr(plans, "Packer", partial(Packer, chunk=4))
    split = both[0].split("train")
    plan = PackedDataset(split, seq_len=seq_len).plan
    start, length, more = (
        plan.arrays[name].astype(np.int64) for name in ("start", "length", "more")
    )
    assert len(start) > 12
    for first in range(split.tokens):
        for last in (first + 1, first + 6, split.tokens):
            stop = start + length + (more if ahead else 0)
            expected = np.flatnonzero((start < last) & (stop > first)).tolist()
            assert plans.pieces_of_tokens(plan, first, last, ahead=ahead).tolist() == expected


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(kept=st.lists(st.booleans(), min_size=1, max_size=40))
def test_documents_and_samples_are_inverse(kept: list[bool]) -> None:
    """The samples that documents are, against numbering those that are kept."""
    flags = np.array(kept)
    number = np.cumsum(flags)
    found = KeptDocuments(count=int(number[-1]), before=number[~flags])
    assert found.samples(np.arange(len(kept))).tolist() == list(range(int(number[-1])))
    for document, is_kept in enumerate(kept):
        expected = [int(number[document]) - 1] if is_kept else []
        assert found.samples(np.array([document])).tolist() == expected


def test_real_documents(stories: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real build, by the `doc_ids` of whole epochs; of whole documents by their tokens."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path))
    split = open_dataset(stories).split("train")
    for rows in ("windows", "packed", "documents"):
        fields: dict[str, Any] = {"doc_ids": True} if rows != "documents" else {}
        loader = make_loader(
            stories, "train", 8, rows=rows, seq_len=256, seed=5, labels=None, **fields
        )
        samples: Any = loader.dataset_obj
        seen: dict[int, set[int]] = {}
        texts = {split.document(d).tobytes(): d for d in range(split.documents)}
        assert len(texts) == split.documents
        for step, batch in enumerate(loader):
            if "doc_ids" in batch:
                documents = set(batch["doc_ids"].reshape(-1).tolist()) - {-1}
            else:
                ids = zip(batch["input_ids"].numpy(), batch["lengths"].tolist(), strict=True)
                documents = {texts[row[:n].astype(split.dtype).tobytes()] for row, n in ids}
            for document in documents:
                seen.setdefault(document, set()).add(step)
        for document in range(split.documents):
            trace = steps_of_document(samples, loader.sampler_obj, document, epoch=0)
            assert set(trace.step[trace.step >= 0].tolist()) == seen.get(document, set())
