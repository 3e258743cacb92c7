"""The steering variants of a pair dataset by id and name: the one table of them.

What each is, of q, the question, c, the centroid of its cluster, and K, the keywords of the pair:

0. ``zero``: the zero vector;
1. ``centroid``: c - q, scaled to length 1;
2. ``keyword``: the plain mean of K, scaled to length 1;
3. ``residual``: q - c, as it is.

A pair without a cluster has zero vectors for 1 and 3, one without keywords for 2; a vector of
length 0 stays the zero vector. The centroid distance is the cosine distance of q and c, from 0 to
2, and 1 where there is no direction to compare (no cluster, or a zero vector).
"""

from __future__ import annotations

__all__ = ["DISTANCE_UNKNOWN", "TIERS", "VARIANTS", "VARIANT_ARRAYS"]

VARIANTS = ("zero", "centroid", "keyword", "residual")
"""Names of the variants; the id is the place."""

VARIANT_ARRAYS = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")
"""The array that holds each variant, float32 [pairs, dim]; nothing is stored for zero."""

DISTANCE_UNKNOWN = 1.0
"""The centroid distance of a pair without a cluster: what a zero vector would have."""

TIERS = ("same cluster", "nearest clusters", "most similar outside", "random outside")
"""What the negatives of tiers 1 to 4 are; the tier is the place plus 1."""
