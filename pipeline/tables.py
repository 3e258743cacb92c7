"""Records from tables: Parquet files, and Hugging Face datasets on disk or on the hub.

Only the wanted columns are read, a few thousand rows at a time. A record is a row, its offset is
the row number. `datasets` and `pyarrow` are imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.inputs import HUB_PREFIX, Source, check_unchanged, input_error
from dataprep.pipeline.jsonl import key_bytes
from dataprep.pipeline.records import Batch, Position, Span

__all__ = [
    "TableShape",
    "hf_batches",
    "hf_files",
    "hf_rows",
    "parquet_batches",
    "parquet_row_groups",
]

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20

TableShape = list[tuple[int, int]]
"""Rows and bytes of each part that can be read by itself."""


class _Columns:
    """Takes the text and, if given, the split key out of Arrow record batches."""

    def __init__(self, field: str, key_field: str | None, name: str) -> None:
        self.field = field
        self.key_field = key_field if key_field != field else None
        self._keyed = key_field is not None
        self._name = name

    def wanted(self) -> list[str]:
        return [self.field] + ([self.key_field] if self.key_field else [])

    def tops(self, names: list[str]) -> list[str]:
        """The top-level columns that hold the wanted ones."""
        return sorted({self._steps(path, names)[0] for path in self.wanted()})

    def check(self, schema: Any) -> None:
        """Raise unless the columns are there and hold text (and a text or integer key)."""
        import pyarrow.types as kinds

        kind = self._type_of(schema, self.field)
        text = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
        if not any(test(kind) for test in text):
            raise input_error(
                f"the column {self.field!r} holds {kind}, not text", self._name,
                "Name a text column with --field.", "E_FIELD",
            )  # fmt: skip
        if self.key_field:
            kind = self._type_of(schema, self.key_field)
            if not (kinds.is_integer(kind) or any(test(kind) for test in text)):
                raise input_error(
                    f"the column {self.key_field!r} holds {kind}, neither text nor integers",
                    self._name, "Name another column with --split-key.", "E_FIELD",
                )  # fmt: skip

    def _type_of(self, schema: Any, path: str) -> Any:
        import pyarrow.types as kinds

        names: list[str] = list(schema.names)
        kind: Any = None
        for step in self._steps(path, names):
            if step not in names:
                raise input_error(
                    f"there is no column {path!r}; there are {', '.join(map(repr, names[:30]))}",
                    self._name, "Name one with --field (or --split-key).", "E_FIELD",
                )  # fmt: skip
            kind = schema.field(step).type if kind is None else kind.field(step).type
            names = (
                [kind.field(i).name for i in range(kind.num_fields)]
                if kinds.is_struct(kind)
                else []
            )
        return kind.value_type if kinds.is_dictionary(kind) else kind

    @staticmethod
    def _steps(path: str, names: list[str]) -> list[str]:
        """A column whose own name holds dots goes before nested ones."""
        return [path] if path in names else path.split(".")

    def batch(self, rows: Any, first_row: int, first_record: int) -> Batch:
        """The records of one Arrow record batch."""
        values = self._values(rows, self.field)
        keys = self._values(rows, self.key_field) if self.key_field else values
        batch = Batch(read=len(values), keys=[] if self._keyed else None)
        offsets, records = [], []
        for index, (text, key) in enumerate(zip(values, keys, strict=True)):
            at = Position(first_record + index, None, first_row + index)
            problem = _problem(text, key, self.field, self.key_field)
            if problem:
                batch.reject(at, text if isinstance(text, bytes) else None, *problem)
                continue
            batch.texts.append(text)
            offsets.append(at.offset)
            records.append(at.record)
            if batch.keys is not None:
                batch.keys.append(key_bytes(key))
        batch.offsets = np.array(offsets, np.uint64)
        batch.records = np.array(records, np.uint64)
        return batch

    def _values(self, rows: Any, path: str) -> list[Any]:
        import pyarrow.compute as pc

        first, *rest = self._steps(path, rows.schema.names)
        column = rows.column(first)
        for step in rest:
            column = pc.struct_field(column, step)
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
            return [_decoded(value) for value in column.cast("large_binary").to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _problem(text: Any, key: Any, field: str, key_field: str | None) -> tuple[str, str] | None:
    if text is None:
        return "not_a_string", f"the field {field!r} is null"
    if isinstance(text, bytes):
        return "invalid_utf8", f"the field {field!r} is not UTF-8"
    if not text:
        return "empty", f"the field {field!r} is empty"
    if key is None:
        return "bad_split_key", f"the field {key_field!r} is null"
    if isinstance(key, bytes):
        return "bad_split_key", f"the field {key_field!r} is not UTF-8"
    return None


# Parquet


def parquet_row_groups(source: Source) -> TableShape:
    """Rows and uncompressed bytes of each row group; reads only the footer."""
    with _parquet(source) as file:
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]


def parquet_batches(
    source: Source, span: Span, field: str, key_field: str | None, first_row: int
) -> Iterator[Batch]:
    """The records of the row groups of `span`, the first of which starts at `first_row`."""
    import pyarrow as pa

    columns = _Columns(field, key_field, source.name)
    check_unchanged(source)
    with _parquet(source) as file:
        columns.check(file.schema_arrow)
        groups = range(span.start, span.stop)
        total = sum(file.metadata.row_group(i).total_byte_size for i in groups)
        count = max(1, sum(file.metadata.row_group(i).num_rows for i in groups))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * count // max(1, total)))
        done = 0
        try:
            for part in file.iter_batches(rows, list(groups), columns.wanted()):
                batch = columns.batch(part, first_row + done, done)
                done += batch.read
                batch.consumed = int(total * batch.read / count)
                yield batch
        except (pa.ArrowInvalid, OSError) as error:
            raise _unreadable(source, error) from None
    check_unchanged(source)


def _parquet(source: Source) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source.path, memory_map=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Source, error: Exception) -> InputError:
    return input_error(
        f"not a readable Parquet file ({str(error).splitlines()[0]})", source.name,
        "Fetch or write the file again.", "E_PARQUET",
    )  # fmt: skip


# Hugging Face datasets


@lru_cache(maxsize=4)
def _hf_dataset(path: str, name: str, config: str | None, split: str | None) -> Any:
    """A `datasets.Dataset`: from `save_to_disk`, or from the hub (never running its code)."""
    import datasets

    datasets.disable_progress_bars()
    where = name
    try:
        with _silenced(datasets.logging):
            loaded = _load(path, config)
    except Exception as error:  # each builder of theirs has its own exceptions
        raise _hf_failure(where, error, path) from None
    return _one_split(loaded, where, split)


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
    reason = (str(cause).splitlines() or [type(cause).__name__])[0]
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


def hf_rows(source: Source, config: str | None, split: str | None) -> tuple[int, int]:
    """Rows, and bytes of the Arrow files under them."""
    dataset = _hf_dataset(source.path, source.name, config, split)
    size = sum(Path(file).stat().st_size for file in hf_files(source, config, split))
    return len(dataset), size


def hf_files(source: Source, config: str | None, split: str | None) -> list[str]:
    """The Arrow files of the dataset, in order."""
    dataset = _hf_dataset(source.path, source.name, config, split)
    return [os.fspath(entry["filename"]) for entry in dataset.cache_files]


def hf_batches(
    source: Source,
    span: Span,
    field: str,
    key_field: str | None,
    *,
    config: str | None,
    split: str | None,
) -> Iterator[Batch]:
    """The records of the rows of `span`."""
    dataset = _hf_dataset(source.path, source.name, config, split)
    columns = _Columns(field, key_field, source.name)
    columns.check(dataset.features.arrow_schema)
    rows = dataset.select_columns(columns.tops(dataset.column_names)).with_format("arrow")
    bytes_per_row = hf_rows(source, config, split)[1] / max(1, len(dataset))
    step = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, bytes_per_row))))
    for start in range(span.start, span.stop, step):
        stop = min(start + step, span.stop)
        part = rows[start:stop].combine_chunks()
        batch = columns.batch(part, start, start - span.start)
        batch.consumed = int(bytes_per_row * (stop - start))
        yield batch
