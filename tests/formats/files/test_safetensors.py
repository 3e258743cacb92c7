"""Headers of .safetensors files: what is written is read again, and others are refused."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from dataprep.formats.files import safetensors
from dataprep.formats.files.safetensors import TensorPlace, encode_header, read_header

PLACES = {"a": TensorPlace("F32", (2, 3), (0, 24)), "b": TensorPlace("BF16", (1,), (24, 26))}


def read(path: Path, data: bytes) -> safetensors.FileHeader:
    path.write_bytes(data)
    with io.FileIO(path) as stream:
        return read_header(stream, len(data))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Metadata and places come back, and the numbers begin at a multiple of eight."""
    data = encode_header({"key": "é"}, PLACES)
    found = read(tmp_path / "a", data + bytes(26))
    assert found == ({"key": "é"}, PLACES, len(data))
    assert len(data) % 8 == 0


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "has 0 bytes"),
        (bytes(8), "has 0 bytes"),
        (struct.pack("<Q", 1 << 40) + b"{}", "1,099,511,627,776 bytes, the file 10"),
        (struct.pack("<Q", 2) + b"[]", "not that of safetensors"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "not that of safetensors"),
        (struct.pack("<Q", 19) + b'{"__metadata__": 1}', "not that of safetensors"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    """Before memory is taken for a header that the file cannot hold."""
    with pytest.raises(ValueError, match=problem):
        read(tmp_path / "a", data)


def test_a_header_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not written."""
    monkeypatch.setattr(safetensors, "MAX_HEADER_BYTES", 100)
    with pytest.raises(ValueError, match="safetensors allows 100"):
        encode_header({"key": "x" * 100}, {})
