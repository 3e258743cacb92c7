"""Where templates come from, and the texts that the named ones make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.chat.records.conversation import Conversation
from dataprep.pipeline.chat.template import source as template_source
from dataprep.pipeline.chat.template.source import Template, named_templates, resolve_template
from tests.scenes.chat_templates import CharacterRenderer
from tests.support import SHARED_DATA, needs_shared_data

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Sys "}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Why"},
    {"role": "assistant", "content": "So"},
]  # fmt: skip
# Trained text stands between [[ and ]].
TEXTS = {
    "alpaca": "<s>Sys \n\n### Instruction:\nHi\n\n### Response:\n[[Yes</s>]]\n\n"
              "### Instruction:\nWhy\n\n### Response:\n[[So</s>]]",
    "chatml": "<|im_start|>system\nSys <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\n[[Yes<|im_end|>]]\n<|im_start|>user\nWhy<|im_end|>\n"
              "<|im_start|>assistant\n[[So<|im_end|>]]\n",
    "deepseek": "<s>Sys <\uff5cUser\uff5c>Hi<\uff5cAssistant\uff5c>[[Yes</s>]]"
                "<\uff5cUser\uff5c>Why<\uff5cAssistant\uff5c>[[So</s>]]",
    "gemma": "<s><start_of_turn>user\nSys\n\nHi<end_of_turn>\n<start_of_turn>model\n"
             "[[Yes<end_of_turn>]]\n<start_of_turn>user\nWhy<end_of_turn>\n"
             "<start_of_turn>model\n[[So<end_of_turn>]]\n",
    "llama2": "<s>[INST] <<SYS>>\nSys\n<</SYS>>\n\nHi [/INST] [[Yes </s>]]"
              "<s>[INST] Why [/INST] [[So </s>]]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nSys<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n[[Yes<|eot_id|>]]"
              "<|start_header_id|>user<|end_header_id|>\n\nWhy<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n[[So<|eot_id|>]]",
    "mistral": "<s>[INST] Sys \n\nHi[/INST][[ Yes</s>]][INST] Why[/INST][[ So</s>]]",
    "phi3": "<|system|>\nSys <|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n[[Yes<|end|>]]\n"
            "<|user|>\nWhy<|end|>\n<|assistant|>\n[[So<|end|>]]\n",
    "qwen2.5": "<|im_start|>system\nSys <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
               "<|im_start|>assistant\n[[Yes<|im_end|>]]\n<|im_start|>user\nWhy<|im_end|>\n"
               "<|im_start|>assistant\n[[So<|im_end|>]]\n",
    "vicuna": "<s>Sys  USER: Hi ASSISTANT:[[ Yes</s>]]USER: Why ASSISTANT:[[ So</s>]]",
    "zephyr": "<|system|>\nSys </s>\n<|user|>\nHi</s>\n<|assistant|>\n[[Yes</s>]]\n"
              "<|user|>\nWhy</s>\n<|assistant|>\n[[So</s>]]\n",
}  # fmt: skip
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}


def resolved(spec: str | None, tokenizer: Path | str | None = None) -> Template:
    return resolve_template(spec, None if tokenizer is None else str(tokenizer))


def refused(spec: str | None, tokenizer: Path | str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        resolved(spec, tokenizer)
    assert caught.value.code == "E_TEMPLATE"
    return str(caught.value)


def test_each_named_template_has_its_text_here() -> None:
    assert tuple(TEXTS) == named_templates()


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_named_template_makes(name: str) -> None:
    template = resolved(name)
    assert template.origin == f"named {name}"
    renderer = CharacterRenderer(template.text, variables=ROLES)
    assert renderer.masked_by == "generation"
    text, spans, _ = renderer.render(Conversation(messages=TURNS))
    for start, end in reversed(spans):
        text = f"{text[:start]}[[{text[start:end]}]]{text[end:]}"
    assert text == TEXTS[name]


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"llama2", "mistral"}))
def test_a_generation_prompt_is_what_stands_before_the_answer(name: str) -> None:
    """In Llama 2 and Mistral nothing does."""
    template = resolved(name).text
    plain = template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    special = ["</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"]
    kinds = [
        CharacterRenderer(one, variables=ROLES, special_tokens=special) for one in (template, plain)
    ]
    answers = [renderer.render(Conversation(messages=TURNS[:3])) for renderer in kinds]
    text = [rendered.text[slice(*rendered.spans[0])].rstrip() for rendered in answers]
    assert text[0] == text[1]


def test_the_builtin_tokenizer_has_chatml() -> None:
    assert resolved(None) == resolved("chatml")
    assert resolved("tokenizer") == resolved("chatml")


@needs_shared_data
def test_the_template_of_a_tokenizer() -> None:
    """Named by its folder or by a file in it."""
    folder = SHARED_DATA / "tokenizers" / "qwen2_5"
    template = resolved(None, folder)
    assert template.origin == "tokenizer"
    assert template == resolved(None, folder / "tokenizer.json")
    assert template.text.startswith("{%- if tools %}")
    assert "has no chat template named 'rag', but default" in refused("tokenizer:rag", folder)


def test_where_a_tokenizer_keeps_its_template(tmp_path: Path) -> None:
    """A .jinja file goes before tokenizer_config.json, as in transformers."""
    said = refused(None, tmp_path)
    assert "comes without a chat template" in said
    assert all(name in said for name in named_templates())
    for name, content, expected in (
        ("chat_template.json", {"chat_template": "c"}, "c"),
        ("tokenizer_config.json", {"eos_token": "</s>"}, "c"),
        ("tokenizer_config.json", {"chat_template": "b"}, "b"),
        ("chat_template.jinja", "a", "a"),
    ):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
        assert resolved(None, tmp_path).text == expected


def test_several_templates_of_a_tokenizer(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": several}))
    assert resolved(None, tmp_path) == Template(text="d", origin="tokenizer")
    assert resolved("tokenizer:rag", tmp_path) == Template(text="r", origin="tokenizer rag")
    config.write_text(json.dumps({"chat_template": several[1:]}))
    assert "--template tokenizer:rag" in refused(None, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[", b"[]", b'{"chat_template": 1}', b'{"chat_template": [1]}', b'{"chat_template": [{}]}',
     b'{"chat_template": [{"name": "default", "template": 1}]}', b"\xff", b"[" * 9999],
)  # fmt: skip
def test_a_damaged_configuration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    assert "tokenizer_config.json" in refused(None, tmp_path)


def test_a_template_given_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.jinja"
    path.write_bytes("é\r\n{{ messages }}".encode())
    assert resolved(str(path)) == Template(text="é\r\n{{ messages }}", origin="mine.jinja")
    path.write_bytes(b"a\xff")
    assert "not UTF-8 (byte 1)" in refused(str(path))
    monkeypatch.setattr(template_source, "MAX_TEMPLATE_BYTES", 1)
    assert "at most 1 bytes (2)" in refused(str(path))
    assert "a folder" in refused(str(tmp_path))
    assert "no such template or file" in refused("chatlm")
    assert "chatml" in refused("no/such.jinja")


def test_the_hub_is_asked_for_files_that_hold_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be had is taken not to be there: the tokenizer itself was fetched before."""
    asked: list[str] = []

    def download(repository: str, name: str) -> Path | None:
        assert repository == "owner/name"
        asked.append(name)
        if name.endswith(".jinja"):
            raise StorageError("offline", code="E_NETWORK")
        path = tmp_path / name
        return path if path.exists() else None

    monkeypatch.setattr(template_source, "download", download)
    assert "owner/name" in refused(None, "owner/name")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "hub"}')
    assert resolved(None, "owner/name") == Template(text="hub", origin="tokenizer")
    assert asked[:2] == ["chat_template.jinja", "tokenizer_config.json"]


def test_a_tokenizer_that_cannot_have_a_template() -> None:
    assert "tiktoken:cl100k_base" in refused(None, "tiktoken:cl100k_base")


@pytest.mark.parametrize("name", ["chatml", "qwen2.5", "llama3", "mistral"])
def test_calls_of_tools_in_named_templates(name: str) -> None:
    """All of a call is trained, whatever its arguments are; what the tool says is not."""
    arguments = {"what": 'a "é" <b>', "n": [1, None]}
    function = {"name": "find", "arguments": arguments}
    call: dict[str, Any] = {"type": "function", "id": "c1", "function": function}
    messages: list[dict[str, Any]] = [
        TURNS[1], {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "T1", "tool_call_id": "c1"}, {"role": "tool", "content": "T2"},
        TURNS[4],
    ]  # fmt: skip
    renderer = CharacterRenderer(resolved(name).text, variables=ROLES)
    tools = [{"type": "function", "function": {"name": "find"}}]
    for _ in range(3):
        text, spans, _literal = renderer.render(Conversation(messages=messages, tools=tools))
        said = [text[start:end] for start, end in spans]
        assert len(said) == 2
        assert said[0].count('{"what": "a \\"é\\" <b>", "n": [1, null]}') == 2
        assert not any("T1" in one or "T2" in one for one in said)
        assert said[1].strip().startswith("So")


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"chatml", "qwen2.5", "llama3", "mistral"}))
def test_named_templates_without_tools_say_so(name: str) -> None:
    from dataprep.pipeline.chat.template.compiled import RenderError

    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    asking: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [TURNS[1], asking]
    with pytest.raises(RenderError, match="no tool calls"):
        CharacterRenderer(resolved(name).text, variables=ROLES).render(
            Conversation(messages=messages)
        )
