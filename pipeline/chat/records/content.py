"""What a message says, out of content blocks: text, reasoning, tool calls, tool results.

Chat templates take text. Blocks in an order that one turn can say (reasoning, then text, then
calls) become the fields that templates know; any other order is refused, because the text of a
turn would come out in an order that the record does not have. So is what is no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...read.json_lines import BadLineError, kind_of
from .tool_calls import one_call, spelled_calls

__all__ = ["Said", "only_text", "said_in"]

_ORDER = {
    "reasoning": 0, "thinking": 0,
    "text": 1, "input_text": 1, "output_text": 1,
    "tool_call": 2, "tool_use": 2, "function_call": 2,
    "tool_result": 3,
}  # fmt: skip
_VALUES = ("text", "value", "reasoning", "thinking", "content")


@dataclass(kw_only=True, slots=True)
class Said:
    """The parts of a message; `results` are messages of tools that it holds."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)


def said_in(blocks: list[Any], where: str) -> Said:
    """What the content `blocks` of the message `where` say.

    >>> said_in([{"type": "text", "value": "Hi"}, {"type": "text", "text": "!"}], "turn 1").text
    'Hi!'
    """
    said = Said()
    last = 0
    for block in blocks:
        kind = _kind(block, where)
        step = _ORDER[kind]
        if step == _ORDER["tool_result"]:
            said.results.append(_result(block, where))
            continue
        if step < last:
            raise BadLineError(
                "block_order",
                f"{where} has a block of type {kind!r} after one that a turn says later: "
                "reasoning, then text, then tool calls is what templates can render",
            )
        last = step
        _add(said, step, block, where)
    return said


def only_text(blocks: list[Any]) -> Any:
    """The text of `blocks`, where a single block of text is all there is; otherwise `blocks`.

    >>> only_text([{"type": "text", "value": "Hi"}]), only_text([{"type": "image"}])
    ('Hi', [{'type': 'image'}])
    """
    if len(blocks) == 1 and type(blocks[0]) is dict and blocks[0].get("type") == "text":
        text = blocks[0].get("text", blocks[0].get("value"))
        return text if type(text) is str else blocks
    return blocks


def _kind(block: Any, where: str) -> str:
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


def _add(said: Said, step: int, block: Any, where: str) -> None:
    if step == _ORDER["tool_call"]:
        said.calls += _calls(block, where)
        return
    text = block if isinstance(block, str) else _value(block, where)
    if not isinstance(text, str):
        raise BadLineError("bad_content", f"{where} holds a block of a JSON {kind_of(text)}")
    if step == _ORDER["reasoning"]:
        said.reasoning += text
    else:
        said.text += text


def _value(block: dict[str, Any], where: str) -> Any:
    for name in _VALUES:
        if block.get(name) is not None:
            return block[name]
    raise BadLineError(
        "bad_content", f"{where} holds a block without a value; seen: {', '.join(block)[:200]}"
    )


def _calls(block: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A call as an object of its own, or as JSON in the value of the block."""
    if block.get("input") is not None:  # as Anthropic's API has it
        call = {"name": block.get("name"), "arguments": block["input"], "id": block.get("id")}
        return [one_call(call, where)]
    if block.get("name") is not None or block.get("function") is not None:
        call = {name: part for name, part in block.items() if part is not None}
        return [one_call({**call, "type": "function"}, where)]
    return spelled_calls(_value(block, where), where)


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    value = _value(block, where)
    text = said_in(value, where).text if isinstance(value, list) else value
    if not isinstance(text, str):
        raise BadLineError("bad_content", f"a tool result in {where} is a JSON {kind_of(text)}")
    message = {"role": "tool", "content": text}
    for theirs, ours in (("tool_use_id", "tool_call_id"), ("tool_call_id",) * 2, ("name",) * 2):
        if isinstance(block.get(theirs), str):
            message[ours] = block[theirs]
    return message
