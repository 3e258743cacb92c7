"""Records of the shapes that chat datasets have, into conversations.

| shape | fields of a record |
|---|---|
| messages | `messages`: turns with `role` and `content` |
| sharegpt | `conversations`: turns with `from` and `value` |
| alpaca | `instruction`, `input`, `output` or `response`, `history` |
| instances | `instruction`, `instances`: one object with `input` and `output` |
| prompt | `prompt`, `completion`: texts, or turns |

Any may have `system` and `tools`. Beside a prompt in one of these shapes, `chosen` and `rejected`
make pairs, `responses` or `completions` (with `rewards` or `scores`) groups; `label` makes labels.
Turns spell their fields either way in every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dataprep.pipeline.chat.conversation import ChatRecord, Conversation, Form
from dataprep.pipeline.chat.preferences import Answers, labelled
from dataprep.pipeline.chat.tool_calls import tools_of
from dataprep.pipeline.chat.turns import ROLES, Message, Train, Turns, shifted
from dataprep.pipeline.json_rows import BadLineError, find, kind_of, path_of

__all__ = ["FIELDS", "SHAPES", "Shaper", "field_path", "form_of"]

SHAPES: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "instances": ("instruction", "instances"),
    "alpaca": ("instruction", "output"),
    "prompt": ("prompt", "completion"),
}
"""Shapes in the order in which they are tried, and the fields that a record needs for each."""
_PROMPTS: Mapping[str, str] = {
    "prompt": "prompt", "sharegpt": "conversations", "messages": "messages",
    "alpaca": "instruction", "instances": "instruction",
}  # fmt: skip
_ALIASES: Mapping[str, str] = {
    "response": "output", "conversation": "conversations", "completions": "responses",
    "scores": "rewards",
}  # fmt: skip
_NEEDED: Mapping[Form, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"), "groups": ("responses",), "labels": ("label",), "chat": (),
}  # fmt: skip
FIELDS = (
    "messages", "conversations", "instruction", "input", "output", "instances", "history",
    "prompt", "completion", "chosen", "rejected", "label", "responses", "rewards", "system",
    "tools", "role", "content",
)  # fmt: skip
"""What fields of a record can be said to be, by our names."""
_OF_TURNS = ("role", "content")
_RECORD_FIELDS = frozenset(FIELDS).difference(_OF_TURNS)
_MAX_LAYOUTS = 1024
_JOINT = "\n\n"  # between an instruction and its input

Make = Callable[[dict[str, Any]], ChatRecord]


def form_of(fields: Any) -> Form:
    """The form that a record with such `fields` has, if none is asked for.

    >>> form_of({"prompt": "a", "chosen": "b", "rejected": "c"})
    'pairs'
    """
    names = {_ALIASES.get(name, name) for name in fields}
    return next(form for form, needed in _NEEDED.items() if names.issuperset(needed))


def field_path(record: dict[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """`path`, or the one step of a field whose own name holds dots: that goes before.

    >>> field_path({"a.b": 1}, ("a", "b")), field_path({"a": {"b": 1}}, ("a", "b"))
    (('a.b',), ('a', 'b'))
    """
    name = ".".join(path)
    return (name,) if name in record else path


class Shaper:
    """Makes a `ChatRecord` of a record; what it cannot use raises `BadLineError`.

    How is decided once for all records with the same fields.
    """

    def __init__(
        self,
        *,
        shape: str | None = None,
        form: Form | None = None,
        columns: tuple[tuple[str, str], ...] = (),
        system: str | None = None,
    ) -> None:
        self._shape, self._form, self._system = shape, form, system
        own = {ours: theirs for ours, theirs in columns if ours in FIELDS}
        self._turns = Turns(
            roles={theirs: ours for ours, theirs in columns if ours in ROLES},
            **{name: (own[name],) for name in _OF_TURNS if name in own},
        )
        self._renamed = {
            ours: path_of(theirs) for ours, theirs in own.items() if ours not in _OF_TURNS
        }
        self._answers = Answers(self._turns)
        self._makers: dict[tuple[str, ...], Make] = {}

    def knows(self, name: str) -> bool:
        """Whether a field of a record is one that is looked at."""
        own = {step for path in self._renamed.values() for step in (path[0], ".".join(path))}
        return name in own or _ALIASES.get(name, name) in _RECORD_FIELDS

    def record(self, record: dict[str, Any]) -> ChatRecord:
        """The conversation or conversations of `record`, whose lists may be kept and changed."""
        if None in record.values():
            record = {name: value for name, value in record.items() if value is not None}
        if self._renamed:
            record = self._by_our_names(record)
        names = tuple(record)
        make = self._makers.get(names)
        return make(record) if make else self._learn(names)(record)

    def _by_our_names(self, record: dict[str, Any]) -> dict[str, Any]:
        found = dict(record)
        for ours, path in self._renamed.items():
            try:
                value = find(record, field_path(record, path))
            except BadLineError:
                value = None
            if value is not None:
                found[ours] = value
            elif ours != "system":  # is the name of a role too
                found.pop(ours, None)
        return found

    def _learn(self, names: tuple[str, ...]) -> Make:
        """How records with these fields are read."""
        fields = {_ALIASES[name]: name for name in names if name in _ALIASES}
        fields |= {name: name for name in names if name not in _ALIASES}
        make = self._maker(fields, names)
        if len(self._makers) >= _MAX_LAYOUTS:
            self._makers.clear()
        self._makers[names] = make
        return make

    def _maker(self, fields: dict[str, str], names: tuple[str, ...]) -> Make:
        form = self._form or form_of(fields)
        missing = [name for name in _NEEDED[form] if name not in fields]
        if missing:
            raise _unknown(f"no field {missing[0]!r}, which the form {form!r} needs", names)
        if form in ("chat", "labels"):
            shape = self._whole_shape(fields, names)
            read = getattr(self, f"_{shape}")
            if form == "labels":
                return lambda record: labelled(read(record, fields), record[fields["label"]])
            if shape == "messages" and not fields.keys() & {"system", "tools"}:
                return partial(self._plain, fields["messages"])
            return lambda record: ChatRecord(conversations=[read(record, fields)])
        return partial(self._pair if form == "pairs" else self._group, fields)

    def _whole_shape(self, fields: dict[str, str], names: tuple[str, ...]) -> str:
        """The shape of records that hold whole conversations."""
        shapes = SHAPES if self._shape is None else {self._shape: SHAPES[self._shape]}
        for shape, needed in shapes.items():
            if fields.keys() >= set(needed):
                return shape
        raise _unknown("in no known shape" if self._shape is None else self._shape, names)

    # Whole conversations

    def _plain(self, field: str, record: dict[str, Any]) -> ChatRecord:
        messages, train = self._turns.read(record[field], field)
        if self._system and messages[0]["role"] not in ("system", "developer"):
            return ChatRecord(conversations=[self._finished(messages, train, record, {})])
        return ChatRecord(conversations=[Conversation(messages=messages, train=train)])

    def _messages(self, record: dict[str, Any], fields: dict[str, str]) -> Conversation:
        field = fields["messages"]
        return self._finished(*self._turns.read(record[field], field), record, fields)

    def _sharegpt(self, record: dict[str, Any], fields: dict[str, str]) -> Conversation:
        field = fields["conversations"]
        return self._finished(*self._turns.read(record[field], field), record, fields)

    def _alpaca(self, record: dict[str, Any], fields: dict[str, str]) -> Conversation:
        messages = self._instruction(record, fields)
        answer, train = self._answers.answer(record[fields["output"]], fields["output"])
        train = shifted(train, len(messages))
        return self._finished(messages + answer, train, record, fields)

    def _instances(self, record: dict[str, Any], fields: dict[str, str]) -> Conversation:
        found = record[fields["instances"]]
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
            count = len(found) if isinstance(found, list) else kind_of(found)
            raise BadLineError("several_instances", f"'instances' holds {count}, not one object")
        inner = {**record, **found[0]}
        if "output" not in found[0]:
            raise _unknown("no field 'output' in 'instances'", tuple(found[0]))
        return self._alpaca(inner, {**fields, "input": "input", "output": "output"})

    def _prompt(self, record: dict[str, Any], fields: dict[str, str]) -> Conversation:
        messages = self._asked(record[fields["prompt"]], fields["prompt"])
        answer, train = self._answers.answer(record[fields["completion"]], fields["completion"])
        train = shifted(train, len(messages))
        return self._finished(messages + answer, train, record, fields, prompt=len(messages))

    def _finished(
        self,
        messages: list[Message],
        train: Train,
        record: dict[str, Any],
        fields: Mapping[str, str],
        *,
        prompt: int = 0,
    ) -> Conversation:
        """A conversation with the system turn and the tools that the record has beside it."""
        whole = self._with_system(messages, record, fields)
        added = len(whole) - len(messages)
        return Conversation(
            messages=whole, tools=_tools(record, fields),
            train=shifted(train, added),
            prompt=prompt + added if prompt else 0,
        )  # fmt: skip

    def _with_system(
        self, messages: list[Message], record: dict[str, Any], fields: Mapping[str, str]
    ) -> list[Message]:
        said = record[fields["system"]] if "system" in fields else ""
        if not isinstance(said, str):
            raise BadLineError("bad_content", f"'system' is a JSON {kind_of(said)}, not a string")
        if messages and messages[0]["role"] in ("system", "developer"):
            if said and said != messages[0]["content"]:
                raise BadLineError(
                    "two_systems", "'system' says something else than the first turn, a system turn"
                )
            return messages
        said = said or self._system or ""
        return [{"role": "system", "content": said}, *messages] if said else messages

    # Prompts with answers

    def _pair(self, fields: dict[str, str], record: dict[str, Any]) -> ChatRecord:
        prompt, tools = self._given(record, fields)
        chosen, rejected = (record[fields[name]] for name in ("chosen", "rejected"))
        return self._answers.pair(prompt, chosen, rejected, tools)

    def _group(self, fields: dict[str, str], record: dict[str, Any]) -> ChatRecord:
        prompt, tools = self._given(record, fields)
        rewards = record[fields["rewards"]] if "rewards" in fields else None
        return self._answers.group(prompt, record[fields["responses"]], rewards, tools)

    def _given(
        self, record: dict[str, Any], fields: dict[str, str]
    ) -> tuple[list[Message], list[Any] | None]:
        """The turns that all answers of a record are given to, none if there are none; tools."""
        shapes = _PROMPTS if self._shape is None else {self._shape: _PROMPTS[self._shape]}
        found = next((name for name in shapes.values() if name in fields), None)
        if found == "instruction":
            messages = self._instruction(record, fields)
        else:
            messages = self._asked(record[fields[found]], fields[found]) if found else []
        if messages and messages[-1]["role"] == "assistant":
            raise BadLineError("roles", "the prompt ends with a turn of the assistant")
        return self._with_system(messages, record, fields), _tools(record, fields)

    def _asked(self, value: Any, name: str) -> list[Message]:
        """A prompt: a text that the user says, or turns."""
        if isinstance(value, str):
            if not value:
                raise BadLineError("empty", f"{name!r} is empty")
            return [{"role": "user", "content": value}]
        return self._turns.read([value] if isinstance(value, dict) else value, name)[0]

    def _instruction(self, record: dict[str, Any], fields: dict[str, str]) -> list[Message]:
        """The turns of `history`, and the instruction with its input below it."""
        parts = [record[fields[name]] for name in ("instruction", "input") if name in fields]
        for part in parts:
            if not isinstance(part, str):
                raise BadLineError(
                    "bad_content", f"an instruction or input is a JSON {kind_of(part)}"
                )
        text = _JOINT.join(filter(None, parts))
        if not text:
            raise BadLineError("empty", "'instruction' is empty")
        before = _history(record[fields["history"]]) if "history" in fields else []
        return [*before, {"role": "user", "content": text}]


def _history(value: Any) -> list[Message]:
    """Earlier turns: a list of pairs, what was asked and what was answered."""
    messages: list[Message] = []
    for pair in value if isinstance(value, list) else [None]:
        if not isinstance(pair, list) or list(map(type, pair)) != [str, str] or not all(pair):
            raise BadLineError("bad_history", "'history' holds something else than pairs of texts")
        for role, text in zip(("user", "assistant"), pair, strict=True):
            messages.append({"role": role, "content": text})
    return messages


def _tools(record: dict[str, Any], fields: Mapping[str, str]) -> list[Any] | None:
    return tools_of(record[fields["tools"]]) if "tools" in fields else None


def _unknown(problem: str, names: tuple[str, ...]) -> BadLineError:
    """A record in no known shape; says what it has, and what shapes need."""
    known = "; ".join(f"{shape}: {' + '.join(needed)}" for shape, needed in SHAPES.items())
    seen = ", ".join(map(repr, names))[:200] or "nothing"
    return BadLineError("unknown_shape", f"{problem}; seen: {seen}; known: {known}")
