"""Interface of orders that have phases, such as the order of a mixture.

An ordinary order is determined by its definition. A phased order also depends on the run: when its
weights, sources or skip lists change, a new phase begins. The state of a loader contains the
phases, which `PhasedOrder.history` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from .permutation import Order, OrderKey

__all__ = ["PhasedOrder", "PhasedSource", "Spot", "phased"]


class Spot(NamedTuple):
    """A point in a run: an epoch and a position in that epoch."""

    epoch: int
    position: int


class PhasedSource(Protocol):
    """A source of a phased order: its content id, and the name that messages use for it."""

    @property
    def content_id(self) -> str:
        """The content id of the split."""
        ...

    @property
    def name(self) -> str:
        """The name of the dataset."""
        ...


class PhasedOrder(Order, Protocol):
    """An order over several sources that changes in phases. Saved states contain the phases."""

    phased: ClassVar[Literal[True]]
    changeable: ClassVar[frozenset[str]]
    """Fields of the definition that other weights or sources change."""

    @property
    def seed(self) -> int:
        """The seed of the order."""
        ...

    @property
    def sources(self) -> tuple[PhasedSource, ...]:
        """The sources, ordered by source number."""
        ...

    @property
    def weights(self) -> tuple[int, ...]:
        """Number of samples that each source contributes to one period of the schedule."""
        ...

    @property
    def changing(self) -> frozenset[str]:
        """Names of definition fields that may differ between a saved state and this order."""
        ...

    @property
    def skipped(self) -> list[list[int]]:
        """The skipped samples of each source, or an empty list if no source skips any."""
        ...

    def deal_key(self, epoch: int) -> OrderKey:
        """Return the key of the permutations that distribute the batches of `epoch` over ranks."""
        ...

    def history(self, n: int) -> list[dict[str, Any]]:
        """Return all phases as JSON values. Epochs of the current phase have `n` positions."""
        ...

    def resumed(
        self, state: Mapping[str, Any], *, stood: Spot, begin: Spot, positions: int
    ) -> PhasedOrder:
        """Return the order for continuing the run that saved `state`.

        The state was saved at the point `stood`, and the run continues at the point `begin`. Epochs
        of the new order have `positions` positions.
        """
        ...


def phased(order: object) -> PhasedOrder | None:
    """Return `order` if it has phases, else None."""
    return cast("PhasedOrder", order) if getattr(order, "phased", False) else None
