"""Mixtures: one order over several sources, in exact proportions.

Samples of the sources are numbered one after the other: sample `i` of source `s` is
``base[s] + i``. Which source stands at a position is the `Schedule`; which of its samples, the
source's own order: a source that is used up begins its next pass, in a new permutation, and no
source ends an epoch. That order is `dataprep.runtime.mixture.order`.

The order is one endless sequence, and an epoch is the next `n` positions of it, for whatever `n` it
is asked with. So an epoch of a mixture is no permutation of the samples: a source may be drawn more
than once in it, or not wholly, and goes on in the next epoch where it stopped. What holds is that
in any prefix of the sequence every source has its share to within one sample (the share that
`dataprep.runtime.mixture.weights` made of its weight), and that the samples
of a source, in the order of the sequence, are whole passes over it.

Costs some 0.1 microseconds a position, and a permutation (30 microseconds) for every source and
pass in the positions asked for at once: ask for thousands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import UsageError, require

from ..order.permutation import MAX_SAMPLES, Order, Positions, Sequential, Shuffled
from ..order.skips import Skips
from .order import MixtureOrder
from .schedule import Schedule
from .weights import MAX_PERIOD, TOLERANCE, Weight, as_fraction

__all__ = ["By", "MixtureOrder", "Realised", "Source", "WeightedSources"]

By = Literal["samples", "tokens"]


class Realised(TypedDict):
    """What was drawn of a source: samples, their tokens on average, and passes over the source."""

    samples: int
    tokens: int | None
    passes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One source of a mixture.

    `name` is for messages and counts, and decides nothing: a dataset may lie under another path
    tomorrow. `samples` is how many it has. `weight` is its share, in proportion to the other
    weights, of the samples or of the tokens. `tokens_per_sample` is a mean; for ``by="tokens"`` it
    is needed.
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
    """Sources and their weights. Equal on every rank, as it depends on nothing but these.

    `by` says what the weights are shares of. With ``"tokens"`` each is divided by the mean tokens
    of the source's samples, so that the tokens drawn come in the proportion of the weights.
    `max_period` and `tolerance` are those of `whole_weights`, whose errors this raises, besides
    `UsageError` for names that occur twice and for missing means.

    >>> prose = Source(name="prose", content_id="a", samples=100, weight=0.75)
    >>> code = Source(name="code", content_id="b", samples=10, weight=0.25)
    >>> mixture = WeightedSources([prose, code])
    >>> mixture.schedule.weights, mixture.samples
    ((3, 1), 110)
    >>> mixture.realised(80)["code"]
    {'samples': 20, 'tokens': None, 'passes': 2.0}
    """

    def __init__(
        self,
        sources: Sequence[Source],
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
        """Samples of all sources together: the usual number of positions in an epoch."""
        return int(self.base[-1])

    @property
    def definition(self) -> dict[str, Any]:
        """What decides which sample stands where, besides the seed: JSON values.

        `content`, `weights` (those of the period) and `samples` have one for each source, in order.
        The other values stay short however many sources there are: `content_sha256` and
        `weights_sha256` are the first 16 digits of the SHA-256 of the canonical JSON of the list.
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
        """What the first `served` positions draw of each source, by name: counted, without running.

        `served` counts over all epochs. `tokens` are samples times their mean, None without one:
        exact after whole passes, and always where the samples of a source are equally long.
        """
        return self.drawn(self.schedule.counts(served))

    def drawn(self, counts: Positions, served: Positions | None = None) -> dict[str, Realised]:
        """`realised` of these numbers of samples, int64 [sources].

        `served` are those of a pass over each source, all of its samples if it is None.
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
        """What the order of each source is made for, so that two sources of one content share none.

        `purpose` and the number of the source among those of its content, in the order given.
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
        """The order in which each pass over a source is a new permutation, or the stored order.

        `skip` has the samples to leave out of a source, by name. For `weights_changed` see
        `create_loader`.
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
        """Skip lists by name as `MixtureOrder` has them. `UsageError` for names of no source."""
        odd = sorted(set(named) - {source.name for source in self.sources})
        require(not odd, "skip", f"{', '.join(odd)}: no source of this mixture")
        if not any(map(len, named.values())):
            return ()
        return tuple(named.get(source.name, Skips([])) for source in self.sources)


def _per_token(source: Source) -> Fraction:
    """The weight of a source's samples that gives its tokens the share `weight`."""
    if source.tokens_per_sample is None:
        raise UsageError(
            "has no tokens_per_sample, and the weights are shares of tokens",
            where=f"source {source.name}", remedy='Give it, or use by="samples".',
        )  # fmt: skip
    mean = as_fraction(source.tokens_per_sample, f"tokens_per_sample of {source.name}")
    return as_fraction(source.weight, f"weight {source.name}") / mean


def _tokens(source: Source, samples: int) -> int | None:
    mean = source.tokens_per_sample
    return None if mean is None else round(samples * as_fraction(mean, source.name))
