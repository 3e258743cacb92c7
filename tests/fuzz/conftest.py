"""The fixture of the fuzz suites."""

from __future__ import annotations

import pytest

from tests.fuzz.outcomes import RecordOutcomes


@pytest.fixture
def record_outcomes(request: pytest.FixtureRequest) -> RecordOutcomes:
    """Takes the counts of what the inputs of a test ended in; see `tests.fuzz.outcomes`."""
    write = bool(request.config.getoption("--write-results"))
    return RecordOutcomes(f"{request.path.name}::{request.node.name}", write=write)
