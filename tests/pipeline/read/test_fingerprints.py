"""Fingerprints: what docs/format.md says they are, however the bytes arrive."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.read import fingerprints as fingerprint
from dataprep.pipeline.read.fingerprints import (
    ChunkHasher,
    HashingReader,
    combine,
    fingerprint_files,
)
from tests.support import examples

CHUNK = 8 << 20


def reference(*files: bytes, chunk: int = CHUNK) -> str:
    """XXH3-128 over the 16-byte big-endian XXH3-128 digests of each chunk, file after file."""
    digests = b"".join(
        xxhash.xxh3_128_intdigest(data[at : at + chunk]).to_bytes(16, "big")
        for data in files
        for at in range(0, len(data), chunk)
    )
    return f"xxh3-128:{xxhash.xxh3_128_intdigest(digests):032x}"


@examples(200)
@given(st.binary(max_size=100), st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20))
def test_pieces_of_any_size(data: bytes, sizes: list[int], chunk: int) -> None:
    """The digests do not depend on how the stream was cut into updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "CHUNK_BYTES", chunk)
        hasher, rest = ChunkHasher(), data
        for size in sizes:
            hasher.update(rest[:size])
            rest = rest[size:]
        hasher.update(memoryview(rest))
        assert combine(hasher.digests()) == reference(data, chunk=chunk)
        assert combine(hasher.digests()) == reference(data, chunk=chunk)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_real_sizes(tmp_path: Path, size: int) -> None:
    """Files around whole chunks have the fingerprint of the format's page."""
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    (tmp_path / "a").write_bytes(data)
    assert fingerprint_files([str(tmp_path / "a")]) == reference(data)
    stream = HashingReader(io.BytesIO(data))
    stream.read(3)
    assert combine(stream.drain()) == reference(data)
    assert stream.consumed == size


def test_several_files(tmp_path: Path) -> None:
    """A dataset of several files is their chunks, one file after the other, in order."""
    for name, data in (("a", b"x" * 100), ("b", b""), ("c", b"y")):
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in "abc"]
    assert fingerprint_files(paths) == reference(b"x" * 100, b"", b"y")
    assert fingerprint_files(paths) != fingerprint_files(paths[::-1])
    assert fingerprint_files([]) == combine([]) == reference()


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is gone is an error of the machine."""
    with pytest.raises(StorageError):
        fingerprint_files([str(tmp_path / "gone")])


def _append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def _rewrite(path: Path) -> None:
    path.write_bytes(b"B" * path.stat().st_size)


def _replace(path: Path) -> None:
    """Another file of this size and time under the name, as `cp -p` and `mv` leave it."""
    found, other = path.stat(), path.with_name("other")
    other.write_bytes(b"B" * found.st_size)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


def _cut(path: Path) -> None:
    os.truncate(path, 10)


CHANGES: list[Callable[[Path], None]] = [_append, _rewrite, _replace, _cut, Path.unlink]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """Once its first bytes were read: grown, rewritten, replaced, cut or gone, it is named."""
    path = tmp_path / "table.parquet"
    path.write_bytes(b"A" * (3 << 20))
    os.utime(path, ns=(1, 1))  # so that a write is seen, however coarse the clock of the disk is
    real, waiting = ChunkHasher.update, [change]

    def update(hasher: ChunkHasher, data: bytes | memoryview) -> None:
        real(hasher, data)
        for one in waiting:
            one(path)
        waiting.clear()

    monkeypatch.setattr(ChunkHasher, "update", update)
    with pytest.raises(InputError) as caught:
        fingerprint_files([str(path)])
    assert (caught.value.code, caught.value.where) == ("E_CHANGED", str(path))
