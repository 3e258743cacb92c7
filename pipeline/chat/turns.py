"""Turns as records spell them, into messages as chat templates expect them.

Most records are what templates expect already: those lists are passed on as they are, at about a
tenth of a microsecond a message. The rest is translated: names of roles and fields, content blocks,
tool calls, weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dataprep.pipeline.chat.content import Said, said_in
from dataprep.pipeline.chat.tool_calls import spelled_calls, tool_calls
from dataprep.pipeline.json_rows import BadLineError, kind_of

__all__ = ["ROLES", "ROLE_NAMES", "Message", "Train", "Turns", "shifted"]

Message = dict[str, Any]
Train = list[bool | None] | None

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that messages have in the end."""
_CALL = "tool call"
ROLE_NAMES: Mapping[str, str] = MappingProxyType({
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "ai": "assistant",
    "observation": "tool", "function": "tool", "function_response": "tool", "ipython": "tool",
    "tool_response": "tool", "tool_result": "tool",
    "function_call": _CALL, "tool_call": _CALL,
})  # fmt: skip
"""Names of roles in records, and what they mean; calls are turns of the assistant."""

_PLAIN = frozenset(("system", "user", "assistant"))
_PLAIN_FIELDS = 2
_WEIGHTS = ("weight", "loss_weight")
_ANY = msgspec.json.Decoder()


def shifted(train: Train, count: int) -> Train:
    """The same after `count` messages of which nothing is said.

    >>> shifted([True], 2)
    [None, None, True]
    """
    return None if train is None else [*[None] * count, *train]


class Turns:
    """Reads lists of turns; `roles` are more names of roles than `ROLE_NAMES`.

    `role` and `content` are the fields that hold these, tried in order.
    """

    def __init__(
        self,
        *,
        roles: Mapping[str, str],
        role: tuple[str, ...] = ("role", "from"),
        content: tuple[str, ...] = ("content", "value"),
    ) -> None:
        self._roles = {**ROLE_NAMES, **roles}
        self._role = role
        self._content = content
        self._as_is = role[0] == "role" and content[0] == "content" and not roles.keys() & _PLAIN
        self._taken = {*role, *content, *_WEIGHTS, "tool_calls", "function_call"}

    def read(self, value: Any, name: str) -> tuple[list[Message], Train]:
        """The messages in the field `name`, and what each says of being trained on."""
        if self._as_is and type(value) is list and value:
            try:
                for turn in value:
                    if (
                        len(turn) != _PLAIN_FIELDS
                        or turn["role"] not in _PLAIN
                        or type(turn["content"]) is not str
                        or not turn["content"]
                    ):
                        break
                else:
                    return value, None
            except (TypeError, KeyError):
                pass
        return self._translated(value, name)

    def _translated(self, value: Any, name: str) -> tuple[list[Message], Train]:
        turns = _listed(value, name)
        messages: list[Message] = []
        train: list[bool | None] = []
        for number, turn in enumerate(turns, 1):
            where = f"turn {number} of {name!r}"
            said, weight = self._turn(turn, where)
            for message in said:
                _check_order(message, messages, where)
                messages.append(message)
                train.append(weight if message["role"] != "tool" or len(said) == 1 else None)
        return messages, train if any(flag is not None for flag in train) else None

    def _turn(self, turn: Any, where: str) -> tuple[list[Message], bool | None]:
        if not isinstance(turn, dict):
            raise BadLineError("bad_message", f"{where} is a JSON {kind_of(turn)}, not an object")
        role = self._role_of(turn, where)
        content = next((turn[name] for name in self._content if name in turn), None)
        said = _said(content, role, where)
        if turn.get("tool_calls") is not None:
            said.calls += tool_calls(turn["tool_calls"], where)
        if turn.get("function_call") is not None:
            said.calls += spelled_calls(turn["function_call"], where)
        # What is null stays so where calls take its place: templates ask for that.
        text = said.text if content is not None or not said.calls else None
        role = "assistant" if role == _CALL else role
        message: Message = {"role": role, "content": text}
        message |= {
            field: part
            for field, part in turn.items()
            if field not in self._taken and part is not None
        }
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            if role != "assistant":
                raise BadLineError("bad_tool_call", f"{where} is of the role {role!r}, and calls")
            message["tool_calls"] = said.calls
        return _parts(message, said, where), _weight(turn, where)

    def _role_of(self, turn: Message, where: str) -> str:
        name = next((turn[name] for name in self._role if name in turn), None)
        if name is None:
            raise BadLineError(
                "bad_message",
                f"{where} has no {' or '.join(map(repr, self._role))}; "
                f"seen: {', '.join(map(repr, turn))[:200] or 'nothing'}",
            )
        role = self._roles.get(name) if isinstance(name, str) else None
        if role is None:
            shown = repr(name[:100]) if isinstance(name, str) else f"a JSON {kind_of(name)}"
            raise BadLineError(
                "unknown_role", f"the role of {where} is {shown}; known: {', '.join(self._roles)}"
            )
        return role


def _listed(value: Any, name: str) -> list[Any]:
    """The turns of a field: a list, JSON that spells one, or a table of columns."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = _ANY.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise BadLineError("bad_message", f"{name!r} holds no JSON array ({error})") from None
    if isinstance(value, dict):
        value = _rows(value)
    if not isinstance(value, list):
        raise BadLineError("bad_message", f"{name!r} is a JSON {kind_of(value)}, not an array")
    if not value:
        raise BadLineError("no_messages", f"{name!r} holds no messages")
    return value


def _rows(columns: dict[str, Any]) -> Any:
    """A list of objects where an object of lists stands for one; otherwise `columns`."""
    lists = list(columns.values())
    if not all(isinstance(column, list) for column in lists):
        return columns
    if len(set(map(len, lists))) != 1:
        return columns
    return [
        {name: part for name, part in zip(columns, row, strict=True) if part is not None}
        for row in zip(*lists, strict=True)
    ]


def _said(content: Any, role: str, where: str) -> Said:
    if role == _CALL:
        return Said(calls=spelled_calls(content, where))
    if isinstance(content, str):
        return Said(text=content)
    if isinstance(content, list):
        return said_in(content, where)
    if content is None:
        return Said()
    raise BadLineError("bad_content", f"the content of {where} is a JSON {kind_of(content)}")


def _parts(message: Message, said: Said, where: str) -> list[Message]:
    """`message`, after the results of tools that it brings; nothing may be left of it."""
    empty = not (message["content"] or said.calls or message.get("reasoning_content"))
    if said.results:
        return said.results if empty else [*said.results, message]
    if empty and message["role"] != "tool":
        raise BadLineError("empty", f"{where} ({message['role']}) says nothing")
    return [message]


def _check_order(message: Message, before: list[Message], where: str) -> None:
    if message["role"] == "tool" and (
        not before or before[-1]["role"] not in ("assistant", "tool")
    ):
        after = f"a turn of the {before[-1]['role']}" if before else "nothing"
        raise BadLineError("roles", f"{where} is what a tool returned, and follows {after}")


def _weight(turn: Message, where: str) -> bool | None:
    for name in _WEIGHTS:
        value = turn.get(name)
        if value is not None:
            if isinstance(value, bool) or value not in (0, 1):
                raise BadLineError(
                    "bad_weight", f"{name!r} of {where} is {str(value)[:100]!r}, neither 0 nor 1"
                )
            return bool(value)
    return None
