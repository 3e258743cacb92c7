"""Where the numbers are in a ZIP archive that some version of torch.save wrote of an int64 vector.

`torchfile` compares a file with the bytes that dataprep writes; what differs comes here. The names
and sizes of the members come from the central directory, which the standard library reads; the
pickle is looked at and never run. Nothing is read but what stands around the numbers, which is a
MiB at most.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from io import FileIO

__all__ = ["LEGACY", "numbers_at"]

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of torch.save begin that are no ZIP archive."""
_AROUND = 1 << 20  # bytes beside the numbers; torch needs some thousands
_MEMBERS = 64  # torch writes up to eight
_NUMBERS = re.compile(r"([^/]+)/data/0")
_MEMO = rb"(?:q.|r....|\x94)?"  # what a pickle may say after a value, to name it again
_INT64 = re.compile(
    rb"ctorch\nLongStorage\n|\x8c\x05torch" + _MEMO + rb"\x8c\x0bLongStorage" + _MEMO + rb"\x93",
    re.DOTALL,
)
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of members that are, or whose header is
_BAD = (
    zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError, OverflowError,
    struct.error,
)  # fmt: skip


def numbers_at(stream: FileIO, size: int, count: int) -> int:
    """Return where the `count` numbers begin in `stream`, a file of `size` bytes.

    Raises `ValueError`, which says why, where they cannot be found with certainty.
    """
    if not 8 * count < size <= 8 * count + _AROUND:
        raise ValueError(f"does not have the size of an archive of {count} int64 numbers")
    stream.seek(0)
    if stream.read(len(LEGACY)) == LEGACY:
        raise ValueError("is in the form that torch.save had before ZIP archives")
    try:
        with zipfile.ZipFile(_Bounded(stream)) as archive:
            member = _member(archive, count)
    except _BAD as error:
        raise ValueError(f"is not a torch archive of {count} int64 numbers ({error})") from None
    begin = _begin(stream, member) if member.header_offset < size else 0
    if not 0 < begin <= size - 8 * count:
        raise ValueError(f"its {member.filename} does not lie in the file")
    stream.seek(begin + 8 * count)
    if stream.read(2) != b"PK":  # what follows in an archive, whatever it is
        raise ValueError(f"the header of its {member.filename} has another length than it says")
    return begin


class _Bounded(io.RawIOBase):
    """`stream`, of which no more than `_AROUND` bytes are read at once."""

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


def _member(archive: zipfile.ZipFile, count: int) -> zipfile.ZipInfo:
    """Return the member with the numbers; raises unless all members are what torch writes."""
    members = archive.infolist()
    if len(members) > _MEMBERS:
        raise ValueError(f"it has {len(members)} members")
    found = [member for member in members if _NUMBERS.fullmatch(member.filename)]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} members */data/0")
    numbers = found[0]
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
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
    """Raise unless the pickle is of an int64 vector, little-endian, and no CRC-32 is wrong."""
    root = numbers.filename.partition("/")[0]
    if sum(member.file_size for member in others) > _AROUND:
        raise ValueError("its other members are too large")
    texts = {member.filename: archive.read(member) for member in others}
    if len(texts) != len(others):
        raise ValueError("two members have one name")
    pickle = texts.get(f"{root}/data.pkl", b"")
    if not _INT64.search(pickle):
        raise ValueError("its data.pkl tells of no int64 tensor")
    if count > 1 and not _vector(count).search(pickle):  # the order of fewer is no question
        raise ValueError(f"its data.pkl tells of no contiguous vector of {count} numbers")
    if texts.get(f"{root}/byteorder", b"little") != b"little":
        raise ValueError("its numbers are not little-endian")


def _vector(count: int) -> re.Pattern[bytes]:
    """Return what a pickle says after the storage: offset 0, shape [count] and stride [1]."""
    lengths = [b"K" + bytes([count])] if count < 1 << 8 else []
    lengths += [b"M" + struct.pack("<H", count)] if count < 1 << 16 else []
    lengths += [b"J" + struct.pack("<i", count)] if count < 1 << 31 else []
    shortest = count.bit_length() // 8 + 1
    lengths += [b"\x8a%c" % size + count.to_bytes(size, "little") for size in range(shortest, 9)]
    return re.compile(rb"QK\x00" + _alone(lengths) + _alone([b"K\x01"]), re.DOTALL)


def _alone(numbers: list[bytes]) -> bytes:
    """Return the pattern of a tuple of one number, which may be spelled in any of these ways."""
    number = b"(?:" + b"|".join(map(re.escape, numbers)) + b")"
    return rb"(?:" + number + rb"\x85|\(" + number + rb"t)" + _MEMO


def _begin(stream: FileIO, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of `member` begin, 0 if its own header is of another one."""
    stream.seek(member.header_offset)
    head = stream.read(30)
    if len(head) < 30 or head[:4] != b"PK\3\4":
        return 0
    name, extra = struct.unpack("<HH", head[26:])
    same = stream.read(name) == member.orig_filename.encode()
    return member.header_offset + 30 + name + extra if same else 0
