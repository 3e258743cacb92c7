"""Tasks on datasets that were built: served or refused; transforms seeded by epoch and sample."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from torch.utils.data import ConcatDataset, DataLoader

from dataprep.formats.errors import UsageError
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.pipeline.build import build
from dataprep.pipeline.options import BuildOptions
from dataprep.runtime.arrays.embeddings import EmbeddingDataset
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.task import PRESETS, TaskSpec
from dataprep.runtime.loader.loader import Loader, set_epoch
from dataprep.runtime.loader.transformed import TransformedDataset
from dataprep.runtime.mixture.dataset import MixtureDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.types import Batch, Seeds
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.pair_datasets import make_embeddings
from tests.scenes.preferences import make_preferences, random_records
from tests.support import REPOSITORY

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
MASK, VOCAB = 3, 257
NARROW = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"
MASKED = TaskSpec(name="bert", task_type="masked_lm")
ROWS: dict[str, dict[str, Any]] = {
    "windows": {"rows": "windows", "seq_len": 16},
    "packed": {"rows": "packed", "seq_len": 32, "overlong": "split"},
    "documents": {"rows": "documents", "seq_len": 40},
}


@dataclass
class Tokenizer:
    """As much of one as collators look at: the first four ids and the last are special."""

    pad_token_id: int = 0
    mask_token_id: int = MASK
    all_special_ids: tuple[int, ...] = (0, 1, 2, MASK, EOS_ID)
    size: int = VOCAB

    def get_vocab(self) -> dict[str, int]:
        return {f"<{number}>": number for number in range(self.size)}


HIDE = MaskedLM(mask_id=MASK, vocab_size=VOCAB, special_ids=Tokenizer.all_special_ids).hide


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of all lengths; those of `same` are all equal."""
    folder = tmp_path_factory.mktemp("tasks")
    documents = random_split([[20, 33, 7] * 8, [50] * 6], seed=3)
    make_dataset(
        folder / "shards", {"train": documents, "val": random_split([[30] * 4], seed=4)},
        add_eos=True,
    )  # fmt: skip
    make_dataset(folder / "same", {"train": [[np.arange(40, 72)] * 12]})
    make_preferences(folder / "pairs", "pairs", [random_records("pairs", 8)])
    make_preferences(folder / "labels", "labels", [random_records("labels", 8)])
    make_preferences(folder / "groups", "groups", [random_records("groups", 8)])
    make_embeddings(folder / "vectors", {"embedding": np.ones((20, 3), "f4")})
    return folder / "shards"


def module(data: Any, task: TaskSpec | None, **options: Any) -> UniversalDataModule:
    if task is MASKED:
        options = {"tokenizer": Tokenizer()} | options
    return UniversalDataModule(data, task_spec=task, batch_size=4, seed=7, **options)


def hidden_of(batches: Any, plain: Any, numbers: list[int]) -> dict[int, list[int]]:
    """The hidden places of each sample, checked against the rows as they are stored."""
    found, at = {}, iter(numbers)
    for batch in batches:
        for row, labels in enumerate(batch["labels"]):
            number = next(at)
            ids = plain[number]["input_ids"]
            hidden = (labels != -100)[: len(ids)]
            assert not (labels != -100)[len(ids) :].any()
            assert torch.equal(labels[: len(ids)][hidden], ids[hidden])
            kept = batch["input_ids"][row][: len(ids)]
            assert torch.equal(kept[~hidden], ids[~hidden])
            found[number] = hidden.nonzero().flatten().tolist()
    return found


@pytest.mark.parametrize("kind", list(ROWS))
def test_masked_language_models_on_shards(shards: Path, kind: str) -> None:
    """Items 125, 126: tokens are hidden in all rows, special ones and padding never."""
    one = module(shards, MASKED, rows=ROWS[kind], collator_options={"probability": 0.5})
    loader = one.train_dataloader()
    plain = loader.dataset_obj.dataset
    special = torch.tensor(Tokenizer.all_special_ids)
    hidden = every = marked = 0
    for batch in loader:
        chosen = batch["labels"] != -100
        assert not torch.isin(batch["labels"][chosen], special).any()
        if "attention_mask" in batch:
            assert not (chosen & (batch["attention_mask"] == 0)).any()
        hidden, every = hidden + int(chosen.sum()), every + chosen.numel()
        marked += int((batch["input_ids"][chosen] == MASK).sum())
    assert abs(marked / hidden - 0.8) < 0.1
    whole = plain.batch(range(len(plain)))
    able = (whole["labels"] != -100) & ~torch.isin(whole["labels"], special)
    assert abs(hidden / every - 0.5 * float(able.float().mean())) < 0.08
    assert next(iter(one.val_dataloader()))["labels"].min() == -100


def test_padding_that_looks_like_a_token_is_not_hidden(shards: Path) -> None:
    """Item 126: packed rows and documents whose pad is an ordinary id."""
    all_hidden = MaskedLM(mask_id=MASK, vocab_size=VOCAB, probability=1.0).hide
    for rows in ("packed", "documents"):
        loader = make_loader(
            shards, "train", 4, rows=rows, seq_len=64, labels="unshifted", transform=all_hidden,
            drop_last=False,
        )  # fmt: skip
        plain = loader.dataset_obj.dataset
        plain.pad_id = 100
        stored = plain.batch(range(len(plain)))
        able = (stored["labels"] != -100) & (stored["labels"] != MASK)
        assert (stored["input_ids"][stored["labels"] == -100] == 100).any()
        assert sum(int((batch["labels"] != -100).sum()) for batch in loader) == int(able.sum())


@pytest.mark.parametrize("kind", list(ROWS))
def test_hidden_places_follow_seed_epoch_and_sample_alone(shards: Path, kind: str) -> None:
    """Item 126: whatever the batch size, ranks, workers, and in a stock DataLoader as in ours."""
    split = open_dataset(shards).split("train")
    options = {**ROWS[kind], "labels": "unshifted"}
    options = {"rows": options.pop("rows"), **options}

    def loader(**more: Any) -> Loader:
        more = {"shuffle": False, "drop_last": False, "seed": 7, "batch_size": 4} | more
        return make_loader(shards, "train", transform=HIDE, **options, **more)

    whole: Any = loader().dataset_obj
    plain, numbers = whole.dataset, list(range(len(whole)))
    first = hidden_of(loader(), plain, numbers)
    assert len({tuple(places) for places in first.values()}) > len(first) / 2
    for more in ({"batch_size": 7}, {"prefetch": 0}):
        assert hidden_of(loader(**more), plain, numbers) == first
    ranked: dict[int, list[int]] = {}
    for rank in range(2):
        one = loader(dp_rank=rank, dp_size=2, batch_size=2, drop_last=True)
        sampler = one.sampler_obj
        mine = [int(n) for step in sampler.steps(0, 0) for n in step.samples]
        ranked |= hidden_of(one, plain, mine)
    assert ranked == {number: first[number] for number in ranked} and len(ranked) > 8
    later = loader(epoch=1)
    second = hidden_of(later, plain, numbers)
    assert second != first
    data = TransformedDataset(plain, HIDE, seed=7)
    stock = DataLoader(data, batch_size=3)
    for epoch, wanted in ((0, first), (1, second), (0, first)):
        data.set_epoch(epoch)
        assert hidden_of(stock, plain, numbers) == wanted
    both: Any = ConcatDataset([data, data])
    assert both[len(data)]["labels"].shape == data[0]["labels"].shape
    assert split.name == "train"


def test_worker_processes_hide_the_same(shards: Path) -> None:
    """Item 126: of our loader, and of a stock one whose workers stay while the epoch is set."""
    options: dict[str, Any] = {"seq_len": 16, "labels": "unshifted", "transform": HIDE, "seed": 7}
    here, there = (
        make_loader(shards, "train", 4, workers, shuffle=False, **options) for workers in (0, 2)
    )
    data = TransformedDataset(here.dataset_obj.dataset, HIDE, seed=7)
    stock = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True, drop_last=True)
    for epoch in range(2):
        data.set_epoch(epoch)
        for one, two, three in zip(here, there, stock, strict=True):
            assert torch.equal(one["labels"], two["labels"])
            assert torch.equal(one["labels"], three["labels"])


def test_equal_rows_are_hidden_independently(shards: Path) -> None:
    """Item 126: the seed is of the number of a sample, not of its tokens."""
    one = module(shards.parent / "same", MASKED, rows={"seq_len": 32})
    batches = list(one.train_dataloader())
    labels = torch.cat([batch["labels"] for batch in batches])
    assert len({tuple(row) for row in labels.tolist()}) == len(labels) == 12
    again = list(one.train_dataloader())
    assert not torch.equal(labels, torch.cat([batch["labels"] for batch in again]))


def test_resumes_with_the_same_places(shards: Path) -> None:
    """Item 126: what follows a state is hidden as it would have been."""
    one, other = (module(shards, MASKED, rows=ROWS["windows"]) for _ in range(2))
    batches = iter(one.train_dataloader())
    next(batches)
    other.load_state_dict(one.state_dict())
    for found, wanted in zip(other.train_dataloader(), batches, strict=True):
        assert torch.equal(found["labels"], wanted["labels"])
        assert torch.equal(found["input_ids"], wanted["input_ids"])


def test_whole_words_of_rows(shards: Path) -> None:
    """Item 126: all tokens of a word are hidden, or none."""
    goes_on = tuple(range(128, 256))
    options = {"whole_words": True, "continuations": goes_on, "probability": 0.5}
    ids = {"mask_id": MASK, "vocab_size": VOCAB}  # the build says that EOS is special
    one = module(
        shards, MASKED, tokenizer=None, rows=ROWS["windows"], collator_options=ids | options
    )
    loader = one.train_dataloader()
    plain: Any = loader.dataset_obj.dataset
    batch = loader.dataset_obj.batch(range(len(plain)))
    stored = plain.batch(range(len(plain)))["input_ids"]
    hidden = batch["labels"] != -100
    joined = (
        (stored[:, 1:] >= 128)
        & (stored[:, 1:] < 256)
        & ~torch.isin(stored[:, :-1], torch.tensor([MASK, EOS_ID]))
    )
    assert int(joined.sum()) > 100
    assert torch.equal(hidden[:, 1:][joined], hidden[:, :-1][joined])
    assert (stored == EOS_ID).any() and not hidden[stored == EOS_ID].any()


@pytest.mark.parametrize("where", ["list", "windows", "packed", "documents"])
def test_one_shift_convention(shards: Path, where: str) -> None:
    """Item 125: the labels of a task stand under their own tokens, on lists as on shards."""
    lm = TaskSpec.lm_tiny()
    if where == "list":
        rows = [{"input_ids": list(range(1, n + 2))} for n in range(8)]
        one = module(rows, lm, tokenizer=Tokenizer(), val_split=0)
    else:
        one = module(shards, lm, rows=ROWS[where])
    for batch in one.train_dataloader():
        trained = batch["labels"] != -100
        assert trained.float().mean() > 0.3
        assert torch.equal(batch["labels"][trained], batch["input_ids"][trained])


def test_labels_by_name_beat_the_task(shards: Path) -> None:
    """Item 125: next tokens, for a model that compares place by place, are asked for by name."""
    for task, rows in ((TaskSpec.lm_tiny(), {"labels": "shifted"}), (None, {})):
        one = module(shards, task, rows={**ROWS["windows"], **rows})
        batch = next(iter(one.train_dataloader()))
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
    listed = module(
        [{"input_ids": [5, 6, 7]}] * 8, TaskSpec.lm_tiny(), tokenizer=Tokenizer(), val_split=0,
        collator_options={"shift": True},
    )  # fmt: skip
    assert next(iter(listed.train_dataloader()))["labels"][0].tolist() == [6, 7, -100]


@pytest.mark.parametrize("form", ["pairs", "labels", "groups"])
def test_tasks_of_preferences(shards: Path, form: str) -> None:
    """Item 125: each form has its task; the others are refused."""
    kinds = {"pairs": "preference", "labels": "kto", "groups": "grpo"}
    for name, kind in kinds.items():
        task = TaskSpec(name="mine", task_type=kind)
        if name == form:
            batch = next(iter(module(shards.parent / form, task).train_dataloader()))
            ids = "chosen_input_ids" if form == "pairs" else "input_ids"
            labels = batch.get(ids.replace("input_ids", "labels"))
            assert (labels is None) == (form == "groups")
            if labels is not None:
                trained = labels != -100
                assert torch.equal(labels[trained], batch[ids][trained])
        else:
            with pytest.raises(UsageError, match=rf"preferences \({form}\).*{kinds[form]}"):
                module(shards.parent / form, task)


def test_what_shards_cannot_serve_is_refused(shards: Path) -> None:
    """Item 125: the error says what the data holds and what to pass; the remedy works."""
    for name in PRESETS:
        if name != "lm_tiny":
            with pytest.raises(UsageError, match=r"holds rows of tokens.*'lm' or 'masked_lm'"):
                module(shards, TaskSpec.preset(name), rows=ROWS["windows"])
    with pytest.raises(UsageError, match=r"\(custom\), the data holds rows of tokens"):
        module(shards, TaskSpec(name="own", task_type="custom"), rows=ROWS["windows"])
    vectors = EmbeddingDataset(open_arrays(shards.parent / "vectors").split("train"))
    with pytest.raises(UsageError, match="holds embeddings"):
        module(vectors, TaskSpec.lm_tiny())
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=16)
    for task in (TaskSpec.lm_tiny(), MASKED):
        with pytest.raises(UsageError, match="Make the rows with labels='unshifted'"):
            module(windows, task)
        with pytest.raises(UsageError, match="Make the rows with labels='unshifted'"):
            module(MixtureDataset({"a": windows, "b": windows}), task, val_split=0)
        own = WindowDataset(windows.split, seq_len=16, labels="unshifted")
        assert len(next(iter(module(own, task).train_dataloader()))["labels"]) == 4
    with pytest.raises(UsageError, match="Make the rows with labels='unshifted'"):
        module(shards, MASKED, rows={**ROWS["windows"], "labels": "shifted"})


@pytest.mark.parametrize("form", ["rows", "pairs"])
def test_a_task_that_is_refused_is_refused_before_rows_are_made(tmp_path: Path, form: str) -> None:
    """Item 125: the task is what is wrong, also where the data is too small for a row."""
    path = tmp_path / "tiny"
    if form == "rows":
        make_dataset(path, {"train": random_split([[3]], seed=1)})
    else:
        make_preferences(path, form, [random_records(form, 8)])
    with pytest.raises(UsageError, match="is a task of text") as caught:
        module(path, TaskSpec(name="c", task_type="classification"))
    assert caught.value.code == "E_TASK"


def test_a_tokenizer_for_nothing_is_refused(shards: Path) -> None:
    """Item 125: rows of ids need none; without the tokenizer they are served."""
    with pytest.raises(UsageError, match="without a task_spec") as caught:
        module(shards, None, rows=ROWS["windows"], tokenizer=Tokenizer())
    assert caught.value.where == "tokenizer"
    assert next(iter(module(shards, None, rows=ROWS["windows"]).train_dataloader()))


def test_masked_options(shards: Path) -> None:
    """Item 125: options that rows of a build do not have, ids that it does not have."""
    with pytest.raises(UsageError, match=r"max_length: no option for rows .* mask_id"):
        module(shards, MASKED, rows=ROWS["windows"], collator_options={"max_length": 8})
    with pytest.raises(UsageError, match=r"has 300 ids, the data was built with one of 257"):
        module(shards, MASKED, rows=ROWS["windows"], tokenizer=Tokenizer(size=300))
    with pytest.raises(UsageError, match="lacks mask_id"):
        module(shards, MASKED, rows=ROWS["windows"], tokenizer=None)
    loader = make_loader(shards, "train", 4, seq_len=16, transform=HIDE)
    with pytest.raises(UsageError, match="labels='unshifted'"):
        next(iter(loader))
    loader = make_loader(shards, "train", 4, seq_len=16, transform=HIDE, labels=None)
    with pytest.raises(UsageError, match="labels missing"):
        next(iter(loader))


def test_another_vocabulary_of_the_same_size(tmp_path: Path) -> None:
    """Item 125: ids that mean other tokens are refused; the tokenizer of the build is not."""
    shards, source = tmp_path / "shards", tmp_path / "in.txt"
    source.write_text("some words\n" * 400)
    inputs = (str(source),)
    build(BuildOptions(input=inputs, out=shards, tokenizer=str(NARROW), split="train=1", workers=1))
    own = tokenizers.Tokenizer.from_file(str(shards / "tokenizer.json"))
    names = list(own.get_vocab())
    given = {"rows": ROWS["windows"], "collator_options": {"mask_id": 5}}
    assert next(iter(module(shards, MASKED, tokenizer=own, **given).train_dataloader()))

    class Permuted(Tokenizer):
        def get_vocab(self) -> dict[str, int]:
            found = own.get_vocab()
            return dict(zip(names, [found[name] for name in names[1:] + names[:1]], strict=True))

    with pytest.raises(UsageError, match=r"has .* as id .*, the data was built") as caught:
        module(shards, MASKED, tokenizer=Permuted(), **given)
    assert caught.value.code == "E_TOKENIZER"


def drop(batch: Batch, seeds: Seeds) -> Batch:
    """An augmentation: some tokens become 0."""
    for ids, seed in zip(batch["input_ids"], seeds.tolist(), strict=True):
        ids[torch.from_numpy(np.random.default_rng(seed).random(len(ids)) < 0.2)] = 0
    return batch


def test_windows_from_anywhere_with_an_augmentation(shards: Path) -> None:
    """Item 130: stride 1 serves a window from each token; a transform draws by epoch and sample."""
    plain: Any = make_loader(shards, "train", 8, seq_len=16, stride=1, shuffle=False)
    tokens = open_dataset(shards).split("train").tokens
    assert len(plain.dataset_obj) == tokens - 16
    first, second = plain.dataset_obj[5], plain.dataset_obj[6]
    assert torch.equal(first["input_ids"][1:], second["input_ids"][:-1])
    noisy = make_loader(shards, "train", 8, seq_len=16, stride=1, shuffle=False, transform=drop)
    passes = [torch.cat([batch["input_ids"] for batch in noisy]) for _ in range(2)]
    stored = torch.cat([batch["input_ids"] for batch in plain])
    changed = [ids != stored for ids in passes]
    for ids, where in zip(passes, changed, strict=True):
        assert 0.15 < where.float().mean() < 0.25
        assert (ids[where] == 0).all()
    assert not torch.equal(*changed)
    set_epoch(noisy, 0)
    assert torch.equal(next(iter(noisy))["input_ids"], passes[0][:8])
    own = {"transform": "drop", "transform_seed": 0}
    assert noisy.state_dict()["order"] == plain.state_dict()["order"] | own
    numbers = noisy.dataset_obj.batch([3, 3])["input_ids"]
    assert torch.equal(numbers[0], numbers[1])


def test_a_transform_of_a_mixture_and_of_embeddings(shards: Path) -> None:
    """Item 130: whatever makes batches is transformed, and drawn anew in each epoch."""
    weights = {str(shards): 2.0, str(shards / ".." / "shards"): 1.0}
    loader = make_loader(weights, "train", 4, seq_len=16, transform=drop, source_ids=True)
    batch = next(iter(loader))
    assert set(batch) == {"input_ids", "labels", "source"}

    def count(batch: Batch, seeds: Seeds) -> Batch:
        return {**batch, "seed": torch.from_numpy(seeds.view(np.int64))}

    vectors = make_loader(shards.parent / "vectors", "train", 5, transform=count)
    seeds = [seed for _ in range(2) for batch in vectors for seed in batch["seed"].tolist()]
    assert len(set(seeds)) == len(seeds)


def test_a_transformed_dataset(shards: Path) -> None:
    """Small in a pickle, like its dataset in all else; what cannot be served is refused."""
    windows = WindowDataset(open_dataset(shards).split("train"), seq_len=16)
    data = TransformedDataset(windows, drop, seed=1)
    assert data.split is windows.split and len(data) == len(windows)
    assert "drop" in repr(data)
    data.set_epoch(3)
    again = pickle.loads(pickle.dumps(data))
    assert again.epoch == 3
    assert torch.equal(again[4]["input_ids"], data[4]["input_ids"])
    before = data.snapshot()
    data.set_epoch(4)
    assert (before.epoch, data.epoch) == (3, 4)
    with pytest.raises(AttributeError):
        data.nothing  # noqa: B018
    with pytest.raises(UsageError, match="varies by epoch"):
        StreamDataset(data, batch_size=2)
    with pytest.raises(UsageError, match="must be callable"):
        TransformedDataset(windows, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a list has no batch"):
        TransformedDataset([1], drop)  # type: ignore[arg-type]
