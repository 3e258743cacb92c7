"""Find the input and position of a document, and the documents that were made from a record.

The functions search memory-mapped arrays, so only a few pages are read.
"""

from __future__ import annotations

import numpy as np

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.read.dataset import Dataset, Split

from ..sample_numbers import Ints

__all__ = ["find_record", "records_of", "sources_of"]


def sources_of(split: Split, documents: Ints) -> tuple[Ints, Ints]:
    """Return the input number and the position of each document, as two int64 arrays [k].

    An input number is an index into `split.dataset.inputs`. The position is a byte offset in a
    file, or a row number in a table. The cost is about 10 microseconds for each shard that contains
    a document. Raise `IndexError` for a document that does not exist, and `IntegrityError` if a
    stored input number does not exist.
    """
    _check(split, documents)
    out = np.empty((len(documents), 2), np.int64)
    base, array = split.document_base, split.dataset.files.array
    shards = np.searchsorted(base, documents, "right") - 1
    for shard in np.unique(shards).tolist():
        here = shards == shard
        name = split.entry.shards[shard].source
        out[here] = found = array(name)[documents[here] - base[shard]]
        if int(found[:, 0].max()) >= len(split.dataset.inputs):
            raise IntegrityError(
                "names an input that there is not", where=name, code="E_SOURCE",
                remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip
    return out[:, 0], out[:, 1]


def records_of(split: Split, documents: Ints) -> Ints:
    """Return the number of the record from which each of `documents` was made, as int64 [k].

    Raise `IndexError` for a document that does not exist.
    """
    _check(split, documents)
    found: Ints = np.asarray(split.record_ids[documents], np.int64)
    return found


def find_record(dataset: Dataset, record: int, split: str | None = None) -> tuple[Split, range]:
    """Return the split and the range of documents that were made from record number `record`.

    Most records have one document. Preferences, and conversations that were cut, have several
    consecutive documents. If `split` is not None, only the split of that name is searched. Raise
    `UsageError` if there is no such record, if it was rejected, or if it is in a different split.
    """
    read = dataset.manifest.records.read
    if not 0 <= record < read:
        raise UsageError(
            f"there is no record {record}: {read:,} were read, numbered from 0", where="record"
        )
    for one in [dataset.split(split)] if split is not None else dataset.splits.values():
        ids = one.record_ids
        first, stop = np.searchsorted(ids, [record, record + 1]).tolist()  # ids never decrease
        if first < stop:
            return one, range(first, stop)
    if split is not None:
        raise UsageError(
            f"record {record} is not in split {split}", where="record",
            remedy="Leave out the split to look in all of them.",
        )  # fmt: skip
    raise UsageError(
        f"record {record} is in no split", where="record",
        remedy="It was rejected, and rejects.jsonl says why, or removed later.",
    )  # fmt: skip


def _check(split: Split, documents: Ints) -> None:
    if documents.dtype == bool:
        raise IndexError("documents are numbers: np.flatnonzero gives those of a mask")
    if documents.size and not 0 <= int(documents.min()) <= int(documents.max()) < split.documents:
        raise IndexError(f"a document is outside 0:{split.documents}")
