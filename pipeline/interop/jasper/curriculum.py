"""Conversion between the curriculum of dataprep and the curriculum in JASPER's config.json.

A curriculum states how often training uses each variant of steering vector (``zero``, ``centroid``,
``keyword`` and ``residual``), epoch by epoch. In JASPER's config.json it is under the key
``curriculum``. There JASPER's builder writes ``mode``, ``start_distance``, ``end_distance`` and
``warmup_epochs``, but JASPER's loader reads other keys: ``zero_prob_start`` (default 0.5),
``zero_prob_end`` (0.1) and ``epochs_total`` (100). In the loader, the probability of ``zero``
changes linearly from the first of these numbers to the second.

========================================  =========================================================
JASPER                                    dataprep
========================================  =========================================================
steering_probabilities                    ``probabilities``
no curriculum, or an empty one            mode ``fixed``
zero_prob_start, zero_prob_end            ``zero_start``, ``zero_end``
epochs_total                              ``epochs`` (at least 1)
mode                                      ``mode``; ``linear`` if absent, as in JASPER's loader
start_distance, end_distance              nothing: JASPER's loader does not read them
warmup_epochs                             nothing: JASPER's loader does not read it
========================================  =========================================================

JASPER's loader ignores ``mode``, but dataprep follows it. If this makes a difference in training, a
note says so. The original config.json is stored for the conversion back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.curriculum import VARIANTS, Curriculum

__all__ = ["from_jasper", "to_jasper"]

_WHERE = "config.json"
_UNUSED = ("start_distance", "end_distance", "warmup_epochs")
_DEFAULTS: Mapping[str, float] = {"zero_prob_start": 0.5, "zero_prob_end": 0.1, "epochs_total": 100}


def from_jasper(config: Mapping[str, Any]) -> tuple[Curriculum, list[str]]:
    """Return the curriculum that JASPER's config.json describes, and notes for the user.

    The notes name keys that are missing, that are not used, or that JASPER's loader treats
    differently. Raise `InputError` if a value is invalid.

    >>> from_jasper({"steering_probabilities": {"zero": 1, "centroid": 0, "keyword": 0,
    ...                                         "residual": 0}})[0].mode
    'fixed'
    """
    probabilities, notes = _probabilities(config.get("steering_probabilities"))
    given = config.get("curriculum") or {}
    if not isinstance(given, dict):
        raise _wrong("curriculum", f"expected an object, found {given!r}")
    mode = given.get("mode", "linear" if given else "fixed")
    values = {key: _number(given.get(key, default), key) for key, default in _DEFAULTS.items()}
    epochs = max(1, int(values["epochs_total"]))
    try:
        curriculum = Curriculum(
            mode=mode, probabilities=probabilities, zero_start=values["zero_prob_start"],
            zero_end=values["zero_prob_end"], epochs=epochs,
        )  # fmt: skip
    except UsageError as error:
        raise _wrong(str(error.where), error.problem) from None
    return curriculum, notes + _doubts(given, curriculum)


def _probabilities(found: Any) -> tuple[tuple[float, float, float, float], list[str]]:
    if not isinstance(found, dict):
        raise _wrong("steering_probabilities", f"expected an object, found {found!r}")
    unknown = sorted(set(found) - set(VARIANTS))
    if unknown:
        raise _wrong(
            "steering_probabilities",
            f"there is no variant {unknown[0]!r}, only {', '.join(VARIANTS)}",
        )
    notes = [
        f"steering_probabilities lacks {name}: taken as 0 (JASPER's loader: 0.3 with a curriculum)"
        for name in VARIANTS
        if name not in found
    ]
    zero, centroid, keyword, residual = (
        _number(found.get(name, 0), f"steering_probabilities.{name}") for name in VARIANTS
    )
    return (zero, centroid, keyword, residual), notes


def _doubts(given: Mapping[str, Any], curriculum: Curriculum) -> list[str]:
    """Return notes on differences from JASPER's loader, and on defaults used for missing keys."""
    notes = []
    values = (
        f"from {curriculum.zero_start:g} to {curriculum.zero_end:g} in {curriculum.epochs} epochs"
    )
    moves = (
        bool(given)
        and (curriculum.zero_start, curriculum.zero_end) != (curriculum.probabilities[0],) * 2
    )
    if curriculum.mode == "fixed" and moves:
        notes.append(
            "curriculum.mode is fixed, which dataprep follows; JASPER's loader ignored it and "
            f"moved the probability of zero {values}"
        )
    if curriculum.mode == "cosine":
        notes.append(
            "curriculum.mode is cosine, which dataprep follows; JASPER's loader moved in a "
            "straight line"
        )
    absent = [key for key in _DEFAULTS if key not in given]
    if given and absent and curriculum.mode != "fixed":
        notes.append(
            f"curriculum lacks {', '.join(absent)}: dataprep moves the probability of zero "
            f"{values}, with the defaults of JASPER's loader"
        )
    unused = [key for key in _UNUSED if key in given]
    if unused:
        notes.append(f"curriculum.{', '.join(unused)}: kept, but used by neither loader")
    if curriculum.probabilities[0] == 1 and curriculum.mode != "fixed":
        notes.append(
            "steering_probabilities has zero alone: dataprep shares what the curriculum takes "
            "from it equally among the others; JASPER's loader gave it all to centroid"
        )
    return notes


def to_jasper(curriculum: Curriculum) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return JASPER's steering_probabilities and curriculum, and notes on differences in training.

    The curriculum contains the mode and the keys that JASPER's loader reads. The loader ignores the
    mode. If the mode is fixed, zero_prob_start and zero_prob_end are therefore both set to the
    constant probability of zero.
    """
    probabilities = dict(zip(VARIANTS, curriculum.probabilities, strict=True))
    start, end = curriculum.zero_start, curriculum.zero_end
    if curriculum.mode == "fixed":
        start = end = curriculum.probabilities[0]
    notes = []
    if curriculum.mode == "cosine":
        notes.append("the curriculum is cosine; JASPER's loader moves in a straight line instead")
    schedule = {
        "mode": curriculum.mode, "zero_prob_start": start, "zero_prob_end": end,
        "epochs_total": curriculum.epochs,
    }  # fmt: skip
    return probabilities, schedule, notes


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(key, f"expected a number, found {value!r}")
    return float(value)


def _wrong(key: str, problem: str) -> InputError:
    return InputError(
        f"{key}: {problem}", where=_WHERE, code="E_LAYOUT", remedy="Correct it in config.json."
    )
