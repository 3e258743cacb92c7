"""Making a plan for the structure of a conversation, or finding that there can be none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .records.conversation import Conversation
from .render.prefixes import Prefixes, Render
from .render.session import Work
from .render.spans import Span, TrainOn, find_spans, wanted
from .render.special_spelling import texts_in
from .template.compiled import CompiledTemplate, Messages, RenderError
from .trace.specialized import Plan, plan_of
from .trace.structure import Opened, looked_at
from .trace.symbolic import FIRST, Trace, is_open
from .trace.tracing import TracingEnvironment

__all__ = ["Planner"]


class Planner:
    """Makes plans for one template."""

    def __init__(
        self, template: str, *, variables: Mapping[str, Any], train_on: TrainOn,
        special_tokens: tuple[str, ...], date: str | None,
    ) -> None:  # fmt: skip
        self._environment = TracingEnvironment(date)
        self._template = _Bare(template, variables, environment=self._environment)
        self._train_on = train_on
        self._special_tokens = special_tokens
        self._longest = max(map(len, special_tokens), default=0)
        # Escapes in a template might spell characters that stand for texts.
        self._is_closed = not (
            self._template.escapes or is_open([template, *texts_in(dict(variables))])
            or "\\U" in template or "\\N" in template
        )  # fmt: skip

    def plan(self, conversation: Conversation, trace: Trace) -> Plan:
        """A plan for conversations of this structure that answer the same; `trace` has the texts.

        Raises `RenderError` where there is none.
        """
        if not self._is_closed or any(map(is_open, looked_at(conversation))):
            raise RenderError("template", "its own text may be taken for another's")
        self._environment.trace = trace
        at_hand = Opened(conversation, trace)
        work = _OpenWork(self._template, at_hand, trace)
        skeleton = work.render(work.messages)
        chosen = wanted(conversation, self._train_on)
        spans = find_spans(
            work, skeleton, conversation, chosen, train_on=self._train_on,
            special_tokens=self._special_tokens,
        )  # fmt: skip
        if (
            self._train_on != "all"
            and self._template.has_markers
            and any(conversation.messages[at].get("role") != "assistant" for at in chosen)
        ):
            raise RenderError("unmaskable", "spans of both kinds are in it")
        if not spans:
            raise RenderError("no_assistant", "nothing of it is marked")
        if any(ord(character) - FIRST >= len(trace.values) for character in skeleton):
            raise RenderError("template", "it writes characters that stand for texts")
        loose = [at for at, span in enumerate(spans) if self._is_loose(skeleton, span)]
        mixed = any(trace.is_mixed(character) for character in skeleton)
        return plan_of(
            skeleton, spans, loose=loose, is_mixed=mixed, special_tokens=self._special_tokens
        )

    def _is_loose(self, skeleton: str, span: Span) -> bool:
        """Whether white space at the end of `span` may follow a special token that a text ends."""
        if self._template.has_markers or self._train_on == "all" or not self._special_tokens:
            return False
        said = skeleton[slice(*span)]
        bare = said.rstrip()
        tail = 0
        while tail < len(bare) and ord(bare[-1 - tail]) < FIRST:
            tail += 1
        if bare.endswith(self._special_tokens) and len(bare) == len(said):
            return False
        if said != bare:
            return tail < self._longest
        return tail == 0  # the text itself may end in white space


class _Bare(CompiledTemplate):
    """Gives skeletons as plain text, which the proofs take apart."""

    def render(self, messages: Messages, tools: Any = None, **options: Any) -> str:
        return "".join((super().render(messages, tools, **options), ""))


class _OpenWork(Work):
    """A conversation with skeletons in it under way."""

    def __init__(self, template: CompiledTemplate, opened: Opened, trace: Trace) -> None:
        super().__init__(template, opened.messages, opened.tools, 0)
        self._ends = opened.ends
        self._trace = trace

    def prefixes(self, text: str, special_tokens: tuple[str, ...]) -> Prefixes:
        """As for a real record, and one way more."""
        return _Tails(self.render, self.messages, text, special_tokens, self._is_of)

    def _is_of(self, message: int, character: str) -> bool:
        """Whether what `character` stands for comes of `message`."""
        first = self._ends[message - 1] if message else 0
        origins = self._trace.origins(character)
        return all(first <= origin < self._ends[message] for origin in origins)


class _Tails(Prefixes):
    """Finds an answer also where the template renders it otherwise when others follow.

    Thoughts are dropped from earlier answers, say. On skeletons it can be seen where the texts of
    the answer stand, so its end is after the last of them and what closes it when it is the last.
    """

    def __init__(
        self, render: Render, messages: Messages, text: str, special_tokens: tuple[str, ...],
        is_of: Callable[[int, str], bool],
    ) -> None:  # fmt: skip
        super().__init__(render, messages, text, special_tokens)
        self._is_of = is_of

    def _span(self, index: int, before: str) -> Span:
        try:
            return super()._span(index, before)
        except RenderError as error:
            span = self._by_tail(index, before)
            if span is None:
                raise error
            return span

    def _by_tail(self, index: int, before: str) -> Span | None:
        after = self._prefix(index + 1, prompt=False)
        whole = self._text
        if not whole.startswith(before) or not after.startswith(before):
            return None
        end = len(after)
        while end > len(before) and ord(after[end - 1]) < FIRST:
            end -= 1
        tail = after[end:]
        open_ = [at for at in range(len(before), len(whole)) if ord(whole[at]) >= FIRST]
        own = 0
        while own < len(open_) and self._is_of(index, whole[open_[own]]):
            own += 1
        if not tail or not own or not self._is_of(index, after[end - 1]):
            return None
        last = open_[own - 1] + 1
        return (len(before), last + len(tail)) if whole.startswith(tail, last) else None
