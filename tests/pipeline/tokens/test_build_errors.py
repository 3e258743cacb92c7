"""What a user can get wrong, and the one line that says so."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep import open_dataset
from dataprep.formats.errors import (
    DataprepError,
    InputError,
    IntegrityError,
    RecordError,
    StorageError,
    UsageError,
)
from dataprep.pipeline.build import estimate
from dataprep.pipeline.options import BuildOptions
from tests.scenes.corpora import MESSY, STORIES, build_into, shrink_units, write_large

Prepare = Callable[[Path], dict[str, Any]]


def _file(name: str, content: bytes) -> Prepare:
    def prepare(folder: Path) -> dict[str, Any]:
        (folder / name).write_bytes(content)
        return {"input": folder / name}

    return prepare


def _line(**record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _saved(folder: Path) -> dict[str, Any]:
    import datasets

    part = datasets.Dataset.from_dict({"text": ["one", "two"]})
    datasets.DatasetDict({"a": part, "b": part}).save_to_disk(folder / "saved")
    return {"input": folder / "saved"}


CASES: list[tuple[str, Prepare, dict[str, Any], type[DataprepError], str]] = [
    ("absent", lambda f: {"input": f / "no.jsonl"}, {}, InputError, r"no such file.*hf:NAME"),
    ("no match", lambda f: {"input": f / "*.jsonl"}, {}, InputError, "matches no file"),
    ("empty folder", lambda f: {"input": f}, {}, InputError, "no file of a known type"),
    ("unknown suffix", _file("a.dat", b"x"), {}, InputError, r"\.dat file.*--format"),
    ("empty file", _file("a.jsonl", b""), {}, InputError, "no records"),
    ("only blank lines", _file("a.jsonl", b"\n \n\n"), {}, InputError, "no records"),
    ("json array", _file("a.json", b'[\n {"text": "a"}\n]'), {}, InputError, "jq -c"),
    ("utf-16", _file("a.txt", "text".encode("utf-16")), {}, InputError, "UTF-16.*Convert"),
    ("zip", _file("a.jsonl", b"PK\x03\x04rest"), {}, InputError, "this is ZIP"),
    ("not parquet", _file("a.parquet", b"PAR1 no"), {}, InputError, "not a readable Parquet"),
    (
        "truncated gzip", _file("a.jsonl.gz", gzip.compress(_line(text="a" * 99) * 999)[:-20]),
        {"on_error": "skip"}, InputError, r"breaks off after at least [\d,]+ bytes.*not skipped",
    ),
    (
        "other field", _file("a.jsonl", _line(body="a", id=1)), {}, RecordError,
        r"a\.jsonl:1 \(byte 0\): no field 'text'; seen here: 'body', 'id'.*--field",
    ),
    (
        "field of no record", _file("a.jsonl", _line(body="a") * 3), {"on_error": "skip"},
        InputError, r"none of the 3 records.*3 missing_field.*'body'.*--field",
    ),
    (
        "bad line", _file("a.jsonl", _line(text="a") + b"{no\n" + _line(text="b")), {},
        RecordError, r"a\.jsonl:2 \(byte 14\): not one JSON object.*--on-error skip",
    ),
    ("latin-1", _file("a.jsonl", b'{"text": "\xe9"}\n'), {}, RecordError, "not UTF-8.*iconv"),
    ("empty text", _file("a.jsonl", _line(text="")), {}, RecordError, "is empty"),
    (
        "surrogate", _file("a.jsonl", b'{"text": "\\ud800"}\n'), {}, RecordError,
        "half of a surrogate pair",
    ),
    (
        "too many rejects", _file("a.jsonl", b"{no\n" * 5 + _line(text="a")),
        {"on_error": "skip", "max_rejects": 4}, InputError, "more than 4 records",
    ),
    (
        "no tokenizer", lambda f: {"input": STORIES}, {"tokenizer": "no/such/tokenizer.json"},
        InputError, "tokenizer",
    ),
    (
        "not a tokenizer", lambda f: {"input": STORIES}, {"tokenizer": str(MESSY)},
        InputError, "not valid JSON",
    ),
    (
        "unknown eos", lambda f: {"input": STORIES}, {"eos": "</none>"}, UsageError,
        r"--eos: the tokenizer has no token '</none>' \(special tokens: <\|endoftext\|>",
    ),
    (
        "key of plain text", lambda f: {"input": STORIES.parent / "notes.txt"},
        {"split_key": "id"}, UsageError, "plain text has no fields",
    ),
    (
        "too exact", lambda f: {"input": STORIES},
        {"split": "train=rest,val=9999", "split_mode": "count"}, UsageError, "9999 documents",
    ),
    (
        "named twice", lambda f: {"input": STORIES, "again": STORIES}, {}, UsageError,
        "named twice",
    ),
    ("hf split", _saved, {}, InputError, r"2 splits; there are a, b.*--hf-split"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "options", "kind", "message"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_message(
    tmp_path: Path, prepare: Prepare, options: dict[str, Any], kind: type, message: str
) -> None:
    """The error has the right type and says what, where, and what to do; nothing is published."""
    work = tmp_path / "work"
    work.mkdir()
    inputs = prepare(work).values()
    with pytest.raises(kind, match=message) as caught:
        build_into(tmp_path / "out", *inputs, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "train=0.5,val=0.4"}, "add up to 1, got 0.9"),
        ({"split": "train=0.5,train=0.5"}, "stands twice"),
        ({"split": "Train=1.0"}, "cannot name a split"),
        ({"split": "train=x"}, "'x' is not a ratio"),
        ({"split": "train=rest"}, "not a ratio"),
        ({"split": "a=rest,b=rest", "split_mode": "count"}, "only one"),
        ({"split": "a=5,b=6", "split_mode": "count"}, "give one split `rest`"),
        ({"workers": 0}, "--workers"),
        ({"seed": -1}, "--seed"),
        ({"max_rejects": 3}, "--on-error skip"),
        ({"field": ""}, "--field"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Options that cannot work are refused before anything is read."""
    with pytest.raises(UsageError, match=message):
        build_into(tmp_path / "out", STORIES, **options)


@pytest.fixture
def four_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An input of so many."""
    shrink_units(monkeypatch.setattr)
    return write_large(tmp_path / "large.jsonl", 1.8)


def test_the_first_bad_record_is_named_for_any_workers(four_units: Path, tmp_path: Path) -> None:
    """With several units and bad lines in two of them, the first one is reported, by its line."""
    large = four_units
    lines = large.read_bytes().split(b"\n")
    late, later = int(len(lines) * 0.6), int(len(lines) * 0.9)
    lines[later] = lines[late] = b"{no"
    large.write_bytes(b"\n".join(lines))
    messages = set()
    for workers in (1, 2):
        with pytest.raises(RecordError) as caught:
            build_into(tmp_path / "out", large, workers=workers)
        messages.add(str(caught.value))
    (message,) = messages
    assert f"large.jsonl:{late + 1} " in message


def test_reject_lines_count_over_units(four_units: Path, tmp_path: Path) -> None:
    """Rejects in later units carry the line of the file and the record id of the build."""
    large = four_units
    lines = large.read_bytes().split(b"\n")
    wrong = [3, int(len(lines) * 0.5), int(len(lines) * 0.95)]
    for number in wrong:
        lines[number] = b"{no"
    large.write_bytes(b"\n".join(lines))
    report = build_into(tmp_path / "out", large, on_error="skip", workers=2)
    assert report.units == 4
    text = (tmp_path / "out" / "rejects.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["line"] for entry in entries] == [number + 1 for number in wrong]
    assert [entry["record"] for entry in entries] == wrong


def test_out_is_a_file(tmp_path: Path) -> None:
    """A file in the place of the dataset is not touched."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match=r"is a file.*nothing was touched"):
        build_into(tmp_path / "out", STORIES)
    assert (tmp_path / "out").read_text() == "mine"


def test_out_holds_something_else(tmp_path: Path) -> None:
    """A folder with other things in it is not touched, not even with --overwrite."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"not a dataset.*thesis"):
            build_into(tmp_path / "out", STORIES, overwrite=overwrite)
    assert os.listdir(tmp_path / "out") == ["thesis.tex"]


def test_out_is_empty(tmp_path: Path) -> None:
    """An empty folder is filled."""
    (tmp_path / "out").mkdir()
    assert not build_into(tmp_path / "out", STORIES).reused


def test_parents_are_made(tmp_path: Path) -> None:
    """Missing parents of --out are made."""
    build_into(tmp_path / "a" / "b" / "out", STORIES)
    assert (tmp_path / "a" / "b" / "out" / "config.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a read-only file system")
def test_out_is_read_only(tmp_path: Path) -> None:
    """A read-only place is refused before any work."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "t", str(tmp_path)],
        check=False, capture_output=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StorageError, match=r"cannot be written to.*--out"):
            build_into(tmp_path / "out", STORIES)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_disk_full(tmp_path: Path) -> None:
    """A disk that cannot hold the result is found out before the work, with both sizes."""
    large = write_large(tmp_path / "large.jsonl", 8)
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "t", str(place)],
        check=False, capture_output=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(
            StorageError, match=r"about [\d,]+ bytes are needed and [\d,]+ are free"
        ):
            build_into(place / "out", large)
        assert os.listdir(place) == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_an_estimate_is_near(tmp_path: Path) -> None:
    """What --dry-run foretells is within a quarter of what comes, and nothing is written."""
    large = write_large(tmp_path / "large.jsonl", 9)
    options = BuildOptions(input=(str(large),), out=tmp_path / "out", workers=1)
    foretold = estimate(options)
    assert os.listdir(tmp_path) == ["large.jsonl"]
    report = build_into(tmp_path / "out", large, tokenizer=None)
    splits = report.manifest.splits.values()
    tokens, documents = sum(s.tokens for s in splits), sum(s.documents for s in splits)
    size = sum(entry.bytes for entry in report.manifest.files)
    assert abs(foretold.tokens / tokens - 1) < 0.25
    assert abs(foretold.documents / documents - 1) < 0.25
    assert abs(foretold.output_bytes / size - 1) < 0.25


def test_a_leftover_of_other_options_is_mentioned(tmp_path: Path) -> None:
    """An unfinished build with other options is pointed out, and left alone."""
    (tmp_path / ".out.building-0123456789abcdef").mkdir()
    report = build_into(tmp_path / "out", STORIES)
    assert any(".out.building-0123456789abcdef" in note for note in report.notes)


def test_input_that_changes_between_runs(tmp_path: Path) -> None:
    """A changed input is another build: nothing of the old one is taken over."""
    source = tmp_path / "in.jsonl"
    shutil.copy(STORIES, source)
    build_into(tmp_path / "one", source)
    with source.open("ab") as stream:
        stream.write(_line(text="one more"))
    report = build_into(tmp_path / "two", source)
    assert report.manifest.records.read == len(STORIES.read_bytes().splitlines()) + 1


def test_no_main_guard_is_needed(tmp_path: Path) -> None:
    """A script that calls build at its top level, with workers, runs once."""
    large = write_large(tmp_path / "large.jsonl", 9)  # two units
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "import dataprep\n"
        f"options = dataprep.BuildOptions(input=({str(large)!r},), "
        f"out=Path({str(tmp_path / 'out')!r}), workers=2)\n"
        "print(dataprep.build(options).workers)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
def test_a_build_of_nothing_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    """No unit is of use to anybody when there is no document in any."""
    source = tmp_path / "empty.jsonl"
    source.write_bytes(content)
    with pytest.raises(InputError) as caught:
        build_into(tmp_path / "out", source, on_error="skip")
    assert caught.value.code == "E_EMPTY"
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


@pytest.mark.parametrize("harm", ["missing", "shorter", "extra"])
def test_a_finished_build_with_a_file_missing(tmp_path: Path, harm: str) -> None:
    """It is not said to be done where a look at names and sizes tells that it is not whole."""
    out = tmp_path / "out"
    build_into(out, STORIES)
    path = out / "train" / "tokens-00000.bin"
    if harm == "missing":
        path.unlink()
    elif harm == "shorter":
        os.truncate(path, path.stat().st_size - 2)
    else:
        (out / "notes.txt").write_text("mine")
        assert build_into(out, STORIES).reused
        return
    with pytest.raises(IntegrityError, match="tokens-00000") as caught:
        build_into(out, STORIES)
    assert caught.value.exit_code == 3
    assert not build_into(out, STORIES, overwrite=True).reused


def test_rejects_are_numbered_over_files_and_blank_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files share a unit, a large one has several; blank lines are lines, no records."""
    shrink_units(monkeypatch.setattr)
    large = write_large(tmp_path / "c.jsonl", 1.1).read_bytes().splitlines()
    files = {"a": [_line(text="a").strip()] * 4, "b": [_line(text="b").strip()] * 5, "c": large}
    expected, documents, record = [], [], 0
    for source, (name, lines) in enumerate(files.items()):
        for at in range(1, len(lines), max(3, len(lines) // 9)):
            lines[at] = b"{no"
            lines.insert(at, b" " if at % 2 else b"")
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(lines))
        for number, line in enumerate(lines):
            if line == b"{no":
                expected.append((source, number + 1, record))
            elif line.strip():
                documents.append(record)
            record += bool(line.strip())
    inputs = [tmp_path / f"{name}.jsonl" for name in files]
    report = build_into(tmp_path / "out", *inputs, on_error="skip", split="train=1.0")
    assert report.units == 3
    text = (tmp_path / "out" / "rejects.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    found = [(entry["input"], entry["line"], entry["record"]) for entry in entries]
    assert found == expected
    split = open_dataset(tmp_path / "out").split("train")
    assert split.record_ids.tolist() == documents
