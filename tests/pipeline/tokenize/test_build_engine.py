"""The engine is compared with the reference while units are done: nothing wrong is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.formats.errors import IncompatibleError, InputError
from dataprep.pipeline.tokenize import engines as engine
from dataprep.pipeline.tokenize.engines import TOKENIZERS
from dataprep.pipeline.tokens import prepare as tokens_prepare
from tests.scenes.corpora import STORIES, build_into, digests, shrink_units, write_large

DIFFERENCE = "gigatoken and tokenizers give different ids for 'text'"


@pytest.fixture
def inputs(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> dict[int, Path]:
    """Inputs by their number of units: of one that is done here, and of two for workers."""
    shrink_units(monkeypatch.setattr)
    return {1: STORIES, 2: write_large(tmp_path_factory.mktemp("two") / "large.jsonl", 0.8)}


@pytest.mark.parametrize("units", [1, 2])
def test_a_late_difference(
    units: int, inputs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that were begun with the wrong engine are thrown away and done with the reference."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_compare", lambda *_: DIFFERENCE)
        report = build_into(tmp_path / "out", inputs[units], workers=2)
        assert report.units == units
        assert report.manifest.tokenizer.engine == TOKENIZERS
        assert report.manifest.tokenizer.engine_reason == DIFFERENCE
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        again = build_into(tmp_path / "out", inputs[units], workers=2)
        assert again.reused
    build_into(tmp_path / "asked", inputs[units], engine="tokenizers")
    one, other = digests(tmp_path / "out"), digests(tmp_path / "asked")
    assert {name: one[name] for name in one if name.endswith(".bin")} == {
        name: other[name] for name in other if name.endswith(".bin")
    }


@pytest.mark.parametrize("units", [1, 2])
def test_a_late_difference_is_final_where_gigatoken_was_demanded(
    units: int, inputs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the build fails, and leaves nothing."""
    monkeypatch.setattr(engine, "_compare", lambda *_: DIFFERENCE)
    with pytest.raises(IncompatibleError, match="different ids"):
        build_into(tmp_path / "out", inputs[units], engine="gigatoken", workers=2)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_turns_out_not_to_load(
    inputs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine takes but nobody could decode with is an error, and leaves nothing."""

    def refuse(data: bytes, where: str | None) -> None:
        raise InputError("cannot be loaded", where=where or "built-in")

    monkeypatch.setattr(tokens_prepare, "load_tokenizer", refuse)
    with pytest.raises(InputError, match="cannot be loaded"):
        build_into(tmp_path / "out", inputs[2], workers=2)
    assert list(tmp_path.iterdir()) == []
