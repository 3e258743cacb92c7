"""JASPER's steering probabilities and curriculum as ours, and back: the mapping, stated once.

Its builder and its loader disagree on the keys. The builder writes ``mode``, ``start_distance``,
``end_distance`` and ``warmup_epochs``; the loader looks at ``zero_prob_start`` (0.5),
``zero_prob_end`` (0.1) and ``epochs_total`` (100) alone, takes the defaults in brackets for what is
absent, and moves the probability of ``zero`` in a straight line whenever there is any curriculum.

========================================  =========================================================
theirs                                    ours
========================================  =========================================================
steering_probabilities                    ``probabilities``
no curriculum, or an empty one            mode ``fixed``
zero_prob_start, _end, epochs_total       ``zero_start``, ``zero_end``, ``epochs`` (at least 1)
mode                                      ``mode``; without it ``linear``, which is what they run
start_distance, end_distance              nothing: their loader never looks at them
warmup_epochs                             nothing, for the same reason
========================================  =========================================================

What `mode` says is what ours does, also where their loader did something else; every such case is
reported. Their keys are kept as they are for the way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.curriculum import VARIANTS, Curriculum

__all__ = ["from_theirs", "to_theirs"]

_WHERE = "config.json"
_UNUSED = ("start_distance", "end_distance", "warmup_epochs")
_DEFAULTS: Mapping[str, float] = {"zero_prob_start": 0.5, "zero_prob_end": 0.1, "epochs_total": 100}


def from_theirs(config: Mapping[str, Any]) -> tuple[Curriculum, list[str]]:
    """Our curriculum of their config.json, and a note on everything that is doubtful.

    >>> from_theirs({"steering_probabilities": {"zero": 1, "centroid": 0, "keyword": 0,
    ...                                         "residual": 0}})[0].mode
    'fixed'
    """
    probabilities, notes = _probabilities(config.get("steering_probabilities"))
    theirs = config.get("curriculum") or {}
    if not isinstance(theirs, dict):
        raise _wrong("curriculum", f"expected an object, found {theirs!r}")
    mode = theirs.get("mode", "linear" if theirs else "fixed")
    values = {key: _number(theirs.get(key, default), key) for key, default in _DEFAULTS.items()}
    epochs = max(1, int(values["epochs_total"]))
    try:
        ours = Curriculum(
            mode=mode, probabilities=probabilities, zero_start=values["zero_prob_start"],
            zero_end=values["zero_prob_end"], epochs=epochs,
        )  # fmt: skip
    except UsageError as error:
        raise _wrong(str(error.where), error.problem) from None
    return ours, notes + _doubts(theirs, ours)


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
        f"steering_probabilities lacks {name}: taken as 0 (their loader: 0.3 with a curriculum)"
        for name in VARIANTS
        if name not in found
    ]
    zero, centroid, keyword, residual = (
        _number(found.get(name, 0), f"steering_probabilities.{name}") for name in VARIANTS
    )
    return (zero, centroid, keyword, residual), notes


def _doubts(theirs: Mapping[str, Any], ours: Curriculum) -> list[str]:
    """Where ours will not do what their loader did, or was not told all."""
    notes = []
    values = f"from {ours.zero_start:g} to {ours.zero_end:g} in {ours.epochs} epochs"
    moves = bool(theirs) and (ours.zero_start, ours.zero_end) != (ours.probabilities[0],) * 2
    if ours.mode == "fixed" and moves:
        notes.append(
            f"curriculum.mode is fixed, and so is ours; their loader took no notice and moved "
            f"the probability of zero {values}"
        )
    if ours.mode == "cosine":
        notes.append(
            "curriculum.mode is cosine, and so is ours; their loader moved in a straight line"
        )
    absent = [key for key in _DEFAULTS if key not in theirs]
    if theirs and absent and ours.mode != "fixed":
        notes.append(
            f"curriculum lacks {', '.join(absent)}: ours moves the probability of zero {values}, "
            "with the defaults of their loader"
        )
    unused = [key for key in _UNUSED if key in theirs]
    if unused:
        notes.append(f"curriculum.{', '.join(unused)}: kept, but used by neither loader")
    if ours.probabilities[0] == 1 and ours.mode != "fixed":
        notes.append(
            "steering_probabilities has zero alone: what the curriculum takes from it ours shares "
            "equally among the others; their loader gave it all to centroid"
        )
    return notes


def to_theirs(ours: Curriculum) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Their steering_probabilities and curriculum of ours, with notes on what they cannot do.

    With the keys of their builder (``mode``) and of their loader. A fixed curriculum becomes one
    whose start and end are the same, as their loader runs 0.5 to 0.1 without them.
    """
    probabilities = dict(zip(VARIANTS, ours.probabilities, strict=True))
    start, end = ours.zero_start, ours.zero_end
    if ours.mode == "fixed":
        start = end = ours.probabilities[0]
    notes = []
    if ours.mode == "cosine":
        notes.append("the curriculum is cosine; their loader moves in a straight line instead")
    theirs = {
        "mode": ours.mode, "zero_prob_start": start, "zero_prob_end": end,
        "epochs_total": ours.epochs,
    }  # fmt: skip
    return probabilities, theirs, notes


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(key, f"expected a number, found {value!r}")
    return float(value)


def _wrong(key: str, problem: str) -> InputError:
    return InputError(
        f"{key}: {problem}", where=_WHERE, code="E_LAYOUT", remedy="Correct it in config.json."
    )
