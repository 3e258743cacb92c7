"""A template sees what transformers shows it, cannot hang, grow or get out, and has no clock."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.pipeline.chat.template import limits, sandbox
from dataprep.pipeline.chat.template.compiled import CompiledTemplate, RenderError
from dataprep.pipeline.chat.template.generation import unmark

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes <é>"}]


def render(template: str, messages: Any = MESSAGES, **variables: Any) -> str:
    return CompiledTemplate(template, variables).render(messages)


def refusal(template: str, messages: Any = MESSAGES) -> tuple[str, str]:
    begun = time.process_time()
    with pytest.raises(RenderError) as caught:
        render(template, messages)
    assert time.process_time() - begun < 5
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),  # trim_blocks, lstrip_blocks
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
         "{% break %}{% endfor %}", "assistant"),
        ("{{ messages[1].content }}|{{ messages[1]|tojson }}",
         'Yes <é>|{"role": "assistant", "content": "Yes <é>"}'),
        ("{{ {'b': 1, 'a': 'é'}|tojson(ensure_ascii=true, sort_keys=true,"
         " separators=(',', ':')) }}",
         '{"a":"\\u00e9","b":1}'),
        ("{{ [1]|tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ tools }}{{ documents }}{{ add_generation_prompt }}", "NoneNoneFalse"),
        ("{{ bos_token }}{{ eos_token }}{{ thinking is defined }}", "<s>False"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ dict(a=1) }}",
         "2{'a': 1}"),
        ("{{ dict.fromkeys(['a']) }}{{ namespace(self=1).self }}", "{'a': None}1"),
        ("{{ 'a%sb' % 1 }}{{ '{:>3}'.format(1) }}{{ '%s'|format(2) }}{{ 'a'.center(3) }}",
         "a1b  12 a "),
        ("{{ [1] * 2 + [3] }}{{ 2 ** 5 }}{{ 'ab' * 2 }}{{ 'a,b'.split(',')|join('+') }}",
         "[1, 1, 3]32abab" + "a+b"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% for m in messages %}{% set c = m.content.replace('Y', 'y') %}{{ c.center(4) }}"
         "{{ '-'.join([c]) }}{% endfor %}{% block x %}{{ 'a'.zfill(2) }}{% endblock %}",
         " Hi Hiyes <é>yes <é>0a"),
        ("{{ range(3)|list }}{{ range(99999)|length }}", "[0, 1, 2]99999"),
        ("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(20) }}",
         "".join(map(str, range(20, -1, -1)))),
        ("{% autoescape true %}{{ '<' ~ messages[1].content }}{% endautoescape %}",
         "&lt;Yes &lt;é&gt;"),
    ],
)  # fmt: skip
def test_what_a_template_sees(template: str, expected: str) -> None:
    assert render(template, bos_token="<s>") == expected


LOOP = "{% for i in range(99999) %}"
MANY = "{% set ns = namespace(x=['a' * 1000]) %}{% for i in range(99) %}"


@pytest.mark.parametrize(
    "template",
    [
        LOOP * 3 + "{% endfor %}" * 3,
        LOOP + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        LOOP + "{% for j in [1]|map('abs') if false %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}",
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
        MANY + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        MANY + "{% set ns.x = ns.x * 9 %}{% endfor %}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '%s' % (ns.x,) }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '{}'.format(ns.x) }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|string }}",
        MANY + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|pprint }}",
        "{% set x = 'a' * 900000 %}{{ x }}{{ x }}",
        "{% set x %}" + LOOP + "{{ 'a' * 9999 }}{% endfor %}{% endset %}",
        LOOP + "{{ 'a' * 9999 }}{% endfor %}",
        LOOP + "{% set x = 'a' * 900000 %}{% endfor %}",
        "{{ range(100001) }}", "{{ 'a' * 10**9 }}", "{{ [1] * 10**9 }}", "{{ 10**9 * 'a' }}",
        "{{ 9**9**9**9**9**9 }}", "{{ (2**60000) ** 60000 }}", "{{ (2**60000) * (2**60000) }}",
        "{{ 'a'.center(10**9) }}", "{{ 'a'.zfill(10**9) }}", "{{ 'a'.ljust(width=10**9) }}",
        "{{ '\t'.expandtabs(10**9) }}", "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
        "{{ ('b' * 9999).join(['a'] * 9999) }}", "{{ 'a'.translate({97: 'b' * 999}) }}",
        "{{ (1).to_bytes(10**9, 'big') }}", "{{ 'a'|center(10**9) }}",
        "{{ 'a'|indent(10**9, true) }}", "{{ ('a\n' * 9999)|indent(' ' * 99999) }}",
        "{{ ('a' * 9999)|replace('a', 'b' * 9999) }}", "{{ (['a'] * 9999)|join('b' * 9999) }}",
        "{{ [1]|batch(10**9, 0)|list }}", "{{ [1]|slice(10**9)|list }}",
        "{{ '%999999999d' % 1 }}", "{{ '%*d' % (999999999, 1) }}", "{{ '%999999999s'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}", "{{ '{:>{}}'.format(1, 10**9) }}",
        "{{ '{a:>999999999}'.format_map({'a': 1}) }}", "{{ '%.999999999f' % 1 }}",
        "{{ [1]|tojson(indent=10**9) }}", "{{ [1]|tojson(indent='a' * 9999) }}",
        "{{ ('a ' * 999999)|urlize }}", "{{ ('a ' * 999999)|wordwrap }}",
        "{{ range(99999)|map('string')|map('center', 9999)|join }}",
        "{{ [[[messages] * 9999] * 9999] == [[[messages] * 9999] * 9999] }}",
        MANY + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}",
        MANY + "{% set ns.x = [ns.x] * 2 %}{% endfor %}",
    ],
)  # fmt: skip
def test_no_template_does_more_than_it_may(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused by counting, and soon; lower limits take less of the tests' time."""
    for module in (limits, sandbox):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 1 << 20)
    monkeypatch.setattr(limits, "MAX_MADE", 1 << 24)
    monkeypatch.setattr(limits, "MAX_STEPS", 20_000)
    reason, detail = refusal(template)
    assert reason == "template_limit", detail


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ messages['__class__'] }}",
        "{{ messages|attr('__class__') }}", "{{ '{0.__class__}'.format(messages) }}",
        "{{ namespace.__init__.__globals__ }}", "{{ raise_exception.__globals__ }}",
        "{{ namespace(__class__=1) }}", "{% set ns = namespace() %}{% set ns.__dict__ = 1 %}",
        "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}", "{{ messages.pop() }}",
        "{{ dict.__init__ }}", "{{ self.__init__ }}", "{{ cycler.__init__.__globals__ }}",
        "{{ messages[0].items }}", "{{ [messages[0].items] }}", "{{ messages|map('string') }}",
        "{{ lipsum() }}", "{{ [1, 2]|random }}", "{% include 'x' %}", "{% import 'x' as y %}",
        "{{ strftime_now('%Y') }}", "{{ 1 / 0 }}", "{{ nothing.at.all }}", "{{ nothing|tojson }}",
        "{{ messages + 1 }}", "{{ raise_exception('not so') }}",
        "{{ '\\ud800' }}", "{{ raise_exception('no' * 9999) }}",
    ],
)  # fmt: skip
def test_no_template_gets_out_or_prints_what_differs_between_machines(template: str) -> None:
    reason, detail = refusal(template)
    assert reason == "template", detail
    assert len(detail) < 500


def test_messages_are_not_changed() -> None:
    before = json.dumps(MESSAGES)
    refusal("{% set _ = messages[0].update({'a': 1}) %}")
    assert json.dumps(MESSAGES) == before


def test_a_date_is_printed_only_if_it_is_given() -> None:
    template = CompiledTemplate("{{ strftime_now('%d %b %Y') }}", date="2024-07-26")
    assert template.render(MESSAGES) == "26 Jul 2024"
    with pytest.raises(UsageError, match="a date like 2024-07-26, got '26 Jul'"):
        CompiledTemplate("", date="26 Jul")
    assert "--template-date" in refusal("\n\n{{ strftime_now('%d') }}")[1]


def test_the_order_of_roles_is_refused_as_such() -> None:
    said = "Conversation roles must alternate user/assistant"
    assert refusal(f"\n{{{{ raise_exception('{said}') }}}}") == (
        "roles", f"line 2 of the template: {said}"
    )  # fmt: skip


def test_a_large_record_may_take_fewer_steps() -> None:
    """A step may look through all of it."""
    template = CompiledTemplate("{% for i in range(9999) %}{% endfor %}done")
    assert template.render(MESSAGES, characters=limits.MAX_CHARACTERS // 4) == "done"
    with pytest.raises(RenderError):
        template.render(MESSAGES, characters=limits.MAX_CHARACTERS)


def test_so_may_one_of_which_large_texts_are_made() -> None:
    """Else 999,999 steps through 64 MiB each could be taken."""
    loop = "{% for i in range(99999) %}{% endfor %}"
    assert render("{% set x = 'a' * 99999 %}" + loop) == ""
    assert refusal("{% set x = 'a' * 4000000 %}" + loop)[0] == "template_limit"


def test_deep_values_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert refusal("{{ messages|tojson }}", deep)[0] == "template_limit"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("\n{% for %}", "line 2: it is no Jinja template"),
        ("\n\n{{ 1|nothing }}", "line 3: it cannot be compiled: No filter named 'nothing'"),
        ("{% if true %}", "line 1: it is no Jinja template"),
        ("{% generation %}", "line 1: it is no Jinja template"),
        ("{{ 'a }}", "line 1"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "nests too deeply"),
        ("{{ " + "+".join("1" * 20000) + " }}", "nests too deeply"),
        ("{{ x" + ".a" * 20000 + " }}", "nests too deeply"),
        ("{{ " + "1" * 5000 + " }}", "it cannot be compiled: ValueError: Exceeds the limit"),
        ("{{ 0x" + "f" * 9999 + " }}", "it cannot be compiled: ValueError"),
        ("a" * (1 << 20) + "a", "1,048,577 characters is over the limit of 1,048,576"),
        ("{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
         "it cannot be compiled"),
    ],
)  # fmt: skip
def test_what_is_no_template(template: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        CompiledTemplate(template)
    assert problem in str(caught.value)
    assert caught.value.code == "E_TEMPLATE"


@pytest.mark.parametrize("cut", ["a]b", "[a", "[a]b]", "[a[b]]", "]["])
def test_marks_that_do_not_pair_up(cut: str) -> None:
    with pytest.raises(ValueError, match="generation markers"):
        unmark(cut, "[]")


def test_variables_do_not_take_the_place_of_the_record() -> None:
    with pytest.raises(UsageError, match="messages is what a record gives"):
        CompiledTemplate("", {"messages": []})


@pytest.mark.parametrize("filters", ["sort", "unique|list", "map('string')|list", "sum", "list"])
def test_filters_count_what_they_look_through(
    filters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand things are no single step, or a record could take hours."""
    monkeypatch.setattr(limits, "MAX_STEPS", 10_000)
    text = "{% for round in range(9) %}{% set x = range(99999)|" + filters + " %}{% endfor %}."
    with pytest.raises(RenderError, match="steps"):
        CompiledTemplate(text).render([])
