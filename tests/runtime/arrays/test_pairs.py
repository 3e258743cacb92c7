"""Batches of pairs against the plainest reference, and everything that can be done to a dataset."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.curriculum import VARIANTS, Curriculum
from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.arrays.pair_data import PairData, open_pairs
from dataprep.runtime.arrays.pairs import PairDataset
from dataprep.runtime.order.epoch_tag import with_epoch
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import Batch
from tests.scenes.pair_datasets import Pairs, make_embeddings, random_pairs, write_pairs

DTYPES = {
    "question_emb": "float32", "target_source_emb": "float32", "steering": "float32",
    "negative_embs": "float32", "cluster_id": "int64", "relevance": "float32",
    "centroid_distance": "float32", "steering_variant": "int64", "negative_tiers": "int64",
}  # fmt: skip
STEERING = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")


def reference(given: Pairs, pair: int, variant: int) -> Batch:
    """One pair, field by field."""
    question, source = given.pair_index[pair]
    steering = STEERING[variant]
    dim = given.question_embs.shape[1]
    fields = {
        "question_emb": given.question_embs[question].astype("f4"),
        "target_source_emb": given.source_embs[source].astype("f4"),
        "steering": np.zeros(dim, "f4") if steering is None else given.arrays[steering][pair],
        "negative_embs": given.source_embs[given.hard_negatives[pair]].astype("f4"),
        "cluster_id": given.pair_cluster_id[pair], "relevance": given.pair_relevance[pair],
        "centroid_distance": given.centroid_distances[pair],
        "steering_variant": np.int64(variant), "negative_tiers": given.negative_tiers[pair],
    }  # fmt: skip
    return {name: torch.tensor(value) for name, value in fields.items()}


def check(batch: Batch, given: Pairs, pairs: npt.NDArray[np.int64]) -> None:
    """Every field of every row is the reference's, of type and shape."""
    wanted = [
        reference(given, int(pair), int(variant))
        for pair, variant in zip(pairs, batch["steering_variant"], strict=True)
    ]
    assert {name: str(t.dtype).removeprefix("torch.") for name, t in batch.items()} == DTYPES
    for name, tensor in batch.items():
        assert torch.equal(tensor, torch.stack([row[name] for row in wanted])), name


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_batches_equal_the_reference(tmp_path: Path, io: Any, preload: bool, dtype: str) -> None:
    """Items 88, 97: nine fields of every pair, mapped, read or held; negatives with tiers."""
    given = random_pairs(dtype=dtype)
    made = write_pairs(tmp_path / "p", given, shard_bytes=100)
    found = open_pairs(made, io=io, preload=preload).split("train")
    rows = given.splits["train"]
    asked = np.array([5, 0, len(rows) - 1, 5, 7])
    batch = found.batch(asked)
    assert list(batch) == list(DTYPES)
    check(batch, given, rows[asked])
    assert batch["negative_embs"].shape == (5, 5, 6)
    storages = {tensor.untyped_storage().data_ptr() for tensor in batch.values()}
    assert len(storages) == len(batch)  # each its own memory
    one = found[-1]
    assert one["relevance"].shape == ()
    check({name: t[None] for name, t in one.items()}, given, rows[-1:])


def test_every_variant(given: Pairs, train: PairDataset) -> None:
    """Item 90: over some epochs each variant is served as the table defines it."""
    seen: set[int] = set()
    for epoch in range(4):
        batch = train.batch(with_epoch(np.arange(len(train)), epoch))
        check(batch, given, given.splits["train"])
        seen.update(batch["steering_variant"].tolist())
    assert seen == {0, 1, 2, 3}
    pair = int(np.flatnonzero(given.pair_cluster_id >= 0)[0])
    question = given.question_embs[given.pair_index[pair, 0]]
    centroid = given.centroid_embs[given.pair_cluster_id[pair]]
    offset = centroid - question
    np.testing.assert_allclose(
        given.steering_centroid[pair], offset / np.linalg.norm(offset), rtol=1e-5
    )
    np.testing.assert_allclose(given.steering_residual[pair], -offset, rtol=1e-5)


def test_the_epoch_of_an_index_comes_first(train: PairDataset) -> None:
    """Items 87, 93: indices with an epoch take no notice of the dataset's; plain ones do."""
    asked = np.arange(len(train))
    named = [train.batch(with_epoch(asked, e))["steering_variant"] for e in (0, 6)]
    for epoch in (6, 0, 3):
        train.set_epoch(epoch)
        again = [train.batch(with_epoch(asked, e))["steering_variant"] for e in (0, 6)]
        assert [t.tolist() for t in again] == [t.tolist() for t in named]
    train.set_epoch(6)
    assert train.batch(asked)["steering_variant"].tolist() == named[1].tolist()
    assert named[0].tolist() != named[1].tolist()
    mixed = train.batch([*with_epoch(asked[:9], 0), *asked[9:]])["steering_variant"]
    assert mixed.tolist() == [*named[0][:9].tolist(), *named[1][9:].tolist()]
    with pytest.raises(UsageError, match="epoch"):
        train.set_epoch(-1)


def test_where_the_curriculum_moves(path: Path) -> None:
    """Item 91: in train only, unless "all" is asked for; others have one variant for good."""

    def epochs(split: str, **options: Any) -> list[list[int]]:
        found = open_pairs(path).split(split, **options)
        asked = np.arange(len(found))
        return [found.batch(with_epoch(asked, e))["steering_variant"].tolist() for e in (0, 9)]

    first, last = epochs("val")
    assert first == last
    for varying in (epochs("train"), epochs("val", curriculum="all")):
        assert varying[0] != varying[1]
    never = Curriculum(probabilities=(0, 0, 0, 1))
    assert set(epochs("val", schedule=never)[0]) == {3}
    with pytest.raises(UsageError, match="must be one of train, all"):
        epochs("val", curriculum="some")


def test_seed(path: Path) -> None:
    """Item 94: another seed is another draw, the same one the same."""
    found = [
        open_pairs(path).split("train", seed=s).batch(range(40))["steering_variant"].tolist()
        for s in (0, 1, 0)
    ]
    assert found[0] == found[2] != found[1]


def test_force_steering(given: Pairs, train: PairDataset) -> None:
    """Item 95: each name fixes its variant, None draws again, another name lists the four."""
    drawn = train.batch(range(40))["steering_variant"].tolist()
    for variant, name in enumerate(VARIANTS):
        train.force_steering(name)
        batch = train.batch(range(40))
        assert batch["steering_variant"].tolist() == [variant] * 40
        check(batch, given, given.splits["train"][:40])
    train.force_steering(None)
    assert train.batch(range(40))["steering_variant"].tolist() == drawn
    with pytest.raises(UsageError, match="zero, centroid, keyword, residual, or None, got 'none'"):
        train.force_steering("none")


def replacement(given: Pairs, seed: int = 9) -> tuple[Any, Any]:
    """Other negatives for the same pairs."""
    other = random_pairs(seed=0).arrays | {}
    shuffled = np.random.default_rng(seed).permuted(other["hard_negatives"], axis=1)
    return shuffled, 5 - other["negative_tiers"]


@pytest.mark.parametrize("kind", ["arrays", "tensors", "npy", "pt", "dataset"])
def test_reload_negatives(tmp_path: Path, given: Pairs, train: PairDataset, kind: str) -> None:
    """Item 96: from whatever they come in, then back to the stored ones."""
    rows, tiers = replacement(given)
    source: Any = (rows.astype("i4"), tiers)
    if kind == "tensors":
        source = (torch.tensor(rows), torch.tensor(tiers))
    elif kind == "dataset":
        changed = Pairs(
            arrays={**given.arrays, "hard_negatives": rows, "negative_tiers": tiers},
            splits=given.splits,
        )
        source = write_pairs(tmp_path / "p", changed)
    elif kind in ("npy", "pt"):
        source = tmp_path
        for name, array in (("hard_negatives", rows), ("negative_tiers", tiers)):
            if kind == "npy":
                np.save(tmp_path / f"{name}.npy", array)
            else:
                torch.save(torch.tensor(array), tmp_path / f"{name}.pt")
    train.reload_negatives(source)
    pair = given.splits["train"][3]
    for found in (train, pickle.loads(pickle.dumps(train))):
        assert found[3]["negative_tiers"].tolist() == tiers[pair].tolist()
        np.testing.assert_array_equal(found[3]["negative_embs"], given.source_embs[rows[pair]])
    assert train.statistics().tiers[1] == int((tiers[given.splits["train"]] == 1).sum())
    train.reload_negatives(None)
    assert train[3]["negative_tiers"].tolist() == given.negative_tiers[pair].tolist()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ((0, 7, 2, 40), "row 7, column 2 holds 40, but there are 40 sources"),
        ((0, 59, 4, -1), "row 59, column 4 holds -1"),
        ((1, 3, 0, 0), "row 3, column 0 holds 0, which is no tier of 1 to 4"),
        ((1, 3, 0, 5), "holds 5, which is no tier"),
        ((0, 9, 3, "repeat"), "row 9, column 3 holds .*, which the row has already"),
        ((0, 8, 3, "positive"), "row 8, column 3 holds .*, which is a known positive"),
        ((0, 9, 3, "own"), "row 9, column 3 holds .*, which is the source of the pair"),
    ],
)
def test_wrong_negatives(given: Pairs, train: PairDataset, change: Any, problem: str) -> None:
    """Item 96: bounds, tiers, repeats, positives; what was served before stays."""
    before = train[3]["negative_embs"]
    parts = [array.copy() for array in replacement(given)]
    which, row, column, value = change
    if value == "repeat":
        value = parts[0][row, column - 1]
    elif value == "positive":
        same = given.pair_index[:, 0] == given.pair_index[row, 0]
        value = np.setdiff1d(given.pair_index[same, 1], given.pair_index[row, 1])[-1]
    elif value == "own":
        value = given.pair_index[row, 1]
    parts[which][row, column] = value
    with pytest.raises(InputError, match=problem) as caught:
        train.reload_negatives(parts)
    assert caught.value.where == ("hard_negatives", "negative_tiers")[which]
    assert torch.equal(train[3]["negative_embs"], before)
    assert train.version == 0


def test_negatives_of_another_layout(tmp_path: Path, given: Pairs) -> None:
    """Where the stored ones may repeat and be positives of the question, others may as well."""
    pairs = open_pairs(write_pairs(tmp_path / "p", given, foreign={})).split("train")
    rows, tiers = replacement(given)
    rows[:, 1] = rows[:, 0]
    pairs.reload_negatives((rows, tiers))
    rows[9, 3] = given.pair_index[9, 1]
    with pytest.raises(InputError, match="the source of the pair"):
        pairs.reload_negatives((rows, tiers))


def test_misshapen_negatives(tmp_path: Path, given: Pairs, train: PairDataset) -> None:
    """Other shapes, types, folders and pickles are refused with what was found."""
    rows, tiers = replacement(given)
    for parts in ((rows[:-1], tiers), (rows[:, :2], tiers), (rows,), (rows * 1.0, tiers)):
        with pytest.raises(InputError):
            train.reload_negatives(parts)
    with pytest.raises(InputError, match="no such dataset"):
        train.reload_negatives(tmp_path / "nowhere")
    np.save(tmp_path / "hard_negatives.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "negative_tiers.npy", tiers)
    with pytest.raises(InputError, match="not a readable"):
        train.reload_negatives(tmp_path)
    (tmp_path / "hard_negatives.npy").unlink()
    torch.save(Path("x"), tmp_path / "hard_negatives.pt")
    with pytest.raises(InputError, match="not a readable"):
        train.reload_negatives(tmp_path)


def test_splits_share_everything(tmp_path: Path, given: Pairs) -> None:
    """Item 106: all splits from one opening, over the same maps; preloaded once."""

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(f"{path}/source_embs/00000.npy")

    path = write_pairs(tmp_path / "p", given, shard_bytes=200)
    with open_pairs(path) as pairs:
        train, val = pairs.split("train"), pairs.split("val")
        assert pairs.splits == ("train", "val")
        assert train.split.data is val.split.data
        assert train.tables is val.tables
        train.batch(range(len(train))), val.batch(range(len(val)))
        assert maps() == 1
        assert not set(train.split.rows(np.arange(len(train)))) & set(
            val.split.rows(np.arange(len(val)))
        )
    held = open_pairs(path, preload=True)
    assert held.split("train").memory().held == held.split("val").memory().held > 0


def test_closing(tmp_path: Path, given: Pairs) -> None:
    """Item 107: nothing stays mapped, batches stay valid, using it again opens it again."""

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    def descriptors() -> int:
        held = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # one that is open no more
                held.append(os.readlink(f"/proc/self/fd/{name}"))
        return sum(target.startswith(str(path)) for target in held)

    path = write_pairs(tmp_path / "p", given, shard_bytes=200)
    before = maps()
    with open_pairs(path).split("train") as pairs:
        batch = pairs.batch([1, 2])
        kept = batch["negative_embs"].clone()
        assert maps() > before
    assert (maps(), descriptors()) == (before, 0)
    assert torch.equal(batch["negative_embs"], kept)
    assert torch.equal(pairs.batch([1, 2])["negative_embs"], kept)
    pairs.close()
    with open_pairs(path, preload=True).split("train") as preloaded:
        assert preloaded.memory().held > 0
    assert preloaded.memory().held == 0
    held = open_pairs(path, preload=True)
    held.close()
    assert held.tables.held_bytes == 0
    assert torch.equal(held.split("train")[1]["negative_embs"], kept[0])


def test_memory_report(path: Path, given: Pairs) -> None:
    """Item 107: what is mapped, resident and held."""
    pairs = open_pairs(path).split("train")
    pairs.batch(range(len(pairs)))
    report = pairs.memory()
    served = [a for name, a in given.arrays.items() if not name.startswith(("keyword", "centroid_e",
              "pair_keyword"))]  # fmt: skip
    assert report.files > sum(array.nbytes for array in served)
    assert report.resident is not None
    assert 0 < report.resident < report.files * 100  # pages of tiny files
    assert report.held == 0
    held = open_pairs(path, preload=True).split("train").memory()
    assert (held.files, held.held) == (0, sum(array.nbytes for array in served))


def test_clusters(path: Path, given: Pairs) -> None:
    """Item 108: the pairs of some clusters, with the variants that they have in the whole."""
    rows = given.splits["train"]
    wanted = rows[np.isin(given.pair_cluster_id[rows], [2, -1])]
    found = open_pairs(path).split("train", clusters=[2, -1])
    assert len(found) == len(wanted)
    for pairs in (found, pickle.loads(pickle.dumps(found))):
        check(pairs.batch(range(len(wanted))), given, wanted)
    whole = open_pairs(path).split("train").batch(np.searchsorted(rows, wanted))
    assert torch.equal(whole["steering_variant"],
                       found.batch(range(len(wanted)))["steering_variant"])  # fmt: skip
    with pytest.raises(IndexError):
        found.batch([len(wanted)])
    with pytest.raises(UsageError, match="there is no 4: the last one is 3"):
        open_pairs(path).split("train", clusters=[1, 4])
    with pytest.raises(UsageError, match="names no cluster"):
        open_pairs(path).split("train", clusters=[])
    assert found.definition["clusters"] == [-1, 2]


def test_a_cluster_without_pairs(tmp_path: Path, given: Pairs) -> None:
    """Items 101, 108: nothing to serve is said at once."""
    none = given.arrays | {"pair_cluster_id": np.zeros(60, np.int64)}
    made = write_pairs(tmp_path / "p", Pairs(arrays=none, splits=given.splits))
    with pytest.raises(InputError, match=r"no pair in clusters \[3\]"):
        open_pairs(made).split("train", clusters=[3])


def test_statistics(path: Path, given: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 108: counts, ranges and lengths, in blocks of any size."""
    rows = given.splits["train"]
    plain = open_pairs(path).split("train").statistics()
    monkeypatch.setattr("dataprep.runtime.arrays.reports._BLOCK", 7)
    found = open_pairs(path).split("train").statistics()
    assert (found.pairs, found.clusters, found.tiers) == (plain.pairs, plain.clusters, plain.tiers)
    values, counts = np.unique(given.pair_cluster_id[rows], return_counts=True)
    assert found.clusters == dict(zip(values.tolist(), counts.tolist(), strict=True))
    tiers = given.negative_tiers[rows]
    assert found.tiers == {tier: int((tiers == tier).sum()) for tier in (1, 2, 3, 4)}
    assert found.relevance.mean == pytest.approx(given.pair_relevance[rows].mean())
    assert found.centroid_distance.greatest == given.centroid_distances[rows].max()
    for name, array in zip(VARIANTS[1:], STEERING[1:], strict=True):
        lengths = np.linalg.norm(given.arrays[str(array)][rows], axis=1)
        spread = found.steering_norms[name]
        assert (spread.least, spread.mean, spread.greatest) == pytest.approx(
            (lengths.min(), lengths.mean(), lengths.max()), rel=1e-5
        )
        assert found.steering_missing[name] == int((lengths == 0).sum())


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_tensor_is_on_the_device(path: Path, device: str, preload: bool) -> None:
    """Item 102: all of a batch, forced and drawn, masked and with other negatives."""
    pairs = open_pairs(path, device=device, preload=preload).split("train", sample_mask=True)
    for name in (None, *VARIANTS):
        pairs.force_steering(name)
        batch = pairs.batch([3, PADDING, 1])
        assert {tensor.device.type for tensor in batch.values()} == {device}
        assert batch["negative_embs"].shape == (3, 5, 6)


def test_rows_that_fill(given: Pairs, path: Path) -> None:
    """A filler repeats sample 0, of the batch's epoch, with relevance 0."""
    pairs = open_pairs(path).split("train", sample_mask=True)
    for own in (0, 5):
        pairs.set_epoch(own)
        batch = pairs.batch(with_epoch(np.array([4, PADDING]), 2))
        assert batch.pop("sample_mask").tolist() == [True, False]
        assert batch["relevance"][1] == 0
        same = pairs.batch(with_epoch(np.array([4, 0]), 2))
        assert torch.equal(same["steering"], batch["steering"])
    only = pairs.batch([PADDING])
    assert not only["sample_mask"].any()


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    """Embeddings are no pairs."""
    rows = make_embeddings(tmp_path / "e", {"a": np.zeros((4, 2), "f4")})
    with pytest.raises(UsageError, match="holds embeddings, not pairs"):
        open_pairs(rows)
    with pytest.raises(UsageError, match="holds embeddings, not pairs"):
        PairDataset(open_arrays(rows).split("train"))
    with pytest.raises(UsageError, match="holds embeddings, not pairs"):
        PairData(open_arrays(rows))


def test_without_negatives_clusters_and_keywords(tmp_path: Path) -> None:
    """What a dataset has none of comes in shapes of 0, and zero vectors."""
    given = random_pairs(20, negatives=0, clusters=0, keywords=0, val=0.0)
    pairs = open_pairs(write_pairs(tmp_path / "p", given)).split("train")
    batch = pairs.batch(range(20))
    assert (batch["negative_embs"].shape, batch["negative_tiers"].shape) == ((20, 0, 6), (20, 0))
    assert not batch["steering"].any()
    pairs.check_batch(batch)
    assert pairs.statistics().steering_missing == {"centroid": 20, "keyword": 20, "residual": 20}
    pairs.reload_negatives((np.zeros((20, 0), np.int64), np.zeros((20, 0), np.int64)))


def test_spans(path: Path, given: Pairs, train: PairDataset) -> None:
    """What is announced covers question, source, negatives, steering and numbers of each pair."""
    starts, stops = train.spans(np.array([3, PADDING]))
    base = np.cumsum([0, *(len(track.stream) for track in train.tracks)])
    pair = given.splits["train"][3]
    question, source = given.pair_index[pair]
    dim = 6
    wanted = [question * dim, *(base[1] + np.array([source, *given.hard_negatives[pair]]) * dim)]
    wanted += [base[k] + pair * dim for k in (2, 3, 4)] + [base[k] + pair for k in (5, 6, 7)]
    assert starts.tolist() == wanted
    assert (stops <= base[-1]).all()
    assert open_pairs(path, preload=True).split("train").tracks == ()
