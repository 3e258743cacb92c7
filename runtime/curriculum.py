"""Which steering variant a pair is served with: drawn anew each epoch, the same for everybody.

The variant is a hash of (build id, seed, epoch, pair), compared with the probabilities that the
curriculum has for the epoch. No generator has a state, so worker processes, ranks, batch size,
order and a resumed run change nothing, and a look at a pair takes nothing from the next.
"""

from __future__ import annotations

import hashlib
import json
import math

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.arrays import ArrayData
from dataprep.formats.curriculum import Curriculum
from dataprep.formats.envelope import damaged
from dataprep.formats.errors import UsageError
from dataprep.formats.pair_arrays import FOREIGN
from dataprep.formats.steering import VARIANTS
from dataprep.runtime.order import Positions
from dataprep.runtime.splitmix import GOLDEN, finalise

__all__ = ["VariantDraw", "probabilities", "stored_curriculum", "stored_seed"]

_DOMAIN = "dataprep steering 1"
_KEPT = 8  # epochs whose thresholds are remembered: those of the passes under way


def probabilities(curriculum: Curriculum, epoch: int) -> npt.NDArray[np.float64]:
    """Of the four variants in `epoch`: float64 [4], together 1.

    >>> rising = Curriculum(mode="linear", zero_start=0.5, zero_end=0.1, epochs=100)
    >>> probabilities(rising, 50).round(3).tolist()
    [0.3, 0.233, 0.233, 0.233]
    >>> probabilities(Curriculum(probabilities=(0, 1, 0, 0)), 50).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """
    base = np.array(curriculum.probabilities, np.float64)
    if curriculum.mode != "fixed":
        passed = min(epoch / curriculum.epochs, 1.0)
        if curriculum.mode == "cosine":
            passed = (1 - math.cos(math.pi * passed)) / 2
        zero = curriculum.zero_start + (curriculum.zero_end - curriculum.zero_start) * passed
        rest = base[1:] if base[1:].any() else np.ones(len(base) - 1)
        base = np.concatenate([[zero], rest / rest.sum() * (1 - zero)])
    found: npt.NDArray[np.float64] = base / base.sum()
    return found


def stored_curriculum(data: ArrayData) -> Curriculum:
    """The curriculum in config.json of a dataset of pairs; the plain one where none stands there.

    Raises `UsageError` for a dataset of another kind, `IntegrityError` for what is no curriculum.
    """
    pairs = data.manifest.pairs
    if pairs is None:
        raise UsageError(
            f"holds {data.kind}, not pairs", where=str(data.path), code="E_KIND",
            remedy="Use create_loader or EmbeddingDataset.",
        )  # fmt: skip
    try:
        return msgspec.convert(pairs.get("curriculum") or {}, Curriculum)
    except (msgspec.ValidationError, UsageError) as error:
        raise damaged(f"pairs.curriculum: {error}") from None


def stored_seed(data: ArrayData) -> int:
    """Return the default seed of a dataset of pairs, from its config.json.

    A converted dataset has the `random_seed` of the config.json that it was converted from, others
    the seed of their build. What is no number from 0 to 2**63 - 1 counts as 0.
    """
    foreign = (data.manifest.pairs or {}).get(FOREIGN)
    options = data.manifest.options
    seed = foreign.get("random_seed") if isinstance(foreign, dict) else options.get("seed")
    return seed if type(seed) is int and 0 <= seed < 1 << 63 else 0


class VariantDraw:
    """The variants of pairs: `of(pairs, epochs)`.

    With `moving` the curriculum goes on with the epochs. Without, a pair has one variant for good,
    drawn by the `probabilities` of the curriculum: what is evaluated should not vary by itself.

    >>> draw = VariantDraw(Curriculum(), content_id="b", seed=0, moving=True)
    >>> draw.of(np.arange(8), np.zeros(8, np.int64)).tolist()
    [2, 2, 0, 3, 3, 0, 2, 1]
    """

    def __init__(self, curriculum: Curriculum, *, content_id: str, seed: int, moving: bool) -> None:
        self.curriculum = curriculum
        self.moving = moving
        self._name = [_DOMAIN, content_id, seed]
        self._known: dict[int, tuple[np.uint64, npt.NDArray[np.float64]]] = {}

    def probabilities(self, epoch: int) -> npt.NDArray[np.float64]:
        """Of the four variants in `epoch`: float64 [4]."""
        if self.moving:
            return probabilities(self.curriculum, epoch)
        base = np.array(self.curriculum.probabilities, np.float64)
        found: npt.NDArray[np.float64] = base / base.sum()
        return found

    def of(self, pairs: Positions, epochs: Positions) -> Positions:
        """The variant of each of `pairs` (rows of the dataset) in its epoch: int64 [k], 0 .. 3.

        Costs some 20 microseconds for a batch of one epoch.
        """
        if not self.moving or len(pairs) == 0:
            return self._of_one(pairs, 0)
        first = int(epochs[0])
        if (epochs == first).all():
            return self._of_one(pairs, first)
        found = np.empty(len(pairs), np.int64)
        for epoch in set(epochs.tolist()):
            chosen = epochs == epoch
            found[chosen] = self._of_one(pairs[chosen], epoch)
        return found

    def _of_one(self, pairs: Positions, epoch: int) -> Positions:
        key, bounds = self._known.get(epoch) or self._learn(epoch)
        words = finalise(pairs.astype(np.int64).view(np.uint64) * np.uint64(GOLDEN) + key)
        numbers = (words >> np.uint64(11)) * 2.0**-53  # all floats in 0 .. 1 alike
        found: Positions = bounds.searchsorted(numbers, "right").astype(np.int64, copy=False)
        return found

    def _learn(self, epoch: int) -> tuple[np.uint64, npt.NDArray[np.float64]]:
        """The key of an epoch, and where in 0 .. 1 each variant but the last begins to end."""
        name = json.dumps([*self._name, epoch if self.moving else None]).encode()
        key = np.frombuffer(hashlib.sha256(name).digest(), "<u8")[0]
        shares = self.probabilities(epoch)
        bounds = np.cumsum(shares)[: len(VARIANTS) - 1]
        bounds[np.flatnonzero(shares)[-1] :] = 1.0  # a sum of floats may end a little before
        while len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)), None)
        found = self._known[epoch] = key, bounds
        return found
