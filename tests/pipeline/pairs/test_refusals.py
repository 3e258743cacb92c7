"""Builds of pairs that are refused: options, libraries, places, rows, and the last checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.pipeline.build import build_pairs
from dataprep.pipeline.pairs import assemble as pair_assemble
from dataprep.pipeline.pairs import kind as pair_kind
from dataprep.pipeline.pairs import negatives as pair_negatives
from dataprep.pipeline.pairs import search as pair_search
from dataprep.pipeline.pairs.options import PairOptions
from tests.scenes.pair_builds import (
    Array,
    build,
    options_for,
    vectors_of,
    write_rows,
)


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


def test_scikit_learn_for_clusters_of_keywords_is_missed_before_embedding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters by keywords without a file are k-means, too: no text is encoded in vain."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    options = options_for(tmp_path, clusters="keywords")
    with pytest.raises(UsageError, match="needs scikit-learn"):
        build_pairs(options, encoder=lambda _: pytest.fail("asked"))


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

    monkeypatch.setattr(pair_kind, "mine_pairs", spoiled)
    with pytest.raises(DataprepError, match=problem) as caught:
        build(options_for(tmp_path))
    assert caught.value.code == "E_PAIRS"
    assert not (tmp_path / "out").exists()


def test_item_115_splits_and_links_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item 115: a build does look at what test_pair_checks.py is about."""
    with monkeypatch.context() as patch:
        patch.setattr(pair_kind, "splits_of", lambda *_: {"train": np.arange(3)})
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
