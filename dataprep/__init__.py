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
    from dataprep.runtime.documents import DocumentDataset
    from dataprep.runtime.first_batch import validate_first_batch
    from dataprep.runtime.loader import set_epoch
    from dataprep.runtime.mixture_dataset import MixtureDataset
    from dataprep.runtime.output_schema import FieldSchema, OutputSchema
    from dataprep.runtime.packed import PackedDataset
    from dataprep.runtime.serve import serve
    from dataprep.runtime.stream import StreamDataset
    from dataprep.runtime.stream_loader import stream_loader
    from dataprep.runtime.windows import WindowDataset

__all__ = [  # noqa: RUF022  (plain order; ruff's has names in capitals first)
    "Audio",
    "BuildOptions",
    "BuildReport",
    "BusyError",
    "CausalLM",
    "Classification",
    "Collated",
    "CollatorRegistry",
    "DataprepError",
    "Dataset",
    "DocumentDataset",
    "FieldSchema",
    "GRPO",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "KTO",
    "MaskedLM",
    "MixtureDataset",
    "Normalize",
    "OutputSchema",
    "PackedDataset",
    "Preference",
    "RecordError",
    "Seq2Seq",
    "Split",
    "StorageError",
    "StreamDataset",
    "UsageError",
    "VerifyReport",
    "Vision",
    "VisionText",
    "WindowDataset",
    "__version__",
    "build",
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_loader",
    "create_seq2seq_collate",
    "open_dataset",
    "serve",
    "set_epoch",
    "stream_loader",
    "validate_first_batch",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "Audio": "runtime.collate_audio",
    "CausalLM": "runtime.collate_text",
    "Classification": "runtime.collate_text",
    "Collated": "runtime.collated",
    "CollatorRegistry": "runtime.collators",
    "FieldSchema": "runtime.output_schema",
    "GRPO": "runtime.collate_preference",
    "KTO": "runtime.collate_preference",
    "MaskedLM": "runtime.collate_masked",
    "Normalize": "runtime.collate_vision",
    "OutputSchema": "runtime.output_schema",
    "Preference": "runtime.collate_preference",
    "Seq2Seq": "runtime.collate_text",
    "Vision": "runtime.collate_vision",
    "VisionText": "runtime.collate_vision_text",
    "create_causal_lm_collate": "runtime.collate_create",
    "create_collate_fn": "runtime.collate_create",
    "create_seq2seq_collate": "runtime.collate_create",
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
