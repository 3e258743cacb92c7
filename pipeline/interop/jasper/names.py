"""Names in JASPER's dataset directory: files, arrays with their types and shapes, and splits.

The layout is that of the RAG_supporters package (its dataset of question, steering and source with
hard negatives). Arrays have the same names in a dataset of dataprep; sizes are Q questions, S
sources, K keywords, C clusters, P pairs, N negatives for each pair, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARRAYS", "H5_NAME", "INSPECTION", "KEYWORDS", "SPLITS", "ArraySchema"]

FLOATS = ("<f4", "<f2")
SINGLE = ("<f4",)
WHOLE = ("<i8",)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySchema:
    """Requirements of an array: one of `dtypes`, and a shape of numbers and of sizes by letter."""

    dtypes: tuple[str, ...]
    shape: tuple[str | int, ...]

    @property
    def table(self) -> bool:
        """Return whether its rows are referenced by pairs, instead of being pairs."""
        return self.shape[0] != "P"


ARRAYS: Mapping[str, ArraySchema] = {
    "question_embs": ArraySchema(dtypes=FLOATS, shape=("Q", "D")),
    "source_embs": ArraySchema(dtypes=FLOATS, shape=("S", "D")),
    "keyword_embs": ArraySchema(dtypes=FLOATS, shape=("K", "D")),
    "centroid_embs": ArraySchema(dtypes=FLOATS, shape=("C", "D")),
    "pair_index": ArraySchema(dtypes=WHOLE, shape=("P", 2)),
    "pair_cluster_id": ArraySchema(dtypes=WHOLE, shape=("P",)),
    "pair_relevance": ArraySchema(dtypes=SINGLE, shape=("P",)),
    "hard_negatives": ArraySchema(dtypes=WHOLE, shape=("P", "N")),
    "negative_tiers": ArraySchema(dtypes=WHOLE, shape=("P", "N")),
    "steering_centroid": ArraySchema(dtypes=SINGLE, shape=("P", "D")),
    "steering_keyword_weighted": ArraySchema(dtypes=SINGLE, shape=("P", "D")),
    "steering_residual": ArraySchema(dtypes=SINGLE, shape=("P", "D")),
    "centroid_distances": ArraySchema(dtypes=SINGLE, shape=("P",)),
}
"""Arrays, each a tensor in NAME.pt."""

KEYWORDS = "pair_keyword_ids"
"""Pickled list of a list of ids for each pair; in dataprep pair_keyword_offsets and _ids."""

SPLITS = ("train", "val", "test")
"""Splits, each a tensor of pair numbers in NAME_idx.pt."""

INSPECTION = "inspection.json"

H5_NAME = "dataset.h5"
"""All of them in one file, beside config.json, which it needs."""
