"""The fifth step of a build of pairs: negatives of all pairs, kept when they are done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..read.process_limits import available_cores
from ..staging.checkpoints import Kept
from .clustering import Clustering
from .csr import Ints
from .embed import Vectors
from .negatives import Search, mine, near_clusters, tier_counts
from .options import PairOptions
from .prepare import Table
from .search import Floats, Outside, most_similar, unit

__all__ = ["mine_kept"]


def mine_kept(
    options: PairOptions,
    table: Table,
    vectors: Vectors,
    clustering: Clustering,
    kept: Kept,
    *,
    tell: Callable[[int, int], None],
    search: Search | None,
) -> tuple[Ints, Ints]:
    """Negatives and tiers, int64 [P, N] each; `search` None is the exact one."""

    def exact(questions: Floats, sources: Floats, k: int, outside: Outside) -> Ints:
        threads = options.workers or available_cores()
        total = len(outside)
        return most_similar(
            questions, sources, k, outside, threads=threads, done=lambda done: tell(done, total)
        )

    def make() -> Ints:
        links = table.links(len(clustering.centroids), clustering.of_pair)
        centroids = unit(clustering.centroids)
        near = near_clusters(centroids, links.members(), options.near_clusters)
        counts = tier_counts(options.n_neg, options.tiers())
        found = mine(
            links, unit(vectors.questions), unit(vectors.sources), near, counts,
            seed=options.seed, search=search or exact,
        )  # fmt: skip
        return np.stack(found)

    negatives, tiers = kept.array("negatives" if search is None else "negatives-faiss", make)
    return negatives, tiers
