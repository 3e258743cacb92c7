"""Turn text into memory-mapped token shards you can trust, and serve them to PyTorch.

    dataprep build --input data.jsonl --out shards/
    dataprep verify shards/

    loader = dataprep.create_loader("shards", "train", batch_size=32, seq_len=2048, seed=0)

A name is loaded when it is first used, so importing dataprep does not import torch, datasets,
tokenizers or pyarrow. `__all__` lists the main names. The other names are in the modules
`dataprep.collate`, `datasets`, `errors`, `external`, `interop`, `profile`, `seeding` and `text`.
They are also available as `dataprep.NAME`, for code that was written before these modules existed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.formats.errors import DataprepError
    from dataprep.formats.read.arrays import open_arrays
    from dataprep.formats.read.dataset import Dataset, Split, open_dataset
    from dataprep.formats.verify.verify import VerifyReport, verify
    from dataprep.pipeline.build import build, build_chat, build_embeddings, build_pairs
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.embeddings.options import EmbeddingOptions
    from dataprep.pipeline.interop.convert import convert
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.pairs.options import PairOptions
    from dataprep.pipeline.report import BuildReport
    from dataprep.runtime.arrays.pair_data import open_pairs
    from dataprep.runtime.create import create_loader
    from dataprep.runtime.loader.loader import Loader
    from dataprep.runtime.specs import (
        Documents,
        Embeddings,
        Mixture,
        Packed,
        Pairs,
        Preferences,
        Windows,
    )
    from dataprep.runtime.stream.loader import stream_loader

__all__ = [
    "BuildOptions",
    "BuildReport",
    "ChatOptions",
    "DataprepError",
    "Dataset",
    "Documents",
    "EmbeddingOptions",
    "Embeddings",
    "Loader",
    "Mixture",
    "Packed",
    "PairOptions",
    "Pairs",
    "Preferences",
    "Split",
    "VerifyReport",
    "Windows",
    "__version__",
    "build",
    "build_chat",
    "build_embeddings",
    "build_pairs",
    "convert",
    "create_loader",
    "open_arrays",
    "open_dataset",
    "open_pairs",
    "stream_loader",
    "verify",
]

__version__ = "0.1.0"

_HOME = {  # the module of each name in `__all__`
    "BuildOptions": "pipeline.options",
    "BuildReport": "pipeline.report",
    "ChatOptions": "pipeline.chat.options",
    "DataprepError": "formats.errors",
    "Dataset": "formats.read.dataset",
    "Documents": "runtime.specs",
    "EmbeddingOptions": "pipeline.embeddings.options",
    "Embeddings": "runtime.specs",
    "Loader": "runtime.loader.loader",
    "Mixture": "runtime.specs",
    "Packed": "runtime.specs",
    "PairOptions": "pipeline.pairs.options",
    "Pairs": "runtime.specs",
    "Preferences": "runtime.specs",
    "Split": "formats.read.dataset",
    "VerifyReport": "formats.verify.verify",
    "Windows": "runtime.specs",
    "build": "pipeline.build",
    "build_chat": "pipeline.build",
    "build_embeddings": "pipeline.build",
    "build_pairs": "pipeline.build",
    "convert": "pipeline.interop.convert",
    "create_loader": "runtime.create",
    "open_arrays": "formats.read.arrays",
    "open_dataset": "formats.read.dataset",
    "open_pairs": "runtime.arrays.pair_data",
    "stream_loader": "runtime.stream.loader",
    "verify": "formats.verify.verify",
}
_MODULES = ("collate", "datasets", "errors", "external", "interop", "profile", "seeding", "text")
_ELSEWHERE = {  # the public module of each other name
    "ArrayData": "datasets",
    "Audio": "collate",
    "Buckets": "external",
    "BusyError": "errors",
    "CausalLM": "collate",
    "Classification": "collate",
    "Collated": "external",
    "CollatorProfile": "profile",
    "CollatorRegistry": "collate",
    "ConvertReport": "interop",
    "Curriculum": "datasets",
    "DataLoaderBuilder": "external",
    "DataModule": "external",
    "DocumentDataset": "datasets",
    "EmbeddingDataset": "datasets",
    "FieldSchema": "collate",
    "GRPO": "collate",
    "IncompatibleError": "errors",
    "InputError": "errors",
    "IntegrityError": "errors",
    "KTO": "collate",
    "LoaderConfig": "external",
    "LoaderProfile": "profile",
    "MaskedLM": "collate",
    "MixtureDataset": "datasets",
    "Normalize": "collate",
    "OutputSchema": "collate",
    "PackedDataset": "datasets",
    "Padded": "collate",
    "PairData": "datasets",
    "PairDataset": "datasets",
    "Preference": "collate",
    "PreferenceDataset": "datasets",
    "PreprocessedDataset": "external",
    "RecordError": "errors",
    "Seq2Seq": "collate",
    "StorageError": "errors",
    "StreamDataset": "datasets",
    "StreamingPreprocessedDataset": "external",
    "TaskSpec": "external",
    "TokenizeEngine": "external",
    "TransformedDataset": "datasets",
    "UniversalDataModule": "external",
    "UsageError": "errors",
    "Vision": "collate",
    "VisionText": "collate",
    "WindowDataset": "datasets",
    "create_causal_lm_collate": "collate",
    "create_collate_fn": "collate",
    "create_dataloaders": "text",
    "create_preprocessed_dataset": "external",
    "create_seq2seq_collate": "collate",
    "detect": "interop",
    "loaders_of": "external",
    "measure_lengths": "external",
    "profile_collator": "profile",
    "profile_loader": "profile",
    "seed_all": "seeding",
    "seed_worker": "seeding",
    "seeded_generator": "seeding",
    "serve": "external",
    "set_epoch": "seeding",
    "split_by_fraction": "external",
    "suggest_workers": "profile",
    "text_windows": "text",
    "validate_first_batch": "profile",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dataprep.{name}")
    home = _HOME.get(name) or _ELSEWHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    value = getattr(import_module(f"dataprep.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
