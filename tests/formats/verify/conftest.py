"""Each verification here is repeated with other numbers of workers: the reports must be equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataprep.formats.verify.verify import verify
from tests.scenes import verified
from tests.scenes.verify_workers import verify_all_ways, verify_two_ways


@pytest.fixture(scope="module", autouse=True)
def any_number_of_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Calls of `verify` in a test module go all ways; those of the scenes, thousands, go two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verified, "verify", verify_two_ways)
        if getattr(request.module, "verify", None) is verify:
            patch.setattr(request.module, "verify", verify_all_ways)
        yield
