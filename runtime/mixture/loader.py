"""`mixed_loader`: a loader over several datasets, in proportion to their weights.

`create_loader` calls it for datasets with weights. The samples served depend on the contents of the
datasets, the sequence in which they are given, the weights, the seed and the options of the rows.
They do not depend on paths, so states remain valid if a dataset is moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.dataset import Dataset, Split

from ..choices import By
from ..loader.loader import Loader
from ..loader.order_match import comparable
from ..loader.serve import Shuffle, shuffle_kind
from ..opening import open_tokens
from ..order.blocks import Blocks, block_sizes
from ..order.phased import Spot
from ..order.skips import Skips, skips_of
from ..rows.documents import DocumentDataset
from ..rows.packed import PackedDataset
from ..rows.preferences import PreferenceDataset
from ..rows.windows import WindowDataset
from .dataset import MixedDataset, MixtureDataset
from .order import MixtureOrder, Realised, WeightedSources
from .phases import Phase, source_of

__all__ = ["mean_tokens", "mixed_loader", "realised"]

_LEAST_BLOCKS = 64  # in a window of a source, whose documents may come from several places


def mixed_loader(
    served: Callable[..., Loader],
    make: Callable[[Split], MixedDataset],
    weights: Mapping[Any, float],
    split: str,
    *,
    seed: int,
    shuffle: Shuffle | bool,
    by: By = "samples",
    source_ids: bool = False,
    skip: Mapping[Any, Iterable[int] | Skips | None] | None = None,
    weights_changed: bool = False,
    mixed_tokenizers: bool = False,
) -> Loader:
    """Return the loader of a mixture.

    The function `make` makes the dataset of a source from its split. The function `served` makes
    the loader from the mixture, as `serve` does. The argument `weights` maps dataset directories,
    or open datasets, to weights. ``shuffle="blocks"`` shuffles blocks of each source, with windows
    of 1 GiB for all sources together (and at least 256 MiB for each). The other arguments are those
    of `create_loader`.

    Raise the errors of `open_dataset`, `MixtureDataset` and `WeightedSources`. Raise `UsageError`
    if a dataset is given twice under one name, if `shuffle` or `by` is unknown, or if a number in
    `skip` is not a sample.
    """
    kind = shuffle_kind(shuffle)
    named = _named(weights)
    parts = {}
    for name, place in named.items():
        with naming_dataset(name):
            parts[name] = make(open_tokens(place).split(split))
    _equal_rooms(parts)
    samples = MixtureDataset(parts, source_ids=source_ids, mixed_tokenizers=mixed_tokenizers)
    # The mean of documents costs reading all lengths: only if the order depends on it.
    immediate = all(isinstance(part, WindowDataset | PackedDataset) for part in parts.values())
    known = by == "tokens" or immediate
    mixture = samples.mixture(
        dict(zip(named, weights.values(), strict=True)), by=by,
        tokens_per_sample=_means(parts) if known else None,
    )  # fmt: skip
    definition = {
        **_common_definition(samples.definition["rows"]), **mixture.definition,
        "shuffle": kind or None,
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
    """Return how much a loader of a mixture has served from each source, by name.

    The amounts are computed from the state of the loader, for all epochs up to the last batch
    yielded, as if all batches had the present batch size. Samples that `drop_last` leaves out at
    the end of an epoch do not count. A resumed run includes the samples served before it was
    resumed, even with different weights. A dataset that is no longer in the mixture appears under
    its content id.

    In the result, `tokens` is the number of samples times their mean number of tokens. It is None
    if the weights are shares of samples, unless all rows are windows or packed rows. `passes` is
    the number of samples divided by the present number of samples in a pass. Raise `UsageError` for
    the loader of a single dataset.

    The call takes about 20 microseconds, or with `drop_last` about 20 microseconds per epoch.
    After a change of weights, it also computes the schedules of the earlier phases.

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
        for sign, draws in _served_draws(phase, cut):
            for key, count in zip(phase.sources, schedule.counts(draws).tolist(), strict=True):
                samples[key] += sign * count
    found = mixture.drawn(np.array([samples.pop(key) for key in now.sources]), order.served)
    for key, count in samples.items():
        name = f"content {source_of(key)}"
        found[name] = Realised(samples=count, tokens=None, passes=count / sizes[key])
    return found


def _served_draws(phase: Phase, cut: int) -> Iterator[tuple[int, int]]:
    """Yield pairs (sign, position) from which the samples served in `phase` can be counted.

    The number of samples of each source is the sum of ``sign * schedule.counts(position)`` over all
    pairs. If `cut` is 1, the pairs are ``(-1, start)`` and ``(1, end)``. If incomplete global
    batches are dropped, `cut` is the size of a global batch. Two more pairs for each epoch then
    subtract the samples that were dropped at the end of the epoch.
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
    """Return the exact mean number of tokens in a sample, without padding.

    The call is fast for windows, packed rows and preferences with ``overlong="error"``. For
    documents it reads the lengths of all documents, 8 bytes each. Raise `UsageError` for any other
    kind of dataset.
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


def _dataset_name(place: str | Path | Dataset) -> str:
    """Return the name of a dataset for messages: its path, as the user gave it."""
    return str(place.path if isinstance(place, Dataset) else place)


def _skips(given: Mapping[Any, Iterable[int] | Skips | None]) -> dict[str, Skips]:
    """Return the skip list of each dataset in `given`, by the name of the dataset."""
    return {_dataset_name(place): skips_of(skip) for place, skip in given.items()}


def _named(weights: Mapping[Any, float]) -> dict[str, str | Path | Dataset]:
    """Return the datasets in `weights` by name. Raise `UsageError` if two have the same name."""
    found: dict[str, str | Path | Dataset] = {}
    for place in weights:
        name = _dataset_name(place)
        if name in found:
            raise UsageError(
                f"{name} is given twice", where="dataset_dir", code="E_MIXTURE",
                remedy="Give it once, with the sum of the weights.",
            )  # fmt: skip
        found[name] = place
    return found


def _equal_rooms(parts: Mapping[str, MixedDataset]) -> None:
    """Give `cu_seqlens` the same length in all packed sources: the largest that a source needs.

    All batches of a mixture must have one shape, but each source chose a length for its own rows.
    """
    packed = [part for part in parts.values() if isinstance(part, PackedDataset)]
    room = max((part.fields.cu_seqlens for part in packed), default=False)
    for part in packed:
        part.fields = replace(part.fields, cu_seqlens=room)


def _common_definition(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields that are equal in the row definitions of all sources.

    The field `kind` is renamed to `rows`. If the definitions differ in more than the names of
    splits, the field `rows_of_sources` lists all definitions without these names.
    """
    shared = {k: v for k, v in rows[0].items() if all(other.get(k) == v for other in rows)}
    shared["rows"] = shared.pop("kind", None)
    rows = [comparable(row) for row in rows]
    return shared if all(row == rows[0] for row in rows) else {**shared, "rows_of_sources": rows}


def _in_blocks(
    mixture: WeightedSources, parts: Mapping[str, MixedDataset], seed: int
) -> tuple[Blocks, ...]:
    """Return a `Blocks` order for each source.

    The usual window is divided by the number of sources, so all windows together need the memory of
    one usual window. Each window has at least `_LEAST_BLOCKS` blocks.
    """
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
