"""The plan: units cover every input once, and depend on sizes alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.pipeline.plan import plan as planning
from dataprep.pipeline.plan.plan import Plan, Unit, load_plan, make_units, plan_key
from dataprep.pipeline.plan.unit_size import unit_bytes
from dataprep.pipeline.read.arrow_text import text_batches
from dataprep.pipeline.read.fingerprints import CHUNK_BYTES
from dataprep.pipeline.read.sources import Source
from dataprep.pipeline.tokens.plan import TokenPayload
from tests.scenes.sources import read_options, source_of
from tests.support import examples

GiB = 1 << 30
TB = 10**12


def file(size: int, kind: str = "jsonl", compression: str | None = None) -> Source:
    return Source(path="/x", name="x", format=kind, compression=compression, size=size)


def check_cover(sources: tuple[Source, ...], units: tuple[Unit, ...]) -> None:
    """Spans, unit after unit, run through each input from its start to its end, in order."""
    assert [unit.number for unit in units] == list(range(len(units)))
    spans = [span for unit in units for span in unit.spans]
    reached = [0] * len(sources)
    for span in spans:
        assert span.start == reached[span.source]
        reached[span.source] = span.stop
    assert reached == [source.size for source in sources]
    assert sorted(span.source for span in spans) == [span.source for span in spans]
    assert {span.source for span in spans} == set(range(len(sources)))
    assert sum(unit.size for unit in units) == sum(source.size for source in sources)


some_files = st.lists(
    st.builds(
        file,
        st.one_of(st.integers(0, 100), st.integers(0, 40 << 20), st.integers(0, 8 * GiB)),
        st.sampled_from(["jsonl", "text"]),
        st.sampled_from([None, None, "gzip"]),
    ),
    max_size=12,
)


@examples(150)
@given(some_files, st.sampled_from(["file", "line", "block"]))
@example([file(0), file(0, "text")], "line")
@example([file(CHUNK_BYTES), file(CHUNK_BYTES + 1), file(1)], "line")
def test_units_cover_everything_once(files: list[Source], document: str) -> None:
    """No byte is in two units or in none; whole files stay whole; cuts are at whole chunks."""
    sources = tuple(files)
    units = make_units(sources, read_options(document=document))
    check_cover(sources, units)
    limit = unit_bytes(sum(source.size for source in sources))
    for unit in units:
        assert unit.size <= limit or len(unit.spans) == 1
        for span in unit.spans:
            source = sources[span.source]
            assert span.start % CHUNK_BYTES == 0
            whole = source.compression or (source.format == "text" and document == "file")
            assert not whole or (span.start, span.stop) == (0, source.size)


@examples(50)
@given(some_files)
def test_only_sizes_matter(files: list[Source]) -> None:
    """Names, places and times of inputs change no unit."""
    other = tuple(
        Source(path=f"/other/{number}", name=f"{number}", format=source.format,
               compression=source.compression, size=source.size, modified=number)
        for number, source in enumerate(files)
    )  # fmt: skip
    read = read_options(document="line")
    assert make_units(tuple(files), read) == make_units(other, read)


@given(st.integers(0, 50 * TB), st.integers(0, 50 * TB))
@example(256 << 20, (256 << 20) - 1)
def test_unit_size_grows_with_the_input(one: int, other: int) -> None:
    """Unit sizes never fall as inputs grow, are whole chunks, and keep units near 4,096."""
    one, other = sorted((one, other))
    assert unit_bytes(one) <= unit_bytes(other)
    size = unit_bytes(other)
    assert size % CHUNK_BYTES == 0
    assert size & (size - 1) == 0
    assert -(-other // size) <= 4096


@pytest.mark.parametrize("file_bytes", [10 * TB, 100 * 10**9, 5 * 10**9, 10**9, 2 * 10**8])
def test_ten_terabytes(file_bytes: int) -> None:
    """10 TB in files of any usual size make fewer than 6,000 units, quickly."""
    sources = tuple([file(file_bytes)] * (10 * TB // file_bytes))
    units = make_units(sources, read_options())
    assert len(units) < 6000
    check_cover(sources, units)


def test_many_tiny_files_share_units() -> None:
    """A hundred thousand small files are a few dozen units."""
    sources = tuple([file(2000)] * 100_000)
    units = make_units(sources, read_options())
    assert len(units) < 40
    assert max(len(unit.spans) for unit in units) <= 4096


def test_small_inputs_give_two_workers_something() -> None:
    """32 MB are not one unit."""
    assert len(make_units((file(32 << 20),), read_options())) == 4


# Tables


def parquet(path: Path, rows: list[int]) -> Source:
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for number, count in enumerate(rows):
            texts = [f"row {number} {row} " + "x" * 40 for row in range(count)]
            writer.write_table(pa.table({"text": texts}), row_group_size=max(count, 1))
    return source_of(path, "parquet")


@pytest.mark.parametrize("limit", [1, 3000, 10**9])
def test_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Row groups are taken whole and in order, and rows are numbered from the first of the file."""
    monkeypatch.setattr(planning, "unit_bytes", lambda total: limit)
    rows = [10, 1, 200, 50, 3]
    sources = (parquet(tmp_path / "a", rows), parquet(tmp_path / "b", [5]))
    units = make_units(sources, read_options())
    spans = [span for unit in units for span in unit.spans]
    found = []
    for span in spans:
        source = sources[span.source]
        for batch in text_batches(source, span, "text", None):
            found += [(span.source, offset) for offset in batch.offsets]
    assert found == [(0, row) for row in range(sum(rows))] + [(1, row) for row in range(5)]
    stored = sum(source.size for source in sources)
    assert stored - len(spans) <= sum(unit.size for unit in units) <= stored


@pytest.mark.parametrize(("rows", "size"), [(0, 0), (1, 10), (1000, 10**9), (10**9, 10), (7, 0)])
def test_rows(monkeypatch: pytest.MonkeyPatch, rows: int, size: int) -> None:
    """Ranges of rows cover a dataset once, in order."""
    monkeypatch.setattr(planning, "hf_rows", lambda source, config, split: (rows, size))
    units = make_units((Source(path="d", name="d", format="hf"),), read_options())
    spans = [(span.start, span.stop) for unit in units for span in unit.spans]
    assert spans[0][0] == 0
    assert spans[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(spans))


# The file


def test_a_damaged_plan(tmp_path: Path) -> None:
    """A plan that cannot be read says what to delete."""
    for data in (b"", b"{}", b"[1]", b"\xff", b'{"key": "\xf0"}', b'{"a": ' + b"[" * 9999):
        (tmp_path / "plan.json").write_bytes(data)
        with pytest.raises(IntegrityError, match="not a readable plan"):
            load_plan(tmp_path / "plan.json", msgspec.json.Decoder(Plan[TokenPayload]))


def test_keys_stand_for_everything() -> None:
    """Any change gives another key; the order of mappings does not."""
    source = file(5)
    assert plan_key([source, {"a": 1, "b": 2}]) == plan_key([source, {"b": 2, "a": 1}])
    assert plan_key([source]) != plan_key([file(6)])
    assert plan_key([1]) != plan_key(["1"])
