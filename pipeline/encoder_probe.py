"""The probe of an encoder: the vectors of three fixed texts, by which a build recognizes it.

The name of a model or of a function says nothing about its weights. The probe is stored in
config.json, hashed into the recipe id and into the key of unfinished work, and made in one batch
when a build is prepared.

Other hardware, threads and libraries move the last bits of a vector. So a probe counts as that of
an existing dataset, or of unfinished work, where no number differs by more than `_TOLERANCE` of the
largest. In parts of the largest number, other batch sizes moved the probe of all-MiniLM-L6-v2 by
8e-7 in float32 and 1e-3 in float16; one step of AdamW with a learning rate of 2e-5 moved it by
1.6e-2, and rounding the weights to 8 bits by 0.4. In bfloat16 batch sizes move it by 8e-3: an
encoder in that type may be taken for another one, and never another one for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.ownership import read_own
from dataprep.pipeline.staging import leftovers

__all__ = [
    "OPTION",
    "OTHER_VECTORS",
    "TEXTS",
    "Probe",
    "known_as",
    "make_probe",
    "unfinished_probes",
]

Floats = npt.NDArray[np.float32]
Probe = list[dict[str, str]]
"""As JSON: of each text `text`, and `vector`, the bytes of its float32 numbers in hex digits."""

OPTION = "encoder_probe"
"""Under which the options in config.json have it."""
OTHER_VECTORS = "made by an encoder that gives other vectors"
"""What a dataset is called whose probe is another one."""
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Wo liegt München? 東京はどこですか。",
    "x = 12 * (3 + 4.5)",
)
_TOLERANCE = 4e-3


def make_probe(vectors: Floats, name: str) -> Probe:
    """Return the probe of the encoder `name`, which gave `vectors` for `TEXTS`.

    Raises `InputError` for a NaN or an infinity.
    """
    if not np.isfinite(vectors).all():
        raise InputError(
            f"gave NaN or Inf for a plain text ({TEXTS[0]!r} or another)",
            where=f"--encoder {name}", code="E_ENCODER",
            remedy="Try the encoder by itself: it returns one vector of numbers for each text.",
        )  # fmt: skip
    rows = np.ascontiguousarray(vectors, "<f4")
    return [
        {"text": text, "vector": row.tobytes().hex()} for text, row in zip(TEXTS, rows, strict=True)
    ]


def known_as(probe: Probe, others: Iterable[object]) -> Probe:
    """Return the first of `others` that is a probe of the same encoder, or else `probe`.

    >>> one, two = (make_probe(np.full((3, 2), n, np.float32), "e") for n in (1, 1.001))
    >>> known_as(two, [None, one]) == one
    True
    """
    vectors = _vectors(probe)
    for other in others:
        if _agree(_vectors(other), vectors):
            return other  # type: ignore[return-value]  # `_vectors` has looked at it
    return probe


def unfinished_probes(out: Path) -> Iterator[object]:
    """Yield what the unfinished builds of `out` have as the probe of their encoder."""
    for staging in leftovers(out):
        with contextlib.suppress(OSError, StorageError, ValueError):
            yield msgspec.json.decode(read_own(staging.probe))


def _vectors(probe: object) -> Floats:
    """Return float32 [texts, width], or an empty array for what is no probe of these texts."""
    try:
        if [row["text"] for row in probe] != list(TEXTS):  # type: ignore[attr-defined]
            return np.empty(0, np.float32)
        rows = [np.frombuffer(bytes.fromhex(row["vector"]), "<f4") for row in probe]  # type: ignore[attr-defined]
        return np.stack(rows).astype(np.float32, copy=False)
    except (KeyError, TypeError, ValueError):
        return np.empty(0, np.float32)


def _agree(one: Floats, two: Floats) -> bool:
    if one.shape != two.shape or not one.size:
        return False
    difference = np.abs(one.astype(np.float64) - two)
    return bool((difference <= _TOLERANCE * np.abs(one).max()).all())
