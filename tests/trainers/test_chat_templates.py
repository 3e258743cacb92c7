"""Conversations rendered here are those that transformers renders, and so are the masks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dataprep.pipeline.chat.records.conversation import Conversation
from dataprep.pipeline.chat.template.compiled import RenderError
from dataprep.pipeline.chat.template.source import named_templates, resolve_template
from tests.scenes.chat_templates import CharacterRenderer
from tests.support import SHARED_DATA, needs_shared_data

transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")

QWEN = SHARED_DATA / "tokenizers" / "qwen2_5"
OWN = "of the tokenizer"
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"name": "find", "arguments": {"what": 'a "b" <é>', "times": 2}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def template(name: str) -> str:
    spec, tokenizer = (None, str(QWEN)) if name == OWN else (name, None)
    return resolve_template(spec, tokenizer).text


def conversations() -> Iterator[Conversation]:
    for line in (SHARED_DATA / "chat" / "chat_messages.jsonl").read_bytes().splitlines():
        yield Conversation(messages=json.loads(line)["messages"])
    yield Conversation(
        tools=[TOOL, TOOL],
        messages=[
            {"role": "system", "content": " Be short.\n"},
            {"role": "user", "content": " Where? <|im_end|>"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "id": f"call{at}0000", "function": CALL}
                               for at in range(2)],
            },
            {"role": "tool", "tool_call_id": "call00000", "content": '{"at": 1}'},
            {"role": "tool", "tool_call_id": "call10000", "content": "2"},
            {"role": "assistant", "content": "Here.\n", "reasoning_content": "Well."},
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(QWEN / "tokenizer.json"), **VARIABLES
    )


def theirs(tokenizer: Any, conversation: Conversation, text: str) -> str | None:
    """What transformers makes of `conversation`; None where the template refuses it."""
    from jinja2.exceptions import TemplateError

    try:
        rendered: str = tokenizer.apply_chat_template(
            conversation.messages, tools=conversation.tools, chat_template=text, tokenize=False
        )
    except TemplateError:
        return None
    return rendered


@needs_shared_data
@pytest.mark.parametrize("name", [*named_templates(), OWN])
def test_texts_are_those_of_transformers(name: str, tokenizer: Any) -> None:
    """Every conversation of the data, by the plans as well as one by one, or refused by both."""
    text = template(name)
    renderer = CharacterRenderer(text, variables=VARIABLES, special_tokens=["<|im_end|>", "</s>"])
    refused = 0
    for conversation in conversations():
        expected = theirs(tokenizer, conversation, text)
        try:
            assert renderer.render(conversation).text == expected
        except RenderError as error:
            assert expected is None, error
            refused += 1
    assert refused < 250, "the data has 192 conversations with tools or system turns"
    assert renderer.refuted == 0


@needs_shared_data
@pytest.mark.parametrize("name", named_templates())
def test_masks_are_those_of_transformers(name: str, tokenizer: Any) -> None:
    """Token for token, on what `return_assistant_tokens_mask` gives."""
    text = template(name)
    renderer = CharacterRenderer(text, variables=VARIABLES)
    compared = 0
    for at, conversation in enumerate(conversations()):
        if (at % 25 and at < 4785) or theirs(tokenizer, conversation, text) is None:
            continue
        expected = tokenizer.apply_chat_template(
            conversation.messages, tools=conversation.tools, chat_template=text,
            return_assistant_tokens_mask=True, return_dict=True,
        )  # fmt: skip
        rendered = renderer.render(conversation)
        encoded = tokenizer(rendered.text, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded["input_ids"] == expected["input_ids"]
        mask = [
            int(any(start < end_ and start_ < end for start_, end_ in rendered.spans))
            for start, end in encoded["offset_mapping"]
        ]
        assert mask == list(expected["assistant_masks"])
        compared += 1
    assert compared > 150


@needs_shared_data
def test_the_named_template_of_qwen_is_its_own_with_markers(tokenizer: Any) -> None:
    """Word for word, and what its markers mark is what growing prefixes find."""
    named = CharacterRenderer(template("qwen2.5"), special_tokens=["<|im_end|>"])
    own = CharacterRenderer(template(OWN), special_tokens=["<|im_end|>"])
    assert (named.masked_by, own.masked_by) == ("generation", "prefixes")
    for conversation in conversations():
        assert named.render(conversation) == own.render(conversation)
