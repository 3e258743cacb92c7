"""Records of every shape become the conversations that they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dataprep.pipeline.chat.records.record_shapes import Shaper
from tests.scenes.turns import ANSWER, CALL, OTHER, SYSTEM, USER, made, refused

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


ASKED = "\n\nHuman: u\n\nAssistant:"


def called(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [CALL], **more}


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"messages": [SYSTEM, USER, ANSWER], "source": "x"}, [SYSTEM, USER, ANSWER]),
        ({"messages": json.dumps([USER, ANSWER])}, [USER, ANSWER]),
        ({"messages": {"role": ["user", "assistant"], "content": ["u", "a"]}}, [USER, ANSWER]),
        (
            {"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
            [USER, ANSWER],
        ),
        ({"conversations": [USER, ANSWER], "system": "s"}, [SYSTEM, USER, ANSWER]),
        ({"conversations": [USER, ANSWER], "system": "", "tools": ""}, [USER, ANSWER]),
        ({"conversation": [USER, ANSWER], "system": None}, [USER, ANSWER]),
        ({"messages": [SYSTEM, USER, ANSWER], "system": "s"}, [SYSTEM, USER, ANSWER]),
        ({"instruction": "u", "input": "", "output": "a"}, [USER, ANSWER]),
        (
            {"instruction": "u", "input": "v", "response": "a", "system": "s"},
            [SYSTEM, {"role": "user", "content": "u\n\nv"}, ANSWER],
        ),
        (
            {"instruction": "u", "output": "a", "history": [["u", "a"], ["u", "b"]]},
            [USER, ANSWER, USER, OTHER, USER, ANSWER],
        ),
        ({"instruction": "u", "instances": [{"input": "", "output": "a"}]}, [USER, ANSWER]),
        ({"prompt": "u", "completion": "a"}, [USER, ANSWER]),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER, ANSWER]),
        ({"prompt": USER, "completion": ANSWER}, [USER, ANSWER]),
        ({"messages": [USER, ANSWER], "prompt": "other", "completion": "x"}, [USER, ANSWER]),
    ],
)
def test_shapes(record: Any, messages: list[Any]) -> None:
    """One conversation, with the turns of the record and no others."""
    found = made(record)
    assert [one.messages for one in found.conversations] == [messages]
    assert (found.scores, found.conversations[0].tools) == (None, None)
    given = len(messages) - 1 if "completion" in record and "messages" not in record else 0
    assert found.conversations[0].prompt == given
    assert found.conversations[0].train is None


def test_lists_are_passed_on() -> None:
    """Messages that are in order already are not copied."""
    record = {"messages": [dict(USER), dict(ANSWER)]}
    assert Shaper().record(record).conversations[0].messages is record["messages"]


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        (
            [USER, {"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": ""}}, {"function": {"name": "f"}}]}],
            [USER, called(content=None, tool_calls=[
                {"type": "function", "function": {"name": "f", "arguments": {}}}] * 2)],
        ),
        ([USER, {**called(), "content": None}], [USER, {**called(), "content": None}]),
        (
            [USER, {"role": "assistant", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
            ]}, {"role": "tool", "tool_call_id": "1", "content": "r", "name": "f"}],
            [USER, called(content=None, tool_calls=[{"id": "1", **CALL}]),
             {"role": "tool", "content": "r", "tool_call_id": "1", "name": "f"}],
        ),
        (
            [USER, {"role": "assistant", "content": None,
                    "function_call": {"name": "f", "arguments": '{"x": 1}'}},
             {"role": "function", "name": "f", "content": ""}],
            [USER, called(content=None), {"role": "tool", "content": "", "name": "f"}],
        ),
        (
            [USER, {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
             {"from": "observation", "value": "r"}, ANSWER],
            [USER, called(), {"role": "tool", "content": "r"}, ANSWER],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "value": "u"}]},
             {"role": "assistant", "content": [
                 {"type": "reasoning", "value": "hm"}, {"type": "text", "text": "a"},
                 {"type": "tool_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                 {"type": "tool_use", "name": "f", "input": {"x": 1}, "id": "2"}]}],
            [USER, {"role": "assistant", "content": "a", "reasoning_content": "hm",
                    "tool_calls": [CALL, {"id": "2", **CALL}]}],
        ),
        (
            [USER, called(), {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "2", "content": "r"},
                {"type": "text", "text": "u"}]}],
            [USER, called(), {"role": "tool", "content": "r", "tool_call_id": "2"}, USER],
        ),
        (
            [{"from": None, "value": None, **USER, "tool_calls": None},
             {"role": "assistant", "content": [
                 {"type": "text", "text": None, "value": "a", "name": None, "input": None},
                 {"type": "tool_call", "name": None, "input": None, "text": None,
                  "value": '{"name": "f", "arguments": {"x": 1}}'},
                 {"type": "tool_use", "name": "g", "input": None, "id": None}]}],
            [USER, called(content="a", tool_calls=[
                CALL, {"type": "function", "function": {"name": "g", "arguments": {}}}])],
        ),
        ([USER, {**ANSWER, "name": "n", "x": None}], [USER, {**ANSWER, "name": "n"}]),
        (
            [USER, {"role": "assistant", "content": "", "reasoning_content": "r"}],
            [USER, {"role": "assistant", "content": "", "reasoning_content": "r"}],
        ),
    ],
)  # fmt: skip
def test_turns(turns: list[Any], messages: list[Any]) -> None:
    """Calls, results, reasoning and names come out as templates know them."""
    for field in ("messages", "conversations"):
        assert made({field: turns}).conversations[0].messages == messages


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([TOOL], [TOOL]),
        ([{"name": "f", "parameters": {}}], [TOOL]),
        (json.dumps([{"function": {"name": "f", "parameters": {}}}]), [TOOL]),
        ([], None), ("", None), ("[]", None), (" ", None), (None, None),
    ],
)  # fmt: skip
def test_tools(tools: Any, expected: Any) -> None:
    """Tools are a list of wrapped functions, or there are none."""
    for name in ("tools", "functions"):
        assert made({"messages": [USER, ANSWER], name: tools}).conversations[0].tools == expected


def test_weights() -> None:
    """What a record says of training on a message is kept, and the field is not."""
    turns = [{**USER, "loss_weight": 0.0}, {**ANSWER, "weight": 1}, USER, {**ANSWER, "weight": 0}]
    found = made({"messages": turns, "system": "s"}).conversations[0]
    assert found.messages == [SYSTEM, USER, ANSWER, USER, ANSWER]
    assert found.train == [None, False, True, None, False]
    asked = made({"prompt": "u", "completion": [{**ANSWER, "weight": 0}]}).conversations[0]
    assert asked.train == [None, False]


def test_a_default_system_turn() -> None:
    """It stands where there is none, in every form, and is no part of the answer."""
    for record in ({"messages": [USER, ANSWER]}, {"prompt": "u", "completion": "a"}):
        assert made(record, system="s").conversations[0].messages == [SYSTEM, USER, ANSWER]
    own = made({"messages": [{**SYSTEM, "content": "t"}, USER, ANSWER]}, system="s")
    assert own.conversations[0].messages[0]["content"] == "t"
    pair = made({"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, system="s")
    assert [one.messages[0] for one in pair.conversations] == [SYSTEM, SYSTEM]
    assert [one.prompt for one in pair.conversations] == [2, 2]


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        ({"prompt": "u", "chosen": "a", "rejected": "b"}, [USER]),
        ({"prompt": [SYSTEM, USER], "chosen": [ANSWER], "rejected": [OTHER]}, [SYSTEM, USER]),
        ({"prompt": "u", "system": "s", "chosen": ANSWER, "rejected": OTHER}, [SYSTEM, USER]),
        ({"instruction": "u", "input": "", "chosen": "a", "rejected": "b"}, [USER]),
        ({"messages": [USER], "chosen": "a", "rejected": "b"}, [USER]),
        (
            {"conversations": [{"from": "human", "value": "u"}],
             "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}},
            [USER],
        ),
        ({"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, [USER]),
        ({"prompt": "u", "chosen": [USER, ANSWER], "rejected": [USER, OTHER],
          "messages": [USER, ANSWER]}, [USER]),
        ({"chosen": [USER, ANSWER, USER, ANSWER], "rejected": [USER, ANSWER, USER, OTHER]},
         [USER, ANSWER, USER]),
        ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER, USER, OTHER]}, [USER]),
        ({"chosen": f"{ASKED} a", "rejected": f"{ASKED} b"}, [USER]),
        ({"chosen": f"{ASKED} a {ASKED} a", "rejected": f"{ASKED} a {ASKED}\nb\n\nc"},
         [USER, ANSWER, USER]),
        ({"chosen": f"{ASKED} a{ASKED} a", "rejected": f"{ASKED} b"}, [USER]),
        ({"prompt": ASKED, "chosen": " a", "rejected": " b"}, [USER]),
        ({"prompt": f"{ASKED} a{ASKED} ", "chosen": "a", "rejected": "b"}, [USER, ANSWER, USER]),
        ({"prompt": "u", "chosen": f"{ASKED} a", "rejected": f"{ASKED} b"}, [USER]),
        ({"chosen": f"{ASKED} a", "rejected": f"{ASKED} b", "system": "s"}, [SYSTEM, USER]),
        ({"chosen": [USER, called(), {"role": "tool", "content": "1"}, ANSWER],
          "rejected": [USER, called(), {"role": "tool", "content": "2"}, ANSWER]}, [USER]),
    ],
)  # fmt: skip
def test_pairs(record: Any, prompt: list[Any]) -> None:
    """Two conversations, chosen first, that begin with the same prompt."""
    found = made(record)
    assert found.scores == [1.0, 0.0]
    for one in found.conversations:
        assert one.messages[: one.prompt] == prompt
        assert one.messages[one.prompt]["role"] == "assistant"
    first, second = found.conversations
    assert first.messages != second.messages


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({"chosen": "It is blue.", "rejected": "It is green."}, "no_prompt", "in 'prompt'"),
        ({"chosen": "Human: u\n\nAssistant: a", "rejected": f"{ASKED} b"}, "no_prompt", ""),
        ({"chosen": f"{ASKED} a", "rejected": ASKED}, "empty", "turn 2 of 'rejected'"),
        ({"chosen": f"{ASKED} a", "rejected": "\n\nHuman: v\n\nAssistant: b"}, "no_prompt", ""),
        ({"prompt": "\n\nHuman:\n\nAssistant:", "chosen": "a", "rejected": "b"}, "empty", ""),
    ],
)  # fmt: skip
def test_texts_that_are_no_transcripts(record: Any, reason: str, detail: str) -> None:
    """Nothing is guessed: two texts may part in the middle of an answer."""
    found = refused(record)
    assert found[0] == reason
    assert detail in found[1]


def test_transcripts_elsewhere() -> None:
    """A prompt is one with a completion too, and only if it asks; other texts stay as they are."""
    asked = made({"prompt": f"{ASKED} a{ASKED}", "completion": "b"}).conversations[0]
    assert (asked.messages, asked.prompt) == ([USER, ANSWER, USER, OTHER], 3)
    for text in ("\n\nHuman: u", "Human: u\n\nAssistant:"):
        told = made({"prompt": text, "completion": "a"}).conversations[0]
        assert told.messages == [{"role": "user", "content": text}, ANSWER]
    assert made({"prompt": ASKED, "completion": "a", "label": True}).conversations[0].prompt == 1
    assert made({"prompt": ASKED, "responses": ["a", "b"]}).conversations[1].messages == [
        USER, OTHER
    ]  # fmt: skip


def test_labels() -> None:
    """One conversation, whose last answer is judged."""
    turns = [SYSTEM, USER, ANSWER, USER, called(), {"role": "tool", "content": "r"}, OTHER]
    found = made({"messages": turns, "label": True})
    assert (found.scores, found.conversations[0].prompt) == ([1.0], 4)
    found = made({"prompt": "u", "completion": "a", "label": False, "system": "s"})
    assert (found.scores, found.conversations[0].prompt) == ([0.0], 2)
    assert made({"messages": turns, "label": "x"}, form="chat").scores is None


def test_groups() -> None:
    """One conversation for each response, with its reward."""
    found = made({"prompt": "u", "responses": ["a", [OTHER], ANSWER], "rewards": [1, 0.5, -2]})
    assert [one.messages for one in found.conversations] == [
        [USER, ANSWER], [USER, OTHER], [USER, ANSWER]
    ]  # fmt: skip
    assert found.scores == [1.0, 0.5, -2.0]
    assert [one.prompt for one in found.conversations] == [1, 1, 1]
    for rewards in ({}, {"rewards": None}, {"scores": [None, None]}):
        found = made({"messages": [USER], "completions": ["a", "b"], **rewards})
        assert found.scores is not None
        assert [math.isnan(score) for score in found.scores] == [True, True]


def test_what_is_asked_for_goes_before_what_is_found() -> None:
    """A shape and a form that are given are the only ones tried."""
    record = {"messages": [USER, ANSWER], "prompt": "v", "completion": "b", "label": True}
    assert made(record).scores == [1.0]
    assert made(record, form="chat").conversations[0].messages == [USER, ANSWER]
    asked = made(record, form="chat", shape="prompt").conversations[0].messages
    assert asked == [{**USER, "content": "v"}, OTHER]
    assert refused(record, shape="alpaca")[0] == "unknown_shape"
    assert refused(record, form="pairs")[0] == "unknown_shape"
    pair = {"prompt": "u", "messages": [SYSTEM, USER], "chosen": "a", "rejected": "b"}
    assert made(pair, shape="messages").conversations[0].messages == [SYSTEM, USER, ANSWER]


def test_columns() -> None:
    """Fields, nested ones too, roles, and the fields of turns can have other names."""
    record = {"meta": {"dialog": [
        {"speaker": "Human", "utterance": "u"}, {"speaker": "Bot", "utterance": "a"}
    ]}, "messages": 5}  # fmt: skip
    columns = (
        ("messages", "meta.dialog"), ("role", "speaker"), ("content", "utterance"),
        ("user", "Human"), ("assistant", "Bot"),
    )  # fmt: skip
    assert made(record, columns=columns).conversations[0].messages == [USER, ANSWER]
    boss = {"messages": [{"role": "Boss", "content": "s"}, USER, ANSWER], "system": "s"}
    found = made(boss, columns=(("system", "Boss"),)).conversations[0]
    assert found.messages == [SYSTEM, USER, ANSWER]
    boss["system"] = "t"
    assert refused(boss, columns=(("system", "Boss"),))[0] == "two_systems"
    asked = {"question": "u", "answer": "a", "prompt": "x"}
    pairs = (("prompt", "question"), ("completion", "answer"))
    assert made(asked, columns=pairs).conversations[0].messages == [USER, ANSWER]
    assert refused({"prompt": "u", "completion": "a"}, columns=pairs)[0] == "unknown_shape"


def test_many_layouts_are_forgotten() -> None:
    """Records whose fields all differ take no memory that grows."""
    shaper = Shaper()
    for number in range(3000):
        record = {"messages": [USER, ANSWER], f"x{number}": 1}
        assert shaper.record(record).conversations[0].messages == [USER, ANSWER]
    assert len(shaper._converters) <= 1024
    shaper.record({"messages": [USER, ANSWER], "x" * 10_000: 1})
    assert max(sum(map(len, names)) for names in shaper._converters) < 5000
