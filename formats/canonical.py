"""Canonical JSON, the one text of a value that is hashed.

Keys are sorted, there are no blanks, text is ASCII with `\\uXXXX` escapes, and numbers are those of
RFC 8259: NaN and infinities are refused. Integers of any size are allowed; floats are spelled as
Python's `repr` does, the shortest digits that read back as the same double.
"""

from __future__ import annotations

import hashlib
import json

__all__ = ["canonical_json", "digest_of"]


def canonical_json(value: object) -> bytes:
    """Return the canonical JSON of `value`; raise `ValueError` for NaN and infinities.

    >>> canonical_json({"b": [1, 2.5], "a": "\\u00e9"})
    b'{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(
        value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
    ).encode("ascii")


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, as 64 hex digits.

    >>> digest_of([])[:8]
    '4f53cda1'
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()
