"""Errors that dataprep raises on purpose. `DataprepError` is the base class of all."""

from __future__ import annotations

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

__all__ = [
    "BusyError",
    "DataprepError",
    "IncompatibleError",
    "InputError",
    "IntegrityError",
    "RecordError",
    "StorageError",
    "UsageError",
]
