"""Conversion of tools and tool calls to the form that chat templates expect.

Datasets hold calls as in OpenAI's API (arguments as JSON in a string), as in ShareGPT (the whole
call as JSON in a string), or as content blocks. Templates expect ``{"type": "function", "function":
{"name": ..., "arguments": {...}}}``. The arguments must be an object, because templates write them
with `tojson`, which would quote a string a second time.
"""

from __future__ import annotations

from typing import Any

from ...read.json_lines import BadLineError, kind_of
from .json_objects import value_of

__all__ = ["one_call", "spelled_calls", "tool_calls", "tools_of"]

_FUNCTION = "function"


def tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the tool calls in `value` (the value of field `tool_calls` in a message).

    Raise `BadLineError`, which says `where` the message is, if a call cannot be used.

    >>> tool_calls([{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}], "turn 2")
    [{'id': 'c1', 'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    value = _from_json(value, where) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise _bad(f"tool_calls of {where} is a JSON {kind_of(value)}, not an array")
    return [one_call(call, where) for call in value]


def spelled_calls(text: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls in `text`, which is a call or a list of calls, decoded or as JSON text.

    Raise `BadLineError`, which says `where` the calls are, if there is no call, or if a call cannot
    be used.

    >>> spelled_calls('{"name": "add", "arguments": {"a": 1}}', "turn 2")
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    found = _from_json(text, where) if isinstance(text, str) else text
    calls = found if isinstance(found, list) else [found]
    if not calls:
        raise _bad(f"{where} calls no tool")
    return [one_call(call, where) for call in calls]


def one_call(call: Any, where: str) -> dict[str, Any]:
    """Return `call` in the form that templates expect, with its `id` if it has one.

    Raise `BadLineError` if the call is not an object, names no function, or has arguments that are
    not an object. The error says `where` the call is.
    """
    if not isinstance(call, dict):
        raise _bad(f"a tool call of {where} is a JSON {kind_of(call)}, not an object")
    inner = call.get(_FUNCTION, call)
    if not isinstance(inner, dict):
        raise _bad(f"a tool call of {where} has a {kind_of(inner)} as its function")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise _bad(f"a tool call of {where} names no function")
    arguments = _arguments(inner, name, where)
    if inner is call:
        others = {key: call[key] for key in ("id",) if call.get(key) is not None}
        function = {"name": name, "arguments": arguments}
    else:
        others = {key: part for key, part in call.items() if key not in ("type", _FUNCTION)}
        function = {**inner, "arguments": arguments}
    kind = call.get("type", _FUNCTION)
    return {**others, "type": _FUNCTION if inner is call else kind, _FUNCTION: function}


def _arguments(function: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    value = next((function[key] for key in ("arguments", "parameters") if key in function), None)
    if isinstance(value, str):
        value = _from_json(value, f"the arguments of {name!r} in {where}") if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad(f"the arguments of {name!r} in {where} are a JSON {kind_of(value)}")
    return value


def tools_of(value: Any) -> list[Any] | None:
    """Return the list of tools in `value`, or None if there are no tools.

    The argument `value` is a list or the JSON text of a list. A plain function description is
    wrapped in a tool, as templates expect. Raise `BadLineError` if `value` or a tool cannot be
    used.

    >>> tools_of('[{"name": "add", "parameters": {}}]')
    [{'type': 'function', 'function': {'name': 'add', 'parameters': {}}}]
    """
    if isinstance(value, str):
        value = _from_json(value, "the field 'tools'", "bad_tools") if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, list):
        raise _bad(f"the field 'tools' is a JSON {kind_of(value)}, not an array", "bad_tools")
    return [_tool(tool) for tool in value] or None


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise _bad(f"a tool is a JSON {kind_of(tool)}, not an object", "bad_tools")
    function = tool.get(_FUNCTION, tool)
    if not isinstance(function, dict):
        raise _bad(f"the function of a tool is a JSON {kind_of(function)}", "bad_tools")
    if not isinstance(function.get("name"), str) or not function["name"]:
        seen = ", ".join(map(repr, function))[:200] or "nothing"
        raise _bad(f"a tool has no name; seen: {seen}", "bad_tools")
    if function is tool:
        return {"type": _FUNCTION, _FUNCTION: tool}
    return tool if "type" in tool else {"type": _FUNCTION, **tool}


def _from_json(text: str, where: str, reason: str = "bad_tool_call") -> Any:
    try:
        return value_of(text)
    except BadLineError as bad:
        raise _bad(f"{where} holds no JSON ({bad.args[1]}): {text[:60]!r}", reason) from None


def _bad(detail: str, reason: str = "bad_tool_call") -> BadLineError:
    return BadLineError(reason, detail)
