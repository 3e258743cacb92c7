"""Facts that datasets of every kind have, for `dataprep inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.formats.manifest.arrays import ArrayManifest
    from dataprep.formats.manifest.common import InputEntry
    from dataprep.formats.manifest.tokens import Manifest

__all__ = ["head_facts", "tail_facts"]


def head_facts(path: Path, manifest: Manifest | ArrayManifest) -> dict[str, Any]:
    """Return the identity of the dataset at `path` and its size in bytes, config.json included."""
    from dataprep.formats.manifest.common import CONFIG_NAME
    from dataprep.formats.storage import storage_errors

    with storage_errors(path):
        own = (path / CONFIG_NAME).stat().st_size
    return {
        "path": str(path),
        "recipe_id": manifest.recipe_id,
        "format_version": manifest.format_version,
        "kind": manifest.kind,
        "bytes": sum(entry.bytes for entry in manifest.files) + own,
    }


def tail_facts(manifest: Manifest | ArrayManifest, inputs: Sequence[InputEntry]) -> dict[str, Any]:
    """Return the counts of records in `manifest`, and facts about each of `inputs`."""
    records = manifest.records
    return {
        "records": {
            "read": records.read,
            "written": records.written,
            "rejected": records.rejected,
            "removed": records.removed,
        },
        "inputs": [
            {"name": i.name, "format": i.format, "bytes": i.bytes, "records": i.records}
            for i in inputs
        ],
    }
