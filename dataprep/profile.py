"""Measurements of loaders and collate functions, and checks before a long run."""

from __future__ import annotations

from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.inspect.profile import (
    CollatorProfile,
    LoaderProfile,
    profile_collator,
    profile_loader,
)
from dataprep.runtime.loader.worker_count import suggest_workers

__all__ = [
    "CollatorProfile",
    "LoaderProfile",
    "profile_collator",
    "profile_loader",
    "suggest_workers",
    "validate_first_batch",
]
