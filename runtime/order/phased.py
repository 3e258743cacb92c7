"""The interface of an order that is served in phases, as that of a mixture.

An ordinary order is a function of its definition. A phased one also depends on the run: when its
weights, sources or skip lists change, the rest of the run is another phase, and the state holds
what the definition does not. A loader asks such an order for its part of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from .permutation import Order, OrderKey

__all__ = ["PhasedOrder", "Source", "Spot", "phased"]


class Spot(NamedTuple):
    """A place of a run: a position of an epoch."""

    epoch: int
    position: int


class Source(Protocol):
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
    def sources(self) -> tuple[Source, ...]:
        """Return the sources in order."""
        ...

    @property
    def weights(self) -> tuple[int, ...]:
        """Return the draws of each source in a period."""
        ...

    @property
    def changing(self) -> frozenset[str]:
        """Return the fields of the definition in which a state may differ."""
        ...

    @property
    def skipped(self) -> list[list[int]]:
        """Return the samples left out of each source; an empty list if there are none."""
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
        """Return the order that continues `state`, which was taken at `stood`, from `begin` on."""
        ...


def phased(order: object) -> PhasedOrder | None:
    """Return `order` if it is served in phases, else None."""
    return cast("PhasedOrder", order) if getattr(order, "phased", False) else None
