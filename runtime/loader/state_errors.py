"""Checks that apply to all states, and the errors and warnings about states that cannot be used.

A state is JSON: `kind` names the type of its loader, and `version` the layout of its fields. The
errors have ``where="state"`` and name the field.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Set

from dataprep.formats.errors import IncompatibleError, UsageError

__all__ = [
    "caller_stacklevel",
    "check_head",
    "damaged",
    "require_known",
    "warn_of_dropped",
    "whole",
]

_MOST = 1 << 62  # above any real count; a count plus 1 still fits into 64 bits


def check_head(state: object, kind: str, newest: int) -> None:
    """Raise an error unless `state` is a state of this `kind` with a version up to `newest`.

    >>> check_head({"kind": "dataprep stream", "version": 1}, "dataprep stream", newest=1)

    Raise `UsageError` if `state` has a different kind, is not a state or has an invalid version.
    Raise `IncompatibleError` if its version is newer than `newest`.
    """
    if not isinstance(state, Mapping) or state.get("kind") != kind:
        raise UsageError(
            f"is not the state of a {kind.removesuffix(' state')}", where="state",
            remedy="Pass json.loads(...) of it: what state_dict() gave."
            if isinstance(state, str | bytes) else "Pass what state_dict() gave.",
        )  # fmt: skip
    version = state.get("version")
    if type(version) is not int or version < 1:
        raise damaged(f"version {version!r}")
    if version > newest:
        raise IncompatibleError(
            f"has version {version}, this dataprep reads up to {newest}", where="state",
            code="E_VERSION", remedy="Update dataprep.",
        )  # fmt: skip


def require_known(fields: Mapping[str, object], known: Set[str]) -> None:
    """Raise `IncompatibleError` if a field that is not in `known` has a value other than null.

    >>> require_known({"seed": 1, "later": None}, {"seed"})
    """
    unknown = sorted(name for name, value in fields.items() if not (value is None or name in known))
    if unknown:
        raise IncompatibleError(
            f"has {', '.join(unknown)}: it was made by a newer dataprep", where="state",
            code="E_VERSION", remedy="Install a newer dataprep.",
        )  # fmt: skip


def whole(value: object, name: str) -> int:
    """Return `value` if it is an integer from 0 to 2**62 - 1.

    Otherwise raise `UsageError` about a damaged state, which names the field `name`.

    >>> whole(7, "epoch")
    7
    """
    if type(value) is not int or not 0 <= value < _MOST:
        raise damaged(f"{name} must be a whole number from 0 on, got {value!r}")
    return value


def damaged(problem: str) -> UsageError:
    """Return the error for a damaged state. The text `problem` says which field is wrong."""
    return UsageError(
        f"is damaged ({problem})", where="state",
        remedy="Load an earlier state, or begin without one.",
    )  # fmt: skip


def warn_of_dropped(epoch: int, position: int, instead: int) -> None:
    """Warn that `set_epoch(instead)` drops the loaded progress before any pass has used it.

    The dropped progress is position `position` of epoch `epoch`.
    """
    warnings.warn(
        f"set_epoch({instead}) drops the place that was loaded, epoch {epoch}, position "
        f"{position:,}, and nothing was served from there yet. Where a run goes on, begin with "
        "its epoch: `for epoch in range(loader.epoch, epochs)`.",
        stacklevel=caller_stacklevel(),
    )


def caller_stacklevel() -> int:
    """Return the `stacklevel` for `warnings.warn` that names the first caller outside dataprep."""
    up, caller = 1, sys._getframe(1).f_back
    while caller is not None and str(caller.f_globals.get("__name__")).startswith("dataprep."):
        up, caller = up + 1, caller.f_back
    return up + 1
