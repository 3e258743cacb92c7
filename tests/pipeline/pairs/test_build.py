"""Whole builds of pairs: what stands in the dataset, what never changes it, what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.formats.errors import DataprepError, InputError, StorageError, UsageError
from dataprep.formats.manifest.curriculum import VARIANT_ARRAYS
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.encode.options import Encoder
from dataprep.pipeline.encode.probe import TEXTS
from dataprep.pipeline.pairs import assemble as pair_assemble
from dataprep.pipeline.pairs import build as pair_build
from dataprep.pipeline.pairs import negatives as pair_negatives
from dataprep.pipeline.pairs import search as pair_search
from dataprep.pipeline.pairs import vectors as pair_vectors
from dataprep.pipeline.pairs.build import PairReport, build_pairs
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.pairs.steps import StepProgress
from dataprep.pipeline.pairs.table import pair_texts
from dataprep.pipeline.staging.directory import Staging

DIM = 6
Array = npt.NDArray[Any]


def vectors_of(texts: list[str]) -> Array:
    """A vector that depends on nothing but the text."""
    rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIM], np.uint8) for text in texts]
    return np.array(rows, np.float32) / 128 - 1.003


def write_rows(path: Path, **change: Any) -> Path:
    """60 pairs of 40 questions and 30 sources, with keywords and five clusters."""
    rows = [
        {
            "question": f"question {n % 40}", "source": f"source {n * 7 % 30}",
            "keywords": [f"Word {n % 4}", f"word {n % 3}"], "cluster": f"c{n % 40 % 5}",
            "relevance": n / 60, "answer": f"answer {n}", **change,
        }
        for n in range(60)
    ]  # fmt: skip
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows]
    path.write_text("".join(lines))
    return path


def options_for(folder: Path, out: str = "out", **given: Any) -> PairOptions:
    """Options of the usual build in `folder`."""
    source = folder / "rows.jsonl"
    if not source.exists():
        write_rows(source)
    usual: dict[str, Any] = {"input": source, "out": folder / out, "encoder": "letters"}
    return PairOptions(**{**usual, **given})


def build(options: PairOptions, **given: Any) -> PairReport:
    """Build with the encoder above."""
    return build_pairs(options, encoder=vectors_of, **given)


def arrays_of(path: Path) -> dict[str, Array]:
    """Everything in a dataset."""
    with open_arrays(path) as data:
        found = {name: array.read(0, array.rows).copy() for name, array in data.arrays.items()}
        found |= {name: split.rows(np.arange(len(split))) for name, split in data.splits.items()}
        return found


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*") if file.is_file()
    }  # fmt: skip


def test_item_115_a_whole_build(tmp_path: Path) -> None:
    """Item 115: every array with its shape and type, config, steps with their time."""
    seen: list[StepProgress] = []
    options = options_for(tmp_path, inspection=True, curriculum="linear")
    report = build(options, progress=seen.append)
    steps = ["read", "embed", "cluster", "split", "negatives", "write", "publish"]
    assert list(report.steps) == steps
    assert list(dict.fromkeys(one.step for one in seen)) == steps
    assert all(seconds >= 0 for seconds in report.steps.values())
    found = arrays_of(tmp_path / "out")
    pairs = report.manifest.rows
    shapes = {
        "question_embs": ("<f4", (40, DIM)), "source_embs": ("<f4", (30, DIM)),
        "keyword_embs": ("<f4", (4, DIM)), "centroid_embs": ("<f4", (5, DIM)),
        "pair_index": ("<i8", (pairs, 2)), "pair_cluster_id": ("<i8", (pairs,)),
        "pair_relevance": ("<f4", (pairs,)), "pair_keyword_offsets": ("<i8", (pairs + 1,)),
        "pair_keyword_ids": ("<i8", found["pair_keyword_ids"].shape),
        "hard_negatives": ("<i8", (pairs, 12)), "negative_tiers": ("<i8", (pairs, 12)),
        "provenance": ("<u8", (pairs, 2)), "centroid_distances": ("<f4", (pairs,)),
        **{name: ("<f4", (pairs, DIM)) for name in VARIANT_ARRAYS if name},
    }  # fmt: skip
    for name, expected in shapes.items():
        assert (found[name].dtype.str, found[name].shape) == expected
    described = report.manifest.pairs or {}
    assert described["curriculum"]["mode"] == "linear"
    assert described["clusters"]["names"] == ["c0", "c1", "c2", "c3", "c4"]
    assert (described["dim"], described["negatives"]["count"]) == (DIM, 12)
    assert sum(described["negatives"]["tiers_found"]) == 12 * pairs
    lines = (tmp_path / "out" / "pairs.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert (first["question"], first["cluster"], len(lines)) == ("question 0", "c0", pairs)
    assert json.dumps(report.as_dict())


def test_items_111_and_113_arrays_fit_together(tmp_path: Path) -> None:
    """Items 111, 113: the arrays of a build, against the rows and one pair at a time."""
    build(options_for(tmp_path))
    found = arrays_of(tmp_path / "out")
    texts = pair_texts(options_for(tmp_path))
    np.testing.assert_array_equal(found["source_embs"], vectors_of(texts["source"]))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    positives = {(row["question"], row["source"]) for row in rows}
    for pair, (question, source) in enumerate(found["pair_index"].tolist()):
        row = rows[[(r["question"], r["source"]) for r in rows].index(
            (texts["question"][question], texts["source"][source])
        )]  # fmt: skip
        cluster = int(found["pair_cluster_id"][pair])
        assert f"c{cluster}" == row["cluster"]
        part = found["pair_keyword_offsets"][pair : pair + 2]
        ids = found["pair_keyword_ids"][part[0] : part[1]]
        assert {texts["keyword"][n] for n in ids} >= {word.lower() for word in row["keywords"]}
        members = {int(r["question"].split()[1]) for r in rows if r["cluster"] == row["cluster"]}
        centroid = vectors_of([f"question {n}" for n in sorted(members)]).mean(axis=0)
        np.testing.assert_allclose(found["centroid_embs"][cluster], centroid, atol=1e-6)
        residual = found["question_embs"][question] - found["centroid_embs"][cluster]
        np.testing.assert_array_equal(found["steering_residual"][pair], residual)
        negatives = {(texts["question"][question], texts["source"][n]) for n in
                     found["hard_negatives"][pair]}  # fmt: skip
        assert len(negatives) == 12
        assert not negatives & positives


def test_item_114_no_question_in_two_splits(tmp_path: Path) -> None:
    """Item 114: by question, complete, without a test split, every cluster in train and val."""
    build(options_for(tmp_path, split="train=0.7,val=0.3"))
    found = arrays_of(tmp_path / "out")
    sides = [set(found["pair_index"][found[name], 0].tolist()) for name in ("train", "val")]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
    for name in ("train", "val"):
        assert set(found["pair_cluster_id"][found[name]].tolist()) == set(range(5))
    assert sorted([*found["train"], *found["val"]]) == list(range(len(found["pair_index"])))


def test_item_114_splits_given_by_files_and_by_a_column(tmp_path: Path) -> None:
    """Item 114: source numbers run on over files, a leaking question is named, test is optional."""
    lines = write_rows(tmp_path / "rows.jsonl").read_text().splitlines()
    val = [line for line in lines if int(json.loads(line)["question"].split()[1]) >= 30]
    train = [line for line in lines if line not in val]
    for name, part in (("train", train), ("val", val)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part))
    files = [f"{name}={tmp_path / name}.jsonl" for name in ("train", "val")]
    report = build(options_for(tmp_path, input=(), split_input=files))
    assert set(report.manifest.splits) == {"train", "val"}
    assert len(arrays_of(tmp_path / "out")["source_embs"]) == 30
    (tmp_path / "val.jsonl").write_text("\n".join([*val, train[3]]))
    with pytest.raises(InputError, match="'question 3' is in train and in val"):
        build(options_for(tmp_path, "two", input=(), split_input=files))
    both = [
        json.dumps({**json.loads(line), "split": "val" if line in val else "train"})
        for line in lines
    ]
    (tmp_path / "column.jsonl").write_text("\n".join(both))
    given = build(options_for(tmp_path, "three", input=tmp_path / "column.jsonl"))
    assert set(given.manifest.splits) == {"train", "val"}
    ratios = build(options_for(tmp_path, "four", input=tmp_path / "column.jsonl", split="a=1.0"))
    assert set(ratios.manifest.splits) == {"a"}
    assert "the column of splits was not used: --split says ratios" in ratios.notes
    with pytest.raises(InputError, match="no input has a column of splits"):
        build(options_for(tmp_path, "five", split="column"))


def test_the_split_of_each_table_is_part_of_the_recipe(tmp_path: Path) -> None:
    """Folders that divide the same tables otherwise are another dataset."""
    lines = write_rows(tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    questions = [int(json.loads(line)["question"].split()[1]) for line in lines]
    for folder, names in {"ab": "01", "c": "2", "a": "0", "bc": "12"}.items():
        (tmp_path / folder).mkdir()
        for n in names:
            part = [line for line, q in zip(lines, questions, strict=True) if q % 3 == int(n)]
            (tmp_path / folder / f"{n}.jsonl").write_text("".join(part))
    first, second = (
        {"input": (), "split_input": [f"train={tmp_path / train}", f"val={tmp_path / val}"]}
        for train, val in (("ab", "c"), ("a", "bc"))
    )
    one = build(options_for(tmp_path, "one", **first))
    assert one.manifest.options["split_input"] == ["train", "train", "val"]
    two = build(options_for(tmp_path, "two", **second))
    assert one.recipe_id != two.recipe_id
    with pytest.raises(UsageError, match="different split_input"):
        build(options_for(tmp_path, "one", **second))
    assert build(options_for(tmp_path, "one", **first)).reused


@pytest.mark.parametrize("clusters", ["none", "auto"])
def test_item_112_without_keywords_and_clusters(tmp_path: Path, clusters: str) -> None:
    """Item 112: steering of what is missing is zero, negatives come from tiers 3 and 4."""
    source = write_rows(tmp_path / "bare.jsonl", keywords=None, cluster=None)
    build(options_for(tmp_path, input=source, clusters=clusters))
    found = arrays_of(tmp_path / "out")
    assert found["keyword_embs"].shape == found["centroid_embs"].shape == (0, DIM)
    assert set(found["pair_cluster_id"].tolist()) == {-1}
    assert not any(found[name].any() for name in VARIANT_ARRAYS if name)
    assert set(found["centroid_distances"].tolist()) == {1.0}
    assert found["negative_tiers"].tolist()[0] == [3] * 9 + [4] * 3


def test_item_111_clusters_by_keywords_from_a_file(tmp_path: Path) -> None:
    """Item 111: matched whatever their case; the majority; centroids are means of keywords."""
    table = tmp_path / "clusters.json"
    table.write_text(json.dumps({"WORD 0": 5, "Word 1": 40, "word 2": 40, "word 9": 7}))
    source = write_rows(tmp_path / "bare.jsonl", cluster=None)
    options = options_for(tmp_path, input=source, keyword_clusters=str(table))
    report = build(options)
    found = arrays_of(tmp_path / "out")
    clusters = (report.manifest.pairs or {})["clusters"]
    assert (clusters["by"], clusters["names"]) == ("keywords", ["5", "7", "40"])
    words = pair_texts(options)["keyword"]
    expected = {"word 0": 0, "word 1": 2, "word 2": 2}
    for pair in range(len(found["pair_index"])):
        part = found["pair_keyword_offsets"][pair : pair + 2]
        mine = [words[n] for n in found["pair_keyword_ids"][part[0] : part[1]]]
        votes = [expected[word] for word in mine if word in expected]
        best = min(set(votes), key=lambda c: (-votes.count(c), c)) if votes else -1
        assert found["pair_cluster_id"][pair] == best
    np.testing.assert_allclose(
        found["centroid_embs"][2], vectors_of(["word 1", "word 2"]).mean(axis=0), atol=1e-6
    )
    assert not found["centroid_embs"][1].any()


def test_item_112_given_embeddings_equal_those_of_an_encoder(tmp_path: Path) -> None:
    """Item 112: .npy in the order of `pair_texts` gives the dataset that the encoder gives."""
    build(options_for(tmp_path, "made"))
    given: dict[str, Any] = {"encoder": None}
    for what, texts in pair_texts(options_for(tmp_path)).items():
        np.save(tmp_path / f"{what}.npy", vectors_of(texts))
        given[f"{what}_embs"] = str(tmp_path / f"{what}.npy")
    report = build_pairs(options_for(tmp_path, "given", **given))
    made, read = arrays_of(tmp_path / "made"), arrays_of(tmp_path / "given")
    for name, array in made.items():
        np.testing.assert_array_equal(array, read[name])
    assert [entry.name for entry in report.manifest.inputs][1:] == [
        "question.npy", "source.npy", "keyword.npy",
    ]  # fmt: skip
    np.save(tmp_path / "keyword.npy", np.ones((4, DIM + 1)))
    with pytest.raises(InputError, match=f"keywords have {DIM + 1} numbers, .* {DIM}"):
        build_pairs(options_for(tmp_path, "wide", **given))
    given["keyword_embs"] = None
    with pytest.raises(UsageError, match="4 distinct keywords and nothing that makes vectors"):
        build_pairs(options_for(tmp_path, "none", **given))
    assert not list(tmp_path.glob(".*"))
    ignored = build_pairs(options_for(tmp_path, "ignored", **given, keywords="ignore"))
    assert (ignored.manifest.pairs or {})["keywords"] == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_in_length_one(tmp_path: Path, dtype: str) -> None:
    """The arrays say so, and steering is that of the vectors as they are stored."""
    report = build(options_for(tmp_path, normalise=True, dtype=dtype))
    found = arrays_of(tmp_path / "out")
    assert found["question_embs"].dtype == np.dtype(dtype)
    lengths = np.linalg.norm(found["question_embs"].astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-3)
    assert report.manifest.arrays["question_embs"].unit
    assert not report.manifest.arrays["centroid_embs"].unit
    index, clusters = found["pair_index"], found["pair_cluster_id"]
    difference = found["question_embs"][index[:, 0]].astype(np.float32) - found["centroid_embs"][
        clusters
    ].astype(np.float32)
    np.testing.assert_array_equal(found["steering_residual"], difference)


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
    assert report.resumed > 0
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "again")
    assert not list(tmp_path.glob(".*"))


def test_negatives_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while writing costs neither vectors nor negatives; a damaged file is not used."""
    options = options_for(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pair_build, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(options)
    kept = next(tmp_path.glob(".out.building-*/units/unit-pairs"))
    assert len(list(kept.glob("*.npy"))) == 4
    damaged = kept / "keyword-000000000000.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    monkeypatch.setattr(pair_negatives, "mine", lambda *_, **__: 1 / 0)
    assert build(options).resumed == 3


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
        patch.setattr(pair_build, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(other)
    gone = subprocess.Popen(["true"])
    gone.wait()
    kept = next(tmp_path.glob(".other.building-*/units/unit-pairs"))
    (kept / f".tmp-{os.uname().nodename}-{gone.pid}-ab").write_text("half of something")
    (kept / f".tmp-elsewhere-{gone.pid}-ab").write_text("of somebody else")
    with monkeypatch.context() as patch:
        patch.setattr(pair_build, "write_pairs", lambda *_: 1 / 0)
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
        patch.setattr(pair_build, "write_pairs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(options)
    report = build_pairs(options, encoder=lambda texts: vectors_of(texts) * np.float32(factor))
    assert report.resumed == (0 if factor > 1.01 else 4)
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


def test_places_that_are_taken(tmp_path: Path) -> None:
    """Files of others are never replaced, and nothing is built inside a dataset."""
    options = options_for(tmp_path)
    build(options)
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match=r"did not make \('mine.txt'\)"):
        build(options_for(tmp_path, n_neg=2, overwrite=True))
    with pytest.raises(UsageError, match="lies inside the dataset"):
        build(options_for(tmp_path, "out/inner"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("folder", "file"):
        with pytest.raises(UsageError, match=r"is not a dataset|is a file"):
            build(options_for(tmp_path, name, overwrite=True))


def test_rejected_rows_are_listed(tmp_path: Path) -> None:
    """rejects.jsonl and the counts agree."""
    source = write_rows(tmp_path / "rows.jsonl")
    source.write_text(source.read_text() + '{"question": "", "source": "s"}\n\nno\n')
    report = build(options_for(tmp_path, on_error="skip"))
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["empty_question", "bad_json"]
    assert report.manifest.records.rejected == {"bad_json": 1, "empty_question": 1}
    assert report.manifest.records.read == 62
    assert report.manifest.records.blank_lines == 1
    assert [json.loads(line)["record"] for line in lines] == [60, 61]
    assert "2 rows were rejected: see rejects.jsonl" in report.notes


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"n_neg": 0}, "--n-neg: must be at least 1"),
    ({"dim": 0}, "--dim: must be at least 1"),
    ({"dim": True}, "--dim: must be "),
    ({"tier_proportions": "1,0,0"}, "must be four numbers"),
    ({"tier_proportions": "1,1,0,0"}, "must add up to 1, got 2"),
    ({"split": "train=0.5"}, "ratios must add up to 1"),
    ({"curriculum": "stepwise"}, "curriculum.mode: must be one of fixed, linear, cosine"),
    ({"curriculum": '{"mode": "linear", "warmup_epochs": 3}'}, "unknown field `warmup_epochs`"),
    ({"curriculum": '{"probabilities": [1, 1, 0, 0]}'}, "must add up to 1, got 2"),
    ({"curriculum": '{"zero_end": 1.5}'}, "must be from 0 to 1"),
    ({"clusters": "fuzzy"}, "must be one of auto, column"),
    ({"clusters": "none", "n_clusters": 3}, "means nothing with --clusters none"),
    ({"encoder": None}, "give the embeddings, or an --encoder"),
    ({"columns": "x=y"}, "does not say which column is what"),
    ({"max_rejects": 3}, "only means something with --on-error skip"),
    ({"input": ()}, "name files with --input"),
    ({"seed": 1 << 64}, "must be below"),
]


@pytest.mark.parametrize(("change", "problem"), BAD_OPTIONS)
def test_item_115_mistakes_are_found_before_any_work(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """Item 115: when the options are made; no file is read."""
    with pytest.raises(UsageError, match=problem):
        PairOptions(**{"input": "none", "out": tmp_path, "encoder": "e", **change})


@pytest.mark.parametrize(
    ("library", "change", "remedy"),
    [
        ("faiss", {"search": "faiss"}, "pip install faiss-cpu, or use --search exact"),
        ("sklearn", {"clusters": "kmeans"}, r"pip install 'dataprep-shards\[pairs]'"),
        ("sentence_transformers", {}, r"pip install 'dataprep-shards\[embed]'"),
    ],
)
def test_item_115_missing_libraries_are_named_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    change: dict[str, Any],
    remedy: str,
) -> None:
    """Item 115: before any file is read, with what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    encoder = None if library == "sentence_transformers" else vectors_of
    with pytest.raises(UsageError, match=remedy):
        build_pairs(options_for(tmp_path, input="none", **change), encoder=encoder)


def test_search_by_faiss_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto: above a million sources, if it is there; the choice is stored, and so in the id."""
    spec = {"there": True}
    monkeypatch.setattr(pair_search, "find_spec", lambda _: spec["there"] or None)
    million = pair_search.FAISS_SOURCES
    choose = pair_search.choose_search
    assert [choose("auto", million), choose("auto", million + 1)] == ["exact", "faiss"]
    assert [choose("exact", million + 1), choose("faiss", 3)] == ["exact", "faiss"]
    spec["there"] = False
    assert choose("auto", million + 1) == "exact"


def test_item_115_too_few_sources_before_embedding(tmp_path: Path) -> None:
    """Item 115: the question is named and the encoder never asked."""
    with pytest.raises(InputError, match=r"leave 2[0-9] for 100 negatives"):
        build_pairs(options_for(tmp_path, n_neg=100), encoder=lambda _: pytest.fail("asked"))


@pytest.mark.parametrize(
    ("name", "spoil", "problem"),
    [
        ("negatives", lambda a: a.__setitem__((3, 1), a[3, 0]), "row 3: repeat a source"),
        ("negatives", lambda a: a.__setitem__((2, 0), 30), "row 24: are not all from 0 to 29"),
        ("negatives", lambda a: a.__setitem__((2, 0), -1), "hard_negatives row 24"),
        ("tiers", lambda a: a.__setitem__((5, 0), 3), "row 5: do not say what"),
        ("tiers", lambda a: a.__setitem__((5, 0), 5), "are not all from 1 to 4"),
    ],
)
def test_item_115_the_last_checks_see_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any, problem: str
) -> None:
    """Item 115: a spoiled array is named with its row, and nothing is published."""
    real = pair_negatives.mine_pairs

    def spoiled(*given: Any, **more: Any) -> tuple[Array, Array]:
        negatives, tiers = (array.copy() for array in real(*given, **more))
        spoil(negatives if name == "negatives" else tiers)
        return negatives, tiers

    monkeypatch.setattr(pair_build, "mine_pairs", spoiled)
    with pytest.raises(DataprepError, match=problem) as caught:
        build(options_for(tmp_path))
    assert caught.value.code == "E_PAIRS"
    assert not (tmp_path / "out").exists()


def test_item_115_splits_and_links_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item 115: a build does look at what test_pair_checks.py is about."""
    with monkeypatch.context() as patch:
        patch.setattr(pair_build, "splits_of", lambda *_: {"train": np.arange(3)})
        with pytest.raises(DataprepError, match="splits: do not hold every pair once"):
            build(options_for(tmp_path))
    for name in ("check_links", "check_numbers"):
        with monkeypatch.context() as patch:
            patch.setattr(pair_assemble, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                build(options_for(tmp_path))


def test_clusters_that_match_nothing_are_told(tmp_path: Path) -> None:
    """A file of other keywords gives no pair a cluster, whatever the fallback: that is a note."""
    (tmp_path / "clusters.json").write_text('{"something else": 3}')
    options: dict[str, Any] = {
        "clusters": "keywords", "keyword_clusters": str(tmp_path / "clusters.json"), "n_neg": 4,
    }  # fmt: skip
    for rule in ("none", "largest", "nearest", "random"):
        report = build(options_for(tmp_path, rule, cluster_fallback=rule, **options))
        assert "60 pairs were given no cluster; 60 have none still" in report.notes
    assert build(options_for(tmp_path, "plain", clusters="none")).notes == ()


@pytest.mark.parametrize("change", [{"split": "1"}, {"split": "train", "more": "val"}, {}])
def test_item_114_splits_that_cannot_be_come_first(tmp_path: Path, change: dict[str, str]) -> None:
    """Item 114: a leak or a bad name in the rows is told before any vector is made."""
    source = write_rows(tmp_path / "rows.jsonl", split=change.get("split"))
    if "more" in change:
        again = json.loads(source.read_text().splitlines()[0]) | {"split": change["more"]}
        source.write_text(source.read_text() + json.dumps(again) + "\n")
    with pytest.raises(DataprepError, match="split"):
        build_pairs(options_for(tmp_path, split="column"), encoder=lambda _: pytest.fail("asked"))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_item_111_clusters_that_cannot_be_come_first(tmp_path: Path) -> None:
    """Item 111: no column, no keywords, a file of something else: before any vector is made."""
    write_rows(tmp_path / "rows.jsonl", cluster=None, keywords=None)
    (tmp_path / "list.json").write_text("[1]")
    rows = (f'{{"question": "q{n}", "source": "s{n}", "keywords": "a"}}\n' for n in range(3))
    (tmp_path / "words.jsonl").write_text("".join(rows))
    cases: list[dict[str, Any]] = [
        {"clusters": "column"}, {"clusters": "keywords"},
        {"keyword_clusters": str(tmp_path / "list.json"), "input": tmp_path / "words.jsonl"},
    ]  # fmt: skip
    for change in cases:
        with pytest.raises(InputError, match=r"clusters|keywords|is no JSON object"):
            build_pairs(
                options_for(tmp_path, n_neg=1, **change), encoder=lambda _: pytest.fail("asked")
            )
    assert not list(tmp_path.glob(".*"))


def test_paths_are_taken_where_files_are(tmp_path: Path) -> None:
    """As for `out` and `input`; what is stored is the same."""
    names = ("question_embs", "source_embs", "keyword_embs", "keyword_clusters")
    given: dict[str, Any] = {"input": "a.csv", "out": "out"}
    given |= {name: tmp_path / f"{name}.npy" for name in names}
    options = PairOptions(**given)
    spelled: dict[str, Any] = {name: str(value) for name, value in given.items()}
    texts = PairOptions(**spelled)
    assert options == texts
    assert options.stored([]) == texts.stored([])
