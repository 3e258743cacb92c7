"""Probe of an encoder: its vectors of a few fixed texts, which identify it.

The name of a model or of a function does not identify its weights, but a probe does. The probe is
made in one batch when a build is prepared, and stored in config.json. It is part of the recipe id,
and of the key that identifies unfinished work. Three texts are short. The fourth has a thousand
different words, so that encoders with different limits on the length of a text give different
vectors. To compare an encoder with a stored probe, the encoder encodes the texts that are stored in
the probe, because another version of dataprep may have used other texts.

Hardware, threads and libraries change the last bits of a vector. Two probes therefore count as
equal if no number differs by more than `_TOLERANCE` times the largest magnitude in its vector.
Measured with all-MiniLM-L6-v2 on the short texts, the largest difference was:

| change | difference, relative to the largest magnitude |
|---|---|
| another batch size, float32 | 8e-7 |
| another batch size, float16 | 1e-3 |
| another batch size, bfloat16 | 8e-3 |
| one step of AdamW, learning rate 2e-5 | 1.6e-2 |
| weights rounded to 8 bits | 0.4 |
| long text truncated at 128 to 512 tokens | 0.26 or more, on the long text |

The tolerance is 4e-3, so the last three changes are detected. An unchanged bfloat16 encoder may be
mistaken for another encoder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, StorageError

from ..own_files import read_own
from ..staging.directory import leftovers
from .encoder import TextEncoder

__all__ = [
    "OPTION",
    "OTHER_VECTORS",
    "PROBE_NAME",
    "TEXTS",
    "Probe",
    "make_probe",
    "probe_width",
    "unfinished_probes",
]

Floats = npt.NDArray[np.float32]
Probe = list[dict[str, str]]
"""For each text: `text`, and `vector`, the bytes of its float32 numbers in hex digits."""

OPTION = "encoder_probe"
"""Name of the probe among the options in config.json."""
PROBE_NAME = "probe.json"
"""Name of the probe in the staging directory."""
OTHER_VECTORS = "made by an encoder that gives other vectors"
"""Description, in errors, of a dataset with another probe."""
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "so", "tu")


def _long_text() -> str:
    """Return a text of 1000 different words: the numbers 000 to 999, one syllable per digit."""
    return " ".join("".join(_SYLLABLES[int(d)] for d in f"{n:03}") for n in range(1000))


TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Wo liegt München? 東京はどこですか。",
    "x = 12 * (3 + 4.5)",
    _long_text(),
)
_TOLERANCE = 4e-3


def make_probe(encoder: TextEncoder, known: Iterable[object] = ()) -> Probe:
    """Return the first of the `known` probes that matches `encoder`, or a new probe.

    A probe consists of an encoder's vectors of a few fixed texts. Items of `known` that are not
    probes are ignored. Raise `InputError` if the encoder gives NaN or infinity.

    >>> def constant(number):
    ...     return TextEncoder("name", lambda texts: np.full((len(texts), 2), number, np.float32))
    >>> one = make_probe(constant(1))
    >>> make_probe(constant(1.001), [None, one]) == one
    True
    """
    texts = list(TEXTS)
    vectors = encoder.encode(texts, len(texts))
    if not np.isfinite(vectors).all():
        raise InputError(
            f"gave NaN or Inf for a plain text ({TEXTS[0]!r} or another)",
            where=f"--encoder {encoder.name}", code="E_ENCODER",
            remedy="Call the encoder alone: it returns one vector of numbers for each text.",
        )  # fmt: skip
    for other in known:
        theirs, stored = _stored(other)
        if theirs and _agree(
            stored, vectors if theirs == texts else encoder.encode(theirs, len(theirs))
        ):
            return other  # type: ignore[return-value]  # `_stored` has checked it
    rows = np.ascontiguousarray(vectors, "<f4")
    return [
        {"text": text, "vector": row.tobytes().hex()} for text, row in zip(texts, rows, strict=True)
    ]


def probe_width(probe: Probe) -> int:
    """Return the number of dimensions of the vectors of `probe`."""
    return len(bytes.fromhex(probe[0]["vector"])) // 4


def unfinished_probes(out: Path) -> Iterator[object]:
    """Yield the probes stored by unfinished builds of `out`. Unreadable probes are skipped."""
    for staging in leftovers(out):
        with contextlib.suppress(OSError, StorageError, ValueError):
            yield msgspec.json.decode(read_own(staging.path / PROBE_NAME))


def _stored(probe: object) -> tuple[list[str], Floats]:
    """Return the texts and the vectors of `probe`, float32 [texts, width].

    The list of texts is empty if `probe` is invalid.
    """
    try:
        texts = [row["text"] for row in probe]  # type: ignore[attr-defined]
        rows = [np.frombuffer(bytes.fromhex(row["vector"]), "<f4") for row in probe]  # type: ignore[attr-defined]
        vectors = np.stack(rows).astype(np.float32, copy=False)
    except (KeyError, TypeError, ValueError):
        return [], np.empty(0, np.float32)
    return (texts if all(isinstance(text, str) for text in texts) else []), vectors


def _agree(one: Floats, two: Floats) -> bool:
    if one.shape != two.shape or not one.size:
        return False
    difference = np.abs(one.astype(np.float64) - two)
    return bool((difference <= _TOLERANCE * np.abs(one).max(axis=1, keepdims=True)).all())
