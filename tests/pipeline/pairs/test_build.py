"""Whole builds of pairs: the arrays of the dataset, and how they fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.curriculum import VARIANT_ARRAYS
from dataprep.pipeline.build import build_pairs, estimate_pairs
from dataprep.pipeline.pairs.table import pair_texts
from dataprep.pipeline.progress import Progress
from tests.scenes.pair_builds import (
    DIM,
    arrays_of,
    build,
    options_for,
    vectors_of,
    write_rows,
)


def test_item_115_a_whole_build(tmp_path: Path) -> None:
    """Item 115: every array with its shape and type, config, steps with their time."""
    seen: list[Progress] = []
    options = options_for(tmp_path, inspection=True, curriculum="linear")
    report = build(options, progress=seen.append)
    steps = ["read", "embed", "cluster", "split", "negatives", "write"]
    found = report.content["steps"]
    assert list(found) == [*steps, "publish"]
    assert list(dict.fromkeys(one.stage for one in seen)) == ["read", "plan", *steps[1:]]
    assert all(seconds >= 0 for seconds in found.values())
    assert list(report.profile.stages) == steps
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


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_estimate_is_near(tmp_path: Path, dtype: str) -> None:
    """Counts are exact, and the dataset is as large as foretold but for headers and config.json."""
    options = options_for(tmp_path, inspection=True, dtype=dtype, clusters="none")
    found = estimate_pairs(options, encoder=vectors_of)
    assert not (tmp_path / "out").exists()
    assert (found.rows, found.questions, found.sources) == (60, 40, 30)
    assert found.encoded == found.questions + found.sources + found.keywords
    report = build(options)
    arrays = [entry for entry in report.manifest.files if entry.name.endswith(".npy")]
    headers = 4096 * (len(arrays) + 1)
    size = sum(entry.bytes for entry in report.manifest.files)
    assert 0 <= size - found.output_bytes <= headers
    assert found.peak_disk_bytes > found.output_bytes
