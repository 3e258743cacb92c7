"""Options of a build of conversations, each with its unit and its default.

This module imports no large library, because the command line reads these options for its help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dataprep.formats.errors import UsageError, require
from dataprep.formats.files.paths import local_path

from ..options import (
    DEFAULT_SPLIT,
    as_assignments,
    as_paths,
    as_text,
    check_common,
    check_types,
)

__all__ = ["ChatFormat", "ChatOptions", "Overlong", "parse_assignments", "parse_variables"]

ChatFormat = Literal["jsonl", "json", "parquet", "hf"]
Overlong = Literal["error", "drop", "truncate-left", "truncate-right", "split"]

_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatOptions:
    """Options of a build of conversations.

    The recipe id depends on all options but `out`, `format`, `engine`, `on_error`, `max_rejects`,
    `excerpts`, `workers` and `overwrite`. It depends on the content of `input`, `tokenizer` and
    `template`, not on their names.

    >>> ChatOptions(input="chat.jsonl", out="shards", columns={"messages": "dialog"}).columns
    ('messages=dialog',)
    """

    input: tuple[str, ...]
    """Files, folders, globs, or ``hf:NAME`` for a dataset of the Hugging Face hub: JSONL, JSON
    arrays, Parquet. A single string or path, and a list of them, are understood too."""
    out: Path
    """The directory to make; a string will do. It must not exist, or be empty, or hold the same
    build."""
    format: ChatFormat | None = None
    """None: from each file's name."""
    shape: str | None = None
    """Shape of the records: messages, sharegpt, instances, alpaca or prompt. None: recognized by
    the fields of each record."""
    form: Literal["chat", "pairs", "labels", "groups"] | None = None
    """chat: conversations. pairs: a chosen and a rejected answer (DPO). labels: answers judged good
    or bad (KTO). groups: several answers to a prompt (GRPO). None: the form of the first record."""
    columns: tuple[str, ...] = ()
    """NAME=FIELD for each field that has another name in the records, as ``messages=dialog``; a
    mapping will do. Fields of messages (``role=speaker``, ``content=utterance``) and names of roles
    (``user=Human``) are given in the same way."""
    system: str | None = None
    """A system turn for the conversations that have none."""
    hf_config: str | None = None
    """Configuration of a hub dataset."""
    hf_split: str | None = None
    """Split of an HF dataset; needed where it has several."""
    tokenizer: str | None = None
    """None: the built-in one. Otherwise a tokenizer.json, a folder, a hub repository,
    ``tiktoken:NAME``, a .tiktoken rank file, or a sentencepiece .model. A path will do."""
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """auto: gigatoken where it gives the same ids as Hugging Face tokenizers, else that."""
    template: str | None = None
    """The chat template: the name of one that comes with dataprep, ``tokenizer:NAME`` for one of
    the tokenizer's, or a Jinja file. None: the tokenizer's default."""
    template_arg: tuple[str, ...] = ()
    """NAME=VALUE for each variable of the template; the value is JSON, or text."""
    template_date: str | None = None
    """The date, YYYY-MM-DD, for templates that print today's: builds never read the clock."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """What is trained on: all turns of the assistant, its last turn, or all text."""
    special_text: Literal["literal", "parse"] = "literal"
    """literal: a special token spelled in a message stays text. parse: it becomes the token."""
    max_tokens: int | None = None
    """Largest number of tokens of a conversation. None: no limit."""
    overlong: Overlong | None = None
    """Policy for a conversation over `max_tokens`. error: it is a bad record. drop: it is left out.
    truncate-left, truncate-right: its last or its first tokens are kept. split: it is cut into
    several documents. None: the build stops at the first one and asks for a policy."""
    keep_untrained: bool = False
    """Keep conversations that have no token to train on left after they were cut. Conversations
    that have none from the start are bad records all the same."""
    split: str = DEFAULT_SPLIT
    """NAME=RATIO,... adding up to 1; with `split_mode` count also NAME=COUNT and NAME=rest."""
    split_mode: Literal["ratio", "count"] = "ratio"
    """ratio: each record by its hash alone. count: exact sizes."""
    split_key: str | None = None
    """The field whose value decides the split. None: the rendered conversation decides; in
    preferences, the prompt."""
    on_error: Literal["error", "skip"] = "error"
    """error: a bad record stops the build. skip: it is listed in rejects.jsonl."""
    max_rejects: int | None = None
    """With `on_error` skip: more rejects than this stop the build. None: no limit."""
    excerpts: bool = True
    """Whether rejects.jsonl quotes records; without it `detail` is empty and `excerpt` null."""
    seed: int = 0
    """Seed of the hash that assigns splits."""
    workers: int | None = None
    """Worker processes; None: one per available core. Never changes the output."""
    overwrite: bool = False
    """Replace a finished dataset in `out`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", as_paths(self.input))
        object.__setattr__(self, "out", local_path(self.out))
        as_text(self, "tokenizer", "template")
        object.__setattr__(self, "columns", as_assignments(self.columns, "--columns"))
        object.__setattr__(self, "template_arg", _as_variables(self.template_arg))
        check_types(self, ("input", "out", "columns", "template_arg"))
        require(bool(self.input), "--input", "name at least one file, folder or glob")
        check_common(self)
        parse_assignments(self.columns, "--columns")
        parse_variables(self.template_arg)
        date = self.template_date
        require(
            date is None or bool(_DATE.fullmatch(date)), "--template-date",
            f"must be YYYY-MM-DD, got {date!r}",
        )  # fmt: skip
        self._check_overlong()

    def _check_overlong(self) -> None:
        limit = self.max_tokens
        require(limit is None or limit >= 1, "--max-tokens", f"must be at least 1, got {limit}")
        require(
            self.overlong is None or limit is not None,
            "--overlong", "means nothing without --max-tokens, the limit",
        )  # fmt: skip
        require(
            self.overlong != "split" or self.form in (None, "chat"),
            "--overlong", "split would tear answers from their prompts: truncate, or drop",
        )  # fmt: skip

    @property
    def formats(self) -> Mapping[str, str]:
        """Mapping from suffixes of file names to formats.

        Files with any other suffix need the option `format`.
        """
        return _FORMATS


def parse_assignments(parts: tuple[str, ...], where: str) -> tuple[tuple[str, str], ...]:
    """Split each of `parts` (``NAME=FIELD``) into a pair (name, field).

    Raise `UsageError` if a part does not have this form, or if a name occurs twice. The error names
    the option `where`.

    >>> parse_assignments(("messages=meta.dialog",), "--columns")
    (('messages', 'meta.dialog'),)
    """
    found: list[tuple[str, str]] = []
    for part in parts:
        name, equals, field = part.partition("=")
        require(bool(name and equals and field), where, f"{part!r} is not NAME=FIELD")
        require(name not in dict(found), where, f"{name!r} is told twice")
        found.append((name, field))
    return tuple(found)


def parse_variables(parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the template variables in `parts`, each written ``NAME=VALUE``.

    A value is parsed as JSON. If it is not valid JSON, it is text. Raise `UsageError` if a part
    does not have this form, if a name is not an identifier, or if a name occurs twice.

    >>> parse_variables(("enable_thinking=false", "style=terse"))
    {'enable_thinking': False, 'style': 'terse'}
    """
    found: dict[str, Any] = {}
    for name, value in parse_assignments(parts, "--template-arg"):
        require(name.isidentifier(), "--template-arg", f"{name!r} cannot name a variable")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _as_variables(value: object) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        try:
            value = {name: json.dumps(one) for name, one in value.items()}
        except (TypeError, ValueError) as error:
            raise UsageError(f"must be JSON values ({error})", where="--template-arg") from None
    return as_assignments(value, "--template-arg")
