"""The rules for the numbers of each array of a dataset, from its manifest.

`dataprep verify` applies them to whole files, datasets to the rows that they serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..manifest.arrays import ArrayManifest
from ..manifest.pairs import FOREIGN, pair_sizes
from .rules import (
    Rule,
    boolean,
    distinct,
    finite,
    inside,
    positive,
    unit,
    within,
)

__all__ = ["array_rules", "is_foreign", "pair_rules"]

_COSINE_SLACK = 0.001  # of a cosine in float32 or float16, rounded


def is_foreign(manifest: ArrayManifest) -> bool:
    """Tell whether the pairs, and their negatives, were taken over from another layout."""
    return manifest.pairs is not None and FOREIGN in manifest.pairs


def pair_rules(manifest: ArrayManifest) -> Mapping[str, Sequence[Rule]]:
    """Return what holds for each number of the arrays that are not just vectors."""
    sizes = pair_sizes(manifest.arrays, manifest.rows)
    ids = inside([sizes.sources], ["source_embs"])
    return {
        "pair_index": [inside([sizes.questions, sizes.sources], ["question_embs", "source_embs"])],
        "pair_cluster_id": [within(-1, sizes.clusters - 1, "-1 or a row of centroid_embs")],
        "pair_relevance": [within(0, 1)],
        "pair_keyword_ids": [inside([sizes.keywords], ["keyword_embs"])],
        "hard_negatives": [ids] if is_foreign(manifest) else [ids, distinct()],
        "negative_tiers": [within(1, 4)],
        "centroid_distances": [within(0, 2, slack=_COSINE_SLACK)],
    }


def array_rules(manifest: ArrayManifest, name: str) -> Iterator[Rule]:
    """Yield what every number of the array `name` must be, provenance apart."""
    entry = manifest.arrays[name]
    if manifest.pairs is not None:
        special = pair_rules(manifest).get(name)
        if special is not None:
            yield from special
            return
    if any(other.scale == name for other in manifest.arrays.values()):
        yield positive()
        return
    if entry.dtype in ("<f4", "<f2", "bfloat16", "<f8"):
        yield finite(entry.dtype)
        if entry.unit:
            yield unit(entry.dtype)
    if entry.dtype == "|b1":
        yield boolean()
    if entry.categories is not None:
        yield within(0, len(entry.categories) - 1, f"{len(entry.categories)} categories")
