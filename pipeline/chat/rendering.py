"""Conversations to text with the spans to train on: by the template itself, proved.

Guarantees: the text is what the template gives for the whole conversation (what transformers'
`apply_chat_template` gives); the spans are those that its generation markers enclose, or, without
markers, what each trained message adds to the rendering of those before it. Nothing is guessed:
where a proof fails the record is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dataprep.pipeline.chat.compiled import CompiledTemplate, RenderError
from dataprep.pipeline.chat.conversation import Conversation
from dataprep.pipeline.chat.generation import unmark, unused
from dataprep.pipeline.chat.literal import Spelling, texts_in
from dataprep.pipeline.chat.prefixes import Prefixes
from dataprep.pipeline.chat.spans import (
    Span,
    TrainOn,
    by_markers,
    by_prefixes,
    everything,
    wanted,
)

__all__ = ["Rendered", "Renderer"]


class Rendered(NamedTuple):
    """The text of one conversation.

    `spans` (character positions, increasing, disjoint, not empty) are trained on. `literal` are
    those where the record itself spells a special token: text, not the token.
    """

    text: str
    spans: list[Span]
    literal: list[Span]


class Renderer:
    """Renders conversations by one template; `special_text` counts what spells special tokens.

    `variables` are bos_token, eos_token and the like, and what else the template knows. `date`
    (YYYY-MM-DD) is today to templates that ask. Raises `InputError` for a template that does not
    compile.

    >>> renderer = Renderer("{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
    ...                     "{% if add_generation_prompt %}assistant: {% endif %}")
    >>> renderer.render(Conversation(messages=[{"role": "user", "content": "Hi"},
    ...                                        {"role": "assistant", "content": "Yes?"}]))
    Rendered(text='user: Hi\\nassistant: Yes?\\n', spans=[(20, 25)], literal=[])
    """

    def __init__(
        self, template: str, *, train_on: TrainOn = "assistant",
        variables: Mapping[str, Any] | None = None, special_tokens: Sequence[str] = (),
        literal: bool = True, date: str | None = None,
    ) -> None:  # fmt: skip
        self._template = CompiledTemplate(template, variables, date=date)
        self._train_on = train_on
        self._special_tokens = tuple(filter(None, special_tokens))
        self._spelling = Spelling(self._special_tokens)
        self._literal = literal
        self.special_text: Counter[str] = Counter()

    @property
    def masked_by(self) -> str:
        """How spans are found: "generation" (the template's markers) or "prefixes"."""
        return "generation" if self._template.has_markers else "prefixes"

    def render(self, conversation: Conversation) -> Rendered:
        """Text and spans of `conversation`; raises `RenderError`."""
        chosen = wanted(conversation, self._train_on)
        messages = [_known(message) for message in conversation.messages]
        texts = [*texts_in(messages), *texts_in(conversation.tools)]
        spelled = self._spelling.counts(texts)
        work = _Work(self._template, messages, conversation.tools, sum(map(len, texts)))
        text = work.render(messages)
        spans = self._spans(work, conversation, text, chosen)
        if not spans:
            why = "marks nothing in it as generated" if text else "makes no text of it"
            raise RenderError("no_assistant", f"the template {why}")
        self.special_text.update(spelled)
        literal = self._literal_spans(work, text) if spelled and self._literal else []
        return Rendered(text, spans, literal)

    def _spans(
        self, work: _Work, conversation: Conversation, text: str, chosen: Sequence[int]
    ) -> list[Span]:
        prefixes = Prefixes(work.render, work.messages, text, self._special_tokens)
        if self._train_on == "all":
            return everything(conversation, prefixes, chosen, len(text))
        if not self._template.has_markers:
            return by_prefixes(conversation, prefixes, chosen)
        marked = work.marked_spans(len(work.messages), text)
        first_spans = partial(work.first_spans, marked)
        return by_markers(conversation, marked, prefixes, chosen, first_spans)

    def _literal_spans(self, work: _Work, text: str) -> list[Span]:
        marks = _unused(text)
        messages = self._spelling.marked(work.messages, marks)
        tools = self._spelling.marked(work.tools, marks)
        marked = work.template.render(messages, tools, characters=work.characters)
        same, spans = self._spelling.unmark(marked, marks)
        if same != text:
            raise RenderError(
                "template", "it spells a special token, and the template cuts the text there"
            )
        return spans


class _Work:
    """One conversation under way."""

    def __init__(
        self, template: CompiledTemplate, messages: list[dict[str, Any]], tools: list[Any] | None,
        characters: int,
    ) -> None:  # fmt: skip
        self.template = template
        self.messages = messages
        self.tools = tools
        self.characters = characters

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        return self.template.render(messages, self.tools, prompt=prompt, characters=self.characters)

    def marked_spans(self, count: int, text: str) -> list[Span]:
        """What the template marks of the first `count` messages, which it renders as `text`."""
        marks = _unused(text)
        marked = self.template.render(
            self.messages[:count], self.tools, marks=marks, characters=self.characters
        )
        try:
            same, spans = unmark(marked, marks)
        except ValueError as error:
            raise RenderError("unmaskable", f"{error}; mend the template") from error
        if same != text:
            raise RenderError(
                "unmaskable", "the template changes text by its own markers; mend the template"
            )
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


def _unused(text: str) -> str:
    try:
        return unused(text, 2)
    except ValueError as error:
        raise RenderError("template", str(error)) from error


def _known(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with its reasoning under both of the names that templates know, as transformers."""
    reasoning = message.get("reasoning_content")
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message}
