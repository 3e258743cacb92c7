r"""Canonical JSON: the form in which values are hashed.

Keys are sorted, there is no white space, and text is ASCII with `\uXXXX` escapes. NaN and
infinities are refused, because JSON has no such numbers (RFC 8259). Integers may have any size.
Floats are written as Python's `repr` writes them, with the fewest digits that read back as the same
double.
"""

from __future__ import annotations

import hashlib
import json

__all__ = ["canonical_json", "digest_of"]


def canonical_json(value: object) -> bytes:
    r"""Return the canonical JSON of `value`. Raise `ValueError` for NaN and infinities.

    >>> canonical_json({"b": [1, 2.5], "a": "\u00e9"})
    b'{"a":"\\u00e9","b":[1,2.5]}'
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
