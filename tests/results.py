"""Committed figures of long tests, in `benchmarks/results`: one JSON file for each suite."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY

__all__ = ["RESULTS", "load", "store"]

RESULTS = REPOSITORY / "benchmarks" / "results"


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Return the committed results of the file `path`, by test."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def store(path: Path, name: str, entry: dict[str, Any], *, command: str) -> None:
    """Replace the entry `name` of the file, whatever other processes do to the others meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        results = load(path) if path.exists() else {}
        results[name] = entry
        document = {"command": command, "results": dict(sorted(results.items()))}
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(document, indent=1) + "\n")
        scratch.replace(path)
    finally:
        os.close(descriptor)
