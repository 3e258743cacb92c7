"""Turns as records spell them, into messages as chat templates expect them.

Most records are what templates expect already: those lists are passed on as they are, at about a
tenth of a microsecond a message. The rest is translated: names of roles and fields, content blocks,
tool calls, weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from ...read.json_lines import BadLineError, kind_of
from .content import Said, only_text, said_in
from .conversation import PlainTurns
from .json_objects import value_of
from .tool_calls import spelled_calls, tool_calls

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
_SPOKEN = frozenset(("system", "developer", "user", "assistant"))
_PLAIN_FIELDS = 2
_ROLE, _CONTENT = itemgetter("role"), itemgetter("content")
_WEIGHTS = ("weight", "loss_weight")


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
        self._spoken = {name: role for name, role in self._roles.items() if role in _SPOKEN}
        self._role = role
        self._content = content
        self._as_is = role[0] == "role" and content[0] == "content" and not roles.keys() & _PLAIN
        self._plain_fields = {*role, *content, *_WEIGHTS}
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
        found = self._renamed(value)
        return (found, None) if found else self._translated(value, name)

    def _renamed(self, value: Any) -> list[Message] | None:
        """Turns of two fields under other names, and no more to them; None for all others."""
        role, content, roles = self._role[-1], self._content[-1], self._spoken
        try:
            found = [{"role": roles[turn[role]], "content": turn[content]} for turn in value]
            if set(map(len, value)) != {_PLAIN_FIELDS}:
                return None
        except (TypeError, KeyError):
            return None
        plain = all(type(turn["content"]) is str and turn["content"] for turn in found)
        return found if plain else None

    def plain_turns(self, lists: list[Any]) -> PlainTurns | None:
        """The turns, if `read` would pass on each of the `lists` as it is; a tenth of its cost."""
        try:
            turns = list(chain.from_iterable(lists))
            roles, contents = list(map(_ROLE, turns)), list(map(_CONTENT, turns))
            kinds = set(roles)
        except (TypeError, KeyError):
            return None
        plain = (
            self._as_is
            and set(map(type, lists)) == {list}
            and all(lists)
            and set(map(len, turns)) == {_PLAIN_FIELDS}
            and set(map(type, contents)) == {str}
            and all(contents)
            and kinds <= _PLAIN | {"tool"}
        )
        if not plain or ("tool" in kinds and not _in_order(roles, lists)):
            return None
        role_first = set(map(next, map(iter, turns))) == {"role"}
        return PlainTurns(roles, contents, list(map(len, lists)), role_first=role_first)

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
        content = _first(turn, self._content)
        if type(content) is list:
            content = only_text(content)
        if type(content) is str and content and role != _CALL:
            plain = {"role": role, "content": content}
            if len(turn) == _PLAIN_FIELDS:
                return [plain], None
            if turn.keys() <= self._plain_fields:
                return [plain], _weight(turn, where)
        return self._any_turn(turn, role, where), _weight(turn, where)

    def _any_turn(self, turn: Message, role: str, where: str) -> list[Message]:
        """The messages of a turn that may hold anything: the results of tools, and itself."""
        content = _first(turn, self._content)
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
        return _parts(message, said, where)

    def _role_of(self, turn: Message, where: str) -> str:
        name = _first(turn, self._role)
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


def _in_order(roles: list[str], lists: list[Any]) -> bool:
    """Whether what tools return follows a turn of the assistant, in each list, or another."""
    starts = set(accumulate(map(len, lists), initial=0))
    places = [at for at, role in enumerate(roles) if role == "tool"]
    return all(at not in starts and roles[at - 1] in ("assistant", "tool") for at in places)


def _first(turn: Message, names: tuple[str, ...]) -> Any:
    """The first of the fields with `names` that is not null; None without any."""
    for name in names:
        if (value := turn.get(name)) is not None:
            return value
    return None


def _listed(value: Any, name: str) -> list[Any]:
    """The turns of a field: a list, JSON that spells one, or a table of columns."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = value_of(value)
        except BadLineError as bad:
            problem = f"{name!r} holds no JSON array ({bad.args[1]})"
            raise BadLineError("bad_message", problem) from None
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
        raise BadLineError("roles", f"{where} is what a tool replain_turns, and follows {after}")


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
