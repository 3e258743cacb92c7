"""Tokenizers that fail, and signals that come while one loads, as a person meets them."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.read.dataset import open_dataset
from tests.scenes.runner import dataprep, environment, run_here
from tests.scenes.verified import reseal
from tests.support import REPOSITORY

STORIES = REPOSITORY / "data_fixtures" / "stories.jsonl"
BUILT_IN = REPOSITORY / "pipeline" / "tokenize" / "assets" / "default_tokenizer.json"

SIGNALLED = """
import os, sys
import tokenizers

number = int(sys.argv.pop())

class Loading:
    @staticmethod
    def from_buffer(data):
        os.kill(os.getpid(), number)
        return "not reached"

tokenizers.Tokenizer = Loading
from dataprep.cli.main import main
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_tokenizer_loads(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """It ends the build as at any other time, and the same command goes on afterwards."""
    words = ["build", "--input", str(STORIES), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, *words, str(int(number))],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert "a build goes on where it stopped" in done.stderr
    again = dataprep(*words)
    assert again.returncode == 0, again.stderr


def endless(path: Path) -> Path:
    """A tokenizer whose split pattern takes for ever on some texts."""
    config = json.loads(BUILT_IN.read_bytes())
    config["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(a+)+$"}
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("words", [["--workers", "1"], ["--dry-run"], ["--kind", "chat"]])
def test_a_pattern_that_does_not_end(words: list[str], tmp_path: Path) -> None:
    """The library's panic is one line with the file and the text, and no backtrace."""
    tokenizer = endless(tmp_path / "endless.json")
    talk = [{"role": "user", "content": "a" * 60 + "!"}, {"role": "assistant", "content": "b"}]
    record = {"messages": talk} if "chat" in words else {"text": "a" * 60 + "!"}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    if "chat" in words:
        words = [*words, "--template", "chatml"]
    done = dataprep(
        "build", "--input", tmp_path / "in.jsonl", "--out", tmp_path / "out", "--tokenizer",
        tokenizer, *words, env=environment(RUST_BACKTRACE="1"),
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    assert f"E_TOKENIZER] {tokenizer}: the tokenizers library fails on '" in done.stderr
    assert "retry-limit" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["tokens", "chat"])
def test_a_pattern_that_does_not_end_beyond_the_sample(kind: str, tmp_path: Path) -> None:
    """The error of a unit names the tokenizer's file as well."""
    tokenizer = endless(tmp_path / "endless.json")
    texts = [*("some words " * 20 for _ in range(3000)), "a" * 60 + "!"]
    talks: list[dict[str, Any]] = [{"text": text} for text in texts]
    if kind == "chat":
        answer = {"role": "assistant", "content": "b"}
        talks = [{"messages": [{"role": "user", "content": text}, answer]} for text in texts]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, talks)))
    done = dataprep(
        "build", "--kind", kind, "--input", tmp_path / "in.jsonl", "--out", tmp_path / "out",
        "--tokenizer", tokenizer, *(["--template", "chatml"] if kind == "chat" else []),
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    assert f"E_TOKENIZER] {tokenizer}: the tokenizers library fails on '" in done.stderr


def damaged(path: Path, change: Any) -> Path:
    """A dataset with another tokenizer.json, of which config.json has the hash."""
    shutil.copytree(REPOSITORY / "data_fixtures" / "golden" / "v1" / "narrow", path)
    config = json.loads((path / "tokenizer.json").read_bytes())
    change(config)
    data = json.dumps(config).encode()
    (path / "tokenizer.json").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    reseal(path, lambda manifest: msgspec.structs.replace(
        manifest, tokenizer=msgspec.structs.replace(manifest.tokenizer, sha256=digest),
    ))  # fmt: skip
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("model"),
        lambda config: config["model"].update(type="Unheard"),
        lambda config: config.update(decoder={"type": "Replace", "pattern": 1, "content": ""}),
    ],
)
def test_a_tokenizer_that_does_not_load(
    change: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dataset whose tokenizer.json is of no use says so, with the file and a remedy."""
    path = damaged(tmp_path / "shards", change)
    with pytest.raises(IncompatibleError, match="E_TOKENIZER") as caught:
        open_dataset(path).split("train").text(0)
    assert caught.value.where == str(path / "tokenizer.json")
    done = run_here(capsys, "inspect", path, "--random", "1")
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert "build again with --overwrite" in done.stderr
