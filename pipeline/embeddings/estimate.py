"""What a build of embeddings will take: `--dry-run`, and the check of disk space.

Rows are known where the inputs tell how many they have, and otherwise foretold from the first of
them. Most disk is used just before a dataset is published: the units are there still, and beside
them the arrays that were put together from small ones; large ones are linked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dataprep.formats.errors import StorageError
from dataprep.formats.files import npy
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.storage import free_bytes

from ..commit import output_dir as destination
from ..read.child_process import reading_apart
from ..read.process_limits import available_cores
from .assemble import LINK_BYTES
from .options import PROVENANCE, EmbeddingOptions, scale_name
from .plan import EmbedPlan
from .prepare import EmbedPrepared, prepare_embeddings
from .readers import rows_in

__all__ = ["EmbeddingEstimate", "check_embedding_disk", "estimate_embeddings"]

_NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_SCALAR_BYTES = {"int": 8, "float": 8, "bool": 1, "label": 8}
_PROVENANCE_BYTES = 16
_INDEX_BYTES = 8
_HASH_BYTES = 8
_SCALE_BYTES = 4
_HEADROOM = 1.1
_RATE = 300e6  # bytes of output per second and worker, read, checked, hashed and written twice
_START_SECONDS = 0.5
_BUILT = "a dataset stands there already: a build of the same would change nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingEstimate:
    """Sizes in bytes, `seconds` with the workers asked for; an encoder's time is not in it."""

    inputs: int
    input_bytes: int
    rows: int
    row_bytes: dict[str, int]
    """Bytes of a row of each array."""
    output_bytes: int
    peak_disk_bytes: int
    """With a tenth to spare; a build starts only where no less than this is free."""
    free_bytes: int
    seconds: float
    units: int
    workers: int
    splits: dict[str, float | int | None]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


@reading_apart()
def estimate_embeddings(options: EmbeddingOptions) -> EmbeddingEstimate:
    """Look at the inputs and say what a build would take; writes nothing."""
    options = replace(options, out=destination.resolve(options.out))
    existing = destination.check(options.out, array_manifest.load, overwrite=options.overwrite)
    found = estimate_prepared(prepare_embeddings(options))
    kept = existing is not None and not options.overwrite
    return replace(found, notes=(*found.notes, _BUILT)) if kept else found


def estimate_prepared(prepared: EmbedPrepared) -> EmbeddingEstimate:
    """The same for a build that is prepared."""
    plan, options = prepared.plan, prepared.options
    rows = sum(
        rows_in(source, plan.columns, plan.hf_config, plan.hf_split) for source in plan.sources
    )
    row_bytes = _row_bytes(plan)
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
        workers=1 if prepared.encoder is not None else workers, splits=prepared.shares,
        notes=prepared.notes,
    )  # fmt: skip


def _row_bytes(plan: EmbedPlan) -> dict[str, int]:
    found = {PROVENANCE: _PROVENANCE_BYTES}
    for column in plan.stored:
        found[column.name] = _SCALAR_BYTES.get(
            column.kind, column.width * _NUMBER_BYTES[plan.dtype]
        )
        if plan.dtype == "int8" and column.kind not in _SCALAR_BYTES:
            found[scale_name(column.name)] = _SCALE_BYTES
    return found


def check_embedding_disk(prepared: EmbedPrepared, *, already: int = 0) -> None:
    """Refuse a build that the disk cannot hold; `already` bytes are there from an earlier run."""
    wanted = estimate_prepared(prepared)
    needed = max(0, wanted.peak_disk_bytes - already)
    if needed > wanted.free_bytes:
        raise StorageError(
            f"about {needed:,} bytes are needed and {wanted.free_bytes:,} are free",
            where=str(prepared.options.out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip
