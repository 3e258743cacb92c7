"""Report of a finished build."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from .progress import Profile

__all__ = ["BuildReport"]

M_co = TypeVar("M_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport(Generic[M_co]):
    """Report on a finished build, with the manifest of the dataset."""

    path: Path
    recipe_id: str
    reused: bool
    """Whether `path` held the same build already, so that nothing was built."""
    manifest: M_co = field(repr=False)
    """Manifest of the dataset."""
    seconds: float
    units: int
    resumed_units: int
    workers: int
    profile: Profile
    """Seconds of each stage."""
    notes: tuple[str, ...]
    content: dict[str, Any] = field(repr=False)
    """Fields for ``--json`` that depend on the kind of dataset."""

    @property
    def example(self) -> str | None:
        """The first tokens of the first document as text, or None if there are no tokens."""
        return self.content.get("example")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for the output of ``--json``."""
        return {
            "path": str(self.path),
            "recipe_id": self.recipe_id,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "units": self.units,
            "resumed_units": self.resumed_units,
            "workers": self.workers,
            "profile": self.profile.as_dict(),
            "notes": list(self.notes),
            **self.content,
        }
