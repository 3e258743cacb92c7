"""`TokenizeEngine`: an engine that tokenizes texts, with the tokenizer of any library.

A tokenizer is any object with a method `encode(text)` that returns a list or an array of ids, a
dict with `input_ids`, or an object with the attribute `ids`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..errors import SampleError

__all__ = ["TokenizeEngine", "encode_text", "tokenizer_digest"]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of `text` as a list of ints.

    Raise `UsageError` if `tokenizer` has no method `encode`, or if the method returns no ids.

    >>> class Bytes:
    ...     def encode(self, text): return {"input_ids": list(text.encode())}
    >>> encode_text(Bytes(), "Hi")
    [72, 105]
    """
    encode = getattr(tokenizer, "encode", None)
    if not callable(encode):
        raise UsageError(f"a {type(tokenizer).__name__} has no encode(text)", where="tokenizer",
                         remedy="Give a tokenizer, or the path of one.")  # fmt: skip
    given: Any = encode(text)
    if isinstance(given, Mapping):
        if "input_ids" not in given:
            raise UsageError(f"encode gives {', '.join(map(str, given))}, no input_ids",
                             where="tokenizer")  # fmt: skip
        given = given["input_ids"]
    given = getattr(given, "ids", given)
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]  # a batch of one
    ids: list[Any] = list(given) if isinstance(given, list | tuple) else [None]
    if not all(type(one) is int and one >= 0 for one in ids):
        raise UsageError(
            f"encode gives {str(given)[:60]}, which are no ids", where="tokenizer",
            remedy="It must give a list of ids, or a dict with input_ids.",
        )  # fmt: skip
    return ids


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Return a digest of the tokenizer as 16 hex digits, or None if it cannot be serialized.

    A `tokenizers.Tokenizer`, and any tokenizer with a `backend_tokenizer`, can be serialized. The
    call takes 0.1 s for a vocabulary of 100,000 tokens.
    """
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    write = getattr(inner, "to_str", None)
    return hashlib.sha256(write().encode()).hexdigest()[:16] if callable(write) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeEngine:
    """Engine that tokenizes a text, and returns its `input_ids` and the fields of `keep`.

    >>> class Bytes:
    ...     def encode(self, text): return list(text.encode())
    >>> engine = TokenizeEngine(tokenizer=Bytes(), keep=("label",))
    >>> engine.process({"text": "Hi", "label": 1, "id": 7})
    {'input_ids': [72, 105], 'label': 1}
    """

    tokenizer: Any
    """An object with `encode(text)`."""
    field: str = "text"
    """Name of the field with the text; ignored for examples that are strings."""
    max_length: int | None = None
    """The most ids; a longer text loses its end. None: no limit."""
    keep: tuple[str, ...] = ()
    """Fields that are passed on unchanged."""

    def __post_init__(self) -> None:
        found = callable(getattr(self.tokenizer, "encode", None))
        require(found, "tokenizer", f"a {type(self.tokenizer).__name__} has no encode(text)")
        one = isinstance(self.keep, str)
        object.__setattr__(self, "keep", (self.keep,) if one else tuple(self.keep))
        if self.max_length is not None:
            whole_number("max_length", self.max_length, 1)

    def process(self, example: Any) -> dict[str, Any]:
        """Return a dict with the `input_ids` of the text in `example`, and the fields of `keep`.

        The argument `example` is a mapping, or the text itself. Raise `SampleError` if a field is
        missing, if the text is not a string, or if the tokenizer returns no ids for the text.
        """
        if isinstance(example, str):
            example = {self.field: example}
        for name in (self.field, *self.keep):
            if name not in example:
                raise SampleError(
                    f"there is no such field, only {', '.join(map(repr, example))}",
                    where=f"field {name!r}", remedy="Name it with field= or a column_mapping.",
                )  # fmt: skip
        text = example[self.field]
        if not isinstance(text, str):
            raise SampleError(f"is a {type(text).__name__}, not a text",
                              where=f"field {self.field!r}")  # fmt: skip
        ids = encode_text(self.tokenizer, text)[: self.max_length]
        if not ids:
            raise SampleError(
                f"has no tokens: {text[:40]!r}", where=f"field {self.field!r}", code="E_EMPTY",
                remedy="Leave such examples out.",
            )  # fmt: skip
        return {"input_ids": ids, **{name: example[name] for name in self.keep}}

    def describe(self) -> dict[str, Any]:
        """Return the options of the engine, and the type and digest of the tokenizer."""
        return {
            "engine": "tokenize", "tokenizer": type(self.tokenizer).__name__,
            "digest": tokenizer_digest(self.tokenizer), "field": self.field,
            "max_length": self.max_length, "keep": list(self.keep),
        }  # fmt: skip
