"""Trace of a step to documents, files and bytes, and of a document to its steps.

`trace_step` says what a batch was made of: the thing to look at when a loss jumps.
`steps_of_document` says when a document was seen: the inverse order gives the steps, so nothing is
scanned and the cost depends on the length of the document only, not on the dataset or the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split

from ..order.permutation import Positions
from ..rows.gather import document_spans
from .provenance import records_of, sources_of
from .steps import Served, Steps

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
"""Instead of a step: the sample is in the skip list."""
EARLIER = -3
"""Instead of a step: the pass began behind it."""
NOT_DRAWN = -4
"""Instead of a step: the mixture does not come to the sample in this epoch."""


@runtime_checkable
class Redrawing(Protocol):
    """An order that may serve a sample more than once in an epoch, or not at all."""

    def draws(self, samples: Positions, n: int, epoch: int) -> tuple[Positions, Positions]:
        """Return the draws; see `MixtureOrder.draws`."""
        ...


class Spanned(Protocol):
    """A dataset whose samples are pieces of streams of tokens.

    It has a `split`, or `splits` whose tokens are numbered one after the other, as in a mixture.
    """

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        """Return starts and stops, in tokens of the split or splits, of all that these samples
        touch.
        """
        ...


class Traceable(Spanned, Protocol):
    """One that also knows which samples hold a token."""

    def covering(self, start: int, stop: int) -> Positions:
        """Return the samples that touch a token of `start` to `stop`, int64, increasing."""
        ...


def splits_of(dataset: Spanned) -> tuple[Split, ...]:
    """Return the splits that the samples are from: one, or of a mixture that of each source."""
    splits: tuple[Split, ...] | None = getattr(dataset, "splits", None)
    return splits or (dataset.split,)  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """m pieces of documents, as int64 columns [m]."""

    row: Positions
    """Which of the samples a piece belongs to, counted from 0 as they are listed."""
    source: Positions
    """The number of its split among `splits_of` the dataset: 0, but in a mixture."""
    document: Positions
    record: Positions
    input: Positions
    """The number of the input in the manifest of that split's dataset."""
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
    """The k samples that hold a part of a document, as int64 columns [k], first step first.

    A sample that a mixture draws more than once in the epoch is there as often.
    """

    epoch: int
    source: int
    """The number of its split among `splits_of` the dataset."""
    document: int
    start: int
    """Tokens `start` to `stop` of the split are the document."""
    stop: int
    step: Positions
    """`NOT_SERVED`, `SKIPPED`, `EARLIER` or `NOT_DRAWN`, below 0, where no step sees the sample.

    Those come last.
    """
    rank: Positions
    row: Positions
    position: Positions
    """-1 where the sample is `NOT_DRAWN`."""
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
    """Return the samples and documents of step `step` of `epoch`, for one rank or for all.

    A pass that was resumed began when `start` samples of the epoch had been served: its steps count
    from there. Costs some microseconds a sample. Raises `UsageError` for a step or rank that there
    is not.
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
    sampler: Served,
    document: int,
    *,
    epoch: int,
    start: int = 0,
    source: int = 0,
) -> DocumentTrace:
    """Return the samples that hold a part of `document`, and the step, rank and row of each in
    `epoch`.

    `start` as in `trace_step`; `source` is the number of the split whose document it is. Raises
    `IndexError` for a document that there is not.
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


def _draws(sampler: Served, samples: Positions, epoch: int) -> tuple[Positions, Positions]:
    """Return the number and the position of each draw of `samples`; -1 if it is not drawn."""
    order, n = sampler.order, sampler.samples
    numbers = np.arange(len(samples), dtype=np.int64)
    if not isinstance(order, Redrawing):
        return numbers, order.positions(samples, n, epoch)
    drawn, positions = order.draws(samples, n, epoch)
    never = np.setdiff1d(numbers, drawn)
    return np.concatenate([drawn, never]), np.concatenate([positions, np.full_like(never, -1)])


def _located(
    sampler: Served, samples: Positions, positions: Positions, epoch: int, start: int
) -> tuple[Positions, Positions, Positions]:
    """Return step, rank and row of each sample, or in place of the step why there is none."""
    order, n, skips = sampler.order, sampler.samples, sampler.skips
    places = positions if skips is None else skips.places(positions, order, n, epoch)
    step, rank, row = Steps.of(sampler, start, epoch=epoch).locate(places)
    step[places < start] = EARLIER
    step[positions < 0] = NOT_DRAWN
    if skips is not None:
        step[np.isin(samples, skips.samples)] = SKIPPED
    return step, rank, row


def _token_base(dataset: Spanned) -> Positions:
    """Return the first token of each split, as `spans` numbers them."""
    return np.cumsum([0, *(split.tokens for split in splits_of(dataset)[:-1])], dtype=np.int64)


def _pieces(dataset: Spanned, samples: Positions) -> Pieces:
    """Return the pieces of documents that `samples` consist of, sample by sample."""
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


def _pieces_of_split(
    split: Split, source: int, starts: Positions, stops: Positions, owners: Positions
) -> Pieces:
    """Return the pieces of documents in the spans `starts` to `stops`, none of them empty."""
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
    """Return the tokens between `begin` and `end` that `sample` touches, from the first to the
    last.
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
