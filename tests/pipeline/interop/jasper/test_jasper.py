"""JASPER's directory: read whole, and given back as it was.

Checklist items 89 (the whole layout and config.json) and 105 (lossless both ways).
"""

from __future__ import annotations

import itertools
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.curriculum import Curriculum
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.interop.convert import convert
from dataprep.pipeline.interop.jasper.curriculum import from_jasper, to_jasper
from dataprep.pipeline.interop.torch_pt import write_lists, write_tensor
from tests.scenes import jasper
from tests.scenes.jasper import Content, assert_same
from tests.support import examples

pytestmark = pytest.mark.usefixtures("one_child")


def test_item_89_the_whole_layout_is_read(tmp_path: Path, content: Content) -> None:
    """Item 89: every array, list, split and config key is in the dataset."""
    jasper.write(tmp_path / "theirs", content)
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert (report.source_layout, report.layout, report.kind) == ("jasper", "dataprep", "pairs")
    assert verify(tmp_path / "ours", "full").findings == ()
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


@examples(16)
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
    assert verify(tmp_path / "ours", "full").findings == ()
    positives[4] = any((theirs[4, 0], s) in known for s in negatives[4].tolist())
    assert f"hard_negatives.pt: {sum(positives)} rows hold a source that answers" in str(notes)
    assert "hard_negatives.pt: 1 rows hold the same source twice" in notes


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
        ({**BUILDER, "mode": "fixed"}, "fixed", (0.5, 0.1, 100), ["ignored it", "kept, but"]),
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
    ours, notes = from_jasper(config)
    assert ours.probabilities == tuple(BASE.values())
    assert (ours.mode, ours.zero_start, ours.zero_end, ours.epochs) == (mode, *moves)
    assert len(notes) == len(told)
    for note, word in zip(notes, told, strict=True):
        assert word in note
    probabilities, theirs, _ = to_jasper(ours)
    again, _ = from_jasper({"steering_probabilities": probabilities, "curriculum": theirs})
    assert (again.mode, again.probabilities) == (ours.mode, ours.probabilities)
    if mode != "fixed":
        assert again == ours


def test_a_fixed_curriculum_is_fixed_in_their_loader() -> None:
    """Which moves zero from start to end, 0.5 to 0.1 where they are absent: so they are equal."""
    ours = Curriculum(mode="fixed", probabilities=(0.7, 0.1, 0.1, 0.1))
    _, theirs, _ = to_jasper(ours)
    assert (theirs["zero_prob_start"], theirs["zero_prob_end"]) == (0.7, 0.7)
    assert from_jasper({"steering_probabilities": {"zero": 1.0}})[1] == [
        f"steering_probabilities lacks {name}: taken as 0 (JASPER's loader: 0.3 with a curriculum)"
        for name in ("centroid", "keyword", "residual")
    ]


def test_a_dataset_that_was_never_theirs(tmp_path: Path, content: Content) -> None:
    """Gets a config.json with all that their loader needs; what has no place is told."""
    from dataprep.formats.manifest.common import InputEntry, RecordCounts
    from dataprep.formats.write.dataset_writer import ArrayWriter

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
        writer.finish_arrays(
            kind="pairs", rows=20, inputs=[entry], options={"seed": 11},
            records=RecordCounts(read=20, written=20, rejected={}, blank_lines=0),
            pairs={"dim": 6, "negatives": 4, "clusters": 3,
                   "curriculum": {"mode": "cosine", "zero_start": 0.4}},
        )  # fmt: skip
    report = convert(tmp_path / "ours", tmp_path / "back", to="jasper")
    assert report.notes == (
        "JASPER's loader knows train, val, test, and no split 'held_out'",
        "the curriculum is cosine; JASPER's loader moves in a straight line instead",
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
    from tests.formats.read.test_arrays import write

    write(tmp_path / "vectors", embedding=np.zeros((4, 3), np.float32))
    with pytest.raises(UsageError, match=r"holds embeddings; JASPER's layout has pairs only"):
        convert(tmp_path / "vectors", tmp_path / "back", to="jasper")


@given(
    dtype=st.sampled_from(["<f4", "<f2", "<f8", "|i1", "|u1", "<i4", "<i8"]),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
)
@examples(40)
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
