"""What a test sees of `os.fsync`: which files and folders were forced to stable storage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["Synced"]


class Synced:
    """Notes the path of everything that is synced from now on, and the names in a folder then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[Path] = []
        self.names: list[set[str]] = []
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._sync(descriptor)
        self.paths.append(path)
        self.names.append({one.name for one in path.iterdir()} if path.is_dir() else set())
