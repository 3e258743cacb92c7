"""What a build will take, from a sample of its inputs: `--dry-run`, and the check of disk space.

Most disk is used just before a dataset is published: all units are there still, and beside them the
shards that were joined from small pieces, which are copies; large pieces are linked, and cost
nothing more. Exact splits copy every document once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dataprep.formats.errors import StorageError
from dataprep.formats.manifest import tokens as manifest
from dataprep.formats.storage import free_bytes

from ..commit import output_dir as destination
from ..commit.shards import JOIN_BELOW_BYTES, SMALL_PART
from ..options import BuildOptions
from ..read.child_process import reading_apart
from ..read.process_limits import available_cores
from .notes import split_notes
from .prepare import SAMPLE_BYTES, Prepared, Survey, prepare, survey
from .splits import exact_sizes, ordered_names
from .tokenizer_setup import naming

if TYPE_CHECKING:
    from ..chat.options import ChatOptions

__all__ = ["Estimate", "check_disk", "estimate", "estimate_by", "estimate_prepared"]

Options = TypeVar("Options", "BuildOptions", "ChatOptions")
Surveyed = TypeVar("Surveyed", bound=Survey)

_SAMPLE_BYTES = 256 << 10
_PLACE_BYTES = 8 + 16  # offset and provenance of a document
_RECORD_BYTES = 8
_KEY_BYTES = 16
_HEADROOM = 1.1  # of the disk space that a sample foretells
_START_SECONDS = 1.0  # interpreters, tokenizer, comparison of the engines
_BUILT = "this dataset is built already: a build would check that it is there, and change nothing"
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
    """With a tenth to spare; a build starts only where no less than this is free."""
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
    """What else should be known before the build: inputs that are left out."""

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def estimate(options: BuildOptions) -> Estimate:
    """Look at the inputs and say what a build would take; writes nothing.

    Raises what a build would raise before its work begins, for what stands in `out` as well.
    """
    return estimate_by(options, survey, prepare)[0]


@reading_apart()
def estimate_by(
    options: Options, survey: Callable[[Options], Surveyed], prepare: Callable[..., Prepared]
) -> tuple[Estimate, Prepared]:
    """The same for what these functions survey and prepare; also gives what they prepared."""
    options = replace(options, out=destination.resolve(options.out))
    existing = destination.check(options.out, manifest.load, overwrite=options.overwrite)
    kept = existing if not options.overwrite else None
    sample_bytes = SAMPLE_BYTES if kept else _SAMPLE_BYTES  # to settle all as the build settled it
    prepared = prepare(options, survey(options), sample_bytes=sample_bytes)
    if kept is not None:
        destination.require_same(kept, prepared)
    with naming(options.tokenizer):
        found: Estimate = estimate_prepared(prepared)
    if kept is not None:
        found = replace(found, notes=(*found.notes, _BUILT))
    return found, prepared


def estimate_prepared(prepared: Prepared) -> Estimate:
    """The same for a build that is prepared."""
    plan, sample, options = prepared.plan, prepared.sample, prepared.options
    started = time.perf_counter()
    ids, _ = prepared.encoder.encode([text.encode() for text in sample.texts])
    per_byte = sample.seconds / max(1, sample.read_bytes)
    per_byte += (time.perf_counter() - started) / max(1, sample.kept_bytes)
    scale = plan.input_bytes / sample.stored_bytes if sample.stored_bytes else 0.0
    text_bytes = sample.text_bytes * scale
    documents = round(sample.documents * scale)
    bytes_per_token = sample.kept_bytes / max(1, len(ids))
    tokens = round(text_bytes / bytes_per_token) if ids.size else 0
    tokens += plan.encoding.added * documents
    size = tokens * int(plan.encoding.dtype[2])
    mask = tokens if plan.chat else 0
    output = size + mask + documents * (_PLACE_BYTES + _RECORD_BYTES) + len(prepared.tokenizer_json)
    notes = [*getattr(prepared, "notes", ())]
    if sample.keys:
        notes += split_notes(
            dict.fromkeys(prepared.shares, 1), prepared.shares, key=options.split_key,
            keys=len(sample.keys), exact=options.split_mode == "count", sampled=True,
        )  # fmt: skip
    parts, exact = _parts(prepared.shares, documents), options.split_mode == "count"
    peak = _peak_bytes(size, documents, parts, len(plan.units), exact=exact)
    peak += 2 * len(prepared.tokenizer_json) + 2 * mask  # which is always copied
    workers = min(options.workers or available_cores(), max(1, len(plan.units)))
    return Estimate(
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
        engine=plan.encoding.engine,
        engine_reason=prepared.tokenizer.engine_reason,
        units=len(plan.units),
        workers=workers,
        splits=prepared.shares,
        sampled_bytes=sample.stored_bytes,
        sampled_rejects=sample.rejects,
        notes=tuple(notes),
    )


def _parts(shares: dict[str, float | int | None], documents: int) -> list[float]:
    """What part of all documents each split takes, as far as that can be known."""
    sizes = exact_sizes([shares[name] for name in ordered_names(shares)], documents)
    return [min(1.0, max(0, size) / max(1, documents)) for size in sizes]


def _peak_bytes(
    tokens: int, documents: int, parts: Sequence[float], units: int, *, exact: bool
) -> int:
    """Bytes in use before publishing, for `tokens` bytes of ids in `units` units."""
    pieces = [part * tokens / max(1, units) for part in parts]
    small = max(JOIN_BELOW_BYTES, max(pieces) / SMALL_PART)
    copied = sum(part for part, piece in zip(parts, pieces, strict=True) if piece < small)
    shards = tokens + documents * _PLACE_BYTES
    staged = shards + documents * (_RECORD_BYTES + (_KEY_BYTES if exact else 0))
    dealt = shards + documents * _RECORD_BYTES if exact else 0
    joined = shards * copied if units > 1 else 0.0
    return int(staged + dealt + joined) + documents * _RECORD_BYTES


def check_disk(prepared: Prepared, *, already: int = 0) -> None:
    """Refuse a build that the disk cannot hold, before any work.

    `already` bytes are there from an earlier run, and are not needed again.
    """
    wanted = estimate_prepared(prepared)
    needed = max(0, wanted.peak_disk_bytes - already)
    if needed > wanted.free_bytes:
        raise StorageError(
            f"about {needed:,} bytes are needed and {wanted.free_bytes:,} are free",
            where=str(prepared.options.out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip
