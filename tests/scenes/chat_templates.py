"""Templates of many manners, and conversations to try them on."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dataprep.pipeline.chat.records.conversation import Conversation
from dataprep.pipeline.chat.render.reference import Rendered
from dataprep.pipeline.chat.template.source import named_templates, resolve_template
from dataprep.pipeline.chat.trace.renderer import Renderer

__all__ = [
    "LATE",
    "MANNERS",
    "SPECIAL",
    "THINKING",
    "VARIABLES",
    "CharacterRenderer",
    "conversations",
    "said",
]

SPECIAL = ("<|im_end|>", "<|e|>", "</s>", "<|im_start|>", "</think>")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


class CharacterRenderer:
    """`Renderer` with results in characters, as the reference renderer gives them."""

    def __init__(self, template: str, **options: Any) -> None:
        self.own = Renderer(template, **options)

    def render(self, conversation: Conversation) -> Rendered:
        """Return the rendering of `conversation` with spans of characters."""
        text, *edges = self.own.render(conversation)
        lengths = [[len(text[:edge].decode()) for edge in one] for one in edges]
        spans, literal = (list(zip(one[::2], one[1::2], strict=True)) for one in lengths)
        return Rendered(text.decode(), spans, literal)

    @property
    def special_text(self) -> dict[str, int]:
        """Counts of special tokens that records spelled."""
        return self.own.special_text

    @property
    def masked_by(self) -> str:
        """How spans are found."""
        return self.own.masked_by

    @property
    def refuted(self) -> int:
        """Specializations that were wrong."""
        return self.own.refuted


_PROMPT = "{% if add_generation_prompt %}<|a|>{% endif %}"


def _each(body: str, prompt: str = _PROMPT) -> str:
    return f"{{% for m in messages %}}<|{{{{ m.role[0] }}}}|>{body}<|e|>\n{{% endfor %}}{prompt}"


# Thoughts of earlier answers are dropped, and the last gets an empty thought, as in Qwen3.
THINKING = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role != 'assistant' %}{{ m.content }}
{%- else %}
{%- set content = m.content %}{% set thought = '' %}
{%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{ content }}{% endif %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

# Tools stand before the last question, the system turn in it if nothing follows, as in Mistral v3.
LATE = """
{%- set users = messages|selectattr('role', 'equalto', 'user')|list -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if m == users[-1] %}[TOOLS]{{ tools|tojson }}[/TOOLS]{% endif -%}
{{- '[INST] ' ~ (messages[0].content ~ ': ' if loop.last and messages[0].role == 'system') -}}
{{- m.content ~ '[/INST]' -}}
{%- elif m.tool_calls %}[CALLS] {{ m.tool_calls|map(attribute='function')|list|tojson }}</s>
{%- elif m.role == 'assistant' %} {{ m.content|trim }}</s>
{%- elif m.role == 'tool' %}[RESULT] {{ m.content|string }}[/RESULT]{% endif -%}
{%- endfor %}"""

MANNERS: dict[str, str] = {
    **{name: resolve_template(name, None).text for name in named_templates()},
    "thinking": THINKING,
    "late": LATE,
    # As in R1 the prompt opens a thought, and thoughts of the past are not kept.
    "opening": _each("{{ m.content.split('</think>')[-1] }}",
                     "{% if add_generation_prompt %}<|a|><think>\n{% endif %}"),
    "asking": _each("{{ m.content|trim if m.content else '(nothing)' }}{{ '!' if m.content == 'ab'"
                    " or m.content in ['x'] or m.content.endswith('.') or 'a' in m.content }}"),
    "joining": _each("{{ ['(', m.content, ')']|join }}{{ '<' ~ m.content ~ '>' }}"),
    "macro": "{% macro said(m) %}<|{{ m.role[0] }}|>{{ m.content }}<|e|>{% endmacro %}"
             "{% for m in messages %}{% set x %} {{ said(m) }} {% endset %}{{ x|trim ~ '\n' }}"
             "{% endfor %}" + _PROMPT,
    "items": _each("{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}"),
    "json": _each("{{ m|tojson }}{{ m.content|tojson(ensure_ascii=true) }}{{ m.content|upper }}"),
    "marks": _each("{% generation %}{{ m.content|trim }}{% endgeneration %}"),
    "after": _each("{{ (m.content ~ ' ')|trim }}{% if not (m.content ~ '') %}-{% endif %}"),
    "picking": "{% for m in messages if m.content != 'ab' %}<|{{ m.role[0] }}|>{{ m.content }}"
               "{{ loop.previtem.content if not loop.first }}<|e|>\n{% endfor %}" + _PROMPT,
    "changing": _each("{{ m.content.replace('a', 'bc').title() }}"),
    "silent": _each("{{ m.content }}", prompt=""),
    "ends": "{% for m in messages %}{{ m.content }}{{ '</s>\n' if m.role == 'assistant' }}"
            "{% endfor %}",
    "bare": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}",
    # These look at text in ways that are not followed.
    "length": _each("{{ m.content|length }}{{ m.content }}"),
    "slice": _each("{{ m.content[:2] }}{{ m.content }}"),
    "letters": _each("{% for c in m.content %}{{ c }}-{% endfor %}"),
    "percent": _each("{{ '%s' % m.content }}{{ '%s'|format(m.content) }}"
                     "{{ '{}'.format(m.content) }}"),
    "part of": _each("{{ m.content in 'a.b' }}{{ 'a'.startswith(m.content) }}{{ m.content }}"),
    "keys": _each("{{ {'a': 1}[m.content] }}{{ m[m.content] }}{{ m.content['x'] }}{{ m.content }}"),
    "escapes": "{% autoescape true %}" + _each("{{ m.content }}{{ '<' ~ m.content }}")
               + "{% endautoescape %}",
    "markup": _each("{{ ('x'|safe) + m.content }}{{ ('<'|e) ~ m.content }}{{ m.content|e }}"),
    "order": "{% for m in messages|sort(attribute='content') %}{{ m.content }}{% endfor %}"
             "{{ messages|map(attribute='content')|unique|list|length }}" + _PROMPT,
    "tests": _each("{{ m.content is lower }}{{ m.content is eq('ab') }}{{ m.content < 'b' }}"
                   "{{ loop.changed(m.content) }}{{ m.content }}"),
    "parts": _each("{{ m.content.split('a')|length }}{{ m.content.split('a')|last }}"),
}  # fmt: skip

_ATOMS = (
    "a", "b", "ab", "x", " ", "\n", ".", "</think>", "<think>", "<tool_response>", "A", "é",
    "\u3000", "<", "&", '"', "\\", "\ufdd0", "\ufdd1", "", "\U00100000",
)  # fmt: skip
_NASTY = (*_ATOMS, "<|e|>", "</s>", "<|im_end|>", "<|e", "|>")


def said(*, special: bool) -> st.SearchStrategy[str]:
    """What somebody says; with `special` also what spells special tokens."""
    atoms = st.sampled_from(_NASTY if special else _ATOMS)
    return st.lists(atoms, max_size=4).map("".join)


@st.composite
def conversations(draw: Any) -> Conversation:
    """Few enough structures for some of them to come again."""
    text = said(special=draw(st.booleans()))
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(text)})
    for _ in range(draw(st.integers(1, 2))):
        messages.append({"role": "user", "content": draw(text)})
        answer: dict[str, Any] = {"role": "assistant", "content": draw(text)}
        messages.append(answer)
        more = draw(st.sampled_from(["", "", "", "call", "thought", "again"]))
        if more == "call":
            function = {"name": "f" + draw(text), "arguments": {draw(text): draw(text)}}
            answer["tool_calls"] = [{"type": "function", "id": draw(text), "function": function}]
            messages.append({"role": "tool", "content": draw(text)})
        if more == "thought":
            answer["reasoning_content"] = draw(text)
        if more in ("call", "again"):
            messages.append({"role": "assistant", "content": draw(text)})
    wishes = st.lists(
        st.sampled_from([None, True, False]), min_size=len(messages), max_size=len(messages)
    )
    tool = {"type": "function", "function": {"name": "t", "description": draw(text)}}
    rarely = st.sampled_from([False, False, False, False, True])
    return Conversation(
        messages=messages, tools=[tool] if draw(rarely) else None,
        prompt=draw(st.integers(0, len(messages) - 1)) if draw(rarely) else 0,
        train=draw(wishes) if draw(rarely) else None,
    )  # fmt: skip
