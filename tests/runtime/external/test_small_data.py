"""Small and empty splits, and datasets of other kinds: served, or refused with a way that works."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import DataprepError, InputError, UsageError
from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.arrays.pair_data import open_pairs
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.create import create_loader
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.task import TaskSpec
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.pair_datasets import make_embeddings, make_pairs
from tests.scenes.preferences import make_preferences, random_records

PREFERENCE = TaskSpec(name="d", task_type="preference")


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Fifteen windows of 1,024 to train on, less than one in val, and an empty test."""
    splits = {"train": random_split([[15_400]]), "val": random_split([[609]]), "test": []}
    return make_dataset(tmp_path / "small", splits)


@pytest.fixture
def preferences(tmp_path: Path) -> Path:
    return make_preferences(
        tmp_path / "dpo", "pairs", [random_records("pairs", 6)], empty=("val", "test")
    )


def refused(*arguments: Any, make: Any = create_loader, **options: Any) -> DataprepError:
    with pytest.raises(DataprepError) as caught:
        make(*arguments, **options)
    return caught.value


def test_nothing_but_a_small_dataset_and_a_split(small: Path) -> None:
    """Item 121: batch size and seq_len are what the split has, and a warning says so."""
    with pytest.warns(UserWarning, match=r"there are 15 samples: batch_size is 15, not 32"):
        loader = create_loader(small, "train")
    assert next(iter(loader))["input_ids"].shape == (15, 1024)
    with pytest.warns(UserWarning, match=r"val has 609 tokens.* 1,024 .*: seq_len is 608"):
        short = create_loader(small, "val")
    assert next(iter(short))["input_ids"].shape == (1, 608)
    state = short.state_dict()
    assert '"seq_len": 608' in str(state).replace("'", '"')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_loader(small, "val", 1, seq_len=608).load_state_dict(state)
    with pytest.warns(UserWarning, match="batch_size is 7"):
        assert create_loader(small, "train", dp_rank=1, dp_size=2).sampler_obj.batch_size == 7
    with pytest.raises(UsageError, match="15 samples are fewer than one global batch of 32"):
        create_loader(small, "train", 32)
    with pytest.raises(InputError, match="fewer than one window of 1,025"):
        create_loader(small, "val", seq_len=1024)


def test_data_modules_of_small_datasets(small: Path) -> None:
    """Items 31, 34: short splits are served, and an empty one has no loader."""
    module = UniversalDataModule(small)
    assert sum(len(batch["input_ids"]) for batch in module.train_dataloader()) == 15
    with pytest.warns(UserWarning, match="seq_len is 608"):
        assert next(iter(module.val_dataloader()))["input_ids"].shape == (1, 608)
    assert module.test_dataloader() is None
    assert UniversalDataModule([1, 2], val_data=[3], test_data=small).test_dataloader() is None


def test_a_split_that_cannot_be_served_is_no_matter_to_the_others(small: Path) -> None:
    """Item 31: rows are made when a loader is asked for; the remedy is an argument there is."""
    module = UniversalDataModule(small, rows={"seq_len": 1000})
    assert len(module.train_dataloader()) == 1
    error = refused(make=module.val_dataloader)
    assert "Use seq_len=608" in str(error) and str(small) in str(error)
    again = UniversalDataModule(small, rows={"seq_len": 608})
    assert len(again.val_dataloader()) == 1


def test_empty_splits_of_preferences(preferences: Path) -> None:
    """Item 34: they have no loader, and no advice to serve them as something else."""
    module = UniversalDataModule(preferences, task_spec=PREFERENCE, batch_size=2)
    assert next(iter(module.train_dataloader()))["chosen_input_ids"].shape[0] == 2
    assert module.val_dataloader() is None and module.test_dataloader() is None


@pytest.mark.parametrize("rows", [None, "packed", "documents", "windows", "pairs"])
def test_empty_splits_are_said_to_be_empty(small: Path, preferences: Path, rows: Any) -> None:
    """Item 121: whatever rows are asked for."""
    path = preferences if rows == "pairs" else small
    said = str(refused(path, "test", rows=rows))
    assert f"split test of {path}: has 0 documents. Use train" in said


def test_embeddings_and_pairs_by_their_path(tmp_path: Path) -> None:
    """Item 31: a data module serves every kind of dataset, open or by its path."""
    vectors, pairs = tmp_path / "vectors", tmp_path / "pairs"
    make_embeddings(vectors, {"embedding": np.ones((20, 3), "f4")})
    make_pairs(pairs, 20)
    for data, field in (
        (vectors, "embedding"), (open_arrays(vectors), "embedding"), (pairs, "question_emb"),
        (open_pairs(pairs), "question_emb"),
    ):  # fmt: skip
        module = UniversalDataModule(data, batch_size=4)
        rows = [len(batch[field]) for batch in module.train_dataloader()]
        assert sum(rows) == len(module.train_dataloader().dataset_obj)
        assert rows[0] == 4
    error = refused(vectors, make=UniversalDataModule, rows={"seq_len": 8})
    assert error.where == "seq_len"


def test_places_name_the_dataset(tmp_path: Path) -> None:
    """A damaged file is named with its dataset, when it is opened and when it is read."""
    path = tmp_path / "vectors"
    make_embeddings(path, {"embedding": np.ones((20, 3), "f4")})
    loader = create_loader(path, "train", 4, num_workers=0)
    file = path / "embedding" / "00000.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-12] + np.full(3, np.nan, "f4").tobytes())
    error = refused(make=lambda: [*loader, *create_loader(path, "val", 4)])
    assert (error.code, error.where) == ("E_FINITE", str(file))
    file.write_bytes(whole[:-1])
    error = refused(path, "train")
    assert (error.code, error.where) == ("E_SIZE", str(file))


def test_remedies_of_tasks_are_arguments(small: Path) -> None:
    """Item 121: what to pass is said in the words of the call."""
    ids = [{"input_ids": [1, 2]}] * 4
    lm, masked = TaskSpec.lm_tiny(), TaskSpec(name="m", task_type="masked_lm")
    said = str(refused(ids, make=UniversalDataModule, task_spec=lm))
    assert "Pass tokenizer=...;" in said and "collator_options={'pad_id': ...}" in said
    assert UniversalDataModule(ids, task_spec=lm, collator_options={"pad_id": 0})
    for task, missing in ((masked, "'mask_id': ..., 'vocab_size': ..."),
                          (TaskSpec.seq2seq_tiny(), "'decoder_start_id': ...")):  # fmt: skip
        said = str(refused(ids, make=UniversalDataModule, task_spec=task,
                           collator_options={"pad_id": 0}))  # fmt: skip
        assert "tokenizer=..." in said and f"collator_options={{{missing}}}" in said
    hide = MaskedLM(mask_id=3, vocab_size=257)
    with pytest.raises(UsageError, match=re.escape("Pass its method: MaskedLM(...).hide.")):
        create_loader(small, "train", transform=hide, seq_len=64)  # type: ignore[arg-type]


def test_what_is_no_dataset(tmp_path: Path) -> None:
    """Item 121: files, other directories and lists are told for what they are."""
    for name in ("docs.jsonl", "q.npy", "p.pt"):
        (tmp_path / name).write_bytes(b"{}")
        said = str(refused(tmp_path / name, "train"))
        assert "is a file" in said and f"dataprep build --input {tmp_path / name}" in said
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text("{}")
    error = refused(saved, "train")
    assert (error.code, error.exit_code) == ("E_LAYOUT", 7) and "no dataset" in error.problem
    (saved / "crc32.npy").write_bytes(b"")
    assert refused(saved, "train").code == "E_UNFINISHED"
    error = refused([1, 2, 3], "train")
    assert "got [1, 2, 3]" in error.problem and "weight" not in str(error)
