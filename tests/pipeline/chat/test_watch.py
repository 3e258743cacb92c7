"""Templates that never end are ended from outside, by the kernel, and the record is named."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import DataprepError, RecordError
from dataprep.pipeline.build import estimate_chat
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.chat.template.compiled import OUT_OF_MEMORY, CompiledTemplate, RenderError
from dataprep.pipeline.execute import processes
from dataprep.pipeline.read import process_limits as watch
from dataprep.pipeline.read.process_limits import (
    NO_SOURCE,
    SECONDS_VARIABLE,
    Watch,
    new_note,
    read_activity,
)
from dataprep.pipeline.tokens.prepare import SAMPLE_BYTES
from tests.scenes.chats import build_chats
from tests.scenes.corpora import SMALL_TOKENIZER, shrink_units

# One call of C code, which holds the interpreter for hours where a message says so.
ENDLESS = (
    "{% for m in messages %}{% if 'endless' in m.content %}{{ n|round(-300000000) }}{% endif %}"
    "{% generation %}{{ m.role }}: {{ m.content }}{% endgeneration %}\n{% endfor %}"
)


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds that workers give to a record."""
    monkeypatch.setenv(SECONDS_VARIABLE, "0.3")


def slow_template(folder: Path, text: str) -> str:
    path = folder / "slow.jinja"
    path.write_text(text, "utf-8")
    return str(path)


def records(path: Path, count: int, *, endless: int) -> Path:
    """`count` conversations; a template goes on for ever with the one of number `endless`."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            said = f"{number} " + ("endless" if number == endless else "words")
            turns = [
                {"role": "user", "content": said},
                {"role": "assistant", "content": "a" * (number % 50 + 1)},
            ]
            print(json.dumps({"messages": turns}), file=file)
    return path


def ended(out: Path, source: Path, template: str, **options: Any) -> DataprepError:
    with pytest.raises(DataprepError) as caught:
        build_chats(out, source, template=template, template_arg=("n=5",), **options)
    assert caught.value.exit_code == 7
    assert not out.exists()
    return caught.value


def named(error: DataprepError, line: int) -> bool:
    """Whether it is this error, with the template and the `line` of the record."""
    assert isinstance(error, RecordError), error
    problem = "rendering it by the template slow.jinja takes more than 0.3 s of processor time"
    where = str(error.where).split(" ")[0]
    return (error.code, error.problem, where) == ("E_TEMPLATE_TIME", problem, f"in.jsonl:{line}")


def test_a_record_of_the_sample(tmp_path: Path) -> None:
    """Here, and in a dry run; where bad records are skipped too, as machines would differ."""
    source = records(tmp_path / "in.jsonl", 40, endless=17)
    template = slow_template(tmp_path, ENDLESS)
    assert named(ended(tmp_path / "out", source, template), 18)
    options = ChatOptions(
        input=(str(source),), out=tmp_path / "out", tokenizer=str(SMALL_TOKENIZER),
        template=template, template_arg=("n=5",),
    )  # fmt: skip
    with pytest.raises(RecordError) as caught:
        estimate_chat(options)
    assert named(caught.value, 18)


def test_a_record_behind_the_sample(tmp_path: Path) -> None:
    """The worker that does the unit is ended, and not tried again."""
    source = records(tmp_path / "in.jsonl", 8000, endless=7777)
    assert source.stat().st_size > 8 * SAMPLE_BYTES
    template = slow_template(tmp_path, ENDLESS)
    assert named(ended(tmp_path / "out", source, template, on_error="skip"), 7778)


def test_a_crash_while_a_record_is_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names it; a worker that crashes at other work is told as before."""
    monkeypatch.delenv(SECONDS_VARIABLE)
    send = processes._Process.send

    def crash(self: processes._Process, data: bytes) -> None:
        send(self, data)
        while (at := read_activity(self._worker.note)) is None or "rendering" not in at.doing:
            time.sleep(0.01)
        os.kill(self._worker.pid, signal.SIGSEGV)

    monkeypatch.setattr(processes._Process, "send", crash)
    source = records(tmp_path / "in.jsonl", 1, endless=0)
    error = ended(tmp_path / "out", source, slow_template(tmp_path, ENDLESS))
    assert error.code == "E_TEMPLATE_CRASH"
    assert "template slow.jinja ends the process (SIGSEGV)" in error.problem


def test_a_killed_worker_and_records_that_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit of the killed one is done by a new worker, however the others have ended."""
    source = records(tmp_path / "in.jsonl", 8000, endless=-1)
    shrink_units(monkeypatch.setattr, source.stat().st_size // 4 + 1)
    lines = source.read_text().splitlines()
    for number in (2777, 4777):  # in the second and the third unit, outside the sample
        lines[number] = lines[number].replace("words", "endless")
    source.write_text("\n".join(lines))
    send = processes._Process.send
    killed: list[int] = []

    def kill_at_the_first_unit(self: processes._Process, data: bytes) -> None:
        if data.startswith(b"unit 0 ") and not killed:
            killed.append(self._worker.pid)
            self.kill()
        send(self, data)

    monkeypatch.setattr(processes._Process, "send", kill_at_the_first_unit)
    template = slow_template(tmp_path, ENDLESS)
    assert named(ended(tmp_path / "out", source, template, workers=2), 2778)
    assert killed


def test_a_template_that_does_not_compile_in_time(tmp_path: Path) -> None:
    """What is constant in a template is computed when it is compiled."""
    source = records(tmp_path / "in.jsonl", 4, endless=-1)
    error = ended(tmp_path / "out", source, slow_template(tmp_path, "{{ 5|round(-300000000) }}"))
    assert error.problem == (
        "compiling the template slow.jinja takes more than 0.3 s of processor time"
    )
    assert (error.where, error.code) == ("--template", "E_TEMPLATE")
    assert SECONDS_VARIABLE in (error.remedy or "")


@pytest.mark.parametrize(
    ("text", "train_on", "code", "where", "said"),
    [
        ("\n{% if x %}", "assistant", "E_TEMPLATE", "chat template slow.jinja, line 2", "endif"),
        ("{% if 1 %}" * 600, "all", "E_TEMPLATE", "chat template slow.jinja", "too deeply"),
        ("{{ messages[0].role }}", "assistant", "E_UNMASKABLE", "in.jsonl:1", "markers"),
        ("", "all", "E_TEMPLATE", "in.jsonl:1", "makes no text of it"),
        ("", "assistant", "E_TEMPLATE", "in.jsonl:1", "choose another --template"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_template(
    tmp_path: Path, text: str, train_on: str, code: str, where: str, said: str
) -> None:
    """It is named; the remedy is told once, and is no option that is set already."""
    source = records(tmp_path / "in.jsonl", 4, endless=-1)
    error = ended(tmp_path / "out", source, slow_template(tmp_path, text), train_on=train_on)
    assert error.code == code
    assert str(error.where).split(" (")[0] == where
    assert said in str(error)
    assert str(error).count("--train-on all") == (code == "E_UNMASKABLE")
    assert str(error).count("markers") == (code == "E_UNMASKABLE")


@pytest.mark.long
def test_memory_that_a_rendering_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is limited from outside too, and no record is skipped for it, as machines differ."""
    monkeypatch.delenv(SECONDS_VARIABLE)
    source = records(tmp_path / "in.jsonl", 1, endless=-1)
    text = "".join(f"{{% set x{n} = '\U0001f600' * 60000000 %}}" for n in range(12))
    error = ended(tmp_path / "out", source, slow_template(tmp_path, text), on_error="skip")
    assert error.code == "E_TEMPLATE_MEMORY"
    assert error.problem == "line 1 of the template: it takes more memory than it may"


def test_memory_is_limited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a record that the template fails on, which is told from others."""
    monkeypatch.setattr(watch, "_MEMORY", 64 << 20)
    template = CompiledTemplate("{% set x = '\U0001f600' * 60000000 %}{{ x|length }}")
    with new_note() as note:
        mine = Watch(note.fileno())
        with mine.limits(), pytest.raises(RenderError) as caught:
            template.render([])
    assert caught.value.reason == OUT_OF_MEMORY
    assert template.render([]) == "60000000"


def test_limits_are_those_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the process is as it was; meanwhile each record has its own time."""
    monkeypatch.delenv(SECONDS_VARIABLE)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with new_note() as note:
        assert read_activity(note) is None
        mine = Watch(note.fileno())
        mine.begin("working", source=3, start=10, stop=20)
        with mine.limits():
            assert 59 < signal.getitimer(signal.ITIMER_PROF)[0] < 61
            assert resource.getrlimit(resource.RLIMIT_AS)[0] > 2 << 30
            assert resource.getrlimit(resource.RLIMIT_AS) != before
            mine.at(5, 6)
            assert read_activity(note) == ("working", 3, 10, 20, 5, 6)
            mine.at(None, 7)
            assert read_activity(note) == ("working", 3, 10, 20, None, 7)
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
        assert resource.getrlimit(resource.RLIMIT_AS) == before
        assert read_activity(note) is None
        mine.begin("nothing of a record")
        with mine.limits():
            assert read_activity(note) == ("nothing of a record", NO_SOURCE, 0, 0, None, 0)
