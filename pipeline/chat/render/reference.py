"""Conversations to text with the spans to train on: each by the template itself, and proved.

This is the plain way, the one that the fast way (plans.py) must agree with: the whole conversation
is rendered, then its prefixes or, where the template has generation markers, once more with marks.
It costs 50 to 150 us for a conversation of two messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..records.conversation import Conversation
from ..template.compiled import CompiledTemplate, RenderError
from .session import Work, marks_for
from .spans import Span, TrainOn, find_spans, wanted
from .special_spelling import Spelling, texts_in

__all__ = ["CutError", "PlainRenderer", "Rendered", "with_thinking"]


class CutError(RenderError):
    """A special token that a record spells cannot be followed through the template."""


class Rendered(NamedTuple):
    """The text of one conversation.

    `spans` (character positions, increasing, disjoint, not empty) are trained on. `literal` are
    those where the record itself spells a special token: text, not the token.
    """

    text: str
    spans: list[Span]
    literal: list[Span]


class PlainRenderer:
    """Renders conversations one by one; the arguments are those of `rendering.Renderer`."""

    def __init__(
        self, template: str, *, train_on: TrainOn, variables: Mapping[str, Any],
        special_tokens: tuple[str, ...], literal: bool, date: str | None, origin: str = "",
    ) -> None:  # fmt: skip
        self._template = CompiledTemplate(template, variables, date=date, origin=origin)
        self._train_on = train_on
        self._special_tokens = special_tokens
        self._spelling = Spelling(special_tokens)
        self._literal = literal

    @property
    def has_markers(self) -> bool:
        """Whether the template marks what is generated."""
        return self._template.has_markers

    def text(self, conversation: Conversation) -> str:
        """The text alone; raises `RenderError`."""
        work = self._work(with_thinking(conversation))
        return work.render(work.messages)

    def render(self, conversation: Conversation) -> Rendered:
        """Text and spans; raises `RenderError`."""
        conversation = with_thinking(conversation)
        chosen = wanted(conversation, self._train_on)
        self._check_roles(conversation)
        work = self._work(conversation)
        text = work.render(work.messages)
        if not text:
            raise RenderError("template", "the template makes no text of it")
        spans = find_spans(
            work, text, conversation, chosen, train_on=self._train_on,
            special_tokens=self._special_tokens,
        )  # fmt: skip
        if not spans:
            raise RenderError("no_assistant", "the template marks nothing in it as generated")
        return Rendered(text, spans, self._literal_spans(work, text) if self._literal else [])

    def _work(self, conversation: Conversation) -> Work:
        messages, tools = conversation.messages, conversation.tools
        texts = [*texts_in(messages), *texts_in(tools)]
        return Work(self._template, messages, tools, sum(map(len, texts)))

    def _check_roles(self, conversation: Conversation) -> None:
        """A role goes between the template's own words, and is looked at: it cannot be marked."""
        for at, message in enumerate(conversation.messages):
            role = message.get("role")
            if isinstance(role, str) and self._spelling.spans(role):
                problem = f"the role of message {at + 1} spells a special token"
                raise RenderError("roles", problem)

    def _literal_spans(self, work: Work, text: str) -> list[Span]:
        texts: Sequence[str] = [*texts_in(work.messages), *texts_in(work.tools)]
        if not self._spelling.counts(texts):
            return []
        marks = marks_for(text)
        messages = self._spelling.marked(work.messages, marks)
        tools = self._spelling.marked(work.tools, marks)
        marked = work.template.render(messages, tools, characters=work.characters)
        same, spans = self._spelling.unmark(marked, marks)
        if same != text:
            raise CutError(
                "template", "it spells a special token, and the template cuts the text there"
            )
        return spans


def with_thinking(conversation: Conversation) -> Conversation:
    """`conversation` with reasoning under both of the names that templates know.

    Transformers does the same.
    """
    for message in conversation.messages:
        if "reasoning_content" in message:
            break
    else:
        return conversation
    messages = [
        message
        if message.get("reasoning_content") is None
        else {"thinking": message["reasoning_content"], **message}
        for message in conversation.messages
    ]
    return Conversation(
        messages=messages, tools=conversation.tools, prompt=conversation.prompt,
        train=conversation.train,
    )  # fmt: skip
