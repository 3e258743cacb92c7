"""Builds of embeddings that were stopped go on, with what is whole and by the same encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.pipeline.execute.worker import Event
from dataprep.pipeline.run import _Build
from tests.scenes.embed_inputs import ALL_COLUMNS, build_vectors, digests, fake, lines


class _Stop(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """Stop builds in this process after so many units."""
    original, finished = _Build._on_event, []

    def on_event(self: _Build, event: Event) -> None:
        original(self, event)
        finished.extend([event.unit] if event.finished else [])
        if len(finished) == units:
            raise _Stop

    monkeypatch.setattr(_Build, "_on_event", on_event)


@pytest.mark.parametrize("damage", [None, "label.npy", "unit.json"])
def test_a_stopped_build_goes_on(
    tmp_path: Path, large: Path, small_units: None, here: None,
    monkeypatch: pytest.MonkeyPatch, damage: str | None,
) -> None:  # fmt: skip
    """Finished units are kept if they are whole, and done again if they are not."""
    build_vectors(tmp_path / "reference", large, columns=ALL_COLUMNS)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(_Stop):
            build_vectors(tmp_path / "out", large, columns=ALL_COLUMNS)
    assert not (tmp_path / "out").exists()
    if damage is not None:
        (path,) = tmp_path.glob(f".out.building-*/units/unit-000001/{damage}")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else b"x")
    report = build_vectors(tmp_path / "out", large, columns=ALL_COLUMNS)
    assert report.resumed_units == (3 if damage is None else 2)
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "reference", "x.npy"]


def test_encoding_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of finished units are not encoded again; the bytes are those of one run."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._TEXT_UNIT_BYTES", 500)
    path = lines(tmp_path)
    build_vectors(tmp_path / "reference", path, text_field="text", encoder=fake)
    seen: list[str] = []
    failing = [True]

    def fake_2(texts: list[str]) -> npt.NDArray[np.float64]:
        seen.extend(texts)
        if failing[0] and "text 60" in texts:
            raise RuntimeError("out of luck")
        return fake(texts)

    fake_2.__qualname__, fake_2.__module__ = fake.__qualname__, fake.__module__
    with pytest.raises(Exception, match="out of luck"):
        build_vectors(tmp_path / "out", path, text_field="text", encoder=fake_2)
    failing[0] = False
    seen.clear()
    report = build_vectors(tmp_path / "out", path, text_field="text", encoder=fake_2)
    assert report.resumed_units > 2
    assert "text 0" not in seen
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")


@pytest.mark.parametrize("factor", [2, 1 + 1e-6])
def test_another_encoder_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Units of an encoder that gave other vectors are not mixed with new ones; last bits are."""
    monkeypatch.setattr("dataprep.pipeline.embeddings.plan._TEXT_UNIT_BYTES", 500)
    path = lines(tmp_path)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(_Stop):
            build_vectors(tmp_path / "out", path, text_field="text", encoder=fake)

    def other(texts: list[str]) -> npt.NDArray[np.float64]:
        return fake(texts) * factor

    other.__qualname__, other.__module__ = fake.__qualname__, fake.__module__
    report = build_vectors(tmp_path / "out", path, text_field="text", encoder=other)
    assert report.resumed_units == (0 if factor == 2 else 2)
    unfinished = [note for note in report.notes if "unfinished" in note]
    assert len(unfinished) == (1 if factor == 2 else 0)
