"""What is said of a state that is of another order: the real cause, and what to give."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.map_loader import Buckets, foreign_loader
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.loader.serve import serve_steps
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.loaders import make_loader


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a, b, c and d, and e of many documents."""
    root = tmp_path_factory.mktemp("orders")
    for number, name in enumerate("abcd"):
        make_dataset(root / name, {"train": random_split([[90, 41, 80]], seed=number)})
    lengths = [[9, 3, 20, 7, 5, 31, 2, 12, 17, 8, 4, 25, 6, 11, 14, 3]]
    make_dataset(root / "e", {"train": random_split(lengths)})
    return root


@pytest.fixture(autouse=True)
def _here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("DATAPREP_CACHE", str(root / "cache"))


def make(weights: Any, **options: Any) -> Loader:
    """A loader of one dataset, or of those in "ab" with equal weights, or with these weights."""
    weights = dict.fromkeys(weights, 1) if isinstance(weights, str) else weights
    return make_loader(weights, "train", 4, **{"seq_len": 8, "seed": 5} | options)


def refused(loader: Any, state: Any) -> DataprepError:
    with pytest.raises(DataprepError) as caught:
        loader.load_state_dict(state)
    assert caught.value.where == "state"
    return caught.value


def build(name: str) -> str:
    return f"content {open_dataset(name).split('train').content_id[:12]}"


def test_one_dataset_is_no_mixture() -> None:
    """Not even where the mixture is of one dataset, and that is the same."""
    alone, one = make(Path("a")), make("a")
    error = refused(one, alone.state_dict())
    assert error.code == "E_STATE"
    assert error.problem == "is of a by itself, and this is a mixture of that one dataset"
    assert error.remedy == "Give the dataset by itself, without a weight."
    error = refused(alone, one.state_dict())
    assert error.code == "E_STATE"
    assert error.problem.endswith("a alone, and this is no mixture")
    assert error.remedy == "Give the dataset with a weight, as a mixture of one."


def test_a_mixture_and_one_of_its_datasets() -> None:
    """Each way, what to give is said, by its path where it is open."""
    error = refused(make("ab"), make(Path("b")).state_dict())
    assert error.code == "E_STATE_DATASET"
    assert error.problem == "is of another dataset: b, this one is a mixture of a and b"
    assert error.remedy == "Give b by itself, without a weight."
    error = refused(make("ab"), make(Path("c")).state_dict())
    assert error.remedy == "Give the dataset that it was taken on by itself, without a weight."
    error = refused(make(Path("a")), make("ab").state_dict())
    assert error.code == "E_STATE_DATASET"
    assert f"a mixture of {Path('a').absolute()} and {build('b')}, this one is " in error.problem
    assert error.remedy == "Give all that it was taken on, in that order, each with its weight."


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_datasets_in_another_order(names: str) -> None:
    """They are the same, so the order is what to give; a state of many has no list of them."""
    first, last = " and ".join(", ".join(names).rsplit(", ", 1)), names[::-1]
    error = refused(make(last), make(names).state_dict())
    assert error.code == "E_STATE"
    assert error.problem.startswith(
        f"is of the same datasets in another order: {first}, not c"[:-1]
    )
    assert error.remedy is not None
    assert error.remedy.startswith(f"Give them, and their weights, in this order: {first}.")
    assert "weights_changed=True" in error.remedy
    make(last, weights_changed=True).load_state_dict(make(names).state_dict())


def test_other_datasets_of_many() -> None:
    """Content ids stand beside paths, and no digest of a list does."""
    error = refused(make("abd"), make("abc").state_dict())
    assert error.code == "E_STATE_DATASET"
    assert error.problem == (
        f"is of another dataset: a mixture of a, b and {build('c')}, "
        "this one is a mixture of a, b and d"
    )
    assert "weights_changed=True" in str(error)
    error = refused(make("cd"), make("ab").state_dict())  # no dataset of it: this would not help
    assert "weights_changed" not in str(error)


OTHERS: list[dict[str, Any]] = [
    {"seed": 9}, {"seq_len": 7}, {"shuffle": False}, {"rows": "packed"}, {"shuffle": "blocks"},
]  # fmt: skip


@pytest.mark.parametrize("options", OTHERS)
@pytest.mark.parametrize("changed", [False, True])
def test_weights_changed_is_offered_where_it_helps(options: Any, changed: bool) -> None:
    """Not for another seed or rows, and not where it is passed already."""
    state = make("ab").state_dict()
    error = refused(make({"a": 1, "b": 2}, weights_changed=changed, **options), state)
    assert "weights_changed" not in str(error)
    error = refused(make({"a": 1, "b": 2}), state)
    assert "Or pass weights_changed=True" in str(error)
    make({"a": 1, "b": 2}, weights_changed=True).load_state_dict(state)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_other_weights_are_said_as_weights(names: str) -> None:
    """However many there are, and without the digests."""
    weights = {name: number for number, name in enumerate(names, 1)}
    error = refused(make(weights), make(names).state_dict())
    shown = {2: ("1 and 1", "1 and 2"), 3: ("1, 1 and 1", "1, 2 and 3")}[len(names)]
    assert error.problem == f"is of another order: weights {shown[0]}, not {shown[1]}"


@pytest.mark.parametrize("mixed", [False, True])
def test_differences_are_in_the_words_of_options(mixed: bool) -> None:
    """What only follows from a difference, or is how it is stored, is left out."""
    place: Any = "abc" if mixed else Path("a")
    state = make(place).state_dict()
    for options, said in (
        ({"rows": "packed"}, "rows windows, not packed"),
        ({"shuffle": False}, "shuffle full, not none"),
        ({"shuffle": "blocks"}, "shuffle full, not blocks"),
        ({"seed": 9}, "seed 5, not 9"),
    ):
        assert refused(make(place, **options), state).problem == f"is of another order: {said}"
    back = refused(make(place), make(place, shuffle=False).state_dict())
    assert back.problem == "is of another order: shuffle none, not full"


DAMAGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda s: s.pop("skip"), "skip must be a list, got None"),
    (lambda s: s.update(skip="x"), "skip must be a list, got 'x'"),
    (lambda s: s.update(skip={}), "skip must be a list"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
@pytest.mark.parametrize("place", [Path("a"), "ab"])
def test_a_state_without_its_list_is_damaged(
    damage: Callable[[dict[str, Any]], Any], said: str, place: Any
) -> None:
    """Every state that was ever written has one."""
    state = copy.deepcopy(make(place).state_dict())
    damage(state)
    error = refused(make(place), state)
    assert f"is damaged ({said}" in error.problem
    assert error.remedy == "Load an earlier state, or begin without one."


@pytest.mark.parametrize("skip", [[-1], [[1]], ["x"], [1.5]])
def test_a_list_of_anything_else_is_damaged(skip: Any) -> None:
    state = make(Path("a")).state_dict() | {"skip": skip}
    assert "is damaged (skip must be whole numbers" in refused(make(Path("a")), state).problem


def test_text_is_no_state_yet() -> None:
    """What json.dumps made of one."""
    text: Any = json.dumps(make("ab").state_dict())
    error = refused(make("ab"), text)
    assert "json.loads" in (error.remedy or "")
    make("ab").load_state_dict(json.loads(text))


def test_positions_that_there_are_not_end_like_other_orders() -> None:
    """E_STATE has one exit code."""
    state = make(Path("a")).state_dict() | {"position": 10**9}
    error = refused(make(Path("a")), state)
    assert (error.code, error.exit_code) == ("E_STATE", IncompatibleError.exit_code)


def test_a_stream_state_that_lacks_a_field_is_damaged() -> None:
    """It was not taken with a seed of None."""
    samples = WindowDataset(open_dataset("a").split("train"), seq_len=8)
    stream = StreamDataset(samples, batch_size=4, seed=7)
    state = stream.state_dict()
    for name in ("seed", "content_id", "definition", "samples", "end"):
        with pytest.raises(UsageError, match=rf"is damaged \({name} is missing\)"):
            stream.load_state_dict({key: state[key] for key in state if key != name})


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": "blocks"}, {"shuffle": False}, {"rows": "packed", "seq_len": 16}],
    ids=str,
)
def test_the_name_of_a_split_decides_nothing(root: Path, tmp_path: Path, options: Any) -> None:
    """Equal data have one order, and take the states of each other, whatever their split's name."""
    make_dataset(tmp_path / "a", {"fit": random_split([[90, 41, 80]], seed=0)})
    options = {"seq_len": 8, "seed": 5, "shuffle": True, "drop_last": True} | options
    one = make_loader(root / "a", "train", 2, **options)
    other = make_loader(tmp_path / "a", "fit", 2, **options)
    followed = [batch["input_ids"].tolist() for batch in one]
    assert [batch["input_ids"].tolist() for batch in other] == followed
    one = make_loader(root / "a", "train", 2, **options)
    next(iter(one))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [batch["input_ids"].tolist() for batch in other] == followed[1:]
    mixed = make_loader({str(root / "a"): 1}, "train", 2, **options)
    next(iter(mixed))
    renamed = make_loader({str(tmp_path / "a"): 1}, "fit", 2, **options)
    renamed.load_state_dict(mixed.state_dict())
    assert renamed.state_dict()["position"] == 2


@pytest.mark.parametrize("shuffle", ["blocks", "buffer", None])
def test_the_name_of_a_split_decides_nothing_of_a_stream(
    root: Path, tmp_path: Path, shuffle: Any
) -> None:
    make_dataset(tmp_path / "a", {"fit": random_split([[90, 41, 80]], seed=0)})
    one, other = (
        StreamDataset(
            WindowDataset(open_dataset(path).split(split), seq_len=8), batch_size=2, seed=5,
            shuffle=shuffle, block=2, window=2, buffer=4,
        )
        for path, split in ((root / "a", "train"), (tmp_path / "a", "fit"))
    )  # fmt: skip
    followed = [batch["input_ids"].tolist() for batch in one]
    assert [batch["input_ids"].tolist() for batch in other] == followed
    state = one.state_dict()
    assert state["definition"]["split"] == "train"
    other.load_state_dict(state)


@pytest.mark.parametrize("buckets", [Buckets(pool=8), Buckets(pool=8, max_tokens=64)], ids=str)
def test_what_a_loader_is_for_orders_no_stored_split(buckets: Buckets) -> None:
    """The purpose is often the name of the split, and does not stand in the definition."""
    config = LoaderConfig(batch_size=2, drop_last=False)
    served = []
    for purpose in ("train", "fit"):
        documents = DocumentDataset(open_dataset("e").split("train"), max_length=32)
        loader = foreign_loader(documents, config, buckets=buckets, purpose=purpose)
        served.append([batch["input_ids"].tolist() for batch in loader])
    assert served[0] == served[1]


def test_a_stream_state_with_a_field_of_a_newer_version() -> None:
    """An option that this version does not know changes what is served: it is not ignored."""
    samples = WindowDataset(open_dataset("a").split("train"), seq_len=8)
    shuffles: list[Any] = ["blocks", "buffer", None]
    for shuffle in shuffles:
        stream = StreamDataset(samples, batch_size=4, shuffle=shuffle)
        state = stream.state_dict()
        error = refused(stream, {**state, "interleave": 7})
        assert (error.code, error.exit_code) == ("E_VERSION", 6)
        assert error.problem.startswith("has interleave: it was made by a newer")
        stream.load_state_dict({**state, "interleave": None})
    rows = foreign_stream_loader(lambda: iter(range(9)), LoaderConfig(batch_size=2), identity="x")
    state = rows.state_dict()
    odd = state | {"order": state["order"] | {"interleave": 7}}
    assert refused(rows, odd).code == "E_STATE"


def test_a_phase_with_a_field_of_a_newer_version() -> None:
    """It may change what follows."""
    loader = make("ab")
    state = loader.state_dict()
    (phase,) = state["phases"]
    assert refused(loader, state | {"phases": [phase | {"blend": 1}]}).code == "E_VERSION"
    loader.load_state_dict(state | {"phases": [phase | {"blend": None, "begin": None}]})


def test_null_means_missing() -> None:
    """In a loader's definition and a stream's, also where they are nested."""
    loader = make(Path("a"), labels=None, shuffle=False, drop_last=True)
    state = loader.state_dict()
    order = {name: value for name, value in state["order"].items() if value is not None}
    assert order != state["order"]
    loader.load_state_dict(state | {"order": order})
    loader.load_state_dict(state | {"order": order | {"later": None}})
    assert refused(loader, state | {"order": order | {"later": 0}}).code == "E_STATE"
    samples = WindowDataset(open_dataset("a").split("train"), seq_len=8, labels=None)
    stream = StreamDataset(samples, batch_size=4, shuffle=None)
    state = stream.state_dict()
    assert state["definition"]["labels"] is state["shuffle"] is None
    definition = {"kind": "windows", "seq_len": 8, "stride": 8, "steering": None}
    fewer = {name: value for name, value in state.items() if value is not None}
    stream.load_state_dict(fewer | {"definition": definition, "block": None})


def test_nulls_and_splits_are_not_hashed() -> None:
    """A definition that is too long for a state is hashed without them."""
    long, plain = {"clusters": [*range(200)]}, {"version": 1, "zero_end": 0.5}
    nulls = {**plain, "later": None, "split": "train"}
    samples, sampler = make("a").dataset_obj, make("a").sampler_obj
    one, other = (
        serve_steps(samples, sampler, definition={"steering": steering, **long}).order["sha256"]
        for steering in (plain, nulls)
    )
    assert one == other == digest_of({"steering": plain, **long})


def test_a_long_definition_names_its_dataset() -> None:
    """The content id of one dataset is no part of the hash, so the error says what differs."""
    one, other = (make(Path(name)) for name in "ab")
    long, longer = (
        serve_steps(
            loader.dataset_obj, loader.sampler_obj, definition={**loader.order, "clusters": [*many]}
        )
        for loader, many in ((one, range(200)), (other, range(200)))
    )
    assert "clusters" not in long.order
    assert long.order["content"] != longer.order["content"]
    assert long.order["sha256"] == longer.order["sha256"] == digest_of({"clusters": [*range(200)]})
    error = refused(longer, long.state_dict())
    assert error.code == "E_STATE_DATASET"
    assert error.problem.startswith("is of another dataset: content")
    mixed = make("ab")
    definition = {**mixed.order, "rows_of_sources": [*range(200)]}
    brief = serve_steps(mixed.dataset_obj, mixed.sampler_obj, definition=definition).order
    assert "content" not in brief


def test_one_forgotten_sample_is_one() -> None:
    with pytest.warns(UserWarning, match="left out 1 sample more than"):
        make(Path("a")).load_state_dict(make(Path("a"), skip=[3]).state_dict())


def test_skips_of_a_mixture_say_what_to_give() -> None:
    with pytest.raises(UsageError, match="several datasets") as caught:
        make(Path("a"), skip={"a": [1]})
    assert 'or give weights: {"prose": 0.7, "code": 0.3}.' in (caught.value.remedy or "")


def test_a_refused_state_of_a_run_under_way() -> None:
    """Phases tell the weights of the run: those it has now."""
    first = make({"a": 3, "b": 1, "c": 1})
    list(itertools.islice(first, 2))
    second = make("abc", weights_changed=True)
    second.load_state_dict(first.state_dict())
    error = refused(make({"a": 3, "b": 1, "c": 1}), second.state_dict())
    assert error.problem == "is of another order: weights 1, 1 and 1, not 3, 1 and 1"
