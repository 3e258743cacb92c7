"""Specializations: the output of a template for all conversations of one structure.

A specialization has gaps for the texts of a record. It is made by running the template on symbolic
text (symbolic.py). Spans are located in this symbolic text, in the same way as in the rendering of
a single record (prefixes.py, spans.py), and are therefore valid for all texts. If the template asks
a question about a text, the specialization is valid only for records that give the same answer.
Records with another answer need their own specialization.

To check a specialization, the reference renderer renders the record from which it was made, and
must give the same text. Filling in the texts of a record takes about 1 us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from ..records.conversation import Conversation
from ..render.marked_texts import Filled, Marked, byte_edges
from ..render.prefixes import Prefixes, Render, trimmed_length
from ..render.spans import Session, Span, TrainOn, find_spans, messages_to_train
from ..render.special_spelling import Spelling, texts_in
from ..template.compiled import CompiledTemplate, Messages, RenderError
from .environment import TracingEnvironment
from .structure import SymbolicConversation, structure_texts
from .symbolic import FIRST, OPERATIONS, QUESTIONS, Step, Trace, is_symbolic

__all__ = ["Entry", "Specialization", "Specializations", "Specializer", "specialization_of"]

Values = list[Any]
_CompiledStep = tuple[Callable[..., Any], Callable[[Values], Any], tuple[Any, ...], bool | None]
_FIRST = chr(FIRST)
_FEW = 4  # rows that cost as much filled together as one by one
_MAX_ENTRIES = 4096  # in all; beyond that few records can have the same structure
_MAX_VARIANTS = 32  # entries of one structure: trying all of them costs as much as rendering
_MAX_DERIVED = 8 << 20  # characters; records that derive more are rendered by the reference
_MAX_FILLED = 1 << 20  # bytes; larger records are rendered by the reference, which counts steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Specialization:
    """Rendering with gaps for the texts of a record.

    The list `pieces` holds the rendering in UTF-8, cut into pieces. A piece is either text of the
    template, or a gap, which is stored as b"". A pair (i, j) in `places` means that value j of a
    record is filled into piece i.

    The tuple `edges` is (start, stop, start, stop, ...) for the spans to train on. The number i in
    `edges` means the end of piece i in the filled text. Piece 0 is always empty, so 0 means the
    start of the text. The tuple `open_ended` holds the indexes of spans that may be empty or end in
    white space, depending on the texts. The flag `is_mixed` is true if a value may contain words of
    the template.
    """

    pieces: list[bytes]
    places: tuple[tuple[int, int], ...]
    edges: tuple[int, ...]
    open_ended: tuple[int, ...]
    is_mixed: bool
    special_tokens: tuple[str, ...]

    def fill(self, values: Values) -> Marked | None:
        """Return the rendering with `values`, or None if the reference renderer must render it."""
        pieces = self._pieces(values)
        text = b"".join(pieces)
        ends = list(accumulate(map(len, pieces)))
        edges = [ends[at] for at in self.edges]
        if len(text) > _MAX_FILLED or (self.open_ended and not self._close(text, edges)):
            return None
        return Marked(text, edges)

    def fill_rows(self, rows: Sequence[Values]) -> list[Filled | None]:
        """Return what `fill` returns for each of `rows`.

        This takes 500 ns per row if there are many rows.
        """
        if self.open_ended or len(rows) < _FEW:
            return list(map(self.fill, rows))
        pieces: list[Iterable[bytes]] = [repeat(piece, len(rows)) for piece in self.pieces]
        sizes: list[Any] = list(map(len, self.pieces))
        for at, which in self.places:
            pieces[at] = column = [row[which].encode() for row in rows]
            sizes[at] = np.fromiter(map(len, column), np.int64, len(rows))
        texts = map(b"".join, zip(*pieces, strict=True))
        ends = list(accumulate(sizes))
        edges = np.empty((len(rows), len(self.edges)), np.int64)
        for number, at in enumerate(self.edges):
            edges[:, number] = ends[at]
        filled = zip(texts, edges.tolist(), repeat(()))
        return [one if len(one[0]) <= _MAX_FILLED else None for one in filled]

    def text(self, values: Values) -> bytes:
        """Return the text of the rendering with `values`, in UTF-8 and without spans."""
        return b"".join(self._pieces(values))

    def literal(self, values: Values, spelling: Spelling) -> list[int] | None:
        """Return the spans of the special tokens that `values` contain as plain text.

        The spans are given as a list [start, stop, start, stop, ...], in bytes of the filled text.
        Return None if a value may contain words of the template. A special token in such a value
        may come from the template and not from the record.
        """
        if self.is_mixed:
            return None
        ends = list(accumulate(map(len, self._pieces(values))))
        return [
            ends[at - 1] + edge
            for at, which in self.places
            for edge in byte_edges(values[which], spelling.spans(values[which]))
        ]

    def _pieces(self, values: Values) -> list[bytes]:
        pieces = self.pieces.copy()
        for at, which in self.places:
            pieces[at] = values[which].encode()
        return pieces

    def _close(self, text: bytes, edges: list[int]) -> bool:
        """Cut white space that follows a special token off the ends of the `open_ended` spans.

        The list `edges` holds the starts and stops of all spans in `text`, and is changed in place.
        Return False if one of the `open_ended` spans is empty, otherwise True.
        """
        for span in self.open_ended:
            start, stop = edges[2 * span : 2 * span + 2]
            if start == stop:
                return False
            said = text[start:stop].decode()
            edges[2 * span + 1] = start + len(
                said[: trimmed_length(said, self.special_tokens)].encode()
            )
        return True


def specialization_of(
    symbolic: str, spans: Sequence[Span], *, trimmed_spans: Sequence[int] = (),
    is_mixed: bool = False, special_tokens: tuple[str, ...] = (),
) -> Specialization:  # fmt: skip
    """Return the specialization made from the rendering `symbolic`, which is symbolic text.

    The pairs in `spans` are the (start, stop) positions of the text to train on, in characters of
    `symbolic`. The sequence `trimmed_spans` holds the indexes of the spans that can end in a
    special token followed by white space, which depends on the record. When a record is filled in,
    this white space is cut off the end of the span.

    >>> specialization_of("<" + chr(FIRST) + ">.", [(1, 3)]).fill(["abc"])
    Marked(text=b'<abc>.', edges=[1, 5], literal=())
    """
    edges = list(chain.from_iterable(spans))
    cuts = {0, len(symbolic), *edges}
    for at, character in enumerate(symbolic):
        if ord(character) >= FIRST:
            cuts |= {at, at + 1}
    starts = sorted(cuts)
    pieces = ["", *(symbolic[start:stop] for start, stop in pairwise(starts))]
    before = {start: at for at, start in enumerate(starts)}
    empty = [at for at, span in enumerate(spans) if all(map(_is_value, symbolic[slice(*span)]))]
    return Specialization(
        pieces=[b"" if _is_value(piece[:1]) else piece.encode() for piece in pieces],
        places=tuple(
            (at, ord(piece) - FIRST) for at, piece in enumerate(pieces) if _is_value(piece[:1])
        ),
        edges=tuple(before[edge] for edge in edges),
        open_ended=tuple(sorted({*empty, *trimmed_spans})),
        is_mixed=is_mixed, special_tokens=special_tokens if trimmed_spans else (),
    )  # fmt: skip


def _is_value(character: str) -> bool:
    """Return whether `character` represents a text of the record."""
    return character >= _FIRST


class Entry(NamedTuple):
    """Specialization, with the steps that show whether it fits a record.

    Each step is a tuple (function, getter, args, answer). To test a record with the texts `values`,
    `result = function(getter(values), *args)` is computed for each step in order:

    - If `answer` is None, `result` is a derived text, and is appended to `values`.
    - Otherwise, the record fits only if `bool(result)` is `answer`.

    If `specialization` is None, the reference renderer must render the records that fit.
    """

    steps: Sequence[_CompiledStep]
    specialization: Specialization | None


_BY_REFERENCE = Entry((), None)


class Specializations:
    """Specializations of one template, grouped by structure.

    The steps of a template depend only on the structure and on the answers so far. Therefore at
    most one entry fits a record, and the order in which entries are tried does not matter.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, list[Entry]] = {}
        self._count = 0

    def find(self, structure: Hashable, values: Values) -> Entry | None:
        """Return the entry that fits the record with this `structure` and these `values`.

        The texts that are derived for the record are appended to `values`. If no entry fits yet,
        return None and leave `values` unchanged. If the derived texts are too long, return an entry
        without a specialization.
        """
        given = len(values)
        for entry in self._entries.get(structure, ()):
            room = _MAX_DERIVED
            for function, subject, args, answer in entry.steps:
                found = function(subject(values), *args)
                if answer is None:
                    values.append(found)
                    room -= len(found)
                    if room < 0:
                        return _BY_REFERENCE
                elif bool(found) is not answer:
                    del values[given:]
                    break
            else:
                return entry
        return None

    def find_rows(
        self, structure: Hashable, rows: Sequence[Values]
    ) -> list[tuple[Specialization, list[int]]]:
        """Return pairs (specialization, indexes of matching rows) for `rows` of one structure.

        The lists in `rows` are changed: the texts that a specialization computes from the texts of
        a record (see `Entry`) are appended to the list of this record. Rows without a
        specialization are in none of the pairs.
        """
        entries = self._entries.get(structure, ())
        if len(entries) == 1 and not entries[0].steps:
            found = entries[0].specialization
            return [(found, list(range(len(rows))))] if found else []
        groups: dict[int, tuple[Specialization, list[int]]] = {}
        for number, values in enumerate(rows):
            entry = self.find(structure, values)
            if entry is not None and entry.specialization is not None:
                group = groups.setdefault(id(entry), (entry.specialization, []))
                group[1].append(number)
        return list(groups.values())

    def has_room(self, structure: Hashable) -> bool:
        """Return whether another entry may be added for `structure`.

        The first call for a structure registers it and returns False.
        """
        entries = self._entries.get(structure)
        if entries is not None:
            return len(entries) < _MAX_VARIANTS
        self._grow()
        self._entries[structure] = []
        return False

    def add(
        self, structure: Hashable, steps: Sequence[Step], specialization: Specialization | None
    ) -> None:
        """Store `specialization` for records of `structure` that take these `steps`.

        If `specialization` is None, the reference renderer renders these records. Nothing is stored
        if the structure already has the maximum number of entries.
        """
        self._grow()
        entries = self._entries.setdefault(structure, [])
        if len(entries) < _MAX_VARIANTS:
            entries.append(Entry(list(map(_compiled, steps)), specialization))

    def _grow(self) -> None:
        """Count one more entry. If there are too many, remove all entries."""
        self._count += 1
        if self._count > _MAX_ENTRIES:
            self._entries.clear()
            self._count = 0


def _compiled(step: Step) -> _CompiledStep:
    function = (OPERATIONS if step.answer is None else QUESTIONS)[step.name]
    return function, _getter(step.of), step.args, step.answer


def _getter(symbolic: str) -> Callable[[Values], Any]:
    """Return a function from values to the text or object that `symbolic` represents."""
    if len(symbolic) == 1:
        which = ord(symbolic) - FIRST
        return lambda values: values[which]
    return lambda values: "".join(
        values[ord(character) - FIRST] if _is_value(character) else character
        for character in symbolic
    )


class Specializer:
    """Template that is run on symbolic text to make its specializations.

    The arguments are those of `Renderer`.
    """

    def __init__(
        self, template: str, *, variables: Mapping[str, Any], train_on: TrainOn,
        special_tokens: tuple[str, ...], date: str | None,
    ) -> None:  # fmt: skip
        self._environment = TracingEnvironment(date)
        self._template = _SymbolicTemplate(template, variables, environment=self._environment)
        self._train_on = train_on
        self._special_tokens = special_tokens
        self._longest = max(map(len, special_tokens), default=0)
        # An escape in the template might spell a character that stands for a text.
        self._is_safe = not (
            self._template.escapes or is_symbolic([template, *texts_in(dict(variables))])
            or "\\U" in template or "\\N" in template
        )  # fmt: skip

    def specialize(self, conversation: Conversation, trace: Trace) -> Specialization:
        """Return the specialization for records that are like `conversation`.

        These records have the same structure, and give the same answers to the questions of the
        template. The argument `trace` holds the texts of the conversation, and records the
        questions and operations. Raise `RenderError` if there is no specialization.
        """
        if not self._is_safe or any(map(is_symbolic, structure_texts(conversation))):
            raise RenderError("template", "its own text may be taken for another's")
        self._environment.trace = trace
        session = _SymbolicSession(self._template, SymbolicConversation(conversation, trace), trace)
        symbolic = session.render(session.messages)
        chosen = messages_to_train(conversation, self._train_on)
        spans = find_spans(
            session, symbolic, conversation, chosen, train_on=self._train_on,
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
        if any(ord(character) - FIRST >= len(trace.values) for character in symbolic):
            raise RenderError("template", "it writes characters that stand for texts")
        return specialization_of(
            symbolic, spans,
            trimmed_spans=[at for at, span in enumerate(spans) if self._may_trim(symbolic, span)],
            is_mixed=any(map(trace.is_mixed, symbolic)), special_tokens=self._special_tokens,
        )  # fmt: skip

    def _may_trim(self, symbolic: str, span: Span) -> bool:
        """Return whether `span` can end in white space after a special token, for some texts."""
        if self._template.has_markers or self._train_on == "all" or not self._special_tokens:
            return False
        said = symbolic[slice(*span)]
        bare = said.rstrip()
        tail = 0
        while tail < len(bare) and not _is_value(bare[-1 - tail]):
            tail += 1
        if bare.endswith(self._special_tokens) and len(bare) == len(said):
            return False
        if said != bare:
            return tail < self._longest
        return tail == 0  # the text itself may end in white space


class _SymbolicTemplate(CompiledTemplate):
    """Template that renders symbolic text to a plain `str`.

    Spans can then be searched for in the text without adding questions to the trace.
    """

    def render(self, messages: Messages, tools: Any = None, **options: Any) -> str:
        return "".join((super().render(messages, tools, **options), ""))


class _SymbolicSession(Session):
    """Symbolic conversation that can be rendered whole, in part, or with marks."""

    def __init__(
        self, template: CompiledTemplate, conversation: SymbolicConversation, trace: Trace
    ) -> None:
        super().__init__(template, conversation.messages, conversation.tools, 0)
        self._ends = conversation.ends
        self._trace = trace

    def prefixes(self, text: str, special_tokens: tuple[str, ...]) -> Prefixes:
        """Return a `_SymbolicPrefixes` for the rendering `text`.

        It knows the message that each symbolic character of `text` comes from.
        """
        return _SymbolicPrefixes(
            self.render, self.messages, text, special_tokens, self._is_from_message
        )

    def _is_from_message(self, message: int, character: str) -> bool:
        """Return whether the text that `character` represents comes only from message `message`."""
        first = self._ends[message - 1] if message else 0
        origins = self._trace.origins(character)
        return all(first <= origin < self._ends[message] for origin in origins)


class _SymbolicPrefixes(Prefixes):
    """Positions of messages for templates that change an answer if other messages follow.

    For example, some templates remove the thoughts of earlier answers. Symbolic text shows which
    texts of the answer are still there. The span of the answer ends with the last of these texts
    and the template's closing words. The closing words are found by rendering the conversation up
    to and including the answer.
    """

    def __init__(
        self, render: Render, messages: Messages, text: str, special_tokens: tuple[str, ...],
        is_from_message: Callable[[int, str], bool],
    ) -> None:  # fmt: skip
        super().__init__(render, messages, text, special_tokens)
        self._is_from_message = is_from_message

    def _span(self, index: int, before: str) -> Span:
        try:
            return super()._span(index, before)
        except RenderError as error:
            span = self._span_by_tail(index, before)
            if span is None:
                raise error
            return span

    def _span_by_tail(self, index: int, before: str) -> Span | None:
        after = self._prefix(index + 1, prompt=False)
        whole = self._text
        if not whole.startswith(before) or not after.startswith(before):
            return None
        end = len(after)
        while end > len(before) and not _is_value(after[end - 1]):
            end -= 1
        tail = after[end:]
        values = [at for at in range(len(before), len(whole)) if _is_value(whole[at])]
        own = 0
        while own < len(values) and self._is_from_message(index, whole[values[own]]):
            own += 1
        if not tail or not own or not self._is_from_message(index, after[end - 1]):
            return None
        last = values[own - 1] + 1
        return (len(before), last + len(tail)) if whole.startswith(tail, last) else None
