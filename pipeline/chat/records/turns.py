"""Translation of turns from the forms in records to the messages that chat templates expect.

Most records already have this form. Their lists are returned unchanged, in about a tenth of a
microsecond per message. In other records, the names of roles and fields, content blocks, tool calls
and weights are translated.

Content blocks (reasoning, text, tool calls) become fields of the message. Their order must be
reasoning, text, calls, because templates render the fields in this order. Blocks with tool results
become separate messages. A record with another order, or with other blocks such as images, is
refused.

A conversation may also be a transcript in one text, as in Anthropic's hh-rlhf. Each turn of a
transcript begins with an empty line and "Human:" or "Assistant:".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from ...read.json_lines import BadLineError, kind_of
from .conversation import PlainTurns
from .json_objects import value_of
from .tool_calls import one_call, spelled_calls, tool_calls

__all__ = [
    "ROLES",
    "ROLE_NAMES",
    "TRANSCRIPT_START",
    "Message",
    "Train",
    "Turns",
    "shifted",
    "transcript",
    "transcript_prompt",
]

Message = dict[str, Any]
Train = list[bool | None] | None

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages after translation."""
_CALL = "tool call"
ROLE_NAMES: Mapping[str, str] = MappingProxyType({
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "ai": "assistant",
    "observation": "tool", "function": "tool", "function_response": "tool", "ipython": "tool",
    "tool_response": "tool", "tool_result": "tool",
    "function_call": _CALL, "tool_call": _CALL,
})  # fmt: skip
"""Roles by their names in records; "tool call" stands for a turn of the assistant with calls."""

_PLAIN = frozenset(("system", "user", "assistant"))
_SPOKEN = frozenset(("system", "developer", "user", "assistant"))
_PLAIN_FIELDS = 2
_ROLE, _CONTENT = itemgetter("role"), itemgetter("content")
_WEIGHTS = ("weight", "loss_weight")

_ORDER = {
    "reasoning": 0, "thinking": 0,
    "text": 1, "input_text": 1, "output_text": 1,
    "tool_call": 2, "tool_use": 2, "function_call": 2,
    "tool_result": 3,
}  # fmt: skip
_VALUES = ("text", "value", "reasoning", "thinking", "content")

TRANSCRIPT_START = "\n\nHuman:"
_TRANSCRIPT_END = "\n\nAssistant:"
_TRANSCRIPT_TURN = re.compile(r"\n\n(Human|Assistant):")
_TRANSCRIPT_ROLES = {"Human": "user", "Assistant": "assistant"}


def shifted(train: Train, count: int) -> Train:
    """Return the training flags `train`, with `count` items None added in front.

    The result is None if `train` is None.

    >>> shifted([True], 2)
    [None, None, True]
    """
    return None if train is None else [*[None] * count, *train]


class Turns:
    """Reader for lists of turns.

    The mapping `roles` adds names of roles to `ROLE_NAMES`. The tuples `role` and `content` hold
    names of fields. The role of a turn is the first of its `role` fields that is not null, and its
    content is the first of its `content` fields that is not null.
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
        """Return the messages in `value` (the value of field `name`), and their training flags.

        The flags are None if no message has one. Raise `BadLineError` if `value` cannot be read.
        """
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
        """Return the messages in `value` if only fields and roles must be renamed, otherwise None.

        Renaming is enough if each turn has only two fields, a role and a text. The names of these
        fields must be the last in the arguments `role` and `content` of the constructor, by default
        `from` and `value`.
        """
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
        """Return all turns of `lists` if `read` would return each list unchanged, otherwise None.

        This takes a tenth of the time of `read`.
        """
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
            content = _only_text(content)
        if type(content) is str and content and role != _CALL:
            plain = {"role": role, "content": content}
            if len(turn) == _PLAIN_FIELDS:
                return [plain], None
            if turn.keys() <= self._plain_fields:
                return [plain], _weight(turn, where)
        return self._any_turn(turn, role, where), _weight(turn, where)

    def _any_turn(self, turn: Message, role: str, where: str) -> list[Message]:
        """Return the messages in a turn of any form: its tool results, then the turn itself.

        Raise `BadLineError`, which says `where` the turn is, if the turn cannot be used.
        """
        content = _first(turn, self._content)
        said = _content_parts(content, role, where)
        if turn.get("tool_calls") is not None:
            said.calls += tool_calls(turn["tool_calls"], where)
        if turn.get("function_call") is not None:
            said.calls += spelled_calls(turn["function_call"], where)
        # The content of a turn with calls may stay null, which templates test for.
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
        return _with_results(message, said, where)

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
    """Return whether each tool turn directly follows an assistant turn or another tool turn.

    The argument `roles` lists the roles of all turns in `lists`, one list after the other. A tool
    turn must not be the first turn of its list.
    """
    starts = set(accumulate(map(len, lists), initial=0))
    places = [at for at, role in enumerate(roles) if role == "tool"]
    return all(at not in starts and roles[at - 1] in ("assistant", "tool") for at in places)


def _first(turn: Message, names: tuple[str, ...]) -> Any:
    """Return the value of the first of the fields `names` that is not null, or None."""
    for name in names:
        if (value := turn.get(name)) is not None:
            return value
    return None


def _listed(value: Any, name: str) -> list[Any]:
    """Return the turns in `value`: a list, the JSON text of a list, or an object of columns.

    Raise `BadLineError`, which names the field `name`, if `value` has another form or no turns.
    """
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
    """Convert a dict of equally long lists to a list of dicts, leaving out None values.

    Return any other dict unchanged.
    """
    lists = list(columns.values())
    if not all(isinstance(column, list) for column in lists):
        return columns
    if len(set(map(len, lists))) != 1:
        return columns
    return [
        {name: part for name, part in zip(columns, row, strict=True) if part is not None}
        for row in zip(*lists, strict=True)
    ]


def _content_parts(content: Any, role: str, where: str) -> _Content:
    if role == _CALL:
        return _Content(calls=spelled_calls(content, where))
    if isinstance(content, str):
        return _Content(text=content)
    if isinstance(content, list):
        return _content_of(content, where)
    if content is None:
        return _Content()
    raise BadLineError("bad_content", f"the content of {where} is a JSON {kind_of(content)}")


def _with_results(message: Message, said: _Content, where: str) -> list[Message]:
    """Return the tool results in a turn, followed by `message` if it is not empty.

    Raise `BadLineError`, which says `where` the turn is, if the turn has no tool results and
    `message` is empty. An empty message with the role "tool" is allowed.
    """
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


@dataclass(kw_only=True, slots=True)
class _Content:
    """Parts of the content of a message.

    The list `results` contains a message for each tool result.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)


def _content_of(blocks: list[Any], where: str) -> _Content:
    """Return the parts of the content `blocks` in the message that `where` names.

    Raise `BadLineError` for blocks of unknown type or in an order that templates cannot render.

    >>> _content_of([{"type": "text", "value": "Hi"}, {"type": "text", "text": "!"}], "turn 1").text
    'Hi!'
    """
    said = _Content()
    last = 0
    for block in blocks:
        kind = _block_kind(block, where)
        step = _ORDER[kind]
        if step == _ORDER["tool_result"]:
            said.results.append(_block_result(block, where))
            continue
        if step < last:
            raise BadLineError(
                "block_order",
                f"{where} has a block of type {kind!r} after one that a turn says later: "
                "reasoning, then text, then tool calls is what templates can render",
            )
        last = step
        _add_block(said, step, block, where)
    return said


def _only_text(blocks: list[Any]) -> Any:
    """Return the text of `blocks` if there is only one block of text, otherwise `blocks`.

    >>> _only_text([{"type": "text", "value": "Hi"}]), _only_text([{"type": "image"}])
    ('Hi', [{'type': 'image'}])
    """
    if len(blocks) == 1 and type(blocks[0]) is dict and blocks[0].get("type") == "text":
        text = blocks[0].get("text", blocks[0].get("value"))
        return text if type(text) is str else blocks
    return blocks


def _block_kind(block: Any, where: str) -> str:
    if isinstance(block, str):
        return "text"
    if not isinstance(block, dict):
        raise BadLineError("bad_content", f"{where} holds a block that is a JSON {kind_of(block)}")
    kind = block.get("type", "text" if "text" in block else None)
    if not isinstance(kind, str):
        raise BadLineError(
            "bad_content", f"{where} holds a block without a type; seen: {', '.join(block)[:200]}"
        )
    if kind not in _ORDER:
        raise BadLineError(
            "not_text", f"{where} holds a block of type {kind!r}: this build holds text only"
        )
    return kind


def _add_block(said: _Content, step: int, block: Any, where: str) -> None:
    if step == _ORDER["tool_call"]:
        said.calls += _block_calls(block, where)
        return
    text = block if isinstance(block, str) else _block_value(block, where)
    if not isinstance(text, str):
        raise BadLineError("bad_content", f"{where} holds a block of a JSON {kind_of(text)}")
    if step == _ORDER["reasoning"]:
        said.reasoning += text
    else:
        said.text += text


def _block_value(block: dict[str, Any], where: str) -> Any:
    for name in _VALUES:
        if block.get(name) is not None:
            return block[name]
    raise BadLineError(
        "bad_content", f"{where} holds a block without a value; seen: {', '.join(block)[:200]}"
    )


def _block_calls(block: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tool calls in a content block.

    The block has the fields of a call, or a value that contains calls as JSON. Raise
    `BadLineError`, which says `where` the block is, if a call cannot be used.
    """
    if block.get("input") is not None:  # as Anthropic's API has it
        call = {"name": block.get("name"), "arguments": block["input"], "id": block.get("id")}
        return [one_call(call, where)]
    if block.get("name") is not None or block.get("function") is not None:
        call = {name: part for name, part in block.items() if part is not None}
        return [one_call({**call, "type": "function"}, where)]
    return spelled_calls(_block_value(block, where), where)


def _block_result(block: dict[str, Any], where: str) -> dict[str, Any]:
    value = _block_value(block, where)
    text = _content_of(value, where).text if isinstance(value, list) else value
    if not isinstance(text, str):
        raise BadLineError("bad_content", f"a tool result in {where} is a JSON {kind_of(text)}")
    message = {"role": "tool", "content": text}
    for theirs, ours in (("tool_use_id", "tool_call_id"), ("tool_call_id",) * 2, ("name",) * 2):
        if isinstance(block.get(theirs), str):
            message[ours] = block[theirs]
    return message


def transcript(text: str, name: str) -> list[Message] | None:
    r"""Return the turns in `text` (the value of field `name`), or None if it is not a transcript.

    Raise `BadLineError` if a turn is empty.

    >>> transcript("\n\nHuman: Hi\n\nAssistant: Yes?", "chosen")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Yes?'}]
    >>> transcript("Human: Hi", "chosen")
    """
    if not text.startswith(TRANSCRIPT_START):
        return None
    parts = _TRANSCRIPT_TURN.split(text)[1:]
    turns = [
        {"role": _TRANSCRIPT_ROLES[who], "content": said.strip()}
        for who, said in zip(parts[::2], parts[1::2], strict=True)
    ]
    for number, turn in enumerate(turns, 1):
        if not turn["content"]:
            raise BadLineError("empty", f"turn {number} of {name!r} ({turn['role']}) says nothing")
    return turns


def transcript_prompt(text: str, name: str) -> list[Message] | None:
    r"""Return the turns of a prompt that ends with "Assistant:", or None if it is not a transcript.

    Raise `BadLineError`, which names the field `name`, if a turn is empty.

    >>> transcript_prompt("\n\nHuman: Hi\n\nAssistant:", "prompt")
    [{'role': 'user', 'content': 'Hi'}]
    """
    bare = text.rstrip()
    return (
        transcript(bare.removesuffix(_TRANSCRIPT_END), name)
        if bare.endswith(_TRANSCRIPT_END)
        else None
    )
