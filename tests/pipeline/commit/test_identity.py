"""Builds of equal data have one content id and one order; renamed parts make the same build."""

from __future__ import annotations

import gzip
import pickle
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dataprep import create_loader, open_dataset
from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest.common import CONFIG_NAME, dump_json
from dataprep.formats.manifest.tokens import Probe
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.commit import shards as layout
from dataprep.pipeline.tokenize import probes
from tests.scenes.chats import SPLIT, TALKS, build_chats
from tests.scenes.contents import content_ids
from tests.scenes.corpora import (
    MESSY,
    SMALL_TOKENIZER,
    STORIES,
    build_into,
    records_of,
    shrink_units,
    write_large,
)

SAME: dict[str, dict[str, Any]] = {
    "input renamed": {"input": "renamed.jsonl"},
    "other engine": {"engine": "tokenizers"},
    "tokenizer renamed": {"tokenizer": "other.json"},
    "skips": {"on_error": "skip"},
    "format named": {"format": "jsonl"},
    "two workers": {"workers": 2},
}
"""What makes the same build as `build_into(out, data.jsonl)`."""
OTHER: dict[str, dict[str, Any]] = {
    "compressed": {"input": "data.jsonl.gz"},
    "in two files": {"input": "parts"},
    "joined": {"join": 64 << 20},
}
"""What makes the same data of other inputs, or in other shards."""
UNIT = 48 << 10
WINDOWS: dict[str, Any] = {"batch_size": 4, "seq_len": 64, "seed": 5, "num_workers": 0}


def _ids(path: Path) -> dict[str, str]:
    with open_dataset(path) as dataset:
        return {name: split.content_id for name, split in dataset.splits.items()}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs: one text as `data.jsonl`, under other names, compressed and in two files."""
    home = tmp_path_factory.mktemp("identity")
    data = write_large(home / "data.jsonl", 0.25).read_bytes()
    (home / "renamed.jsonl").write_bytes(data)
    (home / "data.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
    (home / "parts").mkdir()
    lines = data.splitlines(keepends=True)
    (home / "parts" / "a.jsonl").write_bytes(b"".join(lines[:25]))
    (home / "parts" / "b.jsonl").write_bytes(b"".join(lines[25:]))
    shutil.copy(SMALL_TOKENIZER, home / "other.json")
    return home


def _build(work: Path, out: Path, **options: Any) -> Any:
    """Build with units of `UNIT` and a shard for each piece, or pieces that are joined."""
    source = work / options.pop("input", "data.jsonl")
    if "tokenizer" in options:
        options["tokenizer"] = str(work / options["tokenizer"])
    with pytest.MonkeyPatch.context() as patch:
        shrink_units(patch.setattr, UNIT, 1)
        patch.setattr(layout, "JOIN_BELOW_BYTES", options.pop("join", 1))
        return build_into(out, source, **{"split": "train=0.8,val=0.1,test=0.1", **options})


@pytest.fixture(scope="module")
def plain(work: Path) -> Path:
    _build(work, work / "plain")
    return work / "plain"


def _batches(path: Path, state: Mapping[str, Any] | None = None, count: int = 6) -> Any:
    loader = create_loader(path, "train", **WINDOWS)
    if state is not None:
        loader.load_state_dict(state)
    taken = [batch["input_ids"].numpy().copy() for batch in islice(loader, count)]
    return np.stack(taken), loader.state_dict()


@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_equal_data_have_one_id_and_one_order(
    plain: Path, work: Path, name: str, tmp_path: Path
) -> None:
    """One content id for each split, the same batches, and the state of one serves the other."""
    report = _build(work, tmp_path / "out", **{**SAME, **OTHER}[name])
    assert _ids(tmp_path / "out") == _ids(plain) == content_ids(tmp_path / "out")
    shards = len(report.manifest.splits["train"].shards)
    assert shards == 1 if name in ("compressed", "joined") else shards > 3
    first, state = _batches(plain)
    assert np.array_equal(_batches(tmp_path / "out")[0], first)
    there, back = _batches(tmp_path / "out", state)
    assert np.array_equal(_batches(plain, state)[0], there)
    assert _batches(plain, back, count=1)[0].shape == (1, *there.shape[1:])
    with open_dataset(plain) as dataset:
        assert (report.recipe_id == dataset.recipe_id) == (name in SAME or name == "joined")


@pytest.mark.parametrize("options", [*SAME.values(), {}, {"eos": "<|endoftext|>"}], ids=str)
def test_the_same_build_is_recognised(plain: Path, work: Path, options: dict[str, Any]) -> None:
    """What has other names or is made another way is not made again."""
    assert _build(work, plain, **options).reused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "data.jsonl.gz"}, r"made from other inputs: data\.jsonl\.gz is not data\.jsonl"),
        ({"input": "parts"}, "made from other inputs: 1, not 2"),
        ({"seed": 1}, "different seed"),
        ({"split": "train=0.9,val=0.1"}, "different split"),
        ({"eos": "none"}, "different eos"),
        ({"special_text": "parse", "field": "title"}, "different field, special_text"),
        ({"tokenizer": "../changed.json"}, "made with another tokenizer"),
    ],
    ids=str,
)
def test_another_build_is_refused_by_name(
    plain: Path, work: Path, options: dict[str, Any], message: str
) -> None:
    """The error names the option or the input that differs."""
    changed = SMALL_TOKENIZER.read_bytes() + b"\n"
    (work / ".." / "changed.json").write_bytes(changed)
    with pytest.raises(UsageError, match=message) as caught:
        _build(work, plain, **options)
    assert caught.value.code == "E_EXISTS"


@pytest.mark.parametrize("chosen", [("Hello, world!", "a  b"), ()], ids=["two", "none"])
def test_a_tokenizer_is_compared_by_the_probes_that_are_stored(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: tuple[str, ...]
) -> None:
    """A version that probes with other texts makes no other dataset, unless their ids differ."""
    with monkeypatch.context() as patch:
        patch.setattr(probes, "_PROBES", chosen)
        first = _build(work, tmp_path / "out")
    assert tuple(probe.text for probe in first.manifest.tokenizer.probes) == chosen
    again = _build(work, tmp_path / "out")
    assert (again.reused, again.recipe_id) == (True, first.recipe_id)
    assert again.manifest.tokenizer.probes == first.manifest.tokenizer.probes
    changed = (Probe(text="Hello, world!", ids=(1, 2)),)
    tokenizer = msgspec.structs.replace(first.manifest.tokenizer, probes=changed)
    manifest = msgspec.structs.replace(first.manifest, tokenizer=tokenizer)
    (tmp_path / "out" / CONFIG_NAME).write_bytes(dump_json(manifest))
    with pytest.raises(UsageError, match="made with another tokenizer setting: probes"):
        _build(work, tmp_path / "out")


def test_records_that_were_left_out_stop_a_strict_build(tmp_path: Path) -> None:
    """Without `on_error` skip the dataset would not have been made."""
    first = build_into(tmp_path / "out", MESSY, on_error="skip")
    assert first.manifest.records.rejected
    with pytest.raises(UsageError, match="different on_error"):
        build_into(tmp_path / "out", MESSY)
    assert build_into(tmp_path / "out", MESSY, on_error="skip").recipe_id == first.recipe_id


def test_other_splits_leave_train_as_it_is(work: Path, plain: Path, tmp_path: Path) -> None:
    """Splits that keep the documents of train keep its id, order and states."""
    _build(work, tmp_path / "two", split="train=0.8,val=0.2")
    _build(work, tmp_path / "four", split="train=0.8,extra=0.05,test=0.05,val=0.1")
    ids, two, four = (_ids(path) for path in (plain, tmp_path / "two", tmp_path / "four"))
    assert two["train"] == four["train"] == ids["train"]
    assert four["val"] == ids["val"] != two["val"]
    assert four["test"] != ids["test"]
    first, state = _batches(plain)
    assert np.array_equal(_batches(tmp_path / "two")[0], first)
    assert np.array_equal(_batches(tmp_path / "two", state)[0], _batches(plain, state)[0])


def test_exact_splits(work: Path, tmp_path: Path) -> None:
    """Documents that are dealt out at commit: the id is that of the definition."""
    exact = {"split": "train=rest,val=21", "split_mode": "count"}
    _build(work, tmp_path / "one", **exact)
    ids = _ids(tmp_path / "one")
    for name in ("compressed", "joined"):
        _build(work, tmp_path / name, **exact, **OTHER[name])
        assert ids == _ids(tmp_path / name) == content_ids(tmp_path / name)
    assert verify(tmp_path / "one").ok


def test_conversations(tmp_path: Path) -> None:
    """Masks count; the names of inputs and templates do not."""
    build_chats(tmp_path / "out", TALKS, split=SPLIT)
    ids = _ids(tmp_path / "out")
    assert ids == content_ids(tmp_path / "out")
    shutil.copy(TALKS, tmp_path / "renamed.jsonl")
    shutil.copy(tmp_path / "out" / "chat_template.jinja", tmp_path / "mine.jinja")
    named: dict[str, Any] = {"template": str(tmp_path / "mine.jinja"), "split": SPLIT}
    assert build_chats(tmp_path / "out", tmp_path / "renamed.jsonl", **named).reused
    build_chats(tmp_path / "gz", _zipped(tmp_path, TALKS), engine="tokenizers", **named)
    assert _ids(tmp_path / "gz") == ids
    build_chats(tmp_path / "all", TALKS, split=SPLIT, train_on="all")
    assert not set(_ids(tmp_path / "all").values()) & set(ids.values())
    with pytest.raises(UsageError, match="different train_on"):
        build_chats(tmp_path / "out", TALKS, split=SPLIT, train_on="all")


def test_preferences(tmp_path: Path) -> None:
    """Records of several documents: groups and scores are part of the content."""
    source = tmp_path / "pairs.jsonl"
    lines = [
        f'{{"prompt": "{r["text"][:30]!a}", "chosen": "yes {n}", "rejected": "no {n}"}}\n'
        for n, r in enumerate(records_of(STORIES)[:30])
    ]
    source.write_text("".join(line.replace("\\", "") for line in lines), encoding="utf-8")
    build_chats(tmp_path / "one", source, split=SPLIT)
    build_chats(tmp_path / "two", _zipped(tmp_path, source), split=SPLIT)
    assert _ids(tmp_path / "one") == _ids(tmp_path / "two") == content_ids(tmp_path / "one")
    exact = {"split": "train=rest,val=5", "split_mode": "count"}
    build_chats(tmp_path / "exact", source, **exact)
    assert _ids(tmp_path / "exact") == content_ids(tmp_path / "exact")
    assert verify(tmp_path / "exact").ok


def _zipped(home: Path, source: Path) -> Path:
    target = home / f"{source.name}.gz"
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    return target


def test_a_dataset_of_the_same_recipe_is_another(work: Path, tmp_path: Path) -> None:
    """A reader goes by config.json itself: names and shards may differ under one recipe."""
    first = _build(work, tmp_path / "out")
    with open_dataset(tmp_path / "out") as dataset:
        packed = pickle.dumps(dataset)
        second = _build(work, tmp_path / "out", input="renamed.jsonl", overwrite=True)
        assert second.recipe_id == first.recipe_id
        with pytest.raises(IntegrityError, match="was replaced by") as caught:
            dataset.split("val").source(0)
        assert caught.value.code == "E_REPLACED"
        with pytest.raises(IntegrityError, match="was replaced by"):
            pickle.loads(packed)
