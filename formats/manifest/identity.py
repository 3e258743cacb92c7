"""Digests that identify a dataset: `content_id` for the data of a split, `recipe_id` for a build.

The `content_id` of a split is the SHA-256 of the canonical JSON of ``["dataprep content 1", kind,
parts]``. A part describes one list of numbers, such as all token ids of the split. It states the
role, type and count of the numbers, and the CRC-32 of their little-endian bytes. This CRC-32 is
computed from the CRC-32s of the files, so the data are not read again. Splits with equal data have
equal ids, even if the data are divided differently into shards or inputs. Two different lists of
equal type and count have the same CRC-32 with probability 2**-32. No check of integrity relies on
the id.

The `recipe_id` is the SHA-256 of the canonical JSON of ``["dataprep recipe 1", versions, kind,
inputs, parts]``. Inputs are described by their content, not by their names. Here `parts` are the
options that affect the data. The engine and the number of workers are not among them, because they
do not affect the data. docs/format.md defines both ids in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from zlib import crc32

from ..canonical import digest_of
from ..checksums import BLOCK_BYTES, FileHash
from .arrays import PROVENANCE, ArrayEntry
from .common import FORMAT_VERSION, InputEntry

__all__ = [
    "UNSERVED",
    "TokenContent",
    "array_content_id",
    "crc32_after",
    "crc32_combine",
    "crc32_of_numbers",
    "recipe_id_of",
]

UNSERVED = frozenset({PROVENANCE})
"""Arrays that are not served; they are no part of the content."""

_CONTENT_DOMAIN = "dataprep content 1"
_POLYNOMIAL = 0xEDB88320  # of CRC-32, the coefficient of x**0 in the highest bit
_ONE = 1 << 31
_WIDTHS = {"tokens": 0, "lengths": 8, "mask": 1, "groups": 8, "scores": 4}  # bytes; 0: by dtype
_RECIPE_DOMAIN = "dataprep recipe 1"
_VERSIONS = {"format": FORMAT_VERSION, "content": 1, "split": 1}
"""Versions; one is raised when equal inputs and parts no longer give equal data."""


def crc32_combine(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two concatenated byte strings.

    The argument `first` is the CRC-32 of the first string. The argument `second` is the CRC-32 of
    the second string, which has `length` bytes.

    >>> crc32_combine(crc32(b"data"), crc32(b"prep"), 4) == crc32(b"dataprep")
    True
    """
    return _times(_shift(length), first) ^ second


def crc32_after(prefix: int, whole: int, length: int) -> int:
    """Return the CRC-32 of the last `length` bytes of a byte string.

    The argument `whole` is the CRC-32 of the whole string, and `prefix` is the CRC-32 of the bytes
    before the last `length` bytes.

    >>> crc32_after(crc32(b"data"), crc32(b"dataprep"), 4) == crc32(b"prep")
    True
    """
    return _times(_shift(length), prefix) ^ whole


def crc32_of_numbers(found: FileHash, header: bytes = b"") -> int:
    """Return the CRC-32 of the bytes after `header` in a file that begins with `header`.

    The argument `found` holds the hashes of the whole file, with the CRC-32 of each MiB.
    """
    size, total = 0, 0
    for one in found.crc32.tolist():
        length = min(BLOCK_BYTES, found.size - size)
        total = crc32_combine(total, one, length)
        size += length
    return crc32_after(crc32(header), total, size - len(header)) if header else total


def _times(one: int, other: int) -> int:
    """Return the product of two polynomials over GF(2), modulo the polynomial of CRC-32."""
    product = 0
    while other:
        if other & _ONE:
            product ^= one
        other = (other << 1) & 0xFFFFFFFF
        one = (one >> 1) ^ (_POLYNOMIAL if one & 1 else 0)
    return product


@cache
def _power(exponent: int) -> int:
    """Return x**(8 * 2**exponent) modulo the polynomial of CRC-32."""
    if exponent == 0:
        return _ONE >> 8
    half = _power(exponent - 1)
    return _times(half, half)


@cache
def _block_shift() -> int:
    return _power(BLOCK_BYTES.bit_length() - 1)


def _shift(length: int) -> int:
    """Return x**(8 * length) modulo the polynomial of CRC-32.

    Multiplying a CRC-32 by this accounts for `length` further bytes.
    """
    if length == BLOCK_BYTES:
        return _block_shift()
    found, exponent = _ONE, 0
    while length >> exponent:
        if length >> exponent & 1:
            found = _times(found, _power(exponent))
        exponent += 1
    return found


class TokenContent:
    """Computation of the content id of a split of tokens.

    A part is a list of numbers, such as all token ids. The numbers of a part may be added in
    several calls, in order.

    >>> content = TokenContent("<u2")
    >>> content.add("tokens", 2, crc32(bytes([1, 0, 2, 0])))
    >>> content.add("lengths", 1, crc32((2).to_bytes(8, "little")))
    >>> len(content.content_id)
    64
    """

    def __init__(self, dtype: str) -> None:
        self._types = {
            "tokens": dtype, "lengths": "<u8", "mask": "|u1", "groups": "<u8", "scores": "<f4",
        }  # fmt: skip
        self._sums = {"tokens": (0, 0), "lengths": (0, 0)}

    def add(self, role: str, count: int, crc: int) -> None:
        """Add `count` numbers to the end of the part `role`. Their bytes have the CRC-32 `crc`."""
        width = _WIDTHS[role] or int(self._types[role][2])
        before, total = self._sums.get(role, (0, 0))
        self._sums[role] = (before + count, crc32_combine(total, crc, count * width))

    @property
    def content_id(self) -> str:
        """The content id of the parts that were added.

        If the split has no documents, only the parts "tokens" and "lengths" are included, as for a
        split without shards. So all empty splits have the same id.
        """
        documents = self._sums["lengths"][0]
        parts = [
            [role, dtype, self._sums[role][0], _hex(self._sums[role][1])]
            for role, dtype in self._types.items()
            if role in self._sums and (documents or role in ("tokens", "lengths"))
        ]
        return digest_of([_CONTENT_DOMAIN, "tokens", parts])


def array_content_id(
    kind: str, arrays: Mapping[str, ArrayEntry], crcs: Mapping[str, int], rows: int, index: int
) -> str:
    """Return the content id of a split that has `rows` rows of `arrays`.

    The dict `crcs` maps the name of each array to the CRC-32 of its numbers, and `index` is the
    CRC-32 of the row numbers of the split.
    """
    parts: list[list[Any]] = [
        [
            name, entry.dtype, [entry.rows, *entry.row], _hex(crcs[name]), entry.scale, entry.unit,
            None if entry.categories is None else list(entry.categories),
        ]
        for name, entry in sorted(arrays.items())
        if name not in UNSERVED
    ]  # fmt: skip
    return digest_of([_CONTENT_DOMAIN, kind, [*parts, ["index", "<i8", rows, _hex(index)]]])


def _hex(crc: int) -> str:
    return f"{crc:08x}"


def recipe_id_of(kind: str, inputs: Sequence[InputEntry], parts: Mapping[str, Any]) -> str:
    """Return the recipe id of a dataset of `kind` that is built from `inputs`, in this order.

    The dict `parts` holds the options that affect the data, as JSON values.
    """
    contents = [[one.fingerprint, one.format, one.compression, one.bytes] for one in inputs]
    return digest_of([_RECIPE_DOMAIN, _VERSIONS, kind, contents, dict(parts)])
