"""Rendering of conversations with a chat template, and the spans of the text that are trained on.

The text is what `apply_chat_template` in transformers returns for the whole conversation. The spans
are the texts between generation markers. If the template has no markers, the span of a trained
message is the text that this message adds to the rendering of the messages before it. A record is
refused if a span cannot be located with certainty. The result for a record does not depend on
earlier records.

A rendering takes about 3 us if an earlier conversation had the same structure and the template only
inserts its texts (specialize.py). Otherwise it takes 50 to 150 us (render/reference.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

from ..records.conversation import Conversation, PlainTurns
from ..render.marked_texts import Filled, Marked, marked
from ..render.reference import CutError, ReferenceRenderer, with_thinking
from ..render.spans import TrainOn
from ..render.special_spelling import Spelling
from ..template.compiled import OUT_OF_MEMORY, RenderError
from .specialize import Specialization, Specializations, Specializer
from .structure import grouped, structure
from .symbolic import Trace

__all__ = ["Renderer"]


class _Analyzed(NamedTuple):
    """Conversation with its structure, its values, and the special tokens in these values."""

    conversation: Conversation
    structure: Hashable
    values: list[Any]
    spelled: Counter[str] | None


class Renderer:
    r"""Renderer for conversations by a template.

    The mapping `variables` holds the variables of the template, including special tokens such as
    `bos_token`. If `literal` is true, special tokens that records contain as plain text stay text.
    The text `date` (YYYY-MM-DD) is for templates that print today's date, and `origin` is the name
    of the template in errors. The attribute `special_text` counts how often records contained each
    special token. Raises `InputError` if the template does not compile.

    >>> renderer = Renderer("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ...                     "{% if add_generation_prompt %}assistant: {% endif %}")
    >>> renderer.render(Conversation(messages=[{"role": "user", "content": "Hi"},
    ...                                        {"role": "assistant", "content": "Yes?"}]))
    Marked(text=b'user: Hi\nassistant: Yes?\n', edges=[20, 25], literal=())
    """

    def __init__(
        self, template: str, *, train_on: TrainOn = "assistant",
        variables: Mapping[str, Any] | None = None, special_tokens: Sequence[str] = (),
        literal: bool = True, date: str | None = None, origin: str = "",
    ) -> None:  # fmt: skip
        tokens = tuple(filter(None, special_tokens))
        self._reference = ReferenceRenderer(
            template, train_on=train_on, variables=variables or {}, special_tokens=tokens,
            literal=literal, date=date, origin=origin,
        )  # fmt: skip
        self._new_specializer = partial(
            Specializer, template, train_on=train_on, variables=variables or {},
            special_tokens=tokens, date=date,
        )  # fmt: skip
        self._specializations = Specializations()
        self._spelling = Spelling(tokens)
        self._literal = literal
        self.special_text: Counter[str] = Counter()
        self.refuted = 0
        """Number of specializations that did not reproduce their first record; 0 without bugs."""

    @cached_property
    def _specializer(self) -> Specializer:
        return self._new_specializer()  # compiles the template once more: 10 ms

    @property
    def masked_by(self) -> str:
        """How spans are located: "generation" (by the template's markers) or "prefixes"."""
        return "generation" if self._reference.has_markers else "prefixes"

    def fill(
        self, conversations: Sequence[Conversation], turns: PlainTurns | None = None
    ) -> list[Filled | None]:
        """Return the rendering of each conversation, or None if it must be rendered by `render`.

        A conversation is rendered here only if it is plain (roles and texts, nothing else), its
        texts contain no special tokens, and its structure is known. This takes 2 us per
        conversation. If all `conversations` are known to be plain, `turns` may hold their turns.
        """
        found: list[Filled | None] = [None] * len(conversations)
        for key, group in grouped(conversations, turns).items():
            numbers, rows = self._unspelled(*group)
            for specialization, chosen in self._specializations.find_rows(key, rows):
                try:
                    filled = specialization.fill_rows([rows[at] for at in chosen])
                except MemoryError:
                    continue  # one by one they may take less
                for at, one in zip(chosen, filled, strict=True):
                    found[numbers[at]] = one
        return found

    def _unspelled(
        self, numbers: list[int], rows: list[list[Any]]
    ) -> tuple[list[int], list[list[Any]]]:
        """Return the `numbers` and `rows` of the records whose texts contain no special token.

        The item `numbers[i]` is the index of the conversation that has the texts `rows[i]`.
        """
        counts = self._spelling.counts
        if counts(chain.from_iterable(rows)) is None:
            return numbers, rows
        kept = [at for at, row in enumerate(rows) if counts(row) is None]
        return [numbers[at] for at in kept], [rows[at] for at in kept]

    def render(self, conversation: Conversation) -> Marked:
        """Return the rendering of `conversation`. Raise `RenderError` if it cannot be rendered."""
        try:
            found = self._analyze(conversation)
            rendered = self._render(found)
        except RecursionError as error:
            raise RenderError("template_limit", "it nests too deeply") from error
        except MemoryError as error:
            raise RenderError(OUT_OF_MEMORY, "it takes more memory than it may") from error
        if found.spelled is not None:
            self.special_text.update(found.spelled)
        return rendered

    def _analyze(self, conversation: Conversation) -> _Analyzed:
        conversation = with_thinking(conversation)
        key, values = structure(conversation)
        spelled = self._spelling.counts(self._spelling.texts(values))
        return _Analyzed(conversation, key, values, spelled)

    def _render(self, found: _Analyzed) -> Marked:
        entry = self._specializations.find(found.structure, found.values)
        if entry is None:
            return self._render_new(found)
        filled = None
        if entry.specialization is not None:
            filled = self._fill(entry.specialization, found, found.values)
        return filled or marked(*self._reference.render(found.conversation))

    def _fill(
        self, specialization: Specialization, found: _Analyzed, values: list[Any]
    ) -> Marked | None:
        filled = specialization.fill(values)
        if filled is None or found.spelled is None or not self._literal:
            return filled
        literal = specialization.literal(values, self._spelling)
        return None if literal is None else filled._replace(literal=literal or ())

    def _render_new(self, found: _Analyzed) -> Marked:
        """Render a record that fits no specialization, using the reference renderer.

        If the record is not the first of its structure, also make a specialization for later
        records. If the reference renderer cannot locate the spans with certainty, try a
        specialization, which can locate more spans. Raise `RenderError` if both fail.
        """
        try:
            rendered = marked(*self._reference.render(found.conversation))
        except RenderError as error:
            if error.reason != "unmaskable" and not isinstance(error, CutError):
                raise
            specialized = self._specialize(found, None)
            if specialized is None:
                raise
            return specialized
        if self._specializations.has_room(found.structure):
            self._specialize(found, rendered)
        return rendered

    def _specialize(self, found: _Analyzed, expected: Marked | None) -> Marked | None:
        """Make a specialization for the record `found`, and return what it renders for this record.

        The specialization is stored if it gives the text of the reference renderer and, if
        `expected` is given, the same spans. If there is no such specialization, a note is stored
        that the reference renderer must render similar records. Return None in this case, or if the
        specialization cannot render this record.
        """
        trace = Trace(found.values)
        specialization = filled = None
        try:
            specialization = self._specializer.specialize(found.conversation, trace)
        except RenderError:
            pass
        else:
            filled = self._fill(specialization, found, trace.values)
            text = expected.text if expected else self._reference.text(found.conversation).encode()
            is_same = filled is None or expected is None or filled == expected
            if specialization.text(trace.values) != text or not is_same:
                self.refuted += 1
                specialization = filled = None
        self._specializations.add(found.structure, trace.steps, specialization)
        return filled
