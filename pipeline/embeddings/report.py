"""What a build of embeddings says when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats.manifest.arrays import ArrayManifest

from ..progress import Profile

__all__ = ["EmbeddingReport", "array_summary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingReport:
    """What a build did; `manifest` says what is in the dataset."""

    path: Path
    recipe_id: str
    reused: bool
    """The same build stood there already; nothing was done."""
    manifest: ArrayManifest = field(repr=False)
    seconds: float
    units: int
    resumed_units: int
    workers: int
    profile: Profile
    """Where the time went."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        return {
            "path": str(self.path),
            "recipe_id": self.recipe_id,
            "kind": self.manifest.kind,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "units": self.units,
            "resumed_units": self.resumed_units,
            "workers": self.workers,
            "profile": self.profile.as_dict(),
            "notes": list(self.notes),
            "records": msgspec.to_builtins(self.manifest.records),
            "rows": self.manifest.rows,
            "splits": {name: {"rows": s.rows} for name, s in self.manifest.splits.items()},
            "arrays": array_summary(self.manifest),
        }


def array_summary(manifest: ArrayManifest) -> dict[str, dict[str, Any]]:
    """Type, shape of a row and bytes of each array."""
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    return {
        name: {
            "dtype": entry.dtype,
            "row": list(entry.row),
            "rows": entry.rows,
            "bytes": sum(sizes[shard.file] for shard in entry.shards),
            "categories": None if entry.categories is None else len(entry.categories),
        }
        for name, entry in manifest.arrays.items()
    }
