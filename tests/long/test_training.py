"""A small GPT that is stopped and goes on has, bit by bit, the losses of one that was not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.scenes.corpora import build_into
from tests.support import REPOSITORY

pytestmark = pytest.mark.long


def test_twenty_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty in one go, and ten and ten; in the middle of an epoch."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shards = tmp_path / "shards"
    build_into(shards, REPOSITORY / "data_fixtures" / "stories.jsonl", tokenizer=None)
    main = runpy.run_path(str(REPOSITORY / "examples" / "train_gpt.py"))["main"]
    options = [str(shards), "--seq-len", "32", "--checkpoint"]
    whole = main([*options, str(tmp_path / "whole.pt"), "--steps", "20"])
    first = main([*options, str(tmp_path / "part.pt"), "--steps", "10"])
    last = main([*options, str(tmp_path / "part.pt"), "--steps", "10"])
    assert len(whole) == 20
    assert [loss.hex() for loss in first + last] == [loss.hex() for loss in whole]
