"""Records of the shapes that chat datasets have, translated into conversations.

| shape | fields of a record |
|---|---|
| messages | `messages`: turns with `role` and `content` |
| sharegpt | `conversations`: turns with `from` and `value` |
| instances | `instruction`, `instances`: one object with `input` and `output` |
| alpaca | `instruction`, `input`, `output` or `response`, `history` |
| prompt | `prompt`, `completion`: texts, or turns |

Any may have `system` and `tools` (or `functions`). Beside a prompt in one of these shapes, `chosen`
and `rejected` make pairs, `responses` or `completions` (with `rewards` or `scores`) groups; `label`
makes labels. Turns spell their fields either way in every shape.

The names of the fields alone decide the shape, so records with the same fields are read in the same
way, which is decided once. Plain turns and plain texts, which most records hold, take a microsecond
or two; whole blocks of plain turns take less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from ...read.json_lines import BadLineError, find, kind_of, path_of
from .conversation import ChatRecord, Conversation, Form, PlainTurns
from .preferences import Answers, labelled
from .tool_calls import tools_of
from .turns import (
    ROLES,
    TRANSCRIPT_START,
    Message,
    Train,
    Turns,
    shifted,
    transcript_prompt,
)

__all__ = ["FIELDS", "SHAPES", "Layout", "Shaper", "form_of"]

SHAPES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "instances": ("instruction", "instances"),
    "alpaca": ("instruction", "output"),
    "prompt": ("prompt", "completion"),
})  # fmt: skip
"""Shapes in the order in which they are tried, with the fields that each needs."""
_PROMPTS: Mapping[str, str] = {
    "prompt": "prompt", "sharegpt": "conversations", "messages": "messages",
    "alpaca": "instruction", "instances": "instruction",
}  # fmt: skip
_ALIASES: Mapping[str, str] = {
    "response": "output", "conversation": "conversations", "completions": "responses",
    "scores": "rewards", "functions": "tools",
}  # fmt: skip
_NEEDED: Mapping[Form, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"), "groups": ("responses",), "labels": ("label",), "chat": (),
}  # fmt: skip
_TURN_FIELDS = ("role", "content")
"""Fields of turns."""
FIELDS = (
    "messages", "conversations", "instruction", "input", "output", "instances", "history",
    "prompt", "completion", "chosen", "rejected", "label", "responses", "rewards", "system",
    "tools", *_TURN_FIELDS,
)  # fmt: skip
"""Our names of fields, for `--columns`."""
_RECORD_FIELDS = frozenset(FIELDS).difference(_TURN_FIELDS)

_MAX_LAYOUTS = 1024
_MAX_NAMES = 4096  # characters in all
_BETWEEN = "\n\n"  # between an instruction and its input
_BESIDE = {"system", "tools", "history"}

Record = dict[str, Any]
Make = Callable[[Record], ChatRecord]


class Shaper:
    """Maker of a `ChatRecord` from a record; one that cannot be used raises `BadLineError`.

    The arguments are those of `ChatReadOptions`.
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
            **{name: (own[name],) for name in _TURN_FIELDS if name in own},
        )
        self._columns = {
            ours: path_of(theirs) for ours, theirs in own.items() if ours not in _TURN_FIELDS
        }
        self._answers = Answers(self._turns)
        self.forms: set[Form] = set()
        """The forms of the records so far, usable or not."""
        self._makers: dict[tuple[str, ...], Make] = {}
        self._of_plain_turns: dict[tuple[str, ...], str] = {}

    def knows(self, name: str) -> bool:
        """Return whether a field of a record is read."""
        own = {step for path in self._columns.values() for step in (path[0], ".".join(path))}
        return name in own or _is_field(name)

    def records(self, found: list[Record]) -> tuple[list[ChatRecord], PlainTurns | None]:
        """Return the result of `record` for each of `found`, and their turns if all are plain."""
        layouts = set(map(tuple, found))
        field = self._of_plain_turns.get(layouts.pop()) if len(layouts) == 1 else None
        if field is not None:
            lists = [record[field] for record in found]
            if plain_turns := self._turns.plain_turns(lists):
                one_each = [[Conversation(messages=turns)] for turns in lists]
                return [ChatRecord(conversations=own) for own in one_each], plain_turns
        return list(map(self.record, found)), None

    def record(self, record: Record) -> ChatRecord:
        """Return the conversations of `record`; they may share its lists and objects.

        Nothing in it is changed: its names are counted afterwards.
        """
        if None in record.values():
            record = {name: value for name, value in record.items() if value is not None}
        if not self._columns:
            return self._made(record)
        try:
            return self._made(self._by_our_names(record))
        except BadLineError as bad:
            raise self._misnamed(record, bad) from None

    def _made(self, record: Record) -> ChatRecord:
        names = tuple(record)
        make = self._makers.get(names)
        return make(record) if make else self._learn(names)(record)

    def _misnamed(self, record: Record, bad: BadLineError) -> BadLineError:
        """Return `bad`, or the missing fields of `--columns` if no shape fits because of them."""
        reason = bad.args[0]
        missing = [".".join(path) for path in self._columns.values() if not _has(record, path)]
        if reason != "unknown_shape" or not missing:
            return bad
        named = ", ".join(map(repr, missing))
        return _unknown(f"no field {named}, which --columns names", record)

    def _by_our_names(self, record: Record) -> Record:
        found = dict(record)
        for ours, path in self._columns.items():
            try:
                value = find(record, path)
            except BadLineError:
                value = None
            if value is not None:
                found[ours] = value
            elif ours != "system":  # is the name of a role too
                found.pop(ours, None)
        return found

    def _learn(self, names: tuple[str, ...]) -> Make:
        """Return the reader of records with these fields, and keep it unless names are huge."""
        if len(self._makers) >= _MAX_LAYOUTS:
            self._makers.clear()
            self._of_plain_turns.clear()
        layout = _layout_of(names, self._form, self._shape)
        self.forms.add(layout.form)
        bare = not self._system and not layout.fields.keys() & _BESIDE
        make = self._maker(layout, bare)
        if sum(map(len, names)) <= _MAX_NAMES:
            self._makers[names] = make
            if bare and not self._columns and (layout.form, layout.shape) == ("chat", "messages"):
                self._of_plain_turns[names] = layout.fields["messages"]
        return make

    def _maker(self, layout: Layout, bare: bool) -> Make:
        if layout.form == "pairs":
            return partial(self._pair, layout)
        if layout.form == "groups":
            return partial(self._group, layout)
        if layout.form == "labels":
            return partial(self._labelled, layout)
        make = partial(self._chat, layout)
        if bare and layout.shape in ("prompt", "alpaca"):
            return _plain_texts(layout, make)
        return make

    # Whole conversations

    def _chat(self, layout: Layout, record: Record) -> ChatRecord:
        return ChatRecord(conversations=[self._whole(layout, record)])

    def _labelled(self, layout: Layout, record: Record) -> ChatRecord:
        return labelled(self._whole(layout, record), record[layout.fields["label"]])

    def _whole(self, layout: Layout, record: Record) -> Conversation:
        """Return the conversation with the system turn and the tools of the record."""
        messages, train, prompt = self._said(layout, record)
        whole = self._with_system(messages, layout, record)
        added = len(whole) - len(messages)
        return Conversation(
            messages=whole, tools=_tools(layout, record), train=shifted(train, added),
            prompt=prompt + added if prompt else 0,
        )  # fmt: skip

    def _said(self, layout: Layout, record: Record) -> tuple[list[Message], Train, int]:
        """Return the turns, the training flag of each, and how many of them are given."""
        fields = layout.fields
        if layout.shape in ("messages", "sharegpt"):
            name = fields["messages" if layout.shape == "messages" else "conversations"]
            return *self._turns.read(record[name], name), 0
        if layout.shape == "prompt":
            asked = self._asked(record[fields["prompt"]], fields["prompt"])
            name, given = fields["completion"], len(asked)
        elif layout.shape == "alpaca":
            asked = _instruction(layout, record)
            name, given = fields["output"], 0
        else:
            record = {**record, **_instance(record[fields["instances"]])}
            asked = _instruction(layout, record)
            name, given = "output", 0
        answer, train = self._answers.answer(record[name], name)
        if answer[0]["role"] != "assistant":
            raise BadLineError("roles", f"{name!r} begins with a turn of the {answer[0]['role']}")
        return asked + answer, shifted(train, len(asked)), given

    def _with_system(
        self, messages: list[Message], layout: Layout, record: Record
    ) -> list[Message]:
        said = record[layout.fields["system"]] if "system" in layout.fields else ""
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

    def _pair(self, layout: Layout, record: Record) -> ChatRecord:
        prompt, tools = self._given(layout, record)
        chosen, rejected = (record[layout.fields[name]] for name in ("chosen", "rejected"))
        return self._answers.pair(prompt, chosen, rejected, tools)

    def _group(self, layout: Layout, record: Record) -> ChatRecord:
        prompt, tools = self._given(layout, record)
        rewards = record[layout.fields["rewards"]] if "rewards" in layout.fields else None
        return self._answers.group(prompt, record[layout.fields["responses"]], rewards, tools)

    def _given(self, layout: Layout, record: Record) -> tuple[list[Message], list[Any] | None]:
        """Return the turns before the answers of a record, perhaps none, and its tools."""
        messages: list[Message] = []
        if layout.shape in ("alpaca", "instances"):
            messages = _instruction(layout, record)
        elif layout.shape is not None:
            ours = "conversations" if layout.shape == "sharegpt" else layout.shape
            messages = self._asked(record[layout.fields[ours]], layout.fields[ours])
        if messages and messages[-1]["role"] == "assistant":
            raise BadLineError("roles", "the prompt ends with a turn of the assistant")
        return self._with_system(messages, layout, record), _tools(layout, record)

    def _asked(self, value: Any, name: str) -> list[Message]:
        """Return the turns of a prompt: a text of the user, or turns."""
        if isinstance(value, str) and not value:
            raise BadLineError("empty", f"{name!r} is empty")
        if isinstance(value, str):
            return transcript_prompt(value, name) or [{"role": "user", "content": value}]
        return self._turns.read([value] if isinstance(value, dict) else value, name)[0]


def _plain_texts(layout: Layout, otherwise: Make) -> Make:
    """Return the reader of records of texts alone: a question with its input, and the answer."""
    fields = layout.fields
    asked = fields["prompt" if layout.shape == "prompt" else "instruction"]
    more = fields.get("input") if layout.shape == "alpaca" else None
    answered = fields["completion" if layout.shape == "prompt" else "output"]
    given = int(layout.shape == "prompt")

    def make(record: Record) -> ChatRecord:
        question, answer = record[asked], record[answered]
        if type(question) is not str or type(answer) is not str or not question or not answer:
            return otherwise(record)
        if question.startswith(TRANSCRIPT_START):
            return otherwise(record)
        if more is not None and record[more]:
            if type(record[more]) is not str:
                return otherwise(record)
            question = f"{question}{_BETWEEN}{record[more]}"
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        return ChatRecord(conversations=[Conversation(messages=messages, prompt=given)])

    return make


def _instruction(layout: Layout, record: Record) -> list[Message]:
    """Return the turns of `history`, then the instruction with its input below it."""
    names = [layout.fields.get(ours, ours) for ours in ("instruction", "input")]
    parts = [record[name] for name in names if name in record]
    for part in parts:
        if not isinstance(part, str):
            raise BadLineError("bad_content", f"an instruction or input is a JSON {kind_of(part)}")
    text = _BETWEEN.join(filter(None, parts))
    if not text:
        raise BadLineError("empty", "'instruction' is empty")
    before = _history(record[layout.fields["history"]]) if "history" in layout.fields else []
    return [*before, {"role": "user", "content": text}]


def _instance(value: Any) -> Record:
    """Return the one object in `instances`."""
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        count = len(value) if isinstance(value, list) else f"a JSON {kind_of(value)}"
        raise BadLineError("several_instances", f"'instances' holds {count}, not one object")
    if "output" not in value[0]:
        raise _unknown("no field 'output' in 'instances'", value[0])
    return value[0]


def _history(value: Any) -> list[Message]:
    """Return the earlier turns in a list of pairs of question and answer."""
    messages: list[Message] = []
    for pair in value if isinstance(value, list) else [None]:
        if not isinstance(pair, list) or list(map(type, pair)) != [str, str] or not all(pair):
            raise BadLineError("bad_history", "'history' holds something else than pairs of texts")
        for role, text in zip(("user", "assistant"), pair, strict=True):
            messages.append({"role": role, "content": text})
    return messages


def _has(record: Record, path: tuple[str, ...]) -> bool:
    try:
        return find(record, path) is not None
    except BadLineError:
        return False


def _tools(layout: Layout, record: Record) -> list[Any] | None:
    return tools_of(record[layout.fields["tools"]]) if "tools" in layout.fields else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Form, shape and field names of records with the same fields.

    `shape` is of the whole conversation or, in pairs and groups, of the prompt (None: there is
    none, or the answers hold it). `fields` gives for our name of a field that of the record.
    """

    form: Form
    shape: str | None
    fields: Mapping[str, str]


def form_of(fields: Iterable[str]) -> Form:
    """Return the form of a record with such `fields`, if none is asked for.

    >>> form_of(["prompt", "chosen", "rejected"])
    'pairs'
    """
    names = {_ALIASES.get(name, name) for name in fields}
    return next(form for form, needed in _NEEDED.items() if names.issuperset(needed))


def _is_field(name: str) -> bool:
    """Return whether a field of a record with this name is read.

    >>> _is_field("completions"), _is_field("url")
    (True, False)
    """
    return _ALIASES.get(name, name) in _RECORD_FIELDS


def _layout_of(names: tuple[str, ...], form: Form | None, shape: str | None) -> Layout:
    """Return the layout of records with the fields `names`; None: any form, any shape.

    Raise `BadLineError` for a record in no known shape.
    """
    fields = {_ALIASES[name]: name for name in names if name in _ALIASES}
    fields |= {name: name for name in names if name not in _ALIASES}
    form = form or form_of(fields)
    for name in _NEEDED[form]:
        if name not in fields:
            raise _unknown(f"no field {name!r}, which the form {form!r} needs", names)
    if form in ("pairs", "groups"):
        prompts = _PROMPTS if shape is None else {shape: _PROMPTS[shape]}
        found = next((one for one, field in prompts.items() if field in fields), None)
        return Layout(form=form, shape=found, fields=fields)
    shapes = SHAPES if shape is None else {shape: SHAPES[shape]}
    found = next((one for one, needed in shapes.items() if fields.keys() >= set(needed)), None)
    if found is None:
        raise _unknown(f"not in the shape {shape!r}" if shape else "in no known shape", names)
    return Layout(form=form, shape=found, fields=fields)


def _unknown(problem: str, names: Iterable[str]) -> BadLineError:
    """Return the error for a record in no known shape, with its fields and those of shapes."""
    known = "; ".join(f"{shape}: {' + '.join(needed)}" for shape, needed in SHAPES.items())
    seen = ", ".join(map(repr, names))[:200] or "nothing"
    return BadLineError("unknown_shape", f"{problem}; seen: {seen}; known: {known}")
