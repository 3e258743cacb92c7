"""Builds of pairs that are interrupted, repeated, or made with another encoder."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import StorageError, UsageError
from dataprep.pipeline.build import build_pairs
from dataprep.pipeline.encode.options import Encoder
from dataprep.pipeline.encode.probe import TEXTS
from dataprep.pipeline.pairs import kind as pair_kind
from dataprep.pipeline.pairs import negatives as pair_negatives
from dataprep.pipeline.pairs import search as pair_search
from dataprep.pipeline.pairs import vectors as pair_vectors
from dataprep.pipeline.pairs.table import pair_texts
from dataprep.pipeline.staging.directory import Staging
from tests.scenes.pair_builds import (
    Array,
    build,
    bytes_of,
    options_for,
    vectors_of,
    write_rows,
)


def test_same_bytes_for_any_workers_and_after_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each thing that is kept, the build goes on, and nothing shows."""
    build(options_for(tmp_path, "whole", workers=1))
    monkeypatch.setattr(pair_vectors, "_CHECKPOINT", 9)
    calls: list[int] = []

    def failing(texts: list[str]) -> Array:
        if texts == list(TEXTS):
            return vectors_of(texts)
        calls.append(len(texts))
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return vectors_of(texts)

    options = options_for(tmp_path, "again", workers=4)
    for _ in range(20):
        try:
            report = build_pairs(options, encoder=failing)
            break
        except KeyboardInterrupt:
            assert len(list(tmp_path.glob(".again.building-*"))) == 1
    assert sum(calls) <= 74 + 9 * len(calls) // 3  # only what was lost is made again
    assert report.content["resumed"] > 0
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "again")
    assert not list(tmp_path.glob(".*"))


def test_negatives_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while writing costs neither vectors nor negatives; a damaged file is not used."""
    options = options_for(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pair_kind, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(options)
    kept = next(tmp_path.glob(".out.building-*/units/unit-pairs"))
    assert len(list(kept.glob("*.npy"))) == 4
    assert not list(tmp_path.glob(".out.building-*/.tmp-*"))  # the beginning of a dataset
    damaged = kept / "keyword-000000000000.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    monkeypatch.setattr(pair_negatives, "mine", lambda *_, **__: 1 / 0)
    assert build(options).content["resumed"] == 3


def test_what_a_killed_build_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that had published, and of one that was just keeping something."""
    options = options_for(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "discard", lambda _: None)
        build(options)
    assert list(tmp_path.glob(".out.building-*"))
    assert build(options).reused
    assert not list(tmp_path.glob(".*"))
    other = options_for(tmp_path, "other")
    with monkeypatch.context() as patch:
        patch.setattr(pair_kind, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(other)
    gone = subprocess.Popen(["true"])
    gone.wait()
    kept = next(tmp_path.glob(".other.building-*/units/unit-pairs"))
    (kept / f".tmp-{os.uname().nodename}-{gone.pid}-ab").write_text("half of something")
    (kept / f".tmp-elsewhere-{gone.pid}-ab").write_text("of somebody else")
    with monkeypatch.context() as patch:
        patch.setattr(pair_kind, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(other)
    assert [path.name for path in kept.glob(".*")] == [f".tmp-elsewhere-{gone.pid}-ab"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the first vectors can be kept, the build takes everything back."""
    options = options_for(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(StorageError) as caught:
            build(options)
    assert caught.value.code == "E_NOSPACE"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_same_command_again_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is reported; another one is refused, and replaced when asked for."""
    options = options_for(tmp_path)
    first = build(options)
    again = build(options)
    assert (again.reused, again.recipe_id) == (True, first.recipe_id)
    with pytest.raises(UsageError, match="different n_neg"):
        build(options_for(tmp_path, n_neg=3))
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="different search"):
        patch.setattr(pair_search, "find_spec", lambda _: True)
        build(options_for(tmp_path, search="faiss"))
    before = bytes_of(tmp_path / "out")
    other = build(options_for(tmp_path, n_neg=3, overwrite=True))
    assert other.recipe_id != first.recipe_id
    back = build(options_for(tmp_path, overwrite=True))
    assert back.recipe_id == first.recipe_id
    assert bytes_of(tmp_path / "out") == before
    write_rows(tmp_path / "rows.jsonl", relevance=0.5)
    with pytest.raises(UsageError, match="made from other inputs"):
        build(options)


def test_an_encoder_is_known_by_its_vectors(tmp_path: Path) -> None:
    """Other vectors under the same name make another recipe; the last bits of a number do not."""
    one = build(options_for(tmp_path, "one"))

    def other(texts: list[str]) -> Array:
        return vectors_of(texts) * 1.1

    assert build_pairs(options_for(tmp_path, "two"), encoder=other).recipe_id != one.recipe_id
    before = bytes_of(tmp_path / "one")
    with pytest.raises(UsageError, match="made by an encoder that gives other vectors") as caught:
        build_pairs(options_for(tmp_path, "one"), encoder=other)
    assert caught.value.code == "E_EXISTS"
    seen: list[int] = []

    def near(texts: list[str]) -> Array:
        seen.append(len(texts))
        return vectors_of(texts) * np.float32(1 + 1e-6)

    for name in ("letters", "another name"):
        again = build_pairs(options_for(tmp_path, "one", encoder=name), encoder=near)
        assert (again.reused, again.recipe_id) == (True, one.recipe_id)
    assert seen == [4, 4]
    assert bytes_of(tmp_path / "one") == before


def test_names_are_for_people(tmp_path: Path) -> None:
    """Renamed inputs, other embedding files of the same content, --on-error: one recipe, reused."""
    options = options_for(tmp_path)
    given: dict[str, str] = {}
    for what, texts in pair_texts(options).items():
        np.save(tmp_path / f"{what}.npy", vectors_of(texts))
        given[f"{what}_embs"] = str(tmp_path / f"{what}.npy")
    first = build_pairs(options_for(tmp_path, encoder=None, **given))
    (tmp_path / "other").mkdir()
    for file in [*tmp_path.glob("*.npy"), tmp_path / "rows.jsonl"]:
        file.rename(tmp_path / "other" / f"x-{file.name}")
    moved: dict[str, Any] = {
        name: str(tmp_path / "other" / f"x-{Path(file).name}") for name, file in given.items()
    }
    moved |= {"encoder": None, "input": str(tmp_path / "other" / "x-rows.jsonl")}
    for out, more in (("out", {}), ("out", {"on_error": "skip"}), ("new", {})):
        report = build_pairs(options_for(tmp_path, out, **moved, **more))
        assert (report.reused, report.recipe_id) == (out == "out", first.recipe_id)
    bad = tmp_path / "other" / "x-rows.jsonl"
    bad.write_text(bad.read_text() + "no\n")
    build_pairs(options_for(tmp_path, "bad", **moved, on_error="skip"))
    assert build_pairs(options_for(tmp_path, "bad", **moved, on_error="skip")).reused
    with pytest.raises(UsageError, match="different on_error"):
        build_pairs(options_for(tmp_path, "bad", **moved))


def test_an_encoder_that_cuts_texts_off_elsewhere_is_another(tmp_path: Path) -> None:
    """Also one that gives equal vectors for every text of the dataset."""

    def cut(words: int) -> Encoder:
        return lambda texts: vectors_of([" ".join(text.split()[:words]) for text in texts])

    first = build_pairs(options_for(tmp_path), encoder=cut(128))
    assert build_pairs(options_for(tmp_path), encoder=cut(128)).recipe_id == first.recipe_id
    with pytest.raises(UsageError, match="made by an encoder that gives other vectors"):
        build_pairs(options_for(tmp_path), encoder=cut(256))


@pytest.mark.parametrize("factor", [1.1, 1 + 1e-6])
def test_another_encoder_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Vectors that were kept are of one encoder; last bits make no other."""
    options = options_for(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pair_kind, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(options)
    report = build_pairs(options, encoder=lambda texts: vectors_of(texts) * np.float32(factor))
    assert report.content["resumed"] == (0 if factor > 1.01 else 4)
    assert any("unfinished" in note for note in report.notes) == (factor > 1.01)


def test_the_folder_of_an_encoder_is_a_name(tmp_path: Path) -> None:
    """Its place and its other files change nothing, and no path is stored."""
    for place in ("a", "b"):
        folder = tmp_path / place / "model"
        folder.mkdir(parents=True)
        (folder / "README.md").write_text(place)
        report = build(options_for(tmp_path, encoder=str(folder)))
        assert report.reused == (place == "b")
    assert report.manifest.options["encoder"] == "model"
    assert str(tmp_path) not in (tmp_path / "out" / "config.json").read_text()


def test_an_encoder_without_work_is_not_asked(tmp_path: Path) -> None:
    """Where every text has a vector there is no probe, whatever encoder is named."""
    options = options_for(tmp_path, keywords="ignore")
    given = {"encoder": "letters"}
    for what, texts in pair_texts(options).items():
        if texts:
            np.save(tmp_path / f"{what}.npy", vectors_of(texts))
            given[f"{what}_embs"] = str(tmp_path / f"{what}.npy")
    for reused in (False, True):
        report = build_pairs(
            options_for(tmp_path, keywords="ignore", **given),
            encoder=lambda _: pytest.fail("asked"),
        )
        assert report.reused == reused
    assert "encoder_probe" not in report.manifest.options
