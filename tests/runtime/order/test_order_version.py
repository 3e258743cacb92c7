"""What a state and a digest say of the order: its algorithm, its content, its sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.errors import DataprepError, IncompatibleError, UsageError
from dataprep.runtime.create import create_loader
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.map_loader import foreign_loader
from dataprep.runtime.order.order_checksum import contributions, digest_seed
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.streams import Steps, stream


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a and b of equal shape."""
    root = tmp_path_factory.mktemp("version")
    for number, name in enumerate("ab"):
        make_dataset(root / name, {"train": random_split([[300, 41]], seed=number)})
    return root


def states(root: Path) -> list[tuple[Any, dict[str, Any]]]:
    """A loader of each kind that has states, and its state."""
    windows = create_loader(root / "a", "train", 4, seq_len=8)
    mixture = create_loader({str(root / "a"): 1, str(root / "b"): 1}, "train", 4, seq_len=8)
    foreign = foreign_loader(list(range(20)), LoaderConfig(batch_size=4))
    return [(loader, loader.state_dict()) for loader in (windows, mixture, foreign)]


def test_another_algorithm_is_refused_by_name(root: Path) -> None:
    """A state of a later order is not served in this one, and no state is without a version."""
    for loader, state in states(root):
        assert state["order"]["algorithm"] == 1
        with pytest.raises(IncompatibleError) as caught:
            loader.load_state_dict({**state, "order": {**state["order"], "algorithm": 2}})
        assert str(caught.value) == (
            "error[E_VERSION] state: was taken with sample order 2; this dataprep has 1. "
            "Install the dataprep that wrote it."
        )
        for wrong in (None, "1", True):
            with pytest.raises(UsageError, match="damaged"):
                loader.load_state_dict({**state, "order": {**state["order"], "algorithm": wrong}})
        loader.load_state_dict(state)


def test_another_algorithm_of_a_stream(windows: WindowDataset) -> None:
    """The state of a stream names it as well."""
    state = stream(windows, batch_size=4).state_dict()
    assert state["algorithm"] == 1
    with pytest.raises(IncompatibleError, match=r"E_VERSION.*sample order 2; this dataprep has 1"):
        stream(windows, batch_size=4).load_state_dict({**state, "algorithm": 2})
    del state["algorithm"]
    with pytest.raises(UsageError, match="damaged"):
        stream(windows, batch_size=4).load_state_dict(state)


def test_the_seed_of_a_digest() -> None:
    """Eight bytes of a SHA-256 of canonical JSON, little-endian; all that is served adds them."""
    # echo -n '["dataprep digest 1",1,["a","b"]]' | sha256sum
    assert digest_seed(["a", "b"]).to_bytes(8, "little").hex() == SEED
    samples = np.arange(5)
    one, two = (contributions(samples, samples, 0, digest_seed([name])) for name in "ab")
    assert not set(one.tolist()) & set(two.tolist())


def test_two_datasets_share_no_digest(root: Path) -> None:
    """Also where they serve the same sample numbers, in the stored order; nothing served is 0."""
    places: tuple[Any, ...] = (root / "a", root / "b", {root / "a": 1, root / "b": 1})
    loaders = [create_loader(place, "train", 4, seq_len=8, shuffle=False) for place in places]
    assert {loader.order_digest for loader in loaders} == {"0" * 16}
    for loader in loaders:
        assert len(list(islice(loader, 3))) == 3
    assert len({loader.order_digest for loader in loaders}) == 3


def test_foreign_data_is_told_apart_by_its_identity() -> None:
    """It has no content id: its name stands for it in the digest."""
    found = set()
    for identity in ("numbers", "others", "numbers"):
        loader = foreign_loader(list(range(20)), LoaderConfig(batch_size=4), identity=identity)
        list(loader)
        found.add(loader.order_digest)
    assert len(found) == 2


def test_sizes_of_blocks_come_from_the_state(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a default here is read there; the dataset is the same, and so is the order."""
    first = create_loader(root / "a", "train", 4, seq_len=8, shuffle="blocks", skip=[3, 30])
    list(islice(first, 3))
    state = json.loads(json.dumps(first.state_dict()))
    rest = [batch["input_ids"].tolist() for batch in first][3:]
    monkeypatch.setattr("dataprep.runtime.order.blocks.block_sizes", lambda _: (2, 3))
    again = create_loader(root / "a", "train", 4, seq_len=8, shuffle="blocks", skip=[3, 30])
    assert (again.order["block"], again.order["window"]) == (2, 3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [batch["input_ids"].tolist() for batch in again] == rest
    for name, wrong in (("block", 0), ("window", "3"), ("block", 1 << 50)):
        with pytest.raises(DataprepError):
            again.load_state_dict({**state, "order": {**state["order"], name: wrong}})


SIZES: list[dict[str, Any]] = [
    {"shuffle": "blocks", "block": 3, "window": 2}, {"shuffle": "buffer", "block": 3, "buffer": 7}
]  # fmt: skip


@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.parametrize("workers", [0, 1])
def test_sizes_of_a_stream_come_from_the_state(
    windows: WindowDataset,
    options: dict[str, Any],
    workers: int,
    steps_of: Callable[[Iterable[Any]], Steps],
) -> None:
    """Also in worker processes that live already."""
    first = StreamDataset(windows, batch_size=4, **options)
    method = "fork" if workers else None
    live = stream_loader(first, num_workers=workers, multiprocessing_context=method)
    begun = steps_of(islice(live, 2))
    state = live.state_dict()
    whole = steps_of(live)
    assert whole[:2] == begun
    again = StreamDataset(windows, batch_size=4, shuffle=options["shuffle"])
    other = stream_loader(again, num_workers=workers, multiprocessing_context=method)
    assert steps_of(islice(other, 2)) != begun
    other.load_state_dict(state)
    assert steps_of(other) == whole[2:]
    given = StreamDataset(windows, batch_size=4, shuffle=options["shuffle"], block=5)
    with pytest.raises(IncompatibleError, match="was taken with block 3, this stream has 5"):
        given.load_state_dict(state)


SEED = "535383048c7306c9"
