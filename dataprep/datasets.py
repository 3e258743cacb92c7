"""Torch datasets over built data, and the types that `open_arrays` and `open_pairs` return.

`StreamDataset` is iterable. The other datasets are map-style: `create_loader` makes them from row
specs, and they also work in a plain `torch.utils.data.DataLoader`, `Subset`, `ConcatDataset` and
`random_split`.
"""

from __future__ import annotations

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
