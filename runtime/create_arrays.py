"""Loaders of embeddings and of pairs: what `create_loader` does where a directory holds arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dataprep.formats.errors import UsageError
from dataprep.formats.read.arrays import ArrayData, ArraySplit

from .arrays.embeddings import EmbeddingDataset
from .arrays.opening import array_samples
from .arrays.pair_data import PairData
from .arrays.pairs import PairDataset
from .loader.loader import Loader
from .loader.serve import Shuffle, build_order

__all__ = ["ArrayOptions", "array_loader", "refuse_array_options"]

ArrayOptions = Mapping[str, Any]
_OF_EMBEDDINGS = ("fields", "raw", "dtype")
_OF_PAIRS = ("clusters", "curriculum", "preload", "device")


def array_loader(
    served: Callable[..., Loader],
    data: ArrayData | PairData,
    split: str,
    *,
    seed: int | None,
    shuffle: Shuffle | bool,
    sample_mask: bool,
    options: ArrayOptions,
) -> Loader:
    """A loader of the split of `data`, finished by `served`.

    `options` are those of `EmbeddingDataset` or `PairDataset`, None where the default is meant; one
    of the other kind is a `UsageError`.
    """
    samples: EmbeddingDataset | PairDataset
    given = {name: value for name, value in options.items() if value is not None}
    if data.kind == "embeddings":
        _refuse(given, _OF_PAIRS, "embeddings")
    else:
        _refuse(given, _OF_EMBEDDINGS, "pairs")
        given["seed"] = seed
    if isinstance(data, PairData):
        _refuse_of_opening(given)
        samples = data.split(split, sample_mask=sample_mask, **given)
    else:
        samples = array_samples(data.split(split), sample_mask=sample_mask, **given)
    part: ArraySplit = samples.split
    chosen = samples.seed if isinstance(samples, PairDataset) else seed or 0
    order, definition = build_order(samples, part, seed=chosen, shuffle=shuffle)
    return served(samples, order=order, definition=definition)


def refuse_array_options(options: ArrayOptions) -> None:
    """Raise `UsageError` if any of `options` is given for a dataset of tokens."""
    given = {name: value for name, value in options.items() if value is not None}
    _refuse(given, (*_OF_EMBEDDINGS, *_OF_PAIRS), "tokens")


def _refuse_of_opening(given: Mapping[str, Any]) -> None:
    for name in ("preload", "device"):
        if name in given:
            raise UsageError(
                "is settled: the dataset is open already", where=name,
                remedy=f"Open it with open_pairs(path, {name}=...), or give its path.",
            )  # fmt: skip


def _refuse(given: Mapping[str, Any], names: tuple[str, ...], kind: str) -> None:
    for name in names:
        if name in given:
            raise UsageError(f"means nothing for a dataset of {kind}", where=name)
