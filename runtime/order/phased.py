"""Interface of orders that are served in phases, such as the order of a mixture.

An ordinary order is a function of its definition. A phased one also depends on the run: where its
weights, sources or skip lists change, a new phase begins. The state of a loader holds the phases,
which `PhasedOrder.history` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from .permutation import Order, OrderKey

__all__ = ["PhasedOrder", "PhasedSource", "Spot", "phased"]


class Spot(NamedTuple):
    """A point in a run: a position of an epoch."""

    epoch: int
    position: int


class PhasedSource(Protocol):
    """One source of a phased order: the id of its content and its name in messages."""

    @property
    def content_id(self) -> str:
        """Return the content id of the split."""
        ...

    @property
    def name(self) -> str:
        """Return the name of the dataset."""
        ...


class PhasedOrder(Order, Protocol):
    """An order over several sources whose state holds phases."""

    phased: ClassVar[Literal[True]]
    changeable: ClassVar[frozenset[str]]
    """Fields of the definition that other weights or sources change."""

    @property
    def seed(self) -> int:
        """Return the seed of the order."""
        ...

    @property
    def sources(self) -> tuple[PhasedSource, ...]:
        """Return the sources, in the order of their numbers."""
        ...

    @property
    def weights(self) -> tuple[int, ...]:
        """Return the draws of each source in a period."""
        ...

    @property
    def changing(self) -> frozenset[str]:
        """Return the fields of the definition in which a state that is loaded may differ."""
        ...

    @property
    def skipped(self) -> list[list[int]]:
        """Return the skipped samples of each source; an empty list if none are skipped."""
        ...

    def deal_key(self, epoch: int) -> OrderKey:
        """Return the key that deals the rows of a global batch of `epoch` to the ranks."""
        ...

    def history(self, n: int) -> list[dict[str, Any]]:
        """Return the phases as JSON values; epochs of the current one have `n` positions."""
        ...

    def resumed(
        self, state: Mapping[str, Any], *, stood: Spot, begin: Spot, positions: int
    ) -> PhasedOrder:
        """Return the order that continues `state`, a state taken at `stood`, from `begin` on.

        Epochs have `positions` positions.
        """
        ...


def phased(order: object) -> PhasedOrder | None:
    """Return `order` if it is served in phases, else None."""
    return cast("PhasedOrder", order) if getattr(order, "phased", False) else None
