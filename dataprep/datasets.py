"""Torch datasets over built data, and the types that `open_arrays` and `open_pairs` return.

`StreamDataset` is iterable. The other datasets are map-style: `create_loader` makes them from row
specs, and they also work in a plain `torch.utils.data.DataLoader`, `Subset`, `ConcatDataset` and
`random_split`. Each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.formats.manifest.curriculum import Curriculum
    from dataprep.formats.read.arrays import ArrayData
    from dataprep.runtime.arrays.embeddings import EmbeddingDataset
    from dataprep.runtime.arrays.pair_data import PairData
    from dataprep.runtime.arrays.pairs import PairDataset
    from dataprep.runtime.loader.transformed import TransformedDataset
    from dataprep.runtime.mixture.dataset import MixtureDataset
    from dataprep.runtime.rows.documents import DocumentDataset
    from dataprep.runtime.rows.packed import PackedDataset
    from dataprep.runtime.rows.preferences import PreferenceDataset
    from dataprep.runtime.rows.windows import WindowDataset
    from dataprep.runtime.stream.dataset import StreamDataset

__all__ = [
    "ArrayData",
    "Curriculum",
    "DocumentDataset",
    "EmbeddingDataset",
    "MixtureDataset",
    "PackedDataset",
    "PairData",
    "PairDataset",
    "PreferenceDataset",
    "StreamDataset",
    "TransformedDataset",
    "WindowDataset",
]

_HOME = {  # the module of each name
    "ArrayData": "formats.read.arrays",
    "Curriculum": "formats.manifest.curriculum",
    "DocumentDataset": "runtime.rows.documents",
    "EmbeddingDataset": "runtime.arrays.embeddings",
    "MixtureDataset": "runtime.mixture.dataset",
    "PackedDataset": "runtime.rows.packed",
    "PairData": "runtime.arrays.pair_data",
    "PairDataset": "runtime.arrays.pairs",
    "PreferenceDataset": "runtime.rows.preferences",
    "StreamDataset": "runtime.stream.dataset",
    "TransformedDataset": "runtime.loader.transformed",
    "WindowDataset": "runtime.rows.windows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dataprep.datasets' has no attribute {name!r}")
    value = getattr(import_module(f"dataprep.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
