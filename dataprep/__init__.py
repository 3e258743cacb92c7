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
    from dataprep.pipeline.chat.build import build_chat
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.embeddings.build import build_embeddings
    from dataprep.pipeline.embeddings.options import EmbeddingOptions
    from dataprep.pipeline.layouts.convert import convert
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.pairs.build import build_pairs
    from dataprep.pipeline.pairs.options import PairOptions
    from dataprep.runtime.builder import DataLoaderBuilder
    from dataprep.runtime.collate_audio import Audio
    from dataprep.runtime.collate_create import (
        create_causal_lm_collate,
        create_collate_fn,
        create_seq2seq_collate,
    )
    from dataprep.runtime.collate_masked import MaskedLM
    from dataprep.runtime.collate_preference import GRPO, KTO, Preference
    from dataprep.runtime.collate_text import CausalLM, Classification, Seq2Seq
    from dataprep.runtime.collate_vision import Normalize, Vision
    from dataprep.runtime.collate_vision_text import VisionText
    from dataprep.runtime.collated import Collated
    from dataprep.runtime.collators import CollatorRegistry
    from dataprep.runtime.create import create_loader
    from dataprep.runtime.data_module import DataModule, UniversalDataModule, loaders_of
    from dataprep.runtime.documents import DocumentDataset
    from dataprep.runtime.embeddings import EmbeddingDataset
    from dataprep.runtime.encode import TokenizeEngine
    from dataprep.runtime.first_batch import validate_first_batch
    from dataprep.runtime.foreign import Buckets
    from dataprep.runtime.lengths import measure_lengths
    from dataprep.runtime.loader import set_epoch
    from dataprep.runtime.loader_config import LoaderConfig
    from dataprep.runtime.mixture_dataset import MixtureDataset
    from dataprep.runtime.output_schema import FieldSchema, OutputSchema
    from dataprep.runtime.packed import PackedDataset
    from dataprep.runtime.pair_data import PairData, open_pairs
    from dataprep.runtime.pairs import PairDataset
    from dataprep.runtime.parts import split_by_fraction
    from dataprep.runtime.preference import PreferenceDataset
    from dataprep.runtime.preprocess import PreprocessedDataset
    from dataprep.runtime.preprocess_create import create_preprocessed_dataset
    from dataprep.runtime.preprocess_stream import StreamingPreprocessedDataset
    from dataprep.runtime.profile import profile_collator, profile_loader
    from dataprep.runtime.seeding import seed_all, seed_worker, seeded_generator
    from dataprep.runtime.serve import serve
    from dataprep.runtime.stream import StreamDataset
    from dataprep.runtime.stream_loader import stream_loader
    from dataprep.runtime.tasks import TaskSpec
    from dataprep.runtime.transformed import TransformedDataset
    from dataprep.runtime.windows import WindowDataset
    from dataprep.runtime.workers_advice import suggest_workers
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
    "EmbeddingDataset",
    "EmbeddingOptions",
    "FieldSchema",
    "GRPO",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "KTO",
    "LoaderConfig",
    "MaskedLM",
    "MixtureDataset",
    "Normalize",
    "OutputSchema",
    "PackedDataset",
    "PairData",
    "PairDataset",
    "PairOptions",
    "Preference",
    "PreferenceDataset",
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
    "ArrayData": "formats.arrays",
    "Audio": "runtime.collate_audio",
    "Buckets": "runtime.foreign",
    "BuildOptions": "pipeline.options",
    "BuildReport": "pipeline.build",
    "BusyError": "formats.errors",
    "CausalLM": "runtime.collate_text",
    "ChatOptions": "pipeline.chat.options",
    "Classification": "runtime.collate_text",
    "Collated": "runtime.collated",
    "CollatorRegistry": "runtime.collators",
    "Curriculum": "formats.curriculum",
    "DataLoaderBuilder": "runtime.builder",
    "DataModule": "runtime.data_module",
    "DataprepError": "formats.errors",
    "Dataset": "formats.dataset",
    "DocumentDataset": "runtime.documents",
    "EmbeddingDataset": "runtime.embeddings",
    "EmbeddingOptions": "pipeline.embeddings.options",
    "FieldSchema": "runtime.output_schema",
    "GRPO": "runtime.collate_preference",
    "IncompatibleError": "formats.errors",
    "InputError": "formats.errors",
    "IntegrityError": "formats.errors",
    "KTO": "runtime.collate_preference",
    "LoaderConfig": "runtime.loader_config",
    "MaskedLM": "runtime.collate_masked",
    "MixtureDataset": "runtime.mixture_dataset",
    "Normalize": "runtime.collate_vision",
    "OutputSchema": "runtime.output_schema",
    "PackedDataset": "runtime.packed",
    "PairData": "runtime.pair_data",
    "PairDataset": "runtime.pairs",
    "PairOptions": "pipeline.pairs.options",
    "Preference": "runtime.collate_preference",
    "PreferenceDataset": "runtime.preference",
    "PreprocessedDataset": "runtime.preprocess",
    "RecordError": "formats.errors",
    "Seq2Seq": "runtime.collate_text",
    "Split": "formats.dataset",
    "StorageError": "formats.errors",
    "StreamDataset": "runtime.stream",
    "StreamingPreprocessedDataset": "runtime.preprocess_stream",
    "TaskSpec": "runtime.tasks",
    "TokenizeEngine": "runtime.encode",
    "TransformedDataset": "runtime.transformed",
    "UniversalDataModule": "runtime.data_module",
    "UsageError": "formats.errors",
    "VerifyReport": "formats.verify",
    "Vision": "runtime.collate_vision",
    "VisionText": "runtime.collate_vision_text",
    "WindowDataset": "runtime.windows",
    "build": "pipeline.build",
    "build_chat": "pipeline.chat.build",
    "build_embeddings": "pipeline.embeddings.build",
    "build_pairs": "pipeline.pairs.build",
    "convert": "pipeline.layouts.convert",
    "create_causal_lm_collate": "runtime.collate_create",
    "create_collate_fn": "runtime.collate_create",
    "create_dataloaders": "text",
    "create_loader": "runtime.create",
    "create_preprocessed_dataset": "runtime.preprocess_create",
    "create_seq2seq_collate": "runtime.collate_create",
    "loaders_of": "runtime.data_module",
    "measure_lengths": "runtime.lengths",
    "open_arrays": "formats.arrays",
    "open_dataset": "formats.dataset",
    "open_pairs": "runtime.pair_data",
    "profile_collator": "runtime.profile",
    "profile_loader": "runtime.profile",
    "seed_all": "runtime.seeding",
    "seed_worker": "runtime.seeding",
    "seeded_generator": "runtime.seeding",
    "serve": "runtime.serve",
    "set_epoch": "runtime.loader",
    "split_by_fraction": "runtime.parts",
    "stream_loader": "runtime.stream_loader",
    "suggest_workers": "runtime.workers_advice",
    "text_windows": "text",
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
