"""Which messages of a conversation are trained on, and the spans of them in its rendering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from ..records.conversation import Conversation
from ..template.compiled import RenderError
from .prefixes import Prefixes
from .session import Work

__all__ = ["Span", "TrainOn", "find_spans", "wanted"]

Span = tuple[int, int]
TrainOn = Literal["all", "assistant", "last"]


def wanted(conversation: Conversation, train_on: TrainOn) -> list[int]:
    """The messages to train on, in order; none of those that are given.

    What the record says of a message prevails. Raises `RenderError` ("no_assistant") for none.
    """
    messages = conversation.messages
    said = conversation.train or [None] * len(messages)
    places = range(conversation.prompt, len(messages))
    if train_on == "all":
        chosen = [at for at in places if said[at] is not False]
    else:
        turns = [at for at in places if messages[at].get("role") == "assistant"]
        if train_on == "last":
            turns = turns[-1:]
        kept = {at for at in turns if said[at] is not False}
        chosen = [at for at in places if at in kept or said[at]]
    if not chosen:
        raise RenderError("no_assistant", _why_none(conversation))
    return chosen


def _why_none(conversation: Conversation) -> str:
    turns = sum(message.get("role") == "assistant" for message in conversation.messages)
    if not turns:
        return f"none of its {len(conversation.messages)} messages is the assistant's"
    return f"none of its {turns} assistant messages is to be trained on"


def find_spans(
    work: Work, text: str, conversation: Conversation, chosen: Sequence[int], *,
    train_on: TrainOn, special_tokens: tuple[str, ...],
) -> list[Span]:  # fmt: skip
    """The spans of `chosen` in the rendering `text`; raises `RenderError` where a proof fails."""
    prefixes = work.prefixes(text, special_tokens)
    if train_on == "all":
        return _everything(conversation, prefixes, chosen, len(text))
    if not work.template.has_markers:
        return _disjoint([prefixes.said(at) for at in chosen])
    marked = work.marked_spans(len(work.messages), text)
    first_spans = partial(work.first_spans, marked)
    own = [text[start:end] for start, end in marked]
    return _by_markers(conversation, (marked, own), prefixes, chosen, first_spans)


def _everything(
    conversation: Conversation, prefixes: Prefixes, chosen: Sequence[int], length: int
) -> list[Span]:
    """The whole text but for the messages that are given or not `chosen`."""
    first = conversation.prompt
    start = prefixes.start(first) if first else 0
    left = [at for at in range(first, len(conversation.messages)) if at not in chosen]
    spans: list[Span] = []
    for at in left:
        begin, end = prefixes.added(at)
        spans.append((start, begin))
        start = end
    return _disjoint([span for span in [*spans, (start, length)] if span[0] != span[1]])


def _by_markers(
    conversation: Conversation,
    found: tuple[Sequence[Span], Sequence[str]],
    prefixes: Prefixes,
    chosen: Sequence[int],
    spans_of_first: Callable[[int], Sequence[Span]],
) -> list[Span]:
    """Those of the marked spans that are of `chosen` messages; others by growing prefixes.

    `found` are the marked spans and their texts. That there are as many as turns does not tell
    which is whose, as a template may mark a turn twice and another not at all: what a turn says
    must stand in its span.

    `spans_of_first(n)` gives the marked spans of the first n messages alone, proved to be the first
    of all: it tells which span is whose where that does not go without saying.
    """
    marked, texts = found
    roles = [message.get("role") for message in conversation.messages]
    turns = [at for at, role in enumerate(roles) if role == "assistant"]
    spans = [prefixes.said(at) for at in chosen if roles[at] != "assistant"]
    spoken = [at for at in chosen if roles[at] == "assistant"]
    if spoken == turns:
        spans += marked
    elif len(marked) == len(turns) and all(
        _says(conversation.messages[at], text) for at, text in zip(turns, texts, strict=True)
    ):
        spans += [marked[turns.index(at)] for at in spoken]
    else:
        for at in spoken:
            before, after = len(spans_of_first(at)), len(spans_of_first(at + 1))
            spans += marked[before:after]
    return _disjoint(sorted(span for span in spans if span[0] != span[1]))


def _says(message: Mapping[str, Any], text: str) -> bool:
    """Whether `text` holds what the assistant's `message` says: its words, or what it calls."""
    content = message.get("content")
    said = [content] if isinstance(content, str) else []
    for call in message.get("tool_calls") or ():
        name = call["function"].get("name") if isinstance(call, dict) and "function" in call else 0
        said += [name] if isinstance(name, str) else []
    bare = ["".join((part, "")).strip() for part in said]  # of a skeleton its characters
    bare = [part for part in bare if part]
    return bool(bare) and all(part in text for part in bare)


def _disjoint(spans: list[Span]) -> list[Span]:
    for before, after in pairwise(spans):
        if after[0] < before[1]:
            raise RenderError("unmaskable", "two of its messages are rendered as one")
    return spans
