"""The committed comparison of the engines, and a small one made now."""

from __future__ import annotations

import json

import pytest

from benchmarks import engines
from tests.support import SHARED_DATA, needs_shared_data


def test_the_documented_table_is_the_measured_one() -> None:
    """docs/tokenizers.md shows the results file, and nothing in it differed."""
    outcomes = json.loads(engines.RESULTS.read_text())["outcomes"]
    assert engines.table(outcomes) in engines.DOCS.read_text()
    assert [o["different"] + o["reference_different"] for o in outcomes] == [0] * 9


@needs_shared_data
@pytest.mark.parametrize("name", ["bert_base_uncased", "gpt2", "t5_small"])
def test_a_sample_is_equal_now(name: str) -> None:
    """Both modes, a few documents of everything: no id differs."""
    (outcome,) = engines.run(SHARED_DATA, name, limit=5)
    assert outcome.documents > 100
    assert (outcome.different, outcome.reference_different) == (0, 0)
