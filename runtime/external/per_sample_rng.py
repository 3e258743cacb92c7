"""Random transforms of other people's datasets, made functions of (seed, epoch, sample).

A dataset that crops or drops at random draws from the generators that Python, NumPy and torch keep
for everybody. In worker processes torch seeds these once; what is drawn then depends on how many
workers there are, which of them made which batch, and since when. Here the generators are seeded
for every sample, so each epoch draws anew, and the same epoch draws the same: on any ranks, workers
and batch sizes, and after a resume. The trainer's own generators are left alone.

Costs 10 us a sample, and in the calling process 20 us a batch. There no thread makes batches ahead
of time, as the trainer draws from the same generators meanwhile. So datasets that are known to draw
nothing are not seeded: see `draws_nothing`. Of others say it, with `LoaderConfig(draws=False)`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch.utils.data import TensorDataset, default_collate, get_worker_info

from ..order.hash64 import FIRST, GOLDEN, SECOND
from ..order.permutation import MAX_SAMPLES
from ..order.seeding import isolated, seed_for, seed_here
from ..types import Collate, Indices, sample_numbers
from .map_dataset import Collated, MapStyle

__all__ = ["SeededDraws", "draws_nothing"]

_WORD = (1 << 64) - 1


class SeededDraws(Collated):
    """`Collated` whose dataset and collate function may draw random numbers.

    Samples are read one by one.
    """

    def __init__(
        self,
        dataset: MapStyle,
        collate: Collate,
        *,
        seed: int,
        identity: str | None = None,
        sample_mask: bool = False,
    ) -> None:
        name = type(dataset).__name__ if identity is None else identity
        self._rows = _SeededRows(dataset, seed)
        super().__init__(self._rows, collate, identity=name, sample_mask=sample_mask)
        self.tagged = True

    @property
    def definition(self) -> dict[str, Any]:
        """What decides what sample `i` is, with `draws`: its seed is a function of the order's."""
        return {**super().definition, "draws": True}

    def _unmarked(self, indices: Indices) -> Any:
        """Return the batch of these samples; what it draws leaves no trace in this process."""
        numbers = sample_numbers(indices, len(self))
        # For this batch alone: the epoch comes with the numbers, as persistent workers stay.
        self._rows.epoch = int(numbers.max(initial=0)) // MAX_SAMPLES
        with isolated() if get_worker_info() is None else nullcontext():
            return super()._unmarked(numbers)


class _SeededRows:
    """The samples of `dataset`, each read after the generators were seeded for it."""

    def __init__(self, dataset: MapStyle, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._base: tuple[int, int] | None = None  # an epoch, and what its seeds come from
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if self._base is None or self._base[0] != self.epoch:
            self._base = (self.epoch, seed_for(self._seed, "draws", self.epoch))
        seed_here(_mixed(self._base[1], index))
        return self._dataset[index]


def _mixed(base: int, index: int) -> int:
    """32 bits for each sample of an epoch: the finaliser of SplitMix64, in plain integers."""
    word = (base + index * GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * FIRST) & _WORD
    word = ((word ^ (word >> 27)) * SECOND) & _WORD
    return (word ^ (word >> 31)) >> 32


def draws_nothing(dataset: Any, collate: Any) -> bool:
    """Whether it is certain that these draw nothing from the generators of everybody.

    Known are lists and tuples, torch's TensorDataset, Hugging Face datasets without a transform,
    parts of those, and the collate functions of this package and torch's default. Anything else
    may, for all that can be seen from outside; a bool attribute `draws` of it says.

    >>> draws_nothing([1, 2], default_collate), draws_nothing([1, 2], lambda samples: samples)
    (True, False)
    """
    own = type(collate).__module__.startswith("dataprep.") or collate is default_collate
    said = getattr(collate, "draws", None)
    return (not said if isinstance(said, bool) else own) and _only_holds(dataset)


def _only_holds(dataset: Any) -> bool:
    said = getattr(dataset, "draws", None)
    if isinstance(said, bool):
        return not said
    inner = getattr(dataset, "whole", None)  # of a Part
    if inner is not None and type(dataset).__module__.startswith("dataprep."):
        return _only_holds(inner)
    if type(dataset) in (list, tuple, range, TensorDataset):
        return True
    form = getattr(dataset, "format", None)  # Hugging Face: "custom" is a transform
    if not type(dataset).__module__.startswith("datasets.") or not isinstance(form, dict):
        return False
    return form.get("type") != "custom"
