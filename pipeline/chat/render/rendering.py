"""Conversations to text with the spans to train on, by their chat template, proved.

Guarantees: the text is what the template gives for the whole conversation (what transformers'
`apply_chat_template` gives); the spans are those that its generation markers enclose, or, without
markers, what each trained message adds to the rendering of those before it. Nothing is guessed:
where a proof fails the record is refused. What comes out for a record depends on it alone, not on
those before it.

Costs 2 to 4 us for a conversation of a structure seen before, where the template only puts its
texts somewhere (plans.py), 50 to 150 us otherwise (plain.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np

from ..planning import Planner
from ..records.conversation import Conversation, Turned
from ..template.compiled import OUT_OF_MEMORY, RenderError
from ..trace.batches import Alike, alike
from ..trace.specialized import Plan, Plans
from ..trace.structure import structure
from ..trace.symbolic import Trace
from .reference import CutError, PlainRenderer, Rendered, with_thinking
from .spans import Span, TrainOn
from .special_spelling import Spelling

__all__ = ["Filled", "Rendered", "Renderer"]

Filled = tuple[bytes, list[int]]
"""A text in UTF-8, and where its spans start and stop in it, in bytes, one after the other."""

_FEW = 4  # conversations, of which filling in a plan together costs as much as one by one
_MAX_FILLED = 1 << 20  # characters; larger ones have their steps counted


class Renderer:
    """Renders conversations by one template; `special_text` counts what spells special tokens.

    `variables` are bos_token, eos_token and the like, and what else the template knows. `date`
    (YYYY-MM-DD) is today to templates that ask, `origin` the name of the template in
    errors. Raises `InputError` for a template that does not compile.

    >>> renderer = Renderer("{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
    ...                     "{% if add_generation_prompt %}assistant: {% endif %}")
    >>> renderer.render(Conversation(messages=[{"role": "user", "content": "Hi"},
    ...                                        {"role": "assistant", "content": "Yes?"}]))
    Rendered(text='user: Hi\\nassistant: Yes?\\n', spans=[(20, 25)], literal=[])
    """

    def __init__(
        self, template: str, *, train_on: TrainOn = "assistant",
        variables: Mapping[str, Any] | None = None, special_tokens: Sequence[str] = (),
        literal: bool = True, date: str | None = None, origin: str = "",
    ) -> None:  # fmt: skip
        tokens = tuple(filter(None, special_tokens))
        self._plain = PlainRenderer(
            template, train_on=train_on, variables=variables or {}, special_tokens=tokens,
            literal=literal, date=date, origin=origin,
        )  # fmt: skip
        self._new_planner = partial(
            Planner, template, train_on=train_on, variables=variables or {}, special_tokens=tokens,
            date=date,
        )  # fmt: skip
        self._plans = Plans()
        self._spelling = Spelling(tokens)
        self._literal = literal
        self.special_text: Counter[str] = Counter()
        self.refuted = 0
        """Plans that did not give what their first record is; 0, or there is a bug."""

    @cached_property
    def _planner(self) -> Planner:
        return self._new_planner()  # compiles the template once more: 10 ms

    @property
    def masked_by(self) -> str:
        """How spans are found: "generation" (the template's markers) or "prefixes"."""
        return "generation" if self._plain.has_markers else "prefixes"

    def render(self, conversation: Conversation) -> Rendered:
        """Text and spans of `conversation`; raises `RenderError`."""
        try:
            return self._rendered(conversation)
        except RecursionError as error:
            raise RenderError("template_limit", "it nests too deeply") from error
        except MemoryError as error:
            raise RenderError(OUT_OF_MEMORY, "it takes more memory than it may") from error

    def fill(
        self, conversations: Sequence[Conversation], turned: Turned | None = None
    ) -> list[Filled | None]:
        """What `render` gives for those that are alike and of a structure seen before.

        None in the place of the others: they are to be rendered. `turned` are their turns, if they
        are known to be all that there is to them. Costs 2 us each.
        """
        found: list[Filled | None] = [None] * len(conversations)
        for shape, all_alike in alike(conversations, turned).items():
            group = self._plain_ones(all_alike)
            if len(group.rows) < _FEW:
                continue
            for plan, chosen in self._plans.settle(shape, group.rows):
                if plan.loose:
                    continue
                try:
                    texts, edges = plan.fill([group.rows[number] for number in chosen])
                except MemoryError:
                    continue  # one by one, they may take less
                full = list(np.all(edges[:, 1::2] > edges[:, ::2], axis=1))  # no span is empty
                filled = zip(texts, edges.tolist(), strict=True)
                for number, one, good in zip(chosen, filled, full, strict=True):
                    if good and len(one[0]) <= _MAX_FILLED:
                        found[group.numbers[number]] = one
        return found

    def _plain_ones(self, group: Alike) -> Alike:
        """Those of `group` that spell no special token; most often it is all, seen in one look."""
        counts = self._spelling.counts
        if counts(chain.from_iterable(group.rows)) is None:
            return group
        kept = [at for at, row in enumerate(group.rows) if counts(row) is None]
        return Alike([group.numbers[at] for at in kept], [group.rows[at] for at in kept])

    def _rendered(self, conversation: Conversation) -> Rendered:
        shape, values, is_usual = structure(conversation)
        texts = values
        if not is_usual:
            known = with_thinking(conversation)
            if known is not conversation:
                conversation = known
                shape, values, _ = structure(conversation)
            texts = self._spelling.texts(values)
        spelled = self._spelling.counts(texts)
        filled = values.copy()
        branch = self._plans.find(shape, filled)
        rendered = None
        if branch is not None and branch.plan is not None:
            rendered = self._filled(branch.plan, filled, spelled=spelled is not None)
        if rendered is None:
            rendered = self._one(
                conversation, shape, values, spelled=spelled is not None, new=branch is None
            )
        if spelled is not None:
            self.special_text.update(spelled)
        return rendered

    def _filled(self, plan: Plan, values: list[Any], *, spelled: bool) -> Rendered | None:
        text = plan.text(values)
        spans = plan.spans(values, text)
        if spans is None or len(text) > _MAX_FILLED:
            return None
        literal: list[Span] = []
        if spelled and self._literal:
            if plan.is_mixed:
                return None
            for start, part in plan.placed(values):
                literal += self._spelling.spans(part, start)
        return Rendered(text, spans, literal)

    def _one(
        self, conversation: Conversation, shape: Hashable, values: list[Any], *, spelled: bool,
        new: bool,
    ) -> Rendered:  # fmt: skip
        """`conversation` rendered as it is; if it is `new`, and not the first, a plan is made.

        Where that fails for its spans alone, a plan may still find them, of the first one too.
        """
        try:
            rendered = self._plain.render(conversation)
        except RenderError as error:
            if not new or not (error.reason == "unmaskable" or isinstance(error, CutError)):
                raise
            planned = self._learn(conversation, shape, values, None, spelled=spelled)
            if planned is None:
                raise
            return planned
        if new and self._plans.seen(shape):
            self._learn(conversation, shape, values, rendered, spelled=spelled)
        return rendered

    def _learn(
        self, conversation: Conversation, shape: Hashable, values: list[Any],
        expected: Rendered | None, *, spelled: bool,
    ) -> Rendered | None:  # fmt: skip
        """Make a plan, and keep it if it gives for `conversation` what is `expected` of it."""
        trace = Trace(values)
        plan = rendered = None
        try:
            plan = self._planner.plan(conversation, trace)
        except RenderError:
            pass
        else:
            rendered = self._filled(plan, trace.values, spelled=spelled)
            text = self._plain.text(conversation) if expected is None else expected.text
            known = rendered is not None and expected is not None
            if plan.text(trace.values) != text or (known and rendered != expected):
                self.refuted += 1
                plan = rendered = None
        self._plans.add(shape, trace.steps, plan)
        return rendered
