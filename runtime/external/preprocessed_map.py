"""`PreprocessedDataset`: a map-style dataset, preprocessed and cached.

Use it with `DataLoaderBuilder`, `UniversalDataModule` or a stock DataLoader. A sample in the cache
costs a copy (5 us for a thousand tokens). Any other sample is read and preprocessed.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dataprep.formats.errors import DataprepError, UsageError, require

from ..checks import whole_number
from ..loader.machine_errors import machine_error
from ..sample_numbers import check_samples, from_the_end
from .preprocess import Engine, PreprocessError, Preprocessing
from .randomness import DrawsWatch

__all__ = ["MISSING", "PreprocessedDataset", "SampleCache", "copied", "require_map_style"]

_CACHE_BYTES = 256 << 20


class PreprocessedDataset(Dataset[Any]):
    """Map-style dataset of the samples of `hf_dataset`, preprocessed and cached.

    Arguments:
        hf_dataset: a map-style dataset: a Hugging Face or torch dataset, or a list.
        prompt_engine: an `Engine`, such as `TokenizeEngine`. None: examples already have the fields
            of the model.
        column_mapping: {name in the data: name for the engine}.
        cache_enabled: whether to cache preprocessed samples; None: True unless `draws` is True.
            Each worker process has its own cache, so caching saves most time with `num_workers=0`.
        transform: a function of the renamed example, called before the engine.
        cache_bytes: the largest size of the cache; the least recently used samples are removed.
        draws: True if data, transform or engine use random numbers, as augmentations do. Loaders of
            this package then seed the random generators for each sample and epoch, and nothing is
            cached.

    Arrays and lists of numbers become tensors. Fields of other types are kept unchanged. Returned
    samples are copies, and may be modified. Only numbers, texts, arrays and containers are copied,
    not other objects in a sample.

    Raises `PreprocessError` with the row, the stage and the cause if an example cannot be
    processed. Raises `IndexError` for a number outside -len .. len - 1. Raises `UsageError` for an
    index that is not a number, and if random numbers are used without `draws`.

    >>> data = PreprocessedDataset([{"n": [1, 2]}, {"n": [3]}], column_mapping={"n": "input_ids"})
    >>> len(data), data[-1]
    (2, {'input_ids': tensor([3])})
    """

    def __init__(
        self,
        hf_dataset: Any,
        prompt_engine: Engine | None = None,
        column_mapping: Mapping[str, str] | None = None,
        cache_enabled: bool | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        cache_bytes: int = _CACHE_BYTES,
        draws: bool = False,
    ) -> None:
        require_map_style(hf_dataset)
        require(cache_enabled in (None, True, False), "cache_enabled", f"is {cache_enabled!r}")
        require(draws in (True, False), "draws", f"must be a bool, got {draws!r}")
        require(not (draws and cache_enabled), "cache_enabled",
                "would serve what was drawn first for ever: not with draws=True")  # fmt: skip
        self.source = hf_dataset
        self.steps = Preprocessing(
            column_mapping=column_mapping or {}, transform=transform, engine=prompt_engine
        )
        self.draws = bool(draws)
        self.cache_enabled = not draws and cache_enabled is not False
        self.cache = SampleCache(cache_bytes)
        self._numbers: npt.NDArray[np.int64] | None = None
        self._watch = DrawsWatch()

    @property
    def features(self) -> Any:
        """Return the `features` (column types) of the data before preprocessing, or None."""
        return getattr(self.source, "features", None)

    @property
    def identity(self) -> str:
        """Return a string that identifies the data and its preprocessing.

        It is stored in a loader's state.
        """
        return f"{type(self.source).__name__}/{self.steps.identity}"

    def __len__(self) -> int:
        return len(self.source) if self._numbers is None else len(self._numbers)

    def __repr__(self) -> str:
        return f"<dataprep.PreprocessedDataset: {len(self):,} of {type(self.source).__name__}>"

    def __getitem__(self, index: int) -> Any:
        """Return the sample `index`; a negative `index` counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a list of the samples `indices`; negative indices count from the end.

        Samples that are not in the cache are read in one call if the data allows it.
        """
        rows = self._rows(indices)
        samples = [self.cache.get(row) if self.cache_enabled else MISSING for row in rows]
        missing = [at for at, sample in enumerate(samples) if sample is MISSING]
        if missing:
            with nullcontext() if self.draws else self._watch.look():
                wanted = [rows[at] for at in missing]
                for at, example in zip(missing, self._read(wanted), strict=True):
                    samples[at] = self.steps(example, f"row {rows[at]}")
            for at in missing:
                if self.cache_enabled:
                    self.cache.put(rows[at], samples[at])
                samples[at] = copied(samples[at], _unchanged)  # may be memory of the data
        return samples

    def select(self, indices: Iterable[int]) -> PreprocessedDataset:
        """Return a dataset of the samples `indices`, which has its own cache.

        >>> PreprocessedDataset(["a", "b", "c"]).select([2, -3])[1]
        'a'
        """
        chosen = self._rows(list(indices))
        other = PreprocessedDataset(
            self.source, self.steps.engine, self.steps.column_mapping, self.cache_enabled,
            self.steps.transform, cache_bytes=self.cache.limit, draws=self.draws,
        )  # fmt: skip
        other._numbers = np.array(chosen, np.int64)
        return other

    def clear_cache(self) -> None:
        """Empty the cache of this process, for example after a change of the engine."""
        self.cache.clear()

    def _rows(self, indices: Sequence[int]) -> list[int]:
        """Return a list of the row numbers in the data for the samples `indices`.

        Negative indices count from the end. Raise `IndexError` for an index outside of the dataset.
        """
        at = from_the_end(indices, len(self))
        check_samples(at, len(self))
        rows: list[int] = (at if self._numbers is None else self._numbers[at]).tolist()
        return rows

    def _read(self, rows: list[int]) -> list[Any]:
        together = getattr(self.source, "__getitems__", None) if len(rows) > 1 else None
        if together is not None:
            try:
                found = together(rows)
            except Exception:
                found = None  # read one by one, so that the error names the row
            if isinstance(found, list) and len(found) == len(rows):
                return found
        return [self._one(row) for row in rows]

    def _one(self, row: int) -> Any:
        try:
            return self.source[row]
        except DataprepError:
            raise
        except Exception as error:
            machine = machine_error(error)
            if machine is not None:
                raise machine from error
            raise PreprocessError(
                f"reading it raised {type(error).__name__}: {error}", where=f"row {row}",
                stage="read", remedy="Mend or leave out the example.",
            ) from error  # fmt: skip


def _unchanged(value: Any) -> Any:
    """Return `value` itself. It is passed as `other` to `copied`, to avoid a deep copy."""
    return value


def require_map_style(data: Any) -> None:
    """Raise `UsageError` for data that is not map-style; the error says what to use instead."""
    if isinstance(data, Mapping):
        raise UsageError(
            f"is a mapping of {', '.join(map(str, data))}, not a dataset", where="hf_dataset",
            remedy="Pass one of its splits, as data['train'].",
        )  # fmt: skip
    if isinstance(data, str | bytes):
        raise UsageError(f"is a {type(data).__name__}, not the rows of one", where="hf_dataset",
                         remedy="Open or load the data first.")  # fmt: skip
    for name in ("__len__", "__getitem__"):
        if not hasattr(data, name):
            raise UsageError(
                f"{type(data).__name__} has no {name}, and so no samples by number",
                where="hf_dataset", remedy="Use StreamingPreprocessedDataset for streams.",
            )  # fmt: skip


MISSING: Any = object()
"""Returned by `SampleCache.get` for a sample that is not in the cache."""
_OBJECT = 120  # approximate bytes of a tensor or container besides its content
_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class SampleCache:
    """Cache of samples by number, up to `limit` bytes; the least recently used are removed.

    It stores and returns copies, so callers may modify samples. It is thread-safe. A pickled cache
    is empty, so that workers do not receive the samples.

    >>> cache = SampleCache(1 << 20)
    >>> cache.put(3, {"n": [1]})
    >>> cache.get(3)["n"].append(2)
    >>> cache.get(3), len(cache), cache.get(4) is MISSING
    ({'n': [1]}, 1, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = whole_number("cache_bytes", limit)
        self.hits = self.misses = self.used = 0
        """Counts of samples found and not found, and the bytes in use."""
        self._entries: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._new_lock()

    def _new_lock(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _own_lock(self) -> threading.Lock:
        """Return the lock of this process.

        After a fork, a new lock is made, because the copied lock might never be released.
        """
        if self._pid != os.getpid():
            self._new_lock()
        return self._lock

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self.limit,)

    def get(self, number: int) -> Any:
        """Return a copy of the sample `number`, or `MISSING` if it is not in the cache."""
        with self._own_lock():
            found = self._entries.get(number)
            if found is None:
                self.misses += 1
                return MISSING
            self.hits += 1
            self._entries.move_to_end(number)
        return copied(found[0])

    def put(self, number: int, sample: Any) -> None:
        """Store a copy of `sample`, and remove old samples if the cache exceeds its limit.

        A sample that alone exceeds the limit is not stored.
        """
        size = _size(sample)
        if size > self.limit:
            return
        own = copied(sample)
        with self._own_lock():
            self.used += size - self._entries.pop(number, (None, 0))[1]
            self._entries[number] = (own, size)
            while self.used > self.limit:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used -= freed

    def clear(self) -> None:
        """Remove all samples."""
        with self._own_lock():
            self._entries.clear()
            self.used = 0


def copied(value: Any, other: Callable[[Any], Any] = copy.deepcopy) -> Any:
    """Return a deep copy of `value`.

    The function `other` copies objects that are not numbers, texts, arrays or containers.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {name: copied(one, other) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(one, other) for one in value)
    return other(value)


def _size(value: Any) -> int:
    """Return the approximate size of a sample in bytes."""
    if isinstance(value, torch.Tensor):
        return _OBJECT + value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return _OBJECT + value.nbytes
    if isinstance(value, Mapping):
        return 2 * _OBJECT + sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return _OBJECT + sum(map(_size, value))
    return sys.getsizeof(value)
