"""One state of every kind of loader over the golden datasets, and what must follow it.

`data_fixtures/make_golden.py` writes them once, and tests/runtime/loader/test_golden_states.py
resumes them. A state is a file of JSON: `loader`, the key in `LOADERS`; `state`, taken in the
middle of an epoch; `batches`, a hash of each batch that follows to the end of the next epoch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from dataprep import open_dataset
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.external.config import LoaderConfig
from dataprep.runtime.external.iterable_loader import foreign_stream_loader
from dataprep.runtime.external.map_loader import Buckets, foreign_loader
from dataprep.runtime.mixture.order import MixtureOrder
from dataprep.runtime.order.blocks import Blocks
from dataprep.runtime.rows.documents import DocumentDataset
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.stream.dataset import StreamDataset
from dataprep.runtime.stream.loader import stream_loader
from tests.scenes.loaders import make_loader

__all__ = ["LOADERS", "followed", "taken"]

_DONE = 3  # batches before the state


def _created(place: Any, batch_size: int = 2, **options: Any) -> Callable[[Path], Any]:
    """A loader of `create_loader`, over a dataset by its name or several with weights."""

    def make(golden: Path) -> Any:
        named = isinstance(place, dict)
        places = {str(golden / name): weight for name, weight in place.items()} if named else None
        return make_loader(places or golden / place, "train", batch_size, **{"seed": 3} | options)

    return make


def _streamed(**options: Any) -> Callable[[Path], Any]:
    def make(golden: Path) -> Any:
        windows = WindowDataset(open_dataset(golden / "narrow").split("train"), seq_len=16)
        return stream_loader(StreamDataset(windows, batch_size=2, seed=3, **options))

    return make


def _bucketed(**options: Any) -> Callable[[Path], Any]:
    def make(golden: Path) -> Any:
        split = open_dataset(golden / "narrow").split("train")
        documents = DocumentDataset(split, max_length=32, min_tokens=1)
        config = LoaderConfig(batch_size=2, seed=3)
        return foreign_loader(documents, config, buckets=Buckets(pool=8, **options))

    return make


def _in_small_blocks(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """The loader that `make` makes, with blocks of 3 samples and windows of 2 of them."""

    def made(golden: Path) -> Any:
        loader = make(golden)
        sampler = loader.sampler_obj
        if isinstance(sampler.order, MixtureOrder):
            own = cast("tuple[Blocks, ...]", sampler.order.orders)
            orders = [replace(one, block=3, window=2) for one in own]
            sampler.order = replace(sampler.order, orders=tuple(orders), phases=())
        else:
            state = loader.state_dict()
            order = {**state["order"], "block": 3, "window": 2}
            loader.load_state_dict(state | {"order": order})
        return loader

    return made


def _changed(golden: Path) -> Any:
    """A mixture in its second phase, in which one of its sources is not drawn from."""
    first = LOADERS["mixture"](golden)
    list(islice(first, _DONE))
    second = _created({"narrow": 1}, weights_changed=True, **_MIXED)(golden)
    second.load_state_dict(first.state_dict())
    return second


class _Drawn(list[int]):
    """Numbers, each with digits behind the point that are drawn."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + random.random()


class _OwnSampler:
    """Every other number, in an order that is drawn."""

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(0, 17, 2), key=lambda _: random.random()))


def _drawn(_: Path) -> Any:
    config = LoaderConfig(batch_size=2, seed=3, draws=True)
    return foreign_loader(_Drawn(range(17)), config, identity="numbers")


def _sampled(_: Path) -> Any:
    config = LoaderConfig(batch_size=2, seed=3)
    return foreign_loader(list(range(17)), config, identity="numbers", sampler=_OwnSampler())


def _foreign(_: Path) -> Any:
    return foreign_loader(list(range(17)), LoaderConfig(batch_size=2, seed=3), identity="numbers")


def _foreign_stream(_: Path) -> Any:
    config = LoaderConfig(batch_size=2, seed=3)
    return foreign_stream_loader(lambda: iter(range(17)), config, identity="numbers", buffer=4)


_MIXED: dict[str, Any] = {"seq_len": 16, "mixed_tokenizers": True, "source_ids": True}

LOADERS: dict[str, Callable[[Path], Any]] = {
    "windows": _created("narrow", seq_len=16, doc_ids=True, position_ids=True),
    "windows-stored": _created("wide", seq_len=16, shuffle=False, labels="unshifted"),
    "windows-blocks": _in_small_blocks(_created("narrow", seq_len=16, shuffle="blocks")),
    "windows-transform": _created(
        "narrow",
        seq_len=16,
        labels="unshifted",
        transform=MaskedLM(mask_id=3, vocab_size=400, seed=4).hide,
    ),
    "windows-skip": _created("narrow", seq_len=16, skip=[1, 5, 6]),
    "packed": _created("narrow", rows="packed", seq_len=64, cu_seqlens=8),
    "packed-best": _created(
        "narrow", 1, rows="packed", seq_len=64, algorithm="best-fit", overlong="drop"
    ),
    "chat": _created("chat", 1, seq_len=128),
    "documents": _created("narrow", rows="documents", seq_len=32),
    "preferences": _created("answers", 1),
    "embeddings": _created("embeddings"),
    "pairs": _created("pairs"),
    "mixture": _created({"narrow": 3, "wide": 1}, **_MIXED),
    "mixture-blocks": _in_small_blocks(
        _created({"narrow": 0.7, "wide": 0.3}, shuffle="blocks", **_MIXED)
    ),
    "mixture-changed": _changed,
    "stream-blocks": _streamed(block=3, window=2),
    "stream-buffer": _streamed(shuffle="buffer", block=3, buffer=5),
    "buckets": _bucketed(),
    "token-budget": _bucketed(max_tokens=64),
    "foreign": _foreign,
    "foreign-draws": _drawn,
    "foreign-sampler": _sampled,
    "foreign-stream": _foreign_stream,
}


def taken(name: str, golden: Path) -> dict[str, Any]:
    """Serve some batches, and return the state and the hashes of what follows: JSON values."""
    loader = LOADERS[name](golden)
    if len(list(islice(loader, _DONE))) < _DONE:
        raise ValueError(f"{name} has too few batches")
    state = json.loads(json.dumps(loader.state_dict()))
    return {"loader": name, "state": state, **followed(LOADERS[name](golden), state)}


def followed(loader: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the hashes of the batches of this epoch and the next, and the state at their end."""
    loader.load_state_dict(state)
    hashes = [_hashed(batch) for _ in range(2) for batch in loader]
    return {"batches": hashes, "end": json.loads(json.dumps(loader.state_dict()))}


def _hashed(batch: Any) -> str:
    """16 digits of the SHA-256 of the names, dtypes, shapes and numbers of all tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(_tensors(batch)):
        values = tensor.contiguous()
        if values.dtype == torch.bfloat16:
            values = values.view(torch.int16)
        numbers = values.numpy()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(np.ascontiguousarray(numbers).tobytes())
    return found.hexdigest()[:16]


def _tensors(batch: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(batch, torch.Tensor):
        yield name, batch
        return
    parts: Iterable[tuple[Any, Any]]
    parts = batch.items() if isinstance(batch, dict) else enumerate(batch)
    for key, value in parts:
        yield from _tensors(value, f"{name}/{key}")
