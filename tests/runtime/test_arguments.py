"""Arguments of the wrong type, and numbers that cannot be meant, are told when a loader is made."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.loader import serve
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader

SEQ_LEN = 16
COUNTS = ("batch_size", "seq_len", "stride", "num_workers", "prefetch", "seed", "epoch")
FLAGS = (
    "drop_last", "pin_memory", "distributed", "position_ids", "doc_ids", "mock", "source_ids",
    "weights_changed", "mixed_tokenizers",
)  # fmt: skip
OF_MIXTURES = FLAGS[-3:]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 windows of 16, of 1,071 tokens."""
    splits = {"train": random_split([[300, 41], [0], [600, 130]], seed=1)}
    return make_dataset(tmp_path_factory.mktemp("arguments") / "shards", splits)


def make(place: Any, **options: Any) -> Any:
    return make_loader(place, "train", **{"batch_size": 4, "seq_len": SEQ_LEN} | options)


def refused(place: Any, where: str, problem: str, **options: Any) -> UsageError:
    """The error of `make`, which must be about `where` and say `problem`."""
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        make(place, **options)
    assert caught.value.where == where
    return caught.value


@pytest.mark.parametrize("value", ["8", 2.0, True, np.True_, [2]], ids=repr)
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers(shards: Path, name: str, value: Any) -> None:
    """One wording for all of them; True is no number."""
    refused(shards, name, f"must be a whole number, got {value!r}", **{name: value})


@pytest.mark.parametrize(
    "name", [name for name in COUNTS if name not in ("stride", "seq_len", "seed", "batch_size")]
)
def test_counts_that_must_be_given(shards: Path, name: str) -> None:
    refused(shards, name, "must be a whole number, got None", **{name: None})


@pytest.mark.parametrize("rows", ["windows", "packed", "documents"])
def test_every_kind_of_rows_calls_the_length_seq_len(shards: Path, rows: str) -> None:
    refused(shards, "seq_len", "must be a whole number, got '16'", rows=rows, seq_len="16")


@pytest.mark.parametrize("name", ["batch_size", "seq_len", "stride"])
@pytest.mark.parametrize("value", [0, -1])
def test_one_wording_for_what_is_too_small(shards: Path, name: str, value: int) -> None:
    refused(shards, name, f"must be at least 1, got {value}", **{name: value})


@pytest.mark.parametrize("value", ["no", 0, 1, "x", 1.0], ids=repr)
@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(shards: Path, name: str, value: Any) -> None:
    place = {shards: 1} if name in OF_MIXTURES else shards
    refused(place, name, f"must be True or False, got {value!r}", **{name: value})


@pytest.mark.parametrize("value", ["x", 2.5, None], ids=repr)
@pytest.mark.parametrize("rows", ["windows", "packed"])
def test_cu_seqlens_is_a_flag_or_a_number(shards: Path, rows: str, value: Any) -> None:
    problem = f"must be a whole number, got {value!r}"
    refused(shards, "cu_seqlens", problem, rows=rows, cu_seqlens=value)


def test_types_of_numpy_are_as_good(shards: Path) -> None:
    """Numbers and flags that were read from arrays do what Python's own do."""
    eight, off, on = np.int64(8), np.False_, np.True_
    loader = make(
        shards, batch_size=eight, seq_len=np.uint16(16), stride=eight, num_workers=np.int8(0),
        prefetch=np.int32(1), drop_last=off, pin_memory=off, mock=off, position_ids=on,
        doc_ids=off, cu_seqlens=on, shuffle=off, distributed=off,
    )  # fmt: skip
    plain = make(
        shards, batch_size=8, stride=8, prefetch=1, drop_last=False, position_ids=True,
        cu_seqlens=True, shuffle=False,
    )  # fmt: skip
    assert loader.state_dict() == plain.state_dict()
    batch = next(iter(loader))
    assert {*batch} == {"input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"}


@pytest.mark.parametrize("skip", [5, 2.5], ids=repr)
def test_skip_is_a_list(shards: Path, skip: Any) -> None:
    refused(shards, "skip", f"must be whole numbers from 0 to 2**48 - 1, got {skip}", skip=skip)
    refused({shards: 1}, "skip", f"got {skip}", skip={shards: skip})


@pytest.mark.parametrize("several", [False, True])
def test_no_skip_list(shards: Path, several: bool) -> None:
    """None skips nothing."""
    place = {shards: 1} if several else shards
    expected = make(place).state_dict()
    assert make(place, skip=None).state_dict() == expected
    if several:
        assert make(place, skip={shards: None}).state_dict() == expected


@pytest.mark.parametrize("place", [None, 5, ()], ids=repr)
def test_what_is_no_place(place: Any) -> None:
    problem = f"must be a path or an open dataset, got {place!r}"
    refused(place, "dataset_dir", problem)
    refused({place: 1}, "dataset_dir", problem)


@pytest.mark.parametrize("places", [["A", "B"], ("A", "B")], ids=repr)
def test_several_places_need_weights(places: Any) -> None:
    error = refused(places, "dataset_dir", "a weight each")
    assert 'Pass {"A": 1, "B": 1}.' in str(error)


def test_a_place_that_stands_twice_is_named_once() -> None:
    assert 'Pass {"A": 2, "B": 1}.' in str(refused(["A", "B", "A"], "dataset_dir", "a weight each"))


def test_weights_are_numbers(shards: Path) -> None:
    refused({shards: True}, f"weight {shards}", "must be a positive number, got True")


def test_no_remedy_that_there_is_not(shards: Path) -> None:
    """`create_loader` has no max_period, so the remedy says what has."""
    error = refused({shards: 1, f"{shards}/": 1e-9}, f"weight {shards}/", "get none")
    assert "pass max_period=1000000001 to MixtureDataset.mixture and serve that" in str(error)


@pytest.mark.parametrize(
    ("where", "problem", "options"),
    [
        ("batch_size", "must be a whole number, got 8.0", {"batch_size": 8.0}),
        ("seed", "must be a whole number, got '7'", {"seed": "7"}),
        ("epoch", "must be a whole number, got '1'", {"epoch": "1"}),
        ("epoch", "must be at least 0, got -1", {"epoch": -1}),
        ("dp_rank", "must be a whole number, got '0'", {"dp_rank": "0"}),
        ("dp_size", "must be a whole number, got None", {"dp_size": None}),
        ("block", "must be a whole number, got 2.0", {"block": 2.0}),
        ("window", "must be a whole number, got '2'", {"window": "2"}),
        ("buffer", "must be a whole number, got True", {"buffer": True}),
        ("infinite", "must be True or False, got 'no'", {"infinite": "no"}),
    ],
)
def test_streams_say_the_same(
    shards: Path, where: str, problem: str, options: dict[str, Any]
) -> None:
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=SEQ_LEN)
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        StreamDataset(windows, **options)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("where", "problem", "options"),
    [
        ("num_workers", "must be a whole number, got '2'", {"num_workers": "2"}),
        ("num_workers", "must be at least 0, got -1", {"num_workers": -1}),
        ("prefetch_factor", "must be a whole number, got 2.0", {"prefetch_factor": 2.0}),
        ("pin_memory", "must be True or False, got 'x'", {"pin_memory": "x"}),
    ],
)
def test_loaders_of_streams_say_the_same(
    shards: Path, where: str, problem: str, options: dict[str, Any]
) -> None:
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=SEQ_LEN)
    numbers: Any = np.arange(8)
    stream = StreamDataset(windows, batch_size=numbers[4], seed=numbers[7])
    with pytest.raises(UsageError, match="epoch: must be a whole number, got '1'"):
        stream.set_epoch("1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        stream_loader(stream, **options)
    assert caught.value.where == where


def test_the_first_batch_says_the_same(shards: Path) -> None:
    loader = make(shards)
    with pytest.raises(UsageError, match="vocab_size: must be a whole number, got '1000'"):
        validate_first_batch(loader, vocab_size="1000")  # type: ignore[arg-type]
    validate_first_batch(loader, vocab_size=np.int64(1 << 16))  # type: ignore[arg-type]


def test_documents_say_the_same(shards: Path) -> None:
    split = open_dataset(shards).split("train")
    with pytest.raises(UsageError, match="max_length: must be a whole number, got '16'"):
        DocumentDataset(split, max_length="16")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="position_ids: must be True or False, got 'x'"):
        DocumentDataset(split, position_ids="x")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 16: eight documents that fill one, then some with padding behind them."""
    splits = {"train": random_split([[2] * 8 + [12, 1, 1]], seed=3)}
    return make_dataset(tmp_path_factory.mktemp("short") / "shards", splits)


@pytest.mark.parametrize("several", [False, True])
def test_room_for_segments_is_known_at_once(short: Path, several: bool) -> None:
    """Packed rows say what `cu_seqlens` must be, and take exactly that."""
    place = {short: 1} if several else short
    dataset = PackedDataset(open_dataset(short).split("train"), seq_len=SEQ_LEN)
    most = 0
    for row in range(len(dataset)):
        fields = PackedDataset(dataset.split, seq_len=SEQ_LEN, cu_seqlens=True)[row]
        most = max(most, int((fields["cu_seqlens"].diff() > 0).sum()))
    error = refused(
        place, "cu_seqlens", f"holds {most} segments, more than {most - 1}", rows="packed",
        cu_seqlens=most - 1, batch_size=1,
    )  # fmt: skip
    assert error.code == "E_SEGMENTS"
    assert f"Use cu_seqlens={most} or more; cu_seqlens=True always fits." in str(error)
    loader = make(place, rows="packed", cu_seqlens=most, batch_size=1)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(
    ("documents", "segments"),
    [([8, 8], 2), ([8, 7], 3), ([4, 4, 4, 4, 9, 1], 4), ([8, 8, 1], 2)],
)
def test_padding_takes_a_segment(documents: list[int], segments: int, tmp_path: Path) -> None:
    """A full row needs none for it: what fits must not be refused."""
    shards = make_dataset(tmp_path / "shards", {"train": random_split([documents], seed=4)})
    make(shards, rows="packed", cu_seqlens=segments, batch_size=1)
    refused(
        shards, "cu_seqlens", f"holds {segments} segments", rows="packed",
        cu_seqlens=segments - 1, batch_size=1,
    )  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("rows", ["windows", "packed"])
def test_batches_beyond_the_memory(shards: Path, rows: str, several: bool) -> None:
    """Padded to 10**12 rows, one batch would take the machine with it."""
    place = {shards: 1} if several else shards
    pad = {"rows": rows, "drop_last": False, "dp_rank": 0, "dp_size": 2}
    error = refused(place, "batch_size", "takes 119,209 GiB or more", batch_size=10**12, **pad)
    assert "Use a smaller batch_size." in str(error)


def test_memory_bounds_only_what_is_made(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 rows for 66 samples among two ranks go on; so does a batch that is not filled up."""
    pad = {"drop_last": False, "dp_rank": 0, "dp_size": 2}
    monkeypatch.setattr(serve, "memory", lambda: 64 * SEQ_LEN * 8)
    assert len(next(iter(make(shards, batch_size=64, **pad)))["input_ids"]) == 64
    refused(shards, "batch_size", "a batch of 65 rows takes", batch_size=65, **pad)
    monkeypatch.setattr(serve, "memory", lambda: 66 * SEQ_LEN * 8)
    assert len(next(iter(make(shards, batch_size=10**9, drop_last=False)))["input_ids"]) == 66
    monkeypatch.setattr(serve, "memory", lambda: 0)  # unknown
    assert len(make(shards, batch_size=70, **pad)) == 1


@pytest.mark.parametrize("several", [False, True])
def test_tokens_that_a_stride_leaves_out(shards: Path, several: bool) -> None:
    """Counted over the whole split, and told once."""
    place = {shards: 1} if several else shards
    # 22 windows of 17 tokens begin at 0, 50, 100, ..., 1050.
    with pytest.warns(UserWarning, match=r"697 of the 1,071 tokens of split train") as told:
        loader = make(place, stride=50)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


@pytest.mark.parametrize("options", [{}, {"stride": 17}, {"stride": 3}, {"labels": None}])
def test_few_tokens_at_the_end_are_no_news(shards: Path, options: dict[str, Any]) -> None:
    """With shifted labels a window reads 17 tokens; pytest takes warnings for errors."""
    assert len(make(shards, **options))
