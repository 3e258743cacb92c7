"""Phases of a mixture's run: parts of the run with the same sources, weights and skip lists.

A run is one phase until its sources, their weights or their skip lists change. Then a new phase
begins, in which every source continues after its last sample. When a run continues from a state:

- with the same sources, weights and skip lists, the last phase of the state continues;
- if only the skip lists differ, the schedule of the sources continues in a new phase, and the rest
  of the pass over each source is the same except for the samples that are skipped now;
- with different weights or sources a new schedule begins. A source that is left out is *parked*: it
  keeps its progress until it returns. A new source begins its first pass.

So no sample of a source is lost or repeated within a pass. A state contains the phases as plain
JSON, about 60 bytes for each source of a phase.

Resuming takes time in proportion to the number of phases in the state. After a change it also
computes the schedule up to that point (0.2 microseconds per position of a period), and the inverse
of a permutation for each source whose skip list changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dataprep.formats.errors import IncompatibleError, UsageError

from ..loader.state import warn_of_forgotten
from ..loader.state_errors import damaged, require_known
from ..order.permutation import MAX_SAMPLES, Order
from ..order.phased import Spot
from ..order.skips import Skips
from .schedule import MAX_PERIOD, MAX_SOURCES, Schedule

__all__ = [
    "MAX_POSITION",
    "ParkedSource",
    "Phase",
    "SourceProgress",
    "next_phases",
    "phases_from",
    "sizes_of",
    "source_of",
]

MAX_POSITION = 1 << 62

_FIELDS = frozenset({
    "positions", "weights", "sources", "samples", "begin", "end", "draws", "stands", "parked"
})  # fmt: skip
_LONGEST = 1 << 30  # draws of a period
_LARGEST = 1 << 28  # counts in a schedule: one for each source and 2**14 draws of a period
_START = Spot(0, 0)


class SourceProgress(NamedTuple):
    """Progress in a source: a pass over the source, and the next position in this pass.

    `turn` is the index of the pass. Positions include skipped samples, so the progress does not
    depend on skip lists.
    """

    turn: int
    position: int


class ParkedSource(NamedTuple):
    """Values from which the progress of a source at the end of a phase can be computed.

    `turn` and `position` are the `SourceProgress` at the start of the phase. `drawn` is the number
    of samples that the phase served from the source. The samples in `skip` were not served. The
    computation also needs the order of the source.
    """

    turn: int
    position: int
    drawn: int
    skip: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A part of a run with the same sources, weights and skip lists.

    The phase extends from `begin` to `end`; `end` is None in the current phase. An epoch has
    `positions` positions. `draws` is the number of positions of the schedule before the phase: 0
    for a new schedule, more if only skip lists changed. `sources` (keys, see `source_of`),
    `samples` and `stands` (the progress at `begin`) have one entry for each source. `parked` maps
    the keys of sources that were in earlier phases, but are not in this phase, to their progress.

    >>> phase = Phase(positions=3, weights=(2, 1), sources=("a/0/x", "b/0/x"), samples=(2, 1))
    >>> phase.draws_at(Spot(2, 1))
    7
    """

    positions: int
    weights: tuple[int, ...]
    sources: tuple[str, ...]
    samples: tuple[int, ...]
    begin: Spot = _START
    end: Spot | None = None
    draws: int = 0
    stands: tuple[SourceProgress, ...] = ()
    parked: Mapping[str, ParkedSource] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stands:
            object.__setattr__(self, "stands", (SourceProgress(0, 0),) * len(self.sources))
        if not self._sound():
            raise damaged(f"its phase that begins at {self.begin}")

    def draws_at(self, spot: Spot, positions: int | None = None) -> int:
        """Return the number of positions of the schedule before `spot`.

        The argument `positions` is the length of an epoch, by default the length in this phase.
        """
        epochs = (spot.epoch - self.begin.epoch) * (positions or self.positions)
        return self.draws + epochs + spot.position - self.begin.position

    def schedule(self) -> Schedule:
        """Return the schedule of the weights. Its table is computed when it is first needed."""
        return Schedule(self.weights, max_period=max(MAX_PERIOD, sum(self.weights)))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `phases_from` reads.

        Fields that have their default value are left out.
        """
        found: dict[str, Any] = {
            "positions": self.positions, "weights": list(self.weights),
            "sources": list(self.sources), "samples": list(self.samples),
        }  # fmt: skip
        if self.begin != _START:
            found["begin"] = list(self.begin)
        if self.end is not None:
            found["end"] = list(self.end)
        if self.draws:
            found["draws"] = self.draws
        if any(map(any, self.stands)):
            found["stands"] = [list(stand) for stand in self.stands]
        if self.parked:
            found["parked"] = {k: [*stand, list(skip)] for k, (*stand, skip) in self.parked.items()}
        return found

    def _sound(self) -> bool:
        count = len(self.sources)
        period = sum(self.weights)
        stop = self.draws_at(self.end or self.begin)
        return (
            1 <= count == len(set(self.sources)) <= MAX_SOURCES
            and count == len(self.weights) == len(self.samples) == len(self.stands)
            and min(self.weights) >= 1
            and period <= _LONGEST
            and count * (period >> 14) <= _LARGEST
            and all(1 <= n <= MAX_SAMPLES for n in self.samples)
            and all(map(_is_valid, self.stands, self.samples))
            and all(_is_valid(parked, MAX_SAMPLES) for parked in self.parked.values())
            and all(0 <= parked.drawn < MAX_POSITION for parked in self.parked.values())
            and not self.parked.keys() & set(self.sources)
            and all(0 <= n < MAX_POSITION for n in (self.positions, self.draws, *self.begin))
            and self.begin <= (self.end or self.begin)
            and stop < MAX_POSITION
        )


def phases_from(state: Mapping[str, Any]) -> tuple[Phase, ...]:
    """Return the phases in `state`, of which the last is current.

    Raise `UsageError` if there are no phases or a phase is damaged. Raise `IncompatibleError` if a
    phase has a field that only a newer dataprep knows.
    """
    try:
        phases = tuple(_phase(value) for value in state["phases"])
        ends = [phase.end for phase in phases]
        if not phases or ends.pop() is not None or None in ends:
            raise ValueError("phases")
        for before, after in pairwise(phases):
            if before.end is None or before.end > after.begin:
                raise ValueError("begin")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(repr(error)) from None
    return phases


def source_of(key: str) -> str:
    """Return the part of a source key that identifies the source: its content and number.

    >>> source_of("9f86d081884c7d65/0/60303ae22b998861/1024/64")
    '9f86d081884c7d65/0'
    """
    return "/".join(key.split("/")[:2])


def sizes_of(key: str) -> tuple[int, int] | None:
    """Return `block` and `window` from a source key, or None if its order is not in blocks.

    Raise `UsageError` if the sizes in the key are damaged.

    >>> sizes_of("9f86d081884c7d65/0/60303ae22b998861/1024/64")
    (1024, 64)
    """
    sizes = key.split("/")[3:]
    if not sizes:
        return None
    if len(sizes) != 2 or not all(re.fullmatch("[1-9][0-9]{0,14}", size) for size in sizes):
        raise damaged(f"its source {key!r}")
    return int(sizes[0]), int(sizes[1])


def next_phases(
    state: Mapping[str, Any],
    phases: tuple[Phase, ...],
    current: Phase,
    *,
    orders: Sequence[Order],
    skips: Sequence[Skips],
    schedule: Schedule,
    stood: Spot,
    begin: Spot,
    weights_changed: bool,
) -> tuple[Phase, ...]:
    """Return the phases of the run that continues from `state`, which was saved at `stood`.

    The argument `phases` holds the phases of the state. `current` describes the run that continues:
    its sources, samples and weights, and the number of positions in an epoch. `schedule` is its
    schedule, and `orders` and `skips` have one entry for each of its sources. If a new schedule is
    needed, it begins at `begin`. Differences between the order definitions are not checked here:
    call `require_order` before.

    Raise `UsageError` for a damaged state. Raise `IncompatibleError` if the state has no source of
    this run, if the number of samples or the order of a source differs, or if weights or sources
    differ without `weights_changed`. Warn if the state skips samples that this run does not skip.
    """
    last, keys = phases[-1], current.sources
    skipped = _skipped(state, last)
    if not last.begin <= stood or stood.position > last.positions:
        raise damaged(f"it stands at {stood}")
    _require_same_sources(keys, last)
    _warn_of_forgotten(dict(zip(keys, skips, strict=True)), last, skipped)
    same = (last.weights, last.sources, last.positions) == (
        current.weights, keys, current.positions
    )  # fmt: skip
    if not same and not weights_changed:
        raise IncompatibleError(
            "is of a mixture of other weights or sources", where="state", code="E_STATE",
            remedy="Pass weights_changed=True to go on from it.",
        )  # fmt: skip
    if same and skipped == tuple(skips):
        return phases
    draws = last.draws_at(stood)
    known = {**last.parked, **_parked(last, skipped, draws, schedule if same else None)}
    stands = tuple(
        _progress(known.get(key), order, size)
        for key, order, size in zip(keys, orders, current.samples, strict=True)
    )
    phase = Phase(
        positions=current.positions, weights=current.weights, sources=keys,
        samples=current.samples, begin=stood if same else begin, draws=draws if same else 0,
        stands=stands, parked={key: where for key, where in known.items() if key not in keys},
    )  # fmt: skip
    ended = (replace(last, end=stood),) if stood > last.begin else ()
    return (*phases[:-1], *ended, phase)


def _phase(value: Mapping[str, Any]) -> Phase:
    require_known(value, _FIELDS)
    value = {name: field for name, field in value.items() if field is not None}
    end, parked = value.get("end"), value.get("parked", {})
    return Phase(
        positions=_whole(value["positions"]), draws=_whole(value.get("draws", 0)),
        weights=_wholes(value["weights"]), samples=_wholes(value["samples"]),
        sources=tuple(map(_text, value["sources"])),
        begin=Spot(*_wholes(value.get("begin", (0, 0)))),
        end=None if end is None else Spot(*_wholes(end)),
        stands=tuple(SourceProgress(*_wholes(stand)) for stand in value.get("stands", ())),
        parked={
            _text(key): ParkedSource(_whole(turn), _whole(position), _whole(drawn), _wholes(skip))
            for key, (turn, position, drawn, skip) in parked.items()
        },
    )  # fmt: skip


def _is_valid(stand: SourceProgress | ParkedSource, samples: int) -> bool:
    return 0 <= stand.turn < MAX_POSITION // samples and 0 <= stand.position <= samples


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _wholes(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(_whole, values))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _skipped(state: Mapping[str, Any], last: Phase) -> tuple[Skips, ...]:
    """Return the skip list of each source in `state`, whose last phase is `last`.

    Raise `UsageError` if a list is damaged.
    """
    lists = state.get("skip") or [[]] * len(last.sources)
    try:
        found = tuple(map(Skips, lists))
        for skips, samples in zip(found, last.samples, strict=True):
            skips.check(samples)
    except (TypeError, ValueError, UsageError) as error:
        raise damaged(f"skip: {error!r}") from None
    return found


def _parked(
    last: Phase, skipped: Sequence[Skips], draws: int, schedule: Schedule | None
) -> dict[str, ParkedSource]:
    """Return the progress of each source, by its key, after `draws` positions of the schedule.

    The sources are the sources of phase `last`, and `skipped` holds their skip lists. If `schedule`
    is None, the schedule of `last` is computed.
    """
    schedule = schedule or last.schedule()
    drawn = schedule.counts(draws) - schedule.counts(last.draws)
    return {
        key: ParkedSource(*stand, count, tuple(skips.to_json()))
        for key, stand, skips, count in zip(
            last.sources, last.stands, skipped, drawn.tolist(), strict=True
        )
    }


def _progress(was: ParkedSource | None, order: Order, samples: int) -> SourceProgress:
    """Return the progress of a source after the last sample served from it.

    The source has `samples` samples in `order`. If `was` is None, the source is new, and the result
    is the beginning of its first pass.
    """
    if was is None:
        return SourceProgress(0, 0)
    if was.drawn == 0:
        return SourceProgress(was.turn, was.position)
    skips = Skips(was.skip)
    place = skips.count(was.position, order, samples, was.turn)
    turns, place = divmod(place + was.drawn - 1, samples - len(skips))
    turn = was.turn + turns
    (last,) = skips.positions(np.array([place]), order, samples, turn).tolist()
    return SourceProgress(turn, last + 1)


def _require_same_sources(keys: Sequence[str], last: Phase) -> None:
    """Raise `IncompatibleError` unless a run with the sources `keys` can continue from the state.

    The argument `last` is the last phase of the state. At least one source must be in the state;
    sources that are not in the state are new. If the state has a source with the same content and
    number (see `source_of`), it must have the same key, that is, the same samples and order.
    """
    known = {source_of(key): key for key in (*last.parked, *last.sources)}
    found = [(key, known[source_of(key)]) for key in keys if source_of(key) in known]
    if not found:
        raise IncompatibleError(
            "has none of these datasets", where="state", code="E_STATE_DATASET",
            remedy="Open those that it was taken on.",
        )  # fmt: skip
    for key, was in found:
        if key != was:
            raise IncompatibleError(
                f"has content {source_of(key)} with other samples, or in another order",
                where="state", code="E_STATE",
                remedy="Make the loader with the options of that time.",
            )  # fmt: skip


def _warn_of_forgotten(now: Mapping[str, Skips], last: Phase, skipped: Sequence[Skips]) -> None:
    """Warn if this run serves samples that the state skips.

    The argument `now` maps the keys of this run's sources to their skip lists. `skipped` holds the
    skip lists of the state, one for each source of its last phase (`last`).
    """
    forgotten = sum(
        len(np.setdiff1d(was.samples, now[key].samples))
        for key, was in zip(last.sources, skipped, strict=True) if key in now
    )  # fmt: skip
    warn_of_forgotten(forgotten, 'skip=dict(zip(datasets, state["skip"]))')
