"""Estimate of a build from a sample of its inputs: for `--dry-run`, and to check the disk space.

Disk usage is highest just before the dataset is published, when the files of all units still exist.
A shard needs additional space if it is joined from several small pieces (parts of a split, each
written by one unit). A large piece becomes a shard by a hard link, and needs none. If splits have
exact sizes, every document is copied once more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataprep.formats.cores import available_cores
from dataprep.formats.storage import free_bytes

from ..commit.shards import JOIN_BELOW_BYTES, SMALL_PART
from ..plan.splits import exact_sizes, ordered_names, split_notes
from ..tokenize.engines import naming
from .prepare import TokenPrepared

__all__ = ["ESTIMATE_SAMPLE_BYTES", "TokenEstimate", "estimate"]

ESTIMATE_SAMPLE_BYTES = 256 << 10
"""Bytes of text that `--dry-run` reads at each of eight places of the input."""

_OFFSET_BYTES = 8 + 16  # offset and provenance of a document
_RECORD_BYTES = 8
_KEY_BYTES = 16
_HEADROOM = 1.1  # factor on the disk space computed from the sample
_START_SECONDS = 1.0  # interpreters, tokenizer, comparison of the engines
_STORE_RATE = 500e6  # bytes per second and worker, hashed and written


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEstimate:
    """Estimate of a build of tokens, from a sample of its inputs.

    Sizes are in bytes. The field `seconds` is the time that the build takes with `workers` workers.
    """

    inputs: int
    input_bytes: int
    documents: int
    tokens: int
    output_bytes: int
    peak_disk_bytes: int
    """Includes a margin of a tenth; a build starts only where this much is free."""
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
    notes: tuple[str, ...] = ()
    """Messages for the user, such as on inputs that are left out."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for the output of ``--json``."""
        return asdict(self)


def estimate(prepared: TokenPrepared, *, mask: bool = False) -> TokenEstimate:
    """Return an estimate of the build, extrapolated from its sample.

    If `mask` is true, one byte per token is added for the loss mask.
    """
    plan, sample, options = prepared.plan, prepared.sample, prepared.options
    encoding = plan.payload.encoding
    started = time.perf_counter()
    with naming(options.tokenizer):
        ids, _ = prepared.encoder.encode([text.encode() for text in sample.texts])
    per_byte = sample.seconds / max(1, sample.read_bytes)
    per_byte += (time.perf_counter() - started) / max(1, sample.kept_bytes)
    scale = plan.input_bytes / sample.stored_bytes if sample.stored_bytes else 0.0
    text_bytes = sample.text_bytes * scale
    documents = round(sample.documents * scale)
    bytes_per_token = sample.kept_bytes / max(1, len(ids))
    tokens = round(text_bytes / bytes_per_token) if ids.size else 0
    tokens += encoding.added * documents
    size = tokens * int(encoding.dtype[2])
    masks = tokens if mask else 0
    output = (
        size + masks + documents * (_OFFSET_BYTES + _RECORD_BYTES) + len(prepared.tokenizer_json)
    )
    notes = list(prepared.notes)
    if sample.keys:
        notes += split_notes(
            dict.fromkeys(prepared.shares, 1), prepared.shares, key=options.split_key,
            keys=len(sample.keys), exact=options.split_mode == "count", sampled=True,
        )  # fmt: skip
    parts, exact = _parts(prepared.shares, documents), options.split_mode == "count"
    peak = _peak_bytes(size, documents, parts, len(plan.units), exact=exact)
    peak += 2 * len(prepared.tokenizer_json) + 2 * masks  # which are always copied
    workers = min(options.workers or available_cores(), max(1, len(plan.units)))
    return TokenEstimate(
        inputs=len(plan.sources),
        input_bytes=plan.input_bytes,
        documents=documents,
        tokens=tokens,
        output_bytes=output,
        peak_disk_bytes=int(peak * _HEADROOM),
        free_bytes=free_bytes(options.out),
        seconds=round(_START_SECONDS + (per_byte * text_bytes + output / _STORE_RATE) / workers, 1),
        bytes_per_token=round(bytes_per_token, 3),
        tokenizer=prepared.tokenizer_origin,
        engine=encoding.engine,
        engine_reason=prepared.tokenizer.engine_reason,
        units=len(plan.units),
        workers=workers,
        splits=prepared.shares,
        sampled_bytes=sample.stored_bytes,
        sampled_rejects=sample.rejects,
        notes=tuple(notes),
    )


def _parts(shares: dict[str, float | int | None], documents: int) -> list[float]:
    """Return the fraction of `documents` in each split of `shares`, from 0 to 1.

    The fractions are in the order of `ordered_names(shares)`.
    """
    sizes = exact_sizes([shares[name] for name in ordered_names(shares)], documents)
    return [min(1.0, max(0, size) / max(1, documents)) for size in sizes]


def _peak_bytes(
    tokens: int, documents: int, parts: Sequence[float], units: int, *, exact: bool
) -> int:
    """Return the number of bytes on disk just before the dataset is published.

    The argument `tokens` is the size of all token ids in bytes, `parts` contains the fraction of
    documents in each split, and `exact` says whether splits have exact sizes.
    """
    pieces = [part * tokens / max(1, units) for part in parts]
    small = max(JOIN_BELOW_BYTES, max(pieces) / SMALL_PART)
    copied = sum(part for part, piece in zip(parts, pieces, strict=True) if piece < small)
    shards = tokens + documents * _OFFSET_BYTES
    staged = shards + documents * (_RECORD_BYTES + (_KEY_BYTES if exact else 0))
    dealt = shards + documents * _RECORD_BYTES if exact else 0
    joined = shards * copied if units > 1 else 0.0
    return int(staged + dealt + joined) + documents * _RECORD_BYTES
