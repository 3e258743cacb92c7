"""Structures of conversations: everything in them except their texts.

Two conversations of the same structure differ only in their values: contents, arguments of calls
and descriptions of tools. Arguments and descriptions are objects, and each object is one value.
Roles, types, names of fields, numbers and nesting belong to the structure. Templates may use a
structure freely, but their use of texts must be traced.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from ..records.conversation import Conversation, PlainTurns
from .symbolic import SymbolicObject, SymbolicText, Trace

__all__ = ["SymbolicConversation", "grouped", "plain_structure", "structure", "structure_texts"]

_STRUCTURAL = ("role", "type")
_WHOLE = ("arguments",)
_PLAIN = ("role", "content")


def structure(conversation: Conversation) -> tuple[Hashable, list[Any]]:
    """Return the structure of `conversation`, and its values (texts and objects) in order.

    >>> structure(Conversation(messages=[{"role": "user", "content": "Hi"}]))
    ((0, 'user'), ['Hi'])
    """
    found = plain_structure(conversation)
    if found is not None:
        return found
    values: list[Any] = []
    shape: list[Hashable] = [conversation.prompt]
    shape += [_shape(message, values, "") for message in conversation.messages]
    if conversation.tools is not None:
        shape.append(("tools", *[_shape(tool, values, "arguments") for tool in conversation.tools]))
    if conversation.train is not None:
        shape.append(("train", *conversation.train))
    return tuple(shape), values


def plain_structure(conversation: Conversation) -> tuple[Hashable, list[Any]] | None:
    """Return the structure and the texts of a plain conversation, or None for any other.

    A conversation is plain if each message has only a role and a text, and the conversation has no
    tools and no training flags.
    """
    if conversation.tools is not None or conversation.train is not None:
        return None
    shape: list[Hashable] = [conversation.prompt]
    values: list[Any] = []
    for message in conversation.messages:
        if (*message,) != _PLAIN:
            return None
        role, text = message.values()
        if type(role) is not str or type(text) is not str:
            return None
        shape.append(role)
        values.append(text)
    return tuple(shape), values


def grouped(
    conversations: Sequence[Conversation], turns: PlainTurns | None = None
) -> dict[Hashable, tuple[list[int], list[list[Any]]]]:
    """Return the indexes and the texts of the plain `conversations`, by structure.

    A conversation is plain if it has roles and texts, and nothing else. If all conversations are
    plain, `turns` may hold their turns. Grouping then takes a third of the time.

    >>> one = Conversation(messages=[{"role": "user", "content": "Hi"}])
    >>> grouped([one, Conversation(messages=[]), one])
    {(0, 'user'): ([0, 2], [['Hi'], ['Hi']]), (0,): ([1], [[]])}
    """
    found: Iterable[tuple[Hashable, list[Any]] | None] = map(plain_structure, conversations)
    if turns is not None and turns.role_first:
        stops = list(accumulate(turns.counts))
        own = list(map(slice, [0, *stops[:-1]], stops))
        prompts = [conversation.prompt for conversation in conversations]
        shapes = [(prompt, *turns.roles[at]) for prompt, at in zip(prompts, own, strict=True)]
        rows = [turns.texts[at] for at in own]
        if len(set(shapes)) == 1:
            return {shapes[0]: (list(range(len(rows))), rows)}
        found = zip(shapes, rows, strict=True)
    groups: dict[Hashable, tuple[list[int], list[list[Any]]]] = {}
    for number, one in enumerate(found):
        if one is not None:
            group = groups.get(one[0])
            if group is None:
                group = groups[one[0]] = ([], [])
            group[0].append(number)
            group[1].append(one[1])
    return groups


def _shape(value: Any, values: list[Any], name: str) -> Hashable:
    """Return the structure of `value` (the value of field `name`).

    The texts in `value` are appended to `values`. An object in a field `arguments` is appended as
    one value.
    """
    if isinstance(value, str):
        if name in _STRUCTURAL:
            return value
        values.append(value)
        return str
    if isinstance(value, dict):
        if name in _WHOLE:
            values.append(value)
            return dict
        return (dict, *[(key, _shape(item, values, key)) for key, item in value.items()])
    if isinstance(value, list):
        return (list, *[_shape(item, values, "") for item in value])
    return (type(value), value)


def structure_texts(conversation: Conversation) -> Iterator[str]:
    """Yield the texts that belong to the structure of messages: roles, types and field names."""
    for message in conversation.messages:
        yield from _structure_texts(message, "")


def _structure_texts(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, str) and name in _STRUCTURAL:
        yield value
    elif isinstance(value, dict) and name not in _WHOLE:
        for key, item in value.items():
            yield key
            yield from _structure_texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _structure_texts(item, "")


class SymbolicConversation:
    """Conversation in which symbolic text replaces all texts.

    The item `ends[i]` is the number of values in the messages 0 to i. It is also the index of the
    first value of message i + 1.
    """

    def __init__(self, conversation: Conversation, trace: Trace) -> None:
        texts = iter([trace.text(at) for at in range(len(trace.values))])
        self.messages: list[dict[str, Any]] = []
        self.ends: list[int] = []
        values: list[Any] = []
        for message in conversation.messages:
            self.messages.append(_replaced(message, texts, ""))
            _shape(message, values, "")
            self.ends.append(len(values))
        tools = conversation.tools
        self.tools = (
            None if tools is None else [_replaced(tool, texts, "arguments") for tool in tools]
        )


def _replaced(value: Any, texts: Iterator[SymbolicText], name: str) -> Any:
    """Return a copy of `value` (the value of field `name`) with symbolic texts in it.

    Each text, and each object in a field `arguments`, is replaced by the next item of `texts`.
    """
    if isinstance(value, str):
        return value if name in _STRUCTURAL else next(texts)
    if isinstance(value, dict):
        if name in _WHOLE:
            return SymbolicObject(next(texts))
        return {key: _replaced(item, texts, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, texts, "") for item in value]
    return value
