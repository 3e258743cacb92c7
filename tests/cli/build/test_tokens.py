"""`dataprep build`: its options are those of `BuildOptions`, and its output is what was built."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

import click
import pytest

from dataprep.cli import main
from dataprep.cli.build.tokens import OPTIONS, command
from dataprep.formats.read.dataset import open_dataset
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.progress import MOMENTS, STAGES
from tests.scenes.runner import COMMAND, dataprep, environment, run_here, without_privilege
from tests.support import REPOSITORY

FIXTURES = REPOSITORY / "data_fixtures"
STORIES = FIXTURES / "stories.jsonl"


def test_every_field_has_an_option_and_the_other_way_round() -> None:
    """The command line can say everything that `BuildOptions` can, and nothing else."""
    assert list(OPTIONS) == [name for name in OPTIONS if name in get_type_hints(BuildOptions)]
    assert set(OPTIONS) == {field.name for field in fields(BuildOptions)}


def test_defaults_are_those_of_the_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with nothing but the required options gives the defaults."""
    assert captured_options(monkeypatch, "--input", "a", "--out", "b") == BuildOptions(
        input=("a",), out=Path("b")
    )


@pytest.mark.parametrize("name", list(OPTIONS))
def test_each_option_arrives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value given on the command line is the value of the field."""
    option = next(p for p in command.params if p.name == name and isinstance(p, click.Option))
    given: object = option.default is not True
    if isinstance(option.type, click.Choice):
        given = option.type.choices[-1]
    elif not option.is_flag:
        given = {"seed": 3, "workers": 3, "max_rejects": 3, "split": "train=1"}.get(name, "x")
    words = [] if name == "input" else ["--input", "x"]
    words += [] if name == "out" else ["--out", "x"]
    words += ["--on-error", "skip"] if name == "max_rejects" else []
    words += (
        [(option.opts if given else option.secondary_opts)[0]]
        if option.is_flag
        else [option.opts[0], str(given)]
    )
    value = getattr(captured_options(monkeypatch, *words), name)
    assert value == {"input": ("x",), "out": Path("x")}.get(name, given)
    default = next(field.default for field in fields(BuildOptions) if field.name == name)
    assert value != default or default is MISSING


def captured_options(monkeypatch: pytest.MonkeyPatch, *words: str) -> BuildOptions:
    """The options that `dataprep build` would build with."""
    seen: list[BuildOptions] = []
    monkeypatch.setattr(
        "dataprep.cli.build.running.run", lambda options, *_, **__: seen.append(options)
    )
    assert main.run(["build", *words]) == 0
    return seen[0]


def test_build_and_its_summary(tmp_path: Path) -> None:
    """Piped: the summary on standard output and not a word on standard error."""
    done = dataprep("build", "--input", STORIES, "--out", "shards", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("shards: built in ")
    assert done.stdout.endswith("Check it: dataprep verify shards\n")
    train = open_dataset(tmp_path / "shards").splits["train"]
    assert re.search(rf"train +{train.documents:,} documents +{train.tokens:,} tokens", done.stdout)


def test_building_again_does_nothing(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command finds the finished build and says so."""
    words = ("--input", STORIES, "--split", "train=0.8,val=0.1,test=0.1", "--out", stories)
    done = run_here(capsys, "build", *words)
    assert done.returncode == 0
    assert re.search(r"already holds this build \(\w+\): nothing to do", done.stdout)
    assert done.stdout.endswith(f" (bytes not checked: dataprep verify {stories}).\n")
    again = json.loads(run_here(capsys, "build", *words, "--json").stdout)
    assert again["reused"] is True


def test_another_build_is_refused(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished dataset is not replaced without --overwrite."""
    done = run_here(capsys, "build", "--input", STORIES, "--seed", "7", "--out", stories)
    assert done.returncode not in (0, 1)
    assert "--overwrite" in done.stderr
    assert done.stderr.count("\n") == 1


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the report and nothing else."""
    done = run_here(capsys, "build", "--input", STORIES, "--out", tmp_path / "shards", "--json")
    report = json.loads(done.stdout)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert report["reused"] is False
    assert report["recipe_id"] == open_dataset(tmp_path / "shards").recipe_id


def test_quiet_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet leaves only the exit code."""
    done = run_here(capsys, "build", "--input", STORIES, "--out", tmp_path / "shards", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dry_run_builds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run estimates, and the estimate is near what is built."""
    out = tmp_path / "shards"
    text = run_here(capsys, "build", "--input", STORIES, "--out", out, "--dry-run")
    assert text.stdout.endswith("Nothing was built: run it without --dry-run.\n")
    found = json.loads(
        run_here(capsys, "build", "--input", STORIES, "--out", out, "--dry-run", "--json").stdout
    )
    assert list(tmp_path.iterdir()) == []
    assert found["documents"] == pytest.approx(226, rel=0.2)
    assert found["input_bytes"] == STORIES.stat().st_size
    assert found["fits"] is True


def test_dry_run_of_what_the_disk_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The estimate is printed, says so, and the command ends as the build would: code 4."""
    monkeypatch.setattr("dataprep.pipeline.tokens.estimate.free_bytes", lambda _: 1000)
    words = ("build", "--input", STORIES, "--out", tmp_path / "shards", "--dry-run")
    done = run_here(capsys, *words)
    assert done.returncode == 4
    assert re.search(r"  disk       .* at most needed, 1.0 kB free: NOT ENOUGH\n", done.stdout)
    assert done.stdout.endswith("\nNothing was built.\n")
    assert re.fullmatch(
        r"dataprep: error\[E_NOSPACE\] [^\n]+ 1,000 are free\.[^\n]+\n", done.stderr
    )
    as_json = run_here(capsys, *words, "--json")
    assert (as_json.returncode, as_json.stderr) == (4, done.stderr)
    assert json.loads(as_json.stdout)["fits"] is False
    quiet = run_here(capsys, *words, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (4, "", done.stderr)


def test_one_reject_is_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is not many."""
    source = tmp_path / "s.jsonl"
    source.write_text('{"text": "one"}\nno json\n')
    words = ("--input", source, "--on-error", "skip", "--split", "train=1")
    done = run_here(capsys, "build", *words, "--out", tmp_path / "shards")
    assert "rejected   1 record in rejects.jsonl: 1 invalid_json\n" in done.stdout


@pytest.mark.parametrize("command", [["build"], ["build", "--dry-run"], ["tokenizer", "train"]])
def test_an_input_that_may_not_be_read(command: list[str], tmp_path: Path) -> None:
    """That is no mistake in the command line: code 4, as for every permission."""
    source = tmp_path / "s.jsonl"
    source.write_text('{"text": "mine"}\n')
    source.chmod(0)
    done = subprocess.run(
        [*without_privilege(), *COMMAND, *command, "--input", source, "--out", tmp_path / "out"],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 4
    assert re.fullmatch(rf"dataprep: error\[E_\w+\] {source}: [^\n]+\n", done.stderr)


def test_messy_input_stops_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default the first bad record ends it: code 7, file, line and reason, no traceback."""
    done = run_here(
        capsys, "build", "--input", FIXTURES / "messy.jsonl", "--out", tmp_path / "shards"
    )
    assert done.returncode == 7
    assert re.match(r"dataprep: error\[E_\w+\] \S*messy\.jsonl:2", done.stderr)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "shards").exists()


def test_messy_input_skipped_is_counted_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of messy.jsonl ends as its README says."""
    out = tmp_path / "shards"
    done = run_here(
        capsys, "build", "--input", FIXTURES / "messy.jsonl", "--out", out, "--on-error", "skip",
        "--split", "train=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = re.findall(
        r"^\| (\d+) \| .* \| (.*) \|$", (FIXTURES / "README.md").read_text(), re.MULTILINE
    )
    expected = {int(line): outcome.strip("`") for line, outcome in table if outcome[0] == "`"}
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert {reject["line"]: reject["reason"] for reject in rejects} == expected
    assert f"rejected   {len(expected)} records in rejects.jsonl: " in done.stdout
    good = sum(outcome.startswith("good") for _, outcome in table)
    assert open_dataset(out).splits["train"].documents == good


def test_messy_input_over_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--max-rejects bounds what may be skipped."""
    words = ("--input", FIXTURES / "messy.jsonl", "--out", tmp_path / "shards")
    done = run_here(capsys, "build", *words, "--on-error", "skip", "--max-rejects", "3")
    assert done.returncode == 7
    assert "--max-rejects" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--input", "missing.jsonl"], 7),
        (["--input", "missing/*.jsonl"], 7),
        (["--input", str(STORIES), "--field", "body"], 7),
        (["--input", str(STORIES), "--tokenizer", "missing.json"], 7),
        (["--input", str(STORIES), "--workers", "-1"], 2),
        (["--input", str(STORIES), "--max-rejects", "1"], 2),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's mistake gives its exit code and one line that says what to do."""
    done = run_here(capsys, "build", *words, "--out", tmp_path / "shards")
    assert done.returncode == code, done.stderr
    assert re.fullmatch(r"dataprep: error\[E_[A-Z_]+\] [^\n]+\n", done.stderr)
    assert done.stdout == ""


def test_fixtures_are_what_their_scripts_write() -> None:
    """stories.jsonl and messy.jsonl can be made again, byte for byte."""
    for name in ("stories", "messy"):
        made = subprocess.run(
            [sys.executable, FIXTURES / f"make_{name}.py"], capture_output=True, check=True
        )
        assert made.stdout == (FIXTURES / f"{name}.jsonl").read_bytes()


def test_profile(tmp_path: Path) -> None:
    """`--profile` prints the stages; they add up to the time of the units with one worker."""
    done = dataprep("build", "--input", str(STORIES), "--out", str(tmp_path / "out"), "--profile")
    assert done.returncode == 0
    seconds = dict(re.findall(r"^ +(\w+) +([\d.]+) s ", done.stdout, re.MULTILINE))
    found = {name: float(text) for name, text in seconds.items()}
    assert {"prepare", "units", "commit", "read", "parse", "split", "encode", "narrow"} < set(found)
    stages = sum(value for name, value in found.items() if name in STAGES)
    assert 0 < stages <= found["units"] + 0.01
    assert all(
        f" s  {what}\n" in done.stdout for what in map(MOMENTS.get, MOMENTS.keys() - {"loaded"})
    )


def test_profile_in_json(tmp_path: Path) -> None:
    """The JSON report always has it."""
    words = ("--input", str(STORIES), "--out", str(tmp_path / "out"), "--json")
    profile = json.loads(dataprep("build", *words).stdout)["profile"]
    assert set(profile) == {"prepare", "units", "commit", "stages", "timeline"}
    assert list(profile["timeline"]) == ["begin", "load", "units", "checked", "done", "published"]
    moments = list(profile["timeline"].values())
    assert moments == sorted(moments)
    assert moments[-1] >= profile["prepare"] + profile["units"]
    assert set(profile["stages"]) <= set(STAGES)
    again = json.loads(dataprep("build", *words).stdout)["profile"]
    assert again["stages"] == again["timeline"] == {}
    assert again["units"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors of Linux")
@pytest.mark.parametrize(
    "limit", [8, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 6, 7, 9, 10, 12))]
)
def test_a_limit_of_open_files_leaves_nothing(tmp_path: Path, limit: int) -> None:
    """`ulimit -n`: exit code 4, one line, and no directory, wherever descriptors run out."""
    command = [sys.executable, "-m", "dataprep.cli.main", "build", "--input"]
    command += [str(FIXTURES / "stories.jsonl"), "--out", str(tmp_path / "out"), "--quiet"]
    done = subprocess.run(
        ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *command],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    if done.returncode != 0:
        assert done.returncode == 4, done.stderr
        assert done.stderr.count("\n") == 1
        assert "error[E_OPENFILES]" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []
    assert done.returncode == 4 or limit > 8


@pytest.mark.parametrize(
    "command",
    [
        "build --input a.jsonl --out b", "verify a", "convert a b", "inspect a",
        "order a --batch-size 2", "clean a", "tokenizer train --input a --out b",
    ],
)  # fmt: skip
def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:  # fmt: skip
    """Relative paths lead nowhere then: exit code 4, and what to do."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.run(command.split()) == 4
    assert "E_DIRECTORY] .: the working directory has been removed" in capsys.readouterr().err
