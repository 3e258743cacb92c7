"""`dataprep order`: skip lists of mixtures, and errors in the words of its options."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.runner import run_here

Capture = pytest.CaptureFixture[str]
BOTH = ("a", "b", "--weight", "1", "--weight", "1", "--batch-size", "2")
STEP = (*BOTH, "--seq-len", "8", "--step", "0")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets a and b, each of 29 windows of 8."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate("ab"):
        make_dataset(tmp_path / name, {"train": random_split([[90, 61, 82]], seed=number)})


def samples(capsys: Capture, *words: str) -> list[int]:
    done = run_here(capsys, "order", *words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [sample["sample"] for sample in json.loads(done.stdout)["samples"]]


def refused(capsys: Capture, *words: str, code: int | None = None) -> str:
    done = run_here(capsys, "order", *words)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert code in (None, done.returncode)
    return done.stderr.removeprefix("dataprep: ").rstrip("\n")


def saved(place: Any, **options: Any) -> dict[str, Any]:
    """The state of a loader after a step, which lies in state.json too."""
    loader = make_loader(place, "train", 2, **{"seq_len": 8, "seed": 9} | options)
    next(iter(loader))
    state = loader.state_dict()
    Path("state.json").write_text(json.dumps(state))
    return state


def test_skip_lists_of_a_mixture(capsys: Capture) -> None:
    """An object by PATH leaves out what the loader leaves out with the same one."""
    skip = {"a": [0, 3], "b": [1]}
    Path("skip").write_text(json.dumps(skip))
    loader = make_loader({"a": 1, "b": 1}, "train", 2, seq_len=8, skip=skip, shuffle=False)
    for step, expected in enumerate(itertools.islice(loader.sampler_obj, 5)):
        words = (*BOTH, "--seq-len", "8", "--shuffle", "none", "--step", f"{step}")
        assert samples(capsys, *words, "--skip", "skip") == expected
    Path("skip").write_text('{"./b": [1]}')  # another spelling of the path
    assert samples(capsys, *STEP, "--skip", "skip", "--shuffle", "none") == [0, 29]


def test_skip_lists_in_the_state_of_a_mixture(capsys: Capture) -> None:
    """They are in force without --skip; with one, that is."""
    loader = make_loader({"a": 1, "b": 1}, "train", 2, seq_len=8, skip={"b": [1, 2]}, shuffle=False)
    expected = list(itertools.islice(loader.sampler_obj, 2))
    next(iter(loader))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    words = ("a", "b", "--state", "state.json", "--batch-size", "2")
    assert samples(capsys, *words) == expected[1]
    Path("skip").write_text('{"a": [1]}')
    assert samples(capsys, *words, "--skip", "skip") == [2, 29 + 1]


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (
            "3\n",
            STEP,
            'must say which dataset the samples are of. Write {"PATH": [samples], ...} t',
        ),
        ('{"c": [1]}', STEP, "--skip: c: no PATH of this mixture. Name each as it is given: a, b."),
        ('{"b": [99]}', STEP, "/b: sample 99 does not exist: there are 29"),
        ('{"b": ["x"]}', STEP, "skip: b: must be whole numbers"),
        ('{"b": 3}', STEP, "skip: b: must be whole numbers"),
        ('{"b"', STEP, "an object with an array for each"),
        (
            '{"a": [1]}',
            ("a", *STEP[6:]),
            "--skip: has samples of several datasets, and there is on",
        ),
    ],
)
def test_skip_lists_that_cannot_be(
    content: str, words: Sequence[str], said: str, capsys: Capture
) -> None:
    """Each says which dataset, and what to write."""
    Path("skip").write_text(content)
    assert said in refused(capsys, *words, "--skip", "skip")


def test_an_empty_list_is_of_any_dataset(capsys: Capture) -> None:
    for content in ("", "[]", "{}"):
        Path("skip").write_text(content)
        assert len(samples(capsys, *STEP, "--skip", "skip")) == 2


def test_states_and_datasets(capsys: Capture) -> None:
    """The real cause, with the PATHs as they are to be given."""
    state = ("--state", "state.json", "--batch-size", "8")
    saved("a")
    error = refused(capsys, "a", *state, "--weight", "2", code=6)
    assert error == (
        "error[E_STATE] --state: is of a by itself, and this is a mixture of that one dataset. "
        "Give the dataset by itself, without a weight."
    )
    error = refused(capsys, "b", "a", *state, "--weight", "2", "--weight", "1", code=6)
    assert "E_STATE_DATASET] --state: is of another dataset: a, this one is a mixture" in error
    assert error.endswith("Give a by itself, without a weight.")
    saved({"a": 1, "b": 3})
    error = refused(capsys, "b", "a", *state, code=6)
    assert error == (
        "error[E_STATE] --state: is of the same datasets in another order: a and b, not b and a. "
        "Give them, and their weights, in this order: a and b."
    )
    error = refused(capsys, "a", *state, code=6)
    assert "--state: is of another dataset: a mixture of a and content " in error
    assert error.endswith("Give all that it was taken on, in that order, each with its weight.")
    saved({"a": 1})
    assert len(samples(capsys, "a", *state)) == 8


def test_nothing_of_python_is_offered(capsys: Capture) -> None:
    """weights_changed is no option, and a loader is nothing that one could make here."""
    saved({"a": 1, "b": 3})
    state = ("--state", "state.json", "--batch-size", "2")
    error = refused(capsys, "a", "b", *state, "--weight", "1", "--weight", "1", code=6)
    assert error == (
        "error[E_STATE] --state: is of another order: weights 1 and 3, not 1 and 1. "
        "Give the options that the loader had; what the state says need not be given."
    )
    Path("state.json").write_text('"x"')
    assert refused(capsys, "a", *state).endswith(
        "Write json.dumps(loader.state_dict()) to the file."
    )
    error = refused(capsys, "a", "--state", "nowhere", "--batch-size", "2", code=7)
    assert error.endswith(
        "nowhere: is no file. Check the path. Write json.dumps(loader.state_dict()) to it."
    )


def test_rows_of_the_state(capsys: Capture) -> None:
    """Nothing is said of a stride that nobody gave."""
    saved("a")
    error = refused(capsys, "a", "--state", "state.json", "--batch-size", "2", "--rows", "packed")
    assert error == (
        "error[E_STATE] --state: is of rows windows, not packed. "
        "Leave out --rows, or give --rows windows."
    )


def test_a_state_that_lacks_its_skip_list(capsys: Capture) -> None:
    state = saved("a")
    del state["skip"]
    Path("state.json").write_text(json.dumps(state))
    error = refused(capsys, "a", "--state", "state.json", "--batch-size", "2")
    assert "--state: is damaged (skip must be a list, got None). Give an earlier state." in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--batch-size", "100000", "--seq-len", "8"),
            "--batch-size: 29 samples are fewer than one global batch of 100,000 (--batch-size "
            "100,000 x --dp-size 1), and --end drop drops it. Use a smaller --batch-size or --end "
            "pad (or partial).",
        ),
        (("--batch-size", "1", "--seq-len", "900"), "Use --seq-len 232 or less, or build with"),
        (
            ("--batch-size", "1", "--rows", "packed", "--stride", "8"),
            "--stride: means nothing for --rows packed.",
        ),
        (
            ("--batch-size", "1", "--rows", "packed", "--seq-len", "8", "--overlong", "error"),
            "or a larger --seq-len.",
        ),
        (
            ("--batch-size", "1", "--seq-len", "8", "--weigh-by", "tokens"),
            "--weigh-by: is for several datasets with weights. Leave it out, or give several PATHs",
        ),
    ],
)  # fmt: skip
def test_errors_in_the_words_of_options(words: Sequence[str], said: str, capsys: Capture) -> None:
    """What mends it can be typed."""
    error = refused(capsys, "a", "--step", "0", *words)
    assert said in error
    assert not {"seq_len", "batch_size", "drop_last", "overlong="} & set(error.split())
    assert "=" not in error
