"""Index files: int64 vectors as `.pt` files that torch.load reads, without importing torch.

Importing torch takes over a second, and its loader runs a pickle. The archive of a vector has a
fixed form: a head that depends only on the count, the numbers, and a tail that depends on the count
and the CRC-32 of the numbers. This module writes such archives. Equal numbers give equal bytes. To
read an archive, it compares head and tail with the bytes that it would have written.

Archives that torch.save wrote can also be read. Their central directory gives the position of the
numbers, and their pickle is searched but never run. Nothing is decompressed. torch itself opens an
index file with `torch.load(path, weights_only=True, mmap=True)`.

Formats: https://github.com/pytorch/pytorch/blob/main/docs/source/notes/serialization.rst and
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (sections 4.3 and 4.5.3)
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError, damaged_file
from .safe_open import open_ordinary

if TYPE_CHECKING:
    import zipfile

__all__ = [
    "check_index",
    "head",
    "index_size",
    "is_ours",
    "open_index",
    "tail",
    "write_index",
]

_ALIGN = 64
_PAD_FIELD = 0x4246  # "FB", the extra field that torch itself pads with
_DATE = 0x21  # 1 January 1980, the zero of ZIP: no clock in the file
_LATER = 8  # flag: the CRC and the size follow the data, which is written front to back
_PLAIN, _WIDE = 20, 45  # ZIP versions; the numbers have 64-bit sizes
_LIMIT = (1 << 31) - 1  # larger sizes and offsets go to a 64-bit field, as zipfile has it
_MAX32 = (1 << 32) - 1
_MODE = 0o644 << 16

_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of the files of torch.save that are not ZIP archives."""
_AROUND = 1 << 20  # bytes beside the numbers; torch needs some thousands
_MEMBERS = 64  # torch writes up to eight
_NUMBERS = re.compile(r"([^/]+)/data/0")
_MEMO = rb"(?:q.|r....|\x94)?"  # opcodes that put a value into the memo of the pickle
_INT64 = re.compile(
    rb"ctorch\nLongStorage\n|\x8c\x05torch" + _MEMO + rb"\x8c\x0bLongStorage" + _MEMO + rb"\x93",
    re.DOTALL,
)
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of an encrypted member or header


def write_index(stream: BinaryIO, chunks: Iterable[npt.NDArray[np.int64]], count: int) -> int:
    """Write an index file of the `count` numbers in `chunks` to `stream`, and return their CRC-32.

    Raise `ValueError` if `chunks` do not hold exactly `count` numbers. The function needs the
    memory of one chunk.
    """
    stream.write(head(count))
    crc = written = 0
    for chunk in chunks:
        data = np.ascontiguousarray(chunk, "<i8").data
        crc = zlib.crc32(data, crc)
        written += len(data)
        stream.write(data)
    if written != count:
        raise ValueError(f"{written} numbers were given, {count} promised")
    stream.write(tail(count, crc))
    return crc


def open_index(path: Path, count: int) -> npt.NDArray[np.int64]:
    """Return the `count` numbers in the index file `path` as an int64 array, mapped read-only.

    Only the pages that are used are read. Raise `IntegrityError` if the file is damaged.
    """
    with open_ordinary(path, path.name) as stream:
        begin = _begin(stream, path, count)
        if count == 0:
            return np.empty(0, np.int64)
        return np.memmap(stream, "<i8", "r", begin, (count,))


def check_index(path: Path, count: int) -> int:
    """Return the byte offset of the numbers in the index file `path`, without reading any number.

    Raise `IntegrityError` if the file is damaged.
    """
    with open_ordinary(path, path.name) as stream:
        return _begin(stream, path, count)


def is_ours(found: bytes, size: int, count: int) -> bool:
    """Return whether a file of `size` bytes that begins with `found` may be from `write_index`.

    The argument `found` must have the length of ``head(count)``. The caller must still compare the
    end of the file with `tail`.
    """
    return size == index_size(count) and found == head(count)


def _begin(stream: FileIO, path: Path, count: int) -> int:
    """Return the byte offset of the numbers in an index file that dataprep or torch.save wrote.

    Raise `IntegrityError` if the file is damaged.
    """
    size, start = os.fstat(stream.fileno()).st_size, len(head(count))
    if size == index_size(count) and is_ours(stream.read(start), size, count):
        stream.seek(start + count * 8)
        found = stream.readall()
        if found != tail(count, int.from_bytes(found[4:8], "little")):
            raise _damaged(path, "does not end as a torch archive that dataprep wrote")
        return start
    try:
        return _numbers_at(stream, size, count)
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def index_size(count: int) -> int:
    """Return the size in bytes of an index file of `count` numbers."""
    return len(head(count)) + 8 * count + len(tail(count, 0))


def _damaged(path: Path, problem: str) -> IntegrityError:
    return damaged_file(problem, path.name, "E_INDEX")


def head(count: int) -> bytes:
    """Return the bytes of an index file before its `count` numbers: a multiple of 64 bytes."""
    data = b""
    for member in _small_members(count):
        data += _local(member) + member.data + _after(member)
    return data + _local(_numbers(len(data), count, 0))


def tail(count: int, crc: int) -> bytes:
    """Return the bytes of an index file after its `count` numbers, whose CRC-32 is `crc`."""
    pickle, order = _small_members(count)
    at = len(_local(pickle)) + len(pickle.data) + len(_after(pickle))
    order = order._replace(offset=at)
    numbers = _numbers(at + len(_local(order)) + len(order.data) + len(_after(order)), count, crc)
    data = _after(numbers)
    end = len(head(count)) + 8 * count
    version = _small("version", b"3\n")._replace(offset=end + len(data))
    data += _local(version) + version.data + _after(version)
    directory = b"".join(_entry(member) for member in (pickle, order, numbers, version))
    return data + directory + _end(end + len(data), len(directory))


class _Member(NamedTuple):
    """Member of the ZIP archive. Its `data` is empty for the member with the numbers."""

    name: bytes
    data: bytes
    size: int
    crc: int
    offset: int = 0
    extra: bytes = b""
    wide: bool = False


def _small(name: str, data: bytes) -> _Member:
    return _Member(f"archive/{name}".encode(), data, len(data), zlib.crc32(data))


def _small_members(count: int) -> tuple[_Member, _Member]:
    return _small("data.pkl", _pickle(count)), _small("byteorder", b"little")


def _numbers(offset: int, count: int, crc: int) -> _Member:
    bare = _Member(b"archive/data/0", b"", 8 * count, crc, offset, b"", wide=True)
    size = -(offset + len(_local(bare)) + 4) % _ALIGN
    return bare._replace(extra=struct.pack("<HH", _PAD_FIELD, size) + bytes(size))


def _local(member: _Member) -> bytes:
    """Return the local ZIP header of a member.

    The CRC and the sizes come after the data (see `_after`).
    """
    version, unknown, extra = _PLAIN, 0, member.extra
    if member.wide:
        version, unknown = _WIDE, _MAX32
        extra += struct.pack("<HHQQ", 1, 16, 0, 0)
    sizes = (unknown, unknown, len(member.name), len(extra))
    fixed = struct.pack("<4s5H3L2H", b"PK\3\4", version, _LATER, 0, 0, _DATE, 0, *sizes)
    return fixed + member.name + extra


def _after(member: _Member) -> bytes:
    """Return the CRC and the sizes that follow the data of a member."""
    layout = "<4sLQQ" if member.wide else "<4sLLL"
    return struct.pack(layout, b"PK\7\10", member.crc, member.size, member.size)


def _entry(member: _Member) -> bytes:
    """Return the entry of a member in the central directory."""
    version = _WIDE if member.wide else _PLAIN
    size, offset, wide = member.size, member.offset, b""
    if size > _LIMIT:
        wide += struct.pack("<QQ", size, size)
        size = _MAX32
    if offset > _LIMIT:
        wide += struct.pack("<Q", offset)
        offset = _MAX32
    extra = member.extra
    if wide:
        version = _WIDE
        extra = struct.pack("<HH", 1, len(wide)) + wide + extra
    return struct.pack(
        "<4s2B5H3L5H2L", b"PK\1\2", version, 3, version, _LATER, 0, 0, _DATE, member.crc, size,
        size, len(member.name), len(extra), 0, 0, 0, _MODE, offset,
    ) + member.name + extra  # fmt: skip


def _end(start: int, size: int) -> bytes:
    """Return the bytes of the archive after its central directory.

    The central directory has `size` bytes and begins at byte `start` of the archive.
    """
    wide = b""
    if start > _LIMIT:
        wide = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 4, 4, size, start)
        wide += struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    return wide + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 4, 4, size, min(start, _MAX32), 0)


def _pickle(count: int) -> bytes:
    """Return the pickle of a contiguous int64 tensor of shape [count], as torch writes it."""
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


def _numbers_at(stream: FileIO, size: int, count: int) -> int:
    """Return the byte offset of the `count` numbers in `stream`, a file of `size` bytes.

    Raise `ValueError`, with the reason, if the offset cannot be determined with certainty.
    """
    import zipfile  # takes 10 ms; files that dataprep wrote do not need it

    if not 8 * count < size <= 8 * count + _AROUND:
        raise ValueError(f"does not have the size of an archive of {count} int64 numbers")
    stream.seek(0)
    if stream.read(len(_LEGACY)) == _LEGACY:
        raise ValueError("is in the form that torch.save had before ZIP archives")
    try:
        with zipfile.ZipFile(_Bounded(stream)) as archive:
            member = _numbers_member(archive, count)
    except (
        zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError, OverflowError,
        struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"is not a torch archive of {count} int64 numbers ({error})") from None
    begin = _member_start(stream, member) if member.header_offset < size else 0
    if not 0 < begin <= size - 8 * count:
        raise ValueError(f"its {member.filename} does not lie in the file")
    stream.seek(begin + 8 * count)
    if stream.read(2) != b"PK":  # the next header of the archive
        raise ValueError(f"the header of its {member.filename} has another length than it says")
    return begin


class _Bounded(io.RawIOBase):
    """View of `stream` that raises `ValueError` if more than `_AROUND` bytes are read at once."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if size > _AROUND:
            raise ValueError("its directory is too large")
        return self._stream.read(size if size >= 0 else _AROUND)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == 0 and offset < 0:
            raise ValueError("its directory does not lie in the file")
        try:
            return self._stream.seek(offset, whence)
        except OSError as error:
            raise ValueError(str(error)) from None

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _numbers_member(archive: zipfile.ZipFile, count: int) -> zipfile.ZipInfo:
    """Return the archive member that holds the numbers.

    Raise `ValueError` unless all members are as torch writes them.
    """
    members = archive.infolist()
    if len(members) > _MEMBERS:
        raise ValueError(f"it has {len(members)} members")
    found = [member for member in members if _NUMBERS.fullmatch(member.filename)]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} members */data/0")
    numbers = found[0]
    for member in members:
        if member.compress_type or member.flag_bits & _ENCRYPTED:
            raise ValueError(f"{member.filename} is compressed or encrypted")
        if member.compress_size != member.file_size:
            raise ValueError(f"{member.filename} has two sizes")
    if numbers.file_size != 8 * count:
        raise ValueError(f"{numbers.filename} has {numbers.file_size} bytes")
    _check_others(archive, [member for member in members if member is not numbers], numbers, count)
    return numbers


def _check_others(
    archive: zipfile.ZipFile, others: list[zipfile.ZipInfo], numbers: zipfile.ZipInfo, count: int
) -> None:
    """Raise `ValueError` unless data.pkl describes a little-endian int64 vector [count].

    The function also checks the CRC-32s of the archive members `others`, and does not read the
    member `numbers`.
    """
    root = numbers.filename.partition("/")[0]
    if sum(member.file_size for member in others) > _AROUND:
        raise ValueError("its other members are too large")
    texts = {member.filename: archive.read(member) for member in others}
    if len(texts) != len(others):
        raise ValueError("two members have one name")
    pickle = texts.get(f"{root}/data.pkl", b"")
    if not _INT64.search(pickle):
        raise ValueError("its data.pkl tells of no int64 tensor")
    if count > 1 and not _vector(count).search(pickle):  # fewer numbers have one order
        raise ValueError(f"its data.pkl tells of no contiguous vector of {count} numbers")
    if texts.get(f"{root}/byteorder", b"little") != b"little":
        raise ValueError("its numbers are not little-endian")


def _vector(count: int) -> re.Pattern[bytes]:
    """Return a regular expression for the part of a pickle that describes a vector.

    The vector must have `count` numbers: offset 0 in its storage, shape [count] and stride [1].
    """
    lengths = [b"K" + bytes([count])] if count < 1 << 8 else []
    lengths += [b"M" + struct.pack("<H", count)] if count < 1 << 16 else []
    lengths += [b"J" + struct.pack("<i", count)] if count < 1 << 31 else []
    shortest = count.bit_length() // 8 + 1
    lengths += [b"\x8a%c" % size + count.to_bytes(size, "little") for size in range(shortest, 9)]
    return re.compile(rb"QK\x00" + _alone(lengths) + _alone([b"K\x01"]), re.DOTALL)


def _alone(numbers: list[bytes]) -> bytes:
    """Return a regular expression that matches a pickled tuple of one number.

    The list `numbers` holds all pickled forms of the number. The expression matches each of them.
    """
    number = b"(?:" + b"|".join(map(re.escape, numbers)) + b")"
    return rb"(?:" + number + rb"\x85|\(" + number + rb"t)" + _MEMO


def _member_start(stream: FileIO, member: zipfile.ZipInfo) -> int:
    """Return the byte offset of the data of `member`.

    Return 0 if the local header at the recorded offset does not belong to `member`.
    """
    stream.seek(member.header_offset)
    head = stream.read(30)
    if len(head) < 30 or head[:4] != b"PK\3\4":
        return 0
    name, extra = struct.unpack("<HH", head[26:])
    same = stream.read(name) == member.orig_filename.encode()
    return member.header_offset + 30 + name + extra if same else 0
