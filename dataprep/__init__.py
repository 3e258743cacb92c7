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
    from dataprep.pipeline.options import BuildOptions
    from dataprep.runtime.builder import DataLoaderBuilder
    from dataprep.runtime.create import create_loader
    from dataprep.runtime.data_module import DataModule, UniversalDataModule, loaders_of
    from dataprep.runtime.documents import DocumentDataset
    from dataprep.runtime.first_batch import validate_first_batch
    from dataprep.runtime.foreign import Buckets
    from dataprep.runtime.lengths import measure_lengths
    from dataprep.runtime.loader import set_epoch
    from dataprep.runtime.loader_config import LoaderConfig
    from dataprep.runtime.mixture_dataset import MixtureDataset
    from dataprep.runtime.packed import PackedDataset
    from dataprep.runtime.parts import split_by_fraction
    from dataprep.runtime.profile import profile_collator, profile_loader
    from dataprep.runtime.seeding import seed_all, seed_worker, seeded_generator
    from dataprep.runtime.serve import serve
    from dataprep.runtime.stream import StreamDataset
    from dataprep.runtime.stream_loader import stream_loader
    from dataprep.runtime.tasks import TaskSpec
    from dataprep.runtime.windows import WindowDataset
    from dataprep.runtime.workers_advice import suggest_workers

__all__ = [
    "Buckets",
    "BuildOptions",
    "BuildReport",
    "BusyError",
    "DataLoaderBuilder",
    "DataModule",
    "DataprepError",
    "Dataset",
    "DocumentDataset",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "LoaderConfig",
    "MixtureDataset",
    "PackedDataset",
    "RecordError",
    "Split",
    "StorageError",
    "StreamDataset",
    "TaskSpec",
    "UniversalDataModule",
    "UsageError",
    "VerifyReport",
    "WindowDataset",
    "__version__",
    "build",
    "create_loader",
    "loaders_of",
    "measure_lengths",
    "open_dataset",
    "profile_collator",
    "profile_loader",
    "seed_all",
    "seed_worker",
    "seeded_generator",
    "serve",
    "set_epoch",
    "split_by_fraction",
    "stream_loader",
    "suggest_workers",
    "validate_first_batch",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "Buckets": "runtime.foreign",
    "DataLoaderBuilder": "runtime.builder",
    "DataModule": "runtime.data_module",
    "LoaderConfig": "runtime.loader_config",
    "TaskSpec": "runtime.tasks",
    "UniversalDataModule": "runtime.data_module",
    "loaders_of": "runtime.data_module",
    "measure_lengths": "runtime.lengths",
    "profile_collator": "runtime.profile",
    "profile_loader": "runtime.profile",
    "seed_all": "runtime.seeding",
    "seed_worker": "runtime.seeding",
    "seeded_generator": "runtime.seeding",
    "split_by_fraction": "runtime.parts",
    "suggest_workers": "runtime.workers_advice",
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
