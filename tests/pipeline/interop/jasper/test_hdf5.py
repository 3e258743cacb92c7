"""JASPER's HDF5 file: alone, or beside .pt files that it must equal (checklist 105)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dataprep.formats.errors import InputError
from dataprep.formats.read.arrays import open_arrays
from dataprep.pipeline.interop.convert import convert
from dataprep.pipeline.interop.detect import detect
from tests.scenes import jasper
from tests.scenes.jasper import Content, assert_same

pytestmark = pytest.mark.usefixtures("one_child")


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
