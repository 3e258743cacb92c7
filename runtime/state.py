"""Where a run stands: a handful of numbers, good for any ranks, workers and batch size.

A state says which order is served (`order`: dataset, samples, seed, ...) and how far it is served:
the epoch, and the position in it up to which the trainer was handed samples. Nothing in it depends
on ranks, workers, prefetching or batch size, so a run may go on with others. It is plain JSON, less
than a kilobyte (and 20 bytes more for each skipped sample).

Positions count in the order of all samples, skipped ones included: a run may go on with another
skip list, at the same place.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataprep.formats.errors import IncompatibleError, UsageError

__all__ = ["STATE_VERSION", "Progress", "progress_from", "state_of", "warn_of_forgotten"]

STATE_VERSION = 1
_KIND = "dataprep loader state"
_REMEDY = "Make the loader as it was made when the state was taken."


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far an order is served.

    `position` counts positions of the epoch, skipped samples included; `digest` is that of the
    samples served in this epoch (`dataprep.runtime.digest`).
    """

    epoch: int = 0
    position: int = 0
    digest: int = 0

    def __post_init__(self) -> None:
        sound = 0 <= self.epoch < 1 << 63 and self.position >= 0 and 0 <= self.digest < 1 << 64
        if not sound:
            raise UsageError(f"{self} makes no sense", where="state")


def state_of(order: Mapping[str, Any], progress: Progress, skipped: list[int]) -> dict[str, Any]:
    """The state of a loader that serves `order`: JSON values only."""
    return {
        "kind": _KIND,
        "version": STATE_VERSION,
        "order": dict(order),
        "epoch": progress.epoch,
        "position": progress.position,
        "order_digest": f"{progress.digest:016x}",
        "skip": skipped,
    }


def progress_from(state: Mapping[str, Any], order: Mapping[str, Any], positions: int) -> Progress:
    """The progress in `state`, which must be of this `order` of so many `positions`.

    Raises `IncompatibleError` for a state of a newer dataprep, of another dataset or of another
    order, and `UsageError` for what is no state at all.
    """
    if not isinstance(state, Mapping) or state.get("kind") != _KIND:
        raise UsageError(
            "is not the state of a dataprep loader", where="state",
            remedy="Pass what state_dict() gave.",
        )  # fmt: skip
    version = state.get("version")
    if type(version) is not int or version < 1:
        raise UsageError(f"is damaged (version {version!r})", where="state")
    if version > STATE_VERSION:
        raise IncompatibleError(
            f"has version {version}, this dataprep reads up to {STATE_VERSION}", where="state",
            code="E_VERSION", remedy="Update dataprep.",
        )  # fmt: skip
    _require_same(state.get("order"), order)
    try:
        found = Progress(
            epoch=_integer(state["epoch"]), position=_integer(state["position"]),
            digest=int(state["order_digest"], 16),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"is damaged ({error!r})", where="state") from None
    if found.position > positions:
        raise UsageError(
            f"stands at position {found.position:,} of {positions:,}", where="state",
            code="E_STATE", remedy=_REMEDY,
        )  # fmt: skip
    return found


def warn_of_forgotten(state: Mapping[str, Any], skipped: list[int]) -> None:
    """Warn where `state` is of a run that left samples out which this one does not."""
    forgotten = len(set(state.get("skip") or ()) - set(skipped))
    if forgotten:
        warnings.warn(
            f"the state is of a run that left out {forgotten:,} samples more than this one does: "
            'pass skip=state["skip"] to leave them out again',
            stacklevel=3,
        )


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _require_same(stored: Any, order: Mapping[str, Any]) -> None:
    if not isinstance(stored, Mapping):
        raise UsageError("does not say which order it is of", where="state")
    names = [name for name in {**stored, **order} if stored.get(name) != order.get(name)]
    if "builds" in names or "builds_sha256" in names:
        raise IncompatibleError(
            f"is of another dataset: {_builds(stored)}, this one is {_builds(order)}",
            where="state", code="E_STATE_DATASET", remedy="Open the dataset that it was taken on.",
        )  # fmt: skip
    if names:
        pairs = [(name, _brief(stored.get(name)), _brief(order.get(name))) for name in names]
        listed = ", ".join(f"{name} {was}, not {now}" for name, was, now in pairs)
        raise IncompatibleError(
            f"is of another order: {listed}", where="state", code="E_STATE", remedy=_REMEDY
        )


def _builds(order: Mapping[str, Any]) -> str:
    return _brief(order.get("builds") or order.get("builds_sha256"))


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_brief, value))
    return str(value)[:24]
