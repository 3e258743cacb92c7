"""How often each steering variant is served, and that nothing but seed, epoch and pair decides."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import IncompatibleError, IntegrityError, UsageError
from dataprep.formats.manifest.curriculum import VARIANTS, Curriculum
from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.arrays.curriculum import (
    VariantDraw,
    probabilities,
    stored_curriculum,
    thresholds,
)
from dataprep.runtime.order.epoch_tag import MAX_EPOCH, epochs_of, with_epoch
from dataprep.runtime.sample_numbers import PADDING
from tests.scenes.pair_datasets import random_pairs, write_pairs

PAIRS = np.arange(40_000)
ONE = 1 << 62
DOCS = Path(__file__).parents[3] / "docs"
BASE = (0.4, 0.3, 0.2, 0.1)
MODES = [
    Curriculum(probabilities=BASE),
    Curriculum(mode="linear", probabilities=BASE, zero_start=0.5, zero_end=0.1, epochs=4),
    Curriculum(mode="cosine", probabilities=BASE, zero_start=0.0, zero_end=1.0, epochs=4),
    Curriculum(mode="linear", probabilities=(1, 0, 0, 0), zero_start=0.7, zero_end=0.2, epochs=2),
]


def reference(curriculum: Curriculum, epoch: int) -> list[float]:
    """The curriculum, spelled out for one epoch."""
    base = list(curriculum.probabilities)
    if curriculum.mode == "fixed":
        return base
    passed = 1.0 if epoch >= curriculum.epochs else epoch / curriculum.epochs
    if curriculum.mode == "cosine":
        passed = 0.5 - 0.5 * math.cos(math.pi * passed)
    zero = curriculum.zero_start * (1 - passed) + curriculum.zero_end * passed
    others = sum(base[1:])
    rest = [b / others if others else 1 / 3 for b in base[1:]]
    return [zero, *((1 - zero) * share for share in rest)]


def draw(curriculum: Curriculum, *, seed: int = 0, moving: bool = True) -> VariantDraw:
    return VariantDraw(curriculum, content_id="build", seed=seed, moving=moving)


def variants(curriculum: Curriculum, epoch: int, **options: Any) -> np.ndarray[Any, Any]:
    return draw(curriculum, **options).variants(PAIRS, np.full(len(PAIRS), epoch))


def test_shares_are_floats() -> None:
    """The JSON of a curriculum, which is hashed, is the same whether 1 or 1.0 was given."""
    whole = Curriculum(probabilities=(0, 1, 0, 0), zero_start=1, zero_end=0)
    same = Curriculum(probabilities=(0.0, 1.0, 0.0, 0.0), zero_start=1.0, zero_end=0.0)
    assert msgspec.json.encode(whole) == msgspec.json.encode(same)


@pytest.mark.parametrize("curriculum", MODES, ids=lambda c: c.mode)
def test_probabilities_follow_the_mode(curriculum: Curriculum) -> None:
    """Item 91: fixed, linear and cosine are what they say, to the end and beyond it."""
    for epoch in (0, 1, 2, 3, 4, 5, 1000):
        found = probabilities(curriculum, epoch)
        np.testing.assert_allclose(found, reference(curriculum, epoch), atol=1e-12)
        assert math.isclose(found.sum(), 1)


@pytest.mark.parametrize("curriculum", MODES, ids=lambda c: c.mode)
def test_frequencies_match_at_every_epoch(curriculum: Curriculum) -> None:
    """Item 91: chi-square of the counts of 40,000 pairs, at each of seven epochs."""
    for epoch in range(7):
        expected = probabilities(curriculum, epoch) * len(PAIRS)
        counts = np.bincount(variants(curriculum, epoch), minlength=4)
        assert (counts[expected == 0] == 0).all()
        there = expected > 0
        statistic = float(((counts - expected)[there] ** 2 / expected[there]).sum())
        assert statistic < 31  # once in a million draws at three degrees of freedom


@pytest.mark.parametrize("mode", ["linear", "cosine"])
def test_thresholds_agree_with_floats(mode: Any) -> None:
    """Item 91: shares are those of `math.cos` to 1e-9; draws differ only so close to a bound."""
    for last, start, end in ((1, 0.3, 0.7), (7, 0.0, 1.0), (1000, 0.9, 0.05), (4_000_000, 1, 0)):
        curriculum = Curriculum(
            mode=mode, probabilities=BASE, zero_start=start, zero_end=end, epochs=last
        )
        for epoch in {*range(0, last + 2, max(1, last // 60)), last // 2, last // 3, last}:
            ends = np.cumsum(reference(curriculum, epoch))[:3]
            found = np.array(thresholds(curriculum, epoch)) / ONE
            np.testing.assert_allclose(found, ends, rtol=0, atol=1e-9)
            drawn = np.random.default_rng(epoch).integers(0, ONE, 2000, np.uint64)
            drawn[:9] = np.clip(
                [int(end * ONE) + off for end in ends for off in (-(2**34), 0, 2**34)], 0, ONE - 1
            )
            ours = np.searchsorted(
                np.array(thresholds(curriculum, epoch), np.uint64), drawn, "right"
            )
            theirs = np.searchsorted(ends, drawn / ONE, "right")
            near = (np.abs((drawn / ONE)[:, None] - ends) < 1e-9).any(axis=1)
            np.testing.assert_array_equal(ours[~near], theirs[~near])


@example([1.0, 0.0625, 1e-5, 0.0], 0.0, 0.0, 1, 0, "linear")
@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda s: sum(s) > 1e-3),
    st.floats(0, 1), st.floats(0, 1), st.integers(1, (1 << 22) - 1), st.integers(0, 1 << 22),
    st.sampled_from(["fixed", "linear"]),
)  # fmt: skip
def test_thresholds_are_exact(
    shares: list[float], start: float, end: float, last: int, epoch: int, mode: Any
) -> None:
    """Item 91: a few units off the rational numbers at most; a share of 0 is never drawn.

    Five units come from the arithmetic. Where three shares with the sum S are scaled to 1, the cut
    of each to whole units counts 1 / S times.
    """
    one, two, three, four = (share / math.fsum(shares) for share in shares)
    base = (one, two, three, four)
    curriculum = Curriculum(
        mode=mode, probabilities=base, zero_start=start, zero_end=end, epochs=last
    )
    found = thresholds(curriculum, epoch)
    exact, most = [Fraction(share) for share in base], Fraction(5)
    if mode == "linear":
        passed = Fraction(min(epoch, last), last)
        zero = Fraction(start) + (Fraction(end) - Fraction(start)) * passed
        rest = exact[1:] if any(share >= 1 / ONE for share in base[1:]) else [Fraction(1)] * 3
        most += 3 / sum(rest, Fraction(0))
        exact = [zero, *((1 - zero) * share / sum(rest) for share in rest)]
    ends = [sum(exact[:number]) / sum(exact) * ONE for number in (1, 2, 3)]
    assert all(abs(one - two) <= most for one, two in zip(found, ends, strict=True))
    bounds = [0, *found, ONE]
    assert bounds == sorted(bounds)
    for number, share in enumerate(exact):
        assert share or bounds[number] == bounds[number + 1]


def test_golden_thresholds() -> None:
    """Readers in other languages have these numbers: they never change."""
    wave = Curriculum(mode="cosine", probabilities=BASE, zero_start=0.5, zero_end=0.1, epochs=100)
    assert [thresholds(wave, epoch) for epoch in (0, 1, 33, 50, 99, 100, 101)] == WAVE


def test_thresholds_are_documented() -> None:
    """Item 91: the function in docs/format.md, which readers in other languages follow."""
    blocks = (DOCS / "format.md").read_text("utf-8").split("```python\n")
    names: dict[str, Any] = {}
    exec(next(b for b in blocks if "def half_wave" in b).partition("```")[0], names)
    for curriculum in (*MODES, Curriculum(mode="cosine", epochs=99, zero_end=1)):
        fields = msgspec.structs.asdict(curriculum)
        for epoch in range(101):
            assert tuple(names["thresholds"](**fields, epoch=epoch)) == thresholds(
                curriculum, epoch
            )


def test_draws_have_nothing_in_common() -> None:
    """Items 93, 94: other epochs, seeds and builds are drawn as if by other dice."""
    even = Curriculum()
    one = variants(even, 3)
    others = [variants(even, 4), variants(even, 3, seed=1)]
    others.append(
        VariantDraw(even, content_id="other", seed=0, moving=True).variants(
            PAIRS, np.full(len(PAIRS), 3)
        )
    )
    others.append(np.roll(one, 1))
    for other in others:
        table = np.bincount(4 * one + other, minlength=16)
        statistic = ((table - len(PAIRS) / 16) ** 2 / (len(PAIRS) / 16)).sum()
        assert statistic < 60  # fifteen degrees of freedom: once in a million


@given(st.lists(st.tuples(st.integers(0, 1 << 39), st.integers(0, 9)), max_size=20))
def test_order_and_company_change_nothing(asked: list[tuple[int, int]]) -> None:
    """Item 93: each (pair, epoch) alone gives what it gives in any batch."""
    drawn = draw(MODES[1])
    pairs, epochs = (np.array([a[k] for a in asked], np.int64) for k in range(2))
    alone = [
        int(draw(MODES[1]).variants(np.array([pair]), np.array([epoch]))[0])
        for pair, epoch in asked
    ]
    assert drawn.variants(pairs, epochs).tolist() == alone


def test_one_variant_for_good() -> None:
    """Where the curriculum does not move, epochs change nothing, and the plain shares hold."""
    still = MODES[1]
    one = variants(still, 0, moving=False)
    np.testing.assert_array_equal(one, variants(still, 50, moving=False))
    counts = np.bincount(one, minlength=4)
    np.testing.assert_allclose(counts / len(PAIRS), BASE, atol=0.01)


def test_golden_variants() -> None:
    """Runs that go on depend on these numbers: they never change."""
    drawn = draw(MODES[1], seed=7)
    found = "".join(map(str, drawn.variants(np.arange(32), np.full(32, 2))))
    assert found == GOLDEN
    assert drawn.variants(np.array([(1 << 40) - 1]), np.array([4_000_000])).tolist() == [0]


GOLDEN = "12010031211111120102232031120013"
WAVE = [
    (2305843009213693952, 3458764513820540874, 4227378850225105560),
    (2305387891481235212, 3458536954954311504, 4227302997269695770),
    (1853013641491510468, 3232349829959449121, 4151907288938074976),
    (1383505805528216385, 2997595911977802069, 4073655982944192625),
    (461623719575197557, 2536654869001292634, 3920008968618689480),
    (461168601842738816, 2536427310135063263, 3919933115663279689),
    (461168601842738816, 2536427310135063263, 3919933115663279689),
]


@given(st.lists(st.integers(0, (1 << 40) - 1), max_size=9), st.integers(0, MAX_EPOCH))
def test_epochs_travel_in_indices(samples: list[int], epoch: int) -> None:
    """Item 87: sample and epoch come back; an index that names none takes the given one."""
    given_samples = np.array([*samples, PADDING], np.int64)
    found, epochs = epochs_of(with_epoch(given_samples, epoch), 77)
    np.testing.assert_array_equal(found, given_samples)
    assert epochs.tolist() == [epoch] * len(samples) + [77]
    found, epochs = epochs_of(given_samples, 77)
    np.testing.assert_array_equal(found, given_samples)
    assert (epochs == 77).all()


def test_too_late_an_epoch() -> None:
    """An epoch that does not fit into an index is refused, not cut off."""
    with pytest.raises(UsageError, match=r"0 \.\. 4,194,302"):
        with_epoch(np.array([1]), MAX_EPOCH + 1)


def test_stored_curriculum(tmp_path: Path) -> None:
    """Item 92: what was built with is what is served; damage is named."""
    given_pairs = random_pairs(5)
    stored = write_pairs(tmp_path / "a", given_pairs, curriculum=msgspec.to_builtins(MODES[2]))
    assert stored_curriculum(open_arrays(stored)) == MODES[2]
    plain = write_pairs(tmp_path / "b", given_pairs, curriculum=None)
    assert stored_curriculum(open_arrays(plain)) == Curriculum()
    with pytest.raises(IncompatibleError, match=r"pairs\.curriculum.*steps.*newer dataprep"):
        write_pairs(tmp_path / "c", given_pairs, curriculum={"mode": "steps"})
    with pytest.raises(IncompatibleError, match=r"pairs\.curriculum.*steps.*newer dataprep"):
        open_arrays(tmp_path / "c")
    wrong = write_pairs(tmp_path / "d", given_pairs, curriculum={"zero_start": 2.0})
    with pytest.raises(IntegrityError, match=r"pairs\.curriculum.*zero_start"):
        stored_curriculum(open_arrays(wrong))


def test_variant_names() -> None:
    """Item 90: ids 0 to 3 are these, from the one table."""
    assert VARIANTS == ("zero", "centroid", "keyword", "residual")
