"""Embeddings of texts: by any encoder that gives one vector for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.pipeline.encode import probe as encoder_probe
from dataprep.pipeline.encode.options import encoder_name
from tests.scenes.embed_inputs import (
    Records,
    arrays_of,
    build_vectors,
    digests,
    fake,
    lines,
    write_records,
)


def test_texts_are_encoded(tmp_path: Path) -> None:
    """In their order, so many at a time, beside other columns; equal texts share a split."""
    sizes = []

    def encoder(texts: list[str]) -> npt.NDArray[np.float64]:
        sizes.append(len(texts))
        return fake(texts)

    report = build_vectors(
        tmp_path / "out", lines(tmp_path), text_field="text", encoder=encoder, encode_batch=30,
        columns=["id"],
    )  # fmt: skip
    found = arrays_of(tmp_path / "out")
    np.testing.assert_array_equal(found["embedding"], fake([f"text {n}" for n in range(100)]))
    np.testing.assert_array_equal(found["id"], np.arange(100))
    assert sizes == [4, 30, 30, 30, 10]  # the first is the probe
    assert report.manifest.options["encoder"].endswith("test_texts_are_encoded.<locals>.encoder")


def called(make: Callable[[list[str]], Any], seen: list[int] | None = None) -> Any:
    """An encoder of one name for all, which notes how many texts it was given."""

    def encoder(texts: list[str]) -> Any:
        if seen is not None:
            seen.append(len(texts))
        return make(texts)

    return encoder


def test_an_encoder_is_known_by_its_vectors(tmp_path: Path) -> None:
    """Other vectors under the same name make another recipe; the last bits of a number do not."""
    path = lines(tmp_path)
    given: dict[str, Any] = {"text_field": "text"}
    first = build_vectors(tmp_path / "one", path, encoder=called(fake), **given)
    other = called(lambda texts: fake(texts) * 1.1)
    assert build_vectors(tmp_path / "two", path, encoder=other, **given).recipe_id != (
        first.recipe_id
    )
    before = digests(tmp_path / "one")
    with pytest.raises(UsageError, match="made by an encoder that gives other vectors") as caught:
        build_vectors(tmp_path / "one", path, encoder=other, **given)
    assert caught.value.code == "E_EXISTS"
    seen: list[int] = []
    for near in (called(lambda texts: fake(texts) * (1 + 1e-6), seen), fake):  # and another name
        again = build_vectors(tmp_path / "one", path, encoder=near, **given)
        assert (again.reused, again.recipe_id) == (True, first.recipe_id)
    assert seen == [4]
    assert digests(tmp_path / "one") == before
    replaced = build_vectors(tmp_path / "one", path, encoder=other, overwrite=True, **given)
    assert replaced.recipe_id != first.recipe_id


def test_an_encoder_that_cuts_texts_off_elsewhere_is_another(tmp_path: Path) -> None:
    """Models with the same weights and another greatest length of text."""
    path = lines(tmp_path)
    given: dict[str, Any] = {"text_field": "text"}

    def cut(words: int) -> Any:
        return called(lambda texts: fake([" ".join(text.split()[:words]) for text in texts]))

    for words in (128, 256, 512):
        out = tmp_path / str(words)
        build_vectors(out, path, encoder=cut(words), **given)
        assert build_vectors(out, path, encoder=cut(words), **given).reused
        with pytest.raises(UsageError, match="made by an encoder that gives other vectors"):
            build_vectors(out, path, encoder=cut(2 * words), **given)


def test_a_stored_probe_may_have_other_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a later version may choose them: it is compared by encoding those, and stays."""
    path = lines(tmp_path)
    given: dict[str, Any] = {"text_field": "text"}
    with monkeypatch.context() as patch:
        patch.setattr(encoder_probe, "TEXTS", ("one text", "another"))
        first = build_vectors(tmp_path / "out", path, encoder=called(fake), **given)
    assert len(first.manifest.options["encoder_probe"]) == 2
    seen: list[int] = []
    ways: list[dict[str, Any]] = [{}, {"overwrite": True}]
    for options in ways:
        again = build_vectors(
            tmp_path / "out", path, encoder=called(fake, seen), **given, **options
        )
        assert again.reused == (not options)
        assert again.recipe_id == first.recipe_id
    assert seen[:4] == [4, 2, 4, 2]
    with pytest.raises(UsageError, match="made by an encoder that gives other vectors"):
        build_vectors(
            tmp_path / "out", path, encoder=called(lambda texts: fake(texts) * 1.1), **given
        )


def test_the_probe_is_stored(tmp_path: Path) -> None:
    """As hex digits of float32, with its texts; vectors that are given have none."""
    found = build_vectors(tmp_path / "out", lines(tmp_path), text_field="text", encoder=fake)
    probe = found.manifest.options["encoder_probe"]
    vectors = [np.frombuffer(bytes.fromhex(one["vector"]), "<f4") for one in probe]
    np.testing.assert_array_equal(vectors, fake([one["text"] for one in probe]).astype("f4"))
    np.save(tmp_path / "x.npy", np.ones((3, 2), "f4"))
    plain = build_vectors(tmp_path / "plain", tmp_path / "x.npy")
    assert "encoder_probe" not in plain.manifest.options


def test_the_folder_of_an_encoder_is_not_stored(tmp_path: Path) -> None:
    """Its name is, for people."""
    folder = tmp_path / "model"
    folder.mkdir()
    assert encoder_name(str(folder)) == "model"


def test_a_probe_of_nan_is_refused(tmp_path: Path) -> None:
    """An encoder that gives NaN for a plain text is broken."""
    with pytest.raises(InputError, match="gave NaN or Inf for a plain text"):
        build_vectors(
            tmp_path / "out", lines(tmp_path), text_field="text",
            encoder=lambda texts: np.full((len(texts), 3), np.nan),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.arrow", "hf"])
def test_texts_of_any_input(tmp_path: Path, records: Records, name: str) -> None:
    """Whatever holds a text column."""
    path = write_records(tmp_path, name, records)
    build_vectors(tmp_path / "out", path, text_field="topic", encoder=fake)
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], fake(records.topic))


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (lambda texts: np.ones(3), r"gave float64 \[3\]"),
        (lambda texts: np.ones((len(texts) + 1, 3)), "for 4 texts"),
        (lambda texts: [["a"]], "gave <U1"),
        (lambda texts: np.ones((len(texts), 3 + (len(texts) > 4))), r"not floats \[100, 3\]"),
    ],
)
def test_encoders_that_are_refused(
    tmp_path: Path, encoder: Callable[[list[str]], Any], problem: str
) -> None:
    """One vector for each text, all of one width."""
    with pytest.raises(InputError, match=problem):
        build_vectors(tmp_path / "out", lines(tmp_path), text_field="text", encoder=encoder)


def test_bad_texts_and_vectors_of_texts(tmp_path: Path) -> None:
    """Empty texts, and texts for which an encoder gives no number, are rejects."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": ""}\n{"text": "nan"}\n{"text": "b"}\n')

    def encoder(texts: list[str]) -> npt.NDArray[np.float64]:
        assert "" not in texts
        return np.array([[np.nan if text == "nan" else 1.0, 2.0] for text in texts])

    report = build_vectors(
        tmp_path / "out", path, text_field="text", encoder=encoder, on_error="skip"
    )
    assert report.manifest.records.rejected == {"empty": 1, "not_finite": 1}
    np.testing.assert_array_equal(arrays_of(tmp_path / "out")["embedding"], [[1, 2]] * 2)


def test_a_model_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentence-transformers the error says what to install."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UsageError) as caught:
        build_vectors(tmp_path / "out", lines(tmp_path), text_field="text", encoder="some/model")
    assert str(caught.value) == (
        "error[E_MISSING_LIBRARY] --encoder: 'some/model' needs sentence-transformers, which is "
        "not installed. Install it: pip install 'dataprep-shards[embed]'."
    )
