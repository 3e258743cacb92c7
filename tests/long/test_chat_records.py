"""Hostile chat data, at the size that makes it hostile: bounded memory and time."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from dataprep.pipeline.chat.records.collect import Collector
from dataprep.pipeline.chat.records.record_shapes import Shaper
from dataprep.pipeline.read.json_array import elements_of
from dataprep.pipeline.read.line_stream import Block
from dataprep.pipeline.read.records import MAX_RECORD_BYTES

pytestmark = pytest.mark.long

_PART = 1 << 20


@pytest.mark.parametrize(
    "make",
    [lambda: b'"' + b"\\\\" * _PART * 50 + b'"', lambda: b'"' + b'\\"' * _PART * 50 + b'"',
     lambda: b" " * _PART * 100 + b"1", lambda: b"[" * _PART * 50 + b"]" * _PART * 50],
    ids=["backslashes", "quotes", "blanks", "brackets"],
)  # fmt: skip
def test_elements_of_any_size(make: Callable[[], bytes]) -> None:
    """An element that is too long is passed over; the one after it is found."""
    data = b"[" + make() + b",{}]"
    parts = (data[at : at + _PART] for at in range(0, len(data), _PART))
    tracemalloc.start()
    started = time.process_time()
    found = [
        (one.too_long, one.data[one.starts[-1] :][:9])
        for one in elements_of(parts, "x")
        if one.starts
    ]
    took = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[-1][1] in (b"{}", b"1,{}")
    assert peak < 4 * MAX_RECORD_BYTES
    assert took < 60


@pytest.mark.parametrize(
    "make",
    [lambda: b'{"messages":"' + b"[" * 30 * _PART + b'"}',
     lambda: b'{"messages":"[\\"' + b'\\\\\\":' * 4 * _PART + b'"}',
     lambda: b'{"' + b"x" * 30 * _PART + b'":1}',
     lambda: b'{"a":' + b'"' + b' :' * 10 * _PART + b'"}',
     lambda: b'{"messages":[' + b'{"role":"user"},' * _PART + b"{}]}"],
    ids=["spelled brackets", "escaped quotes", "a name", "colons", "turns that say nothing"],
)  # fmt: skip
def test_lines_of_any_kind(make: Callable[[], bytes]) -> None:
    """A line of megabytes is refused, in a few seconds and a few times its size of memory."""
    line = make()
    data = b'{"prompt":"a","completion":"b"}\n' + line + b"\n"
    tracemalloc.start()
    started = time.process_time()
    batch = Collector(Shaper(), None).lines(Block(offset=0, data=data), 0, 0)
    took = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(batch.records), len(batch.rejects)) == (1, 1)
    assert peak < 40 * len(line)
    assert took < 60
    assert len(batch.rejects[0].detail) < 2000
