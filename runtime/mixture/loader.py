"""`mixed_loader`: a loader over several datasets in the exact shares of their weights.

`create_loader` comes here when it is given datasets with weights. What is served is fixed by the
contents in the order given, the weights, the seed and the options of the rows, and by no path: a
dataset may be moved, or named in another way, and states stay good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.dataset import Dataset, Split

from ..loader.loader import Loader
from ..loader.serve import Shuffle, shuffle_kind
from ..loader.state_order import compared
from ..opening import open_tokens
from ..order.blocks import Blocks, block_sizes
from ..order.phased import Spot
from ..order.skips import Skips, skips_of
from ..rows.documents import DocumentDataset
from ..rows.packed import PackedDataset
from ..rows.preferences import PreferenceDataset
from ..rows.windows import WindowDataset
from .dataset import MixedDataset, MixtureDataset
from .order import By, MixtureOrder, Realised, WeightedSources
from .phases import Phase, source_of

__all__ = ["mean_tokens", "mixed_loader", "realised"]

_LEAST_BLOCKS = 64  # in a window of one source, which may itself consist of several


def mixed_loader(
    served: Callable[..., Loader],
    make: Callable[[Split], MixedDataset],
    weights: Mapping[Any, float],
    split: str,
    *,
    seed: int,
    shuffle: Shuffle | bool,
    io: Literal["mmap", "pread"] | None = None,
    by: By = "samples",
    source_ids: bool = False,
    skip: Mapping[Any, Iterable[int] | Skips | None] | None = None,
    weights_changed: bool = False,
    mixed_tokenizers: bool = False,
) -> Loader:
    """Return the loader of a mixture: `make` opens a split, `served` makes the loader.

    `weights` has a dataset directory, or an open `Dataset`, and its weight. ``"blocks"`` shuffles
    each source in pieces, with windows of 1 GiB over all sources together (and of 256 MiB for each
    at least). The other arguments are those of `create_loader`.

    Raises what `open_dataset`, `MixtureDataset` and `WeightedSources` raise, and `UsageError` for a
    dataset given twice under one name, for an unknown `shuffle` or `by`, and for samples to
    `skip` that there are not.
    """
    kind = shuffle_kind(shuffle)
    named = _named(weights)
    parts = {}
    for name, place in named.items():
        with naming_dataset(name):
            parts[name] = make(open_tokens(place, io).split(split))
    _equal_rooms(parts)
    samples = MixtureDataset(parts, source_ids=source_ids, mixed_tokenizers=mixed_tokenizers)
    # The mean of documents takes reading all their lengths: only where the order depends on it.
    told = all(isinstance(part, WindowDataset | PackedDataset) for part in parts.values())
    known = by == "tokens" or told
    mixture = samples.mixture(
        dict(zip(named, weights.values(), strict=True)), by=by,
        tokens_per_sample=_means(parts) if known else None,
    )  # fmt: skip
    definition = {
        **_common(samples.definition["rows"]), **mixture.definition, "shuffle": kind or None,
    }  # fmt: skip
    if kind is not False:
        definition["seed"] = seed
    order = mixture.order(
        seed=seed, shuffle=kind is not False, skip=_skips(skip or {}),
        weights_changed=weights_changed,
    )  # fmt: skip
    if kind == "blocks":
        orders = _in_blocks(mixture, parts, seed)
        order = replace(order, orders=orders, phases=())
    return served(samples, order=order, definition=definition, positions=mixture.samples)


def realised(loader: Loader) -> dict[str, Realised]:
    """Return what a loader of a mixture has handed over of each source, by name.

    Counted from its state and not kept: from epoch 0 on, as this loader serves it with its batch
    size (what `drop_last` leaves out at the end of an epoch does not count), up to the last batch
    handed over; so a resumed run counts what ran before, with other weights too: a dataset that is
    no longer there goes by its content id. `tokens` are samples times their mean, and None for
    documents weighed by samples; `passes` are as long as they are now. Raises `UsageError` for the
    loader of a single dataset. Costs some 20 microseconds, and with `drop_last` as much for every
    epoch; after a change of weights also the schedule of those before.

        >>> realised(loader)["code"]                                        # doctest: +SKIP
        {'samples': 1200, 'tokens': 1228800, 'passes': 0.31}
    """
    sampler = loader.sampler_obj
    order = sampler.order
    if not isinstance(order, MixtureOrder):
        raise UsageError("serves one dataset, and no mixture", where="loader")
    state, mixture = loader.state_dict(), order.mixture
    now = replace(
        order.phase, positions=sampler.samples, end=Spot(state["epoch"], state["position"])
    )
    cut = sampler.global_batch if sampler.end == "drop" else 1
    samples, sizes = Counter[str](), dict[str, int]()
    for phase in (*order.phases[:-1], now):
        schedule = mixture.schedule if phase is now else phase.schedule()
        sizes.update(zip(phase.sources, phase.samples, strict=True))
        for sign, draws in _handed_over(phase, cut):
            for key, count in zip(phase.sources, schedule.counts(draws).tolist(), strict=True):
                samples[key] += sign * count
    found = mixture.drawn(np.array([samples.pop(key) for key in now.sources]), order.served)
    for key, count in samples.items():
        name = f"content {source_of(key)}"
        found[name] = Realised(samples=count, tokens=None, passes=count / sizes[key])
    return found


def _handed_over(phase: Phase, cut: int) -> Iterator[tuple[int, int]]:
    """Yield signs and draws of the schedule: 1 to add what was drawn up to there, -1 to subtract.

    Samples that do not fill a global batch of `cut` at the end of an epoch do not count.
    """
    begin, end = phase.begin, phase.end or phase.begin
    yield -1, phase.draws
    yield 1, phase.draws_at(end)
    for epoch in range(begin.epoch, end.epoch if cut > 1 else begin.epoch):
        rest = (phase.positions - (begin.position if epoch == begin.epoch else 0)) % cut
        if rest:
            yield -1, phase.draws_at(Spot(epoch, phase.positions))
            yield 1, phase.draws_at(Spot(epoch, phase.positions - rest))


def _means(parts: Mapping[str, MixedDataset]) -> dict[str, Fraction]:
    found = {}
    for name, part in parts.items():
        with naming_dataset(name):
            found[name] = mean_tokens(part)
    return found


def mean_tokens(samples: MixedDataset) -> Fraction:
    """Return the mean tokens of a sample, padding not counted: exact.

    Immediate for windows and packed rows; for documents costs reading the lengths of all, 8 bytes
    each. Raises `UsageError` for other datasets.
    """
    if isinstance(samples, WindowDataset):
        return Fraction(samples.seq_len)
    if isinstance(samples, PackedDataset):
        return Fraction(samples.report.tokens, samples.report.rows)
    if isinstance(samples, PreferenceDataset) and samples.overlong == "error":
        return Fraction(max(1, samples.split.tokens), len(samples))  # whole records
    if not isinstance(samples, DocumentDataset):
        raise UsageError(
            f"the mean tokens of a {type(samples).__name__} are not known", where="by",
            remedy="Use MixtureDataset.mixture(tokens_per_sample=...) and serve.",
        )  # fmt: skip
    longest = samples.max_length or np.iinfo(np.int64).max
    tokens = 0
    for lengths in samples.split.shard_lengths():
        served = lengths[lengths >= samples.min_tokens]
        tokens += int(np.minimum(served, longest).sum())
    return Fraction(max(1, tokens), len(samples))


def _name(place: str | Path | Dataset) -> str:
    """Return the name of a dataset in messages: the path, as given."""
    return str(place.path if isinstance(place, Dataset) else place)


def _skips(given: Mapping[Any, Iterable[int] | Skips | None]) -> dict[str, Skips]:
    """Return the skip lists by the name of their dataset."""
    return {_name(place): skips_of(skip) for place, skip in given.items()}


def _named(weights: Mapping[Any, float]) -> dict[str, str | Path | Dataset]:
    """Return the datasets by name."""
    found: dict[str, str | Path | Dataset] = {}
    for place in weights:
        name = _name(place)
        if name in found:
            raise UsageError(
                f"{name} is given twice", where="dataset_dir", code="E_MIXTURE",
                remedy="Give it once, with the sum of the weights.",
            )  # fmt: skip
        found[name] = place
    return found


def _equal_rooms(parts: Mapping[str, MixedDataset]) -> None:
    """Give `cu_seqlens` of packed rows room for the fullest row of any source.

    Each source made room for its own, and a batch has one shape whatever sources it is of.
    """
    packed = [part for part in parts.values() if isinstance(part, PackedDataset)]
    room = max((part.fields.cu_seqlens for part in packed), default=False)
    for part in packed:
        part.fields = replace(part.fields, cu_seqlens=room)


def _common(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the definition of the rows of all sources: shared fields, and `rows`, the kind.

    Other fields are in `rows_of_sources`, without the names of splits.
    """
    shared = {k: v for k, v in rows[0].items() if all(other.get(k) == v for other in rows)}
    shared["rows"] = shared.pop("kind", None)
    rows = [compared(row) for row in rows]
    return shared if all(row == rows[0] for row in rows) else {**shared, "rows_of_sources": rows}


def _in_blocks(
    mixture: WeightedSources, parts: Mapping[str, MixedDataset], seed: int
) -> tuple[Blocks, ...]:
    """Return an order in blocks for each source; together they have one window."""
    orders = []
    for source, purpose, part in zip(
        mixture.sources, mixture.purposes(), parts.values(), strict=True
    ):
        split = part.split
        block, window = block_sizes(max(1, split.tokens * split.dtype.itemsize // len(part)))
        orders.append(Blocks(
            content_id=source.content_id, seed=seed, purpose=purpose, block=block,
            window=max(_LEAST_BLOCKS, window // len(parts)), default_sizes=True,
        ))  # fmt: skip
    return tuple(orders)
