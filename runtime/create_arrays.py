"""Loaders of embeddings and of pairs: what `create_loader` does where a directory holds arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.arrays import ArrayData, ArraySplit, open_arrays
from dataprep.formats.read.dataset import Dataset

from .arrays.embeddings import EmbeddingDataset
from .arrays.pair_data import PairData
from .arrays.pairs import PairDataset
from .loader.loader import Loader
from .loader.serve import Shuffle, build_order, opened

__all__ = ["ArrayOptions", "array_loader", "array_samples", "opened_any", "refuse_array_options"]

ArrayOptions = Mapping[str, Any]
_OF_EMBEDDINGS = ("fields", "raw", "dtype")
_OF_PAIRS = ("clusters", "curriculum", "preload", "device")


def opened_any(
    place: str | Path | Dataset | ArrayData | PairData, io: Literal["mmap", "pread"] | None
) -> Dataset | ArrayData | PairData:
    """The dataset at `place`, of whatever kind; as `opened` in runtime/loader/serve.py."""
    if isinstance(place, ArrayData | PairData):
        if io is not None and io != place.io:
            raise UsageError(
                f"the dataset was opened with io={place.io!r}", where="io",
                remedy=f"Open it with io={io!r}, or give its path.",
            )  # fmt: skip
        return place
    named = naming_dataset(place) if isinstance(place, str | Path) else nullcontext()
    with named:
        try:
            return opened(place, io)
        except UsageError as error:
            if error.code != "E_KIND":
                raise
        return open_arrays(str(place), io=io)


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


def array_samples(split: ArraySplit, **options: Any) -> EmbeddingDataset | PairDataset:
    """Return the samples of a split of embeddings or of pairs; the options are theirs."""
    made = EmbeddingDataset if split.data.kind == "embeddings" else PairDataset
    return made(split, **options)


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
