"""Loaders, data modules and descriptions of training tasks, for data not built by dataprep."""

from __future__ import annotations

from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.data_module import DataModule, UniversalDataModule, loaders_of
from dataprep.runtime.external.map_dataset import Collated
from dataprep.runtime.external.map_loader import Buckets
from dataprep.runtime.external.preprocessed import create_preprocessed_dataset
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.preprocessed_map import PreprocessedDataset
from dataprep.runtime.external.random_split import split_by_fraction
from dataprep.runtime.external.task import TaskSpec
from dataprep.runtime.external.tokenize_engine import TokenizeEngine
from dataprep.runtime.loader.serve import serve
from dataprep.runtime.order.lengths import measure_lengths

__all__ = [
    "Buckets",
    "Collated",
    "DataLoaderBuilder",
    "DataModule",
    "LoaderConfig",
    "PreprocessedDataset",
    "StreamingPreprocessedDataset",
    "TaskSpec",
    "TokenizeEngine",
    "UniversalDataModule",
    "create_preprocessed_dataset",
    "loaders_of",
    "measure_lengths",
    "serve",
    "split_by_fraction",
]
