"""The frame of the command line: help, exit codes, the shape of errors, streams and signals."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dataprep import __version__
from dataprep.cli import failure, main, output
from dataprep.formats.errors import DataprepError, InputError, IntegrityError, StorageError
from tests.scenes.datasets import make_dataset
from tests.scenes.runner import COMMAND, dataprep, environment, run_here

ALL_HELP = [(), *((name,) for name in main.COMMANDS), ("tokenizer", "train")]
ERROR_LINE = re.compile(r"dataprep: error\[E_[A-Z_]+\] (\S+: )?[^\n]+\.\n")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small documents."""
    path = tmp_path_factory.mktemp("main") / "shards"
    return make_dataset(path, {"train": [[list(b"first"), list(b"second")]]})


@pytest.mark.parametrize("words", ALL_HELP, ids=" ".join)
def test_help_ends_with_examples(words: tuple[str, ...]) -> None:
    """Each page of help shows how the command is called."""
    result = CliRunner().invoke(main.dataprep, [*words, "--help"])
    assert result.exit_code == 0
    if words != ("tokenizer",):
        assert "Examples:\n    dataprep " in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())


def test_listing_equals_the_commands_own_first_lines() -> None:
    """The table that is shown without importing a command says what the command says."""
    context = click.Context(main.dataprep)
    for name, (_, line) in main.COMMANDS.items():
        command = main.dataprep.get_command(context, name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0] == line


@pytest.mark.parametrize(
    "words",
    [
        "build --input a.jsonl --out s3://bucket/x",
        "build --input s3://bucket/x --out shards",
        "build --input a.jsonl --out shards --tokenizer s3://bucket/x",
        "build --kind chat --input a.jsonl --out shards --template s3://bucket/x",
        "build --kind embeddings --input a.npy --out s3://bucket/x --dry-run",
        "build --kind pairs --input a.csv --out out --question-embs s3://bucket/x "
        "--source-embs s.npy",
        "verify s3://bucket/x",
        "inspect s3://bucket/x",
        "order s3://bucket/x --step 0 --batch-size 1",
        "order shards --state s3://bucket/x",
        "convert s3://bucket/x out",
        "convert x.safetensors s3://bucket/x",
        "tokenizer train --input s3://bucket/x --out tokenizer.json",
        "tokenizer train --input a.jsonl --out s3://bucket/x",
    ],
)
def test_addresses_are_refused_by_name(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command takes s3:// for a folder, nor makes one."""
    monkeypatch.chdir(tmp_path)
    record = {"text": "a", "messages": [{"role": "user", "content": "a"}]}
    Path("a.jsonl").write_text(json.dumps(record) + "\n")
    done = run_here(capsys, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dataprep: error[E_SCHEME] s3://bucket/x: s3:// is not supported")
    assert os.listdir() == ["a.jsonl"]


def test_version() -> None:
    """`--version` prints name and version on standard output."""
    done = dataprep("--version")
    assert (done.stdout, done.returncode) == (f"dataprep {__version__}\n", 0)


def test_no_command_shows_help_and_fails() -> None:
    """A script with an empty variable does not succeed by accident."""
    done = dataprep()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["build"], "--input"),
        (["build", "--input", "x"], "--out"),
        (["build", "--input", "x", "--out", "y", "--engine", "fast"], "--engine"),
        (["build", "--input", "x", "--out", "y", "--workers", "many"], "--workers"),
        (["build", "--input", "x", "--out", "y", "--workers", "0"], "--workers"),
        (["build", "--input", "x", "--out", "y", "--split", "train=2"], "--split"),
        (["build", "--inptu", "x"], "--inptu"),
        (["verify"], "PATH"),
        (["verify", "x", "--level", "deep"], "--level"),
        (["verfiy", "x"], "verfiy"),
        (["tokenizer", "trian"], "trian"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_have_the_shape_of_all_errors(
    words: list[str], where: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line that names the argument, and the same fields with --json."""
    assert main.run([*words, "--json"]) == 2
    shown = capsys.readouterr()
    assert ERROR_LINE.fullmatch(shown.err)
    fields = json.loads(shown.out)
    assert (fields["error"], fields["where"], fields["exit_code"]) == ("E_USAGE", where, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["biuld"], "biuld: there is no such command; perhaps build. See `dataprep --help`."),
        (["tokenizer", "trian"], "perhaps train. See `dataprep tokenizer --help`."),
        (["frobnicate"], "frobnicate: there is no such command. See"),
        (["--frobnicate"], "--frobnicate: there is no such option."),
        (["build", "s.jsonl", "--out", "m"], "s.jsonl: give it with --input. See `dataprep build "),
        (["build", "s.jsonl"], "s.jsonl: give it with --input."),
        (["tokenizer", "train", "s.jsonl"], "s.jsonl: give it with --input."),
        (["build", "--out", "m", "--input", "a.txt", "b.txt"],
         "b.txt: stands without --input. Quote the pattern ('*.txt'), or give --input before each"),
        (["build", "a.md", "b.md", "c.md", "d.md", "--out", "m"],
         "a.md, b.md, c.md, ...: stands without --input. Quote the pattern ('*.md'), or"),
        (["build", "a.md", "b.txt", "--out", "m"], "Quote the pattern ('*'), or"),
        (["verify", "x", "--expect", "abc"], "--expect: must be sha256: and 64 hex digits"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_usage_errors_say_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Common slips are answered with what to type."""
    assert main.run(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "name"),
    [
        (InputError("bad", where="a.jsonl:3"), 7, "E_INPUT"),
        (IntegrityError("bad"), 3, "E_INTEGRITY"),
        (StorageError("bad"), 4, "E_IO"),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 4, "E_NOSPACE"),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 4, "E_IO"),
        (MemoryError(), 4, "E_MEMORY"),
        (KeyboardInterrupt(), 130, "E_INTERRUPTED"),
        (failure.Terminated(), 143, "E_TERMINATED"),
        (ValueError("two\nlines"), 1, "E_INTERNAL"),
        (AssertionError(), 1, "E_INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_exception_becomes_one_line_and_its_exit_code(
    raised: BaseException, code: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, whatever is raised."""
    assert failure.report(raised, ["--json"]) == code
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"dataprep: error[{name}] ")
    assert (json.loads(shown.out)["error"], json.loads(shown.out)["exit_code"]) == (name, code)


def test_a_bug_names_its_type_and_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception asks for --debug, which prints the traceback first."""
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        assert failure.report(error, ["build"]) == 1
        short = capsys.readouterr().err
        assert failure.report(error, ["build", "--debug"]) == 1
        long = capsys.readouterr().err
    assert "ZeroDivisionError: by zero. This is a bug" in short
    assert "--debug" in short
    assert "Traceback" not in short
    assert long.startswith("Traceback")
    assert long.endswith(short)


def test_flags_after_the_separator_are_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` behind `--` is a name, not a wish."""
    assert main.run(["verify", "--", "--json"]) == 7
    assert capsys.readouterr().out == ""


@given(st.text())
def test_an_error_is_always_one_line(text: str) -> None:
    """No message breaks the line, moves the cursor or stops the output from being encoded."""
    line = output.one_line(str(DataprepError(text, where=text)))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    line.encode()


@given(st.text())
def test_printable_keeps_ordinary_text(text: str) -> None:
    """Letters, emoji and their joiners come through; only control characters are spelled out."""
    calm = "".join(c for c in text if c.isalnum() or c in " \n\t\u200d🎉")
    assert output.printable(calm) == calm


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["inspect"], ["verify", "--level=stat"]]
)
def test_full_disk_under_standard_output_is_no_success(words: list[str], dataset: Path) -> None:
    """A result that cannot be written ends with exit code 4 and one line."""
    arguments = words if words[0].startswith("-") else [*words, str(dataset)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env=environment(),
        )  # fmt: skip
    assert done.returncode == 4
    assert re.fullmatch(r"dataprep: error\[E_NOSPACE\] [^\n]+\n", done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_under_standard_error_keeps_the_exit_code() -> None:
    """An error that cannot be printed is still told by the exit code."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "verify", "nowhere"], stderr=full, check=False, env=environment()
        )
    assert done.returncode == 7


def test_closed_standard_output_is_no_success(dataset: Path) -> None:
    """`>&-` cannot take a result."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "inspect", dataset],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "")
    assert "standard output: cannot write the result" in done.stderr


def test_closed_pipe_is_quiet(dataset: Path) -> None:
    """`| head` gets no complaint, and the exit code is that of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "inspect", str(dataset)], stdout=write, stderr=subprocess.PIPE, check=False,
        env=environment(),
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One document that no pipe holds."""
    path = tmp_path_factory.mktemp("large") / "shards"
    return make_dataset(path, {"train": [[list(b"x" * 1_000_000)]]})


def printing(path: Path) -> list[str]:
    """A command that prints the whole of the large document."""
    return [*COMMAND, "inspect", str(path), "--document", "0", "--json"]


BUFFERING = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@BUFFERING
def test_pipe_closed_in_the_middle(unbuffered: str, large: Path) -> None:
    """A reader that leaves early ends the command with 141, though part of it was taken."""
    with subprocess.Popen(
        printing(large), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(100_000)) == 100_000
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@BUFFERING
@pytest.mark.parametrize("blocking", [True, False])
def test_slow_readers_get_everything(blocking: bool, unbuffered: str, large: Path) -> None:
    """Whatever a pipe takes at once, all of the result goes through it."""
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    env = environment(PYTHONUNBUFFERED=unbuffered)
    with subprocess.Popen(printing(large), stdout=write, env=env) as process:
        os.close(write)
        with open(read, "rb") as pipe:
            printed = pipe.read()
    assert process.returncode == 0
    assert len(json.loads(printed)["documents"][0]["text"]) == 1_000_000


@BUFFERING
@pytest.mark.parametrize("words", [["inspect"], ["build", "--help"]], ids="-".join)
def test_a_file_that_may_not_grow_is_no_success(
    words: list[str], unbuffered: str, large: Path, tmp_path: Path
) -> None:
    """A write that is cut short, as on a disk that fills up, ends with exit code 4."""
    command = printing(large) if words == ["inspect"] else [*COMMAND, *words]
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *command],
            stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            env=environment(PYTHONUNBUFFERED=unbuffered, PYTHONDONTWRITEBYTECODE="1"),
        )  # fmt: skip
    assert done.returncode == 4
    assert re.fullmatch(r"dataprep: error\[E_[A-Z]+\] [^\n]+\n", done.stderr)


def test_latin_1_locale_prints_everything(dataset: Path, tmp_path: Path) -> None:
    """A locale that lacks a character gets an escape, not an encoding error."""
    path = make_dataset(tmp_path / "shards", {"train": [[list("naïve 🎉".encode())]]})
    env = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    done = subprocess.run(
        [*COMMAND, "inspect", str(path), "--document", "0"], capture_output=True, env=env,
        check=True,
    )  # fmt: skip
    assert done.stdout.endswith(b"na\\xefve \\U0001f389\n")


SLOW_COMMAND = """
import sys, time
import dataprep.formats.read.dataset as module
from dataprep.cli.main import main

def open_dataset(path):
    print("ready", flush=True)
    time.sleep(60)

module.open_dataset = open_dataset
sys.argv = ["dataprep", "inspect", "shards"]
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_exit_code(number: signal.Signals, code: int) -> None:
    """A command that is busy stops at once, with one line."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert stderr.count("\n") == 1
    assert "Run it again: a build goes on where it stopped." in stderr


INTERRUPTED_IMPORT = """
import os, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), int(sys.argv[1]))

sys.meta_path.insert(0, Interrupting())
from dataprep.cli.entry import main
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_during_the_first_imports(number: signal.Signals, code: int) -> None:
    """Before the command is there, too, a signal ends the process with its code and one line."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, str(int(number))],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith("dataprep: error[E_")
    assert done.stderr.count("\n") == 1
    assert "Nothing was touched." in done.stderr


ENDING = """
import atexit, os, signal, sys

def last():
    os.kill(os.getpid(), signal.SIGINT)
    print("the last words")

atexit.register(last)
from dataprep.cli.entry import main
sys.argv = ["dataprep", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["verify", "nowhere"], 7)])
def test_the_end_of_a_process(words: list[str], code: int) -> None:
    """Functions of atexit are called, what they print arrives, and no signal changes the code."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING, *words],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stdout.endswith("the last words\n")
    assert done.stderr.count("\n") == (code != 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    """The script of each shell refers to the variable that the program listens to."""
    done = dataprep("completion", shell)
    assert done.returncode == 0
    assert "_DATAPREP_COMPLETE" in done.stdout


def test_completion_answers() -> None:
    """With that variable set the program completes commands and options."""
    for words, wanted in (("dataprep ver", "verify"), ("dataprep build --work", "--workers")):
        env = environment(
            _DATAPREP_COMPLETE="bash_complete", COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
        )  # fmt: skip
        assert f"plain,{wanted}" in dataprep(env=env).stdout
