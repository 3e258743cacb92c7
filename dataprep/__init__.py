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
    from dataprep.formats.manifest.curriculum import Curriculum
    from dataprep.formats.read.arrays import ArrayData, open_arrays
    from dataprep.formats.read.dataset import Dataset, Split, open_dataset
    from dataprep.formats.verify.verify import VerifyReport, verify
    from dataprep.pipeline.build import BuildReport, build
    from dataprep.pipeline.chat.build import build_chat
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.embeddings.build import build_embeddings
    from dataprep.pipeline.embeddings.options import EmbeddingOptions
    from dataprep.pipeline.interop.convert import convert
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.pairs.build import build_pairs
    from dataprep.pipeline.pairs.options import PairOptions
    from dataprep.runtime.arrays.embeddings import EmbeddingDataset
    from dataprep.runtime.arrays.pair_data import PairData, open_pairs
    from dataprep.runtime.arrays.pairs import PairDataset
    from dataprep.runtime.collate.audio import Audio
    from dataprep.runtime.collate.compatibility import (
        create_causal_lm_collate,
        create_collate_fn,
        create_seq2seq_collate,
    )
    from dataprep.runtime.collate.image_text import VisionText
    from dataprep.runtime.collate.images import Normalize, Vision
    from dataprep.runtime.collate.masked_lm import MaskedLM
    from dataprep.runtime.collate.preference import GRPO, KTO, Preference
    from dataprep.runtime.collate.registry import CollatorRegistry
    from dataprep.runtime.collate.schema import FieldSchema, OutputSchema
    from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
    from dataprep.runtime.create import create_loader
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
    from dataprep.runtime.inspect.first_batch import validate_first_batch
    from dataprep.runtime.inspect.profile import profile_collator, profile_loader
    from dataprep.runtime.loader.loader import set_epoch
    from dataprep.runtime.loader.serve import serve
    from dataprep.runtime.loader.transformed import TransformedDataset
    from dataprep.runtime.loader.worker_count import suggest_workers
    from dataprep.runtime.mixture.dataset import MixtureDataset
    from dataprep.runtime.order.lengths import measure_lengths
    from dataprep.runtime.order.seeding import seed_all, seed_worker, seeded_generator
    from dataprep.runtime.rows.documents import DocumentDataset
    from dataprep.runtime.rows.packed import PackedDataset
    from dataprep.runtime.rows.preferences import PreferenceDataset
    from dataprep.runtime.rows.windows import WindowDataset
    from dataprep.runtime.specs import (
        Documents,
        Embeddings,
        Mixture,
        Packed,
        Pairs,
        Preferences,
        Windows,
    )
    from dataprep.runtime.stream.dataset import StreamDataset
    from dataprep.runtime.stream.loader import stream_loader
    from dataprep.text import create_dataloaders, text_windows

__all__ = [  # noqa: RUF022  (plain order; ruff's has names in capitals first)
    "ArrayData",
    "Audio",
    "Buckets",
    "BuildOptions",
    "BuildReport",
    "BusyError",
    "CausalLM",
    "ChatOptions",
    "Classification",
    "Collated",
    "CollatorRegistry",
    "Curriculum",
    "DataLoaderBuilder",
    "DataModule",
    "DataprepError",
    "Dataset",
    "DocumentDataset",
    "Documents",
    "EmbeddingDataset",
    "EmbeddingOptions",
    "Embeddings",
    "FieldSchema",
    "GRPO",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "KTO",
    "LoaderConfig",
    "MaskedLM",
    "Mixture",
    "MixtureDataset",
    "Normalize",
    "OutputSchema",
    "Packed",
    "PackedDataset",
    "PairData",
    "PairDataset",
    "PairOptions",
    "Pairs",
    "Preference",
    "PreferenceDataset",
    "Preferences",
    "PreprocessedDataset",
    "RecordError",
    "Seq2Seq",
    "Split",
    "StorageError",
    "StreamDataset",
    "StreamingPreprocessedDataset",
    "TaskSpec",
    "TokenizeEngine",
    "TransformedDataset",
    "UniversalDataModule",
    "UsageError",
    "VerifyReport",
    "Vision",
    "VisionText",
    "WindowDataset",
    "Windows",
    "__version__",
    "build",
    "build_chat",
    "build_embeddings",
    "build_pairs",
    "convert",
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_dataloaders",
    "create_loader",
    "create_preprocessed_dataset",
    "create_seq2seq_collate",
    "loaders_of",
    "measure_lengths",
    "open_arrays",
    "open_dataset",
    "open_pairs",
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
    "text_windows",
    "validate_first_batch",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "ArrayData": "formats.read.arrays",
    "Audio": "runtime.collate.audio",
    "Buckets": "runtime.external.map_loader",
    "BuildOptions": "pipeline.options",
    "BuildReport": "pipeline.build",
    "BusyError": "formats.errors",
    "CausalLM": "runtime.collate.text",
    "ChatOptions": "pipeline.chat.options",
    "Classification": "runtime.collate.text",
    "Collated": "runtime.external.map_dataset",
    "CollatorRegistry": "runtime.collate.registry",
    "Curriculum": "formats.manifest.curriculum",
    "DataLoaderBuilder": "runtime.external.builder",
    "DataModule": "runtime.external.data_module",
    "DataprepError": "formats.errors",
    "Dataset": "formats.read.dataset",
    "DocumentDataset": "runtime.rows.documents",
    "Documents": "runtime.specs",
    "EmbeddingDataset": "runtime.arrays.embeddings",
    "EmbeddingOptions": "pipeline.embeddings.options",
    "Embeddings": "runtime.specs",
    "FieldSchema": "runtime.collate.schema",
    "GRPO": "runtime.collate.preference",
    "IncompatibleError": "formats.errors",
    "InputError": "formats.errors",
    "IntegrityError": "formats.errors",
    "KTO": "runtime.collate.preference",
    "LoaderConfig": "runtime.external.config",
    "MaskedLM": "runtime.collate.masked_lm",
    "Mixture": "runtime.specs",
    "MixtureDataset": "runtime.mixture.dataset",
    "Normalize": "runtime.collate.images",
    "OutputSchema": "runtime.collate.schema",
    "Packed": "runtime.specs",
    "PackedDataset": "runtime.rows.packed",
    "PairData": "runtime.arrays.pair_data",
    "PairDataset": "runtime.arrays.pairs",
    "PairOptions": "pipeline.pairs.options",
    "Pairs": "runtime.specs",
    "Preference": "runtime.collate.preference",
    "PreferenceDataset": "runtime.rows.preferences",
    "Preferences": "runtime.specs",
    "PreprocessedDataset": "runtime.external.preprocessed_map",
    "RecordError": "formats.errors",
    "Seq2Seq": "runtime.collate.text",
    "Split": "formats.read.dataset",
    "StorageError": "formats.errors",
    "StreamDataset": "runtime.stream.dataset",
    "StreamingPreprocessedDataset": "runtime.external.preprocessed_iterable",
    "TaskSpec": "runtime.external.task",
    "TokenizeEngine": "runtime.external.tokenize_engine",
    "TransformedDataset": "runtime.loader.transformed",
    "UniversalDataModule": "runtime.external.data_module",
    "UsageError": "formats.errors",
    "VerifyReport": "formats.verify.verify",
    "Vision": "runtime.collate.images",
    "VisionText": "runtime.collate.image_text",
    "WindowDataset": "runtime.rows.windows",
    "Windows": "runtime.specs",
    "build": "pipeline.build",
    "build_chat": "pipeline.chat.build",
    "build_embeddings": "pipeline.embeddings.build",
    "build_pairs": "pipeline.pairs.build",
    "convert": "pipeline.interop.convert",
    "create_causal_lm_collate": "runtime.collate.compatibility",
    "create_collate_fn": "runtime.collate.compatibility",
    "create_dataloaders": "text",
    "create_loader": "runtime.create",
    "create_preprocessed_dataset": "runtime.external.preprocessed",
    "create_seq2seq_collate": "runtime.collate.compatibility",
    "loaders_of": "runtime.external.data_module",
    "measure_lengths": "runtime.order.lengths",
    "open_arrays": "formats.read.arrays",
    "open_dataset": "formats.read.dataset",
    "open_pairs": "runtime.arrays.pair_data",
    "profile_collator": "runtime.inspect.profile",
    "profile_loader": "runtime.inspect.profile",
    "seed_all": "runtime.order.seeding",
    "seed_worker": "runtime.order.seeding",
    "seeded_generator": "runtime.order.seeding",
    "serve": "runtime.loader.serve",
    "set_epoch": "runtime.loader.loader",
    "split_by_fraction": "runtime.external.random_split",
    "stream_loader": "runtime.stream.loader",
    "suggest_workers": "runtime.loader.worker_count",
    "text_windows": "text",
    "validate_first_batch": "runtime.inspect.first_batch",
    "verify": "formats.verify.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    value = getattr(import_module(f"dataprep.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
