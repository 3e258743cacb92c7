"""Specialized renderings equal those of the reference renderer; spans are the right ones."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.pipeline.chat.records.conversation import Conversation
from dataprep.pipeline.chat.render import spans as spans_module
from dataprep.pipeline.chat.render.marked_texts import marked
from dataprep.pipeline.chat.render.reference import CutError, ReferenceRenderer, Rendered
from dataprep.pipeline.chat.render.spans import TrainOn
from dataprep.pipeline.chat.template.compiled import RenderError
from dataprep.pipeline.chat.template.source import resolve_template
from dataprep.pipeline.chat.trace.specialize import Specializer
from tests.scenes.chat_templates import (
    LATE,
    MANNERS,
    SPECIAL,
    THINKING,
    VARIABLES,
    CharacterRenderer,
    conversations,
)
from tests.support import SHARED_DATA, examples, needs_shared_data

CHATML = resolve_template("chatml", None).text
PREFIXED = CHATML.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")


def talk(*said: str, first: str = "user", **more: Any) -> Conversation:
    """Turns of user and assistant; what begins with "S:", "T:" is the system's, a tool's."""
    roles = {"S:": "system", "T:": "tool"}
    messages: list[dict[str, Any]] = []
    turns = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    for text in said:
        role = roles.get(text[:2])
        if role is None:
            role = turns[0]
            turns.reverse()
        messages.append({"role": role, "content": text[2:] if text[:2] in roles else text})
    return Conversation(messages=messages, **more)


def trained(rendered: Rendered) -> list[str]:
    return [rendered.text[start:end] for start, end in rendered.spans]


def outcome(render: Any, conversation: Conversation) -> Rendered | RenderError:
    try:
        rendered: Rendered = render(conversation)
    except RenderError as error:
        return error
    return rendered


@cache
def both(manner: str, train_on: TrainOn) -> tuple[CharacterRenderer, ReferenceRenderer]:
    """The renderers of a template; what came before makes no difference to them."""
    options: dict[str, Any] = {"variables": VARIABLES, "special_tokens": SPECIAL}
    template = MANNERS[manner]
    plain = ReferenceRenderer(template, train_on=train_on, literal=True, date=None, **options)
    return CharacterRenderer(template, train_on=train_on, **options), plain


@examples(200)
@given(
    st.sampled_from(sorted(MANNERS)), st.sampled_from(["assistant", "last", "all"]),
    st.lists(conversations(), min_size=1, max_size=3),
)  # fmt: skip
def test_specialized_renderings_equal_the_reference(
    manner: str, train_on: TrainOn, records: list[Conversation]
) -> None:
    """Each record comes three times: the second is specialized, the third filled in."""
    fast, plain = both(manner, train_on)
    for record in records * 3:
        expected, got = outcome(plain.render, record), outcome(fast.render, record)
        if isinstance(expected, RenderError) and isinstance(got, Rendered):
            # A specialization may find more spans, never another text.
            assert expected.reason == "unmaskable" or isinstance(expected, CutError)
            assert got.text == plain.text(record)
        elif isinstance(expected, RenderError):
            assert isinstance(got, RenderError)
            assert got.reason == expected.reason
        else:
            assert got == expected
    assert_filled(fast, records * 4)
    assert fast.refuted == 0


def assert_filled(fast: CharacterRenderer, records: list[Conversation]) -> int:
    """Check that `fill` gives what `render` gives, or None; return how many it gave."""
    filled = fast.own.fill(records)
    for record, found in zip(records, filled, strict=True):
        assert found is None or found == marked(*fast.render(record))
    return len(filled) - filled.count(None)


TALKS = [
    talk("Hi", "Yes"), talk("Hi <|e|>", "<b> & </s>"), talk("", ""), talk("ab", "x."),
    talk("<b>", "Hi </s>\n"), talk("S:<", "Hi", "</think>a b", "c", "<think>d</think>e"),
]  # fmt: skip


@pytest.mark.parametrize("manner", MANNERS)
def test_each_manner_of_templates(manner: str) -> None:
    """As the test before, on few records, in each order that they can be specialized in."""
    fast, plain = both(manner, "assistant")
    for record in [*TALKS, *TALKS[::-1], *TALKS]:
        expected, got = outcome(plain.render, record), outcome(fast.render, record)
        if isinstance(expected, Rendered):
            assert got == expected
        else:
            assert isinstance(got, Rendered) or str(got) == str(expected)
    assert_filled(fast, TALKS * 4)
    assert fast.refuted == 0


def test_one_that_spells_a_token_is_left_to_render() -> None:
    renderer = CharacterRenderer(CHATML, special_tokens=("<|im_end|>",))
    records = [talk(f"Hi {number}", "Yes") for number in range(9)]
    for record in records[:3]:
        renderer.render(record)
    records[4] = talk("Hi <|im_end|>", "Yes")
    assert assert_filled(renderer, records) == 8
    assert renderer.own.fill(records)[4] is None


def test_more_variants_of_a_structure_than_are_kept() -> None:
    """Each answer pattern is another variant; beyond the limit records are rendered singly."""
    template = "{% for m in messages %}{{ 'y' if m.content else 'n' }}{% endfor %}"
    renderer = CharacterRenderer(template, train_on="all")
    for _ in range(3):
        for number in range(64):
            said = [number >> bit & 1 for bit in range(6)]
            rendered = renderer.render(talk(*("a" * flag for flag in said)))
            assert rendered.text == "".join("y" if flag else "n" for flag in said)
    assert renderer.refuted == 0


@needs_shared_data
@pytest.mark.parametrize("manner", ["chatml", "thinking"])
def test_real_conversations_come_out_as_one_by_one(manner: str) -> None:
    fast, plain = both(manner, "assistant")
    lines = (SHARED_DATA / "chat" / "chat_messages.jsonl").read_bytes().splitlines()[::2]
    seen: Counter[str] = Counter()
    records = [Conversation(messages=json.loads(line)["messages"]) for line in lines]
    for at, record in enumerate(records):
        got = outcome(fast.render, record)
        seen[got.reason if isinstance(got, RenderError) else "rendered"] += 1
        if at % 16 == 0 and isinstance(got, Rendered):
            expected = outcome(plain.render, record)
            assert got == expected or (got.text == plain.text(record) and manner == "thinking")
    assert seen["rendered"] > 2300
    assert assert_filled(fast, records) > 2000
    assert fast.refuted == 0


@pytest.mark.parametrize("template", [CHATML, PREFIXED])
def test_what_is_trained(template: str) -> None:
    """The answers with what ends them, and without the line break after it."""
    renderer = CharacterRenderer(template, special_tokens=["<|im_end|>"])
    assert renderer.masked_by == ("generation" if template == CHATML else "prefixes")
    for _ in range(3):
        rendered = renderer.render(talk("S:Be short.", "Hi", "Yes?", "Why", "So.\n"))
        assert trained(rendered) == ["Yes?<|im_end|>", "So.\n<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, PREFIXED])
def test_whose_words_are_trained(template: str) -> None:
    """`train_on`, then what the record says of each message, and never the prompt."""

    def of(train_on: TrainOn, **more: Any) -> list[str]:
        renderer = CharacterRenderer(template, train_on=train_on, special_tokens=["<|im_end|>"])
        for _ in range(3):
            rendered = renderer.render(talk("Hi", "Yes?", "Why", "So.", **more))
        assert renderer.refuted == 0
        return trained(rendered)

    assert of("last") == ["So.<|im_end|>"]
    assert of("assistant", prompt=2) == ["So.<|im_end|>"]
    assert of("assistant", train=[None, None, None, False]) == ["Yes?<|im_end|>"]
    user = "<|im_start|>user\nWhy<|im_end|>"
    assert of("last", train=[None, None, True, None]) == [user, "So.<|im_end|>"]
    whole = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
    rest = user + "\n<|im_start|>assistant\nSo.<|im_end|>\n"
    assert of("all") == [whole + rest]
    assert of("all", prompt=2) == [rest]
    assert of("all", prompt=3) == ["So.<|im_end|>\n"]
    assert of("all", train=[None, None, False, None]) == [
        whole, rest.removeprefix(user + "\n")
    ]  # fmt: skip
    assert of("all", prompt=1, train=[None, False, None, None]) == [rest]


def test_calls_of_tools_are_trained_and_their_results_are_not() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"é": [1, "<"]}}}
    conversation = talk("Go", "", "T:42", "Done")
    conversation.messages[1]["tool_calls"] = [call]
    conversation.messages[3]["role"] = "assistant"
    renderer = CharacterRenderer(CHATML, special_tokens=["<|im_end|>"])
    for _ in range(3):
        said = '<tool_call>\n{"name": "f", "arguments": {"é": [1, "<"]}}\n</tool_call><|im_end|>'
        assert trained(renderer.render(conversation)) == [said, "Done<|im_end|>"]


def test_dropped_thoughts_do_not_keep_earlier_answers_from_being_trained() -> None:
    """Alone each answer has a thought, among others it has none: the plain way gives up."""
    conversation = talk("Hi", "<think>\nhm\n</think>\n\nYes?", "Why", "So.")
    expected = ["Yes?<|im_end|>", "<think>\n\n</think>\n\nSo.<|im_end|>"]
    renderer = CharacterRenderer(THINKING, special_tokens=["<|im_end|>"])
    for _ in range(3):
        assert trained(renderer.render(conversation)) == expected


def test_answers_are_found_where_earlier_turns_are_rendered_otherwise() -> None:
    """Behind the words before them: several calls, two questions, a system turn that comes late."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "  7 "},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "Yes."},
        {"role": "assistant", "content": "Yes. "},
    ]
    renderer = CharacterRenderer(LATE, special_tokens=["</s>"])
    called = '[CALLS] [{"name": "f", "arguments": {"a": 1}}'
    for _ in range(3):
        rendered = renderer.render(Conversation(messages=messages, tools=[{"name": "f"}]))
        assert rendered.text == (
            f"[INST] Hi[/INST]{called}]</s>[RESULT]   7 [/RESULT] Yes.</s>"
            '[TOOLS][{"name": "f"}][/TOOLS][INST] Why[/INST]'
            f"{called}, {called[9:]}]</s>[RESULT] Yes.[/RESULT] Yes.</s>"
        )
        assert trained(rendered) == [
            f"{called}]</s>",
            " Yes.</s>",
            f"{called}, {called[9:]}]</s>",
            " Yes.</s>",
        ]


def test_an_answer_that_others_change_is_not_found() -> None:
    """Behind the words before it there is another answer than the one that was the last."""
    changed = LATE.replace("{{ m.content|trim }}", "{{ m.content if loop.last else '...' }}")
    assert changed != LATE
    renderer = CharacterRenderer(changed, special_tokens=["</s>"])
    with pytest.raises(RenderError, match="unmaskable"):
        renderer.render(talk("Hi", "Yes", "Why", "So"))


def test_a_prompt_that_opens_a_thought_is_left_where_histories_begin_answers() -> None:
    renderer = CharacterRenderer(MANNERS["opening"], special_tokens=["<|e|>"])
    for said in ("Yes", "<think>\nhm</think>Yes", "<think>\n"):
        for _ in range(3):
            spans = trained(renderer.render(talk("Hi", said, "Why", "So")))
            assert spans == [said.split("</think>")[-1] + "<|e|>", "So<|e|>"]


@pytest.mark.parametrize(
    ("template", "conversation", "reason", "detail"),
    [
        (CHATML, talk("Hi"), "no_assistant", "none of its 1 messages is the assistant's"),
        (CHATML, talk("Hi", "Yes", train=[None, False]), "no_assistant", "1 assistant messages"),
        ("\n{{ nothing.at.all }}", talk("Hi", "Yes"), "template", "line 2 of the template"),
        ("{{ raise_exception('no ' ~ messages[0].content) }}", talk("Hi", "Yes"), "template",
         "no Hi"),
        (MANNERS["llama2"], talk("Hi", "Yes", first="assistant"), "roles", "in turn"),
        (MANNERS["silent"], talk("Hi", "Yes"), "unmaskable", "no generation prompt"),
        (MANNERS["joining"] + "{{ '!' if add_generation_prompt }}", talk("Hi", "Yes"),
         "unmaskable", "does not follow on the generation prompt"),
        (MANNERS["order"], talk("b", "a"), "unmaskable", "where message 2 stands"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", talk("Hi", ""), "unmaskable",
         "leaves it out"),
        ("{% generation %}{% endgeneration %}", talk("Hi", "Yes"), "template", "no text"),
        ("{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
         talk("Hi", "Yes"), "unmaskable", "within one another"),
        ("{% set x %}{% generation %} a{% endgeneration %}{% endset %}{{ x|trim }}",
         talk("Hi", "Yes"), "unmaskable", "changes text by its own markers"),
        (MANNERS["marks"], talk("Hi", "Yes", train=[True, None]), "unmaskable",
         "two of its messages are rendered as one"),
        (CHATML, Conversation(messages=[{"role": "a</s>", "content": ""},
                                        {"role": "assistant", "content": "Yes"}]),
         "roles", "spells a special token"),
    ],
)  # fmt: skip
def test_why_a_record_cannot_be_rendered(
    template: str, conversation: Conversation, reason: str, detail: str
) -> None:
    """The reason is the same each time, before and after a structure is specialized."""
    renderer = CharacterRenderer(template, special_tokens=["</s>"])
    for _ in range(3):
        with pytest.raises(RenderError) as caught:
            renderer.render(conversation)
        assert caught.value.reason == reason
        assert detail in caught.value.detail


@pytest.mark.parametrize("template", [CHATML, PREFIXED])
def test_text_that_spells_a_special_token_stays_text(template: str) -> None:
    """It is counted, and its place in the text told, also inside a trained span."""
    renderer = CharacterRenderer(template, special_tokens=["<|im_end|>", "<|im_start|>"])
    for _ in range(3):
        rendered = renderer.render(talk("Say <|im_end|>", "<|im_end|>\n<|im_start|>"))
        literal = [rendered.text[start:end] for start, end in rendered.literal]
        assert literal == ["<|im_end|>", "<|im_end|>", "<|im_start|>"]
        assert [start for start, _ in rendered.literal] == [21, 64, 75]
        assert trained(rendered) == ["<|im_end|>\n<|im_start|><|im_end|>"]
    assert renderer.special_text == {"<|im_end|>": 6, "<|im_start|>": 3}
    parsed = CharacterRenderer(template, special_tokens=["<|im_end|>"], literal=False)
    for _ in range(3):
        assert parsed.render(talk("Say <|im_end|>", "Yes")).literal == []
    assert parsed.special_text == {"<|im_end|>": 3}


@pytest.mark.parametrize("token", ["</s>", '<"s">', "<\\s>"])
@pytest.mark.parametrize("number", [1, 1.5, 1 << 70])
def test_special_tokens_in_arguments_are_counted(token: str, number: float) -> None:
    """Also those that JSON writes otherwise, in keys, and beside numbers it has no place for."""
    renderer = CharacterRenderer(CHATML, special_tokens=[token])
    for arguments in ({"k": number}, {"k": [number, f"a{token}"]}, {token: number}):
        conversation = talk("Hi", "")
        function = {"name": "f", "arguments": arguments}
        conversation.messages[1]["tool_calls"] = [{"type": "function", "function": function}]
        written = json.dumps(arguments).count(token)
        for _ in range(3):
            assert len(renderer.render(conversation).literal) == written
    assert renderer.special_text == {token: 6}


def test_only_what_still_spells_a_token_is_literal() -> None:
    """A template may change it, and write tokens of its own into the text around it."""
    shouting = CharacterRenderer(
        "{{ messages[0].content|upper }}", train_on="all", special_tokens=["</s>"]
    )
    wrapped = "{% set x %}{% for m in messages %}{{ m.content }}</s> {% endfor %}{% endset %}"
    trimming = CharacterRenderer(wrapped + "{{ x|trim }}", train_on="all", special_tokens=["</s>"])
    for said, literal in (("a", []), ("a", []), ("a</s>", [(1, 5)])):
        assert shouting.render(talk(said, "b")).literal == []
        assert trimming.render(talk(said, "b")).literal == literal


def test_white_space_after_a_token_that_a_text_ends_with() -> None:
    """Records before it say nothing of that."""
    closed = CharacterRenderer(MANNERS["bare"], special_tokens=["</s>"])
    open_ = CharacterRenderer(
        "{% for m in messages %}{{ m.content }}{% endfor %}", special_tokens=["</s>"]
    )
    for said, after, alone in (
        ("Yes", "Yes\n", "Yes"), ("Yes ", "Yes \n", "Yes "), ("Yes", "Yes\n", "Yes"),
        ("Yes</s>", "Yes</s>", "Yes</s>"), ("Yes</s> ", "Yes</s>", "Yes</s>"),
    ):  # fmt: skip
        assert trained(closed.render(talk("Hi", said))) == [after]
        assert trained(open_.render(talk("Hi", said))) == [alone]


def test_a_record_that_nests_deeply_is_refused() -> None:
    for name in ("arguments", "odd"):
        value: list[Any] = []
        for _ in range(5000):
            value = [value]
        conversation = talk("Hi", "Yes")
        conversation.messages[1][name] = value
        error = outcome(CharacterRenderer(CHATML).render, conversation)
        assert str(error) == "template_limit: it nests too deeply"


def test_growing_prefixes_of_very_many_messages_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would take minutes; markers have no need of them."""
    monkeypatch.setattr(spans_module, "MAX_RENDERED", 100)
    error = outcome(CharacterRenderer(PREFIXED).render, talk(*["Hi", "Yes"] * 10))
    assert isinstance(error, RenderError)
    assert error.reason == "template_limit"
    assert "--template" in error.detail
    assert len(CharacterRenderer(CHATML).render(talk(*["Hi", "Yes"] * 40)).spans) == 40


def test_what_cannot_be_masked_is_specialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Conversation] = []
    specialize = Specializer.specialize

    def counting(self: Specializer, conversation: Conversation, trace: Any) -> Any:
        tried.append(conversation)
        return specialize(self, conversation, trace)

    monkeypatch.setattr(Specializer, "specialize", counting)
    renderer = CharacterRenderer(MANNERS["silent"])
    for _ in range(4):
        assert isinstance(outcome(renderer.render, talk("Hi", "Yes")), RenderError)
    assert len(tried) == 1


def test_reasoning_goes_by_both_of_its_names() -> None:
    template = "{{ messages[1].thinking }}{{ messages[1].reasoning_content }}"
    conversation = talk("Hi", "Yes")
    conversation.messages[1]["reasoning_content"] = "hm "
    for _ in range(3):
        assert CharacterRenderer(template, train_on="all").render(conversation).text == "hm hm "
    assert "thinking" not in conversation.messages[1]


def test_a_record_is_not_changed_and_does_not_change_others() -> None:
    """What comes out is the same whatever came before."""
    records = [talk("", ""), talk("Hi", "Yes"), talk("Hi", "</think>a"), talk("<think>", "")]
    alone = [outcome(CharacterRenderer(THINKING).render, record) for record in records]
    renderer = CharacterRenderer(THINKING)
    for _ in range(3):
        for record, expected in zip(records, alone, strict=True):
            assert outcome(renderer.render, record) == expected
    assert records[1] == talk("Hi", "Yes")


_TWICE = (
    "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.role }}:{{ m.content }};"
    "{% elif m.content == 'Two' %}{% generation %}<a>{% endgeneration %}|"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("train_on", "train", "said"),
    [
        ("assistant", None, ["<a>", "Two"]),
        ("last", None, ["<a>", "Two"]),
        ("assistant", [None, False, None, None], ["<a>", "Two"]),
    ],
)
def test_as_many_marked_spans_as_turns_need_not_be_one_each(
    train_on: Any, train: Any, said: list[str]
) -> None:
    """One turn is marked twice and another not at all: spans go to the turns that they are of."""
    texts = ("a", "One", "b", "Two")
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(texts)
    ]
    renderer = CharacterRenderer(_TWICE, train_on=train_on)
    for _ in range(3):  # by the reference, then specialized
        text, spans, _literal = renderer.render(Conversation(messages=messages, train=train))
        assert [text[slice(*span)] for span in spans] == said


def test_answers_that_follow_at_once_are_spans_of_their_own() -> None:
    """One that begins where the one before ends overlaps with nothing."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}: {% endif %}{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "One"},
        {"role": "assistant", "content": "Two"},
    ]
    renderer = CharacterRenderer(template)
    for _ in range(3):  # by the reference, then specialized
        rendered = renderer.render(Conversation(messages=messages))
        assert trained(rendered) == ["One", "Two"]


@pytest.mark.parametrize(
    ("train", "said"), [(None, ["One", "Two", "!"]), ([None, False, None, None], ["Two", "!"])]
)
def test_more_marked_spans_than_turns(train: Any, said: list[str]) -> None:
    """The last turn has two, and an earlier one is left out: which are whose is found out."""
    template = (
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}:{% else %}"
        "{% generation %}{{ m.content }}{% endgeneration %}|"
        "{% if m.content == 'Two' %}{% generation %}!{% endgeneration %}{% endif %}{% endif %}"
        "{% endfor %}"
    )
    messages = talk("a", "One", "b", "Two").messages
    renderer = CharacterRenderer(template)
    for _ in range(3):  # by the reference, then specialized
        rendered = renderer.render(Conversation(messages=messages, train=train))
        assert trained(rendered) == said
