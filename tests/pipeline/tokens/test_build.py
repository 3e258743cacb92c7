"""The build from end to end: what goes in comes out, where the format says it does."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dataprep import open_dataset
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.tokens import assemble as commit
from tests.scenes.corpora import (
    MESSY,
    STORIES,
    build_into,
    digests,
    expected_split,
    records_of,
)
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.usefixtures("one_child")

RATIOS = {"train": 0.6, "val": 0.3, "test": 0.1}
SPLIT = "train=0.6,val=0.3,test=0.1"
GPT2 = SHARED_DATA / "tokenizers" / "gpt2" / "tokenizer.json"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories in three splits."""
    out = tmp_path_factory.mktemp("built") / "shards"
    build_into(out, STORIES, split=SPLIT)
    return out


def test_every_document_is_read_back(built: Path) -> None:
    """Decoding a document gives its source text, and its provenance leads to its record."""
    raw = STORIES.read_bytes()
    records = records_of(STORIES)
    seen = []
    with open_dataset(built) as dataset:
        for split in dataset.splits.values():
            for number, record_id in enumerate(split.record_ids.tolist()):
                name, offset = split.source(number)
                line = raw[offset : raw.index(b"\n", offset)]
                assert name == "stories.jsonl"
                assert json.loads(line) == records[record_id]
                assert split.text(number) == records[record_id]["text"]
                seen.append(record_id)
    assert sorted(seen) == list(range(len(records)))


def test_the_result_verifies(built: Path) -> None:
    """What build makes, verify accepts, at every level."""
    for level in ("stat", "structure", "full"):
        assert verify(built, level).findings == ()


@pytest.mark.parametrize(
    "options", [{"split": SPLIT}, {"split": "train=20,val=rest", "split_mode": "count"}]
)
def test_a_large_split_has_its_record_ids_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """Above the limit there is no index file, and the same ids; below it there is one."""
    build_into(tmp_path / "one", STORIES, **options)
    with open_dataset(tmp_path / "one") as one:
        sizes = {name: found.documents for name, found in one.splits.items()}
        monkeypatch.setattr(commit, "INDEX_DOCUMENTS", min(sizes.values()))
        build_into(tmp_path / "many", STORIES, **options)
        assert verify(tmp_path / "many", "full").ok
        with open_dataset(tmp_path / "many") as many:
            for name, found in many.splits.items():
                large = sizes[name] > min(sizes.values())
                assert (found.entry.index is None) == large
                assert (tmp_path / "many" / f"{name}_idx.pt").exists() != large
                assert found.record_ids.tolist() == one.split(name).record_ids.tolist()


def test_splits_are_the_ones_of_the_format(built: Path) -> None:
    """Each document is where the hash of its text says."""
    with open_dataset(built) as dataset:
        for name, split in dataset.splits.items():
            for number in range(split.documents):
                assert expected_split(split.text(number), RATIOS) == name


def test_plain_tools_open_everything(built: Path) -> None:
    """numpy and torch read the arrays without this package."""
    config = json.loads((built / "config.json").read_text())
    assert list(config["splits"]) == list(RATIOS)
    for name, split in config["splits"].items():
        index = torch.load(built / split["index"], weights_only=True)
        assert (index.dtype, tuple(index.shape)) == (torch.int64, (split["documents"],))
        for shard in split["shards"]:
            ids = np.memmap(built / shard["tokens"], config["tokens"]["dtype"], "r")
            starts = np.load(built / shard["docs"], allow_pickle=False)
            source = np.load(built / shard["source"], allow_pickle=False)
            assert len(ids) == starts[-1] == shard["length"]
            assert (len(starts) - 1, 2) == (shard["documents"], source.shape[1])
        assert name in RATIOS


def test_nothing_of_the_machine_is_stored(built: Path) -> None:
    """No path, host or user name is in any file."""
    import getpass
    import socket

    for path in built.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for word in (str(built.parent), str(STORIES.parent.parent), socket.gethostname()):
                assert word.encode() not in data
    assert getpass.getuser().encode() not in (built / "config.json").read_bytes()


def test_the_same_command_again_does_nothing(built: Path) -> None:
    """A finished build is recognised by its content and left alone."""
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    report = build_into(built, STORIES, split=SPLIT)
    assert report.reused
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before


def test_inputs_elsewhere_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """The folder that the inputs lie in does not matter."""
    shutil.copy(STORIES, tmp_path / "stories.jsonl")
    build_into(tmp_path / "out", tmp_path / "stories.jsonl", split=SPLIT)
    assert digests(tmp_path / "out") == digests(built)


def test_exact_counts(tmp_path: Path) -> None:
    """Count mode gives exactly the sizes asked for, and loses nothing."""
    report = build_into(
        tmp_path / "out", STORIES, split="train=rest,val=30,test=0.1", split_mode="count"
    )
    total = len(records_of(STORIES))
    sizes = {name: split.documents for name, split in report.manifest.splits.items()}
    assert sizes == {"train": total - 30 - round(total / 10), "val": 30, "test": round(total / 10)}
    assert verify(tmp_path / "out").findings == ()
    with open_dataset(tmp_path / "out") as dataset:
        texts = Counter(s.text(n) for s in dataset.splits.values() for n in range(s.documents))
    assert texts == Counter(record["text"] for record in records_of(STORIES))


def test_a_split_key_keeps_records_together(tmp_path: Path) -> None:
    """Records with one value of the key are in one split."""
    build_into(tmp_path / "out", STORIES, split=SPLIT, split_key="lang")
    records = records_of(STORIES)
    with open_dataset(tmp_path / "out") as dataset:
        for name, split in dataset.splits.items():
            for record_id in split.record_ids.tolist():
                assert expected_split(records[record_id]["lang"], RATIOS) == name


def test_one_split_only(tmp_path: Path) -> None:
    """A split may be absent."""
    report = build_into(tmp_path / "out", STORIES, split="train=1.0")
    assert list(report.manifest.splits) == ["train"]
    assert not (tmp_path / "out" / "val").exists()


def test_empty_split_is_valid(tmp_path: Path) -> None:
    """A split that gets no document is there, and empty."""
    report = build_into(tmp_path / "out", STORIES, split="train=1.0,val=0.0")
    assert report.manifest.splits["val"].documents == 0
    assert verify(tmp_path / "out").findings == ()
    with open_dataset(tmp_path / "out") as dataset:
        assert len(dataset.split("val").record_ids) == 0


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, [], [0]),
        ({"eos": "none"}, [], []),
        ({"bos": "<|bos|>"}, [2], [0]),
        ({"bos": "<|bos|>", "eos": "<|pad|>"}, [2], [1]),
    ],
)
def test_bos_and_eos(
    tmp_path: Path, options: dict[str, str], before: list[int], after: list[int]
) -> None:
    """Documents begin and end with the tokens asked for, and with no others."""
    plain = build_into(tmp_path / "plain", STORIES, split="train=1.0", eos="none")
    build_into(tmp_path / "out", STORIES, split="train=1.0", **options)
    assert plain.manifest.tokenizer.add_eos is False
    with open_dataset(tmp_path / "plain") as bare, open_dataset(tmp_path / "out") as dataset:
        names = {"<|endoftext|>": 0, "<|pad|>": 1, "<|bos|>": 2}
        swap = {names[name]: dataset.tokenizer.token_to_id(name) for name in names}
        first, second = bare.split("train"), dataset.split("train")
        for number in range(first.documents):
            expected = [swap[n] for n in before] + first.document(number).tolist()
            expected += [swap[n] for n in after]
            assert second.document(number).tolist() == expected
            assert second.text(number) == first.text(number)


def test_literal_special_text(tmp_path: Path) -> None:
    """Text that spells a special token stays text unless parsing is asked for; it is counted."""
    source = tmp_path / "in.jsonl"
    text = "before<|endoftext|>after <|endoftext|>"
    source.write_text(json.dumps({"text": text}) + "\n")
    literal = build_into(tmp_path / "literal", source, split="train=1.0")
    parsed = build_into(tmp_path / "parse", source, split="train=1.0", special_text="parse")
    assert literal.manifest.tokenizer.special_text_found == {"<|endoftext|>": 2}
    assert parsed.manifest.tokenizer.special_text_found == {"<|endoftext|>": 2}
    eos = literal.manifest.tokenizer.eos
    assert eos is not None
    for out, expected in (("literal", 1), ("parse", 3)):
        with open_dataset(tmp_path / out) as dataset:
            ids = dataset.split("train").document(0)
            assert ids.tolist().count(eos.id) == expected
            assert dataset.split("train").text(0) == text


def test_bad_records_are_listed(tmp_path: Path) -> None:
    """Every bad record is in rejects.jsonl with its place and reason; good ones all survive."""
    report = build_into(tmp_path / "out", MESSY, on_error="skip", split="train=1.0")
    raw = MESSY.read_bytes()
    entries = records_of(tmp_path / "out" / "rejects.jsonl")
    found = [(entry["line"], entry["reason"]) for entry in entries]
    assert found == _documented("`rejects.jsonl`", rejected=True)
    for entry in entries:
        line = raw.split(b"\n")[entry["line"] - 1]
        assert raw[entry["offset"] :].startswith(line)
        assert entry["bytes"] == len(line) + 1
        assert entry["input"] == 0
    good = [line for line, _ in _documented("good", rejected=False)]
    starts = np.cumsum([0, *(len(line) + 1 for line in raw.split(b"\n"))])
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        assert [split.source(n)[1] for n in range(split.documents)] == [
            starts[line - 1] for line in good
        ]
    assert report.manifest.records.blank_lines == 2
    assert verify(tmp_path / "out").findings == ()


def _documented(_: str, *, rejected: bool) -> list[tuple[int, str]]:
    """Line and outcome of messy.jsonl, from the table in data_fixtures/README.md."""
    rows = []
    for row in (MESSY.parent / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 3 and cells[0].isdigit():
            outcome = cells[2]
            if rejected and outcome.startswith("`"):
                rows.append((int(cells[0]), outcome.strip("`")))
            if not rejected and outcome.startswith("good"):
                rows.append((int(cells[0]), "good"))
    return rows


def test_several_inputs_keep_their_order(tmp_path: Path) -> None:
    """Inputs are read as given, folders and globs by name, and provenance tells them apart."""
    for number, name in enumerate(("b.jsonl", "a.jsonl", "c.jsonl")):
        records = records_of(STORIES)[number * 10 : number * 10 + 10]
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in records))
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.jsonl", "c.jsonl"):
        (tmp_path / name).rename(folder / name)
    report = build_into(tmp_path / "out", tmp_path / "b.jsonl", folder, split="train=1.0")
    assert [entry.name for entry in report.manifest.inputs] == [
        "b.jsonl",
        "folder/a.jsonl",
        "folder/c.jsonl",
    ]
    assert [entry.records for entry in report.manifest.inputs] == [10, 10, 10]
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        texts = [split.text(n) for n in range(30)]
        assert texts == [record["text"] for record in records_of(STORIES)[:30]]
        assert [split.source(n)[0] for n in (0, 10, 20)] == [
            "b.jsonl",
            "folder/a.jsonl",
            "folder/c.jsonl",
        ]


def _as_parquet(path: Path, texts: list[str]) -> Path:
    pq.write_table(pa.table({"text": texts, "n": range(len(texts))}), path, row_group_size=50)
    return path


def test_every_container_gives_the_same_tokens(tmp_path: Path) -> None:
    """JSONL plain, .gz and .zst, Parquet, and a saved HF dataset give the same token files."""
    import datasets
    import zstandard

    records = records_of(STORIES)
    data = STORIES.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(data))
    texts = [record["text"] for record in records]
    _as_parquet(tmp_path / "a.parquet", texts)
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "saved")
    inputs = [STORIES] + [
        tmp_path / name for name in ("a.jsonl.gz", "a.jsonl.zst", "a.parquet", "saved")
    ]
    found = []
    for number, source in enumerate(inputs):
        out = tmp_path / f"out{number}"
        build_into(out, source, split=SPLIT)
        assert verify(out).findings == ()
        found.append(
            {k: v for k, v in digests(out).items() if "tokens-" in k or "docs-" in k or "_idx" in k}
        )
    assert found[0]
    assert all(other == found[0] for other in found)


@needs_shared_data
def test_xquad_in_every_container(tmp_path: Path) -> None:
    """The real corpus, as JSONL plain, .gz and .zst and as Parquet: the same token files."""
    inputs = [
        SHARED_DATA / "corpora" / "xquad_multi.jsonl",
        SHARED_DATA / "inputs" / "xquad_multi.jsonl.gz",
        SHARED_DATA / "inputs" / "xquad_multi.jsonl.zst",
        SHARED_DATA / "parquet" / "xquad_multi.parquet",
    ]
    found = []
    for number, source in enumerate(inputs):
        build_into(tmp_path / str(number), source, tokenizer=str(GPT2))
        files = digests(tmp_path / str(number))
        found.append({name: value for name, value in files.items() if "tokens-" in name})
    assert len(found[0]) == 3
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("document", ["file", "line", "block"])
def test_plain_text(tmp_path: Path, document: str) -> None:
    """A file, its lines, or its blocks are documents."""
    source = STORIES.parent / "notes.txt"
    text = source.read_text()
    expected: dict[str, list[str]] = {
        "file": [text],
        "line": [line for line in text.split("\n") if line.strip()],
        "block": [block.strip("\n") for block in text.split("\n\n")],
    }
    build_into(tmp_path / "out", source, split="train=1.0", document=document)
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        assert [split.text(n) for n in range(split.documents)] == expected[document]


def test_nested_field(tmp_path: Path) -> None:
    """A dotted field reaches into objects, in JSONL and in Parquet."""
    rows: list[dict[str, Any]] = [{"meta": {"body": f"text {n}"}, "id": n} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        out = tmp_path / f"out-{name}"
        build_into(out, tmp_path / name, field="meta.body", split="train=1.0")
        with open_dataset(out) as dataset:
            split = dataset.split("train")
            assert [split.text(n) for n in range(20)] == [f"text {n}" for n in range(20)]


@needs_shared_data
def test_real_corpus_is_read_back(tmp_path: Path) -> None:
    """Every document of the books and of half the docs decodes to its source text (GPT-2)."""
    sources = [SHARED_DATA / "corpora" / "xquad_multi.jsonl"]
    build_into(tmp_path / "out", *sources, tokenizer=str(GPT2), workers=2)
    records = records_of(sources[0])
    with open_dataset(tmp_path / "out") as dataset:
        for split in dataset.splits.values():
            for number, record_id in enumerate(split.record_ids.tolist()):
                assert split.text(number) == records[record_id]["text"]
