"""What a build will take, from a sample of its inputs: `--dry-run`, and the check of disk space."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from dataprep.formats.errors import StorageError
from dataprep.formats.storage import free_bytes
from dataprep.pipeline.executor import available_cores
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.prepare import Prepared, prepare

__all__ = ["Estimate", "check_disk", "estimate", "estimate_prepared"]

_SAMPLE_BYTES = 256 << 10
_DOCUMENT_BYTES = 8 + 16 + 8  # offset, provenance and record id of a document
_HEADROOM = 1.1
_START_SECONDS = 1.0  # interpreters, tokenizer, comparison of the engines
_STORE_RATE = 500e6  # bytes per second and worker, hashed and written


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Extrapolated from a sample: sizes in bytes, `seconds` with the workers asked for."""

    inputs: int
    input_bytes: int
    documents: int
    tokens: int
    output_bytes: int
    peak_disk_bytes: int
    free_bytes: int
    seconds: float
    bytes_per_token: float
    tokenizer: str
    engine: str
    engine_reason: str
    units: int
    workers: int
    splits: dict[str, float | int | None]
    sampled_bytes: int
    sampled_rejects: int

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def estimate(options: BuildOptions) -> Estimate:
    """Look at the inputs and say what a build would take; writes nothing."""
    return estimate_prepared(prepare(options, sample_bytes=_SAMPLE_BYTES))


def estimate_prepared(prepared: Prepared) -> Estimate:
    """The same for a build that is prepared."""
    plan, sample, options = prepared.plan, prepared.sample, prepared.options
    texts = [text.encode() for text in sample.texts]
    started = time.perf_counter()
    ids, _ = prepared.encoder.encode(texts)
    seconds = sample.seconds + time.perf_counter() - started
    scale = plan.input_bytes / sample.stored_bytes if sample.stored_bytes else 0.0
    work = seconds * scale
    documents = round(sample.documents * scale)
    tokens = round(len(ids) * scale) + plan.encoding.added * documents
    width = int(plan.encoding.dtype[2])
    output = tokens * width + documents * _DOCUMENT_BYTES + len(prepared.tokenizer_json)
    workers = min(options.workers or available_cores(), max(1, len(plan.units)))
    exact = options.split_mode == "count"
    return Estimate(
        inputs=len(plan.sources),
        input_bytes=plan.input_bytes,
        documents=documents,
        tokens=tokens,
        output_bytes=output,
        peak_disk_bytes=output * (2 if exact else 1),
        free_bytes=free_bytes(options.out),
        seconds=round(_START_SECONDS + (work + output / _STORE_RATE) / workers, 1),
        bytes_per_token=round(sample.text_bytes / max(1, len(ids)), 3),
        tokenizer=prepared.tokenizer_origin,
        engine=plan.encoding.engine,
        engine_reason=prepared.tokenizer.engine_reason,
        units=len(plan.units),
        workers=workers,
        splits=prepared.shares,
        sampled_bytes=sample.stored_bytes,
        sampled_rejects=sample.rejects,
    )


def check_disk(prepared: Prepared) -> None:
    """Refuse a build that the disk cannot hold, before any work."""
    wanted = estimate_prepared(prepared)
    needed = int(wanted.peak_disk_bytes * _HEADROOM)
    if needed > wanted.free_bytes:
        raise StorageError(
            f"about {needed:,} bytes are needed and {wanted.free_bytes:,} are free",
            where=str(prepared.options.out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip
