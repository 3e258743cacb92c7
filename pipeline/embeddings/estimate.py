"""Estimate of a build of embeddings, for `--dry-run` and the check of disk space.

The number of rows is read from file headers, or extrapolated from the first records. The build
needs most disk space just before it publishes the dataset. At that time the rows of small files
exist twice: in the files that tasks wrote, and in the shards that join these files. Large files
become shards by hard links, which need no further space.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dataprep.formats.cores import available_cores
from dataprep.formats.files import npy
from dataprep.formats.storage import free_bytes

from .assemble import LINK_BYTES
from .options import PROVENANCE, scale_name
from .plan import EmbeddingPayload
from .prepare import EmbeddingPrepared
from .readers import rows_in

__all__ = ["EmbeddingEstimate", "estimate"]

_NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_SCALAR_BYTES = {"int": 8, "float": 8, "bool": 1, "label": 8}
_PROVENANCE_BYTES = 16
_INDEX_BYTES = 8
_HASH_BYTES = 8
_SCALE_BYTES = 4
_HEADROOM = 1.1
_RATE = 300e6  # bytes of output per second: read, checked, hashed and written twice
_START_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingEstimate:
    """Counts, sizes and build time of the dataset that a build of embeddings would make.

    The time of an encoder is not included in `seconds`.
    """

    inputs: int
    input_bytes: int
    rows: int
    row_bytes: dict[str, int]
    """Bytes of a row of each array."""
    output_bytes: int
    peak_disk_bytes: int
    """Includes a margin of a tenth; a build starts only where this much is free."""
    free_bytes: int
    seconds: float
    units: int
    workers: int
    splits: dict[str, float | int | None]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for JSON."""
        return asdict(self)


def estimate(prepared: EmbeddingPrepared) -> EmbeddingEstimate:
    """Return the estimate of a build, from the headers and first records of its inputs."""
    plan, options = prepared.plan, prepared.options
    payload = plan.payload
    rows = sum(
        rows_in(source, payload.columns, payload.hf_config, payload.hf_split)
        for source in plan.sources
    )
    row_bytes = _row_bytes(payload)
    headers = npy.PAGE * len(row_bytes)
    output = rows * (sum(row_bytes.values()) + _INDEX_BYTES) + headers
    small = sum(size for size in row_bytes.values() if rows * size < LINK_BYTES * len(plan.units))
    peak = output + rows * (small + _HASH_BYTES) + headers * len(plan.units)
    workers = min(options.workers or available_cores(), max(1, len(plan.units)))
    return EmbeddingEstimate(
        inputs=len(plan.sources), input_bytes=plan.input_bytes, rows=rows, row_bytes=row_bytes,
        output_bytes=output, peak_disk_bytes=int(peak * _HEADROOM),
        free_bytes=free_bytes(options.out),
        seconds=round(_START_SECONDS + output / _RATE, 1), units=len(plan.units),
        workers=1 if options.encoder is not None else workers, splits=prepared.shares,
        notes=prepared.notes,
    )  # fmt: skip


def _row_bytes(plan: EmbeddingPayload) -> dict[str, int]:
    found = {PROVENANCE: _PROVENANCE_BYTES}
    for column in plan.stored:
        found[column.name] = _SCALAR_BYTES.get(
            column.kind, column.width * _NUMBER_BYTES[plan.dtype]
        )
        if plan.dtype == "int8" and column.kind not in _SCALAR_BYTES:
            found[scale_name(column.name)] = _SCALE_BYTES
    return found
