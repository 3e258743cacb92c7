"""The conformance suite of kinds on a kind of dataprep itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.pipeline.kinds import kind_named
from dataprep.pipeline.options import BuildOptions
from dataprep.testing import check_kind
from tests.scenes.corpora import SMALL_TOKENIZER, shrink_units, write_large

pytestmark = pytest.mark.long


def test_tokens_are_such_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite that a new kind is tested with holds for the oldest."""
    source = write_large(tmp_path / "large.jsonl", 1)
    shrink_units(monkeypatch.setattr, 256 << 10, 64 << 10)
    place = tmp_path / "place"
    place.mkdir()
    options = BuildOptions(
        input=(str(source),), out=place / "out", tokenizer=str(SMALL_TOKENIZER)
    )  # fmt: skip
    check_kind(lambda: kind_named("tokens"), options)
