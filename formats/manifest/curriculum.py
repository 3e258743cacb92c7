"""The curriculum of a pair dataset: how often each steering variant is served, epoch by epoch.

One schema for whoever builds and whoever serves, validated when it is made, stored in config.json
under ``pairs.curriculum``. It says what is wanted; `dataprep.runtime` draws.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from ..errors import UsageError, require

__all__ = [
    "DISTANCE_UNKNOWN",
    "TIERS",
    "VARIANTS",
    "VARIANT_ARRAYS",
    "Curriculum",
    "parse_curriculum",
]

Mode = Literal["fixed", "linear", "cosine"]

_WHERE = "curriculum"
_TOLERANCE = 1e-6
_MAX_EPOCHS = 1 << 22  # the epoch travels in 22 bits of each sample's index


class Curriculum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Probabilities of the four variants, and how the one of `zero` moves.

    With mode ``fixed`` every epoch has `probabilities`. With ``linear`` and ``cosine`` the
    probability of `zero` goes from `zero_start` in epoch 0 to `zero_end` in epoch `epochs` and
    stays there, in a straight line or in half a cosine wave; the other three share the rest in the
    proportions of `probabilities`, or equally where those are all 0.

    >>> Curriculum(mode="linear", zero_start=0.5, zero_end=0.1, epochs=100).probabilities
    (0.25, 0.25, 0.25, 0.25)
    """

    mode: Mode = "fixed"
    probabilities: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    """Of zero, centroid, keyword, residual; each from 0 to 1, together 1."""
    zero_start: float = 0.5
    zero_end: float = 0.1
    epochs: int = 100

    def __post_init__(self) -> None:
        modes = get_args(Mode)
        require(
            self.mode in modes, f"{_WHERE}.mode",
            f"must be one of {', '.join(modes)}, got {self.mode!r}",
        )  # fmt: skip
        names = ", ".join(VARIANTS)
        require(
            len(self.probabilities) == len(VARIANTS), f"{_WHERE}.probabilities",
            f"must be {len(VARIANTS)} numbers ({names}), got {len(self.probabilities)}",
        )  # fmt: skip
        for name, value in zip(VARIANTS, self.probabilities, strict=True):
            _require_probability(value, f"probabilities of {name}")
        total = math.fsum(self.probabilities)
        require(
            abs(total - 1) <= _TOLERANCE,
            f"{_WHERE}.probabilities",
            f"must add up to 1, got {total:g}",
        )
        _require_probability(self.zero_start, "zero_start")
        _require_probability(self.zero_end, "zero_end")
        good = isinstance(self.epochs, int) and not isinstance(self.epochs, bool)
        require(
            good and 1 <= self.epochs < _MAX_EPOCHS, f"{_WHERE}.epochs",
            f"must be a whole number from 1 to {_MAX_EPOCHS - 1}, got {self.epochs!r}",
        )  # fmt: skip
        shares = tuple(map(float, self.probabilities))  # 1 and 1.0 are not the same in JSON
        msgspec.structs.force_setattr(self, "probabilities", shares)
        for name in ("zero_start", "zero_end"):
            msgspec.structs.force_setattr(self, name, float(getattr(self, name)))


_DECODER = msgspec.json.Decoder(Curriculum)


def parse_curriculum(text: str) -> Curriculum:
    """A curriculum from the name of its mode, or from a JSON object of its fields.

    Raises `UsageError` for anything else.

    >>> parse_curriculum("linear").mode
    'linear'
    >>> parse_curriculum('{"mode": "cosine", "zero_end": 0}').zero_end
    0.0
    """
    if not text.lstrip().startswith("{"):
        return Curriculum(mode=text.strip())  # type: ignore[arg-type]
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"is not a curriculum ({error})", where=_WHERE,
            remedy="Write fixed, linear or cosine, or a JSON object with mode, probabilities, "
            "zero_start, zero_end, epochs.",
        ) from None  # fmt: skip


def _require_probability(value: float, what: str) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    require(good, f"{_WHERE}.{what}", f"must be from 0 to 1, got {value!r}")


VARIANTS = ("zero", "centroid", "keyword", "residual")
"""Names of the variants; the id is the place."""

VARIANT_ARRAYS = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")
"""The array that holds each variant, float32 [pairs, dim]; nothing is stored for zero."""

DISTANCE_UNKNOWN = 1.0
"""The centroid distance of a pair without a cluster: what a zero vector would have."""

TIERS = ("same cluster", "nearest clusters", "most similar outside", "random outside")
"""What the negatives of tiers 1 to 4 are; the tier is the place plus 1."""
