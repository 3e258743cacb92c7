"""Reference renderer, which runs the template on each conversation and checks the spans.

The faster specializations (specialize.py) must give the same results. The whole conversation is
rendered first. If the template has generation markers, the conversation is rendered a second time,
with marks. Otherwise, its prefixes are rendered. A conversation of two messages takes 50 to 150 us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..records.conversation import Conversation
from ..template.compiled import CompiledTemplate, RenderError
from .spans import Session, Span, TrainOn, find_spans, marks_for, messages_to_train
from .special_spelling import Spelling, texts_in

__all__ = ["CutError", "ReferenceRenderer", "Rendered", "with_thinking"]


class CutError(RenderError):
    """Error raised if a template splits a special token that a record contains as plain text."""


class Rendered(NamedTuple):
    """Rendered text of one conversation, with spans in characters.

    The text in `spans` is trained on. Each span in `literal` is a special token that the record
    contains as plain text, and that must stay text. Spans are in order, do not overlap, and are not
    empty.
    """

    text: str
    spans: list[Span]
    literal: list[Span]


class ReferenceRenderer:
    """Renderer for single conversations. The arguments are those of `trace.renderer.Renderer`."""

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
        """Whether the template marks generated text."""
        return self._template.has_markers

    def text(self, conversation: Conversation) -> str:
        """Return the rendered text, without spans. Raise `RenderError` if the template fails."""
        session = self._session(with_thinking(conversation))
        return session.render(session.messages)

    def render(self, conversation: Conversation) -> Rendered:
        """Return the rendered text and its spans.

        Raise `RenderError` if the template fails, if there is nothing to train on, or if the spans
        cannot be located with certainty.
        """
        conversation = with_thinking(conversation)
        chosen = messages_to_train(conversation, self._train_on)
        self._check_roles(conversation)
        session = self._session(conversation)
        text = session.render(session.messages)
        if not text:
            raise RenderError("template", "the template makes no text of it")
        spans = find_spans(
            session, text, conversation, chosen, train_on=self._train_on,
            special_tokens=self._special_tokens,
        )  # fmt: skip
        if not spans:
            raise RenderError("no_assistant", "the template marks nothing in it as generated")
        return Rendered(text, spans, self._literal_spans(session, text) if self._literal else [])

    def _session(self, conversation: Conversation) -> Session:
        messages, tools = conversation.messages, conversation.tools
        texts = [*texts_in(messages), *texts_in(tools)]
        return Session(self._template, messages, tools, sum(map(len, texts)))

    def _check_roles(self, conversation: Conversation) -> None:
        """Raise `RenderError` if a role contains a special token.

        Templates compare roles with fixed words, so marks cannot be put around a special token in a
        role.
        """
        for at, message in enumerate(conversation.messages):
            role = message.get("role")
            if isinstance(role, str) and self._spelling.spans(role):
                problem = f"the role of message {at + 1} spells a special token"
                raise RenderError("roles", problem)

    def _literal_spans(self, session: Session, text: str) -> list[Span]:
        texts: Sequence[str] = [*texts_in(session.messages), *texts_in(session.tools)]
        if not self._spelling.counts(texts):
            return []
        marks = marks_for(text)
        messages = self._spelling.marked(session.messages, marks)
        tools = self._spelling.marked(session.tools, marks)
        marked = session.template.render(messages, tools, characters=session.characters)
        same, spans = self._spelling.unmark(marked, marks)
        if same != text:
            raise CutError(
                "template", "it spells a special token, and the template cuts the text there"
            )
        return spans


def with_thinking(conversation: Conversation) -> Conversation:
    """Return `conversation` with a copy of each `reasoning_content` in a field `thinking`.

    Some templates read the first field, and others the second. The library transformers makes the
    same copy.
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
