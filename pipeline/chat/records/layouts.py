"""What a record is, told by the names of its fields alone.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...read.json_lines import BadLineError
from .conversation import Form

__all__ = [
    "FIELDS",
    "SHAPES",
    "TURN_FIELDS",
    "Layout",
    "form_of",
    "is_field",
    "layout_of",
    "unknown",
]

SHAPES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "instances": ("instruction", "instances"),
    "alpaca": ("instruction", "output"),
    "prompt": ("prompt", "completion"),
})  # fmt: skip
"""Shapes in the order in which they are tried, and the fields that a record needs for each."""
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
TURN_FIELDS = ("role", "content")
"""Fields of turns."""
FIELDS = (
    "messages", "conversations", "instruction", "input", "output", "instances", "history",
    "prompt", "completion", "chosen", "rejected", "label", "responses", "rewards", "system",
    "tools", *TURN_FIELDS,
)  # fmt: skip
"""What fields can be said to be, by our names."""
_OF_RECORDS = frozenset(FIELDS).difference(TURN_FIELDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How records with certain fields are read.

    `shape` is of the whole conversation or, in pairs and groups, of the prompt (None: there is
    none, or the answers hold it). `fields` gives for our name of a field that of the record.
    """

    form: Form
    shape: str | None
    fields: Mapping[str, str]


def form_of(fields: Iterable[str]) -> Form:
    """The form that a record with such `fields` has, if none is asked for.

    >>> form_of(["prompt", "chosen", "rejected"])
    'pairs'
    """
    names = {_ALIASES.get(name, name) for name in fields}
    return next(form for form, needed in _NEEDED.items() if names.issuperset(needed))


def is_field(name: str) -> bool:
    """Whether a field of a record with this name is looked at.

    >>> is_field("completions"), is_field("url")
    (True, False)
    """
    return _ALIASES.get(name, name) in _OF_RECORDS


def layout_of(names: tuple[str, ...], form: Form | None, shape: str | None) -> Layout:
    """The layout of records with the fields `names`; None: whatever form and shape fits.

    Raises `BadLineError` for a record in no known shape.
    """
    fields = {_ALIASES[name]: name for name in names if name in _ALIASES}
    fields |= {name: name for name in names if name not in _ALIASES}
    form = form or form_of(fields)
    for name in _NEEDED[form]:
        if name not in fields:
            raise unknown(f"no field {name!r}, which the form {form!r} needs", names)
    if form in ("pairs", "groups"):
        prompts = _PROMPTS if shape is None else {shape: _PROMPTS[shape]}
        found = next((one for one, field in prompts.items() if field in fields), None)
        return Layout(form=form, shape=found, fields=fields)
    shapes = SHAPES if shape is None else {shape: SHAPES[shape]}
    found = next((one for one, needed in shapes.items() if fields.keys() >= set(needed)), None)
    if found is None:
        raise unknown(f"not in the shape {shape!r}" if shape else "in no known shape", names)
    return Layout(form=form, shape=found, fields=fields)


def unknown(problem: str, names: Iterable[str]) -> BadLineError:
    """A record in no known shape; says what it has, and what shapes need."""
    known = "; ".join(f"{shape}: {' + '.join(needed)}" for shape, needed in SHAPES.items())
    seen = ", ".join(map(repr, names))[:200] or "nothing"
    return BadLineError("unknown_shape", f"{problem}; seen: {seen}; known: {known}")
