"""From a step to the documents, files and bytes behind it, and from a document to its steps.

`trace_step` says what a batch was made of: the thing to look at when a loss jumps.
`steps_of_document` says when a document was seen: the inverse order gives the steps, so nothing is
scanned and the cost depends on the length of the document only, not on the dataset or the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dataprep.formats.boundaries import ragged
from dataprep.formats.dataset import Split
from dataprep.formats.errors import UsageError
from dataprep.runtime.order import Positions
from dataprep.runtime.pieces import document_spans
from dataprep.runtime.provenance import records_of, sources_of
from dataprep.runtime.steps import Served, Steps

if TYPE_CHECKING:
    from dataprep.runtime.windows import WindowDataset

__all__ = [
    "SKIPPED",
    "DocumentTrace",
    "Pieces",
    "Spanned",
    "StepTrace",
    "Traceable",
    "WindowSpans",
    "steps_of_document",
    "trace_step",
]

SKIPPED = -2
"""Instead of a step: the sample is in the skip list."""


class Spanned(Protocol):
    """A dataset whose samples are pieces of the stream of one split."""

    @property
    def split(self) -> Split:
        """The split that it reads."""
        ...

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        """Starts and stops, in tokens of the split, of all that these samples touch."""
        ...


class Traceable(Spanned, Protocol):
    """One that also knows which samples hold a token."""

    def covering(self, start: int, stop: int) -> Positions:
        """The samples that touch a token of `start` to `stop`, int64, increasing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSpans:
    """Windows of `span` tokens, `stride` apart, as something to trace.

    `span` counts the one token more that shifted labels read.
    """

    split: Split
    windows: int
    span: int
    stride: int

    @classmethod
    def of(cls, dataset: WindowDataset) -> WindowSpans:
        """The windows of `dataset`."""
        span = dataset.seq_len + (dataset.labels == "shifted")
        return cls(split=dataset.split, windows=len(dataset), span=span, stride=dataset.stride)

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        """See `Spanned`; one span a sample, in their order."""
        starts = samples * self.stride
        return starts, starts + self.span

    def covering(self, start: int, stop: int) -> Positions:
        """See `Traceable`."""
        first = max(0, -((self.span - 1 - start) // self.stride))  # ceil((start - span + 1) / ...)
        last = min(self.windows - 1, (stop - 1) // self.stride)
        return np.arange(first, last + 1 if start < stop else first, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """m pieces of documents, as int64 columns [m]."""

    row: Positions
    """Which of the samples a piece belongs to, counted from 0 as they are listed."""
    document: Positions
    record: Positions
    input: Positions
    """The number of the input in the manifest."""
    offset: Positions
    """Byte offset of the record in its input, or row number in a table."""
    first: Positions
    """Tokens `first` to `stop` of the document, of `length`."""
    stop: Positions
    length: Positions


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTrace:
    """The k samples of a step in the order of ranks and rows, as int64 columns [k]."""

    epoch: int
    step: int
    steps: int
    """How many steps the epoch has."""
    rank: Positions
    row: Positions
    """In the batch of its rank."""
    position: Positions
    """In the full order of the epoch, skipped samples included."""
    sample: Positions
    pieces: Pieces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DocumentTrace:
    """The k samples that hold a part of a document, as int64 columns [k], first step first."""

    epoch: int
    document: int
    start: int
    """Tokens `start` to `stop` of the split are the document."""
    stop: int
    step: Positions
    """`steps.NOT_SERVED` or `SKIPPED` where no step sees the sample; those come last."""
    rank: Positions
    row: Positions
    position: Positions
    sample: Positions
    first: Positions
    """Tokens `first` to `last` of the document are what the sample holds of it."""
    last: Positions


def trace_step(
    dataset: Spanned,
    sampler: Served,
    step: int,
    *,
    epoch: int,
    rank: int | None = None,
    start: int = 0,
) -> StepTrace:
    """What step `step` of `epoch` is made of, for one rank or for all.

    A pass that was resumed began when `start` samples of the epoch had been served: its steps count
    from there. Costs some microseconds a sample. Raises `UsageError` for a step or rank that there
    is not.
    """
    steps = Steps.of(sampler, start)
    _check_step(step, steps.count, epoch, whole=start == 0)
    if rank is not None and not 0 <= rank < steps.ranks:
        raise UsageError(f"{rank} is not in 0 .. {steps.ranks - 1}", where="rank")
    ranks, rows, places = steps.places(step)
    if rank is not None:
        mine = ranks == rank
        ranks, rows, places = ranks[mine], rows[mine], places[mine]
    order, n, skips = sampler.order, sampler.samples, sampler.skips
    positions = places if skips is None else skips.positions(places, order, n, epoch)
    samples = order.samples(positions, n, epoch)
    return StepTrace(
        epoch=epoch, step=step, steps=steps.count, rank=ranks, row=rows, position=positions,
        sample=samples, pieces=_pieces(dataset, samples),
    )  # fmt: skip


def steps_of_document(
    dataset: Traceable,
    sampler: Served,
    document: int,
    *,
    epoch: int,
    start: int = 0,
) -> DocumentTrace:
    """The samples that hold a part of `document`, and the step, rank and row of each in `epoch`.

    `start` as in `trace_step`. Raises `IndexError` for a document that there is not.
    """
    (begin,), (end,) = (b.tolist() for b in document_spans(dataset.split, np.array([document])))
    samples = dataset.covering(begin, end)
    order, n, skips = sampler.order, sampler.samples, sampler.skips
    positions = order.positions(samples, n, epoch)
    places = positions if skips is None else skips.places(positions, order, n, epoch)
    step, rank, row = Steps.of(sampler, start).locate(places)
    if skips is not None:
        step[np.isin(samples, skips.samples)] = SKIPPED
    held = [_held(dataset, sample, begin, end) for sample in samples.tolist()]
    first, last = np.array(held, np.int64).reshape(-1, 2).T - begin
    by = np.lexsort((positions, step < 0))
    columns = (step, rank, row, positions, samples, first, last)
    names = ("step", "rank", "row", "position", "sample", "first", "last")
    found = {name: column[by] for name, column in zip(names, columns, strict=True)}
    return DocumentTrace(epoch=epoch, document=document, start=begin, stop=end, **found)


def _pieces(dataset: Spanned, samples: Positions) -> Pieces:
    """The pieces of documents that `samples` consist of, sample by sample."""
    parts = [dataset.spans(samples[at : at + 1]) for at in range(len(samples))]
    empty = np.empty(0, np.int64)
    starts = np.concatenate([empty, *(starts for starts, _ in parts)])
    stops = np.concatenate([empty, *(stops for _, stops in parts)])
    owners = np.repeat(np.arange(len(parts)), [len(starts) for starts, _ in parts])
    full = stops > starts
    starts, stops, owners = starts[full], stops[full], owners[full]
    split = dataset.split
    low, high = split.parts(starts, 1).document, split.parts(stops - 1, 1).document
    spans, documents, _ = ragged(low, high + 1)
    begins, ends = document_spans(split, documents)
    first = np.maximum(begins, starts[spans])
    last = np.minimum(ends, stops[spans])
    some = last > first  # a document without tokens may stand between two others
    begins, documents = begins[some], documents[some]
    inputs, offsets = sources_of(split, documents)
    return Pieces(
        row=owners[spans[some]], document=documents, record=records_of(split, documents),
        input=inputs, offset=offsets, first=first[some] - begins, stop=last[some] - begins,
        length=ends[some] - begins,
    )  # fmt: skip


def _held(dataset: Spanned, sample: int, begin: int, end: int) -> tuple[int, int]:
    """The tokens between `begin` and `end` that `sample` touches, from the first to the last."""
    starts, stops = dataset.spans(np.array([sample]))
    touching = (starts < end) & (stops > begin)
    first, last = starts[touching].min(), stops[touching].max()
    return max(begin, int(first)), min(end, int(last))


def _check_step(step: int, count: int, epoch: int, *, whole: bool) -> None:
    if 0 <= step < count:
        return
    later = f"Counted over all epochs, that is step {step % count:,} of epoch {step // count:,}."
    raise UsageError(
        f"epoch {epoch} has {count:,} steps, numbered from 0; there is no {step:,}", where="step",
        remedy=later if whole and count and step >= 0 and epoch == 0 else None,
    )  # fmt: skip
