"""What a template makes of all records of one structure: glue, places of texts, spans.

A `Plan` comes of running the template on skeletons (skeletons.py), and its spans of the same proofs
that are made for single records (prefixes.py, spans.py), made on skeletons: they hold for whatever
the texts are. Where the template asks something of a text, plans branch by the answer. The first
record of each plan is rendered for real, too, and must come out the same. Filling a plan in costs
about 1 us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ..render.prefixes import trimmed
from .symbolic import ANSWERS, FIRST, OPERATIONS, Look

__all__ = ["Branch", "Plan", "Plans", "plan_of"]

Span = tuple[int, int]
Values = list[Any]
Edge = tuple[int, tuple[int, ...], int, tuple[int, ...]]
_MAX_PLANS = 4096
_GROWTH = 8 << 20  # of derived texts; what makes more is rendered, and counted, one by one


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A rendering with texts left out.

    `parts` is the text in pieces, "" where the value `places[i][1]` goes into `places[i][0]`.
    `edges` say of each span how many characters of glue, and which values, are before it (since the
    one before), and how many and which inside; `octets` the same with the bytes of glue. `loose`
    are the spans whose last white space depends on what the texts end with. `is_mixed` says that
    words of the template are among the values.
    """

    parts: list[str]
    places: tuple[tuple[int, int], ...]
    edges: tuple[Edge, ...]
    octets: tuple[Edge, ...]
    loose: tuple[int, ...]
    is_mixed: bool
    special_tokens: tuple[str, ...]

    def text(self, values: Values) -> str:
        """The text with `values`."""
        parts = self.parts.copy()
        for at, which in self.places:
            parts[at] = values[which]
        return "".join(parts)

    def spans(self, values: Values, text: str) -> list[Span] | None:
        """The spans in `text`; None if one is empty."""
        spans: list[Span] = []
        at = 0
        for glue, texts, glue_inside, texts_inside in self.edges:
            at += glue
            for which in texts:
                at += len(values[which])
            start = at
            at += glue_inside
            for which in texts_inside:
                at += len(values[which])
            if at == start:
                return None
            spans.append((start, at))
        for which in self.loose:
            start, end = spans[which]
            spans[which] = start, start + trimmed(text[start:end], self.special_tokens)
        return spans

    def fill(self, rows: Sequence[Values]) -> tuple[list[bytes], npt.NDArray[np.int64]]:
        """The texts with each of the `rows` of values, in UTF-8, and starts and stops of spans.

        These are in bytes, int64 [rows, 2 * spans]. Of plans without `loose` spans, and of values
        that are all texts: some 300 ns a row.
        """
        used = {which for _, which in self.places}
        columns = {
            which: list(map(str.encode, column))
            for which, column in enumerate(zip(*rows, strict=True)) if which in used
        }  # fmt: skip
        parts: list[Iterable[bytes]] = [repeat(part.encode(), len(rows)) for part in self.parts]
        for at, which in self.places:
            parts[at] = columns[which]
        texts = list(map(b"".join, zip(*parts, strict=True)))
        sizes = {
            which: np.fromiter(map(len, column), np.int64, len(rows))
            for which, column in columns.items()
        }
        edges = np.empty((len(rows), 2 * len(self.octets)), np.int64)
        at_edge = np.zeros(len(rows), np.int64)
        steps = [step for edge in self.octets for step in (edge[:2], edge[2:])]
        for number, (glue, inside) in enumerate(steps):
            at_edge += glue
            for which in inside:
                at_edge += sizes[which]
            edges[:, number] = at_edge
        return texts, edges

    def placed(self, values: Values) -> list[tuple[int, str]]:
        """Where in the text which value begins."""
        found: list[tuple[int, str]] = []
        at = 0
        texts = dict(self.places)
        for place, part in enumerate(self.parts):
            if place in texts:
                found.append((at, values[texts[place]]))
            at += len(found[-1][1] if place in texts else part)
        return found


def plan_of(
    skeleton: str, spans: Sequence[Span], *, loose: Sequence[int] = (), is_mixed: bool = False,
    special_tokens: tuple[str, ...] = (),
) -> Plan:  # fmt: skip
    """The plan for `skeleton` with `spans` of its characters.

    >>> plan = plan_of("<" + chr(FIRST) + ">.", [(1, 3)])
    >>> plan.text(["abc"]), plan.spans(["abc"], "<abc>.")
    ('<abc>.', [(1, 5)])
    """
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    for is_text, piece in _pieces(skeleton):
        if is_text:
            places.append((len(parts), ord(piece) - FIRST))
        parts.append("" if is_text else piece)
    stretches: list[tuple[str, str]] = []
    before = 0
    for start, end in spans:
        stretches.append((skeleton[before:start], skeleton[start:end]))
        before = end
    edges, octets = (
        tuple(_measures(before, size) + _measures(inside, size) for before, inside in stretches)
        for size in (len, _octets)
    )
    return Plan(
        parts=parts, places=tuple(places), edges=edges, octets=octets, loose=tuple(loose),
        is_mixed=is_mixed, special_tokens=special_tokens,
    )  # fmt: skip


def _measures(skeleton: str, size: Callable[[str], int]) -> tuple[int, tuple[int, ...]]:
    """The `size` of the glue in `skeleton`, and which texts it stands for."""
    texts = tuple(ord(character) - FIRST for character in skeleton if ord(character) >= FIRST)
    return size("".join(character for character in skeleton if ord(character) < FIRST)), texts


def _octets(text: str) -> int:
    return len(text.encode())


def _pieces(skeleton: str) -> list[tuple[bool, str]]:
    """Glue as it stands, and single characters that stand for texts."""
    pieces: list[tuple[bool, str]] = []
    for character in skeleton:
        if ord(character) >= FIRST:
            pieces.append((True, character))
        elif pieces and not pieces[-1][0]:
            pieces[-1] = (False, pieces[-1][1] + character)
        else:
            pieces.append((False, character))
    return pieces


def _filler(of: str) -> Callable[[Values], Any]:
    """From values to what the skeleton `of` stands for."""
    if len(of) == 1:
        which = ord(of) - FIRST
        return lambda values: values[which]
    pieces = _pieces(of)

    def filled(values: Values) -> str:
        return "".join(
            values[ord(piece) - FIRST] if is_text else piece for is_text, piece in pieces
        )

    return filled


@dataclass(kw_only=True, slots=True)
class Branch:
    """Steps that all records here take, then a question, or at the end what to do: a plan, or None
    for rendering one by one."""

    derive: list[tuple[Callable[..., str], Callable[[Values], Any], tuple[Any, ...]]] = field(
        default_factory=list
    )
    question: tuple[Callable[..., bool], Callable[[Values], Any], tuple[Any, ...]] | None = None
    answers: dict[bool, Branch] = field(default_factory=dict)
    plan: Plan | None = None


class Plans:
    """The plans of one template by structure."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Branch | None] = {}
        self._count = 0

    def seen(self, structure: Hashable) -> bool:
        """Whether there was one like this before; from now on there was."""
        if structure in self._roots:
            return True
        self._room()
        self._roots[structure] = None
        return False

    def find(self, structure: Hashable, values: Values) -> Branch | None:
        """Where records of `structure` and with `values` end, None if none was there before.

        Derived texts are added to `values`.
        """
        branch = self._roots.get(structure)
        room = _GROWTH
        while branch is not None:
            for operation, filled, args in branch.derive:
                text = operation(filled(values), *args)
                values.append(text)
                room -= len(text)
                if room < 0:
                    return _ONE_BY_ONE
            if branch.question is None:
                return branch
            answer, filled, args = branch.question
            branch = branch.answers.get(bool(answer(filled(values), *args)))
        return None

    def settle(
        self, structure: Hashable, rows: Sequence[Values]
    ) -> Iterator[tuple[Plan, list[int]]]:
        """The plans for `rows` of values of one `structure`, and which rows each is for.

        As `find` gives them; derived texts are added to the rows. Rows of no plan, or with many
        derived texts, are left out: they are for `find`.
        """
        root = self._roots.get(structure)
        pending = [(root, list(range(len(rows))))] if root is not None else []
        room = _GROWTH
        while pending:
            branch, chosen = pending.pop()
            for operation, filled, args in branch.derive:
                for number in chosen:
                    text = operation(filled(rows[number]), *args)
                    rows[number].append(text)
                    room -= len(text)
                    if room < 0:
                        return
            if branch.question is None:
                if branch.plan is not None:
                    yield branch.plan, chosen
                continue
            answer, filled, args = branch.question
            told = [bool(answer(filled(rows[number]), *args)) for number in chosen]
            for known, further in branch.answers.items():
                some = [number for number, one in zip(chosen, told, strict=True) if one is known]
                if some:
                    pending.append((further, some))

    def add(
        self, structure: Hashable, steps: Sequence[tuple[Look, bool | None]], plan: Plan | None
    ) -> None:
        """Keep `plan` for records of `structure` that take these `steps`."""
        self._room()
        branch = self._roots.get(structure)
        new = branch is None
        if branch is None:
            branch = self._roots[structure] = Branch()
        for look, answer in steps:
            if answer is None:
                if new:
                    step = (OPERATIONS[look.name], _filler(look.of), look.args)
                    branch.derive.append(step)
                continue
            if new:
                branch.question = (ANSWERS[look.name], _filler(look.of), look.args)
            new = answer not in branch.answers
            branch = branch.answers.setdefault(answer, Branch())
        branch.plan = plan

    def _room(self) -> None:
        """Begin anew when there are too many: then few records can be alike anyway."""
        self._count += 1
        if self._count > _MAX_PLANS:
            self._roots.clear()
            self._count = 0


_ONE_BY_ONE = Branch()
