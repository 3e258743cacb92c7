"""Statistics of the orders: small permutations over many keys, and sources stored in one piece."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import rounds, shares
from dataprep.runtime.order.permutation import key, permute

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def keys() -> rounds.Words:
    """20,000 keys with all their rounds."""
    return rounds.draw_keys(20_000)


@pytest.mark.parametrize("n", rounds.SIZES)
def test_small_orders_are_fair(keys: rounds.Words, n: int) -> None:
    """Over 20,000 keys, every pair of samples is as often at each pair of positions."""
    seventh = key("rounds", 7, 0, "p")
    found = rounds.permutations(n, keys[:, : len(seventh.rounds_for(n))])
    assert found[7].tolist() == permute(np.arange(n), n, seventh).tolist()
    assert rounds.measure(found)["p"] > 1e-6


@pytest.mark.parametrize("n", [5, 6, 7, 8])
def test_eight_rounds_are_too_few(keys: rounds.Words, n: int) -> None:
    """The same count tells eight rounds from chance, so it can see."""
    assert rounds.measure(rounds.permutations(n, keys[:, :8]))["p"] < 1e-9


def test_results_are_of_all_sizes() -> None:
    """The committed measurement has every size, with the rounds of today, and none deviates."""
    found = json.loads(rounds.RESULTS.read_text())
    assert found["keys"] == 200_000
    assert [one["n"] for one in found["sizes"]] == list(range(2, 65))
    for one in found["sizes"]:
        assert one["rounds"] == len(key("rounds", 0, 0, "p").rounds_for(one["n"]))
        assert one["ours"]["p"] > 1e-4


def test_sources_are_in_every_batch() -> None:
    """Of the default sizes, the spread is at most 1.3 times that of independent draws, and the
    longest run without a source three times theirs.
    """
    orders = dict(shares.orders(seed=11))
    full, blocks, stream = (
        shares.measure(orders[name], 8_400_000) for name in ("full", "blocks", "stream")
    )
    for share, chance in full.items():
        for found in (blocks[share], stream[share]):
            assert found["spread"] <= 1.3
            assert found["absent"] <= 3 * chance["absent"]
