"""What of a conversation a template may look at freely, and what texts it may only put somewhere.

Two conversations of one structure differ in these texts alone: what is said, and arguments of calls
and descriptions of tools as a whole. Roles, types, names of fields, numbers and how things nest are
the structure. A plain conversation costs some 300 ns a message.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from ..records.conversation import Conversation
from .symbolic import Skeleton, Trace, Unknown

__all__ = ["Opened", "looked_at", "structure"]

_LOOKED_AT = ("role", "type")
_WHOLE = ("arguments",)


def structure(conversation: Conversation) -> tuple[Hashable, list[Any], bool]:
    """The structure of `conversation`, and in order its texts and whole objects.

    The last says that it is usual: each message has a role and a text, and nothing more, and there
    are no tools.

    >>> structure(Conversation(messages=[{"role": "user", "content": "Hi"}]))[1:]
    (['Hi'], True)
    """
    shape: list[Hashable] = [conversation.prompt]
    values: list[Any] = []
    is_usual = True
    for message in conversation.messages:
        if len(message) == 2:
            (first, role), (second, content) = message.items()
            usual = first == "role" and second == "content"
            if usual and type(role) is str and type(content) is str:
                shape.append(role)
                values.append(content)
                continue
        is_usual = False
        shape.append(_shape(message, values, ""))
    if conversation.tools is not None:
        is_usual = False
        shape.append(("tools", *[_shape(tool, values, "arguments") for tool in conversation.tools]))
    if conversation.train is not None:
        shape.append(("train", *conversation.train))
    return tuple(shape), values, is_usual


def _shape(value: Any, values: list[Any], name: str) -> Hashable:
    if isinstance(value, str):
        if name in _LOOKED_AT:
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


def looked_at(conversation: Conversation) -> Iterator[str]:
    """The texts of `conversation` that are part of its structure: roles, types, names of fields."""
    for message in conversation.messages:
        yield from _looked_at(message, "")


def _looked_at(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, str) and name in _LOOKED_AT:
        yield value
    elif isinstance(value, dict) and name not in _WHOLE:
        for key, item in value.items():
            yield key
            yield from _looked_at(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _looked_at(item, "")


class Opened:
    """A conversation with skeletons in the place of its texts.

    `ends[i]` is how many texts there are up to and with message i.
    """

    def __init__(self, conversation: Conversation, trace: Trace) -> None:
        texts = iter([trace.text(at) for at in range(len(trace.values))])
        self.messages: list[dict[str, Any]] = []
        self.ends: list[int] = []
        count = 0
        for message in conversation.messages:
            self.messages.append(_open(message, texts, ""))
            count += _count(message, "")
            self.ends.append(count)
        tools = conversation.tools
        self.tools = None if tools is None else [_open(tool, texts, "arguments") for tool in tools]


def _open(value: Any, texts: Iterator[Skeleton], name: str) -> Any:
    if isinstance(value, str):
        return value if name in _LOOKED_AT else next(texts)
    if isinstance(value, dict):
        if name in _WHOLE:
            return Unknown(next(texts))
        return {key: _open(item, texts, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_open(item, texts, "") for item in value]
    return value


def _count(value: Any, name: str) -> int:
    values: list[Any] = []
    _shape(value, values, name)
    return len(values)
