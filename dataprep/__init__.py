"""Turn text into memory-mapped token shards you can trust, and serve them to PyTorch.

    dataprep build --input data.jsonl --out shards/
    dataprep verify shards/

    loader = dataprep.create_loader("shards", "train", batch_size=32, seq_len=2048, seed=0)

Importing this package imports none of torch, datasets, tokenizers or pyarrow: each name below is
loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.formats.arrays import ArrayData, open_arrays
    from dataprep.formats.curriculum import Curriculum
    from dataprep.formats.dataset import Dataset, Split, open_dataset
    from dataprep.formats.errors import (
        BusyError,
        DataprepError,
        IncompatibleError,
        InputError,
        IntegrityError,
        RecordError,
        StorageError,
        UsageError,
    )
    from dataprep.formats.verify import VerifyReport, verify
    from dataprep.pipeline.build import BuildReport, build
    from dataprep.pipeline.embeddings.build import build_embeddings
    from dataprep.pipeline.embeddings.options import EmbeddingOptions
    from dataprep.pipeline.layouts.convert import convert
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.pairs.build import build_pairs
    from dataprep.pipeline.pairs.options import PairOptions
    from dataprep.runtime.create import create_loader
    from dataprep.runtime.documents import DocumentDataset
    from dataprep.runtime.embeddings import EmbeddingDataset
    from dataprep.runtime.first_batch import validate_first_batch
    from dataprep.runtime.loader import set_epoch
    from dataprep.runtime.mixture_dataset import MixtureDataset
    from dataprep.runtime.packed import PackedDataset
    from dataprep.runtime.pair_data import PairData, open_pairs
    from dataprep.runtime.pairs import PairDataset
    from dataprep.runtime.serve import serve
    from dataprep.runtime.stream import StreamDataset
    from dataprep.runtime.stream_loader import stream_loader
    from dataprep.runtime.windows import WindowDataset

__all__ = [
    "ArrayData",
    "BuildOptions",
    "BuildReport",
    "BusyError",
    "Curriculum",
    "DataprepError",
    "Dataset",
    "DocumentDataset",
    "EmbeddingDataset",
    "EmbeddingOptions",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "MixtureDataset",
    "PackedDataset",
    "PairData",
    "PairDataset",
    "PairOptions",
    "RecordError",
    "Split",
    "StorageError",
    "StreamDataset",
    "UsageError",
    "VerifyReport",
    "WindowDataset",
    "__version__",
    "build",
    "build_embeddings",
    "build_pairs",
    "convert",
    "create_loader",
    "open_arrays",
    "open_dataset",
    "open_pairs",
    "serve",
    "set_epoch",
    "stream_loader",
    "validate_first_batch",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "EmbeddingOptions": "pipeline.embeddings.options",
    "PairOptions": "pipeline.pairs.options",
    "build_embeddings": "pipeline.embeddings.build",
    "build_pairs": "pipeline.pairs.build",
    "convert": "pipeline.layouts.convert",
    "PairDataset": "runtime.pairs",
    "open_pairs": "runtime.pair_data",
    "PairData": "runtime.pair_data",
    "EmbeddingDataset": "runtime.embeddings",
    "Curriculum": "formats.curriculum",
    "open_arrays": "formats.arrays",
    "ArrayData": "formats.arrays",
    "stream_loader": "runtime.stream_loader",
    "serve": "runtime.serve",
    "WindowDataset": "runtime.windows",
    "StreamDataset": "runtime.stream",
    "PackedDataset": "runtime.packed",
    "MixtureDataset": "runtime.mixture_dataset",
    "DocumentDataset": "runtime.documents",
    "BuildOptions": "pipeline.options",
    "BuildReport": "pipeline.build",
    "BusyError": "formats.errors",
    "DataprepError": "formats.errors",
    "Dataset": "formats.dataset",
    "IncompatibleError": "formats.errors",
    "InputError": "formats.errors",
    "IntegrityError": "formats.errors",
    "RecordError": "formats.errors",
    "Split": "formats.dataset",
    "StorageError": "formats.errors",
    "UsageError": "formats.errors",
    "VerifyReport": "formats.verify",
    "build": "pipeline.build",
    "create_loader": "runtime.create",
    "open_dataset": "formats.dataset",
    "set_epoch": "runtime.loader",
    "validate_first_batch": "runtime.first_batch",
    "verify": "formats.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    value = getattr(import_module(f"dataprep.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
