"""Read-ahead: announces to the kernel which parts of a split will be read soon.

The order is a function, so a loader knows its next batches; without read-ahead it would wait for
each window in turn. `announce`, some batches ahead, has the disk work on all windows of a batch at
once (posix_fadvise WILLNEED, which starts reading and returns). If the whole split fits into
memory, it asks for the block of 1 MiB around each window, once: all of it will be read anyway, and
disks deliver large blocks several times as fast. Otherwise it asks for the windows alone.

If everything is in the page cache, that would be wasted, so a few windows are tested first: a read
of one byte that must not wait (RWF_NOWAIT, preadv2(2)) fails if its page is not there. After eight
batches in a row that were there, the next test is due after 10 ms: at every batch in training, and
for less than a hundredth of the time if batches are made as fast as possible. It then tests one
sample, another each time, because the training step pays for the test. If the file system has no
reads that do not wait (tmpfs, overlayfs), one byte is read and timed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError
from dataprep.formats.read.arrays import NamedArray
from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.dataset import Split
from dataprep.formats.read.pread import File
from dataprep.formats.read.sharded import bases

__all__ = ["Announced", "ReadAhead"]

Positions = npt.NDArray[np.int64]

_PAGE = 4096
_BLOCK = 1 << 20  # bytes asked for around a window, if all of the split is to stay in memory
_GAP = 4 * _PAGE  # bytes between two ranges up to which one request costs less than two
_PIECE = 128 << 10  # bytes a call: the kernel cuts longer ones at the device's read-ahead, or above
_MEMORY_SHARE = 2  # a split of up to one part of so many of the memory there is stays in it
_MOST = 64 << 20  # bytes a batch; more than that is not a batch to read ahead
_TRIED = 4  # windows of a batch that are looked at
_SETTLED = 8  # batches in a row in the cache until most are trusted to be
_TRUSTED = 0.01  # seconds in which they then are not looked at
_SLOW = 50e-6  # seconds; a read of one byte from memory takes one or two microseconds


class Announced(Protocol):
    """A dataset whose samples are parts of its `split`, of several `splits`, or of its `tracks`."""

    def spans(self, samples: Positions) -> tuple[Positions, Positions]:
        """Return starts and stops of what reading `samples` touches.

        In tokens of the split; those of several splits, and the numbers of several tracks (arrays),
        are numbered one after the other.
        """
        ...


class ReadAhead:
    """Announcer of the samples of one dataset. For one thread; costs nothing until it is used.

    It only gives hints: an error here (a missing file, a system without these calls) ends the
    announcing, and is reported by the read itself if it matters.

        >>> ahead = ReadAhead(windows)                                      # doctest: +SKIP
        >>> ahead.announce(np.array([5, 1200, 77]))                         # doctest: +SKIP
    """

    def __init__(self, dataset: Announced) -> None:
        self.asked = 0
        """Bytes that the kernel was asked for."""
        self._dataset = dataset
        self._files = _files(dataset)
        self._warm = 0
        self._look_at = 0.0
        self._off = not hasattr(os, "posix_fadvise")
        sizes = self._files.sizes
        fits = int(sizes.sum()) <= memory() // _MEMORY_SHARE
        self._unit = _BLOCK if fits else _PAGE
        self._first_piece = bases((-(-sizes // _BLOCK) * (_BLOCK // _PIECE)).tolist())
        self._told = np.zeros(self._first_piece[-1], np.bool_) if fits else None
        self._turn = 0

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[Announced]]:
        """Return the arguments to make it anew: another process has another page cache."""
        return ReadAhead, (self._dataset,)

    def announce(self, samples: Positions) -> None:
        """Have the kernel read what `samples` [k] need, unless that is believed to be in memory.

        Negative samples (rows that only fill up a batch) are left out.
        """
        if self._off or (self._warm > _SETTLED and time.monotonic() < self._look_at):
            return
        real = samples[samples >= 0]
        try:
            if real.size:
                self._announce(real)
        except (OSError, DataprepError):
            self._off = True

    def _announce(self, samples: Positions) -> None:
        self._turn += 1
        settled = self._warm >= 2 * _SETTLED
        if self._warm > _SETTLED:
            there = self._one_in_memory(samples[self._turn % len(samples) :][:1])
        else:
            there = self._in_memory(samples[self._spread(len(samples))])
        self._warm = self._warm + 1 if there else 0
        if self._warm > _SETTLED:
            self._look_at = time.monotonic() + _TRUSTED
            return
        if settled and self._told is not None:  # what was in memory is there no more
            self._told[:] = False
        shards, begins, ends = pieces(*merged(*self._ranges(samples), self._unit))
        if self._told is not None:
            place = self._first_piece[shards] + begins // _PIECE
            fresh = ~self._told[place]
            self._told[place] = True
            shards, begins, ends = shards[fresh], begins[fresh], ends[fresh]
        sizes = (ends - begins)[: _MOST // _PIECE].tolist()
        for shard, at, size in zip(shards.tolist(), begins.tolist(), sizes, strict=False):
            descriptor = self._files.file(shard).descriptor
            os.posix_fadvise(descriptor, at, size, os.POSIX_FADV_WILLNEED)
        self.asked += sum(sizes)

    def _spread(self, samples: int) -> Positions:
        """Return a few places of a batch, others at each call."""
        return (np.arange(_TRIED) * samples // _TRIED + self._turn) % samples

    def _one_in_memory(self, sample: Positions) -> bool:
        """Return whether a sample [1] is in memory: a few of its spans, others at each call.

        Those of a sample may be in files of their own, as its tracks are. Cheap, as most looks find
        that all is there.
        """
        starts, stops = self._dataset.spans(sample)
        found = starts[stops > starts].tolist()
        first = self._turn % max(1, len(found))
        return all(map(self._there, (found[first:] + found[:first])[:_TRIED]))

    def _there(self, at: int) -> bool:
        """Return whether number `at`, counted as `spans` does, is in memory."""
        shard = int(self._files.base.searchsorted(at, "right")) - 1
        byte = (at - int(self._files.base[shard])) * int(self._files.item[shard])
        return in_memory(self._files.file(shard), byte + int(self._files.offset[shard]))

    def _in_memory(self, samples: Positions) -> bool:
        shards, begins, _ = self._ranges(samples)
        places = zip(shards.tolist(), begins.tolist(), strict=True)
        return all(in_memory(self._files.file(shard), at) for shard, at in places)

    def _ranges(self, samples: Positions) -> tuple[Positions, Positions, Positions]:
        """Return shard, first byte and end in its file of everything that `samples` touch."""
        starts, stops = self._dataset.spans(samples)
        full = stops > starts
        starts, stops = starts[full], stops[full]
        base = self._files.base
        first = base.searchsorted(starts, "right") - 1
        row, shard = ragged(first, base.searchsorted(stops, "left"))[:2]
        begins = np.maximum(starts[row], base[shard]) - base[shard]
        ends = np.minimum(stops[row], base[shard + 1]) - base[shard]
        full = ends > begins  # of shards without tokens nothing is read
        shard, item = shard[full], self._files.item[shard[full]]
        offset = self._files.offset[shard]
        return shard, begins[full] * item + offset, ends[full] * item + offset


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """The token files of one split, or of several one after the other.

    `base` says at which token each begins (and where the last one ends), `item`, `offset` and
    `sizes` the bytes of a token, before the first one, and of the file; int64. `file(k)` opens one.
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
    """Return whole units of bytes in order, with ranges joined that touch or nearly do.

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
    """Return the ranges, cut at every 128 KiB.

    >>> [found.tolist() for found in pieces(np.array([7]), np.array([4096]), np.array([200_000]))]
    [[7, 7], [4096, 131072], [131072, 200000]]
    """
    first = begins // _PIECE
    row, number, _ = ragged(first, -(-ends // _PIECE))
    starts = np.maximum(begins[row], number * _PIECE)
    return shards[row], starts, np.minimum(ends[row], (number + 1) * _PIECE)


def memory() -> int:
    """Return the bytes that files may take in memory, within control groups; 0 if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(text.split("MemAvailable:")[1].split()[0]) << 10)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")
        found.append(int(limit))  # "max", where there is none, is no number
    return min(found, default=0)


def in_memory(file: File, at: int) -> bool:
    """Return whether byte `at` of a file is in the page cache."""
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
