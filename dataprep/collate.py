"""Collate functions, which make padded batches from lists of samples, and their registry."""

from __future__ import annotations

from dataprep.runtime.collate.audio import Audio
from dataprep.runtime.collate.compatibility import (
    create_causal_lm_collate,
    create_collate_fn,
    create_seq2seq_collate,
)
from dataprep.runtime.collate.images import Normalize, Vision, VisionText
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.preference import GRPO, KTO, Preference
from dataprep.runtime.collate.registry import CollatorRegistry
from dataprep.runtime.collate.schema import FieldSchema, OutputSchema
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq

__all__ = [
    "GRPO",
    "KTO",
    "Audio",
    "CausalLM",
    "Classification",
    "CollatorRegistry",
    "FieldSchema",
    "MaskedLM",
    "Normalize",
    "OutputSchema",
    "Padded",
    "Preference",
    "Seq2Seq",
    "Vision",
    "VisionText",
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_seq2seq_collate",
]
