"""Which document holds a token, which bytes it came from, where a record stands; for many at once.

Everything is a bisection in the offsets and ids that are stored: nothing is scanned, and only the
pages that a bisection meets are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dataprep.formats.dataset import Dataset, Split
from dataprep.formats.errors import IntegrityError, UsageError

__all__ = ["bounds_of", "documents_at", "find_record", "records_of", "sources_of"]

_Ints = npt.NDArray[np.int64]


def documents_at(split: Split, tokens: _Ints) -> _Ints:
    """The document that holds each of `tokens`, int64 [k]; never an empty one.

    Raises `IndexError` for a token outside 0 .. split.tokens - 1.
    """
    _check(tokens, split.tokens, "token")
    out = np.empty(len(tokens), np.int64)
    for shard, here, local in _by_shard(split._token_base, tokens):
        # In the type of the offsets: searchsorted would convert all of them otherwise.
        offsets = split._shard_docs(shard)
        found = np.searchsorted(offsets, local.astype(offsets.dtype), "right") - 1
        if not 0 <= int(found.min()) <= int(found.max()) < len(offsets) - 1:
            raise _damaged(split.entry.shards[shard].docs, "does not reach all tokens")
        out[here] = split._document_base[shard] + found
    return out


def bounds_of(split: Split, documents: _Ints) -> tuple[_Ints, _Ints]:
    """Where each of `documents` starts and stops in the stream of the split: two int64 [k]."""

    def bounds(shard: int, local: _Ints) -> _Ints:
        offsets = split._shard_docs(shard)
        found = np.stack([offsets[local], offsets[local + 1]], axis=1).astype(np.int64)
        length = split.entry.shards[shard].length
        if (found[:, 0] > found[:, 1]).any() or found.min() < 0 or found.max() > length:
            raise _damaged(split.entry.shards[shard].docs, "has offsets that are out of order")
        moved: _Ints = found + split._token_base[shard]
        return moved

    starts, stops = _columns(split, documents, bounds)
    return starts, stops


def sources_of(split: Split, documents: _Ints) -> tuple[_Ints, _Ints]:
    """Where each of `documents` came from: its input's number, and byte offset or row; int64 [k].

    The numbers count `split.dataset.manifest.inputs`.
    """

    def sources(shard: int, local: _Ints) -> _Ints:
        name = split.entry.shards[shard].source
        found: _Ints = split._array(name)[local].astype(np.int64)
        if not 0 <= found[:, 0].min() <= found[:, 0].max() < len(split.dataset.manifest.inputs):
            raise _damaged(name, "names an input that there is not")
        return found

    inputs, positions = _columns(split, documents, sources)
    return inputs, positions


def records_of(split: Split, documents: _Ints) -> _Ints:
    """The record id of each of `documents`, int64 [k]."""
    _check(documents, split.documents, "document")
    found: _Ints = np.asarray(split.record_ids[documents], np.int64)
    return found


def find_record(dataset: Dataset, record: int, split: str | None = None) -> tuple[Split, int]:
    """The split and the document that the record of this id became.

    Looks in the split called `split`, or in all. Raises `UsageError` if it is not there, because it
    was rejected, stands in another split, or there are fewer records.
    """
    read = dataset.manifest.records.read
    if not 0 <= record < read:
        raise UsageError(
            f"there is no record {record}: {read:,} were read, numbered from 0", where="record"
        )
    for place in [dataset.split(split)] if split is not None else dataset.splits.values():
        ids = place.record_ids
        at = int(np.searchsorted(ids, record))  # ids increase within a split
        if at < len(ids) and int(ids[at]) == record:
            return place, at
    if split is not None:
        raise UsageError(
            f"record {record} is not in split {split}", where="record",
            remedy="Leave out the split to look in all of them.",
        )  # fmt: skip
    raise UsageError(
        f"record {record} is in no split", where="record",
        remedy="It was rejected: rejects.jsonl says why.",
    )  # fmt: skip


def _columns(
    split: Split, documents: _Ints, read: Callable[[int, _Ints], _Ints]
) -> tuple[_Ints, ...]:
    """The two columns that `read` finds for some documents of a shard, for any documents."""
    _check(documents, split.documents, "document")
    out = np.empty((len(documents), 2), np.int64)
    for shard, here, local in _by_shard(split._document_base, documents):
        out[here] = read(shard, local)
    return out[:, 0], out[:, 1]


def _by_shard(base: _Ints, numbers: _Ints) -> Iterator[tuple[int, npt.NDArray[np.bool_], _Ints]]:
    """(shard, which of `numbers` lie in it, where in it they lie); no shard is empty."""
    shards = np.searchsorted(base, numbers, "right") - 1
    for shard in np.unique(shards).tolist():
        here = shards == shard
        yield shard, here, numbers[here] - base[shard]


def _check(numbers: _Ints, count: int, noun: str) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise IndexError(f"a {noun} is outside 0:{count}")


def _damaged(name: str, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=name, code="E_OFFSETS",
        remedy="Restore this file, or build again with --overwrite.",
    )  # fmt: skip
