"""Accesses of templates to unknown text: those that are traced, and those that are refused."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from dataprep.pipeline.chat.records.conversation import Conversation
from dataprep.pipeline.chat.render.reference import ReferenceRenderer, Rendered
from dataprep.pipeline.chat.template.compiled import RenderError
from dataprep.pipeline.chat.trace.specialize import Specializer, specialization_of
from dataprep.pipeline.chat.trace.structure import SymbolicConversation, structure
from dataprep.pipeline.chat.trace.symbolic import (
    FIRST,
    RefusalError,
    SymbolicObject,
    SymbolicText,
    Trace,
    is_symbolic,
)
from tests.scenes.chat_templates import CharacterRenderer

TEXTS = (
    "",
    "count",
    " a ",
    "ab</think>\n c",
    "x",
    "{0}%s",
    '"<é>"\n',
    "9",
    "A a.\u2028",
    "content",
)

# c is what is said, m the message, o an object; each is followed, with what it asks of the text.
FOLLOWED = {
    "c": 0, "c ~ c": 0, "'<' + c + '>'": 0, "c|trim": 0, "c.strip()": 0, "c.strip('a')": 0,
    "c.upper()|lower": 0, "c|replace('a', 'b')": 0, "(c ~ '!')|trim": 0, "c|string": 0,
    "c if c else '-'": 1, "c or '-'": 1, "not c": 1, "c|default('-', true)": 1, "c is string": 0,
    "c is mapping": 0, "c is none": 0, "c is defined and c is iterable": 0, "c == 'x'": 1,
    "c != 'x'": 1, "c in ['x', '9']": 2, "'a' in c": 1, "'a' not in c": 1,
    "c.startswith('a')": 1, "c.endswith(('a', '.'))": 1, "c.isdigit()": 1, "c is eq 'x'": 1,
    "c.split('</think>')[-1].lstrip('\\n')": 0, "(c.split('a')|first)": 0, "c|tojson": 0,
    "c|tojson(ensure_ascii=true)": 0, "m|tojson": 0, "messages|tojson": 0, "o|tojson": 0,
    "o|tojson(indent=2)": 0, "[o, c]|tojson": 0, "o is mapping": 0, "'-' if o else '+'": 1,
    "[c, '1']|join(', ')": 0, "messages|map(attribute='content')|list|last": 0,
    "(messages|selectattr('content')|list|length)": 1, "m.get('content')": 0,
    "{'k': c}.k": 0, "dict(k=c)['k']": 0, "namespace(k=c).k": 0, "[c][0]": 0, "(c, 1)[0]": 0,
}  # fmt: skip

REFUSED = (
    "c|length", "c[0]", "c[1:]", "c.find('a')", "c.index('')", "c.encode()", "c.split()|length",
    "c.split('a')[1]", "c.split('a')|list", "c.splitlines()", "c.format(1)", "'%s' % c",
    "'%s %s' % (c, 1)", "'%s'|format(c)", "'{}'.format(c)", "'{0.x}'.format(c)", "c % 1", "c * 2",
    "c < 'b'", "'a' < c < 'b'", "c in 'a.b'", "c in {'x': 1}", "{'x': 1}[c]", "m[c]", "m[c ~ '']",
    "'a'.startswith(c)", "'a'.join(c)", "'-'.join([c, c])", "'a'.replace('a', c)", "c|list",
    "c|reverse", "c|first", "c|escape", "c|safe", "('x'|safe) + c", "c|wordcount",
    "('x'|safe) ~ c|e",
    "c|int", "c|indent", "c|center(9)", "c|urlize", "c|title|length", "c is lower", "c is in 'abc'",
    "c is sameas c", "c is number or c|float > 1", "[c]|sort|first", "[c, 'x']|sort|first",
    "[c]|unique|list|length", "[c]|string", "{'k': c}|string", "[c]|pprint", "[c, c]|sum(start='')",
    "[c]|map('length')|list", "['x']|select('in', c)|list", "messages|map(attribute=c)|list",
    "[1][c] is defined",
    "o.k", "o['k']", "o|length", "o|items|list", "o == 1", "o|string", "dict(o)", "o.items()",
    "c.strip(c)", "c.startswith(c)", "c == c ~ ''", "c.replace('a', 'b' * 99)",
    "[[c]]|tojson(indent=2)",
    "range(c|int)|length", "'x'|replace('x', c)", "c.text", "c['text']",
    "joiner(c)", "cycler(c, 'x').next()|length", "m|dictsort(by='value')",
)  # fmt: skip


def record(text: str, number: int = 0) -> Conversation:
    given = {"k": number} if number else {}
    call = {"type": "function", "function": {"name": "f", "arguments": given}}
    message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": [call]}
    return Conversation(messages=[message])


def template(expression: str) -> str:
    names = "{% set m = messages[0] %}{% set c = m.content %}"
    names += "{% set o = m.tool_calls[0].function.arguments %}"
    return names + "<{{ " + expression + " }}>"


def traced(expression: str, conversation: Conversation) -> Trace:
    specializer = Specializer(
        template(expression), variables={}, train_on="all", special_tokens=(), date=None
    )
    trace = Trace(structure(conversation)[1])
    specializer.specialize(conversation, trace)
    return trace


def text_of(renderer: CharacterRenderer | ReferenceRenderer, conversation: Conversation) -> str:
    try:
        rendered: Rendered = renderer.render(conversation)
    except RenderError as error:
        return error.reason
    return rendered.text


@pytest.mark.parametrize("expression", [*FOLLOWED, *REFUSED])
def test_each_record_gets_what_the_template_makes_of_it(expression: str) -> None:
    """Whatever records came before it, and whether its looks are followed or not."""
    renderer = CharacterRenderer(template(expression), train_on="all")
    plain = ReferenceRenderer(
        template(expression), train_on="all", variables={}, special_tokens=(), literal=True,
        date=None,
    )  # fmt: skip
    for number in (0, 0, 5):
        for text in TEXTS:
            conversation = record(text, number)
            assert text_of(renderer, conversation) == text_of(plain, conversation)
    together = [record(text, number) for text in TEXTS * 4 for number in (0, 5)]
    for conversation, found in zip(together, renderer.own.fill(together), strict=True):
        assert found is None or found[0].decode() == text_of(plain, conversation)
    assert renderer.refuted == 0


@pytest.mark.parametrize(("expression", "questions"), FOLLOWED.items())
def test_what_is_followed(expression: str, questions: int) -> None:
    trace = traced(expression, record("ab", 1))
    assert sum(step.answer is not None for step in trace.steps) == questions


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_refused(expression: str) -> None:
    """Python would read the characters that stand for text, or the number of them."""
    with pytest.raises(RenderError, match=r"Refusal|Security|Type|Undefined|Template|Attribute"):
        traced(expression, record("ab", 1))


def test_text_keeps_its_unknown_parts_through_all_that_is_allowed() -> None:
    trace = Trace(["some text ", "b"])
    text = "<" + trace.text(0) + trace.text(1) + ">"
    assert isinstance(text, SymbolicText)
    assert isinstance(str(text), SymbolicText)
    assert trace.filled(text) == "<some text b>"
    assert trace.filled(trace.text(0).strip()) == "some text"
    assert is_symbolic([{"a": (1, text)}])
    assert not is_symbolic([{"a": (1, None, 1.5, "text")}])
    with pytest.raises(RefusalError):
        is_symbolic(object())


@pytest.mark.parametrize("name", sorted(set(dir(str)) | set(dir(dict))))
def test_no_method_of_text_or_objects_looks_at_them(name: str) -> None:
    """All that Python has, and may come to have, refuses, asks or derives."""
    trace = Trace([" a", {"k": 1}])
    harmless = {"__class__", "__doc__", "__init_subclass__", "__subclasshook__", "__dir__"}
    harmless |= {"__reduce__", "__reduce_ex__", "__getstate__", "__sizeof__", "__new__"}
    harmless |= {"__getattribute__", "__setattr__", "__delattr__", "__init__", "__getnewargs__"}
    for value, base in ((trace.text(0), str), (SymbolicObject(trace.text(1)), dict)):
        if name in harmless or name not in dir(base):
            continue
        assert name in vars(type(value)), f"{type(value).__name__} inherits {name}"


@pytest.mark.parametrize(
    ("template", "role", "variable"),
    [
        ("{{ messages[0].role }}{{ messages[0].content }}", "\U00100000", ""),
        ("\U00100000{{ messages[0].content }}", "user", ""),
        (r"{{ '\U00100000' ~ messages[0].content }}", "user", ""),
        ("{{ own }}{{ messages[0].content }}", "user", "\U00100000"),
    ],
)
def test_characters_that_stand_for_texts_may_be_in_texts_themselves(
    template: str, role: str, variable: str
) -> None:
    """Were the first of these records specialized, all others would begin as they end."""
    renderer = CharacterRenderer(template, train_on="all", variables={"own": variable})
    for text in ("\U00100000", "\U00100000", "a", "b"):
        conversation = Conversation(messages=[{"role": role, "content": text}])
        assert renderer.render(conversation).text == "\U00100000" + text


def test_a_specialization_is_filled_in() -> None:
    """Pieces and spans in random order against the plain replacement of characters."""
    chance = random.Random(7)
    for _ in range(50):
        count = chance.randint(1, 4)
        skeleton = "".join(
            chr(FIRST + chance.randrange(count))
            if chance.random() < 0.4
            else chance.choice(string.ascii_letters + "\u00e4\uff5c")
            for _ in range(chance.randint(2, 12))
        )
        values = ["".join(chance.choices("xyz", k=chance.randint(1, 3))) for _ in range(count)]
        start = chance.randrange(len(skeleton))
        end = chance.randint(start + 1, len(skeleton))

        def fill(part: str, values: list[str] = values) -> str:
            for at, value in enumerate(values):
                part = part.replace(chr(FIRST + at), value)
            return part

        found = specialization_of(skeleton, [(start, end)])
        for row in (values, [value[::-1] + "\u00e9\u4e2d" for value in values]):
            edges = [len(fill(part, row).encode()) for part in (skeleton[:start], skeleton[:end])]
            assert found.text(row) == fill(skeleton, row).encode()
            assert found.fill(row) == (found.text(row), edges, ())
            assert found.fill_rows([row] * 5) == [found.fill(row)] * 5


def test_structures_differ_by_all_that_templates_may_look_at() -> None:
    """Texts, arguments and tools are left out; order and names of fields are not."""
    message: dict[str, Any] = {"role": "user", "content": "Hi", "name": "me"}
    same = [message, {**message, "content": "Ho"}, {**message, "name": "you"}]
    others: list[dict[str, Any]] = [
        {**message, "role": "tool"},
        {"role": "user", "content": "Hi"},
        {"content": "Hi", "role": "user", "name": "me"},
        {"role": "user", "content": ["Hi"], "name": "me"},
        {"role": "user", "content": None, "name": "me"},
        {"role": "user", "content": 1, "name": "me"},
        {"role": "user", "content": True, "name": "me"},
    ]
    swapped = {"content": "Hi", "role": "user"}
    plain = Conversation(messages=[{"role": "user", "content": "Hi"}])
    assert structure(plain) != structure(Conversation(messages=[swapped]))
    unusual = {"role": "user", "text": "Hi"}
    assert structure(plain) != structure(Conversation(messages=[unusual]))
    shapes = [structure(Conversation(messages=[one]))[0] for one in same + others]
    assert len(set(shapes[:3])) == 1
    assert len(set(shapes)) == 1 + len(others)
    tools = [{"type": "function"}]
    kinds = [
        Conversation(messages=[message]), Conversation(messages=[message], tools=[]),
        Conversation(messages=[message], tools=tools), Conversation(messages=[message], prompt=1),
        Conversation(messages=[message], train=[None]), Conversation(messages=[message, message]),
        Conversation(messages=[message], train=[True]),
    ]  # fmt: skip
    assert len({structure(kind)[0] for kind in kinds}) == len(kinds)


def test_opening_a_conversation_takes_its_texts_in_the_same_order() -> None:
    conversation = record("Hi", 3)
    conversation.messages.append({"role": "user", "content": [{"type": "text", "text": "Ho"}]})
    conversation.tools = [{"type": "function"}]
    values = structure(conversation)[1]
    assert values == ["Hi", "f", {"k": 3}, "Ho", {"type": "function"}]
    trace = Trace(values)
    opened = SymbolicConversation(conversation, trace)
    assert opened.ends == [3, 4]
    assert trace.filled(opened.messages[1]["content"][0]["text"]) == "Ho"
    assert opened.messages[1]["content"][0]["type"] == "text"
