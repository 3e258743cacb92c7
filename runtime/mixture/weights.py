"""From the weights of a mixture to whole numbers of draws in a period.

Integers, fractions and short decimals are met exactly: a float stands for the simplest fraction
that rounds to it, so 0.7 is 7/10, 1e-6 is 1/1000000 and 1/3 is a third. Weights whose exact period
would be too long are rounded, in the shortest of a few periods that brings every share within one
part in a thousand, and the largest relative error is kept. A weight that cannot be met, above all
one that would never be drawn, is an error: sources do not vanish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real

from dataprep.formats.errors import UsageError

__all__ = ["MAX_PERIOD", "TOLERANCE", "PeriodWeights", "Weight", "as_fraction", "whole_weights"]

Weight = int | float | Fraction

MAX_PERIOD = 1 << 22
"""The longest period without asking for more: its table takes 4 to 8 MiB."""
TOLERANCE = 0.05
"""The relative error of a share above which weights are refused."""

_LONGEST = 1 << 30  # slots times weight stays far below 2**63
_GOOD = 1e-3
_DIGITS = 17  # a float has no more


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodWeights:
    """How often each source is drawn in one period.

    `weights` are at least 1 and sum to `period`; `error` is the largest relative difference of a
    source's share from the one asked for, 0.0 where all are exact.
    """

    weights: tuple[int, ...]
    period: int
    error: float


def whole_weights(
    weights: Sequence[Weight],
    names: Sequence[str] | None = None,
    *,
    max_period: int = MAX_PERIOD,
    tolerance: float = TOLERANCE,
) -> PeriodWeights:
    """The smallest whole numbers in the proportion of `weights`, or the nearest within a period.

    `names` are for messages. Raises `UsageError` (code E_WEIGHTS) for no weights, a weight that is
    not a positive finite number, and one whose share `max_period` draws cannot meet to within the
    relative `tolerance`. Costs some 20 microseconds a source.

    >>> whole_weights([0.7, 0.3])
    PeriodWeights(weights=(7, 3), period=10, error=0.0)
    >>> whole_weights([1, 1e-6]).weights
    (1000000, 1)
    """
    if not 1 <= len(weights) <= max_period <= _LONGEST:
        raise UsageError(
            f"{len(weights):,} weights, with max_period {max_period:,}: there must be at least one "
            f"weight, as long a period, and at most {_LONGEST:,} draws in it",
            where="weights", code="E_WEIGHTS",
        )  # fmt: skip
    named = list(names) if names is not None else [str(i) for i in range(len(weights))]
    asked = _common(
        [as_fraction(w, f"weight {name}") for w, name in zip(weights, named, strict=True)]
    )
    if sum(asked) <= max_period:
        return PeriodWeights(weights=tuple(asked), period=sum(asked), error=0.0)
    for shift in (6, 4, 2, 0):
        found = _rounded(asked, max(len(asked), max_period >> shift))
        errors = _errors(asked, found)
        if max(errors) <= _GOOD:
            break
    if max(errors) > tolerance:
        worst = max(range(len(asked)), key=errors.__getitem__)
        raise _unmet(named[worst], asked[worst], asked, (found[worst], sum(found)), tolerance)
    found = _common([Fraction(w) for w in found])
    return PeriodWeights(weights=tuple(found), period=sum(found), error=max(errors))


def as_fraction(value: object, where: str) -> Fraction:
    """The simplest fraction that rounds to `value`; `UsageError` unless positive and finite.

    >>> as_fraction(0.1, "weight"), as_fraction(2 / 3, "weight")
    (Fraction(1, 10), Fraction(2, 3))
    """
    found = Fraction(0)
    number = not isinstance(value, bool)  # which Python counts among them
    if number and isinstance(value, Rational):
        found = Fraction(int(value.numerator), int(value.denominator))
    elif number and isinstance(value, Real) and math.isfinite(value):
        found = _simplest(float(str(value)))  # a float32 is the decimal that it prints
    if found <= 0:
        raise UsageError(
            f"must be a positive number, got {value!r}", where=where, code="E_WEIGHTS",
            remedy="Leave out a source that is not to be drawn.",
        )  # fmt: skip
    return found


def _simplest(value: float) -> Fraction:
    """The fraction with the fewest digits in its denominator that rounds to `value`."""
    exact = Fraction(value)
    near = (exact.limit_denominator(10**digits) for digits in range(_DIGITS + 1))
    return next((fraction for fraction in near if float(fraction) == value), exact)


def _common(fractions: Sequence[Fraction]) -> list[int]:
    """The smallest whole numbers in this proportion."""
    scale = math.lcm(*(f.denominator for f in fractions))
    numbers = [f.numerator * (scale // f.denominator) for f in fractions]
    divisor = math.gcd(*numbers)
    return [number // divisor for number in numbers]


def _rounded(asked: Sequence[int], period: int) -> list[int]:
    """Whole numbers that sum to `period`: each quota rounded down, some of them up.

    Up go those for which it changes the relative errors for the better most, or for the worse
    least: small quotas go to their nearest number, and large ones make up the sum.
    """
    total = sum(asked)
    found = [weight * period // total for weight in asked]
    gain = [
        (2 * (weight * period % total / total) - 1) / quota if quota else -math.inf
        for weight, quota in zip(asked, _quotas(asked, period), strict=True)
    ]
    upwards = sorted(range(len(asked)), key=gain.__getitem__, reverse=True)
    for source in upwards[: period - sum(found)]:
        found[source] += 1
    return found


def _quotas(asked: Sequence[int], period: int) -> list[float]:
    """What the draws would be if they need not be whole; 0.0 where it is too small for a float."""
    total = sum(asked)
    return [weight * period / total for weight in asked]


def _errors(asked: Sequence[int], found: Sequence[int]) -> list[float]:
    """The relative difference of each share from the one asked for."""
    quotas = _quotas(asked, sum(found))
    return [abs(f / q - 1) if q else 1.0 for f, q in zip(found, quotas, strict=True)]


def _unmet(
    name: str, weight: int, asked: Sequence[int], found: tuple[int, int], tolerance: float
) -> UsageError:
    share, (draws, period) = weight / sum(asked), found
    drawn = f"get {draws:,}, {draws / (share * period):.3g} times its due" if draws else "get none"
    # Enough for exact shares, or for a quota of which half a draw is the tolerance.
    needed = min(sum(asked), -(-sum(asked) // max(1, int(2 * Fraction(tolerance) * weight))))
    longer = ""
    if period < needed <= _LONGEST:
        longer = f"pass max_period={needed} to MixtureDataset.mixture and serve that, "
    return UsageError(
        f"of the {period:,} draws in a period, a share of {share:.3g} would {drawn} "
        f"(tolerance {tolerance:g})",
        where=f"weight {name}", code="E_WEIGHTS",
        remedy=f"Raise it, {longer}or join this source with another.",
    )  # fmt: skip
