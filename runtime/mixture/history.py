"""The phases of a mixture's run: what was drawn with which weights, and where each source stood.

A run is one phase until its sources, their weights or their skip lists change; then the next phase
begins, and every source goes on in it where it stands. The phases are the part of a mixture's state
that its definition does not say: from them, and the skip lists, follows which sample stood at every
place of the run. They are plain JSON, some 60 bytes for each source of a phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ..loader.state_errors import damaged, require_known
from ..order.permutation import MAX_SAMPLES
from .schedule import MAX_SOURCES, Schedule
from .weights import MAX_PERIOD

__all__ = [
    "MAX_POSITION",
    "Parked",
    "Phase",
    "Spot",
    "Stand",
    "phases_from",
    "sizes_of",
    "source_of",
]

MAX_POSITION = 1 << 62

_FIELDS = frozenset({
    "positions", "weights", "sources", "samples", "begin", "end", "draws", "stands", "parked"
})  # fmt: skip
_LONGEST = 1 << 30  # draws of a period
_LARGEST = 1 << 28  # counts that a schedule keeps: one for each source and 2**14 draws of a period


class Spot(NamedTuple):
    """A place of the run: a position of an epoch."""

    epoch: int
    position: int


_START = Spot(0, 0)


class Stand(NamedTuple):
    """Where a source stands: at this position of the full order of its pass, behind what is served.

    That is the same whatever is skipped.
    """

    turn: int
    position: int


class Parked(NamedTuple):
    """Where a source stood, and how many samples were drawn of it since, all but the skipped ones.

    So whoever has no order of the source can say where it stands.
    """

    turn: int
    position: int
    drawn: int
    skip: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Draws with the same sources, weights and skip lists, from `begin` on.

    `end` is None as long as it goes on. An epoch has `positions`. `draws` of the schedule of
    `weights` came before it: of one that goes on after a change of skip lists, those of the phases
    before. `sources`, the `samples` of each and the `stands` at the begin have one for each source;
    `parked` has, by source, those that an earlier phase had.

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
    stands: tuple[Stand, ...] = ()
    parked: Mapping[str, Parked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stands:
            object.__setattr__(self, "stands", (Stand(0, 0),) * len(self.sources))
        if not self._sound():
            raise damaged(f"its phase that begins at {self.begin}")

    def draws_at(self, spot: Spot, positions: int | None = None) -> int:
        """The draws of the schedule before `spot`, in epochs of so many positions (None: its)."""
        epochs = (spot.epoch - self.begin.epoch) * (positions or self.positions)
        return self.draws + epochs + spot.position - self.begin.position

    def schedule(self) -> Schedule:
        """Made anew from the weights; costs its table, as far as it is asked."""
        return Schedule(self.weights, max_period=max(MAX_PERIOD, sum(self.weights)))

    def to_json(self) -> dict[str, Any]:
        """What `phases_from` reads; what is as in the only phase of most runs is left out."""
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
            and all(map(_stands, self.stands, self.samples))
            and all(_stands(parked, MAX_SAMPLES) for parked in self.parked.values())
            and all(0 <= parked.drawn < MAX_POSITION for parked in self.parked.values())
            and not self.parked.keys() & set(self.sources)
            and all(0 <= n < MAX_POSITION for n in (self.positions, self.draws, *self.begin))
            and self.begin <= (self.end or self.begin)
            and stop < MAX_POSITION
        )


def phases_from(state: Mapping[str, Any]) -> tuple[Phase, ...]:
    """The phases in `state`, the last of which goes on.

    Raises `UsageError` where there are none, or they make no sense.
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
    """Return the content and the number of a source, without its order.

    >>> source_of("9f86d081884c7d65/0/60303ae22b998861/1024/64")
    '9f86d081884c7d65/0'
    """
    return "/".join(key.split("/")[:2])


def sizes_of(key: str) -> tuple[int, int] | None:
    """Return the `block` and `window` of the order of a source; None of other orders.

    >>> sizes_of("9f86d081884c7d65/0/60303ae22b998861/1024/64")
    (1024, 64)
    """
    sizes = key.split("/")[3:]
    if not sizes:
        return None
    if len(sizes) != 2 or not all(re.fullmatch("[1-9][0-9]{0,14}", size) for size in sizes):
        raise damaged(f"its source {key!r}")
    return int(sizes[0]), int(sizes[1])


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
        stands=tuple(Stand(*_wholes(stand)) for stand in value.get("stands", ())),
        parked={
            _text(key): Parked(_whole(turn), _whole(position), _whole(drawn), _wholes(skip))
            for key, (turn, position, drawn, skip) in parked.items()
        },
    )  # fmt: skip


def _stands(stand: Stand | Parked, samples: int) -> bool:
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
