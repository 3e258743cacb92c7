"""Loaders made of flat options, for tests that try many of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dataprep import Mixture, create_loader, open_arrays, open_dataset
from dataprep.formats.errors import UsageError
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.specs import (
    Documents,
    Embeddings,
    Packed,
    Pairs,
    Preferences,
    Windows,
    row_spec,
    spec_of,
)

__all__ = ["make_loader"]

_SPECS = (Windows, Packed, Documents, Preferences)
_OF_TOKENS = {field.name for spec in _SPECS for field in fields(spec)} - {"dtype"}
_OF_ARRAYS = {spec: {field.name for field in fields(spec)} for spec in (Embeddings, Pairs)}
_OF_MIXTURES = {field.name for field in fields(Mixture)} - {"weights"}


def make_loader(dataset_dir: Any, split: str, *arguments: Any, **options: Any) -> Loader:
    """Return the loader of `create_loader`, with the fields of specs among the options.

    With `io`, the datasets are opened with it first. A `dtype` is that of `Embeddings`. Rows
    without a name are those that the split was built for.
    """
    if "io" in options:
        dataset_dir = _opened(dataset_dir, options.pop("io"))
    rows = options.pop("rows", None)
    own = {name: options.pop(name) for name in _OF_TOKENS & set(options)}
    if isinstance(rows, str):
        own["rows"] = rows
    mixed = {name: options.pop(name) for name in _OF_MIXTURES & set(options)}
    if isinstance(dataset_dir, Mapping):
        dataset_dir = Mixture(dataset_dir, **mixed)
    for spec, names in _OF_ARRAYS.items():
        given = {name: options.pop(name) for name in names & set(options)}
        rows = spec(**given) if given else rows
    if own:
        rows = row_spec(spec_of(own))
    return create_loader(dataset_dir, split, *arguments, rows=rows, **options)


def _opened(place: Any, io: Any) -> Any:
    if isinstance(place, Mapping):
        return {_opened(one, io): weight for one, weight in place.items()}
    try:
        return open_dataset(place, io=io)
    except UsageError:
        return open_arrays(place, io=io)
