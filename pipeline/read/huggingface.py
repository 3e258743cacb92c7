"""Reader of Hugging Face datasets, on disk or on the hub, which checks for changed files.

No other module of this package imports `datasets`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from dataprep.formats.errors import InputError, StorageError
from dataprep.formats.library_errors import ErrorTypes, decoding, reason_of

from .child_process import apart
from .sources import HUB_PREFIX, Source, changed_error, input_error, reading

__all__ = ["decoding_hf", "hf_dataset", "hf_files", "hf_rows", "hf_source"]

_Key = tuple[Source, str | None, str | None]
_opened: dict[_Key, Any] = {}
_MOST_OPEN = 4


@apart
def hf_source(source: Source, config: str | None, split: str | None) -> Source:
    """Return a copy of `source` that describes the Arrow files of the dataset.

    The arguments `config` and `split` select a part of the dataset. In the copy, `size` is the
    total size of the files in bytes, and `modified` is a hash of their names, sizes and
    modification times. The dataset is opened again even if it is open already, because its files
    may have been replaced. Raise `InputError` if it cannot be opened, and `StorageError` if the hub
    cannot be reached.
    """
    dataset = _open(source, config, split)
    found = _stamped(source, dataset)
    _remember((found, config, split), dataset)
    return found


def _stamped(source: Source, dataset: Any) -> Source:
    size, stamp = 0, xxhash.xxh3_64()
    for name in _arrow_files(dataset):
        with reading(name):
            found = Path(name).stat()
        size += found.st_size
        stamp.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return msgspec.structs.replace(source, size=size, modified=stamp.intdigest() >> 1)


def _arrow_files(dataset: Any) -> list[str]:
    return [os.fspath(entry["filename"]) for entry in dataset.cache_files]


def _remember(key: _Key, dataset: Any) -> None:
    while len(_opened) >= _MOST_OPEN:
        _opened.pop(next(iter(_opened)))
    _opened[key] = dataset


def hf_dataset(source: Source, config: str | None, split: str | None) -> Any:
    """Return the `datasets.Dataset` of `source`, from a cache if possible.

    A dataset that is not in the cache is opened. Raise `InputError` if its files have changed since
    the build was planned. The files of a cached dataset are not checked.
    """
    key = (source, config, split)
    if key not in _opened:
        dataset = _open(source, config, split)
        if _stamped(source, dataset) != source:
            raise changed_error(source)
        _remember(key, dataset)
    return _opened[key]


def _open(source: Source, config: str | None, split: str | None) -> Any:
    """Return the dataset at `source`, a folder made by `save_to_disk` or a name on the hub.

    No code of the dataset is run. Raise `InputError` if it cannot be opened, and `StorageError` if
    the hub cannot be reached.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        with _silenced(datasets.logging):
            loaded = _load(source.path, config)
    except MemoryError:
        raise
    except Exception as error:  # each builder of the library has its own exceptions
        raise _hf_failure(source.name, error, source.path) from None
    return _one_split(loaded, source.name, split)


def _load(path: str, config: str | None) -> Any:
    import datasets

    if not path.startswith(HUB_PREFIX):
        return datasets.load_from_disk(path)
    repository, _, revision = path.removeprefix(HUB_PREFIX).partition("@")
    return datasets.load_dataset(repository, config, revision=revision or None)


@contextlib.contextmanager
def _silenced(logging: Any) -> Iterator[None]:
    """Silence the log of the library `datasets` within the block.

    Instead, `_hf_failure` reports the errors of the library.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _hf_failure(where: str, error: Exception, path: str) -> InputError | StorageError:
    cause = error.__cause__ or error  # the outer one only says "an error occurred"
    reason = reason_of(cause)
    if isinstance(error, IndexError):  # raised for a saved dataset without a file
        return input_error(
            "there are no rows in this dataset", where, "Check --input and --hf-split.", "E_EMPTY"
        )
    if path.startswith(HUB_PREFIX) and isinstance(error, ConnectionError):
        return StorageError(
            f"the hub could not be reached ({reason})", where=where, code="E_NETWORK",
            remedy="Try again, or save the dataset with save_to_disk and name its folder.",
        )  # fmt: skip
    return input_error(
        f"not a readable Hugging Face dataset ({reason})", where,
        "Check the name, --hf-config and --hf-split, or the folder.", "E_HF",
    )  # fmt: skip


def _one_split(loaded: Any, where: str, split: str | None) -> Any:
    if not isinstance(loaded, dict):
        return loaded
    names = list(loaded)
    if split is None and len(names) == 1:
        return loaded[names[0]]
    if split not in loaded:
        asked = f"no split {split!r}" if split else f"{len(names)} splits"
        raise input_error(
            f"the dataset has {asked}; there are {', '.join(names)}", where,
            "Choose one with --hf-split.", "E_HF",
        )  # fmt: skip
    return loaded[split]


@apart
def hf_rows(source: Source, config: str | None, split: str | None) -> tuple[int, int]:
    """Return the number of rows of a dataset, and the total size of its Arrow files in bytes."""
    return len(hf_dataset(source, config, split)), source.size


@apart
def hf_files(source: Source, config: str | None, split: str | None) -> list[str]:
    """Return the paths of the Arrow files of a dataset, in order.

    Raise `InputError` if the files have changed since the build was planned.
    """
    dataset = hf_dataset(source, config, split)
    if _stamped(source, dataset) != source:
        raise changed_error(source)
    return _arrow_files(dataset)


def decoding_hf(
    source: Source, of: ErrorTypes = Exception
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that turns exceptions of types `of` into errors about `source`."""
    return decoding(
        source.name, "Hugging Face dataset", code="E_HF",
        remedy="Fetch or save the dataset again.", of=of,
    )  # fmt: skip
