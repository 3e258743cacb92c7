"""The curriculum of a pair dataset: how often samples have each kind of steering vector.

Each sample holds a pair and a vector, called its steering vector, which is made in one of four
variants. The curriculum states the probability of each variant in each epoch. Builds and loaders
share one schema, which is validated on creation and stored in config.json under
``pairs.curriculum``.

For a pair with the question q, the centroid c of its cluster, and the keywords K, the variants are:

0. ``zero``: the zero vector;
1. ``centroid``: c - q, scaled to L2 norm 1;
2. ``keyword``: the plain mean of K, scaled to L2 norm 1;
3. ``residual``: q - c, not scaled.

For a pair without a cluster, variants 1 and 3 are the zero vector. For a pair without keywords,
variant 2 is the zero vector. Scaling does not change the zero vector. The centroid distance is the
cosine distance of q and c, from 0 to 2. It is 1 if there is no cluster, or if q or c is the zero
vector.
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
_MAX_EPOCHS = 1 << 22  # the number of a sample has 22 bits for the epoch

VARIANTS = ("zero", "centroid", "keyword", "residual")
"""Names of the variants; the id is the index."""
VARIANT_ARRAYS = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")
"""Array of each variant, float32 [pairs, dim]; none is stored for zero."""
DISTANCE_UNKNOWN = 1.0
"""Centroid distance of a pair without a cluster, equal to that of a zero vector."""
TIERS = ("same cluster", "nearest clusters", "most similar outside", "random outside")
"""Names of the negatives of tiers 1 to 4; the tier is the index plus 1."""


class Curriculum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Probabilities of the four variants of the steering vector in each epoch (see the module).

    With mode ``fixed``, every epoch has `probabilities`. With ``linear`` and ``cosine``, the
    probability of ``zero`` changes from `zero_start` in epoch 0 to `zero_end` in epoch `epochs`,
    along a straight line or half a cosine wave, and then stays the same. The remaining probability
    is divided among the other three variants in proportion to their `probabilities`, or equally if
    these are all 0.

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
    """Return the curriculum for `text`, which is the name of a mode or a JSON object of fields.

    Raise `UsageError` for other texts.

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
