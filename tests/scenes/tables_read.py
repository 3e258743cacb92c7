"""Tables written and read for tests, and what came of it as lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dataprep.pipeline.read.arrow_text import text_batches
from dataprep.pipeline.read.parquet import parquet_row_groups
from dataprep.pipeline.read.records import Batch, Span
from dataprep.pipeline.read.sources import Source
from tests.scenes.sources import source_of

__all__ = ["offsets_of", "rejects_of", "rows_of", "texts_of", "written"]


def written(path: Path, table: Any, **options: Any) -> Source:
    pq.write_table(table, path, **options)
    return source_of(path, "parquet")


def rows_of(
    source: Source, field: str = "text", key: str | None = None, groups: tuple[int, int] = (0, -1)
) -> list[Batch]:
    shape = parquet_row_groups(source)
    start, stop = groups[0], groups[1] if groups[1] >= 0 else len(shape)
    return list(text_batches(source, Span(0, start, stop), field, key))


def texts_of(batches: list[Batch]) -> list[str]:
    return [text for batch in batches for text in batch.texts]


def offsets_of(batches: list[Batch]) -> list[int]:
    return [offset for batch in batches for offset in np.asarray(batch.offsets).tolist()]


def rejects_of(batches: list[Batch]) -> list[tuple[str, int, int]]:
    return [(r.reason, r.record, r.offset) for batch in batches for r in batch.rejects]
