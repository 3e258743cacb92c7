"""Packed rows against plain Python loops over the documents."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataprep.formats.errors import InputError, IntegrityError, UsageError
from dataprep.formats.read import mapped as arena
from dataprep.formats.read.dataset import ReadBy, Split, open_dataset
from dataprep.runtime.choices import Algorithm, PackedOverlong
from dataprep.runtime.rows import plan_cache as packing_store
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.packing import PackingOptions
from dataprep.runtime.rows.plan_cache import Emit, stored_plan
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import IGNORED_LABEL, Labels
from tests.runtime.rows.test_packing import reference_rows
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.owned import check_owned
from tests.support import REPOSITORY, examples

Row = dict[str, list[int]]


def reference(
    documents: list[list[int]],
    masks: list[list[int]],
    options: PackingOptions,
    labels: Labels | None,
) -> list[Row]:
    """Every row, one token at a time."""
    starts = [0, *accumulate(len(ids) for ids in documents)]
    rows = []
    for pieces in reference_rows([len(ids) for ids in documents], options, 1 << 18):
        row: Row = {"input_ids": [], "labels": [], "position_ids": [], "doc_ids": []}
        for document, start, length, more in pieces:
            ids, mask = documents[document], masks[document]
            for position in range(length):
                at = start - starts[document] + position
                row["input_ids"].append(ids[at])
                ahead = 1 if labels == "shifted" else 0
                inside = (position + 1 < length or more) if ahead else position > 0
                train = inside and mask[at + ahead]
                row["labels"].append(ids[at + ahead] if train else IGNORED_LABEL)
                row["position_ids"].append(position)
                row["doc_ids"].append(document)
        fills = {"input_ids": EOS_ID, "labels": IGNORED_LABEL, "position_ids": 0, "doc_ids": -1}
        for name, fill in fills.items():
            row[name] += [fill] * (options.seq_len - len(row[name]))
        if labels is None:
            del row["labels"]
        rows.append(row)
    return rows


def lists(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


@pytest.fixture
def split(tmp_path: Path) -> Split:
    lengths = [[30, 0, 12], [], [7, 8], [100, 3, 1, 16]]
    path = make_dataset(tmp_path / "ds", {"train": random_split(lengths)})
    return open_dataset(path).split("train")


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    return tmp_path / "plans"


shard_layouts = st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=5)


@examples(15)
@given(
    lengths=shard_layouts,
    seq_len=st.integers(1, 50),
    pack=st.sampled_from(get_args(Algorithm)),
    overlong=st.sampled_from(["split", "truncate", "drop"]),
    labels=st.sampled_from([None, "shifted", "unshifted"]),
    vocab_size=st.sampled_from([257, 70_000]),
    masked=st.booleans(),
)
def test_rows_equal_the_reference(
    lengths: list[list[int]],
    seq_len: int,
    pack: Algorithm,
    overlong: PackedOverlong,
    labels: Labels | None,
    vocab_size: int,
    masked: bool,
) -> None:
    """One by one and as a batch, over any sharding, rows are those of the plain loop."""
    with TemporaryDirectory() as folder:
        shards = random_split(lengths, vocab_size=vocab_size)
        masks = random_split(lengths, seed=1, vocab_size=2 if masked else 1)
        path = make_dataset(
            Path(folder) / "ds", {"val": shards}, vocab_size=vocab_size,
            masks={"val": masks} if masked else None,
        )  # fmt: skip
        split = open_dataset(path).split("val")
        options = PackingOptions(seq_len=seq_len, algorithm=pack, overlong=overlong)
        documents = [ids.tolist() for shard in shards for ids in shard]
        train = [(ids if masked else ids + 1).tolist() for shard in masks for ids in shard]
        expected = reference(documents, train, options, labels)

        def packed() -> PackedDataset:
            return PackedDataset(
                split, seq_len=seq_len, algorithm=pack, overlong=overlong, labels=labels,
                position_ids=True, doc_ids=True, plan_dir=Path(folder) / "plans",
            )  # fmt: skip

        if not expected:
            with pytest.raises(InputError, match="no row can be packed"):
                packed()
            return
        rows = packed()
        assert [lists(rows[i]) for i in range(len(rows))] == expected
        batch = lists(rows.batch(range(len(rows))))
        assert batch == {name: [row[name] for row in expected] for name in expected[0]}


@pytest.mark.parametrize("mean", [5, 200])
def test_short_and_long_pieces_read_alike(tmp_path: Path, mean: int) -> None:
    """Both ways of copying, over many shards, give the documents."""
    lengths = np.random.default_rng(1).integers(0, 2 * mean, (5, 40)).tolist()
    shards = random_split(lengths)
    split = open_dataset(make_dataset(tmp_path / "ds", {"train": shards})).split("train")
    rows = PackedDataset(split, seq_len=512, plan_dir=tmp_path, doc_ids=True, labels=None)
    batch = {k: rows.numpy() for k, rows in rows.batch(np.arange(len(rows))).items()}
    for document, ids in enumerate(ids for shard in shards for ids in shard):
        assert batch["input_ids"][batch["doc_ids"] == document].tolist() == ids.tolist()


def test_sharding_does_not_change_rows(tmp_path: Path, plans: Path) -> None:
    """The same documents in one shard and in five give the same rows."""
    documents = [ids for shard in random_split([[17, 3, 60, 0] * 5]) for ids in shard]
    one = make_dataset(tmp_path / "one", {"train": [documents]})
    five = make_dataset(tmp_path / "5", {"train": [documents[i : i + 4] for i in range(0, 20, 4)]})
    batches = []
    for path in (one, five):
        rows = PackedDataset(open_dataset(path).split("train"), seq_len=32, plan_dir=plans)
        batches.append(lists(rows.batch(range(len(rows)))))
    assert batches[0] == batches[1]


def test_tensors_are_int64_and_share_nothing(split: Split, plans: Path) -> None:
    """Writing into one tensor of a batch changes neither the others nor the next batch."""
    for labels in get_args(Labels):
        rows = PackedDataset(
            split, seq_len=32, labels=labels, plan_dir=plans, position_ids=True, doc_ids=True
        )
        check_owned(rows, [0, 2])


def test_attention_boundaries(split: Split, plans: Path) -> None:
    """cu_seqlens cut the batch where documents change and where padding begins, at one length."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans, cu_seqlens=True, doc_ids=True)
    sizes = set()
    for index in range(len(rows)):
        batch = rows.batch([index, 0])
        flat = batch["doc_ids"].reshape(-1)
        edges = [0, *(i for i in range(1, 64) if flat[i] != flat[i - 1] or i % 32 == 0), 64]
        found = batch["cu_seqlens"].tolist()
        assert found[: len(edges)] == edges
        assert set(found[len(edges) :]) <= {64}
        assert batch["cu_seqlens"].dtype == torch.int32
        assert int(batch["max_seqlen"]) == max(np.diff(edges))
        sizes.add(len(found))
    assert len(sizes) == 1
    assert set(rows[0]) == {"input_ids", "labels", "doc_ids", "cu_seqlens", "max_seqlen"}


def test_padding_rows(split: Split, plans: Path) -> None:
    """Rows that only fill up are padding all over, False in the mask; others stay."""
    rows = PackedDataset(
        split, seq_len=32, plan_dir=plans, sample_mask=True, pad_id=3, doc_ids=True, cu_seqlens=True
    )
    batch = rows.batch([2, PADDING, 1, PADDING])
    assert batch["sample_mask"].tolist() == [True, False, True, False]
    assert set(batch["labels"][1::2].flatten().tolist()) == {IGNORED_LABEL}
    assert set(batch["input_ids"][1::2].flatten().tolist()) == {3}
    assert set(batch["doc_ids"][1::2].flatten().tolist()) == {-1}
    plain = PackedDataset(split, seq_len=32, plan_dir=plans, pad_id=3).batch([2, 1])
    assert torch.equal(batch["labels"][::2], plain["labels"])
    assert torch.equal(batch["input_ids"][::2], plain["input_ids"])
    assert len(rows.spans(np.array([PADDING]))[0]) == 0
    with pytest.raises(IndexError):
        PackedDataset(split, seq_len=32, plan_dir=plans).batch([PADDING])
    assert rows.batch([PADDING])["input_ids"].shape == (1, 32)
    assert rows.batch([])["input_ids"].shape == (0, 32)


def test_indices_follow_python(split: Split, plans: Path) -> None:
    """Negative indices count from the end; beyond either end is an IndexError."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans)
    assert lists(rows[-1]) == lists(rows[len(rows) - 1])
    for index in (len(rows), -len(rows) - 1, 1 << 62):
        with pytest.raises(IndexError):
            rows[index]


def test_report_and_definition(split: Split, plans: Path) -> None:
    """What was packed is told; what decides the samples is JSON."""
    rows = PackedDataset(split, seq_len=50, overlong="drop", plan_dir=plans)
    assert (rows.report.documents, rows.report.dropped_tokens) == (9, 100)
    assert rows.report.tokens == split.tokens - 100
    assert rows.report.rows == len(rows)
    assert rows.definition == {
        "kind": "packed", "split": "train", "seq_len": 50, "pack": "first-fit",
        "overlong": "drop", "chunk": 1 << 18, "version": 1,
        "labels": "shifted",
    }  # fmt: skip


def test_spans_are_what_is_read(split: Split, plans: Path) -> None:
    """The tokens between the starts and stops are those of the row, and of its last label."""
    stream = split.read(0, split.tokens)
    for labels, extra in (("shifted", 1), ("unshifted", 0)):
        rows = PackedDataset(split, seq_len=32, plan_dir=plans, labels=labels, doc_ids=True)  # type: ignore[arg-type]
        for index in range(len(rows)):
            starts, stops = rows.spans(np.array([index]))
            read = np.concatenate([stream[a:b] for a, b in zip(starts, stops, strict=True)])
            row = rows[index]
            real = row["input_ids"][row["doc_ids"] >= 0].tolist()
            assert read[: len(real)].tolist() == real
            assert len(read) - len(real) in {0, extra}
            if len(read) > len(real):
                assert row["labels"][-1] == read[-1]


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("labels", {"labels": "next"}),
        ("seq_len", {"seq_len": 0}),
        ("algorithm", {"algorithm": "worst-fit"}),
        ("overlong", {"overlong": "wrap"}),
        ("pad_id", {"pad_id": 257}),
        ("pad_id", {"pad_id": -1}),
        ("cu_seqlens", {"cu_seqlens": 0}),
    ],
)
def test_bad_arguments_are_named(
    split: Split, plans: Path, argument: str, options: dict[str, Any]
) -> None:
    """An impossible argument is a UsageError that names it."""
    with pytest.raises(UsageError) as caught:
        PackedDataset(split, **{"seq_len": 8, "plan_dir": plans, **options})
    assert caught.value.where == argument


def test_overlong_error_keeps_no_plan(split: Split, plans: Path) -> None:
    """The document is named, and nothing is left that another option could take for a plan."""
    with pytest.raises(InputError, match="document 5: has 100 tokens, more than seq_len 64"):
        PackedDataset(split, seq_len=64, overlong="error", plan_dir=plans)
    assert list(plans.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("start", 161, 1 << 15),  # outside the split
        ("length", 16, 17),  # outside the split by one
        ("length", 8, 9),  # runs over the end of a shard
        ("length", 4, 20),  # more than the row has room for
        ("length", 30, 0),
        ("rows", 2, 5000),
        ("rows", 2, 0),
        ("rows", 11, 12),  # a piece more than there are
        ("document", 8, 9),
    ],
)
def test_changed_plan_serves_nothing_impossible(
    split: Split, plans: Path, name: str, value: int, other: int
) -> None:
    """A plan with a number that cannot be is an error where it is met, never another's memory."""
    array = np.array(PackedDataset(split, seq_len=32, plan_dir=plans).plan.arrays[name])
    array[array.tolist().index(value)] = other
    change_plan(split, plans, name, array)
    for io in ("mmap", "pread"):
        same = open_dataset(split.dataset.path, io=io).split("train")
        rows = PackedDataset(same, seq_len=32, plan_dir=plans)
        with pytest.raises(IntegrityError, match="plan was changed"):
            for index in range(len(rows)):
                rows[index]


def change_plan(split: Split, plans: Path, name: str, array: npt.NDArray[Any]) -> None:
    """Put a plan with the hashes of its own, wrong, numbers in the place of the true one."""
    plan = PackedDataset(split, seq_len=32, plan_dir=plans).plan
    assert plan.path
    arrays = {**plan.arrays, name: array}
    plan.path.unlink()

    def emit_all(emit: Emit) -> dict[str, int]:
        emit(arrays)
        return plan.report

    stored_plan(plan.definition, {n: a.dtype.str for n, a in arrays.items()}, emit_all, plans)


def test_no_document_is_looked_for_outside_the_plan(split: Split, plans: Path) -> None:
    """Rows that a changed plan says a piece is in are refused where it is not."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans)
    assert rows.covering(0, split.tokens).tolist() == list(range(len(rows)))
    change_plan(split, plans, "rows", np.full_like(rows.plan.arrays["rows"], 11))
    with pytest.raises(IntegrityError, match="plan was changed"):
        PackedDataset(split, seq_len=32, plan_dir=plans).covering(0, split.tokens)


def test_a_flipped_bit_of_the_plan_serves_no_wrong_row(split: Split, plans: Path) -> None:
    """Rows are the same whatever bit of the stored plan flips: it is made again."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans)
    assert rows.plan.path
    expected, data = lists(rows.batch(range(len(rows)))), rows.plan.path.read_bytes()
    for at in range(0, len(data), 41):
        changed = bytearray(data)
        changed[at] ^= 1
        rows.plan.path.write_bytes(changed)
        again = PackedDataset(split, seq_len=32, plan_dir=plans)
        assert lists(again.batch(range(len(again)))) == expected


def test_plans_need_no_map(
    split: Split, plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With io="pread" rows are read where the system refuses maps."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def batches(io: ReadBy, folder: Path) -> list[dict[str, Any]]:
        same = open_dataset(split.dataset.path, io=io).split("train")
        packed = PackedDataset(same, seq_len=32, plan_dir=folder, doc_ids=True, cu_seqlens=True)
        documents = DocumentDataset(same, plan_dir=folder, min_tokens=4)
        return [lists(rows.batch([2, 0, 1, 1])) for rows in (packed, documents)]

    expected = batches("mmap", plans)
    monkeypatch.setattr(packing_store, "_READ_WHOLE", 0)
    monkeypatch.setattr(mmap, "mmap", refused)
    monkeypatch.setattr(np, "memmap", refused)
    monkeypatch.setattr(arena, "_mmap", refused)
    assert batches("pread", plans) == batches("pread", tmp_path / "new") == expected


def test_damaged_offsets_are_named(split: Split, plans: Path) -> None:
    """Documents that do not add up to their shard are refused before a plan is kept."""
    file = split.dataset.path / "train" / "docs-00002.npy"
    array = np.load(file, allow_pickle=False)
    array[-1] += 1
    file.write_bytes(file.read_bytes()[: -array.nbytes] + array.tobytes())
    with pytest.raises(IntegrityError, match=r"train/docs-00002\.npy: its documents have 16"):
        PackedDataset(split, seq_len=32, plan_dir=plans)
    assert list(plans.iterdir()) == []


def test_pickles_small_and_opens_the_plan(split: Split, plans: Path) -> None:
    """A used dataset pickles in under 1 kB and serves the same after."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans, cu_seqlens=True, pad_id=1)
    before = lists(rows.batch([0, 1, 2]))
    data = pickle.dumps(rows)
    assert len(data) < 1000
    assert lists(pickle.loads(data).batch([0, 1, 2])) == before


def test_plans_are_equal_in_another_process(split: Split, plans: Path, tmp_path: Path) -> None:
    """Another interpreter, with another hash seed, makes the same bytes."""
    PackedDataset(split, seq_len=32, algorithm="best-fit", plan_dir=plans)
    code = (
        "from dataprep.formats.read.dataset import open_dataset\n"
        "from dataprep.runtime.rows.packing import PackingOptions\n"
        "from dataprep.runtime.rows.packing_plan import packing_plan\n"
        f"split = open_dataset({str(split.dataset.path)!r}).split('train')\n"
        "options = PackingOptions(seq_len=32, algorithm='best-fit')\n"
        f"packing_plan(split, options, {str(tmp_path / 'other')!r})\n"
        "import sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
    here, there = (
        {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (plans, tmp_path / "other")
    )
    assert here == there
    assert len(here) == 1


def test_serves_a_stock_dataloader(split: Split, plans: Path) -> None:
    """torch's DataLoader takes it, with its default collate function."""
    rows = PackedDataset(split, seq_len=32, plan_dir=plans)
    loader = DataLoader(rows, batch_size=2)
    found = torch.cat([batch["input_ids"] for batch in loader])
    assert torch.equal(found, rows.batch(range(len(rows)))["input_ids"])
