"""Rows of embeddings: every type, any shards, scales, fields, loaders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dataprep.formats.errors import IncompatibleError, InputError, IntegrityError, UsageError
from dataprep.formats.files.index_file import write_index
from dataprep.formats.read.arrays import open_arrays
from dataprep.runtime.arrays.embeddings import EmbeddingDataset
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.sample_numbers import PADDING
from tests.scenes.loaders import make_loader
from tests.scenes.pair_datasets import make_embeddings

ROWS, DIM = 30, 5
Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    """One array of each kind."""
    random = np.random.default_rng(0)
    floats = random.standard_normal((ROWS, DIM))
    return {
        "embedding": floats.astype("f4"),
        "half": floats.astype("f2"),
        "brain": torch.from_numpy(floats).bfloat16().view(torch.uint16).numpy(),
        "small": random.integers(-127, 128, (ROWS, DIM)).astype("i1"),
        "small_scale": random.random(ROWS).astype("f4"),
        "matrix": floats.astype("f8").reshape(ROWS, DIM, 1),
        "label": np.arange(ROWS),
        "flag": np.arange(ROWS) % 2 == 0,
        "provenance": np.arange(2 * ROWS, dtype="u8").reshape(ROWS, 2),
    }


@pytest.fixture(scope="module", params=[1 << 30, 64], ids=["one shard", "many"])
def path(request: pytest.FixtureRequest, tmp_path_factory: Any, arrays: Arrays) -> Path:
    """The arrays as a dataset; every third row is in val."""
    return make_embeddings(
        tmp_path_factory.mktemp("rows") / "e", arrays, shard_bytes=request.param,
        dtypes={"brain": "bfloat16"}, scales={"small": "small_scale"},
    )  # fmt: skip


def dataset(path: Path, split: str = "train", **options: Any) -> EmbeddingDataset:
    return EmbeddingDataset(open_arrays(path).split(split), **options)


def expected(arrays: Arrays, name: str, row: int) -> torch.Tensor:
    """One row, computed by itself."""
    if name == "small":
        return torch.tensor(arrays["small"][row].astype("f4") * arrays["small_scale"][row])
    found = torch.tensor(arrays[name][row])
    return found.view(torch.bfloat16) if name == "brain" else found


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_rows_are_the_stored_ones(path: Path, arrays: Arrays, io: Any) -> None:
    """Every field, in its type, in any order, from any number of shards."""
    rows = np.flatnonzero(np.arange(ROWS) % 3 != 1)
    found = EmbeddingDataset(open_arrays(path, io=io).split("train"))
    fields = ("embedding", "half", "brain", "small", "matrix", "label", "flag")
    assert found.fields == fields
    asked = [19, 0, 7, 7, 3]
    batch = found.batch(asked)
    assert list(batch) == list(fields)
    for name in fields:
        wanted = torch.stack([expected(arrays, name, rows[k]) for k in asked])
        assert batch[name].dtype == wanted.dtype
        assert torch.equal(batch[name], wanted), name
        assert torch.equal(found[-1][name], expected(arrays, name, rows[-1]))
    batch["embedding"][:] = 0  # its own memory
    assert torch.equal(found[7]["embedding"], expected(arrays, "embedding", rows[7]))
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again[3]["small"], found[3]["small"])


def test_options(path: Path, arrays: Arrays) -> None:
    """Chosen fields, raw numbers, another type."""
    batch = dataset(path, fields=["small", "provenance"], raw=True).batch([1])
    assert list(batch) == ["small", "provenance"]
    np.testing.assert_array_equal(batch["small"].numpy(), arrays["small"][[2]])
    wide = dataset(path, dtype=torch.float64).batch([0, 1])
    assert {name: t.dtype for name, t in wide.items() if t.is_floating_point()} == dict.fromkeys(
        ("embedding", "half", "brain", "small", "matrix"), torch.float64
    )
    assert wide["label"].dtype == torch.int64
    assert not dataset(path).batch([])["label"].numel()


def test_rows_that_fill(path: Path) -> None:
    """A filler repeats sample 0 and is marked; without marks it is no index."""
    batch = dataset(path, sample_mask=True).batch([4, PADDING])
    assert batch["sample_mask"].tolist() == [True, False]
    assert batch["label"].tolist()[1] == 0
    with pytest.raises(IndexError):
        dataset(path).batch([PADDING])
    for wrong in ([20], [-1]):
        with pytest.raises(IndexError, match="split train: sample"):
            dataset(path).batch(wrong)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"fields": ["nothing"]}, None),
        ({"fields": "label"}, "fields"),
        ({"fields": []}, "fields"),
        ({"fields": ["label", "label"]}, "fields"),
        ({"dtype": torch.int64}, "dtype"),
    ],
)
def test_wrong_options(path: Path, options: dict[str, Any], where: str | None) -> None:
    """Each is named."""
    with pytest.raises(UsageError) as caught:
        dataset(path, **options)
    assert where is None or caught.value.where == where


def test_loader(path: Path) -> None:
    """Items 84, 85: train is shuffled in whole batches, val is stored order to the end."""
    loader = make_loader(path, "train", 6)
    labels = [batch["label"].tolist() for batch in loader]
    rows = [k for k in range(ROWS) if k % 3 != 1]
    assert [len(one) for one in labels] == [6, 6, 6]
    served = [label for one in labels for label in one]
    assert len(set(served)) == 18
    assert set(served) < set(rows)
    assert served != sorted(served)
    assert [b["label"].tolist() for b in loader] != labels  # another epoch
    val = make_loader(path, "val", 4, fields=["label"])
    assert [b["label"].tolist() for b in val] == [[1, 4, 7, 10], [13, 16, 19, 22], [25, 28]]
    assert val.stats().samples == 10
    assert isinstance(loader.dataset_obj, EmbeddingDataset)
    assert loader.sampler_obj.batch_size == 6


def test_loader_goes_on(path: Path) -> None:
    """A state serves the rest of the epoch, by workers too; blocks and skips work."""
    whole = [b["label"].tolist() for b in make_loader(path, "train", 4, seed=3)]
    loader = make_loader(path, "train", 4, seed=3)
    passing = iter(loader)
    next(passing), next(passing)
    later = make_loader(
        path, "train", 4, 2, seed=3, multiprocessing_context="fork", fields=["label"]
    )
    later.load_state_dict(loader.state_dict())
    assert [b["label"].tolist() for b in later] == whole[2:]
    list(passing)
    assert later.order_digest == loader.order_digest
    blocks = make_loader(path, "train", 4, shuffle="blocks", skip=[0, 1])
    served = {label for b in blocks for label in b["label"].tolist()}
    assert not served & {0, 2}
    mock = make_loader(path, "train", 4, mock=True)
    assert {len(b["label"]) for b in mock} == {4}
    validate_first_batch(mock)


def test_first_batch(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 98: NaN is named with field, row and column, and nothing is served by looking."""
    loader = make_loader(path, "train", 4)
    assert torch.equal(validate_first_batch(loader)["label"], next(iter(loader))["label"])
    bad = make_embeddings(
        tmp_path / "bad", {"embedding": np.zeros((8, 3), "f4")}, splits={"train": np.arange(8)}
    )
    loader = make_loader(bad, "train", 8, shuffle=False)
    step, batch = loader.upcoming()
    batch["embedding"][5, 2] = np.nan
    monkeypatch.setattr(loader, "upcoming", lambda: (step, batch))
    with pytest.raises(IncompatibleError) as caught:
        validate_first_batch(loader)
    assert str(caught.value).startswith("error[E_BATCH] embedding: row 5, column 2 is nan")
    assert not isinstance(caught.value, AssertionError)


EDITED = {
    "<f4": (np.inf, "E_FINITE", "row 5[2] is inf, must be finite"),
    "<f2": (np.nan, "E_FINITE", "row 5[2] is nan, must be finite"),
    "<f8": (-np.inf, "E_FINITE", "row 5[2] is -inf, must be finite"),
    "|b1": (9, "E_BOOL", "row 5[2] is 9, must be 0 or 1"),
}


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("dtype", EDITED)
def test_numbers_that_no_build_writes_are_not_served(tmp_path: Path, dtype: str, io: Any) -> None:
    """An edited row is named by the batch that meets it, every time; other rows are served."""
    value, code, problem = EDITED[dtype]
    array = np.zeros((9, 3), dtype)
    (array.view("|u1") if dtype == "|b1" else array)[5, 2] = value
    made = make_embeddings(tmp_path / "e", {"a": array}, splits={"train": np.arange(9)})
    found = EmbeddingDataset(open_arrays(made, io=io).split("train"))
    for _ in range(2):
        assert len(found.batch([4, 6, 4])["a"]) == 3
        with pytest.raises(IntegrityError) as caught:
            found.batch([4, 5])
        assert (caught.value.where, caught.value.code) == ("a/00000.npy", code)
        assert problem in caught.value.problem


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    """An index that names a row there is not: file, row, value and limit."""
    made = make_embeddings(tmp_path / "e", {"a": np.zeros((9, 2), "f4")})
    with (made / "train_idx.pt").open("r+b") as stream:
        write_index(stream, [np.array([0, 2, 3, 5, 9, 8])], 6)
    loader = make_loader(made, "train", 6, shuffle=False)
    with pytest.raises(IntegrityError) as caught:
        next(iter(loader))
    assert caught.value.where == str(made / "train_idx.pt")
    assert "row 4 holds 9, but there are 9 rows" in caught.value.problem


def test_empty_and_small_splits(tmp_path: Path) -> None:
    """Item 101: an empty split and one smaller than a batch say what to do."""
    made = make_embeddings(
        tmp_path / "e", {"a": np.zeros((3, 2), "f4")},
        splits={"train": np.arange(3), "test": np.arange(0)},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"has no rows.*Use train"):
        make_loader(made, "test", 1)
    with pytest.raises(UsageError, match="3 samples are fewer than one global batch of 4"):
        make_loader(made, "train", 4)
    assert len(list(make_loader(made, "train", 4, drop_last=False))) == 1


@pytest.mark.parametrize(
    "options", [{"seq_len": 8}, {"rows": "packed"}, {"doc_ids": True}, {"clusters": [1]},
                {"preload": True}, {"labels": None}],
)  # fmt: skip
def test_options_of_other_kinds(path: Path, options: dict[str, Any]) -> None:
    """What means nothing for embeddings is refused by name."""
    with pytest.raises(UsageError) as caught:
        make_loader(path, "train", 2, **options)
    assert caught.value.where in {"rows", *options}


def test_spans_are_where_rows_lie(path: Path) -> None:
    """The numbers announced are those of the rows, over all tracks."""
    found = dataset(path, fields=["label", "embedding"])
    starts, stops = found.spans(np.array([0, 5, PADDING]))
    rows = np.array([0, 8])
    np.testing.assert_array_equal(starts, [*rows, *(rows * DIM + ROWS)])
    assert (stops > starts).all()
    assert stops.max() <= ROWS + ROWS * DIM


def test_a_type_that_is_none(path: Path) -> None:
    """A name is no type: it is said, and not stumbled over."""
    for wrong in ("float16", torch.int8):
        with pytest.raises(UsageError, match="must be a floating-point type of torch"):
            dataset(path, dtype=wrong)
