"""Measurements of loaders, mixtures and collate functions, and checks before a long run."""

from __future__ import annotations

from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.inspect.profile import (
    CollatorProfile,
    LoaderProfile,
    profile_collator,
    profile_loader,
)
from dataprep.runtime.loader.worker_count import suggest_workers
from dataprep.runtime.mixture.loader import realised
from dataprep.runtime.mixture.order import Realised

__all__ = [
    "CollatorProfile",
    "LoaderProfile",
    "Realised",
    "profile_collator",
    "profile_loader",
    "realised",
    "suggest_workers",
    "validate_first_batch",
]
