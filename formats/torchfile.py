"""int64 vectors as the `.pt` files that torch.load reads, without importing torch.

torch takes over a second to import, and its loader runs a pickle. The archive that it writes for a
vector is small and fixed, so this module writes exactly that archive (equal input, equal bytes),
and reads it back by comparing the pickle byte for byte with the only one it would have written:
nothing in the file is ever executed. `torch.load(path, weights_only=True, mmap=True)` opens it.

Format: https://github.com/pytorch/pytorch/blob/main/docs/source/notes/serialization.rst
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IntegrityError

__all__ = ["open_index", "write_index"]

_ALIGN = 64
_PREFIX = "archive"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_DATA_MEMBER = f"{_PREFIX}/data/0"
_ZIP64_EXTRA = 20  # bytes of the extra field that zipfile adds for 64-bit sizes
_PAD_FIELD = 0x4246  # "FB", the extra field that torch itself pads with


def write_index(stream: BinaryIO, chunks: Iterable[npt.NDArray[np.int64]], count: int) -> None:
    """Write the `count` numbers of `chunks` to `stream`, front to back, in O(chunk) memory."""
    with zipfile.ZipFile(_Unseekable(stream), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_member("data.pkl"), _pickle(count))
        archive.writestr(_member("byteorder"), b"little")
        info = _member("data/0")
        info.extra = _padding(archive.fp.tell() + 30 + len(info.filename) + _ZIP64_EXTRA)
        with archive.open(info, "w", force_zip64=True) as member:
            for chunk in chunks:
                member.write(np.ascontiguousarray(chunk, "<i8").data)
        archive.writestr(_member("version"), b"3\n")


def open_index(path: Path, count: int) -> npt.NDArray[np.int64]:
    """Map the numbers in `path` read-only; raise `IntegrityError` unless there are `count`.

    The map is lazy: only the pages that are looked at are read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.read(f"{_PREFIX}/data.pkl") != _pickle(count):
                raise _damaged(path, f"does not describe {count} int64 numbers")
            info = archive.getinfo(_DATA_MEMBER)
            start = _payload_start(path, info.header_offset)
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, NotImplementedError) as error:
        raise _damaged(path, f"is not a torch archive that dataprep wrote ({error})") from None
    fits = info.file_size == count * 8 and start + info.file_size <= path.stat().st_size
    if info.compress_type != zipfile.ZIP_STORED or not fits:
        raise _damaged(path, f"does not hold {count} int64 numbers")
    if count == 0:
        return np.empty(0, np.int64)
    return np.memmap(path, "<i8", "r", start, (count,))


def _payload_start(path: Path, header: int) -> int:
    with path.open("rb") as stream:
        stream.seek(header + 26)
        name, extra = struct.unpack("<HH", stream.read(4))
    return header + 30 + int(name) + int(extra)


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=path.name, code="E_INDEX", remedy="Restore this file or rebuild."
    )


def _pickle(count: int) -> bytes:
    """The pickle of a contiguous int64 tensor of shape [count], in torch's own opcodes."""
    size = _long(count)
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    )
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage + size + b"tQ"
        + b"K\x00" + size + b"\x85" + b"K\x01\x85" + b"\x89"
        + b"ccollections\nOrderedDict\n)R"
        + b"tR."
    )  # fmt: skip


def _long(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + bytes([value])
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    body = value.to_bytes(8, "little")
    return b"\x8a\x08" + body


def _member(name: str) -> zipfile.ZipInfo:
    """A member that carries no clock and no host."""
    info = zipfile.ZipInfo(f"{_PREFIX}/{name}", _EPOCH)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _padding(start: int) -> bytes:
    """An extra field that moves a payload due at byte `start` to a multiple of 64."""
    size = -(start + 4) % _ALIGN
    return struct.pack("<HH", _PAD_FIELD, size) + bytes(size)


class _Unseekable:
    """Hides `seek`, so that zipfile writes strictly forward and the writer can hash as it goes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:
        self._at += memoryview(data).nbytes
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()
