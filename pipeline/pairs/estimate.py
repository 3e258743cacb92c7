"""Estimate of a build of pairs, for `--dry-run` and the check of disk space.

The tables have been read, so all counts are known, except the number of k-means clusters. The build
needs most disk space just before it publishes the dataset. At that time both the arrays of the
dataset and the checkpoints of the build exist.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dataprep.formats.storage import free_bytes

from ..encode.probe import Probe, probe_width
from .options import PairOptions
from .search import choose_search
from .table import PairInputs, PairTable
from .vectors import given_width

__all__ = ["PairEstimate", "estimate"]

_HEADROOM = 1.1
_STEERED = 3  # vectors of each pair, as float32
_ID_BYTES = 8
_FLOAT_BYTES = 4
_PAIR_BYTES = 2 * _ID_BYTES + _ID_BYTES + _FLOAT_BYTES + _ID_BYTES + 2 * _ID_BYTES + _FLOAT_BYTES
"""Question and source, cluster, relevance, keyword offset, provenance, centroid distance."""
_LINE_BYTES = 150  # of a line of pairs.jsonl, without question and source


@dataclass(frozen=True, kw_only=True, slots=True)
class PairEstimate:
    """Counts and sizes of the dataset that a build of pairs would make."""

    inputs: int
    input_bytes: int
    rows: int
    """Pairs, after rows have been merged."""
    questions: int
    sources: int
    keywords: int
    rejects: int
    dim: int
    """Numbers in a vector."""
    encoded: int
    """Texts for which the encoder makes vectors."""
    search: str
    output_bytes: int
    peak_disk_bytes: int
    """Includes a margin of a tenth; a build starts only where this much is free."""
    free_bytes: int
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for JSON."""
        return asdict(self)


def estimate(
    options: PairOptions, inputs: PairInputs, table: PairTable, probe: Probe | None
) -> PairEstimate:
    """Return the estimate of a build from its `table`.

    `probe` contains the encoder's vectors of a few fixed texts, which show the width of vectors. It
    is None if the build needs no encoder.
    """
    pairs = table.pairs
    texts = {"question": pairs.questions, "source": pairs.sources, "keyword": pairs.keywords}
    encoded = sum(len(v) for what, v in texts.items() if f"{what}_embs" not in inputs.others)
    dim = options.dim or (probe_width(probe) if probe else given_width(options, inputs))
    vectors = sum(map(len, texts.values())) + (options.n_clusters or len(pairs.cluster_names))
    negatives = 2 * _ID_BYTES * options.n_neg * len(pairs)
    output = negatives + len(pairs) * (_PAIR_BYTES + _ID_BYTES + _STEERED * dim * _FLOAT_BYTES)
    output += vectors * dim * (_FLOAT_BYTES if options.dtype == "float32" else 2)
    output += len(pairs.keyword_sets.values) * _ID_BYTES
    if options.inspection:
        lengths = {what: [len(text.encode()) for text in found] for what, found in texts.items()}
        output += len(pairs) * _LINE_BYTES + sum(
            lengths["question"][question] + lengths["source"][source]
            for question, source in zip(pairs.question, pairs.source, strict=True)
        )
    checkpoints = negatives + encoded * dim * _FLOAT_BYTES
    sources = (*inputs.tables, *inputs.others.values())
    return PairEstimate(
        inputs=len(sources), input_bytes=sum(source.size for source in sources), rows=len(pairs),
        questions=len(pairs.questions), sources=len(pairs.sources), keywords=len(pairs.keywords),
        rejects=len(table.rejects), dim=dim, encoded=encoded,
        search=choose_search(options.search, len(pairs.sources)), output_bytes=output,
        peak_disk_bytes=int((output + checkpoints) * _HEADROOM), free_bytes=free_bytes(options.out),
    )  # fmt: skip
