"""One conversation under way: its renderings, whole, in part, and with marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..template.compiled import CompiledTemplate, RenderError
from ..template.generation import unmark, unused
from .prefixes import Prefixes

__all__ = ["Work", "marks_for"]

Span = tuple[int, int]

MAX_RENDERED = 1_000_000
"""Messages, in all renderings of one conversation: growing prefixes of 1,000 messages have 750,000
of them, and take seconds."""


class Work:
    """`messages` and `tools` of about so many `characters`, to be rendered by `template`."""

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
        """The text of `messages`, with these tools."""
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
        """Where the messages stand in their rendering `text`."""
        return Prefixes(self.render, self.messages, text, special_tokens)

    def marked_spans(self, count: int, text: str) -> list[Span]:
        """What the template marks of the first `count` messages, which it renders as `text`."""
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
        """The spans of the first `count` messages alone, which must be the first of `marked`."""
        if count == len(self.messages):
            return list(marked)
        spans = self.marked_spans(count, self.render(self.messages[:count])) if count else []
        if spans != list(marked[: len(spans)]):
            raise RenderError(
                "unmaskable", f"the template marks its first {count} messages otherwise alone"
            )
        return spans


def marks_for(text: str) -> str:
    """Two characters that `text` does not hold."""
    try:
        return unused(text, 2)
    except ValueError as error:
        raise RenderError("template", str(error)) from error
