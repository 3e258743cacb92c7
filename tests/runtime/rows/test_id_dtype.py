"""Token ids as int32: the same numbers as int64, in half the bytes, of every kind of rows."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataprep import Documents, Mixture, Packed, Preferences, Windows, create_loader
from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.choices import FORMS
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.preferences import PreferenceDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.specs import TokenRows
from dataprep.runtime.types import IGNORED_LABEL
from tests.scenes import streams
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.preferences import make_preferences, random_records
from tests.support import REPOSITORY, examples

GOLDEN = REPOSITORY / "data_fixtures" / "golden" / "v1"
WIDE = ("doc_ids", "lengths", "source", "max_seqlen")
"""Fields that are int64 with any `dtype`: numbers of documents, and one number a row or batch."""
FIELDS: dict[str, Any] = {"position_ids": True, "doc_ids": True, "cu_seqlens": True}
LENGTHS = [[30, 2, 9, 41, 8, 17] * 3, [], [60, 1, 5]]
ROWS: dict[str, tuple[str, TokenRows]] = {
    "windows": ("narrow", Windows(16)),
    "windows unshifted": ("wide", Windows(16, stride=5, labels="unshifted", **FIELDS)),
    "windows alone": ("wide", Windows(16, labels=None)),
    "windows, masked": ("masked", Windows(16, **FIELDS)),
    "packed": ("wide", Packed(24, algorithm="best-fit", **FIELDS)),
    "packed unshifted": ("masked", Packed(64, overlong="drop", labels="unshifted")),
    "packed alone": ("narrow", Packed(24, labels=None)),
    "documents": ("wide", Documents(24, position_ids=True)),
    "documents unshifted": ("masked", Documents(labels="unshifted")),
    "documents, left": ("narrow", Documents(24, overlong="truncate-left", labels=None)),
    "pairs": ("pairs", Preferences()),
    "pairs, cut": ("pairs", Preferences(16, overlong="truncate-left", labels="unshifted")),
    "labels": ("labels", Preferences(labels=None)),
    "labels unshifted": ("labels", Preferences(labels="unshifted")),
    "groups": ("groups", Preferences()),
}
IN_WORKERS = ("windows", "packed", "pairs")
HOW: dict[str, dict[str, Any]] = {
    "alone": {},
    "no prefetch": {"prefetch": 0},
    "workers": {"num_workers": 1, "multiprocessing_context": "fork"},
    "ranks": {"drop_last": False, "dp_rank": 1, "dp_size": 2},
    "stored order": {"shuffle": False},
    "blocks": {"shuffle": "blocks", "skip": [1]},
    "mock": {"mock": True},
}


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 2 and 4 bytes an id, texts with a loss mask, and preferences of each form."""
    root = tmp_path_factory.mktemp("ids")
    random = np.random.default_rng(0)
    masks = [[random.integers(0, 2, size) for size in shard] for shard in LENGTHS]
    for name, size in (("narrow", 257), ("wide", 200_000), ("masked", 257)):
        documents = {"train": random_split(LENGTHS, vocab_size=size)}
        masked = {"train": masks} if name == "masked" else None
        make_dataset(root / name, documents, vocab_size=size, masks=masked)
    for form in FORMS:
        make_preferences(root / form, form, [random_records(form, 9), random_records(form, 4)])
    return root


def check(narrow: Iterable[Any], wide: Iterable[Any]) -> None:
    """The same fields and numbers; ids and what is beside each are int32, in place of int64."""
    count = 0
    for one, other in zip(narrow, wide, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in other.items():
            halved = tensor.dtype == torch.int64 and name not in WIDE
            assert one[name].dtype == (torch.int32 if halved else tensor.dtype), name
            assert one[name].is_contiguous()
            assert torch.equal(one[name].to(tensor.dtype).nan_to_num(), tensor.nan_to_num()), name
        assert any(tensor.dtype == torch.int32 for tensor in one.values())
        count += 1
    assert count


def both(path: Any, rows: Any = None, **options: Any) -> tuple[Loader, Loader]:
    """The loader of int32, and the one of int64."""
    options = {"drop_last": True, "seed": 3, "rows": rows} | options
    return (
        create_loader(path, "train", 3, dtype=torch.int32, **options),
        create_loader(path, "train", 3, **options),
    )


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in ROWS for how in HOW if how != "workers" or kind in IN_WORKERS],
)
def test_int32_equals_int64(root: Path, kind: str, how: str) -> None:
    """In the same order, with the same state, however batches are made; int64 is the default."""
    name, spec = ROWS[kind]
    narrow, wide = both(root / name, spec, **HOW[how])
    assert narrow.order == wide.order
    batches = iter(narrow), iter(wide)
    check(*([next(batch)] for batch in batches))
    state = json.loads(json.dumps(narrow.state_dict()))
    assert state == wide.state_dict()
    if len(wide) > 1:
        check(*batches)
    wide.load_state_dict(state)
    again, _ = both(root / name, spec, **HOW[how])
    again.load_state_dict(wide.state_dict())
    check(again, wide)


@pytest.mark.parametrize("kind", ROWS)
def test_a_spec_says_it_too(root: Path, kind: str) -> None:
    """`dtype` of a loader is a shortcut for that of its rows, and must not differ from it."""
    name, spec = ROWS[kind]
    own = replace(cast("Any", spec), dtype=torch.int32)
    _, wide = both(root / name, spec)
    check(create_loader(root / name, "train", 3, rows=own, drop_last=True, seed=3), wide)
    with pytest.raises(UsageError, match=r"torch.int64 here and torch.int32 in rows"):
        create_loader(root / name, "train", 3, rows=own, dtype=torch.int64)


def test_mixtures(root: Path) -> None:
    """Rows of several datasets, of one width and padded to the longest; of 2 and 4 bytes an id."""
    texts = {str(root / "narrow"): 2, str(root / "wide"): 1}
    options: dict[str, Any] = {"source_ids": True, "mixed_tokenizers": True}
    for rows in (Windows(8, **FIELDS), Packed(24, **FIELDS), Documents(24, position_ids=True)):
        check(*both(Mixture(texts, **options), rows))
        check(*both(Mixture(texts, **options), rows, drop_last=False, dp_rank=0, dp_size=2))
    for form in FORMS:
        twice = {str(root / form): 1, str(root / "." / form) + "/": 2}
        check(*both(Mixture(twice, source_ids=True)))


@pytest.mark.parametrize("shuffle", [*streams.ORDERS], ids=str)
@pytest.mark.parametrize("end", ["drop", "pad"])
def test_streams(root: Path, shuffle: dict[str, Any], end: Any) -> None:
    """In any order, cut anywhere, without end, and by worker processes."""
    split = open_dataset(root / "masked").split("train")
    narrow, wide = (
        WindowDataset(split, seq_len=8, sample_mask=True, **FIELDS, dtype=dtype)
        for dtype in (torch.int32, torch.int64)
    )
    for options in ({}, {"infinite": True}):
        made = [
            streams.stream(rows, batch_size=4, end=end, **shuffle, **options)
            for rows in (narrow, wide)
        ]
        assert made[0].definition == made[1].definition
        check(*(itertools.islice(iter(one), 20) for one in made))
    check(*(streams.emulated(streams.stream(rows, batch_size=2, end=end, **shuffle), 2)
            for rows in (narrow, wide)))  # fmt: skip
    if shuffle["shuffle"] == "blocks":
        check(*(streams.loader(rows, workers=1, end=end) for rows in (narrow, wide)))


@pytest.mark.parametrize("kind", ROWS)
def test_plain_loaders_and_pickles(root: Path, kind: str) -> None:
    """torch's own loader collates int32, and a copy in another process makes it too."""
    name, spec = ROWS[kind]
    narrow, wide = (loader.dataset_obj for loader in both(root / name, spec))
    again = pickle.loads(pickle.dumps(narrow))
    every = range(len(wide))
    check([again.batch(every)], [wide.batch(every)])
    if not {"cu_seqlens", "scores"} & set(wide.batch([0])):
        check(*(DataLoader(rows, batch_size=3) for rows in (again, wide)))


def test_validation_and_data_modules(root: Path) -> None:
    """A first batch of int32 is sound, with labels of int64 too; a data module takes the option."""
    for name, spec in ROWS.values():
        narrow, _ = both(root / name, spec)
        validate_first_batch(narrow)

    def long_labels(batch: Any, seeds: Any) -> Any:
        return {**batch, "labels": batch["labels"].long()}

    validate_first_batch(both(root / "narrow", Windows(16), transform=long_labels)[0])
    rows = {"rows": "windows", "seq_len": 16, "dtype": torch.int32}
    module = UniversalDataModule(root / "narrow", rows=rows)
    assert next(iter(module.train_dataloader()))["labels"].dtype == torch.int32


def test_masked_language_models(root: Path) -> None:
    """The same tokens are masked, in place, and labels have the type of the ids."""
    hide = MaskedLM(mask_id=3, vocab_size=257, probability=0.4).hide
    narrow, wide = both(root / "narrow", Windows(16, labels="unshifted"), transform=hide)
    check(narrow, wide)
    assert (next(iter(narrow))["input_ids"] == 3).any()


@examples(30)
@given(
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=40),
    kind=st.sampled_from(["windows", "packed", "documents"]),
)
def test_any_id_that_int32_holds(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], kind: Any
) -> None:
    """Up to the largest, in a vocabulary whose last id just fits."""
    path = tmp_path_factory.mktemp("ids") / "ds"
    make_dataset(path, {"train": [[np.array([*ids, 2**31 - 1])]]}, vocab_size=2**31)
    narrow, wide = (
        create_loader(path, "train", 1, rows=kind, seq_len=8, dtype=dtype)
        for dtype in (torch.int32, torch.int64)
    )
    check(narrow, wide)


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    """One id more, and int32 is refused when the rows are opened, of every kind."""
    path = make_dataset(tmp_path / "ds", {"train": random_split([[90]])}, vocab_size=2**31 + 1)
    for rows in ("windows", "packed", "documents"):
        with pytest.raises(UsageError, match=r"ids up to 2,147,483,648.*torch\.int64"):
            create_loader(path, "train", 1, rows=rows, seq_len=8, dtype=torch.int32)
        create_loader(path, "train", 1, rows=rows, seq_len=8)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.uint32, np.int32, "int32"])
def test_other_types_are_refused(root: Path, dtype: Any) -> None:
    """By the loader, by specs and by datasets; narrower ones would wrap, and floats round."""
    split, answers = (open_dataset(root / name).split("train") for name in ("narrow", "pairs"))
    options: dict[str, Any] = {"dtype": dtype}
    for make in (
        lambda: create_loader(root / "narrow", "train", 3, seq_len=8, **options),
        lambda: create_loader(root / "narrow", "train", 3, rows="packed", **options),
        lambda: Windows(8, **options),
        lambda: Preferences(8, **options),
        lambda: WindowDataset(split, seq_len=8, **options),
        lambda: PackedDataset(split, seq_len=8, **options),
        lambda: DocumentDataset(split, **options),
        lambda: PreferenceDataset(answers, **options),
    ):
        with pytest.raises(UsageError, match=r"dtype: must be torch\.int32 or torch\.int64"):
            make()


@pytest.mark.parametrize("kind", ["embeddings", "pairs"])
@pytest.mark.parametrize("rows", [False, True])
def test_arrays_have_no_ids(kind: str, rows: bool) -> None:
    """Embeddings and pairs are refused; the type of embeddings is an option of their spec."""
    from dataprep import Embeddings, Pairs

    specs: dict[str, Any] = {"embeddings": Embeddings(), "pairs": Pairs()}
    spec = specs[kind] if rows else None
    with pytest.raises(UsageError, match=r"dtype: is for datasets of tokens.*rows=Embeddings"):
        create_loader(GOLDEN / kind, "train", 2, rows=spec, dtype=torch.int32)


@pytest.mark.parametrize("kind", ["windows", "packed", "documents", "pairs", "labels", "groups"])
def test_no_batch_of_int64_is_made_first(root: Path, kind: Any, tmp_path: Path) -> None:
    """The most memory in use while a batch is made is nearly halved, too."""
    if kind in FORMS:
        records = [random_records(kind, 64, longest=200)]
        path = make_preferences(tmp_path / "ds", kind, records)
    else:
        path = make_dataset(tmp_path / "ds", {"train": random_split([[64] * 400])})
    peaks = []
    for dtype in (torch.int32, torch.int64):
        made = create_loader(path, "train", 8, rows=kind, seq_len=400, dtype=dtype).dataset_obj
        every = list(range(len(made)))
        held = made.batch(every)  # whose memory is not used again
        tracemalloc.start()
        made.batch(every)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(held) >= 2
    assert peaks[0] < 0.75 * peaks[1]


def test_what_torch_takes() -> None:
    """What docs/loading.md says: embeddings take int32; the loss refuses it, and does not err."""
    ids = torch.tensor([[1, 2]], dtype=torch.int32)
    labels = torch.tensor([[2, IGNORED_LABEL]], dtype=torch.int32)
    embedding = torch.nn.Embedding(4, 4)
    logits = embedding(ids)
    assert torch.equal(logits, embedding(ids.long()))
    loss = torch.nn.functional.cross_entropy
    with pytest.raises(RuntimeError, match=r"Long.*Int"):
        loss(logits.flatten(0, 1), labels.flatten())
    alone = loss(logits[:, 0], labels[:, 0].long())
    assert torch.equal(loss(logits.flatten(0, 1), labels.flatten().long()), alone)
