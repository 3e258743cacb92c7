"""Fingerprints of inputs, by which changed data is detected.

An input is hashed in chunks of 8 MiB with XXH3-128. Its fingerprint is the XXH3-128 hash of the
digests of all chunks. Text and JSON files are hashed while a build reads them. All other files are
read once more to be hashed.

XXH3 runs near memory speed (30 GB/s against 1.8 GB/s for SHA-256), so a fingerprint costs little
compared with tokenizing. It detects changes, but does not protect against an attacker who
constructs two inputs with the same fingerprint. https://github.com/Cyan4973/xxHash
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO

import xxhash

from dataprep.formats.cores import available_cores
from dataprep.formats.errors import InputError
from dataprep.formats.storage import storage_errors

from .huggingface import hf_files
from .sources import Source, check_unchanged

__all__ = [
    "CHUNK_BYTES",
    "STREAMS",
    "ChunkHasher",
    "HashingReader",
    "chunk_digests",
    "combine",
    "fingerprint_files",
    "fingerprint_source",
    "table_fingerprints",
]

CHUNK_BYTES = 8 << 20
_READ_BYTES = 1 << 20

STREAMS = ("jsonl", "json", "text")
"""Formats that are read as byte streams, and hashed meanwhile."""


def table_fingerprints(
    sources: Sequence[Source], config: str | None, split: str | None
) -> dict[int, str]:
    """Return a mapping from the index of each table in `sources` to the table's fingerprint.

    Inputs whose format is in `STREAMS` are left out, because they are hashed while they are read.
    The arguments `config` and `split` select a part of a Hugging Face dataset.
    """
    found = {n: source for n, source in enumerate(sources) if source.format not in STREAMS}
    take = partial(fingerprint_source, config=config, split=split)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(found, pool.map(take, found.values()), strict=True))


def fingerprint_source(source: Source, config: str | None, split: str | None) -> str:
    """Return the fingerprint of the files of `source`.

    The arguments `config` and `split` select a part of a Hugging Face dataset. Raise `InputError`
    if the files have changed since the build was planned.
    """
    if source.format == "hf":
        found = fingerprint_files(hf_files(source, config, split))
        hf_files(source, config, split)
        return found
    check_unchanged(source)
    found = fingerprint_files([source.path])
    check_unchanged(source)
    return found


class ChunkHasher:
    """Hasher that makes a digest of each chunk of `CHUNK_BYTES` bytes in a byte stream.

    The stream must start at a multiple of `CHUNK_BYTES` in its file.
    """

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._current = xxhash.xxh3_128()
        self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        """Hash `data`, which must continue the data of the previous call."""
        view = memoryview(data)
        while view:
            part = view[: CHUNK_BYTES - self._filled]
            self._current.update(part)
            self._filled += len(part)
            if self._filled == CHUNK_BYTES:
                self._close()
            view = view[len(part) :]

    def digests(self) -> list[str]:
        """Return the hex digests of all chunks, in order. Do not call `update` afterwards."""
        if self._filled:
            self._close()
        return self._digests

    def _close(self) -> None:
        self._digests.append(self._current.hexdigest())
        self._current.reset()
        self._filled = 0


def combine(digests: Iterable[str]) -> str:
    """Return the fingerprint of a file, given the hex digests of its chunks in order.

    >>> combine([])
    'xxh3-128:99aa06d3014798d86001c324468d497f'
    """
    whole = xxhash.xxh3_128()
    for digest in digests:
        whole.update(bytes.fromhex(digest))
    return f"xxh3-128:{whole.hexdigest()}"


def fingerprint_files(paths: Iterable[str]) -> str:
    """Return the fingerprint of an input that consists of the files `paths`, which are all read.

    Raise `InputError` if a file is changed or replaced while it is read.
    """
    return combine(digest for path in paths for digest in _file_digests(path))


def chunk_digests(path: str, first: int, last: int) -> list[str]:
    """Return the hex digests of the chunks `first` (inclusive) to `last` (exclusive) of a file."""
    hasher, left = ChunkHasher(), (last - first) * CHUNK_BYTES
    with storage_errors(path), Path(path).open("rb", buffering=0) as stream:
        stream.seek(first * CHUNK_BYTES)
        while left and (data := stream.read(min(_READ_BYTES, left))):
            hasher.update(data)
            left -= len(data)
    return hasher.digests()


def _file_digests(path: str) -> list[str]:
    hasher, size = ChunkHasher(), 0
    with storage_errors(path), Path(path).open("rb", buffering=0) as stream:
        before = os.fstat(stream.fileno())
        while data := stream.read(_READ_BYTES):
            hasher.update(data)
            size += len(data)
        # While the file is open, no other file can have its inode: a replaced one is noticed.
        after = [os.fstat(stream.fileno()), _stat_or_none(path)]
    states = {_state(before), *map(_state, after)}
    if len(states) > 1 or size != before.st_size:
        raise InputError(
            "the file changed while its fingerprint was taken", where=path, code="E_CHANGED",
            remedy="Leave inputs alone during a build, then run the command again.",
        )  # fmt: skip
    return hasher.digests()


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _state(found: os.stat_result | None) -> tuple[int, int, int, int] | None:
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class HashingReader:
    """Binary stream that hashes all bytes that are read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.hasher = ChunkHasher()
        self.consumed = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes of the underlying stream (by default, all), and hash them."""
        data = self._stream.read(size)
        self.hasher.update(data)
        self.consumed += len(data)
        return data

    def drain(self) -> list[str]:
        """Read the rest of the stream, and return the hex digests of all its chunks."""
        while self.read(_READ_BYTES):
            pass
        return self.hasher.digests()

    def readable(self) -> bool:
        """Return True; Arrow requires this method."""
        return True

    def close(self) -> None:
        """Close the underlying stream."""
        self.closed = True
        self._stream.close()
