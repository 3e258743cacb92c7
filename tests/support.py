"""Where real data lies, and what tests that need it say when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["REPOSITORY", "SHARED_DATA", "needs_shared_data"]

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="the shared corpora are not present"
)
