"""Hard negatives in four tiers, no source twice in a row and none that answers the question.

1. at random among the sources of the pair's cluster;
2. at random among the sources of the clusters whose centroids are nearest to its own;
3. the most similar to the question outside the cluster (see `dataprep.pipeline.pairs.search`);
4. at random among all outside the cluster.

A source is in every cluster that one of its pairs is in. Tiers are filled in this order; one that
runs dry leaves its places to the next, after the fourth the first follows, and the tier stored
beside each negative says where it came from. A pair without a cluster has nothing in 1 and 2.

Every draw is keyed by seed, question, source and tier: how many pairs are worked on at once, and
by whom, changes nothing. Costs one exact search, and about 10 microseconds a pair for the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError

from .csr import Ints, Lists, flat_places, lists_of
from .draws import draw, keys_of
from .search import Floats, Outside, most_similar

__all__ = ["Links", "Search", "mine", "near_clusters", "tier_counts"]

Search = Callable[[Floats, Floats, int, Outside], Ints]
"""As `most_similar`: queries, sources, k, what to leave out."""

_TIERS = (1, 2, 3, 4)
_AT_ONCE = 4096  # pairs; the result does not depend on it
_FIRST_LOOK, _WIDEST = 8, 1024  # positions of a pool looked at together


def tier_counts(total: int, proportions: Sequence[float]) -> list[int]:
    """How many of `total` negatives each tier has: rounded down, the rest to the largest parts.

    >>> tier_counts(12, (0.25, 0.25, 0.25, 0.25)), tier_counts(5, (0.5, 0.5, 0, 0))
    ([3, 3, 3, 3], [3, 2, 0, 0])
    """
    exact = [round(total * share, 9) for share in proportions]
    counts = [int(part) for part in exact]
    by_rest = sorted(range(len(exact)), key=lambda tier: counts[tier] - exact[tier])
    for tier in by_rest[: total - sum(counts)]:
        counts[tier] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Links:
    """Pairs, int64 [P] each (cluster -1 is none), and how many there are of what they name."""

    questions: Ints
    sources: Ints
    clusters: Ints
    n_questions: int
    n_sources: int
    n_clusters: int

    def own(self) -> Lists:
        """The sources of each question: its known positives."""
        return lists_of(self.questions, self.sources, self.n_questions, self.n_sources)

    def members(self) -> Lists:
        """The sources of each cluster."""
        return lists_of(self.clusters, self.sources, self.n_clusters, self.n_sources)

    def require_enough(self, n_neg: int, texts: Sequence[str]) -> None:
        """Raise `InputError` if a question (`texts` are theirs) has fewer than `n_neg` left."""
        left = self.n_sources - self.own().counts
        worst = int(np.argmin(left))
        if left[worst] < n_neg:
            raise InputError(
                f"{self.n_sources} sources less the {self.n_sources - left[worst]} of the question "
                f"{texts[worst][:80]!r} leave {left[worst]} for {n_neg} negatives",
                where="--n-neg", code="E_FEW_SOURCES",
                remedy="Lower --n-neg, or add sources.",
            )  # fmt: skip


def near_clusters(centroids: Floats, members: Lists, count: int) -> Lists:
    """Sources of the `count` clusters nearest to each that have any, without its own.

    Nearest by the cosine of the centroids, which are from `unit`; of equals the lower number.
    """
    n = len(members)
    filled = np.flatnonzero(members.counts)
    itself = lists_of(filled, np.arange(len(filled)), n, max(1, len(filled)))
    none = Outside(question=np.arange(n), group=np.full(n, -1), members=itself, own=itself)
    found = most_similar(centroids, centroids[filled], count, none)
    owners, places = np.nonzero(found >= 0)
    chosen = filled[found[owners, places]]
    row, at = flat_places(members.offsets, chosen)
    clusters, sources = owners[row], members.values[at]
    foreign = ~members.holds(clusters, sources)
    return lists_of(clusters[foreign], sources[foreign], n, members.limit)


def mine(
    links: Links,
    questions: Floats,
    sources: Floats,
    near: Lists,
    counts: Sequence[int],
    *,
    seed: int,
    search: Search = most_similar,
) -> tuple[Ints, Ints]:
    """Negatives and tiers, int64 [P, N] each, tiers rising in each row; N is the sum of `counts`.

    `questions` and `sources` are from `unit`, one row for each, `near` from `near_clusters`. Every
    question has N sources that are not its own: see `Links.require_enough`.
    """
    own, members = links.own(), links.members()
    keys = (links.clusters + 1) * links.n_questions + links.questions
    groups, group_of = np.unique(keys, return_inverse=True)
    cluster, question = groups // links.n_questions - 1, groups % links.n_questions
    outside = Outside(question=question, group=cluster, members=members, own=own)
    # N are enough: of these, no more are taken already than are no longer needed.
    k = min(sum(counts), links.n_sources)
    similar = np.empty((len(groups), 0), np.int64)
    if sum(counts[:3]):  # tier 3 also takes what tiers 1 and 2 lack
        similar = search(questions, sources, k, outside)
    pools = _Pools(links, own, members, near, _Others(members), similar, group_of, seed)
    rows = np.empty((len(links.questions), sum(counts)), np.int64)
    tiers = np.empty_like(rows)
    for start in range(0, len(rows), _AT_ONCE):
        part = np.arange(start, min(start + _AT_ONCE, len(rows)))
        rows[part], tiers[part] = _Filling(pools, part, counts).run()
    return rows, tiers


@dataclass(frozen=True, slots=True)
class _Pools:
    """What each tier draws from, for any pair."""

    links: Links
    own: Lists
    members: Lists
    near: Lists
    others: _Others
    similar: Ints
    group_of: Ints
    seed: int

    def sizes(self, tier: int, pairs: Ints) -> Ints:
        clusters = self.links.clusters[pairs]
        if tier == 3:
            listed: Ints = (self.similar[self.group_of[pairs]] >= 0).sum(axis=1, dtype=np.int64)
            return listed
        counts = (self.near if tier == 2 else self.members).counts
        known: Ints = np.append(counts, 0)[clusters]  # -1: no cluster, nothing
        return self.links.n_sources - known if tier == 4 else known

    def sources(self, tier: int, pairs: Ints, positions: Ints, sizes: Ints) -> Ints:
        """What stands at these positions of the pools; all int64 of one length."""
        if tier == 3:
            listed: Ints = self.similar[self.group_of[pairs], positions]
            return listed
        clusters, links = self.links.clusters[pairs], self.links
        keys = keys_of(self.seed, links.questions[pairs], links.sources[pairs], tier)
        drawn = draw(positions, sizes, keys)
        if tier == 4:
            return self.others.at(clusters, drawn)
        pool = self.near if tier == 2 else self.members
        found: Ints = pool.values[pool.offsets[clusters] + drawn]
        return found


class _Others:
    """What sets do not hold, by rank.

    The j-th value v of a set has v - j below it that are not in the set, which never falls with j:
    so many values come before the wanted one as have at most its rank below them.
    """

    def __init__(self, lists: Lists) -> None:
        self._lists = lists
        places = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], lists.counts)
        self._below = lists.keys - places  # set * limit + how many are missing before the value

    def at(self, numbers: Ints, ranks: Ints) -> Ints:
        """The value of rank ``ranks[i]`` that set ``numbers[i]`` does not hold (-1: any value)."""
        result = ranks.copy()
        inside = np.flatnonzero(numbers >= 0)
        chosen = numbers[inside]
        ends = np.searchsorted(self._below, chosen * self._lists.limit + ranks[inside], "right")
        result[inside] += ends - self._lists.offsets[chosen]
        return result


class _Filling:
    """The negatives of some pairs, in the making."""

    def __init__(self, pools: _Pools, pairs: Ints, counts: Sequence[int]) -> None:
        self._pools = pools
        self._pairs = pairs
        self._counts = counts
        self._rows = np.full((len(pairs), sum(counts)), -1, np.int64)
        self._tiers = np.zeros_like(self._rows)
        self._filled = np.zeros(len(pairs), np.int64)

    def run(self) -> tuple[Ints, Ints]:
        need = np.zeros(len(self._pairs), np.int64)
        for tier in _TIERS:
            self._fill(tier, need := need + self._counts[tier - 1])
        for tier in _TIERS[:3]:
            if need.any():
                self._fill(tier, need)
        order = np.argsort(self._tiers, axis=1, kind="stable")
        return np.take_along_axis(self._rows, order, 1), np.take_along_axis(self._tiers, order, 1)

    def _fill(self, tier: int, need: Ints) -> None:
        """Walk through the pool of each row that has need, and lower the need by what is found."""
        sizes = self._pools.sizes(tier, self._pairs)
        active = np.flatnonzero((need > 0) & (sizes > 0))
        at, width = 0, _FIRST_LOOK
        while len(active):
            positions = at + np.arange(width)
            found, good = self._look(tier, active, positions, sizes[active])
            ranks = np.cumsum(good, axis=1)
            good &= ranks <= need[active, None]
            row, column = np.nonzero(good)
            places = self._filled[active[row]] + ranks[row, column] - 1
            self._rows[active[row], places] = found[row, column]
            self._tiers[active[row], places] = tier
            taken = np.count_nonzero(good, axis=1)
            self._filled[active] += taken
            need[active] -= taken
            at, width = at + width, min(2 * width, _WIDEST)
            active = active[(need[active] > 0) & (sizes[active] > at)]

    def _look(
        self, tier: int, active: Ints, positions: Ints, sizes: Ints
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """What stands at `positions` for each of `active`, and whether it can be taken."""
        pairs = np.repeat(self._pairs[active], len(positions))
        limits = np.repeat(sizes, len(positions))
        wanted = np.tile(positions, len(active))
        good = wanted < limits
        found = self._pools.sources(tier, pairs, np.minimum(wanted, limits - 1), limits)
        good &= ~self._pools.own.holds(self._pools.links.questions[pairs], found)
        found = found.reshape(len(active), len(positions))
        for place in range(self._rows.shape[1]):
            good &= (found != self._rows[active, place, None]).ravel()
        return found, good.reshape(found.shape)
