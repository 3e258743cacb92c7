"""Hard negatives of each pair, in four tiers.

The negatives of a pair are distinct sources, none of which is a known positive of its question.
Each tier supplies a number of negatives from its own pool of sources:

1. random sources of the pair's cluster;
2. random sources of the clusters whose centroids are nearest to the centroid of the pair's cluster;
3. the sources outside the cluster that are most similar to the question (`pairs.search`);
4. random sources outside the cluster.

A source belongs to the clusters of all pairs in which it occurs. For a pair without a cluster, the
pools of tiers 1 and 2 are empty. The tiers choose in the order 1, 2, 3, 4. If the pool of a tier
is exhausted, the next tier supplies the missing negatives, and tier 1 follows tier 4. The tier of
each negative is stored.

A random choice depends only on the seed, the question, the source and the tier. So the result does
not depend on the number of pairs in a block. The cost is one search, and about 10 microseconds of
sampling per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataprep.formats.cores import available_cores
from dataprep.formats.errors import InputError

from ..embeddings.convert import unit
from ..staging.checkpoints import Checkpoints
from .clusters import Clustering
from .csr import Ints, RowSets, flat_positions, row_sets
from .draws import draw, keys_of
from .options import PairOptions
from .search import Floats, Queries, Search, faiss_search, most_similar
from .table import Links, PairTable
from .vectors import Vectors

__all__ = ["mine", "mine_pairs", "near_clusters", "require_enough", "tier_counts"]

_TIERS = (1, 2, 3, 4)
_AT_ONCE = 4096  # pairs in a block; the result does not depend on it
_FIRST_WIDTH, _LAST_WIDTH = 8, 1024  # candidates tried at once, for each pair


def tier_counts(total: int, proportions: Sequence[float]) -> list[int]:
    """Return the number of negatives of each tier. The numbers add up to `total`.

    The shares in `proportions` are rounded by the method of largest remainders.

    >>> tier_counts(12, (0.25, 0.25, 0.25, 0.25)), tier_counts(5, (0.5, 0.5, 0, 0))
    ([3, 3, 3, 3], [3, 2, 0, 0])
    """
    exact = [round(total * share, 9) for share in proportions]
    counts = [int(part) for part in exact]
    by_rest = sorted(range(len(exact)), key=lambda tier: counts[tier] - exact[tier])
    for tier in by_rest[: total - sum(counts)]:
        counts[tier] += 1
    return counts


def require_enough(links: Links, n_neg: int, texts: Sequence[str]) -> None:
    """Raise `InputError` if a question has fewer than `n_neg` possible negatives.

    The possible negatives of a question are the sources that are not in a pair with it. `texts` are
    the texts of the questions, for the error message.
    """
    left = links.n_sources - links.own().counts
    worst = int(np.argmin(left))
    if left[worst] < n_neg:
        raise InputError(
            f"{links.n_sources} sources less the {links.n_sources - left[worst]} of the question "
            f"{texts[worst][:80]!r} leave {left[worst]} for {n_neg} negatives",
            where="--n-neg", code="E_FEW_SOURCES", remedy="Lower --n-neg, or add sources.",
        )  # fmt: skip


def near_clusters(centroids: Floats, members: RowSets, count: int) -> RowSets:
    """Return, for each cluster, the sources that belong to the `count` clusters nearest to it.

    Set c of `members` holds the sources of cluster c. Set c of the result holds none of them. The
    nearest clusters are those whose centroids have the highest cosine with the centroid of c. At a
    tie the lower cluster number is nearer. Empty clusters are ignored. The `centroids` must have
    length 1.
    """
    n = len(members)
    filled = np.flatnonzero(members.counts)
    itself = row_sets(filled, np.arange(len(filled)), n, max(1, len(filled)))
    none = Queries(question=np.arange(n), group=np.full(n, -1), members=itself, own=itself)
    found = most_similar(centroids, centroids[filled], count, none)
    owners, places = np.nonzero(found >= 0)
    chosen = filled[found[owners, places]]
    row, at = flat_positions(members.offsets, chosen)
    clusters, sources = owners[row], members.values[at]
    others = ~members.holds(clusters, sources)
    return row_sets(clusters[others], sources[others], n, members.limit)


def mine(
    links: Links,
    questions: Floats,
    sources: Floats,
    near: RowSets,
    counts: Sequence[int],
    *,
    seed: int,
    search: Search = most_similar,
) -> tuple[Ints, Ints]:
    """Return the negatives of each pair, and the tier (1 to 4) of each negative.

    Both arrays are int64 [pairs, N], sorted by tier within a row. `counts` holds the number of
    negatives of each tier; their sum is N. `questions` and `sources` are vectors of length 1, and
    `near` is the result of `near_clusters`. The function `search` finds the candidates of tier 3.
    Call `require_enough` first: it checks that every question has enough possible negatives.
    """
    own, members = links.own(), links.members()
    keys = (links.clusters + 1) * links.n_questions + links.questions
    groups, group_of = np.unique(keys, return_inverse=True)
    cluster, question = groups // links.n_questions - 1, groups % links.n_questions
    queries = Queries(question=question, group=cluster, members=members, own=own)
    # N candidates suffice for tier 3: each one that an earlier tier has taken also fills a column.
    k = min(sum(counts), links.n_sources)
    similar = np.empty((len(groups), 0), np.int64)
    if sum(counts[:3]):  # tier 3 also supplies what tiers 1 and 2 lack
        similar = search(questions, sources, k, queries)
    pools = _Pools(links, own, members, near, _Complements(members), similar, group_of, seed)
    rows = np.empty((len(links.questions), sum(counts)), np.int64)
    tiers = np.empty_like(rows)
    for start in range(0, len(rows), _AT_ONCE):
        part = np.arange(start, min(start + _AT_ONCE, len(rows)))
        rows[part], tiers[part] = _Filling(pools, part, counts).run()
    return rows, tiers


def mine_pairs(
    options: PairOptions,
    table: PairTable,
    vectors: Vectors,
    clustering: Clustering,
    checkpoints: Checkpoints,
    *,
    search: str,
    progress: Callable[[int, int], None],
) -> tuple[Ints, Ints]:
    """Return the negatives of all pairs and their tiers, int64 [pairs, n_neg] each.

    The result is stored as a checkpoint, or read from the checkpoint if an interrupted build has
    stored it. `search` is ``exact`` or ``faiss``. With ``exact``, the function `progress` is called
    with the number of finished queries and their total number.
    """

    def exact(questions: Floats, sources: Floats, k: int, queries: Queries) -> Ints:
        threads = options.workers or available_cores()
        total = len(queries)
        return most_similar(
            questions, sources, k, queries, threads=threads, done=lambda done: progress(done, total)
        )

    def make() -> Ints:
        links = table.links(len(clustering.centroids), clustering.of_pair)
        centroids = unit(clustering.centroids)
        near = near_clusters(centroids, links.members(), options.near_clusters)
        counts = tier_counts(options.n_neg, options.tiers())
        found = mine(
            links, unit(vectors.questions), unit(vectors.sources), near, counts,
            seed=options.seed, search=faiss_search if search == "faiss" else exact,
        )  # fmt: skip
        return np.stack(found)

    negatives, tiers = checkpoints.array(
        "negatives-faiss" if search == "faiss" else "negatives", make
    )
    return negatives, tiers


@dataclass(frozen=True, slots=True)
class _Pools:
    """Pools of sources from which the negatives of a pair are chosen, one pool for each tier."""

    links: Links
    own: RowSets
    members: RowSets
    near: RowSets
    others: _Complements
    similar: Ints
    group_of: Ints
    seed: int

    def sizes(self, tier: int, pairs: Ints) -> Ints:
        """Return int64 [pairs]: the number of sources in the pool of `tier` for each of `pairs`."""
        clusters = self.links.clusters[pairs]
        if tier == 3:
            listed: Ints = (self.similar[self.group_of[pairs]] >= 0).sum(axis=1, dtype=np.int64)
            return listed
        counts = (self.near if tier == 2 else self.members).counts
        known: Ints = np.append(counts, 0)[clusters]  # -1: no cluster, nothing
        return self.links.n_sources - known if tier == 4 else known

    def sources(self, tier: int, pairs: Ints, positions: Ints, sizes: Ints) -> Ints:
        """Return int64 [n]: the source at ``positions[i]`` in the pool of `tier` for ``pairs[i]``.

        ``sizes[i]`` is the size of this pool, as the method `sizes` returns it. The pool of tier 3
        begins with the most similar source. The other pools are in random order.
        """
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


class _Complements:
    """Lookup of the r-th smallest integer that is not in a set, for each of many sets.

    The rank r is counted from 0. For the set {1, 2}, the ranks 0, 1 and 2 give 0, 3 and 4. The
    result is r + j if j members of the set are smaller than the result. To find j, let v[i] be
    member i of the sorted set: j is the number of members with v[i] - i <= r. As v[i] - i never
    decreases, j is found by binary search.
    """

    def __init__(self, lists: RowSets) -> None:
        self._lists = lists
        places = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], lists.counts)
        self._below = lists.keys - places  # set * limit + numbers outside the set below the value

    def at(self, numbers: Ints, ranks: Ints) -> Ints:
        """Return int64 [n]: item i has rank ``ranks[i]`` among the integers outside a set.

        The set has the number ``numbers[i]``. The number -1 means an empty set. Rank 0 is the
        smallest integer >= 0 that is not in the set.
        """
        result = ranks.copy()
        inside = np.flatnonzero(numbers >= 0)
        chosen = numbers[inside]
        ends = np.searchsorted(self._below, chosen * self._lists.limit + ranks[inside], "right")
        result[inside] += ends - self._lists.offsets[chosen]
        return result


class _Filling:
    """Block of pairs for which negatives are chosen, one tier after the other."""

    def __init__(self, pools: _Pools, pairs: Ints, counts: Sequence[int]) -> None:
        self._pools = pools
        self._pairs = pairs
        self._counts = counts
        self._rows = np.full((len(pairs), sum(counts)), -1, np.int64)
        self._tiers = np.zeros_like(self._rows)
        self._filled = np.zeros(len(pairs), np.int64)

    def run(self) -> tuple[Ints, Ints]:
        """Return the negatives and their tiers, int64 [pairs, N] each.

        The negatives of a pair are sorted by tier.
        """
        need = np.zeros(len(self._pairs), np.int64)
        for tier in _TIERS:
            self._fill(tier, need := need + self._counts[tier - 1])
        for tier in _TIERS[:3]:
            if need.any():
                self._fill(tier, need)
        order = np.argsort(self._tiers, axis=1, kind="stable")
        return np.take_along_axis(self._rows, order, 1), np.take_along_axis(self._tiers, order, 1)

    def _fill(self, tier: int, need: Ints) -> None:
        """Add sources from the pool of `tier` to the negatives of each pair i, at most ``need[i]``.

        The number of added sources is subtracted from ``need[i]``.
        """
        sizes = self._pools.sizes(tier, self._pairs)
        active = np.flatnonzero((need > 0) & (sizes > 0))
        at, width = 0, _FIRST_WIDTH
        while len(active):
            positions = at + np.arange(width)
            found, good = self._candidates(tier, active, positions, sizes[active])
            ranks = np.cumsum(good, axis=1)
            good &= ranks <= need[active, None]
            row, column = np.nonzero(good)
            places = self._filled[active[row]] + ranks[row, column] - 1
            self._rows[active[row], places] = found[row, column]
            self._tiers[active[row], places] = tier
            taken = np.count_nonzero(good, axis=1)
            self._filled[active] += taken
            need[active] -= taken
            at, width = at + width, min(2 * width, _LAST_WIDTH)
            active = active[(need[active] > 0) & (sizes[active] > at)]

    def _candidates(
        self, tier: int, active: Ints, positions: Ints, sizes: Ints
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return sources from the pools of `tier`, int64 [active, positions], and a mask.

        `active` holds the indices of the pairs that still need negatives, and `sizes` the sizes of
        their pools. The sources are those at `positions` of each pool. The mask is true for sources
        that can be added. It is false:

        - for positions beyond the end of the pool;
        - for positives of the question;
        - for sources that are already among the negatives of the pair.
        """
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
