"""`PreprocessedDataset`: samples of the caller, renamed, transformed, processed, cached.

Map-style, for `DataLoaderBuilder`, `UniversalDataModule` or a stock DataLoader: `len`, `[i]`, and
many at once if the data can be read so. Samples depend on the data and the arguments alone. One in
the cache costs a copy (of a thousand tokens: 5 us), any other the reading and the engine.
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
    """The samples of `hf_dataset` after `column_mapping`, `transform` and `prompt_engine`.

    Arguments:
        hf_dataset: whatever has `len` and `[i]`: a Hugging Face dataset, a torch one, a list.
        prompt_engine: an `Engine`, as `TokenizeEngine`; None: examples have the fields already.
        column_mapping: {name in the data: name for the engine}, in this direction.
        cache_enabled: keep processed samples; None: unless `draws`. Each worker process keeps its
            own, so the cache is worth most with `num_workers=0`, where a thread makes the batches.
        transform: a function of the (renamed) example, before the engine.
        cache_bytes: what the cache may take; samples that were used longest ago go first.
        draws: whether any of this draws random numbers, as an augmentation does. These are then
            seeded for each sample and epoch by loaders of this package, and nothing is cached.

    Returned samples may be modified; objects that are neither numbers nor lists of these are
    shared. Numbers in lists and arrays become tensors; all fields stay. Raises `PreprocessError`
    that names the row, the stage and the cause; `IndexError` for a number outside -len .. len - 1;
    `UsageError` for what is no number, and if something draws that should not.

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
        """Return the features of the data before preprocessing; None if it has none."""
        return getattr(self.source, "features", None)

    @property
    def identity(self) -> str:
        """Return a name for data and preprocessing, part of a loader's state."""
        return f"{type(self.source).__name__}/{self.steps.identity}"

    def __len__(self) -> int:
        return len(self.source) if self._numbers is None else len(self._numbers)

    def __repr__(self) -> str:
        return f"<dataprep.PreprocessedDataset: {len(self):,} of {type(self.source).__name__}>"

    def __getitem__(self, index: int) -> Any:
        """Return one sample; a negative `index` counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return these samples; those not in the cache are read together if the data can."""
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
                samples[at] = copied(samples[at], _as_it_is)  # of the data's own memory
        return samples

    def select(self, indices: Iterable[int]) -> PreprocessedDataset:
        """Return the samples with these numbers, with a cache of their own; 8 bytes each.

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
        """Forget what was kept, as after the engine was changed; of this process."""
        self.cache.clear()

    def _rows(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers in the data; of one and the same sample always the same."""
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
                found = None  # which of them is it?
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


def _as_it_is(value: Any) -> Any:
    return value


def require_map_style(data: Any) -> None:
    """Raise `UsageError` for what has no samples by number, saying what to use."""
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
"""The value of `get` for a sample that is not there."""
_OBJECT = 120  # bytes, about, of a tensor or container beside what is in it
_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class SampleCache:
    """Cache of samples by number, up to `limit` bytes; least recently used ones are dropped.

    It stores and returns copies, so a change of a served sample changes no later one. Safe for
    several threads. A pickle of it is empty: each worker has its own.

    >>> cache = SampleCache(1 << 20)
    >>> cache.put(3, {"n": [1]})
    >>> cache.get(3)["n"].append(2)
    >>> cache.get(3), len(cache), cache.get(4) is MISSING
    ({'n': [1]}, 1, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = whole_number("cache_bytes", limit)
        self.hits = self.misses = self.used = 0
        """Found and not found so far; bytes in use."""
        self._kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._renew()

    def _renew(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _held(self) -> threading.Lock:
        """Return the lock; in a forked process a new one, as the old may be held for ever."""
        if self._pid != os.getpid():
            self._renew()
        return self._lock

    def __len__(self) -> int:
        return len(self._kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self.limit,)

    def get(self, number: int) -> Any:
        """Return a copy of the sample, or `MISSING`."""
        with self._held():
            found = self._kept.get(number)
            if found is None:
                self.misses += 1
                return MISSING
            self.hits += 1
            self._kept.move_to_end(number)
        return copied(found[0])

    def put(self, number: int, sample: Any) -> None:
        """Keep a copy of it, unless it is larger than everything together may be."""
        size = _size(sample)
        if size > self.limit:
            return
        own = copied(sample)
        with self._held():
            self.used += size - self._kept.pop(number, (None, 0))[1]
            self._kept[number] = (own, size)
            while self.used > self.limit:
                _, (_, freed) = self._kept.popitem(last=False)
                self.used -= freed

    def clear(self) -> None:
        """Forget all samples."""
        with self._held():
            self._kept.clear()
            self.used = 0


def copied(value: Any, other: Callable[[Any], Any] = copy.deepcopy) -> Any:
    """Return a copy of `value`; `other` copies objects that are neither data nor containers."""
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
    """Return the approximate bytes of a sample."""
    if isinstance(value, torch.Tensor):
        return _OBJECT + value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return _OBJECT + value.nbytes
    if isinstance(value, Mapping):
        return 2 * _OBJECT + sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return _OBJECT + sum(map(_size, value))
    return sys.getsizeof(value)
