"""Steps and the documents behind them, against reading everything."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.runtime.inspect.steps import NOT_SERVED
from dataprep.runtime.inspect.trace import (
    EARLIER,
    SKIPPED,
    DocumentTrace,
    Spanned,
    StepTrace,
    steps_of_document,
    trace_step,
)
from dataprep.runtime.loader.batch_sampler import GlobalBatchSampler
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.order.permutation import Order, Positions, Sequential, Shuffled
from dataprep.runtime.order.skips import Skips
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.windows import WindowDataset, window_count
from tests.scenes.datasets import make_dataset, random_split
from tests.support import examples

LENGTHS = [[0, 5, 1, 0, 0, 40, 0], [], [12, 3], [0], [30, 0, 7, 1, 1, 1, 20, 9]]
FLAT = [length for shard in LENGTHS for length in shard]
OWNER = [number for number, length in enumerate(FLAT) for _ in range(length)]
ORDERS: list[Order] = [
    Shuffled(content_id="build", seed=3, purpose="test"), Sequential(),
    Blocks(content_id="build", seed=3, purpose="test", block=4, window=2),
]  # fmt: skip
Part = tuple[int, int, int]  # document, first and stop token in it


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Documents of no, one and many tokens, over several shards."""
    path = tmp_path_factory.mktemp("trace") / "shards"
    return open_dataset(make_dataset(path, {"train": random_split(LENGTHS)}))


def parts_of(windows: WindowDataset, sample: int) -> list[Part]:
    """The documents in a window, by looking at each of its tokens."""
    start = sample * windows.stride
    inside = OWNER[start : start + windows.seq_len]
    found = []
    for document in sorted(set(inside)):
        first = start + inside.index(document) - OWNER.index(document)
        found.append((document, first, first + inside.count(document)))
    return found


def traced_parts(trace: StepTrace) -> list[list[Part]]:
    """The same from a trace, for each of its samples."""
    pieces = trace.pieces
    found: list[list[Part]] = [[] for _ in trace.sample]
    columns = (pieces.row, pieces.document, pieces.first, pieces.stop)
    for row, *part in zip(*(column.tolist() for column in columns), strict=True):
        found[row].append(tuple(part))
    return found


def windows_of(dataset: Dataset, span: int, stride: int) -> WindowDataset:
    return WindowDataset(dataset.split("train"), seq_len=span, stride=stride, labels=None)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How the windows of `span` tokens are served; what `trace` asks a sampler for, and more."""

    span: int
    stride: int
    samples: int
    batch_size: int
    dp_size: int
    end: str
    order: Order
    epoch: int
    skipped: list[int]
    start: int

    @property
    def full(self) -> list[int]:
        """All samples, in order."""
        n = self.samples
        found: list[int] = self.order.samples(np.arange(n), n, self.epoch).tolist()
        return found

    def served(self) -> list[int]:
        """The samples from `start` on."""
        return [sample for sample in self.full if sample not in self.skipped][self.start :]

    def steps(self) -> list[list[int]]:
        """The samples of each step, all ranks together."""
        served = self.served()
        size = self.batch_size * self.dp_size
        steps = [served[at : at + size] for at in range(0, len(served), size)]
        return [step for step in steps if self.end == "pad" or len(step) == size]

    @property
    def skips(self) -> Skips:
        return Skips(self.skipped)

    def options(self) -> dict[str, int]:
        return {"epoch": self.epoch, "start": self.start}


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    span, stride = draw(st.integers(1, 50)), draw(st.integers(1, 30))
    count = window_count(len(OWNER), span, stride)
    skipped = sorted(draw(st.sets(st.integers(0, count - 1), max_size=min(5, count - 1))))
    return Pass(
        span=span, stride=stride, samples=count, batch_size=draw(st.integers(1, 4)),
        dp_size=draw(st.integers(1, 3)), end=draw(st.sampled_from(["drop", "pad"])),
        order=draw(st.sampled_from(ORDERS)), epoch=draw(st.integers(0, 3)), skipped=skipped,
        start=draw(st.integers(0, count - len(skipped))),
    )  # fmt: skip


@examples(25)
@given(case=passes())
def test_steps_equal_reading_everything(dataset: Dataset, case: Pass) -> None:
    """The samples, positions and parts of documents of every step are right."""
    windows = windows_of(dataset, case.span, case.stride)
    for step, expected in enumerate(case.steps()):
        trace = trace_step(windows, case, step, **case.options())
        assert trace.sample.tolist() == expected
        assert trace.position.tolist() == [case.full.index(sample) for sample in expected]
        assert traced_parts(trace) == [parts_of(windows, sample) for sample in expected]


@examples(20)
@given(case=passes())
def test_documents_equal_tracing_every_step(dataset: Dataset, case: Pass) -> None:
    """A document's steps are those whose traces show it; what no step sees is told apart."""
    windows = windows_of(dataset, case.span, case.stride)
    seen: dict[int, list[Row]] = {number: [] for number in range(len(FLAT))}
    for step in range(len(case.steps())):
        for document, *row in rows_of(trace_step(windows, case, step, **case.options())):
            seen[document].append((step, *row))
    for document, expected in seen.items():
        found = rows_of(steps_of_document(windows, case, document, **case.options()))
        assert found[: len(expected)] == expected
        rest = {row[4]: row[0] for row in found[len(expected) :]}
        holding = {
            sample for sample in range(case.samples)
            if document in [part[0] for part in parts_of(windows, sample)]
        }  # fmt: skip
        assert set(rest) == holding - {row[4] for row in expected}
        skipped = holding & set(case.skipped)
        earlier = set(case.full) - set(case.skipped) - set(case.served())
        whys = dict.fromkeys(skipped, SKIPPED) | dict.fromkeys(earlier, EARLIER)
        assert rest == {sample: whys.get(sample, NOT_SERVED) for sample in rest}
        assert skipped <= set(rest)


Row = tuple[int, ...]


def rows_of(trace: StepTrace | DocumentTrace) -> list[Row]:
    """A row for each piece of a document: (document or step, rank, row, position, sample, part)."""
    if isinstance(trace, DocumentTrace):
        columns = [trace.step, trace.rank, trace.row, trace.position, trace.sample]
        columns += [trace.first, trace.last]
    else:
        at = trace.pieces.row
        columns = [trace.pieces.document, trace.rank[at], trace.row[at], trace.position[at]]
        columns += [trace.sample[at], trace.pieces.first, trace.pieces.stop]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_one_rank_is_a_part_of_all(dataset: Dataset) -> None:
    """`rank` gives the rows of that rank, with the same documents."""
    windows = windows_of(dataset, 9, 8)
    sampler = GlobalBatchSampler(len(windows), 2, order=ORDERS[0], dp_size=3, end="pad")
    for step in range(len(sampler)):
        whole = trace_step(windows, sampler, step, epoch=0)
        for rank in range(3):
            one = trace_step(windows, sampler, step, epoch=0, rank=rank)
            mine = whole.rank == rank
            assert one.sample.tolist() == whole.sample[mine].tolist()
            assert one.row.tolist() == list(range(len(one.row)))
            expected = [p for p, m in zip(traced_parts(whole), mine, strict=True) if m]
            assert traced_parts(one) == expected


def test_pieces_say_where_they_came_from(dataset: Dataset) -> None:
    """Record, input and offset are those of the document, and its length."""
    windows = windows_of(dataset, 50, 50)
    sampler = GlobalBatchSampler(len(windows), 2, order=Sequential(), end="pad")
    pieces = trace_step(windows, sampler, 0, epoch=0).pieces
    split = dataset.split("train")
    for at, document in enumerate(pieces.document.tolist()):
        name, offset = split.source(document)
        assert dataset.manifest.inputs[int(pieces.input[at])].name == name
        assert pieces.offset[at] == offset
        assert pieces.record[at] == split.record_ids[document]
        assert pieces.length[at] == FLAT[document]


class Packed:
    """Samples of several spans each, out of order: what packing makes."""

    def __init__(self, dataset: Dataset, rows: list[list[tuple[int, int]]]) -> None:
        self.split = dataset.split("train")
        self.rows = rows

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        every = [span for sample in samples.tolist() for span in self.rows[sample]]
        starts, stops = np.array(every, np.int64).reshape(-1, 2).T
        return starts, stops

    def covering(self, start: int, stop: int) -> Positions:
        touching = [
            number for number, row in enumerate(self.rows)
            if any(first < stop and last > start for first, last in row)
        ]  # fmt: skip
        return np.array(touching, np.int64)


def test_samples_of_several_spans(dataset: Dataset) -> None:
    """Any dataset with spans can be traced; no spans, or empty ones, have no pieces."""
    (start, stop), other = dataset.split("train").span(5), dataset.split("train").span(7)
    packed = Packed(
        dataset, [[(start, start + 30), other], [], [(start + 30, stop), (0, 0), (0, 6)]]
    )
    sampler = GlobalBatchSampler(3, 3, order=Sequential())
    found = traced_parts(trace_step(packed, sampler, 0, epoch=0))
    assert found == [[(5, 0, 30), (7, 0, 12)], [], [(5, 30, 40), (1, 0, 5), (2, 0, 1)]]
    traced = steps_of_document(packed, sampler, 5, epoch=0)
    assert traced.sample.tolist() == [0, 2]
    assert (traced.first.tolist(), traced.last.tolist()) == ([0, 30], [30, 40])


def test_every_kind_of_rows(dataset: Dataset) -> None:
    """Windows, packed rows and documents: the pieces listed are the tokens served."""
    split = dataset.split("train")
    served: list[Spanned] = [
        WindowDataset(split, seq_len=16, labels=None),
        PackedDataset(split, seq_len=16, labels=None),
        DocumentDataset(split, max_length=16, labels=None),
    ]
    for rows in served:
        batch: Any = rows
        sampler = GlobalBatchSampler(len(batch), len(batch), order=ORDERS[0])
        trace = trace_step(rows, sampler, 0, epoch=0)
        ids = batch.batch(trace.sample)["input_ids"].tolist()
        for row, parts in zip(ids, traced_parts(trace), strict=True):
            pieces = [split.document(document)[a:b].tolist() for document, a, b in parts]
            assert pieces
            assert all(is_within(piece, row) for piece in pieces)
            assert sum(map(len, pieces)) <= len(row)


def is_within(piece: list[int], row: list[int]) -> bool:
    """Whether `row` holds `piece` somewhere, in one run."""
    return any(row[at : at + len(piece)] == piece for at in range(len(row)))


def test_documents_that_no_sample_holds(dataset: Dataset) -> None:
    """A document without tokens, or behind the last window, has no steps."""
    windows = windows_of(dataset, 40, 40)
    sampler = GlobalBatchSampler(len(windows), 1, order=Sequential())
    for document in (0, len(FLAT) - 1):
        found = steps_of_document(windows, sampler, document, epoch=0)
        assert found.step.tolist() == found.first.tolist() == []
    with pytest.raises(IndexError, match="outside 0:18"):
        steps_of_document(windows, sampler, len(FLAT), epoch=0)


@pytest.mark.parametrize(("step", "epoch", "remedy"), [(7, 0, "step 1 of epoch 2"), (-1, 0, "")])
def test_steps_that_are_not_there(dataset: Dataset, step: int, epoch: int, remedy: str) -> None:
    """A step behind the epoch is said to be one of a later epoch."""
    windows = windows_of(dataset, 40, 40)
    sampler = GlobalBatchSampler(len(windows), 1, order=Sequential())
    with pytest.raises(UsageError, match="epoch 0 has 3 steps") as caught:
        trace_step(windows, sampler, step, epoch=epoch)
    assert caught.value.where == "step"
    assert remedy in (caught.value.remedy or "")
    with pytest.raises(UsageError, match=r"1 is not in 0 \.\. 0"):
        trace_step(windows, sampler, 0, epoch=0, rank=1)


def test_nothing_grows_with_the_dataset() -> None:
    """Windows over a stream of 2**50 tokens are found by arithmetic alone."""
    split: Any = SimpleNamespace(tokens=1 << 50)
    windows = WindowDataset(split, seq_len=1024)
    assert windows.covering((1 << 45) - 1, (1 << 45) + 1).tolist() == [(1 << 35) - 1, 1 << 35]
