"""`dataprep build --kind`: each kind has the options of its dataclass, and says what it built."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from dataprep.cli import main
from dataprep.cli.build import chat as build_chat
from dataprep.cli.build import embeddings as build_embeddings
from dataprep.cli.build import pairs as build_pairs
from dataprep.cli.build.kinds import KINDS
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.pairs.options import PairOptions

COMMANDS = {
    "chat": (build_chat, ChatOptions),
    "embeddings": (build_embeddings, EmbeddingOptions),
    "pairs": (build_pairs, PairOptions),
}


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """20 rows of 4 numbers."""
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32))
    return path


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_field_has_an_option_and_the_other_way_round(kind: str) -> None:
    """The command line can say everything that the dataclass can, and nothing else."""
    module, options = COMMANDS[kind]
    assert list(module.OPTIONS) == [p.name for p in module.command.params[: len(module.OPTIONS)]]
    assert set(module.OPTIONS) == {field.name for field in fields(options)}


@pytest.mark.parametrize("kind", COMMANDS)
def test_defaults_are_those_of_the_dataclass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with nothing but what is required gives the defaults."""
    _, options = COMMANDS[kind]
    words: dict[str, Any] = {"input": ("a",), "out": Path("b")}
    if kind == "pairs":
        words |= {"encoder": "m"}
    seen: list[Any] = []

    def build(of: Any, given: Any, **_: Any) -> None:
        assert of.name == kind
        seen.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("dataprep.pipeline.run.run_build", build)
    line = ["build", "--kind", kind, "--input", "a", "--out", "b"]
    main.run([*line, "--encoder", "m"] if kind == "pairs" else line)
    assert seen == [options(**words)]


@pytest.mark.parametrize("kind", KINDS)
def test_help_is_of_the_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And lists the kinds."""
    assert main.run(["build", "--help", f"--kind={kind}"]) == 0
    shown = capsys.readouterr().out
    assert "[tokens|chat|embeddings|pairs" in shown
    assert ("--tier-proportions" in shown) == (kind == "pairs")
    assert ("--encode-batch" in shown) == (kind == "embeddings")
    assert ("--tokenizer" in shown) == (kind in {"tokens", "chat"})
    assert ("--train-on" in shown) == (kind == "chat")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kind", "images"], "no kind 'images', only tokens, chat, embeddings, pairs"),
        (["--kind", "embeddings", "--tokenizer", "x"], "--tokenizer"),
        (["--kind", "pairs", "--input", "a", "--out", "b"], "give the embeddings, or an --encoder"),
        (["--kind"], "--kind"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the option."""
    assert main.run(["build", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_embeddings_are_built(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says is what is there; again, there is nothing to do."""
    line = ["build", "--kind", "embeddings", "--input", str(vectors), "--out", str(tmp_path / "o")]
    line += ["--split", "train=1", "--workers", "1"]
    assert main.run([*line, "--dry-run"]) == 0
    assert "rows       about 20" in capsys.readouterr().out
    assert not (tmp_path / "o").exists()
    assert main.run(line) == 0
    said = capsys.readouterr().out
    assert "train                20 rows" in said
    assert "20 x 4  4.4 kB" in said
    assert main.run(line) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main.run([*line, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"] == {"train": {"rows": 20}}
    with open_arrays(tmp_path / "o") as data:
        np.testing.assert_array_equal(data.array("embedding").read(0, 20), np.load(vectors))


def test_a_bad_row_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its row number; nothing is left behind."""
    bad = np.ones((5, 3), np.float32)
    bad[3, 1] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    line = ["build", "--kind", "embeddings", "--input", str(tmp_path / "bad.npy")]
    assert main.run([*line, "--out", str(tmp_path / "o"), "--workers", "1"]) == 7
    error = capsys.readouterr().err
    assert "bad.npy" in error
    assert "row 3" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]


def test_pairs_are_built(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps with their times; --json has them too."""
    rows = "".join(f"q{n},s{n},{n % 2}\n" for n in range(20))
    (tmp_path / "pairs.csv").write_text("question,source,cluster\n" + rows)
    line = ["build", "--kind", "pairs", "--input", str(tmp_path / "pairs.csv"), "--n-neg", "4"]
    line += ["--question-embs", str(vectors), "--source-embs", str(vectors)]
    assert main.run([*line, "--out", str(tmp_path / "o"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "  pairs      20 of 20 questions and 20 sources; 0 keywords" in said
    assert "  vectors    of 4 numbers; 0 texts to encode" in said
    assert not (tmp_path / "o").exists()
    assert main.run([*line, "--out", str(tmp_path / "o"), "--profile"]) == 0
    said = capsys.readouterr().out
    assert "    negatives" in said
    assert "  steps      read " in said
    assert "hard_negatives" in said
    assert main.run([*line, "--out", str(tmp_path / "o"), "--profile"]) == 0
    assert "where the time went" not in capsys.readouterr().out  # it was reused
    assert main.run([*line, "--out", str(tmp_path / "p"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found["steps"])) == "read"
    assert found["pairs"]["clusters"]["count"] == 2


def test_sections_have_every_option() -> None:
    """No option stands under a heading of its own making."""
    for module, _ in COMMANDS.values():
        names = {p.name for p in module.command.params if isinstance(p, click.Option)}
        assert set(module.command.sections) <= names
