"""The names of JASPER's dataset directory: files, shapes, config keys, and what they are to us.

The layout is that of the RAG_supporters package (its dataset of question, steering and source with
hard negatives). Its arrays have the names of ours; sizes are Q questions, S sources, K keywords, C
clusters, P pairs, N negatives for each pair, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARRAYS", "H5_NAME", "H5_PLACES", "INSPECTION", "KEYWORDS", "SPLITS", "Rule"]

FLOATS = ("<f4", "<f2")
SINGLE = ("<f4",)
WHOLE = ("<i8",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What an array must be: one of `dtypes`, and a shape of numbers and of sizes by letter."""

    dtypes: tuple[str, ...]
    shape: tuple[str | int, ...]

    @property
    def table(self) -> bool:
        """Whether its rows are pointed at, and are not the pairs."""
        return self.shape[0] != "P"


ARRAYS: Mapping[str, Rule] = {
    "question_embs": Rule(dtypes=FLOATS, shape=("Q", "D")),
    "source_embs": Rule(dtypes=FLOATS, shape=("S", "D")),
    "keyword_embs": Rule(dtypes=FLOATS, shape=("K", "D")),
    "centroid_embs": Rule(dtypes=FLOATS, shape=("C", "D")),
    "pair_index": Rule(dtypes=WHOLE, shape=("P", 2)),
    "pair_cluster_id": Rule(dtypes=WHOLE, shape=("P",)),
    "pair_relevance": Rule(dtypes=SINGLE, shape=("P",)),
    "hard_negatives": Rule(dtypes=WHOLE, shape=("P", "N")),
    "negative_tiers": Rule(dtypes=WHOLE, shape=("P", "N")),
    "steering_centroid": Rule(dtypes=SINGLE, shape=("P", "D")),
    "steering_keyword_weighted": Rule(dtypes=SINGLE, shape=("P", "D")),
    "steering_residual": Rule(dtypes=SINGLE, shape=("P", "D")),
    "centroid_distances": Rule(dtypes=SINGLE, shape=("P",)),
}
"""Each is a tensor in NAME.pt."""

KEYWORDS = "pair_keyword_ids"
"""A pickled list of one list of ids for each pair; ours are pair_keyword_offsets and _ids."""

SPLITS = ("train", "val", "test")
"""Each is a tensor of pair numbers in NAME_idx.pt."""

INSPECTION = "inspection.json"

H5_NAME = "dataset.h5"
"""The same in one file, beside config.json, which it needs."""

H5_PLACES: Mapping[str, str] = {
    "question_embs": "embeddings/questions",
    "source_embs": "embeddings/sources",
    "keyword_embs": "embeddings/keywords",
    "centroid_embs": "embeddings/centroids",
    "pair_index": "pair_data/index",
    "pair_cluster_id": "pair_data/cluster_id",
    "pair_relevance": "pair_data/relevance",
    "pair_keyword_offsets": "pair_data/keyword_offsets",
    "pair_keyword_ids": "pair_data/keyword_ids",
    "hard_negatives": "negatives/hardnegatives",
    "negative_tiers": "negatives/tiers",
    "steering_centroid": "steering/centroid",
    "steering_keyword_weighted": "steering/keyword_weighted",
    "steering_residual": "steering/residual",
    "centroid_distances": "steering/distances",
}
"""Where they stand there. Keyword ids are a group of one dataset for each pair; in our files they
are one dataset, with offsets."""
