"""`dataprep verify`: the verdict, the exit code, and what is said about damage."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataprep.cli import main
from dataprep.formats.read.dataset import open_dataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.runner import COMMAND, environment, run_here, without_privilege

LEVELS = ("stat", "structure", "full")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A few hundred tokens, to be damaged."""
    return make_dataset(tmp_path / "shards", {"train": random_split([[100, 50], [30]])})


def flip(path: Path) -> None:
    """Change one bit in the middle of `path`."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sound_dataset(level: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, a verdict on standard output, nothing on standard error."""
    assert main.run(["verify", str(dataset), "--level", level]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(f"{dataset}: ok (level {level}: ")
    assert "3 documents, 180 tokens" in shown.out


def test_what_takes_long_to_import_is_not(stories: Path) -> None:
    """With gigatoken's probes too: of what a process costs, only what it needs."""
    program = (
        "import sys; from dataprep.cli.main import run; assert run(['verify', sys.argv[1]]) == 0;"
        "print('modules', *{'gigatoken', 'torch', 'pyarrow', 'awkward', 'datasets', 'pandas',"
        " 'rich'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(stories)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "modules gigatoken"


def test_verify_and_inspect_count_the_same_bytes(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file of the dataset, config.json included."""
    found = []
    for command in ("verify", "inspect"):
        assert main.run([command, str(dataset), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["bytes"])
    files = [path for path in dataset.rglob("*") if path.is_file()]
    assert found == [sum(path.stat().st_size for path in files)] * 2


@pytest.mark.parametrize("level", LEVELS)
def test_files_of_desktops_and_notebooks_are_ignored(
    level: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0, with a note that names them, in the directory and its folders; others count."""
    (dataset / ".DS_Store").write_bytes(b"x")
    (dataset / "train" / ".nfs000000000012").write_bytes(b"x")
    (dataset / "train" / ".ipynb_checkpoints").mkdir()
    (dataset / "train" / ".ipynb_checkpoints" / "a.ipynb").write_bytes(b"{}")
    assert main.run(["verify", str(dataset), "--level", level]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert (
        "note: ignored, not part of the dataset: .DS_Store, train/.ipynb_checkpoints, "
        "train/.nfs000000000012\n" in shown.out
    )
    assert len(open_dataset(dataset).split("train")) == 3
    (dataset / "train" / ".DS_Store2").write_bytes(b"x")
    assert main.run(["verify", str(dataset), "--level", level]) == 3


def test_damage_is_named_and_fails(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each finding on standard error, the verdict on standard output, code 3."""
    flip(dataset / "train" / "tokens-00001.bin")
    assert main.run(["verify", str(dataset)]) == 3
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("dataprep: error[E_HASH] train/tokens-00001.bin: ")
    assert shown.err.endswith(" Restore this file, or build again with --overwrite.\n")
    assert ": 1 finding, NOT what was built" in shown.out


def test_quiet_still_says_what_is_wrong(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet silences the verdict, not the errors."""
    assert main.run(["verify", str(dataset), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    (dataset / "train_idx.pt").unlink()
    assert main.run(["verify", str(dataset), "--quiet"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "train_idx.pt" in shown.err


def test_json_has_every_finding(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the same exit code inside and outside."""
    for number in range(30):
        (dataset / f"extra-{number}").touch()
    assert main.run(["verify", str(dataset), "--json"]) == 3
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["ok"], report["exit_code"], len(report["findings"])) == (False, 3, 30)
    assert shown.err.endswith("dataprep: 10 more findings: --json lists them\n")


def test_expect_pins_the_dataset(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest that verify prints is the one that --expect takes; another one fails."""
    assert main.run(["verify", str(dataset), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert any(note.endswith("pinned: --expect sha256:...") for note in report["notes"])
    pin = f"sha256:{report['config_sha256']}"
    assert main.run(["verify", str(dataset), "--expect", pin]) == 0
    shown = capsys.readouterr().out
    assert pin in shown
    assert "--expect" not in shown
    shutil.rmtree(dataset)
    make_dataset(dataset, {"train": random_split([[100, 50], [30]], seed=1)})
    assert main.run(["verify", str(dataset), "--expect", pin]) == 3
    assert "error[E_PIN] config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "code", "name"),
    [
        (shutil.rmtree, 7, "E_NOT_FOUND"),
        (lambda path: (path / "config.json").unlink(), 3, "E_UNFINISHED"),
        (lambda path: flip(path / "config.json"), 3, "E_MANIFEST"),
    ],
)
def test_directories_that_are_no_dataset(
    damage: object, code: int, name: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to verify is an error too."""
    assert callable(damage)
    damage(dataset)
    assert main.run(["verify", str(dataset), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"] == name


def test_a_file_is_no_dataset(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever names config.json is told what to name."""
    path = dataset / "config.json"
    assert main.run(["verify", str(path)]) == 7
    said = f"error[E_NOT_FOUND] {path}: is a file. Name the directory that holds it.\n"
    assert capsys.readouterr().err == f"dataprep: {said}"


def test_a_link_is_named_as_one(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that was moved away and linked: what is wrong, and that a copy mends it."""
    path = dataset / "train" / "tokens-00000.bin"
    aside = path.rename(dataset.parent / "aside.bin")
    path.symlink_to(aside)
    assert main.run(["verify", str(dataset)]) == 3
    assert capsys.readouterr().err == (
        "dataprep: error[E_NAME] train/tokens-00000.bin: is a symbolic link; dataprep reads only "
        "ordinary files. Copy it here.\n"
    )
    path.unlink()
    shutil.copyfile(aside, path)
    assert main.run(["verify", str(dataset)]) == 0


# Workers


@pytest.mark.parametrize("damaged", [False, True])
def test_the_output_is_the_same_for_any_number_of_workers(
    dataset: Path, damaged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text but for the time, JSON, --quiet, and the exit code."""
    if damaged:
        for name in ("tokens-00001.bin", "docs-00000.npy", "source-00001.npy"):
            flip(dataset / "train" / name)
    found = set()
    for workers in ("1", "2", "4"):
        for options in ([], ["--json"], ["--quiet"]):
            done = run_here(capsys, "verify", dataset, "--workers", workers, *options)
            said = re.sub(r"[\d.,]+ m?s\)", "", done.stdout)
            found.add((tuple(options), done.returncode, said, done.stderr))
    assert len(found) == 3
    assert {code for _, code, _, _ in found} == {3 if damaged else 0}


def test_no_workers_are_a_mistake(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option, as it was typed."""
    done = run_here(capsys, "verify", dataset, "--workers", "0")
    assert done.returncode == 2
    assert "error[E_USAGE] --workers: must be at least 1" in done.stderr


@pytest.mark.parametrize("workers", ["1", "4"])
def test_files_that_may_not_be_read(dataset: Path, workers: str) -> None:
    """Exit code 4 and a line for each, in the order of their names."""
    names = ["train/docs-00001.npy", "train/tokens-00000.bin", "train_idx.pt"]
    for name in names:
        (dataset / name).chmod(0)
    done = subprocess.run(
        [*without_privilege(), *COMMAND, "verify", str(dataset), "--workers", workers],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    assert [line.partition(": error[E_DENIED] ")[2].partition(":")[0] for line in lines] == names


SLOW = """
import sys, time
from dataprep.formats.verify import reader
real = reader.Reader._readinto
def slow(self, view):
    print(flush=True)
    time.sleep(0.05)
    return real(self, view[:64])
reader.Reader._readinto, reader._QUICK_BYTES = slow, 0
from dataprep.cli.entry import main
main()
"""


@pytest.mark.parametrize("workers", ["1", "2", "8"])
def test_an_interrupt_ends_it(tmp_path: Path, workers: str) -> None:
    """Ctrl-C while files are read: exit code 130 at once, one line, no traceback."""
    path = make_dataset(tmp_path / "many", {"train": random_split([[20]] * 200)})
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "verify", str(path), "--workers", workers],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        assert time.monotonic() - began < 3
    assert process.returncode == 130
    assert re.fullmatch(r"dataprep: error\[E_INTERRUPTED\] stopped before the end\. .+\n", said)
