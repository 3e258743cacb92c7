"""States of every released version, resumed forever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenes.golden_states import LOADERS, followed, taken
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "data_fixtures" / "golden" / "v1"
STATES = sorted((GOLDEN / "states").glob("*.json"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path))


def test_every_kind_of_loader_has_a_state() -> None:
    """None that was ever committed is missing, and a new kind gets one."""
    assert sorted(file.stem for file in STATES) == sorted(LOADERS)


@pytest.mark.parametrize("file", STATES, ids=lambda file: str(file.stem))
def test_it_goes_on(file: Path) -> None:
    """The batches that follow a state, to the end of the next epoch, are what they were."""
    kept = json.loads(file.read_text())
    found = followed(LOADERS[kept["loader"]](GOLDEN), kept["state"])
    assert found == {"batches": kept["batches"], "end": kept["end"]}


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_a_new_state_is_the_committed_one(name: str) -> None:
    """What a loader writes today is what it wrote: no field was renamed, dropped or added."""
    assert taken(name, GOLDEN) == json.loads((GOLDEN / "states" / f"{name}.json").read_text())
