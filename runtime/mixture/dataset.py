"""`MixtureDataset`: several datasets served as one, in any order of rows.

A batch is assembled from one batch of each source that contributes rows. In tensors with one entry
per row, the entries are copied to their positions in the new batch. Tensors that describe all rows
concatenated (`cu_seqlens`, `max_seqlen`) are computed from the same tensors of the sources. If the
batches of two sources do not match, an error names the sources and the difference.

A batch with rows of several sources costs one more memory copy than the batches of its sources, and
about 30 microseconds per source. The order of the rows comes from runtime/mixture/order.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError, name_dataset
from dataprep.formats.manifest.tokens import TokenizerEntry
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.sharded import distinct

from ..choices import By
from ..sample_numbers import PADDING, Indices, Ints, check_samples, sample_numbers
from ..types import IGNORED_LABEL, Batch, BatchDataset, SampleDataset
from .order import WeightedSource, WeightedSources
from .schedule import MAX_PERIOD, TOLERANCE, Weight

__all__ = ["MixedDataset", "MixtureDataset", "SourcePadding", "SourceRows", "check_fit", "merge"]

_FIRST = np.zeros(1, np.int64)


class MixedDataset(SampleDataset, Protocol):
    """Interface of the datasets of a mixture, each with the samples of one split.

    A dataset that pads its rows also has the attributes `padding` and `pad_id`
    (runtime/padding.py).
    """

    split: Split

    def covering(self, start: int, stop: int) -> Ints:
        """Return all samples that contain a token of the range `start` to `stop` of the split.

        The array is int64 and increasing.
        """
        ...


class MixtureDataset(BatchDataset):
    """Dataset that contains the samples of several named datasets, numbered consecutively.

    With `source_ids`, every batch has a tensor `source`, int64 [rows]: the index of the dataset of
    each row, or -1 for `PADDING`. The other tensors are the tensors of the datasets, so the batches
    of all datasets must have the same tensors and row shapes. If each source pads its rows to the
    longest row of a batch, the rows are padded further, to the longest row of all sources, with the
    pad id and the padding side of their source. Document ids are not renumbered: rows from
    different sources may have equal ids.

    The constructor reads one row of each source. It raises `UsageError` (E_MIXTURE) if the batches
    do not match. It raises `IncompatibleError` (E_TOKENIZER) if the sources have different
    tokenizers, or different options for EOS, BOS and special text, because the same ids would then
    mean different texts. With `mixed_tokenizers`, tokenizers are not compared. The mixture can be
    pickled if its datasets can.

        >>> both = MixtureDataset({"prose": prose, "code": code})            # doctest: +SKIP
        >>> order = both.mixture({"prose": 0.7, "code": 0.3}).order(seed=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        sources: Mapping[str, MixedDataset],
        *,
        source_ids: bool = False,
        mixed_tokenizers: bool = False,
    ) -> None:
        if not sources:
            raise UsageError("a mixture needs at least one source", where="sources")
        self.sources = dict(sources)
        self.source_ids = source_ids
        self.base = np.cumsum([0, *map(len, sources.values())], dtype=np.int64)
        self._datasets = tuple(sources.values())
        self._names = tuple(sources)
        if not mixed_tokenizers:
            _check_tokenizers(self.sources)
        self._paddings = tuple(map(_padding_of, self._datasets))
        check_fit([self._part(which, _FIRST, _FIRST) for which in range(len(sources))])

    def __len__(self) -> int:
        return int(self.base[-1])

    def __repr__(self) -> str:
        return f"<dataprep.MixtureDataset {', '.join(self._names[:8])}: {len(self):,} samples>"

    @property
    def splits(self) -> tuple[Split, ...]:
        """Return the split of each source."""
        return tuple(dataset.split for dataset in self._datasets)

    @property
    def definition(self) -> dict[str, Any]:
        """Return the contents, sizes and row options that determine the samples, as JSON values."""
        return {
            "kind": "mixture", "content": [d.split.content_id for d in self._datasets],
            "samples": [len(d) for d in self._datasets],
            "rows": [dict(d.definition) for d in self._datasets],
        }  # fmt: skip

    def mixture(
        self,
        weights: Mapping[str, Weight],
        *,
        by: By = "samples",
        tokens_per_sample: Mapping[str, Weight] | None = None,
        max_period: int = MAX_PERIOD,
        tolerance: float = TOLERANCE,
    ) -> WeightedSources:
        """Return the sources with their `weights`; for the other arguments see `WeightedSources`.

        The arguments `weights` and `tokens_per_sample` map the name of each source to a value.
        `tokens_per_sample` may be left out. Raise `UsageError` (E_WEIGHTS) if a name is missing or
        unknown.
        """
        means = tokens_per_sample or {}
        for where, names in (("weights", set(weights)), ("tokens_per_sample", set(means))):
            odd = names ^ set(self._names) if names or where == "weights" else set()
            if odd:
                raise UsageError(
                    f"{', '.join(sorted(odd))}: missing here or no source; the sources are "
                    f"{', '.join(self._names)}", where=where, code="E_WEIGHTS",
                )  # fmt: skip
        sources = [
            WeightedSource(
                name=name, content_id=dataset.split.content_id, samples=len(dataset),
                weight=weights[name], tokens_per_sample=means.get(name),
            )
            for name, dataset in self.sources.items()
        ]  # fmt: skip
        return WeightedSources(sources, by=by, max_period=max_period, tolerance=tolerance)

    def by_source(self, samples: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield (source, rows, own) for each source that has samples in `samples`.

        `source` is the index of the source. `rows` are all i for which ``samples[i]`` belongs to
        the source. `own` are these samples, numbered from 0 within the source. `PADDING` stays
        `PADDING`, and counts as a sample of the first source. Raise `IndexError` for any other
        number outside 0 .. len - 1.
        """
        check_samples(samples[samples != PADDING], len(self))
        source = np.maximum(np.searchsorted(self.base, samples, "right") - 1, 0)
        for which in distinct(source).tolist():
            rows = np.flatnonzero(source == which)
            own = samples[rows]
            yield which, rows, np.where(own == PADDING, PADDING, own - self.base[which])

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return starts and stops (int64) of the token ranges that reading `samples` touches.

        The tokens of all `splits` are numbered consecutively.
        """
        tokens = self._token_base()
        found = [np.empty((2, 0), np.int64)]
        for which, _, own in self.by_source(samples[samples != PADDING]):
            try:
                spans = np.stack(self._datasets[which].spans(own))
            except DataprepError as error:
                self._add_name(error, which)
                raise
            found.append(spans + tokens[which])
        starts, stops = np.concatenate(found, axis=1)
        return starts, stops

    def covering(self, start: int, stop: int) -> Ints:
        """Return all samples that contain a token of the range `start` to `stop`.

        The tokens are numbered as in `spans`. The array is int64 and increasing. The call takes as
        long as calling `covering` of each source that has some of these tokens.
        """
        tokens = self._token_base()
        first, last = np.searchsorted(tokens, start, "right") - 1, np.searchsorted(tokens, stop)
        found = [np.empty(0, np.int64)]
        for which in range(int(first), int(last) if start < stop else int(first)):
            low, high = max(start, int(tokens[which])), min(stop, int(tokens[which + 1]))
            part = self._datasets[which]
            try:
                own = part.covering(low - int(tokens[which]), high - int(tokens[which]))
            except DataprepError as error:
                self._add_name(error, which)
                raise
            found.append(own + self.base[which])
        return np.concatenate(found)

    def _token_base(self) -> Ints:
        """Return an int64 array with the position of the first token of each split, as in `spans`.

        The last item is the total number of tokens.
        """
        return np.cumsum([0, *(split.tokens for split in self.splits)], dtype=np.int64)

    def batch(self, indices: Indices) -> Batch:
        """Return a batch of the samples `indices`, in this order; each tensor has its own memory.

        Raise `IndexError` for an index outside 0 .. len - 1.
        """
        samples = sample_numbers(indices, len(self))
        parts = [self._part(which, rows, own) for which, rows, own in self.by_source(samples)]
        batch = merge(parts, len(samples)) if parts else self._datasets[0].batch(samples)
        if self.source_ids:
            source = np.searchsorted(self.base, samples, "right") - 1  # -1 for PADDING
            batch["source"] = torch.from_numpy(source)
        return batch

    def _part(self, which: int, rows: Ints, own: Ints) -> SourceRows:
        """Return the samples `own` of source `which`, to become the rows `rows` of a batch."""
        try:
            batch = self._datasets[which].batch(own)
        except DataprepError as error:
            self._add_name(error, which)
            raise
        return SourceRows(self._names[which], rows, batch, self._paddings[which])

    def _add_name(self, error: DataprepError, which: int) -> None:
        """Add the path of source `which` to `error`, written as the user gave it."""
        path, name = self._datasets[which].split.dataset.path, self._names[which]
        name_dataset(error, name if Path(name).absolute() == path else path)


def _padding_of(dataset: MixedDataset) -> SourcePadding | None:
    """Return the padding of a dataset that pads rows to the longest of a batch, else None."""
    padding = getattr(dataset, "padding", None)
    if padding is None or padding.pad_to != "longest":
        return None
    return SourcePadding(getattr(dataset, "pad_id", 0), padding.side == "left")


def _check_tokenizers(sources: Mapping[str, MixedDataset]) -> None:
    """Raise `IncompatibleError` unless all sources have the same tokenizer and token options.

    The options of a chat dataset are compared only with the options of other chat datasets, because
    a chat template determines EOS, BOS and special text.
    """
    firsts: dict[bool, str] = {}
    entries = {name: part.split.dataset.manifest.tokenizer for name, part in sources.items()}
    for name, entry in entries.items():
        first = next(iter(sources))
        if entry.sha256 != entries[first].sha256:
            raise _other_tokenizer(
                name, f"tokenizer {entry.sha256[:12]}", first, entries[first].sha256[:12]
            )
        first = firsts.setdefault(sources[name].split.dataset.chat is None, name)
        for what, ours, theirs in zip(
            _TOKEN_OPTIONS, _token_options(entry), _token_options(entries[first]), strict=True
        ):
            if ours != theirs:
                raise _other_tokenizer(name, f"{what} {ours}", first, theirs)


_TOKEN_OPTIONS = ("--eos", "--bos", "--special-text")


def _token_options(entry: TokenizerEntry) -> tuple[str, str, str]:
    """Return the values of `_TOKEN_OPTIONS` for the tokenizer `entry`, as texts for messages."""
    eos, bos = ("added" if added else "none" for added in (entry.add_eos, entry.add_bos))
    return eos, bos, entry.special_text


def _other_tokenizer(name: str, ours: str, first: str, theirs: str) -> IncompatibleError:
    return IncompatibleError(
        f"was built with {ours}, and {first} with {theirs}", where=f"source {name}",
        code="E_TOKENIZER",
        remedy="Build them with the same options, or pass mixed_tokenizers=True to the mixture.",
    )  # fmt: skip


class SourcePadding(NamedTuple):
    """Padding id and side of a source that pads its rows to the longest row of a batch."""

    pad_id: int
    left: bool


class SourceRows(NamedTuple):
    """The rows of a batch that come from one source.

    `name` is the name of the source. `batch` holds its rows, and `rows` their indices in the whole
    batch. `padding` is None if the rows of the source have the same length in all batches.
    """

    name: str
    rows: npt.NDArray[np.int64]
    batch: Batch
    padding: SourcePadding | None = None


def merge(parts: Sequence[SourceRows], rows: int) -> Batch:
    """Return a batch of `rows` rows from `parts`. Raise `UsageError` if the parts do not match."""
    if len(parts) == 1:
        return parts[0].batch
    check_fit(parts)
    return {
        name: _MERGED[name](parts, rows) if name in _MERGED else _scatter(name, parts, rows)
        for name in parts[0].batch
    }


def _scatter(name: str, parts: Sequence[SourceRows], rows: int) -> torch.Tensor:
    first = parts[0].batch[name]
    shapes = [part.batch[name].shape[1:] for part in parts]
    shape = tuple(map(max, zip(*shapes, strict=True)))  # the longest of the sources
    out = torch.empty((rows, *shape), dtype=first.dtype)
    target = out.numpy()  # whose copy by rows is twice as fast as torch's
    for part in parts:
        _put(target, name, part)
    return out


def _put(target: npt.NDArray[Any], name: str, part: SourceRows) -> None:
    """Write the field `name` of `part` into its rows of `target`. Pad rows that are too short."""
    values = part.batch[name].numpy()
    if part.padding is None or values.shape[1:] == target.shape[1:]:
        target[part.rows] = values
        return
    missing = [to - of for to, of in zip(target.shape[1:], values.shape[1:], strict=True)]
    sides = [(more, 0) if part.padding.left else (0, more) for more in missing]
    blank = _fill_value(name, part.padding.pad_id)
    target[part.rows] = np.pad(values, ((0, 0), *sides), constant_values=blank)


def _fill_value(name: str, pad_id: int) -> int:
    """Return the value that pads the field `name`: `pad_id` for ids, otherwise a constant.

    >>> names = ("input_ids", "chosen_labels", "doc_ids", "attention_mask")
    >>> [_fill_value(name, 9) for name in names]
    [9, -100, -1, 0]
    """
    if name.endswith("input_ids") or name == "responses":
        return pad_id
    if name.endswith("labels"):
        return IGNORED_LABEL
    return -1 if name == "doc_ids" else 0


def _merge_cu_seqlens(parts: Sequence[SourceRows], rows: int) -> torch.Tensor:
    """Return `cu_seqlens` (int32) of all rows of the parts, concatenated in batch order.

    The unused items at the end contain the total number of tokens. No segment extends over two
    rows, so each segment moves with its row.
    """
    begins = []
    for part in parts:
        stops = part.batch["cu_seqlens"].numpy().astype(np.int64)
        begin = stops[:-1][stops[1:] > stops[:-1]]
        row, inside = np.divmod(begin, stops[-1] // len(part.rows))
        begins.append(part.rows[row] * (stops[-1] // len(part.rows)) + inside)
    tokens = sum(int(part.batch["cu_seqlens"][-1]) for part in parts)
    out = np.full(rows * _room(parts[0]) + 1, tokens, np.int32)
    begun = np.sort(np.concatenate(begins))
    out[: len(begun)] = begun
    return torch.from_numpy(out)


def _merge_max_seqlen(parts: Sequence[SourceRows], rows: int) -> torch.Tensor:
    return torch.stack([part.batch["max_seqlen"] for part in parts]).max()


# Tensors without an axis of rows, and the functions that merge them.
_MERGED = {"cu_seqlens": _merge_cu_seqlens, "max_seqlen": _merge_max_seqlen}


def check_fit(parts: Sequence[SourceRows]) -> None:
    """Raise `UsageError` unless all parts have the same tensors, with equal dtypes and row shapes.

    Row lengths may differ between parts that pad rows to the longest row of a batch. Each part must
    have at least one row.
    """
    first = parts[0]
    for part in parts[1:]:
        if not _fits(first, part):
            mine, other = _rows(first), _rows(part)
            raise _unfit(f"differ: {first.name} has {mine}, {part.name} has {other}")
    if "cu_seqlens" in first.batch:
        _check_room(parts)


def _fits(one: SourceRows, other: SourceRows) -> bool:
    return one.batch.keys() == other.batch.keys() and all(
        tensor.dtype == other.batch[name].dtype
        and (name in _MERGED or _shape(one, name) == _shape(other, name))
        for name, tensor in one.batch.items()
    )


def _shape(part: SourceRows, name: str) -> tuple[int | str, ...]:
    """Return the shape of a row in the field `name`.

    If the source pads rows to the longest row of a batch, each length is replaced by "longest".
    """
    shape = part.batch[name].shape[1:]
    return ("longest",) * len(shape) if part.padding is not None else tuple(shape)


def _check_room(parts: Sequence[SourceRows]) -> None:
    least, most = (choose(parts, key=_room) for choose in (min, max))
    if _room(least) != _room(most):
        raise _unfit(
            f"differ: {least.name} has cu_seqlens with room for {_room(least):,} segments a row, "
            f"{most.name} for {_room(most):,}", f"Make all of them with cu_seqlens={_room(most)}.",
        )  # fmt: skip


def _room(part: SourceRows) -> int:
    return (len(part.batch["cu_seqlens"]) - 1) // len(part.rows)


def _rows(part: SourceRows) -> str:
    found = []
    for name, tensor in sorted(part.batch.items()):
        dtype, shape = str(tensor.dtype).removeprefix("torch."), _shape(part, name)
        found.append(f"{name} {dtype} [{', '.join(map(str, shape))}]")
    return ", ".join(found)


def _unfit(
    problem: str, remedy: str = "Make them with the same seq_len, labels and other fields."
) -> UsageError:
    return UsageError(
        f"the rows of the sources {problem}", where="sources", code="E_MIXTURE", remedy=remedy
    )
