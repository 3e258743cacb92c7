"""Turns: short ways and the long one agree, and nothing but conversations or reasons comes out."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.pipeline.chat.records.conversation import ChatRecord, Conversation
from dataprep.pipeline.chat.records.record_shapes import FIELDS, Shaper, form_of
from dataprep.pipeline.chat.records.tool_calls import spelled_calls, tools_of
from dataprep.pipeline.chat.records.turns import ROLES, Turns
from dataprep.pipeline.chat.trace.structure import grouped, plain_structure
from dataprep.pipeline.read.json_lines import BadLineError
from tests.support import examples

roles = st.sampled_from(
    ["system", "user", "assistant", "tool", "human", "gpt", "function_call", "developer", "wizard"]
)
texts = st.sampled_from(["", "a", "b", '{"name": "f", "arguments": {}}', "[", "[{}]"])
odd = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.floats(0, 1), texts)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "reasoning", "tool_call", "tool_result", "image"])},
    optional={"text": texts, "value": st.one_of(texts, odd), "name": texts, "input": odd},
)
contents = st.one_of(texts, texts, odd, st.lists(st.one_of(blocks, odd), max_size=3))
calls = st.one_of(
    odd,
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"name": texts, "arguments": odd, "id": odd, "type": odd,
                          "function": st.fixed_dictionaries({"name": texts, "arguments": texts})},
        ),
        max_size=2,
    ),
)  # fmt: skip
plain = st.fixed_dictionaries({"role": roles, "content": texts})
renamed = st.fixed_dictionaries({"from": roles, "value": texts})
any_turn = st.one_of(
    odd,
    st.fixed_dictionaries(
        {},
        optional={"role": st.one_of(roles, odd), "from": roles, "content": contents,
                  "value": contents, "weight": odd, "loss_weight": odd, "tool_calls": calls,
                  "function_call": odd, "name": odd, "reasoning_content": texts},
    ),
)  # fmt: skip
turns = st.one_of(
    st.lists(plain, max_size=4), st.lists(renamed, max_size=4),
    st.lists(st.one_of(plain, plain, any_turn), max_size=4), odd,
)  # fmt: skip


def outcome(read: Any, *arguments: Any) -> Any:
    try:
        return read(*copy.deepcopy(arguments))
    except BadLineError as bad:
        return bad.args


@examples(240)
@given(turns)
@example([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])
@example([{"from": "human", "value": "a", "weight": 0}])
def test_short_ways_agree_with_the_long_one(value: Any) -> None:
    """Lists that are passed on, or renamed, are what each turn by itself comes to."""
    found = Turns(roles={})
    assert outcome(found.read, value, "messages") == outcome(found._translated, value, "messages")


@examples(120)
@given(st.lists(st.one_of(turns, st.lists(plain, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_lists_together_are_as_each(lists: list[Any]) -> None:
    """Lists that are plain together are those that would be passed on one by one."""
    found = Turns(roles={})
    if turned := found.plain_turns(copy.deepcopy(lists)):
        turns = [turn for one in lists for turn in one]
        assert turned.roles == [turn["role"] for turn in turns]
        assert turned.texts == [turn["content"] for turn in turns]
        assert turned.counts == [len(one) for one in lists]
        talks = [Conversation(messages=one) for one in lists]
        assert grouped(talks, turned) == grouped(talks)
        assert turned.role_first == all(next(iter(turn)) == "role" for turn in turns)
        assert [outcome(found._translated, one, "m") for one in lists] == [
            (one, None) for one in lists
        ]
        plain_roles = {turn["role"] for one in lists for turn in one}
        assert plain_roles <= {"system", "user", "assistant", "tool"}


def test_which_lists_are_plain() -> None:
    """Tools answer the assistant; nothing else is looked at one by one without need."""
    user, answer, tool = ({"role": role, "content": "x"} for role in ("user", "assistant", "tool"))
    good = [[user, answer], [user, answer, tool, tool, answer]]
    assert Turns(roles={}).plain_turns(good)
    for bad in ([tool], [user, tool], [], "ab", 5, [5], ["ab"], [{**user, "content": ""}], None,
                [{**user, "name": "n"}], [{"role": "user"}], [{**user, "role": "human"}],
                [{**user, "content": None}], [{**user, "role": ["user"]}]):  # fmt: skip
        assert not Turns(roles={}).plain_turns([*good, bad])
    assert not Turns(roles={}, role=("speaker",)).plain_turns(good)
    turned = Turns(roles={}).plain_turns([[user, dict(reversed(answer.items()))]])
    assert turned is not None
    assert not turned.role_first


@pytest.mark.parametrize(("before", "follows"), [([], "nothing"), (["user"], "a turn of the user")])
def test_a_result_of_a_tool_that_nobody_called(before: list[str], follows: str) -> None:
    """The reason names the turn and what stands before it."""
    turns = [{"role": role, "content": "x"} for role in [*before, "tool"]]
    where = f"turn {len(turns)} of 'm' is what a tool returned"
    with pytest.raises(BadLineError) as caught:
        Turns(roles={}).read(turns, "m")
    assert caught.value.args == ("roles", f"{where}, and follows {follows}")


@examples(60)
@given(st.lists(st.one_of(turns, st.lists(plain, min_size=1, max_size=3)), max_size=4))
@example([[{"role": "user", "content": "a", "weight": 0}]])
@example([[{"content": "a", "role": "user"}], [{"role": "user", "content": "a"}]])
def test_groups_hold_the_plain_conversations_of_one_structure(lists: list[Any]) -> None:
    """One that is not plain is in none."""
    read = [outcome(Turns(roles={}).read, one, "m") for one in lists]
    talks = [Conversation(messages=one[0], train=one[1]) for one in read if type(one[0]) is list]
    found = {
        (number, shape, *row)
        for shape, group in grouped(talks).items()
        for number, row in zip(*group, strict=True)
    }
    known = [(number, plain_structure(one)) for number, one in enumerate(talks)]
    assert found == {(number, one[0], *one[1]) for number, one in known if one}


said = st.sampled_from(["a", "b", "c"])


def spoken(*names: str) -> st.SearchStrategy[list[dict[str, str]]]:
    """Turns of these roles, in this order."""
    return st.tuples(
        *(st.fixed_dictionaries({"role": st.just(n), "content": said}) for n in names)
    ).map(list)


whole = st.one_of(
    spoken("user", "assistant"), spoken("system", "human", "gpt"),
    spoken("user", "assistant", "tool", "assistant"), spoken("user", "gpt", "user", "gpt"), turns,
)  # fmt: skip
asked = st.one_of(spoken("user"), spoken("system", "user"), turns)
answered = st.one_of(said, said, spoken("assistant"), whole, any_turn)
fields = dict.fromkeys(FIELDS, odd) | {
    "messages": whole, "conversations": whole, "chosen": answered, "rejected": answered,
    "label": st.one_of(st.booleans(), odd), "prompt": st.one_of(said, asked, texts),
    "completion": answered, "instruction": said, "input": texts, "output": said,
    "responses": st.one_of(st.lists(answered, max_size=3), odd), "system": st.one_of(said, odd),
    "rewards": st.one_of(odd, st.lists(odd, max_size=3)), "tools": calls,
    "history": st.one_of(odd, st.lists(st.lists(texts, max_size=2), max_size=2)),
    "instances": st.lists(st.dictionaries(st.sampled_from(["input", "output"]), texts), max_size=2),
}  # fmt: skip
records = st.fixed_dictionaries({}, optional={**fields, "response": texts, "scores": odd})
wanted = [
    ("messages",), ("conversations", "system"), ("instruction", "output"), ("prompt", "completion"),
    ("instruction", "instances"), ("chosen", "rejected", "prompt"), ("chosen", "rejected"),
    ("prompt", "responses"), ("prompt", "responses", "rewards"), ("messages", "label"),
    ("instruction", "output", "history"), ("messages", "tools"), ("prompt", "completion", "label"),
]  # fmt: skip


@st.composite
def shaped(draw: st.DrawFn) -> dict[str, Any]:
    """A record with the fields of some shape, and perhaps others."""
    more = draw(records) if draw(st.integers(0, 3)) == 0 else {}
    return more | {name: draw(fields[name]) for name in draw(st.sampled_from(wanted))}


def check(found: ChatRecord) -> None:
    """What a renderer and a writer of shards may count on."""
    for one in found.conversations:
        assert one.messages
        assert 0 <= one.prompt < len(one.messages)
        assert one.train is None or len(one.train) == len(one.messages)
        assert one.tools is None or all(tool["function"]["name"] for tool in one.tools)
        for turn in one.messages:
            assert turn["role"] in ROLES
            assert isinstance(turn["content"], str) or (
                turn["content"] is None and turn["tool_calls"]
            )
            for call in turn.get("tool_calls", ()):
                assert isinstance(call["function"]["name"], str)
                assert isinstance(call["function"]["arguments"], dict)
    if found.scores is not None:
        assert len(found.scores) == len(found.conversations)
        assert len({math.isnan(score) for score in found.scores}) == 1
        assert all(one.messages[one.prompt]["role"] == "assistant" for one in found.conversations)
        prompts = {
            json.dumps(one.messages[: one.prompt], sort_keys=True) for one in found.conversations
        }
        assert len(prompts) == 1
        assert all(one.prompt for one in found.conversations)


@examples(600)
@given(
    shaped(),
    st.sampled_from([None, None, None, "chat", "pairs", "labels", "groups"]),
    st.booleans(),
)
def test_any_record(record: dict[str, Any], form: Any, system: bool) -> None:
    """It becomes conversations that are in order, or says why not; never anything else."""
    shaper = Shaper(form=form, system="s" if system else None)
    found = outcome(shaper.record, record)
    if isinstance(found, tuple):
        assert all(isinstance(part, str) and part for part in found)
    else:
        check(found)
        assert (found.scores is None) == ((form or form_of(present(record))) == "chat")
    assert outcome(lambda value: shaper.records([value])[0][0], record) == found or nan(found)


def present(record: dict[str, Any]) -> list[str]:
    return [name for name, value in record.items() if value is not None]


def nan(found: Any) -> bool:
    """NaN is not itself."""
    return isinstance(found, ChatRecord) and math.isnan((found.scores or [0.0])[0])


def test_spelled_json_is_judged_as_lines_are() -> None:
    """What is too deep, or has a name twice, is refused in strings too."""
    for arguments in (
        "[" * 70 + "]" * 70,
        '{"a": 1, "a": 2}',
        "{",
        "\ud800".encode("utf-8", "replace").decode(),
    ):
        with pytest.raises(BadLineError):
            spelled_calls('{"name": "f", "arguments": ' + arguments + "}", "turn 1")
        with pytest.raises(BadLineError):
            tools_of('[{"name": "f", "parameters": ' + arguments + "}]")
