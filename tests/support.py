"""Where real data lies, what tests that need it say when it does not, and how often chance tries.

Tests of properties run under one of two profiles of hypothesis. `quick` is what `make test` has: a
quarter of the examples, and the same ones in every run of the same test, so that what it says of a
commit does not change. `thorough`, of `make test-long`, has all of them, new ones each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["REPOSITORY", "SHARED_DATA", "examples", "needs_shared_data"]

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="the shared corpora are not present"
)
_USUAL = 100  # what a property is tried with that says nothing else
_LEAST = 10

settings.register_profile("thorough", max_examples=_USUAL, deadline=None)
settings.register_profile("quick", max_examples=_USUAL // 4, deadline=None, derandomize=True)
settings.load_profile("quick")  # --hypothesis-profile comes later, and prevails


def examples(thorough: int, **more: Any) -> settings:
    """Try a property with so many examples, or with the share of them that the profile has."""
    share = thorough * settings().max_examples // _USUAL
    return settings(max_examples=min(thorough, max(share, _LEAST)), **more)
