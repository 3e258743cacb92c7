"""Options of a build of embeddings: understood, or refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import UsageError
from dataprep.pipeline.embeddings.options import EmbeddingOptions, parse_columns


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": ["Bad=x"]}, "cannot name an array"),
        ({"columns": ["a=x", "a=y"]}, "two arrays 'a'"),
        ({"columns": ["provenance"]}, "two arrays 'provenance'"),
        ({"columns": 3}, "must be NAME=FIELD"),
        ({"columns": ["a", "a_scale"], "dtype": "int8"}, "two arrays 'a_scale'"),
        ({"columns": ["a" * 32], "dtype": "int8"}, "at most 26"),
        ({"encoder": "x"}, "needs --text-field"),
        ({"text_field": "x"}, "needs --encoder"),
        ({"encoder": 3, "text_field": "x"}, "the name of a model"),
        ({"dim": 0}, "must be from 1"),
        ({"encode_batch": 0}, "must be from 1"),
        ({"dtype": "float8"}, "must be one of float32"),
        ({"normalize": 1}, "must be bool"),
        ({"max_rejects": 1}, "only means something"),
        ({"split": "train=2"}, "is not a ratio"),
        ({"text_field": "t", "encoder": len, "columns": ["embedding=v"]}, "two arrays 'embedding'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], problem: str) -> None:
    """At once, as `UsageError`."""
    with pytest.raises(UsageError, match=problem):
        EmbeddingOptions(input="x.npy", out=Path("out"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name", "field", "kind"),
    [
        ("a", "a", "a", None),
        ("a=b", "a", "b", None),
        ("a:int", "a", "a", "int"),
        ("a=b.c:float", "a", "b.c", "float"),
        ("label=label", "label", "label", None),
        ("a=x:y", "a", "x:y", None),
        ("a=b=c", "a", "b=c", None),
    ],
)
def test_columns_are_understood(text: str, name: str, field: str, kind: str | None) -> None:
    """NAME, =FIELD and :KIND."""
    (wish,) = parse_columns([text])
    assert (wish.name, wish.field, wish.kind) == (name, field, kind)
