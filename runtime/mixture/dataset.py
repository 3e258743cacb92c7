"""Several datasets served as one: a batch asks each source once and keeps the order of its rows.

Tensors with an axis of rows are scattered, one memory copy each; tensors over all rows laid end to
end (`cu_seqlens`, `max_seqlen`) are computed from those of the sources. Sources that do not fit
together are an error that names them and the difference.

Costs one more memory copy of the batch than its sources, if it has rows of more than one, and about
30 microseconds for each source in it. The order of the rows is runtime/mixture/order.py.
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

from ..sample_numbers import PADDING, Indices, Ints, check_samples, sample_numbers
from ..types import IGNORED_LABEL, Batch, BatchDataset, SampleDataset
from .order import By, Source, WeightedSources
from .schedule import MAX_PERIOD, TOLERANCE, Weight

__all__ = ["Filling", "MixedDataset", "MixtureDataset", "Part", "check_fit", "merge"]

_FIRST = np.zeros(1, np.int64)


class MixedDataset(SampleDataset, Protocol):
    """Interface of the datasets of a mixture: samples of one split.

    A dataset whose rows are padded has a `padding` (runtime/padding.py) and a `pad_id`.
    """

    split: Split

    def covering(self, start: int, stop: int) -> Ints:
        """Return the samples that touch a token of `start` to `stop`, int64, increasing."""
        ...


class MixtureDataset(BatchDataset):
    """The samples of several datasets, by name, numbered one after the other.

    `source_ids` adds a tensor `source` to every batch, int64 [rows]: the number of the dataset that
    each row is from, -1 for `PADDING`. Everything else is what the datasets give, whose batches
    must have the same tensors and row shapes. Rows that each source pads to its longest are padded
    on, to the longest of all, each with the pad of its source and on the side that it pads.
    Document ids stay those of each split.

    Reads one row of each source. Raises `UsageError` (E_MIXTURE) where they do not fit together,
    and `IncompatibleError` (E_TOKENIZER) where their tokenizers differ, or whether EOS and BOS were
    added and special text was parsed, unless `mixed_tokenizers`: the same ids would mean different
    texts, and documents would end differently. Pickles as its datasets.

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
        self._fillings = tuple(map(_filling, self._datasets))
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
        """Return what decides what sample `i` is, builds included: JSON values."""
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
        """Return these sources with a weight for each, by name."""
        means = tokens_per_sample or {}
        for where, names in (("weights", set(weights)), ("tokens_per_sample", set(means))):
            odd = names ^ set(self._names) if names or where == "weights" else set()
            if odd:
                raise UsageError(
                    f"{', '.join(sorted(odd))}: missing here or no source; the sources are "
                    f"{', '.join(self._names)}", where=where, code="E_WEIGHTS",
                )  # fmt: skip
        sources = [
            Source(
                name=name, content_id=dataset.split.content_id, samples=len(dataset),
                weight=weights[name], tokens_per_sample=means.get(name),
            )
            for name, dataset in self.sources.items()
        ]  # fmt: skip
        return WeightedSources(sources, by=by, max_period=max_period, tolerance=tolerance)

    def by_source(self, samples: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield the number of a source, the rows of `samples` that are its, their numbers in it.

        `PADDING` is passed to the first source. Raises `IndexError` for other numbers outside
        0 .. len - 1.
        """
        check_samples(samples[samples != PADDING], len(self))
        source = np.maximum(np.searchsorted(self.base, samples, "right") - 1, 0)
        for which in np.unique(source).tolist():
            rows = np.flatnonzero(source == which)
            own = samples[rows]
            yield which, rows, np.where(own == PADDING, PADDING, own - self.base[which])

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return starts and stops of what reading `samples` touches, in tokens of all `splits`.

        The tokens of the splits are numbered one after the other too.
        """
        tokens = self._token_base()
        found = [np.empty((2, 0), np.int64)]
        for which, _, own in self.by_source(samples[samples != PADDING]):
            try:
                spans = np.stack(self._datasets[which].spans(own))
            except DataprepError as error:
                self._name(error, which)
                raise
            found.append(spans + tokens[which])
        starts, stops = np.concatenate(found, axis=1)
        return starts, stops

    def covering(self, start: int, stop: int) -> Ints:
        """Return the samples that touch a token of `start` to `stop`, numbered as in `spans`.

        int64, increasing. Costs what `covering` of the sources costs that have these tokens.
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
                self._name(error, which)
                raise
            found.append(own + self.base[which])
        return np.concatenate(found)

    def _token_base(self) -> Ints:
        """Return where the tokens of each split begin in the numbers of `spans`, and the end."""
        return np.cumsum([0, *(split.tokens for split in self.splits)], dtype=np.int64)

    def batch(self, indices: Indices) -> Batch:
        """Return the samples at `indices`, row by row in that order; each tensor its own memory.

        Raises `IndexError` for an index outside 0 .. len - 1.
        """
        samples = sample_numbers(indices, len(self))
        parts = [self._part(which, rows, own) for which, rows, own in self.by_source(samples)]
        batch = merge(parts, len(samples)) if parts else self._datasets[0].batch(samples)
        if self.source_ids:
            source = np.searchsorted(self.base, samples, "right") - 1  # -1 for PADDING
            batch["source"] = torch.from_numpy(source)
        return batch

    def _part(self, which: int, rows: Ints, own: Ints) -> Part:
        """Return the batch of source `which` for its samples `own`, with their `rows`."""
        try:
            batch = self._datasets[which].batch(own)
        except DataprepError as error:
            self._name(error, which)
            raise
        return Part(self._names[which], rows, batch, self._fillings[which])

    def _name(self, error: DataprepError, which: int) -> None:
        """Add the name of source `which` to `error`: its path, as it was given if it was."""
        path, name = self._datasets[which].split.dataset.path, self._names[which]
        name_dataset(error, name if Path(name).absolute() == path else path)


def _filling(dataset: MixedDataset) -> Filling | None:
    """Return how rows are padded, if that depends on the batch."""
    padding = getattr(dataset, "padding", None)
    if padding is None or padding.pad_to != "longest":
        return None
    return Filling(getattr(dataset, "pad_id", 0), padding.side == "left")


def _check_tokenizers(sources: Mapping[str, MixedDataset]) -> None:
    """Raise `IncompatibleError` unless all ids are of one tokenizer, driven in one way.

    Conversations are compared with other conversations only: their template decides the places of
    EOS, BOS and special text.
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
            _POLICY, _policy(entry), _policy(entries[first]), strict=True
        ):
            if ours != theirs:
                raise _other_tokenizer(name, f"{what} {ours}", first, theirs)


_POLICY = ("--eos", "--bos", "--special-text")


def _policy(entry: TokenizerEntry) -> tuple[str, str, str]:
    """Return the tokenizer settings of a build, in the words of its options."""
    eos, bos = ("added" if added else "none" for added in (entry.add_eos, entry.add_bos))
    return eos, bos, entry.special_text


def _other_tokenizer(name: str, ours: str, first: str, theirs: str) -> IncompatibleError:
    return IncompatibleError(
        f"was built with {ours}, and {first} with {theirs}", where=f"source {name}",
        code="E_TOKENIZER",
        remedy="Build them with the same options, or pass mixed_tokenizers=True to the mixture.",
    )  # fmt: skip


class Filling(NamedTuple):
    """Padding of a source whose rows are padded to the longest of their batch."""

    pad_id: int
    left: bool


class Part(NamedTuple):
    """The rows of a batch that come from one source, and their batch.

    `filling` is None where its rows are equally long in all batches.
    """

    name: str
    rows: npt.NDArray[np.int64]
    batch: Batch
    filling: Filling | None = None


def merge(parts: Sequence[Part], rows: int) -> Batch:
    """Return one batch of all rows of `parts`."""
    if len(parts) == 1:
        return parts[0].batch
    check_fit(parts)
    return {
        name: _MERGED[name](parts, rows) if name in _MERGED else _scatter(name, parts, rows)
        for name in parts[0].batch
    }


def _scatter(name: str, parts: Sequence[Part], rows: int) -> torch.Tensor:
    first = parts[0].batch[name]
    shapes = [part.batch[name].shape[1:] for part in parts]
    shape = tuple(map(max, zip(*shapes, strict=True)))  # the longest of the sources
    out = torch.empty((rows, *shape), dtype=first.dtype)
    target = out.numpy()  # whose copy by rows is twice as fast as torch's
    for part in parts:
        _put(target, name, part)
    return out


def _put(target: npt.NDArray[Any], name: str, part: Part) -> None:
    """Put the rows of `part` into `target`, padded to its width if they are shorter."""
    values = part.batch[name].numpy()
    if part.filling is None or values.shape[1:] == target.shape[1:]:
        target[part.rows] = values
        return
    missing = [to - of for to, of in zip(target.shape[1:], values.shape[1:], strict=True)]
    sides = [(more, 0) if part.filling.left else (0, more) for more in missing]
    blank = _blank(name, part.filling.pad_id)
    target[part.rows] = np.pad(values, ((0, 0), *sides), constant_values=blank)


def _blank(name: str, pad_id: int) -> int:
    """Return the value of the field `name` in padding.

    >>> [_blank(name, 9) for name in ("input_ids", "chosen_labels", "doc_ids", "attention_mask")]
    [9, -100, -1, 0]
    """
    if name.endswith("input_ids") or name == "responses":
        return pad_id
    if name.endswith("labels"):
        return IGNORED_LABEL
    return -1 if name == "doc_ids" else 0


def _merge_cu_seqlens(parts: Sequence[Part], rows: int) -> torch.Tensor:
    """Return where the segments of all rows, laid end to end in batch order, stop.

    No segment reaches from a row into the next, so each moves with its row.
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


def _merge_max_seqlen(parts: Sequence[Part], rows: int) -> torch.Tensor:
    return torch.stack([part.batch["max_seqlen"] for part in parts]).max()


# Tensors without an axis of rows, and how those of the sources become one.
_MERGED = {"cu_seqlens": _merge_cu_seqlens, "max_seqlen": _merge_max_seqlen}


def check_fit(parts: Sequence[Part]) -> None:
    """Raise unless all have the same tensors, with rows of the same shape and type.

    Rows that are padded to the longest may differ in that length, and then must in all sources.
    Each part has one row or more.
    """
    first = parts[0]
    for part in parts[1:]:
        if not _fits(first, part):
            mine, other = _rows(first), _rows(part)
            raise _unfit(f"differ: {first.name} has {mine}, {part.name} has {other}")
    if "cu_seqlens" in first.batch:
        _check_room(parts)


def _fits(one: Part, other: Part) -> bool:
    return one.batch.keys() == other.batch.keys() and all(
        tensor.dtype == other.batch[name].dtype
        and (name in _MERGED or _shape(one, name) == _shape(other, name))
        for name, tensor in one.batch.items()
    )


def _shape(part: Part, name: str) -> tuple[int | str, ...]:
    """Return the shape of a row; "longest" stands for a length that depends on the batch."""
    shape = part.batch[name].shape[1:]
    return ("longest",) * len(shape) if part.filling is not None else tuple(shape)


def _check_room(parts: Sequence[Part]) -> None:
    least, most = (choose(parts, key=_room) for choose in (min, max))
    if _room(least) != _room(most):
        raise _unfit(
            f"differ: {least.name} has cu_seqlens with room for {_room(least):,} segments a row, "
            f"{most.name} for {_room(most):,}", f"Make all of them with cu_seqlens={_room(most)}.",
        )  # fmt: skip


def _room(part: Part) -> int:
    return (len(part.batch["cu_seqlens"]) - 1) // len(part.rows)


def _rows(part: Part) -> str:
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
