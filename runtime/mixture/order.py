"""`MixtureOrder`: one order over several sources, in proportion to their weights.

Samples of the sources are numbered consecutively: sample `i` of source `s` is ``base[s] + i``. At
each position of the mixture, the `Schedule` chooses a source, and the order of this source chooses
one of its samples. This is called a **draw** of the source. A pass over a source serves all its
samples, except the skipped ones, once. If a pass has `m` samples, draw `k` (from 0) of the source
serves sample ``k % m`` of pass ``k // m``. Each pass is a different permutation, and the end of a
pass does not end an epoch. Skipping samples does not change the schedule.

The order is one endless sequence, and an epoch is the next `n` positions of it, for any `n`. So an
epoch of a mixture is not a permutation of the samples: it may contain the samples of a source more
than once, or only some of them. In any prefix of the sequence, the number of samples of every
source is in proportion to the whole-number weights of the schedule, to within one sample.

A run whose weights, sources or skip lists change continues in a new phase
(runtime/mixture/phases.py). In the new phase, each source continues where it stopped:
`MixtureOrder.lead` is the number of draws to add to the counts of the schedule.

A call takes about 0.1 microseconds per position. It also computes one permutation, in about 30
microseconds, for each pass over each source that serves one of the positions. So calls should have
thousands of positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypedDict, get_args

import numpy as np

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import UsageError, require

from ..checks import name_of
from ..choices import By
from ..order.blocks import Blocks
from ..order.permutation import MAX_SAMPLES, Order, OrderKey, Positions, Sequential, Shuffled, key
from ..order.phased import Spot
from ..order.skips import Skips
from .phases import MAX_POSITION, Phase, next_phases, phases_from, sizes_of, source_of
from .schedule import MAX_PERIOD, TOLERANCE, Schedule, Weight, as_fraction

__all__ = ["MixtureOrder", "Realised", "WeightedSource", "WeightedSources"]


class Realised(TypedDict):
    """Amount served from a source, in samples, in tokens and in passes over the source.

    `tokens` is the number of samples times the mean number of tokens in a sample of the source, or
    None if the mean is not given.
    """

    samples: int
    tokens: int | None
    passes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedSource:
    """One source of a mixture.

    `name` is for messages and counts, and does not affect the order. `samples` is the number of
    samples in the source. `weight` is its share of the samples or of the tokens, relative to the
    other weights. `tokens_per_sample` is the mean number of tokens in a sample, which
    ``by="tokens"`` needs.
    """

    name: str
    content_id: str
    samples: int
    weight: Weight
    tokens_per_sample: Weight | None = None

    def __post_init__(self) -> None:
        require(
            1 <= self.samples <= MAX_SAMPLES, f"source {self.name}",
            f"has {self.samples:,} samples; there must be from 1 to 2**48",
        )  # fmt: skip


class WeightedSources:
    """The sources of a mixture, their weights, and the schedule that chooses a source per position.

    The argument `by` says whether the weights are shares of samples or of tokens. With ``"tokens"``
    each weight is divided by the mean number of tokens in a sample of the source, so the tokens
    served are in proportion to the weights. For `max_period` and `tolerance` see `whole_weights`.
    The constructor raises the errors of `whole_weights`, and `UsageError` if a name occurs twice or
    a mean is missing.

    >>> prose = WeightedSource(name="prose", content_id="a", samples=100, weight=0.75)
    >>> code = WeightedSource(name="code", content_id="b", samples=10, weight=0.25)
    >>> mixture = WeightedSources([prose, code])
    >>> mixture.schedule.weights, mixture.samples
    ((3, 1), 110)
    >>> mixture.realised(80)["code"]
    {'samples': 20, 'tokens': None, 'passes': 2.0}
    """

    def __init__(
        self,
        sources: Sequence[WeightedSource],
        *,
        by: By = "samples",
        max_period: int = MAX_PERIOD,
        tolerance: float = TOLERANCE,
    ) -> None:
        require(by in get_args(By), "by", f"must be one of {get_args(By)}, got {by!r}")
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, "sources", f"names must differ; given twice: {', '.join(twice)}")
        self.sources = tuple(sources)
        self.by = by
        self.sizes = np.array([source.samples for source in sources], np.int64)
        self.base = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        weights = [source.weight if by == "samples" else _per_token(source) for source in sources]
        self.schedule = Schedule(weights, names, max_period=max_period, tolerance=tolerance)

    @property
    def samples(self) -> int:
        """Return the number of samples in all sources: the usual length of an epoch."""
        return int(self.base[-1])

    @property
    def definition(self) -> dict[str, Any]:
        """Return the values that, together with the seed, determine the order, as JSON values.

        The lists `content`, `weights` (whole numbers per period) and `samples` have a value for
        each source, in order. The values `content_sha256` and `weights_sha256` are the first 16
        digits of the SHA-256 of the canonical JSON of the lists `content` and `weights`.
        """
        content, weights = [s.content_id for s in self.sources], list(self.schedule.weights)
        return {
            "kind": "mixture", "sources": len(content), "by": self.by,
            "period": self.schedule.period, "positions": self.samples,
            "content_sha256": digest_of(content)[:16],
            "weights_sha256": digest_of(weights)[:16],
            "content": content, "weights": weights, "samples": self.sizes.tolist(),
        }  # fmt: skip

    def realised(self, served: int) -> dict[str, Realised]:
        """Return the amount served from each source, by name, in the first `served` positions.

        The positions are counted over all epochs. In the result, `tokens` is the number of samples
        times their mean number of tokens, or None if the mean is not given. The number of tokens is
        exact after whole passes, and always exact if all samples of the source have the same
        length.
        """
        return self.drawn(self.schedule.counts(served))

    def drawn(self, counts: Positions, served: Positions | None = None) -> dict[str, Realised]:
        """Return the amount served from each source, by name, for `counts` samples of each source.

        The array `counts`, int64 [sources], holds the number of samples served from each source.
        The array `served`, int64 [sources], holds the number of samples in a pass over each source;
        None means all its samples. The result has the form that `realised` returns.
        """
        sizes = self.sizes if served is None else served
        return {
            source.name: Realised(
                samples=count, tokens=_tokens(source, count), passes=count / size
            )
            for source, count, size in zip(
                self.sources, counts.tolist(), sizes.tolist(), strict=True
            )
        }  # fmt: skip

    def purposes(self, purpose: str = "mixture") -> list[str]:
        """Return the text that seeds the order of each source: ``purpose/k``.

        The number k is 0 for the first source with its content, 1 for the second source with the
        same content, and so on. So sources of equal content have different orders.
        """
        seen: Counter[str] = Counter()
        found = []
        for source in self.sources:
            found.append(f"{purpose}/{seen[source.content_id]}")
            seen[source.content_id] += 1
        return found

    def order(
        self,
        *,
        seed: int,
        purpose: str = "mixture",
        shuffle: bool = True,
        skip: Mapping[str, Skips] | None = None,
        weights_changed: bool = False,
    ) -> MixtureOrder:
        """Return the order of the mixture.

        Each pass over a source is a different permutation of its samples. With `shuffle` False,
        each pass has the stored order. The argument `skip` maps names of sources to the samples to
        leave out. For `weights_changed` see `create_loader`. Raise `UsageError` if a name in `skip`
        is not the name of a source, or if a sample to leave out does not exist.
        """
        require(
            isinstance(shuffle, bool), "shuffle",
            f"must be a bool, got {shuffle!r}; for other orders use MixtureOrder(orders=...)",
        )  # fmt: skip
        orders: list[Order] = [
            Shuffled(content_id=s.content_id, seed=seed, purpose=own) if shuffle else Sequential()
            for s, own in zip(self.sources, self.purposes(purpose), strict=True)
        ]
        return MixtureOrder(
            mixture=self, orders=tuple(orders), skips=self.skips(skip or {}),
            weights_changed=weights_changed, seed=seed if shuffle else 0,
        )  # fmt: skip

    def skips(self, named: Mapping[str, Skips]) -> tuple[Skips, ...]:
        """Return the skip list of each source, or () if all lists are empty.

        Raise `UsageError` if a name in `named` is not the name of a source.
        """
        odd = sorted(set(named) - {source.name for source in self.sources})
        require(not odd, "skip", f"{', '.join(odd)}: no source of this mixture")
        if not any(map(len, named.values())):
            return ()
        return tuple(named.get(source.name, Skips([])) for source in self.sources)


def _per_token(source: WeightedSource) -> Fraction:
    """Return the weight of `source` by samples: its weight by tokens, divided by tokens per sample.

    Raise `UsageError` if the mean number of tokens is missing.
    """
    if source.tokens_per_sample is None:
        raise UsageError(
            "has no tokens_per_sample, and the weights are shares of tokens",
            where=f"source {source.name}", remedy='Give it, or use by="samples".',
        )  # fmt: skip
    mean = as_fraction(source.tokens_per_sample, f"tokens_per_sample of {source.name}")
    return as_fraction(source.weight, f"weight {source.name}") / mean


def _tokens(source: WeightedSource, samples: int) -> int | None:
    mean = source.tokens_per_sample
    return None if mean is None else round(samples * as_fraction(mean, source.name))


_CHANGEABLE = frozenset({
    "sources", "by", "period", "positions", "content", "content_sha256", "weights",
    "weights_sha256", "samples", "sha256",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureOrder:
    """The order of a mixture, which assigns a sample to each position of an epoch.

    Use `WeightedSources.order` to make a `MixtureOrder`. `orders` holds an `Order` for each source;
    epoch k of this `Order` is pass k over the source. `skips` holds the samples to leave out of
    each source, numbered in the source; it may be empty. `phases` are the phases of the run, and
    the last is the current phase. If `phases` is not given, the run is new. With `weights_changed`
    a state may come from a run with different weights or sources. `seed` determines which rank
    serves which row of a global batch.

    Skipped samples cost a binary search for each position, and the inverse of a permutation for
    each pass over a source that skips samples.
    """

    ahead: ClassVar[int] = 1 << 16
    """Positions to compute in one call: each source costs some microseconds a call."""
    bijective: ClassVar[bool] = False
    """False: an epoch may have a sample twice or not at all, so positions cannot be skipped."""

    phased: ClassVar[Literal[True]] = True
    changeable: ClassVar[frozenset[str]] = _CHANGEABLE
    """Fields of the definition that other weights or sources change."""

    mixture: WeightedSources
    orders: tuple[Order, ...]
    skips: tuple[Skips, ...] = ()
    phases: tuple[Phase, ...] = ()
    weights_changed: bool = False
    seed: int = 0
    served: Positions = field(init=False, repr=False, compare=False)
    """Samples in a pass over each source, int64 [sources]."""
    lead: Positions = field(init=False, repr=False, compare=False)
    """Draws of each source since its first pass, less those that the schedule counts: int64."""

    def __post_init__(self) -> None:
        sources = self.mixture.sources
        for name, given in (("orders", self.orders), ("skips", self.skips or sources)):
            require(
                len(given) == len(sources), name, f"{len(given)} {name} for {len(sources)} sources"
            )
        for source, skips in zip(sources, self.skips, strict=False):
            _check(skips, source.samples, source.name)
        skipped = np.array([len(skips) for skips in self.skips] or 0, np.int64)
        object.__setattr__(self, "served", self.mixture.sizes - skipped)
        if not self.phases:
            object.__setattr__(self, "phases", (self._first_phase(),))
        before = self.mixture.schedule.counts(self.phase.draws)
        object.__setattr__(self, "lead", self._served_before() - before)

    @property
    def phase(self) -> Phase:
        """Return the current phase."""
        return self.phases[-1]

    @property
    def sources(self) -> tuple[WeightedSource, ...]:
        """Return the sources of the mixture."""
        return self.mixture.sources

    @property
    def weights(self) -> tuple[int, ...]:
        """Return the number of samples that each source contributes to a period of the schedule."""
        return self.mixture.schedule.weights

    @property
    def changing(self) -> frozenset[str]:
        """Return the fields of the definition in which a state may differ from this order."""
        return self.changeable if self.weights_changed else frozenset()

    @property
    def skipped(self) -> list[list[int]]:
        """Return the skipped samples of each source, or an empty list if no source skips any."""
        some = any(map(len, self.skips))
        return [skips.to_json() for skips in self.skips] if some else []

    def deal_key(self, epoch: int) -> OrderKey:
        """Return the key of the permutations that distribute global batches over the ranks.

        The n rows of a global batch are permuted before each rank gets a contiguous part of them.
        If the batch begins at position p, row j moves to index i with ``j == permute(i, n, key,
        streams=p)``. Without this permutation the schedule could repeat in step with the ranks:
        with weights 3:1 and one row for each of four ranks, one rank would get all samples of the
        second source.
        """
        content = digest_of([source.content_id for source in self.mixture.sources])
        return key(content, self.seed, epoch, "mixture/deal")

    def sized_as(self, keys: Iterable[str]) -> MixtureOrder:
        """Return this order with the block sizes of a saved state in place of default block sizes.

        The argument `keys` holds the keys of the sources in the state; each contains the block
        sizes of its source (see `sizes_of`). Block sizes that are not defaults do not change.
        """
        sizes = {source_of(key): sizes_of(key) for key in keys}
        orders = tuple(
            replace(own, block=found[0], window=found[1])
            if isinstance(own, Blocks)
            and own.default_sizes
            and (found := sizes.get(source_of(key)))
            else own
            for key, own in zip(self.phase.sources, self.orders, strict=True)
        )
        return self if orders == self.orders else replace(self, orders=orders, phases=())

    def resumed(
        self, state: Mapping[str, Any], *, stood: Spot, begin: Spot, positions: int
    ) -> MixtureOrder:
        """Return the order with which a run continues from `state` at the point `begin`.

        The state was saved at the point `stood`. Epochs have `positions` positions. Raise the
        errors of `next_phases`.
        """
        phases = phases_from(state)
        order = self.sized_as((*phases[-1].parked, *phases[-1].sources))
        found = next_phases(
            state, phases, replace(order.phase, positions=positions), orders=order.orders,
            skips=order.skips or (Skips([]),) * len(order.sources),
            schedule=order.mixture.schedule, stood=stood, begin=begin,
            weights_changed=order.weights_changed,
        )  # fmt: skip
        return replace(order, phases=found)

    def history(self, n: int) -> list[dict[str, Any]]:
        """Return all phases as JSON values. Epochs of the current phase have `n` positions."""
        *ended, last = (phase.to_json() for phase in self.phases)
        return [*ended, {**last, "positions": n}]

    def samples(self, positions: Positions, n: int, epoch: int) -> Positions:
        """Return the samples at `positions` as an int64 array of the same shape.

        Each sample is in 0 .. mixture.samples - 1. Raise `IndexError` for a position outside
        0 .. n - 1. Raise `UsageError` for a position before the current phase, or an epoch that
        ends after 2**62 positions of the run.
        """
        low, begin = self._epoch_bounds(n, epoch)
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < n:
            raise IndexError(f"a position is outside 0:{n}")
        if positions.size and positions.min() < low:
            raise _before(f"position {positions.min()} of epoch {epoch}", self.phase)
        source, number = self.mixture.schedule.at(positions.reshape(-1) + begin)
        passes, places = np.divmod(number + self.lead[source], self.served[source])
        out = np.empty(len(source), np.int64)
        for which, turn, rows in _groups(source, passes):
            out[rows] = self.mixture.base[which] + self._own_samples(which, places[rows], turn)
        return out.reshape(positions.shape)

    def positions(self, samples: Positions, n: int, epoch: int) -> Positions:
        """Return the first position of each of `samples` in the epoch, or -1 if it does not occur.

        The epoch has `n` positions. Positions before the current phase are left out. The array is
        int64, of the same shape. `occurrences` returns all positions of a sample. Raise
        `IndexError` for a number that is not a sample.
        """
        begin, first, last = self._drawn(n, epoch)
        flat = samples.reshape(-1)
        out = np.full(len(flat), -1, np.int64)
        for which, rows in _runs(self._source(flat)):
            own = flat[rows] - self.mixture.base[which]
            # A draw before the first of the epoch is of an earlier epoch: take the next pass.
            number = np.zeros(len(own), np.int64)
            for later in (1, 0):
                numbers = self._numbers(which, own, int(first[which] // self.served[which]) + later)
                number = np.where(later or numbers >= first[which], numbers, number)
            here = (number < last[which]) & self._is_served(which, own)
            out[rows[here]] = self._places(which, number[here]) - begin
        return out.reshape(samples.shape)

    def occurrences(self, sample: int, n: int, epoch: int) -> Positions:
        """Return all positions of `sample` in the epoch, as an increasing int64 array.

        The call inverts one permutation for each pass over the sample's source in the epoch. Raise
        `IndexError` if `sample` is not a sample.
        """
        return self.draws(np.array([sample], np.int64), n, epoch)[1]

    def draws(self, samples: Positions, n: int, epoch: int) -> tuple[Positions, Positions]:
        """Return all positions of each of `samples` [k] in the epoch.

        The result is two int64 arrays with one entry for each time a sample is served: its index
        in `samples`, and its position. The positions of each sample increase. Skipped samples have
        no entries. The call costs as much as a call of `occurrences` for each source. Raise
        `IndexError` for a number that is not a sample.
        """
        begin, begun, ended = self._drawn(n, epoch)
        found = [np.empty((2, 0), np.int64)]
        for which, rows in _runs(self._source(samples)):
            own = samples[rows] - self.mixture.base[which]
            wanted = self._is_served(which, own)
            mine, own = rows[wanted], own[wanted]
            served, first, last = (int(a[which]) for a in (self.served, begun, ended))
            for turn in range(first // served, -(-last // served)):
                numbers = self._numbers(which, own, turn)
                here = np.flatnonzero((numbers >= first) & (numbers < last))
                found.append(np.stack([mine[here], self._places(which, numbers[here]) - begin]))
        drawn, positions = np.concatenate(found, axis=1)
        return drawn, positions

    def _served_before(self) -> Positions:
        """Return the number of samples served from each source before this phase, int64 [sources].

        Samples that are skipped in this phase are not counted.
        """
        turns, places = np.array(self.phase.stands, np.int64).T
        for which in np.flatnonzero(places) if self.skips else ():
            position, size = int(places[which]), int(self.mixture.sizes[which])
            place = self.skips[which].count(position, self.orders[which], size, int(turns[which]))
            places[which] = place
        found: Positions = turns * self.served + places
        return found

    def _first_phase(self) -> Phase:
        """Return the first phase of a new run."""
        sources, purposes = self.mixture.sources, self.mixture.purposes("")
        named = map(_key_of, sources, purposes, self.orders)
        return Phase(
            positions=self.mixture.samples, weights=self.mixture.schedule.weights,
            sources=tuple(named), samples=tuple(source.samples for source in sources),
        )  # fmt: skip

    def _epoch_bounds(self, n: int, epoch: int) -> tuple[int, int]:
        """Return (low, begin) for an epoch of `n` positions.

        `low` is the first position of the epoch that belongs to this phase. `begin` is the position
        in the schedule at which the epoch begins, negative if the schedule begins within the epoch.
        Raise `UsageError` if the epoch has no positions, ends before this phase, or ends after
        2**62 positions of the run.
        """
        phase = self.phase
        begin = phase.draws_at(Spot(epoch, 0), n)
        if n < 1 or epoch < 0 or begin + n > MAX_POSITION:
            raise UsageError(
                f"epoch {epoch} of {n:,} positions: there must be one position or more, no "
                "negative epoch, and 2**62 positions at most until its end", where="epoch",
            )  # fmt: skip
        if epoch < phase.begin.epoch:
            raise _before(f"epoch {epoch}", phase)
        return phase.begin.position if epoch == phase.begin.epoch else 0, begin

    def _drawn(self, n: int, epoch: int) -> tuple[int, Positions, Positions]:
        """Return (begin, first, last) for the part of the epoch that belongs to this phase.

        `begin` is the position in the schedule at which the epoch begins, negative if the schedule
        begins within the epoch. `first` and `last`, int64 [sources], are the numbers of samples
        that each source has served, in all its passes, before the start and before the end of
        this part. Raise the errors of `_epoch_bounds`.
        """
        low, begin = self._epoch_bounds(n, epoch)
        counts = self.mixture.schedule.counts
        return begin, counts(begin + low) + self.lead, counts(begin + n) + self.lead

    def _own_samples(self, which: int, places: Positions, turn: int) -> Positions:
        """Return the samples at `places` of pass `turn` over source `which`.

        The samples are numbered in the source.
        """
        order, size = self.orders[which], int(self.mixture.sizes[which])
        if self.skips:
            places = self.skips[which].positions(places, order, size, turn)
        return order.samples(places, size, turn)

    def _numbers(self, which: int, own: Positions, turn: int) -> Positions:
        """Return how many samples source `which` serves before each of `own` in pass `turn`.

        The numbers in `own` are sample numbers within the source. The samples of all earlier passes
        are counted too.
        """
        order, size = self.orders[which], int(self.mixture.sizes[which])
        places = order.positions(own, size, turn)
        if self.skips:
            places = self.skips[which].places(places, order, size, turn)
        return turn * int(self.served[which]) + places

    def _is_served(self, which: int, own: Positions) -> Any:
        if not self.skips:
            return np.ones(len(own), bool)
        return ~np.isin(own, self.skips[which].samples)

    def _source(self, samples: Positions) -> Positions:
        total = self.mixture.samples
        if samples.size and not 0 <= int(samples.min()) <= int(samples.max()) < total:
            raise IndexError(f"a sample is outside 0:{total}")
        return np.searchsorted(self.mixture.base, samples, "right") - 1

    def _places(self, which: int, numbers: Positions) -> Positions:
        """Return the positions in the schedule at which source `which` serves some samples.

        Entry i is the position of draw ``numbers[i]`` of the source. Draws are counted from 0 over
        all passes. The result is an int64 array of the same shape.
        """
        draws = numbers - self.lead[which]
        return self.mixture.schedule.position_of(np.full_like(draws, which), draws)


def _check(skips: Skips, samples: int, name: str) -> None:
    try:
        skips.check(samples)
    except UsageError as error:
        error.where = f"skip of {name}"
        raise


def _before(what: str, phase: Phase) -> UsageError:
    return UsageError(
        f"{what} was drawn before the mixture changed, at {phase.begin.position:,} of epoch "
        f"{phase.begin.epoch}", where="epoch",
        remedy="Make the loader with the weights, datasets and skip lists of that time.",
    )  # fmt: skip


def _key_of(source: WeightedSource, number: str, order: Order) -> str:
    """Return the key that identifies a source in states: CONTENT/NUMBER/ORDER.

    For an order of `Blocks`, /BLOCK/WINDOW follows. CONTENT is the first 16 digits of the content
    id. NUMBER is 0 for the first source with this content, 1 for the second, and so on (the
    argument `number` is "/NUMBER"). ORDER is the first 16 digits of the SHA-256 of a canonical
    JSON: the number of samples, and the definition of the order (or the name of its type, if it has
    no definition).
    """
    known = getattr(order, "definition", {"kind": name_of(order)})
    found = digest_of({"samples": source.samples, **known})[:16]
    sizes = f"/{order.block}/{order.window}" if isinstance(order, Blocks) else ""
    return f"{source.content_id[:16]}{number}/{found}{sizes}"


def _groups(source: Positions, passes: Positions) -> Iterator[tuple[int, int, Positions]]:
    """Yield (s, p, indices) for each pair of a source s and a pass p that occurs.

    The indices are all i with ``source[i] == s`` and ``passes[i] == p``.
    """
    for which, rows in _runs(source):
        for turn, some in _runs(passes[rows]):
            yield which, turn, rows[some]


def _runs(values: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield (value, indices) for each distinct value in `values`."""
    if len(values) == 0:
        return
    if values.min() == values.max():
        yield int(values[0]), np.arange(len(values))
        return
    rows = np.argsort(values, kind="stable")
    ranked = values[rows]
    cuts = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    for start, stop in pairwise(edges):
        yield int(ranked[start]), rows[start:stop]
