"""Choice of the messages to train on, and location of their spans in the rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from ..records.conversation import Conversation
from ..template.compiled import CompiledTemplate, RenderError
from ..template.generation import unmark, unused
from .prefixes import Prefixes

__all__ = [
    "MAX_RENDERED",
    "Session",
    "Span",
    "TrainOn",
    "find_spans",
    "marks_for",
    "messages_to_train",
]

Span = tuple[int, int]
TrainOn = Literal["all", "assistant", "last"]

MAX_RENDERED = 1_000_000
"""Largest number of messages in all renderings of one conversation together. The prefixes of 1,000
messages hold 750,000 and take seconds."""


class Session:
    """Conversation that can be rendered whole, in part, or with marks.

    The argument `characters` is the approximate size of `messages` and `tools`; see
    `CompiledTemplate.render`.
    """

    def __init__(
        self, template: CompiledTemplate, messages: list[dict[str, Any]], tools: list[Any] | None,
        characters: int,
    ) -> None:  # fmt: skip
        self.template = template
        self.messages = messages
        self.tools = tools
        self.characters = characters
        self._rendered = 0

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        """Return the rendering of `messages` with the tools of this conversation.

        Raise `RenderError` if the template fails, or if too many messages have been rendered.
        """
        self._rendered += len(messages)
        if self._rendered > MAX_RENDERED:
            raise RenderError(
                "template_limit",
                f"finding what to train on in {len(self.messages):,} messages takes too many"
                " renderings of prefixes; give a --template with generation markers, or take"
                " --train-on all",
            )
        return self.template.render(messages, self.tools, prompt=prompt, characters=self.characters)

    def prefixes(self, text: str, special_tokens: tuple[str, ...]) -> Prefixes:
        """Return a `Prefixes` that locates the messages in `text`, their rendering."""
        return Prefixes(self.render, self.messages, text, special_tokens)

    def marked_spans(self, count: int, text: str) -> list[Span]:
        """Return the spans that the template marks in the first `count` messages.

        The argument `text` is the rendering of these messages. Raise `RenderError` if the marks are
        nested or change the text.
        """
        marks = marks_for(text)
        marked = self.template.render(
            self.messages[:count], self.tools, marks=marks, characters=self.characters
        )
        try:
            same, spans = unmark(marked, marks)
        except ValueError as error:
            raise RenderError("unmaskable", str(error)) from error
        if same != text:
            raise RenderError("unmaskable", "the template changes text by its own markers")
        return spans

    def first_spans(self, marked: Sequence[Span], count: int) -> list[Span]:
        """Return the spans that the template marks if it renders only the first `count` messages.

        The list `marked` holds the spans in the rendering of all messages. Raise `RenderError` if
        `marked` does not begin with the returned spans.
        """
        if count == len(self.messages):
            return list(marked)
        spans = self.marked_spans(count, self.render(self.messages[:count])) if count else []
        if spans != list(marked[: len(spans)]):
            raise RenderError(
                "unmaskable", f"the template marks its first {count} messages otherwise alone"
            )
        return spans


def marks_for(text: str) -> str:
    """Return two noncharacters that `text` does not contain, for marking spans.

    Raise `RenderError` if `text` contains nearly all noncharacters.
    """
    try:
        return unused(text, 2)
    except ValueError as error:
        raise RenderError("template", str(error)) from error


def messages_to_train(conversation: Conversation, train_on: TrainOn) -> list[int]:
    """Return the indexes of the messages to train on, in order. The prompt is never trained on.

    A flag that the record has for a message overrides `train_on`. Raise `RenderError`
    ("no_assistant") if there is no message to train on.
    """
    messages = conversation.messages
    flags = conversation.train or [None] * len(messages)
    places = range(conversation.prompt, len(messages))
    if train_on == "all":
        chosen = [at for at in places if flags[at] is not False]
    else:
        turns = [at for at in places if messages[at].get("role") == "assistant"]
        if train_on == "last":
            turns = turns[-1:]
        kept = {at for at in turns if flags[at] is not False}
        chosen = [at for at in places if at in kept or flags[at]]
    if not chosen:
        raise RenderError("no_assistant", _why_none(conversation))
    return chosen


def _why_none(conversation: Conversation) -> str:
    turns = sum(message.get("role") == "assistant" for message in conversation.messages)
    if not turns:
        return f"none of its {len(conversation.messages)} messages is the assistant's"
    return f"none of its {turns} assistant messages is to be trained on"


def find_spans(
    session: Session, text: str, conversation: Conversation, chosen: Sequence[int], *,
    train_on: TrainOn, special_tokens: tuple[str, ...],
) -> list[Span]:  # fmt: skip
    """Return the spans of the messages with the indexes `chosen` in the rendering `text`.

    Raise `RenderError` if a span cannot be located with certainty.
    """
    prefixes = session.prefixes(text, special_tokens)
    if train_on == "all":
        return _everything(conversation, prefixes, chosen, len(text))
    if not session.template.has_markers:
        return _disjoint([prefixes.words_span(at) for at in chosen])
    return _by_markers(session, text, conversation, prefixes, chosen)


def _everything(
    conversation: Conversation, prefixes: Prefixes, chosen: Sequence[int], length: int
) -> list[Span]:
    """Return the spans of all text outside the prompt and the messages that are not `chosen`.

    The rendering has `length` characters. Raise `RenderError` if a span cannot be located with
    certainty.
    """
    first = conversation.prompt
    start = prefixes.words_start(first) if first else 0
    left_out = [at for at in range(first, len(conversation.messages)) if at not in chosen]
    spans: list[Span] = []
    for at in left_out:
        begin, end = prefixes.added_span(at)
        spans.append((start, begin))
        start = end
    return _disjoint([span for span in [*spans, (start, length)] if span[0] < span[1]])


def _by_markers(
    session: Session, text: str, conversation: Conversation, prefixes: Prefixes,
    chosen: Sequence[int],
) -> list[Span]:  # fmt: skip
    """Return the spans of the messages with the indexes `chosen`, for a template with markers.

    Messages whose role is not "assistant" are located by `prefixes`. If all assistant messages are
    chosen, all marked spans are returned. If only some are chosen, their marked spans are found as
    follows:

    - If there are as many marked spans as assistant messages, and each span contains the words of
      its message, they match in order. The words are compared because a template may mark one
      message twice and another never.
    - Otherwise, the conversation up to a chosen message is rendered without this message and then
      with it. The marked spans that only the second rendering has belong to this message.
    """
    marked = session.marked_spans(len(session.messages), text)
    roles = [message.get("role") for message in conversation.messages]
    turns = [at for at, role in enumerate(roles) if role == "assistant"]
    spans = [prefixes.words_span(at) for at in chosen if roles[at] != "assistant"]
    spoken = [at for at in chosen if roles[at] == "assistant"]
    if spoken == turns:
        spans += marked
    elif len(marked) == len(turns) and all(
        _holds_words(text[slice(*span)], conversation.messages[at])
        for at, span in zip(turns, marked, strict=True)
    ):
        spans += [marked[turns.index(at)] for at in spoken]
    else:
        for at in spoken:
            before = len(session.first_spans(marked, at))
            after = len(session.first_spans(marked, at + 1))
            spans += marked[before:after]
    return _disjoint(sorted(span for span in spans if span[0] != span[1]))


def _holds_words(text: str, message: Mapping[str, Any]) -> bool:
    """Return whether `text` contains the content of `message` and the names of the tools it calls.

    Return False if the message has neither content nor calls.
    """
    content = message.get("content")
    said = [content] if isinstance(content, str) else []
    for call in message.get("tool_calls") or ():
        name = call["function"].get("name") if isinstance(call, dict) and "function" in call else 0
        said += [name] if isinstance(name, str) else []
    bare = ["".join((part, "")).strip() for part in said]  # a plain `str`, of symbolic text too
    bare = [part for part in bare if part]
    return bool(bare) and all(part in text for part in bare)


def _disjoint(spans: list[Span]) -> list[Span]:
    """Return `spans`. Raise `RenderError` if two of them overlap."""
    for before, after in pairwise(spans):
        if after[0] < before[1]:
            raise RenderError("unmaskable", "two of its messages are rendered as one")
    return spans
