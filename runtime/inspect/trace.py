"""Trace from a step to its documents, files and bytes, and from a document to its steps.

`trace_step` lists the documents from which a batch was made, for example after a jump of the loss.
`steps_of_document` lists the steps that serve a document. It inverts the order and scans nothing,
so its cost depends only on the length of the document.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split

from ..rows.gather import document_spans
from ..sample_numbers import Ints
from .provenance import records_of, sources_of
from .steps import DividedOrder, Steps

__all__ = [
    "EARLIER",
    "NOT_DRAWN",
    "SKIPPED",
    "DocumentTrace",
    "Pieces",
    "Redrawing",
    "Spanned",
    "StepTrace",
    "Traceable",
    "splits_of",
    "steps_of_document",
    "trace_step",
]

SKIPPED = -2
"""In place of a step: the sample is in the skip list."""
EARLIER = -3
"""In place of a step: the sample was served before the pass began."""
NOT_DRAWN = -4
"""In place of a step: the mixture does not draw the sample in this epoch."""


@runtime_checkable
class Redrawing(Protocol):
    """Interface of an order that may serve a sample several times in an epoch, or not at all."""

    def draws(self, samples: Ints, n: int, epoch: int) -> tuple[Ints, Ints]:
        """Return two arrays with an item for each time that a sample is served in the epoch.

        The first array holds an index into `samples`, the second the position in the order. The
        argument `n` is the number of positions in an epoch. See `MixtureOrder.draws`.
        """
        ...


class Spanned(Protocol):
    """Interface of a dataset whose samples are ranges of the tokens of one or several splits.

    It has an attribute `split`, or for a mixture `splits`. The tokens of the splits are numbered
    consecutively.
    """

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return two int64 arrays: the start and the stop of each token range that `samples` read.

        A sample may read several ranges.
        """
        ...


class Traceable(Spanned, Protocol):
    """Interface of a `Spanned` dataset that can also find the samples with a given token."""

    def covering(self, start: int, stop: int) -> Ints:
        """Return the samples that contain a token of `start` .. `stop` - 1, as increasing int64."""
        ...


def splits_of(dataset: Spanned) -> tuple[Split, ...]:
    """Return the split of `dataset` in a tuple, or the splits of all sources of a mixture."""
    splits: tuple[Split, ...] | None = getattr(dataset, "splits", None)
    return splits or (dataset.split,)  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """Pieces of documents that some samples contain, as int64 columns of the same length.

    A piece is a range of tokens of a document.
    """

    row: Ints
    """Index of the sample that has the piece."""
    source: Ints
    """Index of the document's split in `splits_of` the dataset; 0 except for a mixture."""
    document: Ints
    record: Ints
    input: Ints
    """Number of the input in the manifest of the split's dataset."""
    offset: Ints
    """Byte offset of the record in its input, or row number in a table."""
    first: Ints
    """The piece is tokens `first` .. `stop` - 1 of the document, which has `length` tokens."""
    stop: Ints
    length: Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTrace:
    """Samples of a step, sorted by rank and row, as int64 columns of the same length."""

    epoch: int
    step: int
    steps: int
    """Number of steps in the epoch."""
    rank: Ints
    row: Ints
    """Row in the batch of the rank."""
    position: Ints
    """Position in the full order of the epoch, skipped samples included."""
    sample: Ints
    pieces: Pieces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DocumentTrace:
    """Samples that contain a part of a document, sorted by step, as int64 columns.

    The columns have the same length. If a mixture serves a sample several times in the epoch, the
    columns contain the sample as many times.
    """

    epoch: int
    source: int
    """Index of the document's split in `splits_of` the dataset."""
    document: int
    start: int
    """The document is tokens `start` .. `stop` - 1 of the split."""
    stop: int
    step: Ints
    """Step, or if no step serves the sample `NOT_SERVED`, `SKIPPED`, `EARLIER` or `NOT_DRAWN`.

    These are negative; samples with them come last.
    """
    rank: Ints
    row: Ints
    position: Ints
    """Position in the full order of the epoch; -1 for a sample that is `NOT_DRAWN`."""
    sample: Ints
    first: Ints
    """The sample holds tokens `first` .. `last` - 1 of the document."""
    last: Ints


def trace_step(
    dataset: Spanned,
    sampler: DividedOrder,
    step: int,
    *,
    epoch: int,
    rank: int | None = None,
    start: int = 0,
) -> StepTrace:
    """Return the samples of a step of `epoch`, and the pieces of documents that they contain.

    If `rank` is None, the result has the samples of all ranks. If the pass was resumed within the
    epoch, `start` is the number of samples of the epoch that were served before the pass. Steps are
    numbered from 0 at the beginning of the pass. The cost is a few microseconds per sample. Raise
    `UsageError` for a step, rank or start that does not exist.
    """
    steps = Steps.of(sampler, start, epoch=epoch)
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
    sampler: DividedOrder,
    document: int,
    *,
    epoch: int,
    start: int = 0,
    source: int = 0,
) -> DocumentTrace:
    """Return the samples that contain a part of `document`, with their steps, ranks and rows.

    The result is for one epoch. The argument `start` is described in `trace_step`. The argument
    `source` is the index of the document's split in the result of `splits_of`; for a dataset that
    is not a mixture it is 0. Raise `IndexError` for a document or source that does not exist.
    """
    split, base = splits_of(dataset)[source], int(_token_base(dataset)[source])
    (begin,), (end,) = (b.tolist() for b in document_spans(split, np.array([document])))
    samples = dataset.covering(base + begin, base + end)
    held = [_held(dataset, sample, base + begin, base + end) for sample in samples.tolist()]
    first, last = np.array(held, np.int64).reshape(-1, 2).T - (base + begin)
    drawn, positions = _draws(sampler, samples, epoch)
    step, rank, row = _located(sampler, samples[drawn], positions, epoch, start)
    by = np.lexsort((positions, row, rank, np.maximum(step, -1), step < 0))
    columns = (step, rank, row, positions, samples[drawn], first[drawn], last[drawn])
    names = ("step", "rank", "row", "position", "sample", "first", "last")
    found = {name: column[by] for name, column in zip(names, columns, strict=True)}
    return DocumentTrace(
        epoch=epoch, source=source, document=document, start=begin, stop=end, **found
    )


def _draws(sampler: DividedOrder, samples: Ints, epoch: int) -> tuple[Ints, Ints]:
    """Return two int64 arrays with an item for each time that a sample is served in `epoch`.

    The first array holds an index into `samples`, and the second the position in the order. If a
    sample is not served, the arrays contain one item for it, with position -1.
    """
    order, n = sampler.order, sampler.samples
    numbers = np.arange(len(samples), dtype=np.int64)
    if not isinstance(order, Redrawing):
        return numbers, order.positions(samples, n, epoch)
    drawn, positions = order.draws(samples, n, epoch)
    never = np.setdiff1d(numbers, drawn)
    return np.concatenate([drawn, never]), np.concatenate([positions, np.full_like(never, -1)])


def _located(
    sampler: DividedOrder, samples: Ints, positions: Ints, epoch: int, start: int
) -> tuple[Ints, Ints, Ints]:
    """Return step, rank and row of each sample, as three int64 arrays.

    The array `positions` holds the position of each sample in the order, or -1. If no step serves a
    sample, its step is a negative constant that says why, such as `SKIPPED`.
    """
    order, n, skips = sampler.order, sampler.samples, sampler.skips
    places = positions if skips is None else skips.places(positions, order, n, epoch)
    step, rank, row = Steps.of(sampler, start, epoch=epoch).locate(places)
    step[places < start] = EARLIER
    step[positions < 0] = NOT_DRAWN
    if skips is not None:
        step[np.isin(samples, skips.samples)] = SKIPPED
    return step, rank, row


def _token_base(dataset: Spanned) -> Ints:
    """Return the position of the first token of each split, as int64 [splits].

    Positions count the tokens of all splits consecutively, as in the result of `spans`.
    """
    return np.cumsum([0, *(split.tokens for split in splits_of(dataset)[:-1])], dtype=np.int64)


def _pieces(dataset: Spanned, samples: Ints) -> Pieces:
    """Return the pieces of documents from which `samples` are made, in the order of samples."""
    parts = [dataset.spans(samples[at : at + 1]) for at in range(len(samples))]
    empty = np.empty(0, np.int64)
    starts = np.concatenate([empty, *(starts for starts, _ in parts)])
    stops = np.concatenate([empty, *(stops for _, stops in parts)])
    owners = np.repeat(np.arange(len(parts)), [len(starts) for starts, _ in parts])
    full = stops > starts
    starts, stops, owners = starts[full], stops[full], owners[full]
    splits, base = splits_of(dataset), _token_base(dataset)
    if len(splits) == 1 or not len(starts):
        return _pieces_of_split(splits[0], 0, starts, stops, owners)
    source = np.searchsorted(base, starts, "right") - 1
    found = []
    for which in np.unique(source).tolist():
        some = source == which
        first, last = starts[some] - base[which], stops[some] - base[which]
        split = splits[which]
        with naming_dataset(split.dataset.path):
            found.append(_pieces_of_split(split, which, first, last, owners[some]))
    order = np.argsort(np.concatenate([part.row for part in found]), kind="stable")
    return Pieces(**{
        field.name: np.concatenate([getattr(part, field.name) for part in found])[order]
        for field in fields(Pieces)
    })  # fmt: skip


def _pieces_of_split(split: Split, source: int, starts: Ints, stops: Ints, owners: Ints) -> Pieces:
    """Return the pieces of documents in some token ranges of a split.

    The ranges are `starts[i]` .. `stops[i]` - 1. They may not be empty. The array `owners` holds
    for each range the index of its sample, and `source` is the index of the split in the result of
    `splits_of`.
    """
    low, high = split.parts(starts, 1).document, split.parts(stops - 1, 1).document
    spans, documents, _ = ragged(low, high + 1)
    begins, ends = document_spans(split, documents)
    first = np.maximum(begins, starts[spans])
    last = np.minimum(ends, stops[spans])
    some = last > first  # a document without tokens may stand between two others
    begins, documents = begins[some], documents[some]
    inputs, offsets = sources_of(split, documents)
    return Pieces(
        row=owners[spans[some]], source=np.full(len(documents), source, np.int64),
        document=documents, record=records_of(split, documents), input=inputs, offset=offsets,
        first=first[some] - begins, stop=last[some] - begins, length=ends[some] - begins,
    )  # fmt: skip


def _held(dataset: Spanned, sample: int, begin: int, end: int) -> tuple[int, int]:
    """Return start and stop of the tokens of `sample` that are in the range `begin`:`end`.

    Both are positions of tokens, numbered as in the result of `spans`. The sample must contain a
    token of the range.
    """
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
