"""Builds of conversations name bad records, templates and options, and tell of lost tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import InputError, RecordError, UsageError
from dataprep.pipeline import chat
from dataprep.pipeline.build import build, build_chat
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.tokens import prepare
from tests.scenes.chats import TALKS, build_chats
from tests.scenes.corpora import records_of
from tests.support import SHARED_DATA, needs_shared_data


def test_control_tokens_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    """Are told in a note, and only where the template writes them."""
    notes = build_chats(tmp_path / "out", TALKS, template="zephyr", on_error="skip").notes
    assert any("writes <|assistant|>, " in note and "several tokens each" in note for note in notes)
    assert not any("several tokens" in note for note in build_chats(tmp_path / "ok", TALKS).notes)


def test_a_failing_template_names_the_record(tmp_path: Path) -> None:
    """File, line and the template's own words; counted like every reject when skipped."""
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% for m in messages %}{% if 'lanterns' in m.content %}"
        "{{ raise_exception('no lanterns here') }}{% endif %}"
        "{{ '<|im_start|>' + m.role }}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "utf-8",
    )
    with pytest.raises(RecordError, match="no lanterns here") as caught:
        build_chats(tmp_path / "out", TALKS, template=str(template), train_on="all")
    line = next(
        number for number, record in enumerate(records_of(TALKS), 1)
        if any("lanterns" in turn["content"] for turn in record["messages"])
    )  # fmt: skip
    assert f"talks.jsonl:{line} " in str(caught.value.where)
    report = build_chats(
        tmp_path / "out", TALKS, template=str(template), train_on="all", on_error="skip"
    )
    assert sum(report.manifest.records.rejected.values()) == 3
    lines = (tmp_path / "out" / "rejects.jsonl").read_text("utf-8").splitlines()
    numbers = [json.loads(line)["record"] for line in lines]
    assert numbers == sorted(numbers)


def test_no_assistant_turn(tmp_path: Path) -> None:
    """Reading and rendering both make rejects; they come in the order of the records."""
    source = tmp_path / "in.jsonl"
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    alone = {"messages": [{"role": "user", "content": "a"}]}
    lines = [json.dumps(alone), "{", json.dumps(good), json.dumps(alone), '{"x": 1}']
    source.write_text("\n".join(lines), "utf-8")
    with pytest.raises(RecordError) as caught:
        build_chats(tmp_path / "out", source)
    assert str(caught.value.where).startswith("in.jsonl:1 ")
    report = build_chats(tmp_path / "out", source, on_error="skip")
    assert report.manifest.records.read == 5
    assert report.manifest.records.written == 1
    rejects = (tmp_path / "out" / "rejects.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["line"] for line in rejects] == [1, 2, 4, 5]


def test_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    """The named ones are listed."""
    with pytest.raises(InputError, match="chatml"):
        build_chats(tmp_path / "out", TALKS, template=None)


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    """Is not told as one without a template."""
    with pytest.raises(InputError) as caught:
        build_chats(tmp_path / "out", TALKS, template=None, tokenizer="no-such-tokenizer")
    assert caught.value.code == "E_TOKENIZER"


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    """Are named, beside the fields that the records really have."""
    with pytest.raises(
        InputError, match=r"no field 'dialog', which --columns names; seen: 'id', 'm"
    ):
        build_chats(tmp_path / "out", TALKS, columns="messages=dialog")


@pytest.mark.parametrize(("options", "match"), [
    ({"overlong": "drop"}, "--max-tokens"), ({"max_tokens": 0}, "at least 1"),
    ({"template_date": "yesterday"}, "YYYY-MM-DD"), ({"columns": "messages"}, "NAME=FIELD"),
    ({"template_arg": "9=1"}, "cannot name a variable"), ({"form": "talk"}, "one of chat"),
    ({"form": "pairs", "max_tokens": 5, "overlong": "split"}, "tear answers"),
    ({"hf_split": "train"}, "Hugging Face"), ({"shape": "letters"}, "letters"),
])  # fmt: skip
def test_mistakes(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    """Each is told before any work."""
    with pytest.raises(UsageError, match=match):
        build_chats(tmp_path / "out", TALKS, **options)
    assert not list(tmp_path.iterdir())


def test_complaints_name_options_that_there_are() -> None:
    """Whatever a message of the code for conversations says to give is an option of the command."""
    known = {f"--{name.replace('_', '-')}" for name in ChatOptions.__dataclass_fields__}
    folder = Path(chat.__path__[0])
    for path in sorted(folder.glob("*.py")):
        told = set(re.findall(r"(?<![-\w])--[a-z][-a-z]*", path.read_text("utf-8")))
        assert told <= known | {"--dry-run", "--kind", "--field"}, path.name


@needs_shared_data
def test_unknown_tokens_are_told(tmp_path: Path) -> None:
    """As for texts: what a tokenizer does not know is lost, and that is said."""
    source = tmp_path / "chat.jsonl"
    messages = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "\U00012002 " * 50},
    ]  # fmt: skip
    source.write_text(json.dumps({"messages": messages}), "utf-8")
    bert = str(SHARED_DATA / "tokenizers" / "bert_base_uncased")
    report = build_chat(
        ChatOptions(
            input=(str(source),),
            out=tmp_path / "out",
            tokenizer=bert,
            template="chatml",
            split="train=1",
        )
    )
    assert any("unknown token" in note for note in report.notes)


def test_a_template_that_refuses_all_records(tmp_path: Path) -> None:
    """Leaving them out is advised only where others would be left."""
    source = tmp_path / "in.jsonl"
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    refused = json.dumps({"messages": [asked[0], *asked]})
    source.write_text(f"{refused}\n" * 3, "utf-8")
    with pytest.raises(RecordError) as caught:
        build_chats(tmp_path / "out", source, template="gemma")
    assert "choose another --template; none of the records" in str(caught.value)
    assert "--on-error" not in str(caught.value)
    source.write_text(f"{refused}\n" * 3 + json.dumps({"messages": asked}), "utf-8")
    with pytest.raises(RecordError, match="choose another --template, or leave such records out"):
        build_chats(tmp_path / "out", source, template="gemma")


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_each_kind_of_build_gives_its_own_advice(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For more files than a dataset can list."""
    monkeypatch.setattr(prepare, "_MAX_SOURCES", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n', "utf-8")
    with pytest.raises(UsageError, match="2 files are more than the limit of 1") as caught:
        if kind == "chat":
            build_chats(tmp_path / "out", tmp_path)
        else:
            build(BuildOptions(input=(str(tmp_path),), out=tmp_path / "out"))
    assert ("--document" in str(caught.value.remedy)) == (kind == "text")
