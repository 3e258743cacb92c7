"""The state of a loader: a few numbers, valid for any number of ranks, workers and rows per batch.

A state identifies the order (`order`: dataset, samples, seed, ...) and the progress in this order:
the epoch, and the position up to which the trainer has received samples. Nothing in a state depends
on ranks, workers, prefetching or batch size, so a run may continue with other values. A state is
plain JSON of less than a kilobyte. Each skipped sample adds up to 20 bytes to it, each source of a
mixture 60, and each change of the weights of a mixture about 200.

Positions include skipped samples, so a run may continue at the same position with another skip
list. A mixture serves a sample at every position: where a sample is skipped, the next sample of its
source moves up (`dataprep.runtime.mixture.phases`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dataprep.formats.errors import IncompatibleError, UsageError

from ..order.skips import Skips
from .order_match import REMEDY, ServedDatasets, require_order
from .state_errors import caller_stacklevel, check_head, damaged, whole

__all__ = ["STATE_VERSION", "Progress", "progress_from", "state_of", "warn_of_forgotten"]

STATE_VERSION = 1
_KIND = "dataprep loader state"
_UNKNOWN = ServedDatasets()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a loader within an epoch.

    `position` is the next position to serve; skipped samples also have positions. `digest` is the
    digest of the samples served in this epoch (`dataprep.runtime.order.order_checksum`).
    """

    epoch: int = 0
    position: int = 0
    digest: int = 0

    def __post_init__(self) -> None:
        sound = 0 <= self.epoch < 1 << 63 and self.position >= 0 and 0 <= self.digest < 1 << 64
        if not sound:
            raise UsageError(f"{self} makes no sense", where="state")


def state_of(
    order: Mapping[str, Any],
    progress: Progress,
    skipped: Sequence[Any],
    phases: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the state of a loader as JSON values.

    The argument `order` is the definition of the order, and `skipped` lists the skipped samples
    (for a mixture, a list for each source). Only mixtures have `phases`.
    """
    state = {
        "kind": _KIND,
        "version": STATE_VERSION,
        "order": dict(order),
        "epoch": progress.epoch,
        "position": progress.position,
        "order_digest": f"{progress.digest:016x}",
        "skip": skipped,
    }
    return state if phases is None else {**state, "phases": phases}


def progress_from(
    state: Mapping[str, Any],
    order: Mapping[str, Any],
    positions: int,
    served: ServedDatasets = _UNKNOWN,
) -> Progress:
    """Return the progress in `state`, which must be a state of a loader with this `order`.

    The position must be at most `positions`, the number of positions in an epoch. The fields in
    `served.changing` may differ from `order`; if there are such fields, the position may also be
    larger. Raise `IncompatibleError` if the state was saved by a newer dataprep or belongs to a
    different dataset or order. Raise `UsageError` if `state` is not a valid state.
    """
    check_head(state, _KIND, STATE_VERSION)
    require_order(state, order, served)
    _check_skip(state)
    found = Progress(
        epoch=whole(state.get("epoch"), "epoch"),
        position=whole(state.get("position"), "position"),
        digest=_digest(state.get("order_digest")),
    )
    if found.position > positions and not served.changing:
        raise IncompatibleError(
            f"stands at position {found.position:,} of {positions:,}", where="state",
            code="E_STATE", remedy=REMEDY,
        )  # fmt: skip
    return found


def warn_of_forgotten(forgotten: int, argument: str = 'skip=state["skip"]') -> None:
    """Warn that this loader serves `forgotten` samples which the saved run skipped.

    Do nothing if `forgotten` is 0. The warning advises passing `argument`, which skips these
    samples again.
    """
    if forgotten:
        samples = "sample" if forgotten == 1 else "samples"
        warnings.warn(
            f"the state is of a run that left out {forgotten:,} {samples} more than this one does: "
            f"pass {argument} to leave them out again",
            stacklevel=caller_stacklevel(),
        )


def _digest(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16}", value):
        raise damaged(f"order_digest must be 16 hex digits, got {value!r}")
    return int(value, 16)


def _check_skip(state: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless the skip list in `state` is valid.

    For a mixture, check only that it is a list; `runtime/mixture/phases.py` checks its contents.
    """
    skip = state.get("skip")
    if not isinstance(skip, list | tuple):
        raise damaged(f"skip must be a list, got {skip!r}")
    if "phases" in state:
        return
    try:
        Skips(skip)
    except UsageError as error:
        raise damaged(f"skip {error.problem}") from None
