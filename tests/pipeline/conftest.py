"""Inputs and datasets that several tests of one subject read."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversations of `TALKS`, really built, in the splits of `SPLIT`. Do not write."""
    from tests.pipeline.chats import SPLIT, TALKS, build_chats

    out = tmp_path_factory.mktemp("chat") / "shards"
    build_chats(out, TALKS, split=SPLIT)
    return out
