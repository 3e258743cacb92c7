"""A mistake in the code that converts rows is a bug, and no fault of the file that is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.chat.records.collect import Collector
from dataprep.pipeline.embeddings import arrow_rows
from dataprep.pipeline.pairs import read, vectors
from dataprep.pipeline.read.arrow_text import TextColumns
from dataprep.pipeline.read.sources import Source
from tests.fuzz import targets

TABLE = {
    "text": ["a", "b"], "vector": [[1.0], [2.0]], "question": ["q", "r"], "source": ["s", "t"],
    "messages": [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 2,
}  # fmt: skip


def mistaken(*_: object) -> None:
    raise TypeError("a mistake of ours")


def damaged(*_: object) -> None:
    raise pa.ArrowInvalid("a damaged value")


def written(kind: str, folder: Path) -> Path:
    path = folder / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(TABLE), path)
    elif kind == "hf":
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict(TABLE).save_to_disk(str(path))
    else:
        table = pa.table(TABLE).select(["vector"])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as to:
            to.write_table(table)
    return path


def source_of(path: Path) -> Source:
    found = path.stat()
    return Source(
        path=str(path), name=path.name, format="parquet",
        size=found.st_size, modified=found.st_mtime_ns,
    )  # fmt: skip


def read_pairs(path: Path) -> None:
    list(read.read_rows(source_of(path), {}))


def read_vectors(path: Path) -> None:
    list(vectors._parquet_batches(source_of(path), ["text", "vector"]))


@pytest.mark.parametrize(
    ("kind", "reader", "owner", "name"),
    [
        ("parquet", targets._spans, TextColumns, "_batch"),
        ("hf", targets._spans, TextColumns, "_batch"),
        ("parquet", targets._chat, Collector, "add"),
        ("parquet", targets._rows, arrow_rows, "arrow_rows"),
        ("hf", targets._rows, arrow_rows, "arrow_rows"),
        ("arrow", targets._rows, arrow_rows, "arrow_rows"),
        ("parquet", read_pairs, read.TableRows, "add"),
        ("parquet", read_vectors, vectors, "_vectors"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_mistake_of_ours(
    kind: str, reader: Callable[[Path], None], owner: object, name: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It comes out as it is; what Arrow raises about the same values is an error of the file."""
    path = written(kind, tmp_path)
    reader(path)
    monkeypatch.setattr(owner, name, mistaken)
    with pytest.raises(TypeError, match="ours"):
        reader(path)
    if name in ("_batch", "arrow_rows", "_vectors"):
        monkeypatch.setattr(owner, name, damaged)
        with pytest.raises(InputError, match="a damaged value"):
            reader(path)
