"""Records that hold no conversation are refused with the reason, and so are unknown options."""

from __future__ import annotations

from typing import Any

import pytest

from dataprep.formats.errors import UsageError
from dataprep.pipeline.chat.records.reader import ChatReadOptions
from tests.scenes.turns import ANSWER, CALL, OTHER, SYSTEM, USER, refused

GOOD = {"messages": [USER, ANSWER]}


@pytest.mark.parametrize(
    ("record", "reason", "said"),
    [
        ({}, "unknown_shape", "nothing"),
        ({"text": "a", "id": 1}, "unknown_shape", "'text', 'id'"),
        ({"prompt": "a"}, "unknown_shape", "prompt + completion"),
        ({"messages": []}, "no_messages", "'messages'"),
        ({"messages": None}, "unknown_shape", "nothing"),
        ({"messages": 5}, "bad_message", "number"),
        ({"messages": "hello"}, "bad_message", "string"),
        ({"messages": "[1"}, "bad_message", "no JSON"),
        ({"messages": ["a"]}, "bad_message", "turn 1"),
        ({"messages": {"role": ["user"], "content": []}}, "bad_message", "object"),
        ({"messages": [USER, {"content": "a"}]}, "bad_message", "turn 2 of 'messages' has no"),
        ({"messages": [USER, {"role": "Wizard", "content": "a"}]}, "unknown_role", "'Wizard'"),
        ({"messages": [{"role": 1, "content": "a"}]}, "unknown_role", "number"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown_role", "array"),
        ({"messages": [USER, {**ANSWER, "content": ""}]}, "empty", "turn 2"),
        ({"messages": [USER, {**ANSWER, "content": None}]}, "empty", "turn 2"),
        ({"messages": [USER, {**ANSWER, "content": []}]}, "empty", "turn 2"),
        ({"messages": [{"role": "user"}, ANSWER]}, "empty", "(user)"),
        ({"messages": [USER, {**ANSWER, "content": 5}]}, "bad_content", "number"),
        ({"messages": [USER, {**ANSWER, "content": {"text": "a"}}]}, "bad_content", "object"),
        ({"messages": [USER, {"role": "tool", "content": "r"}]}, "roles", "a turn of the user"),
        ({"messages": [{"role": "tool", "content": "r"}]}, "roles", "nothing"),
        ({"messages": [SYSTEM, USER, ANSWER], "system": "t"}, "two_systems", "system turn"),
        ({**GOOD, "system": 5}, "bad_content", "'system'"),
        ({"messages": [{**USER, "weight": 0.5}]}, "bad_weight", "0.5"),
        ({"messages": [{**USER, "loss_weight": True}]}, "bad_weight", "True"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "bad_tool_call", "'user'"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": 5}]}, "bad_tool_call", "number"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "bad_tool_call", "names"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [5]}]}, "bad_tool_call", "number"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": 5}]}]},
            "bad_tool_call", "number",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "{"}}]}]},
            "bad_tool_call", "'f'",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "[1]"}}]}]},
            "bad_tool_call", "array",
        ),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "bad_tool_call", "f()"),
        ({"conversations": [{"from": "function_call", "value": "[]"}]}, "bad_tool_call", "no tool"),
        ({**GOOD, "tools": "{"}, "bad_tools", "no JSON"),
        ({**GOOD, "tools": {"a": 1}}, "bad_tools", "object"),
        ({**GOOD, "tools": ["f"]}, "bad_tools", "string"),
        ({**GOOD, "tools": [{"x": 1}]}, "bad_tools", "'x'"),
        ({**GOOD, "tools": [{"function": 5}]}, "bad_tools", "number"),
        ({**GOOD, "tools": [{"function": {"name": ""}}]}, "bad_tools", "no name"),
        ({"messages": [{**USER, "content": [{"type": "image"}]}]}, "not_text", "text only"),
        ({"messages": [{**USER, "content": [5]}]}, "bad_content", "number"),
        ({"messages": [{**USER, "content": [{"value": "a"}]}]}, "bad_content", "without a type"),
        ({"messages": [{**USER, "content": [{"type": "text"}]}]}, "bad_content", "without a value"),
        ({"messages": [{**USER, "content": [{"type": "text", "text": 1}]}]}, "bad_content", "numb"),
        (
            {"messages": [{**ANSWER, "content": [
                {"type": "text", "text": "a"}, {"type": "reasoning", "value": "b"}]}]},
            "block_order", "'reasoning'",
        ),
        ({"instruction": "", "input": "", "output": "a"}, "empty", "'instruction'"),
        ({"instruction": "u", "output": ""}, "empty", "'output'"),
        ({"instruction": 5, "output": "a"}, "bad_content", "number"),
        ({"instruction": "u", "output": "a", "history": [["u"]]}, "bad_history", "pairs"),
        ({"instruction": "u", "output": "a", "history": 5}, "bad_history", "pairs"),
        ({"instruction": "u", "instances": [{}, {}]}, "several_instances", "2"),
        ({"instruction": "u", "instances": [{}]}, "unknown_shape", "'instances'"),
        ({"prompt": "", "completion": "a"}, "empty", "'prompt'"),
        ({"prompt": 5, "completion": "a"}, "bad_message", "'prompt'"),
        ({"prompt": "u", "completion": ""}, "empty", "'completion'"),
        ({"prompt": "u", "completion": [USER, ANSWER]}, "roles", "'completion' begins"),
        ({"prompt": "u", "chosen": "a", "rejected": "a"}, "same_answers", "the same"),
        ({"chosen": "a", "rejected": "b"}, "no_prompt", "in 'prompt'"),
        ({"chosen": "a", "rejected": "b", "system": "s"}, "no_prompt", "in 'prompt'"),
        ({"chosen": [SYSTEM, ANSWER], "rejected": [USER, OTHER]}, "no_prompt", "same prompt"),
        (
            {"prompt": "v", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
            "no_prompt", "another",
        ),
        ({"messages": [USER, ANSWER], "chosen": "a", "rejected": "b"}, "roles", "assistant"),
        ({**GOOD, "label": 1}, "bad_label", "number"),
        ({"messages": [USER, ANSWER, USER], "label": True}, "roles", "ends"),
        ({"messages": [SYSTEM, ANSWER], "label": True}, "no_prompt", "nothing is asked"),
        ({"prompt": "u", "responses": []}, "no_responses", "none"),
        ({"prompt": "u", "responses": "a"}, "bad_responses", "string"),
        ({"prompt": "u", "responses": [""]}, "empty", "response 1"),
        ({"prompt": "u", "responses": [[USER]]}, "roles", "asks"),
        ({"responses": ["a"]}, "no_prompt", "no prompt"),
        ({"prompt": "u", "responses": ["a"], "rewards": [1, 2]}, "bad_rewards", "2 rewards for 1"),
        ({"prompt": "u", "responses": ["a", "b"], "rewards": [1, None]}, "bad_rewards", "None"),
        ({"prompt": "u", "responses": ["a"], "rewards": [True]}, "bad_rewards", "True"),
        ({"prompt": "u", "responses": ["a"], "rewards": 1}, "bad_rewards", "number"),
    ],
)  # fmt: skip
def test_refusals(record: Any, reason: str, said: str) -> None:
    """Each record that cannot be used says why, and what it is."""
    found, detail = refused(record)
    assert found == reason
    assert said in detail


@pytest.mark.parametrize(
    "options",
    [
        {"shape": "chatty"}, {"form": "dpo"}, {"columns": (("mesages", "a"),)},
        {"columns": (("messages", ""),)}, {"columns": (("prompt", "a"), ("prompt", "b"))},
    ],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    """A name that is not known is refused at once."""
    with pytest.raises(UsageError):
        ChatReadOptions(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"shape": "pairs"}, "--form pairs"), ({"form": "alpaca"}, "--shape alpaca")],
)
def test_forms_are_no_shapes(options: dict[str, Any], said: str) -> None:
    """The option that takes the value is named."""
    with pytest.raises(UsageError, match=f"Perhaps {said} is meant"):
        ChatReadOptions(**options)
