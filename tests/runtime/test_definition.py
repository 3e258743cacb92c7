"""What decides the samples stands in the definition of the order, and nothing else does.

Every argument of `create_loader` is in one of the three tables; a new one fails until it is.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dataprep.formats.errors import IncompatibleError
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.create import create_loader
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.specs import (
    Documents,
    Embeddings,
    Mixture,
    Packed,
    Pairs,
    Preferences,
    Windows,
)
from tests.scenes.loaders import make_loader
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "data_fixtures" / "golden" / "v1"
PACKED: dict[str, Any] = {"rows": "packed", "seq_len": 32}
MIXED: dict[str, Any] = {
    "dataset_dir": {str(GOLDEN / "narrow"): 3, str(GOLDEN / "wide"): 1},
    "mixed_tokenizers": True,
}
WORKERS: dict[str, Any] = {"num_workers": 1}


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"dataset_dir": GOLDEN / name, **options}


def same(batch: Any, seeds: Any) -> Any:
    """A transform that does nothing."""
    return batch


def changed(batch: Any, seeds: Any) -> Any:
    """A transform of another name."""
    return batch


DECIDES: dict[str, tuple[dict[str, Any], Any]] = {
    "dataset_dir": ({}, GOLDEN / "wide"),
    "split": ({}, "val"),
    "rows": ({"seq_len": 32}, "documents"),
    "seq_len": ({}, 16),
    "stride": ({}, 5),
    "algorithm": (PACKED, "best-fit"),
    "overlong": (PACKED, "drop"),
    "labels": ({}, "unshifted"),
    "transform": ({"labels": "unshifted"}, same),
    "seed": ({}, 1),
    "shuffle": ({}, "blocks"),
    "by": ({**MIXED, **PACKED}, "tokens"),
    "raw": (of("embeddings"), True),
    "dtype": (of("embeddings"), torch.float16),
    "clusters": (of("pairs"), [0, 1]),
    "curriculum": (of("pairs", split="val"), "all"),
}
"""Arguments with what else is given, and a value that changes samples, labels or their order."""

IN_THE_STATE: dict[str, tuple[dict[str, Any], Any]] = {
    "epoch": ({}, 2),
    "skip": ({}, [1, 3]),
}
"""Arguments that a state says by itself, beside the order."""

CHANGES_NO_SAMPLE: dict[str, tuple[dict[str, Any], Any]] = {
    "batch_size": ({}, 3),
    "num_workers": ({}, 1),
    "distributed": ({}, False),
    "drop_last": ({}, False),
    "pin_memory": ({}, False),
    "position_ids": ({}, True),
    "doc_ids": ({}, True),
    "cu_seqlens": ({}, True),
    "source_ids": (MIXED, True),
    "fields": (of("embeddings"), ["embedding"]),
    "weights_changed": (MIXED, True),
    "mixed_tokenizers": ({"dataset_dir": {str(GOLDEN / "narrow"): 1}}, True),
    "dp_rank": ({"dp_rank": 0, "dp_size": 2}, 1),
    "dp_size": ({"dp_rank": 0, "dp_size": 1}, 2),
    "prefetch": ({}, 0),
    "multiprocessing_context": (WORKERS, "spawn"),
    "preload": (of("pairs"), True),
    "device": (of("pairs"), "cpu"),
}
"""Batches, ranks and workers; tensors that stand beside the samples; what may be loaded."""

REFUSES_STATES: dict[str, tuple[dict[str, Any], Any]] = {"mock": ({}, True)}
"""It serves no samples, and its state is for nothing else."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path))


def make(**options: Any) -> Loader:
    base: dict[str, Any] = of("narrow", split="train", batch_size=2)
    found = {**base, **options}
    tokens = isinstance(found["dataset_dir"], dict) or "tokenizer.json" in {
        file.name for file in found["dataset_dir"].iterdir()
    }
    return make_loader(**({"seq_len": 8} if tokens else {}) | found)


def test_every_argument_is_in_a_table() -> None:
    """A new argument that changes what is served has to be in a definition."""
    tables = (DECIDES, IN_THE_STATE, CHANGES_NO_SAMPLE, REFUSES_STATES)
    names = [name for table in tables for name in table]
    known = {*inspect.signature(create_loader).parameters} - {"unknown"}
    for spec in (Windows, Packed, Documents, Preferences, Embeddings, Pairs, Mixture):
        known |= {field.name for field in fields(spec)}
    assert sorted(names) == sorted(known - {"weights", "form"})  # which are of the data


@pytest.mark.parametrize("name", [*DECIDES, *REFUSES_STATES])
def test_what_decides_samples_is_in_the_definition(name: str) -> None:
    """A state of one value is refused by a loader with the other, both ways."""
    options, value = (DECIDES | REFUSES_STATES)[name]
    one, other = make(**options), make(**options | {name: value})
    for loader, state in ((one, other.state_dict()), (other, one.state_dict())):
        with pytest.raises(IncompatibleError):
            loader.load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.filterwarnings("ignore:the state is of a run that left out")
@pytest.mark.parametrize("name", [*CHANGES_NO_SAMPLE, *IN_THE_STATE])
def test_what_changes_no_sample_is_not(name: str) -> None:
    """A state of one value is good for the other, both ways (with a warning of skipped samples)."""
    options, value = (CHANGES_NO_SAMPLE | IN_THE_STATE)[name]
    one, other = make(**options), make(**options | {name: value})
    assert one.order == other.order
    for loader, state in ((one, other.state_dict()), (other, one.state_dict())):
        loader.load_state_dict(json.loads(json.dumps(state)))


def test_the_seed_of_a_transform_is_in_the_definition() -> None:
    """In the stored order nothing else has it; another transform is refused by its name."""
    options: dict[str, Any] = {"labels": "unshifted", "shuffle": False}
    first = make(**options, transform=same, seed=1)
    make(**options, transform=same, seed=1).load_state_dict(first.state_dict())
    with pytest.raises(IncompatibleError, match="transform_seed 1, not 2"):
        make(**options, transform=same, seed=2).load_state_dict(first.state_dict())
    hide = MaskedLM(mask_id=3, vocab_size=400).hide
    with pytest.raises(IncompatibleError, match="transform same, not hide"):
        make(**options, transform=hide, seed=1).load_state_dict(first.state_dict())


def test_the_options_of_hidden_tokens_are_in_the_definition() -> None:
    """Another probability, seed or vocabulary is refused, through a partial function too."""
    options: dict[str, Any] = {"labels": "unshifted"}
    known: dict[str, Any] = {"mask_id": 3, "vocab_size": 400}
    first = make(**options, transform=MaskedLM(**known).hide)
    make(**options, transform=MaskedLM(**known).hide).load_state_dict(first.state_dict())
    others: list[dict[str, Any]] = [
        {"probability": 0.9}, {"seed": 2}, {"mask_id": 4}, {"vocab_size": 410},
        {"special_ids": (1,)}, {"mask_share": 0.7}, {"random_share": 0.2},
        {"whole_words": True}, {"continuations": (7, 8)},
    ]  # fmt: skip
    for other in others:
        (name,) = other
        hide = partial(MaskedLM(**known | other).hide)
        with pytest.raises(IncompatibleError, match=f"transform_options {name}"):
            make(**options, transform=hide).load_state_dict(first.state_dict())


def test_a_partial_transform_goes_by_the_name_of_its_function() -> None:
    """Two functions are two transforms, whatever of their arguments is given before."""
    one, other = (make(transform=partial(function, seeds=1)) for function in (same, changed))
    assert one.order["transform"] == "same"
    with pytest.raises(IncompatibleError, match="transform same, not changed"):
        other.load_state_dict(one.state_dict())
