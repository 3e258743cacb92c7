"""Batches of several datasets against the rows that each gives alone."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.loader.batch_sampler import GlobalBatchSampler
from dataprep.runtime.loader.serve import serve_steps
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.order.permutation import Sequential
from dataprep.runtime.padding import Side
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import IGNORED_LABEL, Batch
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.support import examples

Samples = npt.NDArray[np.int64]
SEQ_LEN = 8


class Windows(WindowDataset):
    """Windows with what a mixture asks for besides."""

    @property
    def definition(self) -> dict[str, str | int | None]:
        return {"kind": "windows", "seq_len": self.seq_len, "stride": self.stride}

    def spans(self, samples: Samples) -> tuple[Samples, Samples]:
        starts = samples * self.stride
        return starts, starts + self.seq_len + 1

    def batch(self, indices: Sequence[int] | Samples) -> Batch:
        return super().batch(np.asarray(indices).tolist())


class Segmented(Windows):
    """Rows cut at token ids below 40, with room for `room` segments each."""

    def __init__(self, split: Split, *, seq_len: int, room: int) -> None:
        super().__init__(split, seq_len=seq_len)
        self.room = room

    def batch(self, indices: Sequence[int] | Samples) -> Batch:
        batch = super().batch(indices)
        cut = batch["input_ids"].numpy() < 40
        cut[:, :1] = True
        begins = np.flatnonzero(cut)
        stops = np.append(begins[1:], cut.size)[: len(begins)]
        cu_seqlens = np.full(len(cut) * self.room + 1, cut.size, np.int32)
        cu_seqlens[: len(begins)] = begins
        batch["cu_seqlens"] = torch.from_numpy(cu_seqlens)
        batch["max_seqlen"] = torch.tensor((stops - begins).max(initial=0))
        return batch


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Split]:
    """Three datasets of 12, 41 and 5 windows of 8; the last with another tokenizer."""
    root, found = tmp_path_factory.mktemp("mixture"), []
    for number, (tokens, vocabulary) in enumerate([(100, 257), (335, 257), (45, 300)]):
        shards = random_split([[tokens - 9, 9]], seed=number)
        path = make_dataset(root / str(number), {"train": shards}, vocab_size=vocabulary)
        found.append(open_dataset(path).split("train"))
    return found


@pytest.fixture(scope="module")
def both(splits: list[Split]) -> MixtureDataset:
    windows = [Windows(split, seq_len=SEQ_LEN, sample_mask=True) for split in splits[:2]]
    return MixtureDataset({"prose": windows[0], "code": windows[1]}, source_ids=True)


def expected_row(both: MixtureDataset, sample: int) -> dict[str, Any]:
    """One sample from its own dataset."""
    source = int(sample >= 12)
    dataset = list(both.sources.values())[source]
    batch = dataset.batch(np.array([sample - 12 * source]))
    return {**{name: rows[0].tolist() for name, rows in batch.items()}, "source": source}


@examples(40)
@given(samples=st.lists(st.integers(0, 52), max_size=12))
def test_rows_are_those_of_the_sources(both: MixtureDataset, samples: list[int]) -> None:
    """Whatever the sources of a batch, row i is sample i, and memory is shared with nothing."""
    batch = both.batch(samples)
    rows = [{name: rows[i].tolist() for name, rows in batch.items()} for i in range(len(samples))]
    assert rows == [expected_row(both, sample) for sample in samples]
    assert batch["input_ids"].shape == (len(samples), SEQ_LEN)
    assert {t.dtype for name, t in batch.items() if name != "sample_mask"} == {torch.int64}
    for tensor in batch.values():
        tensor.fill_(0)
    assert [expected_row(both, sample) for sample in samples] == rows


def test_single_samples_and_length(both: MixtureDataset) -> None:
    """Without a batch axis, from either end; beyond is an IndexError."""
    assert len(both) == 53
    for index in (0, 11, 12, 52, -1, -53):
        row = {name: tensor.tolist() for name, tensor in both[index].items()}
        assert row == expected_row(both, index % 53)
    for index in (53, -54):
        with pytest.raises(IndexError, match="outside 0:53"):
            both[index]
    with pytest.raises(IndexError, match="outside 0:53"):
        both.batch([0, PADDING + 1])


def test_padding_rows(both: MixtureDataset) -> None:
    """Rows that only fill are masked, ignored by the loss, and of no source; also alone."""
    batch = both.batch([20, PADDING, 3, PADDING, 52])
    assert batch["sample_mask"].tolist() == [True, False, True, False, True]
    assert batch["source"].tolist() == [1, -1, 0, -1, 1]
    assert (batch["labels"][1::2] == IGNORED_LABEL).all()
    assert torch.equal(batch["labels"][::2], both.batch([20, 3, 52])["labels"])
    alone = both.batch([PADDING, PADDING])
    assert alone["sample_mask"].tolist() == [False, False]
    assert alone["source"].tolist() == [-1, -1]


def test_spans_are_numbered_over_the_splits(both: MixtureDataset) -> None:
    """What samples touch, in the tokens of one split after the other; padding touches nothing."""
    assert [split.tokens for split in both.splits] == [100, 335]
    starts, stops = both.spans(np.array([13, 2, PADDING, 12]))
    assert sorted(zip(starts.tolist(), stops.tolist(), strict=True)) == [
        (16, 25), (100, 109), (108, 117),
    ]  # fmt: skip
    assert [a.tolist() for a in both.spans(np.array([PADDING]))] == [[], []]


@examples(40)
@given(samples=st.lists(st.integers(0, 52), min_size=1, max_size=9))
def test_segments_move_with_their_rows(splits: list[Split], samples: list[int]) -> None:
    """cu_seqlens over rows of two sources are those of the rows laid end to end."""
    mixed = MixtureDataset(
        {
            str(i): Segmented(split, seq_len=SEQ_LEN, room=SEQ_LEN)
            for i, split in enumerate(splits[:2])
        }
    )
    batch = mixed.batch(samples)
    stops, longest = [0], 0
    for sample in samples:
        row = mixed.batch([sample])
        lengths = row["cu_seqlens"].diff()
        stops += (stops[-1] + lengths[lengths > 0].cumsum(0)).tolist()
        longest = max(longest, int(row["max_seqlen"]))
    stops += [stops[-1]] * (len(samples) * SEQ_LEN + 1 - len(stops))
    assert batch["cu_seqlens"].tolist() == stops
    assert batch["cu_seqlens"].dtype == torch.int32
    assert int(batch["max_seqlen"]) == longest
    assert mixed[samples[0]]["max_seqlen"].shape == ()


def test_unequal_room_is_refused(splits: list[Split]) -> None:
    """Batches whose shape would depend on their sources: an error at once, with the number."""
    segmented = {
        f"s{i}": Segmented(split, seq_len=SEQ_LEN, room=8 + i) for i, split in enumerate(splits[:2])
    }
    with pytest.raises(UsageError, match=r"s0 has .* room for 8 .*, s1 for 9") as caught:
        MixtureDataset(segmented)
    assert caught.value.code == "E_MIXTURE"
    assert "cu_seqlens=9" in (caught.value.remedy or "")


def test_sources_must_fit(splits: list[Split]) -> None:
    """Different lengths, keys or no sources at all are refused before the first batch."""
    first = Windows(splits[0], seq_len=8)
    others = [Windows(splits[1], seq_len=9), Windows(splits[1], seq_len=8, labels=None),
              Windows(splits[1], seq_len=8, sample_mask=True)]  # fmt: skip
    for other in others:
        with pytest.raises(
            UsageError, match=r"a has input_ids int64 \[8\], .*, b has input"
        ) as caught:
            MixtureDataset({"a": first, "b": other})
        assert caught.value.code == "E_MIXTURE"
    with pytest.raises(UsageError, match="at least one"):
        MixtureDataset({})


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> list[Split]:
    """Documents of 1 to 9 and of 3 to 30 tokens."""
    root, found = tmp_path_factory.mktemp("stories"), []
    for number, lengths in enumerate((range(1, 10), range(3, 31))):
        shards = random_split([list(lengths)], seed=number)
        found.append(open_dataset(make_dataset(root / str(number), {"train": shards})))
    return [dataset.split("train") for dataset in found]


@pytest.mark.parametrize("side", ["right", "left"])
@examples(25)
@given(samples=st.lists(st.just(PADDING) | st.integers(0, 36), min_size=1, max_size=8))
def test_documents_are_padded_to_the_longest_of_all(
    stories: list[Split], side: Side, samples: list[int]
) -> None:
    """Every row is what its source gives for it alone, padded on as that source pads."""
    documents = [
        DocumentDataset(
            split,
            max_length=20,
            padding_side=side,
            pad_id=200 + i,
            position_ids=True,
            sample_mask=True,
        )
        for i, split in enumerate(stories)
    ]
    batch = MixtureDataset({"short": documents[0], "long": documents[1]}).batch(samples)
    blank = {"attention_mask": 0, "position_ids": 0, "labels": IGNORED_LABEL}
    rows, width = batch["input_ids"].shape
    assert (rows, width) == (len(samples), max(1, int(batch["lengths"].max())))
    for row, sample in enumerate(samples):
        which = int(sample >= 9 and sample != PADDING)
        own = documents[which][sample - 9 * which] if sample != PADDING else None
        for name, fill in {**blank, "input_ids": 200 + which}.items():
            body = own[name].tolist() if own else []
            padding = [fill] * (width - len(body))
            wanted = padding + body if side == "left" else body + padding
            assert batch[name][row].tolist() == wanted, name


def test_fixed_and_longest_rows_do_not_mix(stories: list[Split]) -> None:
    """A width that would depend on which sources are in a batch is refused at once."""
    longest = DocumentDataset(stories[0], max_length=20)
    assert len(MixtureDataset({"a": longest, "b": DocumentDataset(stories[1])})) == 37
    fixed = DocumentDataset(stories[1], max_length=20, pad_to="max_length")
    with pytest.raises(UsageError, match=r"a has .*\[longest\].* b has .*\[20\]"):
        MixtureDataset({"a": longest, "b": fixed})


def test_tokenizers_must_be_equal(splits: list[Split]) -> None:
    """Ids of two vocabularies are not mixed by accident."""
    windows = {str(i): Windows(split, seq_len=8) for i, split in enumerate(splits)}
    with pytest.raises(IncompatibleError) as caught:
        MixtureDataset(windows)
    assert caught.value.where == "source 2"
    assert splits[2].dataset.manifest.tokenizer.sha256[:12] in str(caught.value)
    assert len(MixtureDataset(windows, mixed_tokenizers=True)) == 12 + 41 + 5


def test_tokenizers_must_be_driven_alike(tmp_path: Path) -> None:
    """A source with EOS beside one without is refused by name; create_loader takes the argument."""
    lengths = [[20, 9], [30]]
    for name, ends in (("plain", False), ("ended", True)):
        make_dataset(tmp_path / name, {"train": random_split(lengths)}, add_eos=ends)
    weights = {str(tmp_path / name): 1 for name in ("plain", "ended")}
    with pytest.raises(IncompatibleError) as caught:
        make_loader(weights, "train", 2, seq_len=4)
    assert caught.value.code == "E_TOKENIZER"
    assert caught.value.problem == (
        f"was built with --eos added, and {tmp_path / 'plain'} with none"
    )
    assert "pass mixed_tokenizers=True" in (caught.value.remedy or "")
    mixed = make_loader(weights, "train", 2, seq_len=4, mixed_tokenizers=True)
    assert len(list(mixed)) == len(mixed)


def test_special_text_must_be_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special text parsed in one source and literal in the other is refused by name."""
    path = make_dataset(tmp_path / "a", {"train": random_split([[20]])})
    one, other = (open_dataset(path).split("train") for _ in range(2))
    entry = msgspec.structs.replace(other.dataset.manifest.tokenizer, special_text="parse")
    changed = msgspec.structs.replace(other.dataset.manifest, tokenizer=entry)
    monkeypatch.setattr(other.dataset, "manifest", changed)
    windows = {"a": Windows(one, seq_len=4), "b": Windows(other, seq_len=4)}
    with pytest.raises(IncompatibleError, match="--special-text parse, and a with literal"):
        MixtureDataset(windows)
    MixtureDataset(windows, mixed_tokenizers=True)


def test_mixture_of_the_sources(both: MixtureDataset) -> None:
    """Names, builds and sizes go into the mixture; weights are given by name."""
    mixed = both.mixture({"code": 0.25, "prose": 0.75})
    assert mixed.schedule.weights == (3, 1)
    assert both.definition["content"] == [split.content_id for split in both.splits]
    assert both.definition["rows"] == [dict(d.definition) for d in both.sources.values()]
    assert json.loads(json.dumps(both.definition)) == both.definition
    means = {"code": 8, "prose": 4}
    assert both.mixture(
        {"code": 1, "prose": 1}, by="tokens", tokens_per_sample=means
    ).schedule.weights == (2, 1)
    for weights in ({"code": 1}, {"code": 1, "prose": 1, "maths": 1}):
        with pytest.raises(UsageError, match="the sources are prose, code"):
            both.mixture(weights)
    with pytest.raises(UsageError, match="tokens_per_sample"):
        both.mixture({"code": 1, "prose": 1}, tokens_per_sample={"code": 1})


@pytest.mark.parametrize("workers", [0, 2])
def test_through_a_dataloader(both: MixtureDataset, workers: int) -> None:
    """Served by torch, with workers and without, the mixture is its order's samples."""
    order = both.mixture({"prose": 2, "code": 1}).order(seed=3)
    sampler = GlobalBatchSampler(len(both), 4, order=order, epoch=2, end="pad")
    loader = DataLoader(both, batch_sampler=sampler, num_workers=workers)
    rows = torch.cat([batch["input_ids"] for batch in loader])[: len(both)]
    samples = [i for step in sampler.steps(2) for i in step.samples.tolist() if i != PADDING]
    served = order.samples(np.arange(len(both)), len(both), 2)
    assert [sorted(samples[at : at + 4]) for at in range(0, len(both), 4)] == [
        sorted(served[at : at + 4].tolist()) for at in range(0, len(both), 4)
    ]
    assert torch.equal(rows, both.batch(samples)["input_ids"])


def test_pickles_small(both: MixtureDataset) -> None:
    """A used mixture pickles as paths and numbers, and serves the same after."""
    before = both.batch([0, 30])
    data = pickle.dumps(both)
    assert len(data) < 2500
    after = pickle.loads(data).batch([0, 30])
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("chosen", [(0, 2), (2, 0), (0, 1)])
def test_the_vocabulary_of_a_mixture_is_the_largest(
    splits: list[Split], chosen: tuple[int, int]
) -> None:
    """A model needs rows for the ids of all datasets, whichever comes first."""
    sources = {str(number): Windows(splits[number], seq_len=SEQ_LEN) for number in chosen}
    mixture = MixtureDataset(sources, mixed_tokenizers=True)
    sampler = GlobalBatchSampler(len(mixture), 2, order=Sequential())
    loader = serve_steps(mixture, sampler, definition={})
    largest = 300 if 2 in chosen else 257
    validate_first_batch(loader, vocab_size=largest)
    with pytest.raises(IncompatibleError, match=f"tokenizer has {largest} ids, the model 256"):
        validate_first_batch(loader, vocab_size=256)
