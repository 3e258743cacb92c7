"""`dataprep inspect` of conversations and preferences: what is trained on, and whole records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dataprep.cli.inspect.chat import marked
from tests.cli.inspect.test_command import inspect, inspect_json, on_terminal
from tests.scenes.datasets import make_dataset
from tests.scenes.preferences import Answer, Record, make_preferences

NAN = float("nan")
Capture = pytest.CaptureFixture[str]


def document(*parts: str, score: float = 1) -> Answer:
    """Parts that are read and trained on by turns."""
    mask = [number % 2 for number, part in enumerate(parts) for _ in part.encode()]
    return Answer(ids=[*"".join(parts).encode()], mask=mask, score=score)


TALK = document("user: hi\nbot:", " héllo!\n", "user: \x1b[2J\nbot:", " bye\n")


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """One conversation, with an EOS that is trained on and no part of its text."""
    return make_dataset(
        tmp_path / "chat", {"train": [[TALK.ids]]}, masks={"train": [[[*TALK.mask, 1]]]},
        form="chat", add_eos=True,
    )  # fmt: skip


def test_what_is_trained_on_is_marked(chat: Path, capsys: Capture) -> None:
    """By brackets where there is no colour; what would drive the terminal is spelled out."""
    printed = inspect(capsys, chat, "--document", "0")
    assert "user: hi\nbot:⟦ héllo!\n⟧user: \\x1b[2J\nbot:⟦ bye\n⟧" in printed
    assert "train[0]  43 tokens, from input.jsonl at byte 0\n" in printed


def test_colour_on_a_terminal(chat: Path) -> None:
    """Green instead of brackets; with NO_COLOR the brackets."""
    printed = on_terminal("inspect", chat, "--document", "0").replace("\r\n", "\n")
    assert "bot:\x1b[32m héllo!\n\x1b[0muser" in printed
    assert "⟦" not in printed
    plain = on_terminal("inspect", chat, "--document", "0", NO_COLOR="1").replace("\r\n", "\n")
    assert "bot:⟦ héllo!\n⟧user" in plain


def test_spans_of_characters(chat: Path, capsys: Capture) -> None:
    """--json gives the text as it is, and where it is trained on."""
    (found,) = inspect_json(capsys, chat, "--document", "0")["documents"]
    spans = [found["text"][start:stop] for start, stop in found["trained"]]
    assert spans == [" héllo!\n", " bye\n"]
    assert found["trained_tokens"] == sum(TALK.mask) + 1
    assert "answer" not in found


def test_the_table_says_how_it_was_made(chat: Path, capsys: Capture) -> None:
    """Form, template, what is trained on and how much of it."""
    printed = inspect(capsys, chat)
    for fact in (
        r"conversations +chat, any length, over length: not asked\n",
        r"template +named test, sha256 [0-9a-f]{64}\n",
        r"trained on +assistant, by prefixes: 15 tokens \(34.9%\)\n",
    ):
        assert re.search(fact, printed), fact
    facts = inspect_json(capsys, chat)["chat"]
    assert facts["trained_share"] == pytest.approx(15 / 43)
    assert (facts["form"], facts["max_tokens"], facts["overlong_found"]) == ("chat", None, {})


def test_long_texts_are_cut_inside_a_span(tmp_path: Path, capsys: Capture) -> None:
    """What is shown is marked to its end; spans behind it are not there."""
    long = document("x" * 990, "y" * 40, "z", "w")
    path = make_dataset(
        tmp_path / "d", {"train": [[long.ids]]}, masks={"train": [[long.mask]]}, form="chat"
    )
    printed = inspect(capsys, path, "--document", "0")
    assert "x⟦" + "y" * 10 + "⟧ … (32 more characters: --full)" in printed
    whole = inspect(capsys, path, "--document", "0", "--full")
    assert "⟦" + "y" * 40 + "⟧z⟦w⟧" in whole


def test_long_prompts_are_left_out(tmp_path: Path, capsys: Capture) -> None:
    """Where the first characters are all of a prompt, what is trained on is shown with its edge."""
    long = document("p" * 2999 + ":", "y" * 30, "u" * 700, "z")
    path = make_dataset(
        tmp_path / "d", {"train": [[long.ids]]}, masks={"train": [[long.mask]]}, form="chat"
    )
    printed = inspect(capsys, path, "--document", "0")
    begin = "p" * 500 + " … (2,400 characters) … " + "p" * 99 + ":⟦" + "y" * 30 + "⟧"
    assert f"\n{begin}{'u' * 370} … (331 more characters: --full)\n" in printed
    short = document("p" * 1200, "y")
    path = make_dataset(
        tmp_path / "f", {"train": [[short.ids]]}, masks={"train": [[short.mask]]}, form="chat"
    )
    printed = inspect(capsys, path, "--document", "0")
    assert "p … (600 characters) … " + "p" * 100 + "⟦y⟧\n" in printed


def test_a_character_of_two_tokens(tmp_path: Path, capsys: Capture) -> None:
    """It is trained on if its last token is, and never shown in halves."""
    ids, mask = [*"aéb".encode()], [0, 0, 1, 0]
    path = make_dataset(tmp_path / "d", {"train": [[ids]]}, masks={"train": [[mask]]}, form="chat")
    (found,) = inspect_json(capsys, path, "--document", "0")["documents"]
    assert (found["text"], found["trained"]) == ("aéb", [[1, 2]])
    assert "a⟦é⟧b" in inspect(capsys, path, "--document", "0")


RECORDS: dict[str, list[Record]] = {
    "pairs": [
        [document("q0:", "good"), document("q0:", "bad", score=0)],
        [document("q1:", "fine"), document("q1:", "poor", score=0)],
    ],
    "labels": [[document("q0:", "good")], [document("q1:", "poor", score=0)]],
    "groups": [
        [document("q0:", answer, score=NAN) for answer in "abc"],
        [document("q1:", "d", score=0.25)],
    ],
}
HEADS = {
    "pairs": ["record 1: answer 1 of 2, chosen", "record 1: answer 2 of 2, rejected"],
    "labels": ["record 1: bad"],
    "groups": ["record 1: score 0.25"],
}


@pytest.mark.parametrize("form", RECORDS)
def test_records(form: str, tmp_path: Path, capsys: Capture) -> None:
    """Documents say which answer of which record they are; a drawn record comes whole."""
    path = make_preferences(tmp_path / "d", form, [RECORDS[form][:1], RECORDS[form][1:]])
    ends = [len(RECORDS[form][0]), sum(map(len, RECORDS[form]))]
    asked = [word for number in range(*ends) for word in ("--document", str(number))]
    printed = inspect(capsys, path, *asked)
    heads = [line for line in printed.splitlines() if line.startswith("train[")]
    assert len(heads) == len(HEADS[form])
    for line, head in zip(heads, HEADS[form], strict=True):
        assert line.endswith(f"at byte 100, {head}")
    found = inspect_json(capsys, path, "--random", "9")
    assert found["splits"]["train"]["records"] == 2
    documents = found["documents"]
    assert sorted(one["document"] for one in documents) == [*range(ends[1])]
    for record in {one["record"] for one in documents}:
        own = [one for one in documents if one["record"] == record]
        assert [one["answer"] for one in own] == [*range(len(RECORDS[form][record]))]
        assert {one["answers"] for one in own} == {len(own)}
        expected = [None if a.score != a.score else a.score for a in RECORDS[form][record]]
        assert [one["score"] for one in own] == expected
    (one,) = {d["record"] for d in inspect_json(capsys, path, "--random", "1")["documents"]}
    assert one in (0, 1)
    if form == "groups":
        assert "answer 2 of 3, no score" in inspect(capsys, path, "--document", "1")


def test_other_datasets_say_nothing_of_it(tmp_path: Path, capsys: Capture) -> None:
    """Texts look as they always did; a split with masks has spans in any dataset."""
    text = make_dataset(tmp_path / "text", {"train": [[[*b"abc"]]]})
    found = inspect_json(capsys, text, "--document", "0")
    assert "chat" not in found
    assert "trained" not in found["documents"][0]
    assert "conversations" not in inspect(capsys, text)
    masked = make_dataset(
        tmp_path / "masked", {"train": [[[*b"abc"]]]}, masks={"train": [[[0, 1, 1]]]}
    )
    (document,) = inspect_json(capsys, masked, "--document", "0")["documents"]
    assert document["trained"] == [[1, 3]]


def test_control_characters_are_spelled_out_in_spans() -> None:
    """Inside and outside, in spans that begin and end anywhere."""
    assert marked("ab\x1b", [[1, 3]]) == "a⟦b\\x1b⟧"
    assert marked("\x07b", []) == "\\x07b"
