"""How the order of a mixture goes on from a state: as it was, or in a new phase.

With the sources, weights and skip lists of the state, the order is that of the state. With other
skip lists the schedule of the sources goes on too, and each source behind what it has served: the
rest of its pass is what it would have been, less what is skipped now. With other weights or sources
a new schedule begins, and each source goes on where it stands; one that was left out keeps its
place for the time that it comes back, and a new one begins its first pass. So no sample of a source
is lost or served twice within a pass, whatever changes and however often.

Costs what the state has of phases; where something has changed, the schedule up to there besides
(0.2 microseconds for each draw of a period), and the inverse of a permutation for each source whose
skip list did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dataprep.formats.errors import IncompatibleError, UsageError

from ..loader.state import warn_of_forgotten
from ..loader.state_errors import damaged
from ..order.permutation import Order
from ..order.skips import Skips
from .history import Parked, Phase, Spot, Stand, phases_from, source_of
from .order import MixtureOrder
from .schedule import Schedule

__all__ = ["going_on"]


def going_on(
    order: MixtureOrder, state: Mapping[str, Any], *, stood: Spot, begin: Spot, positions: int
) -> MixtureOrder:
    """`order` as it goes on from `state`, taken at `stood`, in epochs of so many `positions`.

    A new schedule begins at `begin`. That the definitions agree, as far as they have to, the caller
    has seen. Raises `UsageError` for a damaged state, and `IncompatibleError` where it has no
    source of this order, or one with other samples or in another order. Warns where the state
    leaves samples out that this order does not.
    """
    phases = phases_from(state)
    last, mixture = phases[-1], order.mixture
    order = order.sized_as((*last.parked, *last.sources))
    skipped = _skipped(state, last)
    if not last.begin <= stood or stood.position > last.positions:
        raise damaged(f"it stands at {stood}")
    keys = order.phase.sources
    _require_same_sources(keys, last)
    skips = order.skips or (Skips([]),) * len(keys)
    _warn_of_forgotten(dict(zip(keys, skips, strict=True)), last, skipped)
    same = (last.weights, last.sources, last.positions) == (
        mixture.schedule.weights, keys, positions
    )  # fmt: skip
    if not same and not order.weights_changed:
        raise IncompatibleError(
            "is of a mixture of other weights or sources", where="state", code="E_STATE",
            remedy="Pass weights_changed=True to go on from it.",
        )  # fmt: skip
    if same and skipped == skips:
        return replace(order, phases=phases)
    draws = last.draws_at(stood)
    known = {**last.parked, **_parked(last, skipped, draws, mixture.schedule if same else None)}
    stands = tuple(
        _stand(known.get(key), own, size)
        for key, own, size in zip(keys, order.orders, mixture.sizes.tolist(), strict=True)
    )
    phase = Phase(
        positions=positions, weights=mixture.schedule.weights, sources=keys,
        samples=tuple(mixture.sizes.tolist()), begin=stood if same else begin,
        draws=draws if same else 0, stands=stands,
        parked={key: where for key, where in known.items() if key not in keys},
    )  # fmt: skip
    ended = (replace(last, end=stood),) if stood > last.begin else ()
    return replace(order, phases=(*phases[:-1], *ended, phase))


def _skipped(state: Mapping[str, Any], last: Phase) -> tuple[Skips, ...]:
    """The skip lists of the state, one for each of its sources."""
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
) -> dict[str, Parked]:
    """What was drawn of each source of the phase in so many draws of its schedule."""
    schedule = schedule or last.schedule()
    drawn = schedule.counts(draws) - schedule.counts(last.draws)
    return {
        key: Parked(*stand, count, tuple(skips.to_json()))
        for key, stand, skips, count in zip(
            last.sources, last.stands, skipped, drawn.tolist(), strict=True
        )
    }


def _stand(was: Parked | None, order: Order, samples: int) -> Stand:
    """Where such a source stands: behind the last sample that was drawn of it."""
    if was is None:
        return Stand(0, 0)
    if was.drawn == 0:
        return Stand(was.turn, was.position)
    skips = Skips(was.skip)
    place = skips.count(was.position, order, samples, was.turn)
    turns, place = divmod(place + was.drawn - 1, samples - len(skips))
    turn = was.turn + turns
    (last,) = skips.positions(np.array([place]), order, samples, turn).tolist()
    return Stand(turn, last + 1)


def _require_same_sources(keys: Sequence[str], last: Phase) -> None:
    """A source that is known is that source, with its samples in their order; and one is known."""
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
    """Warn where the state leaves out samples of a source that are served now."""
    forgotten = sum(
        len(np.setdiff1d(was.samples, now[key].samples))
        for key, was in zip(last.sources, skipped, strict=True) if key in now
    )  # fmt: skip
    warn_of_forgotten(forgotten, 'skip=dict(zip(datasets, state["skip"]))', up=6)
