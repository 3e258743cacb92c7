"""JASPER's directory: read whole, given back as it was, refused where it refers to nothing.

Checklist items 89 (the whole layout and config.json), 105 (detection, staleness, lossless both
ways), 99 and 100 (both bounds, messages).
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.formats.arrays import open_arrays
from dataprep.formats.curriculum import Curriculum
from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.pipeline.layouts.convert import convert
from dataprep.pipeline.layouts.detect import detect
from dataprep.pipeline.layouts.jasper_curriculum import from_theirs, to_theirs
from dataprep.pipeline.layouts.torch_read import require_lists
from dataprep.pipeline.layouts.torch_write import write_lists, write_tensor
from tests.pipeline import jasper
from tests.pipeline.jasper import Content


def assert_same(found: Content, expected: Content) -> None:
    """Equal numbers, types and shapes; equal lists and configs."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
            assert found[name].tobytes() == np.ascontiguousarray(value).tobytes(), name
        else:
            assert found[name] == value, name


@pytest.fixture
def content() -> Content:
    return jasper.make()


def test_item_89_the_whole_layout_is_read(tmp_path: Path, content: Content) -> None:
    """Item 89: every array, list, split and config key is in the dataset."""
    jasper.write(tmp_path / "theirs", content)
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert (report.source_layout, report.layout, report.kind) == ("jasper", "dataprep", "pairs")
    with open_arrays(tmp_path / "ours") as data:
        for name, array in data.arrays.items():
            if name not in ("pair_keyword_offsets", "pair_keyword_ids"):
                found = array.read(0, array.rows)
                assert found.dtype == content[name].dtype
                np.testing.assert_array_equal(found, content[name])
        ends = data.array("pair_keyword_offsets").read(0, 21)
        ids = data.array("pair_keyword_ids").read(0, int(ends[-1]))
        lists = [ids[a:b].tolist() for a, b in itertools.pairwise(ends)]
        assert lists == content["pair_keyword_ids"]
        for name, split in data.splits.items():
            rows = split.rows(np.arange(len(split)))
            np.testing.assert_array_equal(rows, np.sort(content[f"{name}_idx"]))
        assert data.manifest.pairs is not None
        assert data.manifest.pairs["foreign"] == content["config"]
        assert (data.manifest.pairs["dim"], data.manifest.pairs["negatives"]) == (6, 4)
        assert data.manifest.pairs["clusters"] == 3
        assert data.manifest.records.written == data.manifest.rows == 20


@settings(max_examples=6, deadline=None)
@given(
    pairs=st.integers(1, 40), keywords=st.integers(0, 4), clusters=st.integers(0, 3),
    dim=st.integers(1, 5), negatives=st.integers(0, 4), seed=st.integers(0, 99),
)  # fmt: skip
def test_item_105_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, **sizes: int
) -> None:  # fmt: skip
    """Item 105: any sound directory comes back as it was, by way of a single file, too."""
    root, content = tmp_path_factory.mktemp("back"), jasper.make(**sizes)
    jasper.write(root / "theirs", content)
    convert(root / "theirs", root / "ours")
    convert(root / "ours", root / "back", to="jasper")
    assert_same(jasper.read(root / "back"), content)
    convert(root / "theirs", root / "file.safetensors")
    convert(root / "file.safetensors", root / "again", to="jasper")
    assert files(root / "again") == files(root / "back")
    shutil.rmtree(root)


def files(root: Path) -> dict[str, bytes]:
    """All files below `root`."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_what_comes_back_converts_to_the_same_arrays(tmp_path: Path, content: Content) -> None:
    """From our .pt files as from those of torch.save; bytes of inputs aside."""
    jasper.write(tmp_path / "theirs", content)
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    convert(tmp_path / "back", tmp_path / "ours2")
    one, two = files(tmp_path / "ours"), files(tmp_path / "ours2")
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == ["config.json"]


def test_sequences_of_splits_and_pairs_of_none(tmp_path: Path, content: Content) -> None:
    """A split in order needs no file for it; pairs that stand in no split are kept, and told."""
    content["val_idx"] = np.sort(content["val_idx"])
    del content["test_idx"]
    jasper.write(tmp_path / "theirs", content)
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert report.splits == {"train": 12, "val": 4, "unassigned": 4}
    assert "4 pairs stand in no split: kept as the split 'unassigned'" in report.notes
    assert (tmp_path / "ours" / "train_order.npy").exists()
    assert not (tmp_path / "ours" / "val_order.npy").exists()
    back = convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert back.notes == ()
    assert_same(jasper.read(tmp_path / "back"), content)


def test_types_that_ours_keep(tmp_path: Path, content: Content) -> None:
    """float16 embeddings stay float16; a strided tensor is as good as any; others are told."""
    content["source_embs"] = content["source_embs"].astype(np.float16)
    jasper.write(tmp_path / "theirs", content)
    turned = torch.from_numpy(content["question_embs"].T.copy()).T
    assert not turned.is_contiguous()
    torch.save(turned, tmp_path / "theirs" / "question_embs.pt")
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert "notes.txt: not part of the layout, left out" in report.notes
    convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert_same(jasper.read(tmp_path / "back"), content)


def test_negatives_that_are_doubtful_are_told(tmp_path: Path, content: Content) -> None:
    """Repeated ones, and sources that another pair of the question has: kept, and counted."""
    theirs, negatives = content["pair_index"], content["hard_negatives"]
    known = {(q, s) for q, s in theirs.tolist()}
    positives = [
        any((theirs[i, 0], s) in known for s in row) for i, row in enumerate(negatives.tolist())
    ]
    assert 0 < sum(positives) < 20
    negatives[4, 2] = negatives[4, 0]
    jasper.write(tmp_path / "theirs", content)
    notes = convert(tmp_path / "theirs", tmp_path / "ours").notes
    positives[4] = any((theirs[4, 0], s) in known for s in negatives[4].tolist())
    assert f"hard_negatives.pt: {sum(positives)} rows hold a source that answers" in str(notes)
    assert "hard_negatives.pt: 1 rows hold the same source twice" in notes


# Damage: what to do to the content, and what is said.
def put(name: str, place: Any, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content[name][place] = value

    return change


def replace(name: str, value: Callable[[Any], Any]) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content[name] = value(content[name])

    return change


def own_source(content: Content) -> None:
    content["hard_negatives"][2, 1] = content["pair_index"][2, 1]


def leak(content: Content) -> None:
    content["val_idx"][1] = content["train_idx"][5]


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        (put("pair_index", (3, 0), 9), "pair_index", "index [3, 0] is 9, expected 0 to 8 (ques"),
        (put("pair_index", (3, 1), -1), "pair_index", "index [3, 1] is -1, expected 0 to 11 (s"),
        (put("pair_cluster_id", 4, 3), "pair_cluster_id", "index [4] is 3, expected -1 to 2"),
        (put("pair_cluster_id", 4, -2), "pair_cluster_id", "index [4] is -2, expected -1 to 2"),
        (put("pair_keyword_ids", 5, [1, 5]), "pair_keyword_ids", "list 5[1] is 5, expected 0 to 4"),
        (put("pair_keyword_ids", 5, [-1]), "pair_keyword_ids", "list 5[0] is -1, expected 0 to 4"),
        (put("pair_keyword_ids", 5, [1.0]), "pair_keyword_ids", "list 5: expected whole"),
        (replace("pair_keyword_ids", lambda x: x[:-1]), "pair_keyword_ids", "has 19 lists, exp"),
        (put("hard_negatives", (7, 3), 12), "hard_negatives", "index [7, 3] is 12, expected 0 t"),
        (put("hard_negatives", (7, 3), -1), "hard_negatives", "index [7, 3] is -1, expected 0 t"),
        (own_source, "hard_negatives", "is the pair's own"),
        (put("negative_tiers", (7, 3), 0), "negative_tiers", "is 0, expected 1 to 4 (tiers)"),
        (put("negative_tiers", (7, 3), 5), "negative_tiers", "is 5, expected 1 to 4 (tiers)"),
        (put("pair_relevance", 6, 1.5), "pair_relevance", "row 6 is 1.5, expected 0 to 1"),
        (put("centroid_distances", 6, 2.5), "centroid_distances", "row 6 is 2.5, expected 0 to 2"),
        (put("question_embs", (8, 2), np.nan), "question_embs", "row 8 holds nan"),
        (put("steering_residual", (1, 2), -np.inf), "steering_residual", "row 1 holds -inf"),
        (put("train_idx", 3, 20), "train_idx", "index 3 is 20, expected 0 to 19 (pairs)"),
        (put("test_idx", 0, -1), "test_idx", "index 0 is -1, expected 0 to 19 (pairs)"),
        (leak, "val_idx", "also stands in train_idx.pt"),
        (replace("train_idx", lambda x: x[[0, 1, 0]]), "train_idx", "index 2: pair"),
        (replace("pair_relevance", lambda x: x[:-1]), "pair_relevance", "0 is 19, expected 20 (p"),
        (replace("centroid_distances", lambda x: x[:-1]), "centroid_distances", "is 19, expected"),
        (replace("negative_tiers", lambda x: x[:, 1:]), "negative_tiers", "dimension 1 is 3, exp"),
        (replace("source_embs", lambda x: x[:, 1:]), "source_embs", "5, expected 6 (embedding_dim"),
        (replace("pair_index", lambda x: x[:, 0]), "pair_index", "expected 2 dimensions"),
        (replace("pair_index", lambda x: x.astype("i4")), "pair_index", "expected <i8, found <i4"),
        (replace("config", lambda x: {}), "config", "embedding_dim: expected a whole number"),
        (put("config", "n_neg", 3), "hard_negatives", "dimension 1 is 4, expected 3 (n_neg of co"),
        (put("config", "curriculum", {"mode": "steps"}), "config", "curriculum.mode: must be on"),
        (put("config", "steering_probabilities", {"none": 1}), "config", "no variant 'none'"),
        (put("config", "steering_probabilities", {"zero": 0.5}), "config", "must add up to 1"),
    ],
)  # fmt: skip
def test_item_99_what_refers_to_nothing(
    tmp_path: Path, content: Content, damage: Callable[[Content], None], file: str, problem: str
) -> None:
    """Items 99, 100: the message names file, index, limit and remedy; nothing is left behind."""
    damage(content)
    jasper.write(tmp_path / "theirs", content)
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert caught.value.where == f"{file}.{'json' if file == 'config' else 'pt'}"
    assert problem in caught.value.problem
    assert caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("name", ["question_embs", "pair_keyword_ids", "negative_tiers"])
def test_a_missing_file(tmp_path: Path, content: Content, name: str) -> None:
    """Is named."""
    del content[name]
    jasper.write(tmp_path / "theirs", content)
    with pytest.raises(DataprepError, match=rf"E_MISSING\] {name}.pt: is missing"):
        convert(tmp_path / "theirs", tmp_path / "ours")


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_pickles_that_run_code_are_refused(tmp_path: Path, content: Content) -> None:
    """With the file's name and a command that rewrites it; no code runs, the command works."""
    jasper.write(tmp_path / "theirs", content)
    path = tmp_path / "theirs" / "pair_keyword_ids.pt"
    torch.save([Trap(str(tmp_path / "sprung"))], path)
    with pytest.raises(InputError, match=r"E_PICKLE\] pair_keyword_ids.pt.*posix.mkdir") as caught:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "sprung").exists()
    torch.save([[np.int64(i) for i in row] for row in content["pair_keyword_ids"]], path)
    with pytest.raises(InputError, match="asks for more than plain data") as caught:
        convert(tmp_path / "theirs", tmp_path / "ours")
    command = str(caught.value.remedy).partition('python -c "')[2].removesuffix('"')
    subprocess.run([sys.executable, "-c", command], check=True, timeout=120)
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert_same(jasper.read(tmp_path / "back"), content)


def test_files_that_torch_did_not_write(tmp_path: Path, content: Content) -> None:
    """A bare pickle, a packed archive, a shape larger than the file, a cut file, an empty one."""
    jasper.write(tmp_path / "theirs", content)
    path = tmp_path / "theirs" / "pair_relevance.pt"
    whole = path.read_bytes()

    def refused(problem: str) -> None:
        with pytest.raises(InputError, match=rf"pair_relevance.pt: .*{problem}"):
            convert(tmp_path / "theirs", tmp_path / "ours")

    path.write_bytes(pickle.dumps([1]))
    refused("is not an archive")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    refused("is compressed")
    torch.save(torch.zeros(1).expand(1 << 40), path)
    refused("needs more bytes than the file has")
    path.write_bytes(whole[: len(whole) // 2])
    refused("is not an archive|cannot be read")
    path.write_bytes(b"")
    refused("is empty")
    path.unlink()
    path.symlink_to(tmp_path / "theirs" / "centroid_distances.pt")
    with pytest.raises(DataprepError, match=r"pair_relevance.pt: is not an ordinary file"):
        convert(tmp_path / "theirs", tmp_path / "ours")


def test_lists_that_stand_for_many() -> None:
    """One stored list that is every row would need more than the file says."""
    many = [[1] * 1000] * 1000
    with pytest.raises(InputError, match="its lists have 1000000 numbers, too many for 100 bytes"):
        require_lists(many, "pair_keyword_ids.pt", 100)
    assert len(require_lists(many, "pair_keyword_ids.pt", 100_000)[1]) == 1_000_000
    with pytest.raises(InputError, match="too large for 64 bits"):
        require_lists([[1 << 70]], "pair_keyword_ids.pt", 100)


def test_item_105_stale_hdf5_is_refused(tmp_path: Path, content: Content) -> None:
    """Item 105: two forms that differ are both named, with how to choose; equal ones are fine."""
    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    jasper.write(tmp_path / "theirs", content)
    jasper.write_h5(tmp_path / "theirs", content)
    assert detect(tmp_path / "theirs") == "jasper"
    convert(tmp_path / "theirs", tmp_path / "equal")
    content["hard_negatives"][13] = content["hard_negatives"][13][::-1]
    torch.save(
        torch.from_numpy(content["hard_negatives"]), tmp_path / "theirs" / "hard_negatives.pt"
    )
    os.utime(tmp_path / "theirs" / "dataset.h5", (0, 0))
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert caught.value.code == "E_STALE"
    assert str(caught.value).endswith(
        "dataset.h5 and hard_negatives.pt differ (row 13); hard_negatives.pt is the newer file. "
        "Choose with --prefer pt or --prefer hdf5, or remove what is out of date."
    )
    for prefer, rows in (("pt", content["hard_negatives"]), ("hdf5", None)):
        convert(tmp_path / "theirs", tmp_path / prefer, prefer=prefer)  # type: ignore[arg-type]
        with open_arrays(tmp_path / prefer) as data:
            found = data.array("hard_negatives").read(0, 20)
        assert np.array_equal(found, content["hard_negatives"]) == (rows is not None)


@pytest.mark.parametrize("what", ["pair_keyword_ids", "val_idx", "question_embs"])
def test_any_difference_is_staleness(tmp_path: Path, content: Content, what: str) -> None:
    """Of lists, of splits, of shapes."""
    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    jasper.write(tmp_path / "theirs", content)
    jasper.write_h5(tmp_path / "theirs", {**content, what: content[what][::-1][:-1]})
    if what == "pair_keyword_ids":
        ids = [*content[what][:-1], [0, 0, 0, 0]]
        jasper.write_h5(tmp_path / "theirs", {**content, what: ids})
    with pytest.raises(InputError, match=rf"E_STALE.*{what}.pt differ"):
        convert(tmp_path / "theirs", tmp_path / "ours")


def test_hdf5_alone(tmp_path: Path, content: Content) -> None:
    """With config.json it is a dataset, lists and splits included; without, it is told so."""
    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    jasper.write(tmp_path / "theirs", content)
    jasper.write_h5(tmp_path / "theirs", content)
    for path in (tmp_path / "theirs").glob("*.pt"):
        path.unlink()
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert_same(jasper.read(tmp_path / "back"), content)
    with pytest.raises(InputError, match="give the directory with its"):
        convert(tmp_path / "theirs" / "dataset.h5", tmp_path / "ours2")
    (tmp_path / "theirs" / "config.json").unlink()
    with pytest.raises(InputError, match="lacks config"):
        convert(tmp_path / "theirs", tmp_path / "ours2")


BASE = {"zero": 0.4, "centroid": 0.3, "keyword": 0.2, "residual": 0.1}
LOADER = {"zero_prob_start": 0.6, "zero_prob_end": 0.2, "epochs_total": 30}
BUILDER = {"start_distance": 0.3, "end_distance": 0.7, "warmup_epochs": 10}


@pytest.mark.parametrize(
    ("curriculum", "mode", "moves", "told"),
    [
        (None, "fixed", (0.5, 0.1, 100), []),
        ({}, "fixed", (0.5, 0.1, 100), []),
        (LOADER, "linear", (0.6, 0.2, 30), []),
        ({**LOADER, "mode": "linear"}, "linear", (0.6, 0.2, 30), []),
        ({**LOADER, "mode": "cosine"}, "cosine", (0.6, 0.2, 30), ["straight line"]),
        ({**LOADER, "epochs_total": 0}, "linear", (0.6, 0.2, 1), []),
        ({**BUILDER, "mode": "fixed"}, "fixed", (0.5, 0.1, 100), ["took no notice", "kept, but"]),
        ({**BUILDER, "mode": "linear"}, "linear", (0.5, 0.1, 100), ["lacks zero", "kept, but"]),
        (
            {"mode": "fixed", "zero_prob_start": 0.4, "zero_prob_end": 0.4, "epochs_total": 9},
            "fixed", (0.4, 0.4, 9), [],
        ),
    ],
)  # fmt: skip
def test_curricula(
    curriculum: Any, mode: str, moves: tuple[float, float, int], told: list[str]
) -> None:
    """Keys of their builder and of their loader, mapped as the table says; doubts are told."""
    config = {"steering_probabilities": BASE, "curriculum": curriculum}
    ours, notes = from_theirs(config)
    assert ours.probabilities == tuple(BASE.values())
    assert (ours.mode, ours.zero_start, ours.zero_end, ours.epochs) == (mode, *moves)
    assert len(notes) == len(told)
    for note, word in zip(notes, told, strict=True):
        assert word in note
    probabilities, theirs, _ = to_theirs(ours)
    again, _ = from_theirs({"steering_probabilities": probabilities, "curriculum": theirs})
    assert (again.mode, again.probabilities) == (ours.mode, ours.probabilities)
    if mode != "fixed":
        assert again == ours


def test_a_fixed_curriculum_is_fixed_in_their_loader() -> None:
    """Which moves zero from start to end, 0.5 to 0.1 where they are absent: so they are equal."""
    ours = Curriculum(mode="fixed", probabilities=(0.7, 0.1, 0.1, 0.1))
    _, theirs, _ = to_theirs(ours)
    assert (theirs["zero_prob_start"], theirs["zero_prob_end"]) == (0.7, 0.7)
    assert from_theirs({"steering_probabilities": {"zero": 1.0}})[1] == [
        f"steering_probabilities lacks {name}: taken as 0 (their loader: 0.3 with a curriculum)"
        for name in ("centroid", "keyword", "residual")
    ]


def test_a_dataset_that_was_never_theirs(tmp_path: Path, content: Content) -> None:
    """Gets a config.json with all that their loader needs; what has no place is told."""
    from dataprep.formats.array_writer import ArrayWriter
    from dataprep.formats.envelope import InputEntry, RecordCounts

    jasper.write(tmp_path / "theirs", content)
    convert(tmp_path / "theirs", tmp_path / "other")
    with open_arrays(tmp_path / "other") as data:
        (tmp_path / "ours").mkdir()
        writer = ArrayWriter(tmp_path / "ours")
        for name, array in data.arrays.items():
            writer.array(name, array.read(0, array.rows), table=array.entry.table)
        writer.array("provenance", np.zeros((20, 2), "<u8"))
        writer.split("train", np.arange(15))
        writer.split("held_out", np.arange(15, 20))
        entry = InputEntry(
            name="a.csv", format="csv", unit="row", bytes=1, fingerprint="", records=20
        )
        writer.finish(
            kind="pairs", rows=20, inputs=[entry], options={"seed": 11},
            records=RecordCounts(read=20, written=20, rejected={}, blank_lines=0),
            pairs={"dim": 6, "negatives": 4, "clusters": 3,
                   "curriculum": {"mode": "cosine", "zero_start": 0.4}},
        )  # fmt: skip
    report = convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert report.notes == (
        "their loader knows train, val, test, and no split 'held_out'",
        "the curriculum is cosine; their loader moves in a straight line instead",
        "provenance: the layout has no place for it, left out",
    )
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["embedding_dim"] == 6
    assert config["n_neg"] == 4
    assert config["random_seed"] == 11
    assert config["split_ratios"] == [1.0, 0.0, 0.0]
    assert set(config["steering_probabilities"]) == {"zero", "centroid", "keyword", "residual"}
    assert config["curriculum"]["mode"] == "cosine"
    again = convert(tmp_path / "back", tmp_path / "again")
    assert again.splits == {"train": 15, "unassigned": 5}


def test_only_pairs_have_that_layout(tmp_path: Path) -> None:
    """Embeddings go to single files."""
    from tests.formats.test_arrays import write

    write(tmp_path / "vectors", embedding=np.zeros((4, 3), np.float32))
    with pytest.raises(UsageError, match=r"holds embeddings; JASPER's layout has pairs only"):
        convert(tmp_path / "vectors", tmp_path / "back", to="jasper")


@given(
    dtype=st.sampled_from(["<f4", "<f2", "<f8", "|i1", "|u1", "<i4", "<i8"]),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
)
@settings(max_examples=20, deadline=None)
def test_tensors_are_those_of_torch(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int]
) -> None:
    """What torch.load gives, mapped or not, is what was written; and so are lists."""
    root = tmp_path_factory.mktemp("torch")
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    write_tensor(root / "a.pt", [array.tobytes()], dtype, tuple(shape))
    for mapped in (False, True):
        found = torch.load(root / "a.pt", weights_only=True, mmap=mapped).numpy()
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
    lists = [row.ravel().astype(int).tolist() for row in array]
    write_lists(root / "lists.pt", lists)
    assert torch.load(root / "lists.pt", weights_only=True) == lists
    with zipfile.ZipFile(root / "a.pt") as archive:
        assert archive.testzip() is None
