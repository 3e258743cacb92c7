"""Conversion of records, in the shapes that chat datasets have, into conversations.

| shape | fields of a record |
|---|---|
| messages | `messages`: turns with `role` and `content` |
| sharegpt | `conversations`: turns with `from` and `value` |
| instances | `instruction`, `instances`: one object with `input` and `output` |
| alpaca | `instruction`, `input`, `output` or `response`, `history` |
| prompt | `prompt`, `completion`: texts, or turns |

A record of any shape may have `system` and `tools` (or `functions`). In every shape, turns may have
the fields `role` and `content`, or `from` and `value`. A record with one of these sets of fields is
a preference:

- pairs: `chosen` and `rejected`
- groups: `responses` or `completions`, possibly with `rewards` or `scores`
- labels: `label`

The shape depends only on the names of the fields, so it is found once for all records with the same
fields. Converting a record of plain turns or plain texts takes 1 to 2 us, and less if all records
of a block have plain turns.
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

__all__ = ["FIELDS", "SHAPES", "RecordLayout", "Shaper", "form_of"]

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
FIELDS = (
    "messages", "conversations", "instruction", "input", "output", "instances", "history",
    "prompt", "completion", "chosen", "rejected", "label", "responses", "rewards", "system",
    "tools", *_TURN_FIELDS,
)  # fmt: skip
"""The names of fields that `--columns` maps to those in the records."""
_RECORD_FIELDS = frozenset(FIELDS).difference(_TURN_FIELDS)

_MAX_LAYOUTS = 1024
_MAX_NAMES = 4096  # characters of all names of a layout that is cached
_BETWEEN = "\n\n"  # between an instruction and its input
_BESIDE = {"system", "tools", "history"}

Record = dict[str, Any]
Convert = Callable[[Record], ChatRecord]


class Shaper:
    """Converter from records to `ChatRecord`s.

    The arguments are those of `ChatReadOptions`. The methods raise `BadLineError` for a record that
    cannot be used.
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
        self._converters: dict[tuple[str, ...], Convert] = {}
        self._of_plain_turns: dict[tuple[str, ...], str] = {}

    def knows(self, name: str) -> bool:
        """Return whether the field `name` of a record is used."""
        own = {step for path in self._columns.values() for step in (path[0], ".".join(path))}
        return name in own or _is_field(name)

    def records(self, found: list[Record]) -> tuple[list[ChatRecord], PlainTurns | None]:
        """Return the `ChatRecord` of each object in `found`, and the turns of all records or None.

        The turns are returned only if all records have the same fields and hold plain turns in the
        only field that is used. Raise `BadLineError` if a record cannot be used.
        """
        layouts = set(map(tuple, found))
        field = self._of_plain_turns.get(layouts.pop()) if len(layouts) == 1 else None
        if field is not None:
            lists = [record[field] for record in found]
            if plain_turns := self._turns.plain_turns(lists):
                one_each = [[Conversation(messages=turns)] for turns in lists]
                return [ChatRecord(conversations=own) for own in one_each], plain_turns
        return list(map(self.record, found)), None

    def record(self, record: Record) -> ChatRecord:
        """Return the conversations of `record`. Raise `BadLineError` if the record cannot be used.

        The result may share lists and objects with `record`, which is not modified.
        """
        if None in record.values():
            record = {name: value for name, value in record.items() if value is not None}
        if not self._columns:
            return self._convert(record)
        try:
            return self._convert(self._by_our_names(record))
        except BadLineError as bad:
            raise self._misnamed(record, bad) from None

    def _convert(self, record: Record) -> ChatRecord:
        names = tuple(record)
        convert = self._converters.get(names)
        return convert(record) if convert else self._new_converter(names)(record)

    def _misnamed(self, record: Record, bad: BadLineError) -> BadLineError:
        """Return the error to raise in place of `bad`.

        If no shape fits and `record` lacks a field that `--columns` names, the error names this
        field. Otherwise, `bad` itself is returned.
        """
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
            elif ours != "system":  # "system" names a role too
                found.pop(ours, None)
        return found

    def _new_converter(self, names: tuple[str, ...]) -> Convert:
        """Return a function that converts records with the fields `names`.

        The function is cached, unless the names are very long. Raise `BadLineError` if no known
        shape has these fields.
        """
        if len(self._converters) >= _MAX_LAYOUTS:
            self._converters.clear()
            self._of_plain_turns.clear()
        layout = _layout_of(names, self._form, self._shape)
        bare = not self._system and not layout.fields.keys() & _BESIDE
        convert = self._converter_of(layout, bare)
        if sum(map(len, names)) <= _MAX_NAMES:
            self._converters[names] = convert
            if bare and not self._columns and (layout.form, layout.shape) == ("chat", "messages"):
                self._of_plain_turns[names] = layout.fields["messages"]
        return convert

    def _converter_of(self, layout: RecordLayout, bare: bool) -> Convert:
        if layout.form == "pairs":
            return partial(self._pair, layout)
        if layout.form == "groups":
            return partial(self._group, layout)
        if layout.form == "labels":
            return partial(self._labelled, layout)
        convert = partial(self._chat, layout)
        if bare and layout.shape in ("prompt", "alpaca"):
            return _plain_texts(layout, convert)
        return convert

    # Whole conversations

    def _chat(self, layout: RecordLayout, record: Record) -> ChatRecord:
        return ChatRecord(conversations=[self._conversation(layout, record)])

    def _labelled(self, layout: RecordLayout, record: Record) -> ChatRecord:
        return labelled(self._conversation(layout, record), record[layout.fields["label"]])

    def _conversation(self, layout: RecordLayout, record: Record) -> Conversation:
        """Return the conversation in `record`, with its system turn and its tools."""
        messages, train, prompt = self._turns_of(layout, record)
        whole = self._with_system(messages, layout, record)
        added = len(whole) - len(messages)
        return Conversation(
            messages=whole, tools=_tools(layout, record), train=shifted(train, added),
            prompt=prompt + added if prompt else 0,
        )  # fmt: skip

    def _turns_of(self, layout: RecordLayout, record: Record) -> tuple[list[Message], Train, int]:
        """Return the messages, their training flags, and the number of messages in the prompt.

        Only the shape "prompt" separates the prompt from the answer: for all other shapes, the
        number is 0. Raise `BadLineError` if the record cannot be used.
        """
        fields = layout.fields
        if layout.shape in ("messages", "sharegpt"):
            name = fields["messages" if layout.shape == "messages" else "conversations"]
            return *self._turns.read(record[name], name), 0
        if layout.shape == "prompt":
            asked = self._prompt_turns(record[fields["prompt"]], fields["prompt"])
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
        self, messages: list[Message], layout: RecordLayout, record: Record
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

    def _pair(self, layout: RecordLayout, record: Record) -> ChatRecord:
        prompt, tools = self._prompt_of(layout, record)
        chosen, rejected = (record[layout.fields[name]] for name in ("chosen", "rejected"))
        return self._answers.pair(prompt, chosen, rejected, tools)

    def _group(self, layout: RecordLayout, record: Record) -> ChatRecord:
        prompt, tools = self._prompt_of(layout, record)
        rewards = record[layout.fields["rewards"]] if "rewards" in layout.fields else None
        return self._answers.group(prompt, record[layout.fields["responses"]], rewards, tools)

    def _prompt_of(
        self, layout: RecordLayout, record: Record
    ) -> tuple[list[Message], list[Any] | None]:
        """Return the messages before the answers of a record (possibly none), and its tools.

        Raise `BadLineError` if the last of these messages is an assistant message.
        """
        messages: list[Message] = []
        if layout.shape in ("alpaca", "instances"):
            messages = _instruction(layout, record)
        elif layout.shape is not None:
            ours = "conversations" if layout.shape == "sharegpt" else layout.shape
            messages = self._prompt_turns(record[layout.fields[ours]], layout.fields[ours])
        if messages and messages[-1]["role"] == "assistant":
            raise BadLineError("roles", "the prompt ends with a turn of the assistant")
        return self._with_system(messages, layout, record), _tools(layout, record)

    def _prompt_turns(self, value: Any, name: str) -> list[Message]:
        """Return the messages of a prompt, which is a user's text, a transcript, or turns.

        The prompt is `value` (the value of field `name`). Raise `BadLineError` if it cannot be
        read.
        """
        if isinstance(value, str) and not value:
            raise BadLineError("empty", f"{name!r} is empty")
        if isinstance(value, str):
            return transcript_prompt(value, name) or [{"role": "user", "content": value}]
        return self._turns.read([value] if isinstance(value, dict) else value, name)[0]


def _plain_texts(layout: RecordLayout, otherwise: Convert) -> Convert:
    """Return a fast function that converts records with a question and an answer as plain texts.

    The question may be an instruction with an input. The function passes any other record to
    `otherwise`.
    """
    fields = layout.fields
    asked = fields["prompt" if layout.shape == "prompt" else "instruction"]
    more = fields.get("input") if layout.shape == "alpaca" else None
    answered = fields["completion" if layout.shape == "prompt" else "output"]
    given = int(layout.shape == "prompt")

    def convert(record: Record) -> ChatRecord:
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

    return convert


def _instruction(layout: RecordLayout, record: Record) -> list[Message]:
    """Return the messages of `history`, followed by a user message.

    The content of the user message is the instruction and its input as one text. Raise
    `BadLineError` if one of these fields cannot be used.
    """
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
    """Return the only object in `value`, the list `instances` of a record.

    Raise `BadLineError` unless `value` holds exactly one object, with a field `output`.
    """
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        count = len(value) if isinstance(value, list) else f"a JSON {kind_of(value)}"
        raise BadLineError("several_instances", f"'instances' holds {count}, not one object")
    if "output" not in value[0]:
        raise _unknown("no field 'output' in 'instances'", value[0])
    return value[0]


def _history(value: Any) -> list[Message]:
    """Return the messages in `history`, a list of (question, answer) pairs.

    Raise `BadLineError` if `value` is not a list of pairs of non-empty texts.
    """
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


def _tools(layout: RecordLayout, record: Record) -> list[Any] | None:
    return tools_of(record[layout.fields["tools"]]) if "tools" in layout.fields else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordLayout:
    """Form, shape and field names of records that have the same fields.

    In pairs and groups, `shape` is the shape of the prompt. It is None if there is no prompt, or if
    the answers begin with it. The mapping `fields` maps the names of `FIELDS` to the names that the
    records use.
    """

    form: Form
    shape: str | None
    fields: Mapping[str, str]


def form_of(fields: Iterable[str]) -> Form:
    """Return the form of a record, recognized by the names of its `fields`.

    >>> form_of(["prompt", "chosen", "rejected"])
    'pairs'
    """
    names = {_ALIASES.get(name, name) for name in fields}
    return next(form for form, needed in _NEEDED.items() if names.issuperset(needed))


def _is_field(name: str) -> bool:
    """Return whether `name` is a known field of records, or another name of a known field.

    >>> _is_field("completions"), _is_field("url")
    (True, False)
    """
    return _ALIASES.get(name, name) in _RECORD_FIELDS


def _layout_of(names: tuple[str, ...], form: Form | None, shape: str | None) -> RecordLayout:
    """Return the layout of records with the fields `names`.

    If `form` or `shape` is None, the names decide it. Raise `BadLineError` if no known shape fits.
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
        return RecordLayout(form=form, shape=found, fields=fields)
    shapes = SHAPES if shape is None else {shape: SHAPES[shape]}
    found = next((one for one, needed in shapes.items() if fields.keys() >= set(needed)), None)
    if found is None:
        raise _unknown(f"not in the shape {shape!r}" if shape else "in no known shape", names)
    return RecordLayout(form=form, shape=found, fields=fields)


def _unknown(problem: str, names: Iterable[str]) -> BadLineError:
    """Return the error for a record in no known shape.

    The error states the `problem`, and lists the fields `names` of the record and the known shapes.
    """
    known = "; ".join(f"{shape}: {' + '.join(needed)}" for shape, needed in SHAPES.items())
    seen = ", ".join(map(repr, names))[:200] or "nothing"
    return BadLineError("unknown_shape", f"{problem}; seen: {seen}; known: {known}")
