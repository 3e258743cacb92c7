"""Writer of messy.jsonl: good records, and between them one bad record of each kind.

python data_fixtures/make_messy.py > data_fixtures/messy.jsonl
"""

from __future__ import annotations

import sys

__all__ = ["LINES"]

_DEEP = b'{"id": "deep", "text": "fine", "nest": ' + b"[" * 70 + b"]" * 70 + b"}"

# (the line, why it is rejected; "" for a good one, "blank" for one that is no record)
LINES: tuple[tuple[bytes, str], ...] = (
    (b'{"id": "plain", "text": "A good record, first in the file."}', ""),
    (b'{"id": "cut", "text": "This line stops in the mid', "invalid_json"),
    (b'{"id": "after", "text": "The record after a bad one is still read."}', ""),
    (b"not JSON at all", "invalid_json"),
    (b'{"id": "two", "text": "one"} {"id": "objects", "text": "two"}', "invalid_json"),
    (b'{"id": "comma", "text": "a trailing comma",}', "invalid_json"),
    (b'["text", "an array"]', "not_an_object"),
    (b'"just a string"', "not_an_object"),
    (b'{"id": "no-field", "body": "the field has another name"}', "missing_field"),
    (b'{"id": "null", "text": null}', "not_a_string"),
    (b'{"id": "number", "text": 42}', "not_a_string"),
    (b'{"id": "list", "text": ["a", "b"]}', "not_a_string"),
    (b'{"id": "empty", "text": ""}', "empty"),
    (b'{"id": "latin-1", "text": "caf\xe9"}', "invalid_utf8"),
    (b'{"id": "half", "text": "half an emoji: \\ud83d"}', "lone_surrogate"),
    (b'{"id": "pair", "text": "a whole emoji: \\ud83d\\ude00"}', ""),
    (b'{"id": "twice", "text": "first", "text": "second"}', "duplicate_field"),
    (_DEEP, "too_deep"),
    (b"", "blank"),
    (b"   ", "blank"),
    (b'{"id": "crlf", "text": "a line that ends in CR LF"}\r', ""),
    (b'{"id": "space", "text": " "}', ""),
    (b'{"id": "nul", "text": "a NUL \\u0000 inside"}', ""),
    ('{"id": "u2028", "text": "a line separator \u2028 inside"}'.encode(), ""),
    (b'{"id": "special", "text": "spells <|endoftext|> in the text"}', ""),
    (b'{"id": "big", "text": "beside a huge number", "n": 123456789012345678901234567890}', ""),
    (b'{"id": "last", "text": "A good record, last, with no newline after it."}', ""),
)

if __name__ == "__main__":
    sys.stdout.buffer.write(b"\n".join(line for line, _ in LINES))
