"""Layout of a directory of JASPER: names of files and splits, types and shapes of arrays.

The RAG_supporters package writes its datasets in this layout. They contain questions, source texts,
hard negatives and steering vectors. An array has the same name here and in a dataset of dataprep.
Letters in shapes stand for sizes:

- Q, S, K, C and P: the numbers of questions, sources, keywords, clusters and pairs;
- N: the number of negatives of each pair;
- D: the number of components of a vector.
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
    """Allowed types and the shape of a JASPER array.

    The shape consists of integers and of the letters that the module defines.
    """

    dtypes: tuple[str, ...]
    shape: tuple[str | int, ...]

    @property
    def table(self) -> bool:
        """Whether the array is a table. Pairs refer to the rows of a table by number.

        An array that is not a table has one row for each pair.
        """
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
"""Arrays by name; each is a tensor in NAME.pt."""

KEYWORDS = "pair_keyword_ids"
"""Name of the keyword ids: in NAME.pt a list with a list of ids for each pair; in a dataset of
dataprep the values of those lists, beside the array pair_keyword_offsets."""

SPLITS = ("train", "val", "test")
"""Names of splits; each is a tensor of pair numbers in NAME_idx.pt."""

INSPECTION = "inspection.json"

H5_NAME = "dataset.h5"
"""File that holds all arrays, keyword ids and splits instead of `.pt` files."""
