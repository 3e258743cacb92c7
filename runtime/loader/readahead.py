"""Read-ahead: telling the kernel which parts of the data files will be read soon.

A loader knows from the order which samples its next batches need. It calls `announce` for a batch
some steps in advance, and the disk then reads all samples of the batch together: posix_fadvise with
WILLNEED only starts the reading. Without read-ahead, the loader would wait for the disk once for
each sample.

If the files take at most half of the available memory, the block of 1 MiB around each sample is
requested, and each block only once. The rest of a block will be needed too, and disks deliver large
blocks several times as fast. Otherwise only the samples are requested.

Data in the page cache need not be requested, so a few samples of each batch are tested first. A
test reads one byte with RWF_NOWAIT (preadv2(2)), which fails if the page is not in memory. On file
systems without such reads (tmpfs, overlayfs), a test reads one byte and measures the time.

Tests delay the training step. So after eight cached batches in a row, tests are at least 10 ms
apart, and each tests only one sample of the batch. Most training steps are longer than 10 ms, so
there is still a test for every batch. If batches are made as fast as possible, tests take less than
1 % of the time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError
from dataprep.formats.read.arrays import NamedArray
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.pread import File
from dataprep.formats.read.sharded import bases

__all__ = ["DatasetWithSpans", "ReadAhead"]

Positions = npt.NDArray[np.int64]

_PAGE = 4096
_BLOCK = 1 << 20  # bytes requested around a window if the split fits into memory
_GAP = 4 * _PAGE  # bytes between two ranges up to which one request costs less than two
_PIECE = 128 << 10  # bytes a call: the kernel cuts off what exceeds the read-ahead of the device
_MEMORY_SHARE = 2  # a split fits if it takes at most 1 / _MEMORY_SHARE of the available memory
_MOST = 64 << 20  # the most bytes requested for a batch
_TESTED = 4  # windows of a batch that are tested
_WARM_AFTER = 8  # cached batches in a row, after which tests become rare
_TEST_INTERVAL = 0.01  # seconds between two tests then
_SLOW = 50e-6  # seconds; a read of one byte from memory takes one or two microseconds


class DatasetWithSpans(Protocol):
    """Interface of a dataset that can tell which tokens a sample occupies in the data files.

    The dataset has an attribute `split`, `splits` or `tracks`, which gives access to these files.
    """

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        """Return starts and stops (int64) of the token ranges that reading `samples` touches.

        The tokens of several splits are numbered consecutively. If the dataset has several tracks
        (arrays), their items are numbered in the same way.
        """
        ...


class ReadAhead:
    """Read-ahead for the samples of one dataset.

    A `ReadAhead` must be used in one thread only. It only gives hints to the kernel. If an error
    occurs (a missing file, a system without these calls), read-ahead stops silently: if the error
    matters, the later read of the data raises it.

        >>> ahead = ReadAhead(windows)                                      # doctest: +SKIP
        >>> ahead.announce(np.array([5, 1200, 77]))                         # doctest: +SKIP
    """

    def __init__(self, dataset: DatasetWithSpans) -> None:
        self.asked = 0
        """Bytes requested from the kernel so far."""
        self._dataset = dataset
        self._files = _files(dataset)
        self._warm = 0
        self._look_at = 0.0
        self._off = not hasattr(os, "posix_fadvise")
        sizes = self._files.sizes
        fits = int(sizes.sum()) <= memory() // _MEMORY_SHARE
        self._unit = _BLOCK if fits else _PAGE
        self._first_piece = bases((-(-sizes // _BLOCK) * (_BLOCK // _PIECE)).tolist())
        self._requested = np.zeros(self._first_piece[-1], np.bool_) if fits else None
        self._turn = 0

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[DatasetWithSpans]]:
        """Return the class and the dataset, for pickling.

        A copy in another process starts without knowledge of what is in memory.
        """
        return ReadAhead, (self._dataset,)

    def announce(self, samples: Positions) -> None:
        """Make the kernel read the data of `samples` [k], unless it seems to be in memory already.

        Negative numbers (padding rows) are ignored.
        """
        if self._off or (self._warm > _WARM_AFTER and time.monotonic() < self._look_at):
            return
        real = samples[samples >= 0]
        try:
            if real.size:
                self._announce(real)
        except (OSError, DataprepError):
            self._off = True

    def _announce(self, samples: Positions) -> None:
        self._turn += 1
        was_warm = self._warm >= 2 * _WARM_AFTER
        if self._warm > _WARM_AFTER:
            there = self._one_in_memory(samples[self._turn % len(samples) :][:1])
        else:
            there = self._in_memory(samples[self._spread(len(samples))])
        self._warm = self._warm + 1 if there else 0
        if self._warm > _WARM_AFTER:
            self._look_at = time.monotonic() + _TEST_INTERVAL
            return
        if was_warm and self._requested is not None:  # cached pages were evicted
            self._requested[:] = False
        shards, begins, ends = pieces(*merged(*self._ranges(samples), self._unit))
        if self._requested is not None:
            place = self._first_piece[shards] + begins // _PIECE
            fresh = ~self._requested[place]
            self._requested[place] = True
            shards, begins, ends = shards[fresh], begins[fresh], ends[fresh]
        sizes = (ends - begins)[: _MOST // _PIECE].tolist()
        for shard, at, size in zip(shards.tolist(), begins.tolist(), sizes, strict=False):
            descriptor = self._files.file(shard).descriptor
            os.posix_fadvise(descriptor, at, size, os.POSIX_FADV_WILLNEED)
        self.asked += sum(sizes)

    def _spread(self, samples: int) -> Positions:
        """Return a few indices into a batch of `samples` samples, different at each call."""
        return (np.arange(_TESTED) * samples // _TESTED + self._turn) % samples

    def _one_in_memory(self, sample: Positions) -> bool:
        """Return whether the data of one sample, an array of shape [1], seems to be in memory.

        A sample with several tracks has a span of tokens in each track. The first token of a few
        spans is tested, with different spans at each call.
        """
        starts, stops = self._dataset.spans(sample)
        found = starts[stops > starts].tolist()
        first = self._turn % max(1, len(found))
        return all(map(self._there, (found[first:] + found[:first])[:_TESTED]))

    def _there(self, at: int) -> bool:
        """Return whether the token at `at` (a position as in `spans`) is in the page cache."""
        shard = int(self._files.base.searchsorted(at, "right")) - 1
        byte = (at - int(self._files.base[shard])) * int(self._files.item[shard])
        return in_memory(self._files.file(shard), byte + int(self._files.offset[shard]))

    def _in_memory(self, samples: Positions) -> bool:
        shards, begins, _ = self._ranges(samples)
        places = zip(shards.tolist(), begins.tolist(), strict=True)
        return all(in_memory(self._files.file(shard), at) for shard, at in places)

    def _ranges(self, samples: Positions) -> tuple[Positions, Positions, Positions]:
        """Return the file index, start byte and end byte of each byte range that `samples` occupy.

        The result is three int64 arrays of equal length.
        """
        starts, stops = self._dataset.spans(samples)
        full = stops > starts
        starts, stops = starts[full], stops[full]
        base = self._files.base
        first = base.searchsorted(starts, "right") - 1
        row, shard = ragged(first, base.searchsorted(stops, "left"))[:2]
        begins = np.maximum(starts[row], base[shard]) - base[shard]
        ends = np.minimum(stops[row], base[shard + 1]) - base[shard]
        full = ends > begins  # shards without tokens have nothing to read
        shard, item = shard[full], self._files.item[shard[full]]
        offset = self._files.offset[shard]
        return shard, begins[full] * item + offset, ends[full] * item + offset


class _Files(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one or several splits (or arrays), in order.

    All arrays are int64. For file `k`, `item[k]` is the size of a token, `offset[k]` the position
    of the first token in the file and `sizes[k]` the size of the file, all in bytes. `base[k]` is
    the number of tokens in the files before `k`, and `base[-1]` the number in all files. `file(k)`
    opens the file.
    """

    base: Positions
    item: Positions
    offset: Positions
    sizes: Positions
    file: Callable[[int], File]


def _files(dataset: object) -> _Files:
    splits: Sequence[Split | NamedArray] = (
        getattr(dataset, "tracks", None)
        or getattr(dataset, "splits", None)
        or (getattr(dataset, "split"),)  # noqa: B009
    )
    counts = [len(split.files.sizes) for split in splits]
    owner = [(split.files, shard) for split in splits for shard in range(len(split.files.sizes))]

    def file(number: int) -> File:
        files, shard = owner[number]
        return files.file(shard)

    lengths = [np.diff(split.stream.base) for split in splits]
    return _Files(
        base=bases(np.concatenate(lengths).tolist()),
        item=np.repeat([split.dtype.itemsize for split in splits], counts).astype(np.int64),
        offset=np.concatenate([split.files.offsets for split in splits]),
        sizes=np.array([size for split in splits for size in split.files.sizes], np.int64),
        file=file,
    )


def merged(
    shards: Positions, begins: Positions, ends: Positions, unit: int = _PAGE
) -> tuple[Positions, Positions, Positions]:
    """Return byte ranges sorted, widened to multiples of `unit` bytes and joined across small gaps.

    The arguments and the result are three arrays with an entry for each range: the index of its
    file (`shards`), its first byte and its end.

    >>> one, two = np.array([0, 0, 1, 0]), np.array([9000, 100, 5, 900_000])
    >>> [found.tolist() for found in merged(one, two, two + 50)]
    [[0, 0, 1], [0, 897024, 0], [12288, 901120, 4096]]
    """
    if not len(shards):
        return shards, begins, ends
    begins, ends = begins // unit * unit, -(-ends // unit) * unit
    order = np.lexsort((begins, shards))
    shards, begins, ends = shards[order], begins[order], ends[order]
    # Shards end to end, so far apart that none touches the next: then one running maximum serves.
    far = shards * (int(ends.max()) + _GAP + 1)
    reach = np.maximum.accumulate(ends + far)
    fresh = np.flatnonzero(begins[1:] + far[1:] > reach[:-1] + _GAP) + 1
    heads = np.concatenate([[0], fresh])
    tails = np.concatenate([fresh, [len(shards)]]) - 1
    return shards[heads], begins[heads], reach[tails] - far[tails]


def pieces(
    shards: Positions, begins: Positions, ends: Positions
) -> tuple[Positions, Positions, Positions]:
    """Return the byte ranges, cut at every multiple of 128 KiB.

    The arguments and the result are as in `merged`.

    >>> [found.tolist() for found in pieces(np.array([7]), np.array([4096]), np.array([200_000]))]
    [[7, 7], [4096, 131072], [131072, 200000]]
    """
    first = begins // _PIECE
    row, number, _ = ragged(first, -(-ends // _PIECE))
    starts = np.maximum(begins[row], number * _PIECE)
    return shards[row], starts, np.minimum(ends[row], (number + 1) * _PIECE)


def memory() -> int:
    """Return the available memory in bytes, or 0 if it is unknown.

    The number is at most the memory limit of the control group.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(text.split("MemAvailable:")[1].split()[0]) << 10)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")
        found.append(int(limit))  # "max", where there is none, is no number
    return min(found, default=0)


def in_memory(file: File, at: int) -> bool:
    """Return whether the byte at offset `at` of `file` is in the page cache.

    If the file system cannot tell, read the byte and return whether the read was fast.
    """
    byte = bytearray(1)
    try:
        os.preadv(file.descriptor, [byte], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # not for this file system, or no such flag
        began = time.perf_counter()
        os.preadv(file.descriptor, [byte], at)
        return time.perf_counter() - began < _SLOW
    return True
