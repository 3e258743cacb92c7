"""Functions that open datasets of any kind: tokens, embeddings or pairs."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.arrays import ArrayData, open_arrays
from dataprep.formats.read.dataset import Dataset, open_dataset

from .arrays.pair_data import PairData

__all__ = ["DatasetLike", "open_data", "open_tokens"]


DatasetLike = str | Path | Dataset | ArrayData | PairData
"""The path of a dataset, or an open dataset."""


def open_tokens(place: Any) -> Dataset:
    """Return the open dataset of tokens for `place`, a path or a dataset that is already open.

    Raise `UsageError` for any other value, and the errors of `open_dataset`.
    """
    if (
        isinstance(place, list | tuple)
        and place
        and all(isinstance(part, str | os.PathLike | Dataset) for part in place)
    ):
        weights = ", ".join(
            f'"{part}": {count}' for part, count in Counter(map(str, place)).items()
        )
        raise UsageError(
            "several datasets are given with a weight each", where="dataset_dir",
            remedy=f"Pass {{{weights}}}.",
        )  # fmt: skip
    if not isinstance(place, str | os.PathLike | Dataset):
        raise UsageError(
            f"must be a path or an open dataset, got {reprlib.repr(place)}",
            where="dataset_dir",
            remedy="Samples in memory are served by UniversalDataModule or DataLoaderBuilder.",
        )
    return place if isinstance(place, Dataset) else open_dataset(place)


def open_data(place: DatasetLike) -> Dataset | ArrayData | PairData:
    """Return the open dataset, of any kind, for `place`, a path or a dataset that is already open.

    Raise `UsageError` for any other value, and the errors of `open_dataset`.
    """
    if isinstance(place, ArrayData | PairData):
        return place
    named = naming_dataset(place) if isinstance(place, str | Path) else nullcontext()
    with named:
        try:
            return open_tokens(place)
        except UsageError as error:
            if error.code != "E_KIND":
                raise
        return open_arrays(str(place))
