"""`dataprep order` of packed rows, documents, mixtures and states: what such a loader serves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.loader.loader import Loader
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.runner import run_here

LENGTHS = [[30, 0, 300, 5, 70], [], [100, 60, 1, 1, 200, 90, 40]]
OTHER = [[80, 3, 3], [120]]
Capture = pytest.CaptureFixture[str]
Batch = Mapping[str, torch.Tensor]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two datasets of train and val, and a place of their own for plans."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAPREP_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        for seed, (name, lengths) in enumerate({"one": LENGTHS, "other": OTHER}.items()):
            splits = {"train": random_split(lengths, seed=seed), "val": random_split([[100, 50]])}
            make_dataset(folder / name, splits)
        yield Path("one"), Path("other")


def order(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    """What a successful `dataprep order --json` prints."""
    done = run_here(capsys, "order", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def text(capsys: Capture, *arguments: str | Path) -> list[str]:
    done = run_here(capsys, "order", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """The error of one that is not."""
    done = run_here(capsys, "order", *arguments)
    assert (done.returncode != 0, done.stdout) == (True, "")
    return done.stderr


def ids_of(paths: tuple[Path, ...], sample: Mapping[str, Any]) -> list[int]:
    """The ids of the documents that are listed for a sample, one after the other."""
    split = open_dataset(paths[sample.get("source", 0)]).split("train")
    parts = [split.document(p["document"])[slice(*p["tokens"])] for p in sample["documents"]]
    return np.concatenate([*parts, np.empty(0, np.int64)]).tolist()  # type: ignore[no-any-return]


def same(batch: Batch, found: Mapping[str, Any], *paths: Path) -> None:
    """A batch without labels holds what is listed for each of its rows, and then is filled."""
    assert len(batch["input_ids"]) == len(found["samples"])
    for row, sample in zip(batch["input_ids"].tolist(), found["samples"], strict=True):
        ids = ids_of(paths, sample)
        assert row[: len(ids)] == ids
        assert len(set(row[len(ids) :])) <= 1
    if "source" in batch:
        assert batch["source"].tolist() == [sample["source"] for sample in found["samples"]]


ROWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "windows": ({"seq_len": 32}, ("--seq-len", "32")),
    "packed": (
        {"rows": "packed", "seq_len": 64, "algorithm": "best-fit", "overlong": "truncate"},
        ("--rows", "packed", "--seq-len", "64", "--pack", "best-fit", "--overlong", "truncate"),
    ),
    "documents": (
        {"rows": "documents", "seq_len": 90}, ("--rows", "documents", "--seq-len", "90")
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mixed", [False, True])
def test_steps_and_documents_of_an_epoch(
    both: tuple[Path, Path], rows: str, mixed: bool, capsys: Capture
) -> None:
    """Each step lists what the loader serves in it; each document, the steps that list it."""
    options, words = ROWS[rows]
    words = (*words, "--batch-size", "3", "--seed", "7", "--epoch", "1", "--labels", "none")
    places: tuple[Path, ...] = both[: 1 + mixed]
    served: Any = dict(zip(both, (0.25, 0.75), strict=True)) if mixed else both[0]
    if mixed:
        options = options | {"source_ids": True}
        words = (*words, "--weight", "0.25", "--weight", "0.75")
    loader = make_loader(served, "train", 3, seed=7, epoch=1, labels=None, **options)
    seen: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for step, batch in enumerate(loader):
        found = order(capsys, *places, *words, "--step", f"{step}")
        assert found["steps"] == len(loader)
        assert found.get("rows", "windows") == rows
        same(batch, found, *places)
        for sample in found["samples"]:
            for part in sample["documents"]:
                key = sample.get("source", 0), part["record"]
                seen.setdefault(key, set()).add((step, sample["row"]))
    for source, lengths in enumerate((LENGTHS, OTHER)[: len(places)]):
        of = ("--source", f"{source}") if mixed else ()
        for record in range(sum(map(len, lengths))):
            found = order(capsys, *places, *words, "--doc", f"{record}", *of)
            steps = {(s["step"], s["row"]) for s in found["samples"] if s["step"] is not None}
            assert steps == seen.get((source, record), set())


def saved(loader: Loader, steps: int, file: Path) -> list[Batch]:
    """Serve so many steps of a pass, and keep the state; the batches served, and the next one."""
    batches: list[Batch] = []
    iterator = iter(loader)
    batches.extend(itertools.islice(iterator, steps))
    file.write_text(json.dumps(loader.state_dict()))
    return [*batches, next(iterator)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shuffle", ["full", "blocks", False])
def test_state_says_what_was_given(
    both: tuple[Path, Path], rows: str, shuffle: Any, tmp_path: Path, capsys: Capture
) -> None:
    """The next step, and those before it, from the state and the batch size alone."""
    loader = make_loader(
        both[0], "train", 2, seed=9, epoch=3, labels=None, shuffle=shuffle, skip=[1],
        transform=lambda batch, _: batch, **ROWS[rows][0],
    )  # fmt: skip
    file = tmp_path / "state.json"
    served = saved(loader, 2, file)
    options = (both[0], "--state", file, "--batch-size", "2")
    found = order(capsys, *options)
    assert (found["epoch"], found["step"], found["next_step"]) == (3, 2, 2)
    same(served[2], found, both[0])
    for step, batch in enumerate(served):
        same(batch, order(capsys, *options, "--step", f"{step}"), both[0])
    other = order(capsys, *options, "--epoch", "4", "--step", "0")
    assert (other["epoch"], "next_step" in other) == (4, False)
    loader.set_epoch(4)
    same(next(iter(loader)), other, both[0])


@pytest.mark.parametrize("rows", ROWS)
def test_state_of_a_mixture(
    both: tuple[Path, Path], rows: str, tmp_path: Path, capsys: Capture
) -> None:
    """It holds the weights, too."""
    loader = make_loader(
        {both[0]: 0.25, both[1]: 0.5}, "train", 2, seed=9, epoch=1, labels=None, source_ids=True,
        **ROWS[rows][0],
    )  # fmt: skip
    served = saved(loader, 2, tmp_path / "state.json")
    options = (*both, "--state", tmp_path / "state.json", "--batch-size", "2")
    for step, batch in enumerate(served):
        same(batch, order(capsys, *options, "--step", f"{step}"), *both)
    same(served[2], order(capsys, *options), *both)
    found = refused(capsys, *options, "--weight", "1", "--weight", "1")
    assert "[E_STATE] --state: is of another order: " in found


@pytest.mark.parametrize("rows", ["windows", "packed"])
def test_weights_of_tokens(
    both: tuple[Path, Path], rows: str, tmp_path: Path, capsys: Capture
) -> None:
    """A state holds them where the rows are equally long; otherwise they are to be given."""
    weights: Any = dict(zip(both, (0.25, 0.5), strict=True))
    loader = make_loader(
        weights, "train", 2, by="tokens", labels=None, source_ids=True, **ROWS[rows][0]
    )
    _, following = saved(loader, 1, tmp_path / "state.json")
    options = (*both, "--state", tmp_path / "state.json", "--batch-size", "2", "--labels", "none")
    given = ("--weight", "0.25", "--weight", "0.5")
    same(following, order(capsys, *options, *given), *both)
    if rows == "windows":
        same(following, order(capsys, *options), *both)
    else:
        assert "--weight: given 0 times for 2" in refused(capsys, *options)


def test_state_of_many_datasets(both: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    """A state too long to hold all weights takes them from the options, and refuses others."""
    places = [tmp_path / f"{number}" for number in range(6)]
    for place in places:
        place.symlink_to(both[0].absolute())
    weights: Any = {place: number + 1 for number, place in enumerate(places)}
    loader = make_loader(weights, "train", 2, seq_len=32, labels=None, source_ids=True)
    _, following = saved(loader, 1, tmp_path / "state.json")
    assert "weights" not in loader.state_dict()["order"]
    state = tmp_path / "state.json"
    options: list[str | Path] = [
        *places, "--state", state, "--batch-size", "2", "--labels", "none"
    ]  # fmt: skip
    words = [word for number in weights.values() for word in ("--weight", f"{number}")]
    same(following, order(capsys, *options, *words), *places)
    assert "--weight: given 0 times for 6" in refused(capsys, *options)
    assert "[E_STATE] --state" in refused(capsys, *options, *reversed_weights(words))
    places[2].unlink()
    places[2].symlink_to(both[1].absolute())
    assert "[E_STATE_DATASET] --state" in refused(capsys, *options, *words)


def reversed_weights(words: list[str]) -> list[str]:
    return [word for number in words[::-2] for word in ("--weight", number)]


def test_state_between_steps(both: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    """With another batch size one step begins where the state stands; what is before has none."""
    loader = make_loader(both[0], "train", 1, seq_len=32, seed=9)
    file = tmp_path / "state.json"
    saved(loader, 5, file)
    options = (both[0], "--state", file, "--batch-size", "3")
    found = order(capsys, *options)
    assert (found["step"], found["first_position"]) == (1, 2)
    assert [sample["position"] for sample in found["samples"]] == [5, 6, 7]
    before = order(capsys, *options, "--step", "0")
    assert [sample["position"] for sample in before["samples"]] == [2, 3, 4]
    again = make_loader(both[0], "train", 3, seq_len=32, seed=9)
    again.load_state_dict(json.loads(file.read_text()))
    assert found["steps"] == 1 + len(list(again))
    record = order(capsys, *options, "--doc", "2")
    assert record["samples"]
    whys = {s.get("not_served") for s in record["samples"] if s["position"] < 2}
    assert whys <= {"earlier"}
    lines = text(capsys, *options)
    assert lines[1] == "the state stands before step 1; steps are counted from position 2 on"


def test_state_at_the_end_of_an_epoch(
    both: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    """Less than a batch is left: what comes next is the next epoch, as for the loader."""
    loader = make_loader(both[0], "train", 1, seq_len=32, seed=9)
    saved(loader, len(loader) - 1, tmp_path / "state.json")
    options = (both[0], "--state", tmp_path / "state.json", "--batch-size", "2")
    found = order(capsys, *options)
    assert (found["epoch"], found["step"]) == (1, 0)
    assert "--step: the state is not of epoch 0" in refused(capsys, *options, "--epoch", "0")


def test_skip_overrules_the_state(both: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    """A run may go on with another list: so may this, and says nothing of it."""
    loader = make_loader(both[0], "train", 2, seq_len=32, shuffle=False, skip=[0, 4])
    saved(loader, 1, tmp_path / "state.json")
    (tmp_path / "skip").write_text("5")
    options = (both[0], "--state", tmp_path / "state.json", "--batch-size", "2")
    assert [s["sample"] for s in order(capsys, *options)["samples"]] == [3, 5]
    found = order(capsys, *options, "--skip", tmp_path / "skip")
    assert [s["sample"] for s in found["samples"]] == [3, 4]


def test_a_state_finds_a_split_of_another_name(
    both: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    """The content id decides; a state without nulls says the same."""
    make_dataset(tmp_path / "fit", {"val": random_split([[9]]), "fit": random_split(LENGTHS)})
    loader = make_loader(both[0], "train", 2, seq_len=32, labels=None)
    saved(loader, 1, tmp_path / "state.json")
    state = json.loads((tmp_path / "state.json").read_text())
    state["order"] = {name: value for name, value in state["order"].items() if value is not None}
    assert "labels" not in state["order"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    options = ("--state", tmp_path / "state.json", "--batch-size", "2", "--end", "drop")
    found, same = order(capsys, tmp_path / "fit", *options), order(capsys, both[0], *options)
    assert (found["split"], same["split"]) == ("fit", "train")
    assert [s["sample"] for s in found["samples"]] == [s["sample"] for s in same["samples"]]


@pytest.mark.parametrize(
    ("change", "words", "code", "said"),
    [
        ({}, ("other",), "E_STATE_DATASET", "--state: is of another dataset"),
        ({}, ("one", "other"), "E_STATE_DATASET", "--state: is of another dataset"),
        ({}, ("other", "--doc", "99"), "E_STATE_DATASET", "--state: is of another dataset"),
        ({}, ("one", "--seed", "1"), "E_STATE", "seed 9, not 1"),
        ({}, ("one", "--seq-len", "16"), "E_STATE", "seq_len 32, not 16"),
        ({}, ("one", "--split", "val"), "E_STATE", "split train, not val"),
        ({}, ("one", "--stride", "16"), "E_STATE", "stride 32, not 16"),
        ({}, ("one", "--rows", "documents"), "E_STATE", "--state: is of rows windows, not doc"),
        ({}, ("one", "--shuffle", "none"), "E_STATE", "shuffle full, not none"),
        ({"version": 2}, ("one",), "E_VERSION", "--state: has version 2"),
        ({"version": "x"}, ("one",), "E_USAGE", "--state: is damaged"),
        ({"kind": "model"}, ("one",), "E_USAGE", "--state: is not the state of a dataprep loader"),
        ({"order": 3}, ("one",), "E_USAGE", "--state: is damaged (it does not say which order"),
        ({"order": {}}, ("one",), "E_USAGE", "--state: is damaged (algorithm None)"),
        ({"order": {"algorithm": 2}}, ("one",), "E_VERSION", "with sample order 2; this dataprep"),
        ({"order": {"algorithm": 1}}, ("one",), "E_STATE_DATASET", "--state: is of another"),
        (
            {"order": {"algorithm": 1, "more": 1}}, ("one", "--seq-len", "9"), "E_STATE_DATASET",
            "--state",
        ),
        ({"skip": [-1]}, ("one",), "E_USAGE", "--state: is damaged (skip must be"),
        ({"skip": 5}, ("one",), "E_USAGE", "--state: is damaged"),
        ({"position": -1}, ("one",), "E_USAGE", "--state: is damaged (position must be"),
        ({"position": 10**9}, ("one",), "E_STATE", "stands at position 1,000,000,000 of 28"),
        ({"epoch": None}, ("one",), "E_USAGE", "--state: is damaged"),
    ],
)  # fmt: skip
def test_states_that_do_not_fit(
    both: tuple[Path, Path], change: dict[str, Any], words: tuple[str, ...], code: str, said: str,
    tmp_path: Path, capsys: Capture,
) -> None:  # fmt: skip
    """What the loader refuses is refused, by name."""
    state = make_loader(both[0], "train", 2, seq_len=32, seed=9).state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state | change))
    weights = ("--weight", "1", "--weight", "1") if words[1:] == ("other",) else ()
    options = ("--state", tmp_path / "state.json", "--batch-size", "2", *weights)
    error = refused(capsys, *words, *options)
    assert f"error[{code}]" in error
    assert said in error


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[" * 100_000, b"[1]", b'"x"'])
def test_files_that_are_no_state(
    both: tuple[Path, Path], content: bytes | None, tmp_path: Path, capsys: Capture
) -> None:
    """A file that is not there, is no JSON, or something else."""
    file = tmp_path / "state.json"
    if content is not None:
        file.write_bytes(content)
    error = refused(capsys, both[0], "--state", file, "--batch-size", "2")
    assert error.startswith("dataprep: error[")
    assert any(said in error for said in ("is no file", "is not JSON", "is not the state"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one", "other", "--step", "0"), "--weight: given 0 times for 2 datasets"),
        (("one", "other", "--step", "0", "--weight", "1"), "--weight: given 1 times"),
        (("one", "--step", "0", "--weight", "1", "--weight", "1"), "--weight: given 2 times"),
        (("one", "one", "--step", "0", "--weight", "1", "--weight", "1"), "is given twice"),
        (("one", "--step", "0", "--weight", "-1", "--seq-len", "9"), "must be a positive number"),
        (("one", "--step", "0", "--weight", "nan", "--seq-len", "9"), "must be a positive number"),
        (("one", "other", "--doc", "0"), "--source: record ids are numbers in one dataset"),
        (("one", "--doc", "0", "--source", "1"), "--source: 1 is not in 0 .. 0"),
        (("one", "--step", "0", "--source", "0"), "--source: goes with --doc"),
        (("one", "--step", "0", "--pack", "best-fit"), "--pack: means nothing"),
        (("one", "--step", "0", "--rows", "packed", "--stride", "3"), "--stride: means nothing"),
        (("one", "--step", "0", "--rows", "packed", "--seq-len", "0"), "--seq-len: must be"),
        (("one", "--step", "0", "--rows", "documents", "--seq-len", "0"), "--seq-len: must be"),
        (("one", "--step", "0", "--weigh-by", "tokens"), "--weigh-by: is for"),
        ((), "PATH"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown(
    both: tuple[Path, Path], words: tuple[str, ...], said: str, capsys: Capture
) -> None:
    """Each mistake names its option."""
    assert both
    done = run_here(capsys, "order", *words, "--batch-size", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_documents_that_no_row_holds(both: tuple[Path, Path], capsys: Capture) -> None:
    """What packing leaves out is said."""
    options = ("--batch-size", "2", "--rows", "packed", "--seq-len", "64", "--overlong", "drop")
    assert "dropped" in text(capsys, both[0], *options, "--doc", "2")[-1]
    assert "it has no tokens" in text(capsys, both[0], *options, "--doc", "1")[-1]
    documents = ("--batch-size", "2", "--rows", "documents", "--doc", "1")
    assert "it has no tokens" in text(capsys, both[0], *documents)[-1]


def test_mixture_as_text(both: tuple[Path, Path], capsys: Capture) -> None:
    """The datasets by number, which every sample names."""
    options = (*both, "--weight", "1", "--weight", "1", "--batch-size", "2", "--seq-len", "32")
    lines = text(capsys, *options, "--step", "0", "--shuffle", "none")
    assert lines == [
        "train, epoch 0, step 0 of 17: 2 samples, 3 documents",
        "source 0: one",
        "source 1: other",
        "rank  row  source  sample  position  document  record      tokens        at  input",
        "   0    0       0       0         0         0       0  0:30 of 30    byte 0  input.jsonl",
        "   0    0       0       0         0         2       2  0:3 of 300  byte 200  input.jsonl",
        "   0    1       1      28         1         0       0  0:33 of 80    byte 0  input.jsonl",
    ]
    lines = text(capsys, *options, "--doc", "1", "--source", "1", "--shuffle", "none")
    assert lines[0].startswith("train[1] of source 1, record 1: 3 tokens, from input.jsonl")
