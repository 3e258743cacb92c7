"""A directory in JASPER's layout, as its builder writes one: for tests of what reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["CONFIG", "Content", "assert_same", "make", "read", "write", "write_h5"]

Content = dict[str, Any]
CONFIG: Mapping[str, Any] = {
    "embedding_dim": 6,
    "n_neg": 4,
    "clustering_source": "clusters.json",
    "split_ratios": [0.8, 0.1, 0.1],
    "steering_probabilities": {"zero": 0.25, "centroid": 0.25, "keyword": 0.25, "residual": 0.25},
    "curriculum": {
        "mode": "linear", "start_distance": 0.3, "end_distance": 0.7, "warmup_epochs": 10,
    },
    "n_pairs": 20,
    "storage_format": "pt",
    "include_inspection_file": True,
    "random_seed": 7,
    "csv_splits": None,
}  # fmt: skip
_PLACES = {
    "question_embs": "embeddings/questions", "source_embs": "embeddings/sources",
    "keyword_embs": "embeddings/keywords", "centroid_embs": "embeddings/centroids",
    "pair_index": "pair_data/index", "pair_cluster_id": "pair_data/cluster_id",
    "pair_relevance": "pair_data/relevance", "hard_negatives": "negatives/hardnegatives",
    "negative_tiers": "negatives/tiers", "steering_centroid": "steering/centroid",
    "steering_keyword_weighted": "steering/keyword_weighted",
    "steering_residual": "steering/residual", "centroid_distances": "steering/distances",
    "train_idx": "splits/train", "val_idx": "splits/val", "test_idx": "splits/test",
}  # fmt: skip


def make(
    *, pairs: int = 20, questions: int = 9, sources: int = 12, keywords: int = 5, clusters: int = 3,
    dim: int = 6, negatives: int = 4, seed: int = 0,
) -> Content:  # fmt: skip
    """Sound contents of a directory by file, without the suffix; splits are not in order."""
    draw = np.random.default_rng(seed)

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return draw.standard_normal(shape, dtype=np.float32)

    source = draw.integers(sources, size=pairs)
    other = np.stack([draw.permutation(sources - 1)[:negatives] for _ in range(pairs)])
    order = draw.permutation(pairs)
    cut = np.array([pairs * 6 // 10, pairs * 8 // 10])
    counts = draw.integers(0, 4, size=pairs) if keywords else np.zeros(pairs, int)
    train, val, test = np.split(order, cut)
    return {
        "question_embs": floats(questions, dim),
        "source_embs": floats(sources, dim),
        "keyword_embs": floats(keywords, dim),
        "centroid_embs": floats(clusters, dim),
        "pair_index": np.stack([draw.integers(questions, size=pairs), source], axis=1),
        "pair_cluster_id": draw.integers(-1, clusters, size=pairs),
        "pair_relevance": draw.random(pairs, dtype=np.float32),
        "pair_keyword_ids": [draw.integers(keywords or 1, size=n).tolist() for n in counts],
        "hard_negatives": other + (other >= source[:, None]),
        "negative_tiers": draw.integers(1, 5, size=(pairs, negatives)),
        "steering_centroid": floats(pairs, dim),
        "steering_keyword_weighted": floats(pairs, dim),
        "steering_residual": floats(pairs, dim),
        "centroid_distances": 2 * draw.random(pairs, dtype=np.float32),
        "train_idx": train, "val_idx": val, "test_idx": test,
        "config": {**CONFIG, "embedding_dim": dim, "n_neg": negatives, "n_pairs": pairs},
        "inspection": {"pairs": ["a", "b"]},
    }  # fmt: skip


def write(root: Path, content: Content) -> Path:
    """Save `content` as the builder does: torch.save, and json.dump with two spaces."""
    root.mkdir()
    for name, value in content.items():
        if isinstance(value, dict):
            (root / f"{name}.json").write_text(json.dumps(value, indent=2))
        elif isinstance(value, np.ndarray):
            torch.save(torch.from_numpy(value), root / f"{name}.pt")
        else:
            torch.save(value, root / f"{name}.pt")
    return root


def write_h5(root: Path, content: Content) -> None:
    """Save `content` in `root`/dataset.h5, too, as `convert_pt_to_hdf5` of that package does."""
    import h5py

    with h5py.File(root / "dataset.h5", "w") as file:
        for name, place in _PLACES.items():
            if name in content:
                file.create_dataset(place, data=content[name], compression="gzip")
        group = file.create_group("pair_data/keyword_ids")
        for number, ids in enumerate(content["pair_keyword_ids"]):
            group.create_dataset(str(number), data=np.array(ids, dtype=np.int32))


def read(root: Path) -> Content:
    """What their loader would find in `root`."""
    found: Content = {}
    for path in root.iterdir():
        if path.suffix == ".json":
            found[path.stem] = json.loads(path.read_text())
        elif path.suffix == ".pt":
            value = torch.load(path, weights_only=True)
            found[path.stem] = value.numpy() if isinstance(value, torch.Tensor) else value
    return found


def assert_same(found: Content, expected: Content) -> None:
    """Equal numbers, types and shapes; equal lists and configs."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
            assert found[name].tobytes() == np.ascontiguousarray(value).tobytes(), name
        else:
            assert found[name] == value, name
