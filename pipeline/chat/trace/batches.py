"""Conversations of one structure, side by side: what is said in each, as rows of texts.

Of a thousand conversations most have the same few structures, and what is done for all of one at
once costs a third of what it costs one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ..records.conversation import Conversation, Turned
from .structure import structure

__all__ = ["Alike", "alike"]

_PROMPT, _BESIDE = attrgetter("prompt"), attrgetter("tools", "train")
_PLAIN_FIELDS = 2
_ROLE, _CONTENT, _MESSAGES = itemgetter("role"), itemgetter("content"), attrgetter("messages")


class Alike(NamedTuple):
    """Conversations `numbers` have the same structure; `rows` are their texts, in order."""

    numbers: list[int]
    rows: list[list[Any]]


def alike(
    conversations: Sequence[Conversation], turned: Turned | None = None
) -> dict[Hashable, Alike]:
    """The usual ones (see `structure`) among `conversations`, by structure.

    `turned` are their turns, if they are known to be all that there is to them.

    >>> said = [{"role": "user", "content": "Hi"}]
    >>> alike([Conversation(messages=said), Conversation(messages=[]), Conversation(messages=said)])
    {(0, 'user'): Alike(numbers=[0, 2], rows=[['Hi'], ['Hi']]), (0,): Alike(numbers=[1], rows=[[]])}
    """
    if turned is None or not turned.role_first:
        turned = _turned(conversations)
    shapes, rows = _any(conversations) if turned is None else _parted(turned, conversations)
    if len(kinds := set(shapes)) == 1:
        return {kind: Alike(list(range(len(rows))), rows) for kind in kinds - {None}}
    found: dict[Hashable, Alike] = {}
    for number, (shape, row) in enumerate(zip(shapes, rows, strict=True)):
        group = found.get(shape)
        if group is None:
            group = found[shape] = Alike([], [])
        group.numbers.append(number)
        group.rows.append(row)
    found.pop(None, None)
    return found


_Sorted = tuple[list[Hashable], list[list[Any]]]
"""Structure and texts of each; None for the structure of those that are not usual."""


def _turned(conversations: Sequence[Conversation]) -> Turned | None:
    """The turns, where all are usual, which is seen in one look at them."""
    lists = list(map(_MESSAGES, conversations))
    turns = list(chain.from_iterable(lists))
    try:
        roles, texts = list(map(_ROLE, turns)), list(map(_CONTENT, turns))
    except KeyError:
        return None
    plain = (
        set(map(len, turns)) == {_PLAIN_FIELDS}
        and set(map(next, map(iter, turns))) == {"role"}
        and set(map(type, roles)) == {str}
        and set(map(type, texts)) == {str}
        and set(map(type, chain.from_iterable(map(_BESIDE, conversations)))) == {type(None)}
    )
    return Turned(roles, texts, list(map(len, lists)), role_first=True) if plain else None


def _parted(turned: Turned, conversations: Sequence[Conversation]) -> _Sorted:
    roles, texts, counts, _ = turned
    stops = list(accumulate(counts))
    places = list(map(slice, [0, *stops[:-1]], stops))
    shapes: list[Hashable] = [
        (prompt, *roles[own])
        for prompt, own in zip(map(_PROMPT, conversations), places, strict=True)
    ]
    return shapes, [texts[own] for own in places]


def _any(conversations: Sequence[Conversation]) -> _Sorted:
    """The same one by one."""
    shapes: list[Hashable] = []
    rows: list[list[Any]] = []
    for one in conversations:
        shape, texts, _ = structure(one) if _is_usual(one) else (None, [], False)
        shapes.append(shape)
        rows.append(texts)
    return shapes, rows


def _is_usual(one: Conversation) -> bool:
    """What `structure` says, seen at the first message that is not: others have a costly one."""
    if one.tools is not None or one.train is not None:
        return False
    for message in one.messages:
        if len(message) != _PLAIN_FIELDS:
            return False
        (first, role), (second, content) = message.items()
        if first != "role" or second != "content" or type(role) is not str:
            return False
        if type(content) is not str:
            return False
    return True
