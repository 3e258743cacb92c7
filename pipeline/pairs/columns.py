"""Columns of a table of pairs, identified by name, and the values of their cells.

There are seven fields, the keys of `ALIASES`. A field has at most one column. The name of that
column is given by ``--columns question=NAME``, or is one of the aliases of the field. A cell is
missing if it is null, NaN or blank.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping

import msgspec

from dataprep.formats.errors import InputError, UsageError

__all__ = [
    "ALIASES",
    "REQUIRED",
    "CellError",
    "cluster_of",
    "keywords_of",
    "optional_text",
    "parse_columns",
    "relevance_of",
    "resolve",
    "text_of",
]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "question_text", "query", "query_text"),
    "source": ("source", "source_text", "context", "passage", "passage_text"),
    "relevance": ("relevance", "relevance_score", "score"),
    "keywords": ("keywords", "keyword"),
    "cluster": ("cluster", "cluster_id", "topic"),
    "split": ("split",),
    "answer": ("answer", "answer_text"),
}
"""Usual names of the column of each field, in lower case."""
REQUIRED = ("question", "source")

_MAX_LIST = 1 << 20  # characters of a list in Python's syntax, which `ast` parses
_WHOLE = 1 << 53  # floats from this on are not exact integers


class CellError(Exception):
    """Error about a cell with an invalid value.

    The attribute `reason` names the problem in rejects.jsonl and config.json.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def parse_columns(text: str) -> dict[str, str]:
    """Return the column name of each field in a text such as ``question=NAME,source=NAME``.

    Raise `UsageError` for an unknown or repeated field, and for a field without a name.

    >>> parse_columns("question=q, source=long answer")
    {'question': 'q', 'source': 'long answer'}
    """
    chosen: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, _, name = (piece.strip() for piece in part.partition("="))
        if key not in ALIASES or not name or key in chosen:
            raise UsageError(
                f"{part.strip()!r} does not say which column is what", where="--columns",
                remedy=f"Write THING=COLUMN,... with THING one of {', '.join(ALIASES)}.",
            )  # fmt: skip
        chosen[key] = name
    return chosen


def resolve(names: Collection[str], chosen: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the column name of each field, chosen from `names`, the columns of a table.

    `chosen` maps fields to the column names that the user gave. Fields without a column are left
    out. Raise `InputError` if several columns fit a field. The error names the table `where`.

    >>> resolve(["id", "Query", "context"], {}, "a.csv")
    {'question': 'Query', 'source': 'context'}
    """
    found: dict[str, str] = {}
    for key, aliases in ALIASES.items():
        if key in chosen:
            fits = [name for name in names if name == chosen[key]]
        else:
            taken = chosen.values()
            fits = [n for n in names if n.strip().lower() in aliases and n not in taken]
        if len(fits) > 1:
            raise InputError(
                f"{' and '.join(map(repr, fits))} could both be the {key}", where=where,
                code="E_COLUMN", remedy=f"Say which with --columns {key}=NAME.",
            )  # fmt: skip
        if fits:
            found[key] = fits[0]
    return found


def text_of(value: object, what: str) -> str:
    """Return the stripped text of `value` (a cell of the field `what`).

    Raise `CellError` if the cell is missing or blank, is not a string, or is not valid Unicode.
    """
    if value is None or _is_nan(value):
        raise CellError(f"missing_{what}", f"there is no {what}")
    if not isinstance(value, str):
        raise CellError("not_a_string", f"the {what} is {_kind(value)}, not a string")
    text = value.strip()
    if not text:
        raise CellError(f"empty_{what}", f"the {what} is empty")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise CellError("invalid_utf8", f"the {what} is not valid Unicode") from None
    return text


def optional_text(value: object, what: str) -> str | None:
    """Return the stripped text of a cell, or None if the cell is missing.

    Numbers and booleans become text. Raise `CellError` for a value of another type.

    >>> optional_text(True, "answer"), optional_text(" ", "answer")
    ('True', None)
    """
    if _is_missing(value):
        return None
    return text_of(str(value) if isinstance(value, int | float) else value, what)


def relevance_of(value: object) -> float | None:
    """Return the number in a cell, or None if the cell is missing. The range is not checked.

    Raise `CellError` if the cell does not contain a number.

    >>> relevance_of(" 0.5 "), relevance_of(7), relevance_of(float("nan"))
    (0.5, 7.0, None)
    """
    if _is_missing(value):
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise CellError("bad_relevance", f"the relevance {_shown(value)} is no number") from None
    return None if math.isnan(number) else number


def keywords_of(value: object, separator: str) -> list[str]:
    """Return the keywords in a cell, stripped and casefolded.

    Blank keywords are left out. Repeated keywords remain. The cell is a list, a text that contains
    a list in JSON or Python syntax, or a text to split at `separator`. Raise `CellError` for any
    other value.

    >>> keywords_of("Law; LAW;", ";"), keywords_of('["a;b"]', ";")
    (['law', 'law'], ['a;b'])
    """
    if _is_missing(value):
        return []
    if isinstance(value, str):
        text = value.strip()
        listed = text.startswith("[") and text.endswith("]")
        value = _list(text) if listed else text.split(separator)
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise CellError("bad_keywords", f"the keywords {_shown(value)} are no list of strings")
    words = [word.strip().casefold() for word in value]
    return [text_of(word, "keyword") for word in words if word]


def cluster_of(value: object) -> str | None:
    """Return the cluster label in a cell as text, or None if the cell is missing or -1.

    Raise `CellError` unless the label is a text or a whole number.

    >>> cluster_of(3.0), cluster_of(" 3 "), cluster_of(-1)
    ('3', '3', None)
    """
    if _is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CellError("bad_cluster", f"the cluster {_shown(value)} is no text and no integer")
    label = text_of(str(value), "cluster")
    return None if label == "-1" else label


def _list(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    if len(text) <= _MAX_LIST:
        try:
            return ast.literal_eval(text)  # pandas writes lists to CSV in this form
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            pass
    raise CellError("bad_keywords", f"the keywords {_shown(text)} are no list of strings")


def _is_missing(value: object) -> bool:
    return value is None or _is_nan(value) or (isinstance(value, str) and not value.strip())


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
