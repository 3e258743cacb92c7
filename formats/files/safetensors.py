"""Headers of `.safetensors` files, read and written.

A file consists of eight bytes with the length of the header, the header as JSON, and the numbers of
all tensors, one tensor after the other. The header holds a type, a shape and a range of bytes for
each tensor, and texts under ``__metadata__``.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from typing import NamedTuple

import msgspec

__all__ = ["MAX_HEADER_BYTES", "TYPES", "FileHeader", "TensorPlace", "encode_header", "read_header"]

MAX_HEADER_BYTES = 100_000_000
"""Limit of the reference implementation."""

TYPES: Mapping[str, str] = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "bfloat16": "BF16", "|b1": "BOOL",
    "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
    "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8",
}  # fmt: skip
"""Names in safetensors of the numpy types, and of bfloat16, which numpy lacks."""

_METADATA = "__metadata__"
_ALIGN = 8


class TensorPlace(msgspec.Struct):
    """Type and shape of a tensor, and the start and stop of its bytes, counted after the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class FileHeader(NamedTuple):
    """Header of a `.safetensors` file. The numbers start at byte `begin`."""

    metadata: dict[str, str]
    tensors: dict[str, TensorPlace]
    begin: int


def read_header(stream: FileIO, size: int) -> FileHeader:
    """Return the header of `stream`, a file of `size` bytes. Raise `ValueError` if it is invalid.

    The function does not check that the tensors lie within the file.
    """
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"its header has {length:,} bytes, the file {size:,}")
    try:
        found = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(found.pop(_METADATA, b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(raw, type=TensorPlace) for name, raw in found.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header is not that of safetensors ({error})") from None
    return FileHeader(metadata, tensors, 8 + length)


def encode_header(metadata: Mapping[str, str], tensors: Mapping[str, TensorPlace]) -> bytes:
    """Return the bytes that precede the numbers in a `.safetensors` file.

    Raise `ValueError` if the header would exceed `MAX_HEADER_BYTES`.
    """
    text = msgspec.json.encode({_METADATA: metadata, **tensors})
    text += b" " * (-len(text) % _ALIGN)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes; safetensors allows {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text
