"""Conversations in `dataprep inspect`: facts about the template, trained spans, records.

To find the character at which a token begins, all tokens before it are decoded together. Decoding
tokens one by one would be wrong, because a tokenizer may join tokens, or drop the space before the
first token.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ..output import is_terminal, one_line, printable
from ..summary import count_text

if TYPE_CHECKING:
    from dataprep.formats.read.dataset import Dataset, Split

__all__ = [
    "chat_facts",
    "chat_rows",
    "document_facts",
    "drawn_records",
    "excerpt",
    "group_text",
    "marked",
]

OPEN, CLOSE = "⟦", "⟧"
"""Brackets around trained text if there is no colour."""
_SCORE_WORDS: dict[str, dict[float | None, str]] = {
    "pairs": {1.0: "chosen", 0.0: "rejected"}, "labels": {1.0: "good", 0.0: "bad"},
    "groups": {None: "no score"},
}  # fmt: skip


def chat_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the facts about conversations in the manifest, for --json.

    The dict is empty if the dataset does not hold conversations.
    """
    chat = dataset.chat
    if chat is None:
        return {}
    tokens = sum(split.tokens for split in dataset.splits.values())
    facts = {name: getattr(chat, name) for name in chat.__struct_fields__}
    return {"chat": {**facts, "trained_share": chat.trained_tokens / tokens if tokens else None}}


def chat_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that `chat_facts` added to `facts`, as (name, value) rows of a table."""
    chat = facts.get("chat")
    if chat is None:
        return []
    share = "" if chat["trained_share"] is None else f" ({chat['trained_share']:.1%})"
    found = ", ".join(f"{count:,} {what}" for what, count in chat["overlong_found"].items())
    limit = "any length" if chat["max_tokens"] is None else f"at most {chat['max_tokens']:,} tokens"
    return [
        ("conversations", f"{chat['form']}, {limit}, over length: {chat['overlong'] or 'not asked'}"
         + (f"; found: {found}" if found else "")),
        ("template", f"{chat['template_origin']}, sha256 {chat['template_sha256']}"),
        ("trained on", f"{chat['train_on']}, by {chat['masked_by']}: "
         f"{count_text(chat['trained_tokens'], 'token')}{share}"),
    ]  # fmt: skip


def drawn_records(split: Split, sample: int, seed: int) -> list[int]:
    """Choose `sample` records at random, and return the indices of all their documents."""
    records = len(split.groups)
    drawn = Random(seed).sample(range(records), min(sample, records))
    first, stop = split.groups.documents(np.array(drawn, np.int64))
    spans = zip(first.tolist(), stop.tolist(), strict=True)
    return [document for start, end in spans for document in range(start, end)]


def document_facts(split: Split, document: int, text: str) -> dict[str, Any]:
    """Return the facts about `document` that only conversations and preferences have, for --json.

    In conversations, `trained` lists the spans to train on, as [start, stop] character indices in
    `text` (the text of the document), and `trained_tokens` is their number of tokens. In
    preferences, `answer` is the index of the document in its record, `answers` is the number of
    documents in the record, and `score` is None if the document has no score.
    """
    found: dict[str, Any] = {}
    if split.has_mask:
        mask = split.masks.read(*split.span(document))
        found["trained_tokens"] = int(np.count_nonzero(mask))
        found["trained"] = _spans(split, document, mask, text)
    if split.has_groups:
        numbers = np.array([document], np.int64)
        first, stop = split.groups.documents(split.groups.holding(numbers))
        score = float(split.groups.scores(numbers)[0])
        found["form"] = split.form
        found["answer"] = document - int(first[0])
        found["answers"] = int(stop[0] - first[0])
        found["score"] = None if math.isnan(score) else score
    return found


def _spans(split: Split, document: int, mask: Any, text: str) -> list[list[int]]:
    tokenizer = split.dataset.manifest.tokenizer
    first, last = int(tokenizer.add_bos), len(mask) - int(tokenizer.add_eos)
    ids, inside = split.document(document)[first:last], np.asarray(mask[first:last], np.int8)
    edges = np.flatnonzero(np.diff(inside, prepend=0, append=0)).tolist()
    ends = [_text_index(split, ids[:edge], text) for edge in edges]
    spans = zip(ends[::2], ends[1::2], strict=True)
    return [[start, stop] for start, stop in spans if start < stop]


def _text_index(split: Split, ids: Any, text: str) -> int:
    """Return the index of the character in `text` that follows the tokens `ids`.

    The tokens `ids` must be the first tokens of `text`.
    """
    before = split.dataset.decode(ids)
    if text.startswith(before):
        return len(before)
    both = enumerate(zip(before, text, strict=False))
    return next((at for at, (one, other) in both if one != other), min(len(before), len(text)))


def excerpt(text: str, spans: Sequence[Sequence[int]], limit: int | None) -> str:
    """Return an excerpt of `text` with at most `limit` characters and with `spans` marked.

    If `limit` is None, return the whole text. If the first span begins within the first `limit`
    characters, the excerpt is the beginning of the text. Otherwise, half of the excerpt is the
    beginning of the text, and the other half begins shortly before the first span.
    """
    if limit is None or len(text) <= limit:
        return marked(text, spans)
    shown = [(0, limit)]
    if spans and spans[0][0] >= limit:
        begin = spans[0][0] - limit // 10
        shown = [(0, limit // 2), (begin, min(begin + limit // 2, len(text)))]
    found, at = "", 0
    for start, stop in shown:
        found += f" … ({start - at:,} characters) … " if start > at else ""
        inside = [[max(first, start) - start, min(last, stop) - start] for first, last in spans]
        found += marked(text[start:stop], [span for span in inside if span[0] < span[1]])
        at = stop
    return found + (f" … ({len(text) - at:,} more characters: --full)" if at < len(text) else "")


def marked(text: str, spans: Sequence[Sequence[int]]) -> str:
    """Return `text` with `spans` in colour if standard output is a terminal, or else in brackets.

    Control characters are escaped.
    """
    colour = is_terminal(sys.stdout) and "NO_COLOR" not in os.environ
    parts, at = [], 0
    for start, stop in spans:
        own = printable(text[start:stop])
        parts.append(printable(text[at:start]))
        parts.append(click.style(own, fg="green") if colour else f"{OPEN}{own}{CLOSE}")
        at = max(at, stop)
    return "".join([*parts, printable(text[at:])])


def group_text(found: Mapping[str, Any]) -> str:
    """Return a phrase such as ``, record 4: answer 1 of 2, chosen`` for an answer, or "".

    The mapping `found` holds the facts about the document, which is an answer if it has the key
    ``"answer"``.
    """
    if "answer" not in found:
        return ""
    score = found["score"]
    answer = _SCORE_WORDS.get(found["form"], {}).get(score, f"score {score}")
    which = f"answer {found['answer'] + 1} of {found['answers']}, " if found["answers"] > 1 else ""
    return one_line(f", record {found['record']}: {which}{answer}")
