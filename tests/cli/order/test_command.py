"""`dataprep order`: what a loader serves at a step, where it came from, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.cli import main
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.create import create_loader
from tests.scenes.chats import CHATS, build_chats
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.runner import run_here

LENGTHS = [[30, 0, 300, 5, 70], [], [100, 60, 1, 1, 200, 90, 40]]
SERVED = ("--batch-size", "2", "--seq-len", "32", "--seed", "7")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of many lengths in train, a few in val."""
    path = tmp_path_factory.mktemp("order") / "shards"
    splits = {"train": random_split(LENGTHS), "val": random_split([[100, 50]], seed=1)}
    return make_dataset(path, splits)


def order(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a successful `dataprep order` prints."""
    done = run_here(capsys, "order", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def order_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The same with --json, parsed."""
    value: dict[str, Any] = json.loads(order(capsys, *arguments, "--json"))
    return value


def test_step_is_what_the_loader_serves(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ids of a batch, read back by document and token, are those of the pieces listed."""
    loader = create_loader(dataset, "train", 2, seq_len=32, seed=7, epoch=1, dp_rank=1, dp_size=3)
    split = open_dataset(dataset).split("train")
    for step, batch in enumerate(loader):
        found = order_json(
            capsys, dataset, *SERVED, "--epoch", "1", "--dp-size", "3", "--step", f"{step}",
            "--rank", "1",
        )  # fmt: skip
        assert (found["split"], found["epoch"], found["steps"]) == ("train", 1, len(loader))
        for row, sample in enumerate(found["samples"]):
            assert (sample["rank"], sample["row"]) == (1, row)
            parts = [
                split.document(part["document"])[slice(*part["tokens"])]
                for part in sample["documents"]
            ]
            ids = np.concatenate(parts)
            assert ids[:-1].tolist() == batch["input_ids"][row].tolist()
            assert ids[1:].tolist() == batch["labels"][row].tolist()


def test_document_is_seen_where_its_steps_say(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step that --doc lists shows that record under --step, and no other step does."""
    listed = order_json(capsys, dataset, *SERVED, "--doc", "2", "--dp-size", "2")
    assert (listed["record"], listed["length"], listed["position"]) == (2, 300, 200)
    steps = {sample["step"] for sample in listed["samples"]} - {None}
    shown = set()
    for step in range(len(create_loader(dataset, "train", 2, seq_len=32, dp_rank=0, dp_size=2))):
        found = order_json(capsys, dataset, *SERVED, "--step", f"{step}", "--dp-size", "2")
        if any(part["record"] == 2 for s in found["samples"] for part in s["documents"]):
            shown.add(step)
    assert shown == steps
    assert len(steps) > 1
    covered = sorted(sample["tokens"] for sample in listed["samples"])
    assert covered[0][0] == 0
    assert covered[-1][1] == 300


def test_step_as_text(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line to a piece, in aligned columns that grep and awk can use."""
    lines = order(capsys, dataset, *SERVED, "--step", "0", "--shuffle", "none").splitlines()
    assert lines == [
        "train, epoch 0, step 0 of 14: 2 samples, 2 documents",
        "rank  row  sample  position  document  record       tokens        at  input",
        "   0    0       0         0         0       0   0:30 of 30    byte 0  input.jsonl",
        "   0    0       0         0         2       2   0:3 of 300  byte 200  input.jsonl",
        "   0    1       1         1         2       2  2:35 of 300  byte 200  input.jsonl",
    ]


def test_document_as_text(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document, and a line for each sample that holds a part of it."""
    options = ("--doc", "3", "--shuffle", "none", "--stride", "16")
    lines = order(capsys, dataset, *SERVED, *options).splitlines()
    assert lines == [
        "train[3], record 3: 5 tokens, from input.jsonl at byte 300",
        "epoch  step  rank  row  sample  position  tokens",
        "    0     9     0    1      19        19  0:5 of 5",
        "    0    10     0    0      20        20  0:5 of 5",
    ]


def test_documents_that_no_step_sees(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No tokens, behind the last window, dropped at the end, or skipped: each is said."""
    assert "it has no tokens" in order(capsys, dataset, *SERVED, "--doc", "1")
    tail = order(capsys, dataset, *SERVED, "--doc", "13", "--seq-len", "90")
    assert "behind the windows" in tail
    options = ("--doc", "13", "--batch-size", "3", "--seq-len", "32")
    assert "dropped     -    -" in order(capsys, dataset, *options, "--end", "drop")


def test_skipped_samples(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is skipped is left out, the next sample takes its place, and --doc says so."""
    options = (dataset, *SERVED, "--shuffle", "none")
    (tmp_path / "skip").write_text("1\n")
    skip = ("--skip", tmp_path / "skip")
    found = order_json(capsys, *options, *skip, "--step", "0")
    assert [(s["sample"], s["position"]) for s in found["samples"]] == [(0, 0), (2, 2)]
    seen = order_json(capsys, *options, *skip, "--doc", "2")["samples"]
    assert {s["sample"]: s.get("not_served") for s in seen if s["sample"] < 3} == {
        0: None, 1: "skipped", 2: None
    }  # fmt: skip
    (tmp_path / "skip").write_text("99999\n")
    done = run_here(capsys, "order", *options, *skip, "--step", "0")
    assert done.returncode == 2
    assert "--skip: sample 99,999 does not exist" in done.stderr


def test_other_splits(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--doc finds its split; a split that is not train is served in stored order, to its end."""
    found = order_json(capsys, dataset, *SERVED, "--doc", "13")
    assert found["split"] == "val"
    steps = [
        order_json(capsys, dataset, *SERVED, "--split", "val", "--step", f"{step}")
        for step in range(2)
    ]
    assert [[s["sample"] for s in step["samples"]] for step in steps] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("shuffle", ["full", "blocks", "none"])
def test_shuffles(shuffle: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of order is the one that a loader of this kind serves."""
    kind: Any = False if shuffle == "none" else shuffle
    loader = create_loader(dataset, "train", 2, seq_len=32, seed=7, shuffle=kind)
    for step, expected in enumerate(loader.sampler_obj):
        options = ("--shuffle", shuffle, "--step", f"{step}")
        found = order_json(capsys, dataset, *SERVED, *options)
        assert [sample["sample"] for sample in found["samples"]] == expected


def test_labels_decide_what_a_window_holds(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without shifted labels a window is a token shorter."""
    options = (dataset, *SERVED, "--shuffle", "none", "--step", "0", "--labels")
    for labels, stop in (("shifted", 3), ("unshifted", 2), ("none", 2)):
        found = order_json(capsys, *options, labels)
        assert found["samples"][0]["documents"][-1]["tokens"] == [0, stop]


def test_quiet_prints_nothing(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet leaves the exit code alone."""
    assert order(capsys, dataset, *SERVED, "--step", "0", "--quiet") == ""


@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        ([], "--step, --doc", "give one of the two"),
        (["--step", "0", "--doc", "0"], "--step, --doc", "give one of the two"),
        (["--doc", "0", "--rank", "0"], "--rank", "goes with --step"),
        (["--step", "14"], "--step", "step 0 of epoch 1"),
        (["--step", "-1"], "--step", "there is no -1"),
        (["--step", "0", "--rank", "1"], "--rank", "0 .. 0"),
        (["--doc", "14"], "--doc", "14 were read"),
        (["--doc", "13", "--split", "train"], "--doc", "not in split train"),
        (["--step", "0", "--batch-size", "0"], "--batch-size", "at least 1"),
        (["--step", "0", "--dp-size", "0"], "--dp-size", "at least 1"),
        (["--step", "0", "--epoch", "-1"], "--epoch", "at least 0, got -1"),
        (["--step", "0", "--seed", "-1"], "--seed", "got -1"),
        (["--step", "0", "--seq-len", "0"], "--seq-len", "at least 1"),
        (["--step", "0", "--stride", "0"], "--stride", "at least 1"),
        (["--step", "0", "--end", "partial", "--dp-size", "2"], "--end", "for one rank"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown(
    words: list[str], where: str, said: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error that names the option and the numbers."""
    assert main.run(["order", str(dataset), *SERVED, *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"dataprep: error[E_USAGE] {where}: ")
    assert said in shown.err


def test_files_and_splits_that_are_not_there(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing skip list, a missing dataset and an unknown split end with their own codes."""
    skip = ("--skip", tmp_path / "nowhere")
    assert run_here(capsys, "order", dataset, *SERVED, "--step", "0", *skip).returncode == 7
    assert run_here(capsys, "order", tmp_path / "no", *SERVED, "--step", "0").returncode == 7
    done = run_here(capsys, "order", dataset, *SERVED, "--step", "0", "--split", "dev")
    assert (done.returncode, "only train, val" in done.stderr) == (2, True)


def test_a_record_of_several_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them is shown: of preferences, and of a conversation that was cut."""
    build_chats(tmp_path / "pairs", CHATS / "pairs.jsonl", split="train=1")
    line = ["order", str(tmp_path / "pairs"), "--doc", "3", "--batch-size", "4", "--seq-len", "256"]
    assert main.run([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found["document"], *(one["document"] for one in found["other_documents"])] == [6, 7]
    assert found["samples"][0]["step"] == found["other_documents"][0]["samples"][0]["step"]
    assert main.run(line) == 0
    shown = capsys.readouterr().out
    assert "train[6], record 3" in shown
    assert "train[7], record 3" in shown
