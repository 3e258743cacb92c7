"""Options of a build of conversations: each with its unit and its default.

Nothing heavy is imported here: the command line reads this for its help.
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

    Only `input`, `out`, `workers` and `overwrite` leave the content of the dataset unchanged by
    themselves; the others enter its recipe id, and so does the text of the chat template.

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
    """What records look like: messages, sharegpt, alpaca, prompt or preference shapes. None: told
    from the fields of each."""
    form: Literal["chat", "pairs", "labels", "groups"] | None = None
    """chat: conversations. pairs: an answer chosen and one rejected (DPO). labels: judgements
    (KTO). groups: several answers to a prompt (GRPO). None: what the first records are."""
    columns: tuple[str, ...] = ()
    """NAME=FIELD for each field that is called otherwise in the records, as ``messages=dialog``; a
    mapping will do. Also of messages: ``role=speaker``, ``content=utterance``; and of roles:
    ``user=Human``."""
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
    """The chat template: the name of one that comes along, or a file of Jinja. None: the
    tokenizer's own."""
    template_arg: tuple[str, ...] = ()
    """NAME=VALUE for each variable of the template; the value is JSON, or text."""
    template_date: str | None = None
    """The day, YYYY-MM-DD, that a template which asks for the date is told: a build looks at no
    clock."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """What the loss mask lets through: what the assistant says, its last turn only, or all."""
    special_text: Literal["literal", "parse"] = "literal"
    """Whether the text of a message that spells a special token stays text or becomes the token."""
    max_tokens: int | None = None
    """Tokens that a conversation may have. None: any number."""
    overlong: Overlong | None = None
    """What becomes of a conversation over `max_tokens`: a bad record (error), left out (drop), its
    last or its first tokens kept (truncate-left, truncate-right), or cut in pieces (split). None:
    the build stops at the first one and asks."""
    keep_untrained: bool = False
    """Keep conversations that were cut and have no token to train on left. Those in which nobody
    says anything to train on are bad records all the same."""
    split: str = DEFAULT_SPLIT
    """NAME=RATIO,... adding up to 1; with `split_mode` count also NAME=COUNT and NAME=rest."""
    split_mode: Literal["ratio", "count"] = "ratio"
    """ratio: each record by its hash alone. count: exact sizes."""
    split_key: str | None = None
    """The field whose value decides the split. None: the first rendered conversation; of
    preferences what they have in common, the prompt."""
    on_error: Literal["error", "skip"] = "error"
    """What a bad record does: stop the build, or go to rejects.jsonl."""
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
        """The format that a file's last suffix stands for; all others are unknown."""
        return _FORMATS


def parse_assignments(parts: tuple[str, ...], where: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the field of each of ``NAME=FIELD``.

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
    """Return the variables of a template; a value that is not JSON is text.

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
