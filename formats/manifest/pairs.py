"""The arrays of a dataset of pairs: their names, types and shapes, which must fit one another.

Question `q`, source `s`, keyword `k` and cluster `c` are rows of four tables; every other array has
a row for each pair, or says which keywords a pair has. Checked when config.json is read, so that
whoever opens a dataset of pairs can rely on it; costs nothing that grows with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from .common import check_known, insist, newer
from .curriculum import Mode

if TYPE_CHECKING:
    from .arrays import ArrayEntry

__all__ = [
    "FOREIGN",
    "PAIR_ARRAYS",
    "PROVENANCE",
    "PairSizes",
    "check_pair_arrays",
    "merged_records",
    "pair_sizes",
]

PROVENANCE = "provenance"
"""uint64 [rows, 2], where there is one: input number, and byte offset or row in that input."""

FOREIGN = "foreign"
"""The key of `pairs` under which a conversion keeps what another layout said of itself."""

_FLOATS = ("<f4", "<f2")
_LIMIT = 1 << 63

PAIR_ARRAYS: Mapping[str, tuple[tuple[str, ...], str, tuple[str | int, ...]]] = {
    "question_embs": (_FLOATS, "questions", ("dim",)),
    "source_embs": (_FLOATS, "sources", ("dim",)),
    "keyword_embs": (_FLOATS, "keywords", ("dim",)),
    "centroid_embs": (_FLOATS, "clusters", ("dim",)),
    "pair_index": (("<i8",), "pairs", (2,)),
    "pair_cluster_id": (("<i8",), "pairs", ()),
    "pair_relevance": (("<f4",), "pairs", ()),
    "pair_keyword_offsets": (("<i8",), "ends", ()),
    "pair_keyword_ids": (("<i8",), "mentions", ()),
    "hard_negatives": (("<i8",), "pairs", ("negatives",)),
    "negative_tiers": (("<i8",), "pairs", ("negatives",)),
    "steering_centroid": (("<f4",), "pairs", ("dim",)),
    "steering_keyword_weighted": (("<f4",), "pairs", ("dim",)),
    "steering_residual": (("<f4",), "pairs", ("dim",)),
    "centroid_distances": (("<f4",), "pairs", ()),
}
"""By name: the types it may have, how many rows, and the shape of a row (names of `PairSizes`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSizes:
    """How many there are of everything; `dim` numbers make a vector, `negatives` are for a pair.

    `mentions` counts the keywords of all pairs together; `ends` is `pairs` + 1.
    """

    pairs: int
    questions: int
    sources: int
    keywords: int
    clusters: int
    mentions: int
    dim: int
    negatives: int

    @property
    def ends(self) -> int:
        """How many offsets there are into the keywords of all pairs."""
        return self.pairs + 1


def pair_sizes(arrays: Mapping[str, ArrayEntry], pairs: int) -> PairSizes:
    """The sizes that the arrays of a checked manifest have."""
    return PairSizes(
        pairs=pairs,
        questions=arrays["question_embs"].rows,
        sources=arrays["source_embs"].rows,
        keywords=arrays["keyword_embs"].rows,
        clusters=arrays["centroid_embs"].rows,
        mentions=arrays["pair_keyword_ids"].rows,
        dim=arrays["question_embs"].row[0],
        negatives=arrays["hard_negatives"].row[0],
    )


def check_pair_arrays(
    arrays: Mapping[str, ArrayEntry], rows: int, pairs: Mapping[str, Any]
) -> None:
    """Raise unless `arrays` are those of `rows` pairs, and fit `pairs`.

    An array, or a type of one, that is not known is an `IncompatibleError`.
    """
    missing = [name for name in PAIR_ARRAYS if name not in arrays]
    insist(not missing, f"a dataset of pairs needs the array {', '.join(missing)}")
    unknown = sorted(set(arrays) - set(PAIR_ARRAYS) - {PROVENANCE})
    if unknown:
        raise newer(f"the array {unknown[0]!r} of a dataset of pairs")
    for name in ("question_embs", "hard_negatives"):
        insist(len(arrays[name].row) == 1, f"{name}: a row is not a list of numbers")
    sizes = pair_sizes(arrays, rows)
    for name, (dtypes, count, row) in PAIR_ARRAYS.items():
        found = arrays[name]
        expected = (
            getattr(sizes, count),
            *(size if isinstance(size, int) else getattr(sizes, size) for size in row),
        )
        check_known(found.dtype, dtypes, f"{name}: type")
        insist(
            (found.rows, *found.row) == expected,
            f"{name}: shape {[found.rows, *found.row]}, must be {list(expected)} "
            f"({', '.join(map(str, (count, *row)))})",
        )
    curriculum = pairs.get("curriculum")
    if isinstance(curriculum, Mapping) and "mode" in curriculum:
        check_known(curriculum["mode"], get_args(Mode), "pairs.curriculum.mode")
    insist(sizes.dim > 0, "question_embs: vectors of no numbers")
    insist(sizes.questions * sizes.sources < _LIMIT, "more questions and sources than 64 bits tell")
    for name in ("dim", "questions", "sources", "keywords", "negatives", "clusters"):
        size = getattr(sizes, name)
        stated = pairs.get(name, size)
        if isinstance(stated, Mapping):  # what else is known of them stands beside the count
            stated = stated.get("count", size)
        insist(stated == size, f"pairs.{name} is {stated!r}, the arrays have {size}")


def merged_records(pairs: Mapping[str, Any]) -> int:
    """Return how many records named a pair that an earlier one had named; raise for no count.

    >>> merged_records({"counts": {"merged": 2}}), merged_records({})
    (2, 0)
    """
    counts = pairs.get("counts", {})
    found = counts.get("merged", 0) if isinstance(counts, Mapping) else None
    insist(type(found) is int and found >= 0, "pairs.counts.merged is no count")
    return int(found or 0)
