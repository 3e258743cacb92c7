"""What a file of text begins with: how it is compressed, and what gives it away as no UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec

from dataprep.formats.errors import InputError
from dataprep.formats.storage import storage_errors

__all__ = ["HEAD_BYTES", "compression_of", "json_kind"]

HEAD_BYTES = 4096
"""As many bytes of a file are enough."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_REFUSED = {
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "ZIP",
    b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_FEW_ZEROS = 4
_BOM = b"\xef\xbb\xbf"


def compression_of(head: bytes, path: Path, kind: str) -> str | None:
    """The compression of the text file `path` of the format `kind`, which begins with `head`.

    Raises `InputError` for what is no text in UTF-8.
    """
    for magic, name in _REFUSED.items():
        if head.startswith(magic):
            raise _unread(
                f"this is {name}, which is not read", str(path),
                "Convert it to UTF-8 text, plain or compressed with gzip or zstd.",
            )  # fmt: skip
    if kind == "jsonl" and _opens_array(head):
        raise _unread(
            "this is one JSON array, not one JSON object per line", str(path),
            "Convert it first: jq -c '.[]' FILE > FILE.jsonl (of chat data, name it FILE.json)",
        )  # fmt: skip
    compression = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    wide = _wide_encoding(head) if compression is None else None
    if wide:
        raise _unread(
            f"this looks like {wide}, which is not read", str(path),
            f"Convert it to UTF-8: iconv -f {wide} -t UTF-8 FILE > NEW",
        )  # fmt: skip
    return compression


def json_kind(path: Path, compression: str | None) -> str:
    """What a JSON file holds, by its first character: "json", an array, or "jsonl", lines.

    Raises `InputError` for one object over several lines, which is neither.
    """
    with storage_errors(path), path.open("rb") as stream:
        head = _head(stream, compression, path)
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.split(b"\n", 1)[0].strip() == b"{":
        raise _unread(
            "this is one JSON object over several lines, neither an array nor an object per line",
            str(path), "Convert it first: jq -c . FILE > FILE.jsonl, or take the array out of it.",
        )  # fmt: skip
    return "jsonl"


def _head(stream: BinaryIO, compression: str | None, path: Path) -> bytes:
    """The first bytes of a file, decompressed."""
    if compression is None:
        return stream.read(HEAD_BYTES)
    import pyarrow as pa

    try:
        return bytes(pa.CompressedInputStream(stream, compression).read(HEAD_BYTES))
    except OSError as error:
        raise _unread(
            f"the compressed data is damaged ({error})", str(path), "Fetch the file again."
        ) from None


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, by where its zero bytes stand.

    >>> _wide_encoding("some text".encode("utf-16-le")), _wide_encoding(b"some\\0text\\0\\0\\0")
    ('UTF-16LE', None)
    """
    if head.count(0) < _FEW_ZEROS:
        return None
    zeros = [part.count(0) / max(1, len(part)) for part in (head[at::4] for at in range(4))]
    for name, full in (("UTF-32LE", (2, 3)), ("UTF-32BE", (0, 1))):
        others = set(range(4)) - set(full)
        if min(zeros[at] for at in full) > 0.9 and min(zeros[at] for at in others) < 0.1:
            return name
    for name, full in (("UTF-16LE", (1, 3)), ("UTF-16BE", (0, 2))):
        others = set(range(4)) - set(full)
        if min(zeros[at] for at in full) > 0.1 and max(zeros[at] for at in others) < 0.02:
            return name
    return None


def _opens_array(head: bytes) -> bool:
    """Whether the file starts with a JSON array that its first line does not finish."""
    first = head.removeprefix(_BOM).lstrip().split(b"\n", 1)[0]
    if not first.startswith(b"["):
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False


def _unread(problem: str, where: str, remedy: str) -> InputError:
    return InputError(problem, where=where, remedy=remedy, code="E_FORMAT")
