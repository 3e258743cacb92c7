"""Other people's samples by number: what is done to them, what is kept, what is refused."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError, UsageError
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.preprocess import Engine, PreprocessError, as_tensors
from dataprep.runtime.external.preprocessed import create_preprocessed_dataset
from dataprep.runtime.external.preprocessed_iterable import StreamingPreprocessedDataset
from dataprep.runtime.external.preprocessed_map import MISSING, PreprocessedDataset, SampleCache
from dataprep.runtime.external.tokenize_engine import TokenizeEngine, encode_text, tokenizer_digest
from tests.scenes.datasets import byte_tokenizer

ROWS = [{"body": chr(97 + n % 26) * (n % 5 + 1), "label": n} for n in range(20)]


class Bytes:
    """A tokenizer in the style of document 004: a dict of lists."""

    def encode(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode()), "attention_mask": [1] * len(text)}


class Counting:
    """An engine that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def process(self, example: Mapping[str, Any]) -> dict[str, Any]:
        self.calls += 1
        return {"input_ids": [example["label"]] * 3, "name": "x"}

    def describe(self) -> dict[str, Any]:
        return {"engine": "counting"}


def upper(example: dict[str, Any]) -> dict[str, Any]:
    example["text"] = example["text"].upper()
    return example


def draws(example: dict[str, Any]) -> dict[str, Any]:
    return {"n": example["label"], "r": random.random()}


ENGINE = TokenizeEngine(tokenizer=Bytes(), keep=("label",))
MAPPING = {"body": "text"}


@pytest.mark.parametrize("kind", ["list", "hf"])
def test_an_engine_over_samples_by_number(kind: str) -> None:
    """Item 55: any map-style data, with the reference engine, through the builder."""
    data: Any = ROWS if kind == "list" else datasets.Dataset.from_list(ROWS)
    wrapped = PreprocessedDataset(data, ENGINE, MAPPING)
    assert len(wrapped) == 20
    assert wrapped[3]["input_ids"].tolist() == list(b"dddd")
    assert wrapped[3]["input_ids"].dtype == torch.int64
    assert wrapped[3]["label"] == 3
    loader = DataLoaderBuilder().with_dataset(wrapped).with_batch_size(6).with_seed(1).build()
    batches = list(loader)
    assert sorted(n for batch in batches for n in batch["label"].tolist()) == list(range(20))
    assert [batch["input_ids"].shape[1] for batch in batches] == [
        int(batch["attention_mask"].sum(1).max()) for batch in batches
    ]
    assert loader.prefetch, "nothing draws, so a thread makes batches ahead of time"
    assert isinstance(ENGINE, Engine)


def test_an_engine_of_one_s_own() -> None:
    """Item 55: two methods are all; what has not both is refused by name."""
    assert PreprocessedDataset(ROWS, Counting())[0]["input_ids"].tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match=r"prompt_engine.*int lacks process"):
        PreprocessedDataset(ROWS, 3)  # type: ignore[arg-type]
    one, other = (PreprocessedDataset(ROWS, ENGINE, mapping) for mapping in (MAPPING, None))
    assert one.identity != other.identity
    state = DataLoaderBuilder().with_dataset(one).build().state_dict()
    with pytest.raises(DataprepError, match="another dataset"):
        DataLoaderBuilder().with_dataset(other).with_collate_fn(list).build().load_state_dict(state)


def test_what_an_engine_says_of_itself_is_json() -> None:
    """Python's spelling of an object may be another in each process, and a state would not fit."""

    class Odd(Counting):
        def describe(self) -> dict[str, Any]:
            return {"engine": object()}

    with pytest.raises(UsageError, match=r"engine: describe\(\) of Odd gives what JSON has not"):
        _ = PreprocessedDataset([{"label": 1}], Odd()).identity


def test_the_cache_serves_without_the_engine() -> None:
    """Item 56: switchable, clearable; -1 and 19 are one sample."""
    engine = Counting()
    data = PreprocessedDataset(ROWS, engine)
    indices: list[Any] = [19, -1, np.int64(19)]
    for index in indices:
        assert data[index]["input_ids"].tolist() == [19] * 3
    assert (engine.calls, len(data.cache), data.cache.hits) == (1, 1, 2)
    data.clear_cache()
    data[19]
    assert engine.calls == 2
    plain = PreprocessedDataset(ROWS, engine, cache_enabled=False)
    assert plain[0]["name"] == plain[0]["name"] == "x"
    assert (engine.calls, len(plain.cache)) == (4, 0)
    assert len(pickle.loads(pickle.dumps(data)).cache) == 0, "workers get none of it"


def test_what_is_served_may_be_changed() -> None:
    """Item 56: neither the first reader nor a later one changes what others get."""
    data = PreprocessedDataset([{"ids": [1, 2], "more": {"tags": ["a"]}}])
    for _ in range(3):
        sample = data[0]
        assert sample["ids"].tolist() == [1, 2]
        assert sample["more"] == {"tags": ["a"]}
        sample["ids"].fill_(9)
        sample["more"]["tags"].append("b")
        sample["new"] = 1
    source = [{"text": "a"}]
    assert PreprocessedDataset(source, transform=upper)[0] == {"text": "A"}
    assert source == [{"text": "a"}], "a transform may change its example"


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 4))
def test_the_cache_is_bounded(reads: list[int], room: int) -> None:
    """Item 56: never more bytes than allowed; what was used last stays (a plain model of it)."""
    sample = {"ids": torch.arange(10)}
    probe = SampleCache(1 << 20)
    probe.put(0, sample)
    cache = SampleCache(probe.used * room + 1)
    model: list[int] = []
    for number in reads:
        found = cache.get(number)
        assert (found is not MISSING) == (number in model)
        if found is MISSING:
            cache.put(number, sample)
        model = [*(n for n in model if n != number), number][-room:] if room else []
        assert cache.used <= cache.limit
        assert len(cache) == len(model)


def test_columns_are_renamed_in_one_direction() -> None:
    """Item 57: {name in the data: name for the engine}; mistakes are told apart."""
    seen = PreprocessedDataset([{"a": 1, "b": 2}], column_mapping={"a": "b", "b": "a"})
    assert seen[0] == {"b": 1, "a": 2}
    cases = [
        ({"text": "body"}, "row 0.*no column 'text', only 'body', 'label'.*other way round"),
        ({"nothing": "text"}, "row 0.*no column 'nothing'"),
        ({"body": "label"}, "row 0.*already has a column 'label'"),
    ]
    for mapping, message in cases:
        with pytest.raises(PreprocessError, match=message):
            PreprocessedDataset(ROWS, column_mapping=mapping)[0]
    with pytest.raises(UsageError, match="two columns the name c"):
        PreprocessedDataset(ROWS, column_mapping={"a": "c", "b": "c"})
    with pytest.raises(PreprocessError, match=r"a str, which has no columns"):
        PreprocessedDataset(["a"], column_mapping=MAPPING)[0]


def test_a_transform_comes_before_the_engine() -> None:
    """Item 58: it sees renamed columns, the engine what it gives."""
    data = PreprocessedDataset(ROWS, ENGINE, MAPPING, transform=upper)
    assert data[0]["input_ids"].tolist() == list(b"A")
    assert PreprocessedDataset(["b"], transform=str.upper)[0] == "B"
    with pytest.raises(UsageError, match=r"transform.*must be callable"):
        PreprocessedDataset(ROWS, transform=7)  # type: ignore[arg-type]


def test_transforms_that_draw_are_seeded_or_refused() -> None:
    """Item 58: never cached, new in each epoch, the same on any number of workers."""
    with pytest.raises(UsageError, match="draws=True"):
        PreprocessedDataset(ROWS, transform=draws)[0]
    with pytest.raises(UsageError, match=r"cache_enabled.*for ever"):
        PreprocessedDataset(ROWS, transform=draws, draws=True, cache_enabled=True)
    data = PreprocessedDataset(ROWS, transform=draws, draws=True)
    loader = DataLoaderBuilder().with_dataset(data).with_batch_size(20).with_shuffle(False).build()
    first, second = next(iter(loader))["r"], next(iter(loader))["r"]
    assert not torch.equal(first, second)
    loader.set_epoch(0)
    assert torch.equal(next(iter(loader))["r"], first)


def test_select_and_features() -> None:
    """Item 59: a part by numbers, a part of that; the features are those of the data."""
    hf = datasets.Dataset.from_list(ROWS)
    data = PreprocessedDataset(hf, ENGINE, MAPPING)
    assert data.features == hf.features
    assert PreprocessedDataset(ROWS).features is None
    part = data.select([5, -1, 5, 0])
    assert [part[n]["label"] for n in range(4)] == [5, 19, 5, 0]
    assert [sample["label"] for sample in part.__getitems__([3, 0])] == [0, 5]
    assert part.select(range(1, 3))[-1]["label"] == 5
    with pytest.raises(IndexError, match="sample 4 is outside 0:4"):
        part[4]
    assert len(data.select([])) == 0
    both = UniversalDataModule(data, batch_size=4, val_split=0.25)
    served = [n for batch in both.train_dataloader() for n in batch["label"].tolist()]
    served += [n for batch in both.val_dataloader() for n in batch["label"].tolist()]
    assert sorted(served) == list(range(20))


def test_a_failure_names_the_row_and_the_cause() -> None:
    """Item 60: row, stage and cause, by itself and behind a loader."""
    rows = [*ROWS[:7], {"body": "", "label": 7}]
    data = PreprocessedDataset(rows, ENGINE, MAPPING)
    with pytest.raises(PreprocessError, match=r"row 7, field 'text'.* has no tokens") as caught:
        data[-1]
    assert caught.value.stage == "engine"
    loader = DataLoaderBuilder().with_dataset(data).with_batch_size(4).with_shuffle(False).build()
    with pytest.raises(DataprepError, match="sample 7, row 7, field 'text'"):
        list(loader)

    def fails(example: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("lost")

    with pytest.raises(
        PreprocessError, match="row 2, transform: raised KeyError: 'lost'"
    ) as caught:
        PreprocessedDataset(ROWS, transform=fails)[2]
    assert isinstance(caught.value.__cause__, KeyError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    with pytest.raises(PreprocessError, match=r"row 0, .*there is no such field, only 'body'"):
        PreprocessedDataset(ROWS, ENGINE)[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([True], torch.tensor([True])),
        (np.array([0.5]), torch.tensor([0.5], dtype=torch.float64)),
        ([0.5, 1], torch.tensor([0.5, 1.0])),
        ([[1, 2], [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        (np.float32(0.5), 0.5), (None, None), ("text", "text"), ([], []), (["a", "b"], ["a", "b"]),
        ([1, None], [1, None]), ([2**70], [2**70]), ((1, 2), (1, 2)),
        (np.array(5), torch.tensor(5)),
        (np.array([5], ">i4"), torch.tensor([5], dtype=torch.int32)),
        ([np.zeros(2, np.uint8)], torch.zeros(1, 2, dtype=torch.uint8)),
    ],
)  # fmt: skip
def test_numbers_become_tensors(value: Any, expected: Any) -> None:
    """Item 55: all fields stay; lists of numbers are int64, float32 or bool."""
    found = as_tensors({"x": value})["x"]
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
    else:
        assert found == expected


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_served_is_not_the_data_itself(cached: bool) -> None:
    """Whoever changes a sample changes neither the data nor what is served next."""

    def row() -> dict[str, Any]:
        return {
            "a": np.array([1, 2]),
            "t": torch.tensor([1, 2]),
            "e": [],
            "n": {"t": torch.ones(1)},
        }

    data = PreprocessedDataset([row(), row()], cache_enabled=cached)
    for _ in range(2):
        sample = data[0]
        assert sample["a"].tolist() == sample["t"].tolist() == [1, 2]
        assert (sample["e"], sample["n"]["t"].item()) == ([], 1)
        sample["a"][0] = sample["t"][0] = sample["n"]["t"][0] = 9
        sample["e"].append(9)
    assert data.source[0]["a"].tolist() == data.source[0]["t"].tolist() == [1, 2]


def test_a_cache_outlives_a_fork_in_its_middle() -> None:
    """A lock that another thread held is held for ever in the process forked then."""
    cache = SampleCache(1 << 10)
    cache.put(0, "kept")
    cache._lock.acquire()
    cache._pid -= 1  # as it is in the forked process
    assert cache.get(0) == "kept"


@pytest.mark.parametrize("index", ["body", slice(0, 2), True, 1.5, None])
def test_what_is_no_number_of_a_sample(index: Any) -> None:
    """A mask would have been read as the samples 0 and 1."""
    data = PreprocessedDataset(ROWS)
    for ask in (lambda: data[index], lambda: data.select([index])):
        with pytest.raises(UsageError, match=r"index: .* is not the number of a sample"):
            ask()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: PreprocessedDataset("data.jsonl"), "hf_dataset: is a str, not the rows of one"),
        (lambda: PreprocessedDataset(ROWS, ENGINE, ["body"]), "column_mapping: must map"),  # type: ignore
        (lambda: StreamingPreprocessedDataset(ROWS, ENGINE, ["body"]), "column_mapping: must map"),  # type: ignore
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_type(make: Any, problem: str) -> None:
    """Told by their names."""
    with pytest.raises(UsageError, match=problem):
        make()


def test_one_field_to_keep_may_be_a_name() -> None:
    """And is not taken for its letters."""
    engine = TokenizeEngine(tokenizer=Bytes(), keep="label")  # type: ignore[arg-type]
    assert engine.keep == ("label",)


def test_a_mapping_is_kept_as_it_was() -> None:
    """The caller's may change later."""
    mapping = dict(MAPPING)
    data = PreprocessedDataset(ROWS, ENGINE, mapping)
    mapping["label"] = "text"
    assert data[0]["input_ids"].tolist() == [97]


def test_the_factory_chooses_by_the_data() -> None:
    """Item 67: samples by number or a stream; options of the other wrapper are not ignored."""
    hf = datasets.Dataset.from_list(ROWS)
    chosen = {
        "hf": hf, "list": ROWS, "stream": hf.to_iterable_dataset(), "function": lambda: iter(ROWS),
    }  # fmt: skip
    kinds = {name: type(create_preprocessed_dataset(data)) for name, data in chosen.items()}
    assert kinds == {
        "hf": PreprocessedDataset, "list": PreprocessedDataset,
        "stream": StreamingPreprocessedDataset, "function": StreamingPreprocessedDataset,
    }  # fmt: skip
    asked: Any = create_preprocessed_dataset(ROWS, ENGINE, streaming=True, column_mapping=MAPPING)
    assert sorted(sample["label"] for sample in asked) == list(range(20))
    create_preprocessed_dataset(chosen["stream"], cache_enabled=False)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (chosen["stream"], {"streaming": False}, "streaming.*is a stream"),
        (chosen["stream"], {"cache_enabled": True}, "cache_enabled: means nothing for streams"),
        (ROWS, {"skip_errors": True}, "skip_errors: means nothing for samples by number"),
        (ROWS, {"bufer": 1}, "bufer: there is no such option"),
        (iter(ROWS), {}, "is an iterator, which can be read once"),
        ({"train": ROWS}, {}, r"a mapping of train, not a dataset.*data\['train'\]"),
        (7, {}, "cannot|no samples|has no"),
    ]
    for data, options, message in cases:
        with pytest.raises(UsageError, match=message):
            create_preprocessed_dataset(data, **options)
    with pytest.raises(UsageError, match="Use StreamingPreprocessedDataset"):
        PreprocessedDataset(chosen["stream"])


def test_tokenizers_of_every_kind() -> None:
    """Item 120: encode may give ids, a dict or an object with ids."""
    from tokenizers import Tokenizer

    real = Tokenizer.from_buffer(byte_tokenizer())

    class Given:
        def __init__(self, ids: Any) -> None:
            self.ids_given = ids

        def encode(self, text: str) -> Any:
            return self.ids_given

    assert encode_text(real, "Hi") == encode_text(Bytes(), "Hi") == [72, 105]
    for ids in ([1, 2], (1, 2), torch.tensor([[1, 2]]), np.array([1, 2]), {"input_ids": [[1, 2]]}):
        assert encode_text(Given(ids), "") == [1, 2]
    for wrong in ("ab", [1.5], [-1], {"ids": [1]}, None, [[1], [2]]):
        with pytest.raises(UsageError, match="tokenizer"):
            encode_text(Given(wrong), "")
    with pytest.raises(UsageError, match=r"has no encode\(text\)"):
        encode_text(3, "")
    digest = tokenizer_digest(real)
    assert digest == tokenizer_digest(Tokenizer.from_buffer(byte_tokenizer()))
    assert digest != tokenizer_digest(Tokenizer.from_buffer(byte_tokenizer(300)))
    assert tokenizer_digest(Bytes()) is None
    assert TokenizeEngine(tokenizer=real, max_length=1).process("Hi") == {"input_ids": [72]}
