"""Records from tables: Parquet files, and Hugging Face datasets on disk or on the hub.

Only the wanted columns are read, a few thousand rows at a time, and turned into texts a few
megabytes at a time: rows that share one long string in a dictionary are small in the file only. A
record is a row, its offset is the row number. `datasets` is imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from dataprep.formats.errors import InputError, StorageError
from dataprep.formats.files.decoding import ErrorTypes, decoding, each_decoded, reason_of

from ..execute.launch import available_cores
from .arrow_text import TEXT_BYTES, Columns
from .child_process import apart, streamed_apart
from .fingerprints import fingerprint_files
from .parquet import arrow_errors, decoding_parquet, group_batches, open_parquet
from .records import Batch, Span
from .sources import (
    HUB_PREFIX,
    Source,
    changed_error,
    check_unchanged,
    input_error,
    reading,
)

__all__ = [
    "STREAMS",
    "decoding_hf",
    "fingerprint_source",
    "fingerprints",
    "hf_batches",
    "hf_dataset",
    "hf_files",
    "hf_rows",
    "hf_source",
    "parquet_batches",
]

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20
_READ_ROWS = 256

STREAMS = ("jsonl", "json", "text")
"""Formats that are fingerprinted as they are read."""


def fingerprints(
    sources: Sequence[Source], config: str | None, split: str | None
) -> dict[int, str]:
    """Fingerprints, by number, of those of `sources` that are not read as byte streams."""
    found = {n: source for n, source in enumerate(sources) if source.format not in STREAMS}
    take = partial(fingerprint_source, config=config, split=split)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(found, pool.map(take, found.values()), strict=True))


def fingerprint_source(source: Source, config: str | None, split: str | None) -> str:
    """The fingerprint of the files of `source`, which are the planned ones before and after."""
    if source.format == "hf":
        found = fingerprint_files(hf_files(source, config, split))
        hf_files(source, config, split)
        return found
    check_unchanged(source)
    found = fingerprint_files([source.path])
    check_unchanged(source)
    return found


# Parquet


@streamed_apart
def parquet_batches(
    source: Source, span: Span, field: str, key_field: str | None, first_row: int
) -> Iterator[Batch]:
    """The records of the row groups of `span`, the first of which starts at `first_row`."""
    columns = Columns(field, key_field, source.name)
    check_unchanged(source)
    read, converted = (partial(decoding_parquet, source, of) for of in (Exception, arrow_errors()))
    with open_parquet(source) as file, reading(source.path):
        groups = range(span.start, span.stop)
        with read():  # the footer
            columns.check(file.schema_arrow)
            count = sum(file.metadata.row_group(i).num_rows for i in groups)
            stored = _stored_bytes(source, file, groups)
        done = 0
        for rows in each_decoded(_read(source, file, groups, columns), read):
            for batch in each_decoded(columns.batches(rows, first_row + done, done), converted):
                before, done = done, done + batch.read
                batch.consumed = stored * done // count - stored * before // count
                yield batch
                del batch  # not kept while the next is made
    check_unchanged(source)


def _stored_bytes(source: Source, file: Any, groups: range) -> int:
    """The part of the file's size that `groups` are, as the plan counts it."""
    every = [
        file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)
    ]
    return int(source.size * sum(every[i] for i in groups) // (sum(every) or 1))


def _read(source: Source, file: Any, groups: range, columns: Columns) -> Iterator[Any]:
    """Arrow tables of at most `_BATCH_ROWS` rows, or about `_BATCH_BYTES`."""
    import pyarrow as pa

    for group in groups:
        waiting: list[Any] = []
        size = _rows_at_once(source, file, group, columns)
        for part in group_batches(source, file, group, columns.wanted(), size):
            waiting.append(part)
            rows = sum(one.num_rows for one in waiting)
            if rows >= _BATCH_ROWS or sum(one.nbytes for one in waiting) >= _BATCH_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting = []
        if waiting:
            yield pa.Table.from_batches(waiting)


def _rows_at_once(source: Source, file: Any, group: int, columns: Columns) -> int:
    """How many rows to decode together: by their average, and by the longest text in a dictionary.

    A dictionary says how long its texts are, and not how often they stand: each row may be one.
    """
    described = file.metadata.row_group(group)
    average: int = max(1, described.total_byte_size // max(1, described.num_rows))
    longest = max(average, _longest_in_dictionaries(source, file.metadata, group, columns))
    return max(1, min(_READ_ROWS, _BATCH_ROWS, _BATCH_BYTES // average, TEXT_BYTES // longest))


def _longest_in_dictionaries(source: Source, metadata: Any, group: int, columns: Columns) -> int:
    """Bytes of the longest text in the dictionary of a wanted column; 0 without dictionaries."""
    described = metadata.row_group(group)
    paths = [
        chunk.path_in_schema
        for chunk in map(described.column, range(described.num_columns))
        if chunk.path_in_schema in columns.wanted() and _in_dictionary(chunk)
    ]
    if not paths or not described.num_rows:
        return 0
    with open_parquet(source, metadata=metadata, read_dictionary=paths) as file:
        row = next(group_batches(source, file, group, paths, 1))
        return max(columns.longest(row, path) for path in paths)


def _in_dictionary(chunk: Any) -> bool:
    return chunk.physical_type == "BYTE_ARRAY" and any(
        "DICTIONARY" in encoding for encoding in chunk.encodings
    )


# Hugging Face datasets


_Key = tuple[Source, str | None, str | None]
_opened: dict[_Key, Any] = {}
_KEPT = 4


@apart
def hf_source(source: Source, config: str | None, split: str | None) -> Source:
    """`source` with the size of its Arrow files, and a number for their names, sizes and times.

    The dataset is opened anew: what an earlier call read may have been replaced.
    """
    dataset = _open(source, config, split)
    found = _stamped(source, dataset)
    _keep((found, config, split), dataset)
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


def _keep(key: _Key, dataset: Any) -> None:
    while len(_opened) >= _KEPT:
        _opened.pop(next(iter(_opened)))
    _opened[key] = dataset


def hf_dataset(source: Source, config: str | None, split: str | None) -> Any:
    """The `datasets.Dataset` that `hf_source` described; `InputError` if it is another by now."""
    key = (source, config, split)
    if key not in _opened:
        dataset = _open(source, config, split)
        if _stamped(source, dataset) != source:
            raise changed_error(source)
        _keep(key, dataset)
    return _opened[key]


def _open(source: Source, config: str | None, split: str | None) -> Any:
    """A `datasets.Dataset`: from `save_to_disk`, or from the hub (never running its code)."""
    import datasets

    datasets.disable_progress_bars()
    try:
        with _silenced(datasets.logging):
            loaded = _load(source.path, config)
    except MemoryError:
        raise
    except Exception as error:  # each builder of theirs has its own exceptions
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
    """What goes wrong is said once, by us."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _hf_failure(where: str, error: Exception, path: str) -> InputError | StorageError:
    cause = error.__cause__ or error  # theirs say "an error occurred"
    reason = reason_of(cause)
    if isinstance(error, IndexError):  # what they say of a saved dataset without a single file
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
    """Rows, and bytes of the Arrow files under them."""
    return len(hf_dataset(source, config, split)), source.size


@apart
def hf_files(source: Source, config: str | None, split: str | None) -> list[str]:
    """The Arrow files of the dataset, in order; raises `InputError` if they are others by now."""
    dataset = hf_dataset(source, config, split)
    if _stamped(source, dataset) != source:
        raise changed_error(source)
    return _arrow_files(dataset)


@streamed_apart
def hf_batches(
    source: Source,
    span: Span,
    field: str,
    key_field: str | None,
    *,
    config: str | None,
    split: str | None,
) -> Iterator[Batch]:
    """The records of the rows of `span`; `source` is from `hf_source`."""
    dataset = hf_dataset(source, config, split)
    columns = Columns(field, key_field, source.name)
    columns.check(dataset.features.arrow_schema)
    rows = dataset.select_columns(columns.tops(dataset.column_names)).with_format("arrow")
    count = max(1, len(dataset))
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * count // max(1, source.size)))
    for start in range(span.start, span.stop, step):
        with decoding_hf(source):
            part = rows[start : min(start + step, span.stop)]
        done = start
        for batch in each_decoded(
            columns.batches(part, start, start - span.start),
            partial(decoding_hf, source, arrow_errors()),
        ):
            before, done = done, done + batch.read
            batch.consumed = source.size * done // count - source.size * before // count
            yield batch
    if _stamped(source, dataset) != source:
        raise changed_error(source)


def decoding_hf(
    source: Source, of: ErrorTypes = Exception
) -> contextlib.AbstractContextManager[None]:
    """Name `source` in what is raised while rows of it are read; `of` as in `decoding`."""
    return decoding(
        source.name, "Hugging Face dataset", code="E_HF",
        remedy="Fetch or save the dataset again.", of=of,
    )  # fmt: skip
