"""JASPER's directory, damaged: file, index, limit and remedy are named (checklist 99 and 100)."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import DataprepError, InputError
from dataprep.pipeline.interop.convert import convert
from dataprep.pipeline.interop.torch_pt import require_lists
from tests.scenes import jasper
from tests.scenes.jasper import Content, assert_same

pytestmark = pytest.mark.usefixtures("one_child")


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
    exec(command)
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
