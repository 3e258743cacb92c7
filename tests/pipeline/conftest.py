"""Inputs and datasets that several tests of one subject read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # those who ask for a fixture load what it needs
    from tests.scenes.embed_inputs import Records
    from tests.scenes.jasper import Content


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversations of `TALKS`, really built, in the splits of `SPLIT`. Do not write."""
    from tests.scenes.chats import SPLIT, TALKS, build_chats

    out = tmp_path_factory.mktemp("chat") / "shards"
    build_chats(out, TALKS, split=SPLIT)
    return out


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of embeddings of 8 KiB, so that a small input has several."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._SMALL_UNIT_BYTES", 8 << 10)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of embeddings are done in this process, where tests can change how."""
    from dataprep.pipeline.embeddings.kind import EmbeddingKind

    survey = EmbeddingKind.survey
    monkeypatch.setattr(
        EmbeddingKind,
        "survey",
        lambda self, options: replace(survey(self, options), in_process=True),
    )


@pytest.fixture(scope="module")
def records() -> Records:
    """400 rows to make embeddings of."""
    from tests.scenes.embed_inputs import make_records

    return make_records(400)


@pytest.fixture
def large(tmp_path: Path, records: Records) -> Path:
    """A .npz is one unit; a structured .npy of 400 records of 113 bytes is several."""
    from tests.scenes.embed_inputs import write_records

    return write_records(tmp_path, "x.npy", records)


@pytest.fixture(scope="module")
def one_child() -> Iterator[None]:
    """Foreign files are read in one child process for all tests of a module.

    Beside other threads, as those of parallel tests, each child would be a fresh interpreter.
    """
    from dataprep.pipeline.read.child_process import reading_apart

    with reading_apart():
        yield


@pytest.fixture
def content() -> Content:
    """What a directory in JASPER's layout holds."""
    from tests.scenes import jasper

    return jasper.make()
