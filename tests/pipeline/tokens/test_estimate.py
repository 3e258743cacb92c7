"""Estimates: near what comes, from a look that is short whatever the inputs are."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep.cli import main
from dataprep.formats.errors import StorageError, UsageError
from dataprep.pipeline.build import estimate
from dataprep.pipeline.commit.shards import PlacedPiece, group, large_piece
from dataprep.pipeline.execute.unit_files import Piece, PieceFile
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.plan.plan import make_units
from dataprep.pipeline.plan.sample import Sample, take_sample
from dataprep.pipeline.run import check_disk
from dataprep.pipeline.tokens import estimate as estimates
from dataprep.pipeline.tokens import prepare as prepares
from dataprep.pipeline.tokens.prepare import TokenPrepared, prepare, survey
from tests.scenes.corpora import SMALL_TOKENIZER, STORIES, build_into, records_of, write_large
from tests.scenes.sources import read_options, source_of

MiB = 1 << 20
BLOCK = 64 << 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve megabytes of JSONL."""
    return write_large(tmp_path_factory.mktemp("corpus") / "plain.jsonl", 12)


def _gzip_quickly(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1)


def as_kind(corpus: Path, folder: Path, kind: str) -> Path:
    """The same records, stored otherwise."""
    if kind == "parquet":
        texts = [record["text"] for record in records_of(corpus)]
        pq.write_table(pa.table({"text": texts}), folder / "x.parquet", row_group_size=2000)
        return folder / "x.parquet"
    if kind == "plain":
        return corpus
    pack: Callable[[bytes], bytes] = (
        _gzip_quickly if kind == "gz" else zstandard.ZstdCompressor().compress
    )
    (folder / f"x.jsonl.{kind}").write_bytes(pack(corpus.read_bytes()))
    return folder / f"x.jsonl.{kind}"


def prepared_for(tmp_path: Path, *inputs: Path, **options: Any) -> TokenPrepared:
    options.setdefault("tokenizer", str(SMALL_TOKENIZER))
    asked = BuildOptions(input=tuple(map(str, inputs)), out=tmp_path / "out", **options)
    return prepare(asked, survey(asked), sample_bytes=BLOCK)


@pytest.fixture(scope="module")
def truth(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """Documents and tokens of the corpus, by building it."""
    report = build_into(tmp_path_factory.mktemp("truth") / "out", corpus, tokenizer=None)
    splits = report.manifest.splits.values()
    return sum(s.documents for s in splits), sum(s.tokens for s in splits)


@pytest.mark.parametrize("kind", ["plain", "gz", "zst", "parquet"])
def test_estimates_are_near(
    corpus: Path, truth: tuple[int, int], tmp_path: Path, kind: str
) -> None:
    """However the records are stored, documents and tokens are within a third of the truth."""
    path = as_kind(corpus, tmp_path, kind)
    for found in (
        estimate(BuildOptions(input=(str(path),), out=tmp_path / "out")),
        estimates.estimate(prepared_for(tmp_path, path, tokenizer=None)),
    ):
        assert 0.7 < found.documents / truth[0] < 1.35
        assert 0.7 < found.tokens / truth[1] < 1.35
        assert found.input_bytes == path.stat().st_size


@pytest.mark.parametrize("packed", [False, True])
def test_files_as_documents_are_estimated_from_their_beginnings(
    tmp_path: Path, corpus: Path, packed: bool
) -> None:
    """One document each, of the size of the file."""
    for number in range(3):
        data = corpus.read_bytes()[number * MiB : (number * MiB) + 2 * MiB]
        name = tmp_path / f"{number}.txt"
        name.write_bytes(_gzip_quickly(data) if packed else data)
    found = estimate(BuildOptions(input=(str(tmp_path),), out=tmp_path / "out"))
    assert found.documents == 3
    assert 0.8 < found.tokens * found.bytes_per_token / (6 * MiB) < 1.25


def sample_of(*paths: Path, document: str = "file", field: str = "text") -> Sample:
    sources = tuple(source_of(path, "text" if path.suffix == ".txt" else "jsonl") for path in paths)
    read = read_options(field=field, document=document)
    return take_sample(sources, make_units(sources, read), read, BLOCK)


def test_a_sample_is_small_whatever_the_documents(tmp_path: Path) -> None:
    """Eight files of 9 MB, each one document, take a block each; one long line is cut too."""
    paths = [tmp_path / f"{number}.txt" for number in range(8)]
    for path in paths:
        path.write_bytes("é word".encode() * (9_000_000 // 7))
    tracemalloc.start()
    sample = sample_of(*paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MiB
    assert sample.documents == 8
    assert 8 * (BLOCK - 3) <= sample.kept_bytes <= 8 * BLOCK
    assert sample.text_bytes == sample.stored_bytes == sum(path.stat().st_size for path in paths)
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "word " * 1_000_000}) + "\n")
    sample = sample_of(tmp_path / "long.jsonl")
    assert (sample.documents, sample.text_bytes) == (1, 5_000_000)
    assert sample.kept_bytes == BLOCK


@pytest.mark.parametrize("data", [b"\xff\xfe bad", b"", b"good \xc3"])
def test_files_that_are_no_text(tmp_path: Path, data: bytes) -> None:
    """They are rejects, unless only their end is cut."""
    (tmp_path / "a.txt").write_bytes(data)
    sample = sample_of(tmp_path / "a.txt")
    good = data.startswith(b"good")
    assert (sample.documents, sample.rejects) == ((1, 0) if good else (0, 1))


def test_a_wrong_field_is_seen_soon(tmp_path: Path, corpus: Path) -> None:
    """Where no record is usable, the look ends after a megabyte at each place."""
    sample = sample_of(corpus, field="body")
    assert (sample.documents, sample.texts) == (0, [])
    assert sample.rejects > 0
    assert sample.stored_bytes < 0.5 * corpus.stat().st_size
    found = estimate(BuildOptions(input=(str(corpus),), out=tmp_path / "out", field="body"))
    assert (found.tokens, found.documents, found.sampled_rejects > 0) == (0, 0, True)


@pytest.mark.parametrize("document", ["file", "line", "jsonl"])
def test_small_compressed_files(tmp_path: Path, document: str) -> None:
    """Files that end before the sample is full are known exactly."""
    line = b'{"text": "some words"}\n'
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for path in paths:
        path.write_bytes(gzip.compress(line * 5))
    kind = "jsonl" if document == "jsonl" else "text"
    sources = tuple(source_of(path, kind, "gzip") for path in paths)
    read = read_options(document="file" if kind == "jsonl" else document)
    sample = take_sample(sources, make_units(sources, read), read, BLOCK)
    assert sample.stored_bytes == sum(source.size for source in sources)
    assert sample.documents == (3 if document == "file" else 15)
    each = 10 if kind == "jsonl" else len(line) - (document == "line")
    assert sample.text_bytes == sample.kept_bytes == 15 * each


# Disk


@contextlib.contextmanager
def disk_watched(folder: Path) -> Iterator[list[int]]:
    """Bytes in files below `folder`, links counted once, a few hundred times a second."""
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                stats = [
                    (Path(place) / name).stat()
                    for place, _, names in os.walk(folder) for name in names
                ]  # fmt: skip
                seen.append(sum({found.st_ino: found.st_size for found in stats}.values()))
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("mode", ["ratio", "count"])
def test_peak_disk_use_is_foreseen(corpus: Path, tmp_path: Path, mode: str) -> None:
    """Units, what was dealt out, and joined shards stand side by side before publishing."""
    (tmp_path / "here").mkdir()
    split = "train=0.5,val=0.5"
    options: dict[str, Any] = {"split": split, "split_mode": mode}
    found = estimates.estimate(prepared_for(tmp_path, corpus, **options))
    with disk_watched(tmp_path / "here") as seen:
        report = build_into(tmp_path / "here" / "out", corpus, **options)
    size = sum(entry.bytes for entry in report.manifest.files)
    times = 2 if mode == "ratio" else 3
    assert max(seen) > (times - 0.5) * size
    assert max(seen) < found.peak_disk_bytes
    assert found.peak_disk_bytes < (times + 0.6) * found.output_bytes


@pytest.mark.parametrize("total", [10 * MiB, 100 * MiB, 3 << 30, 400 << 30])
def test_what_is_joined_is_counted(total: int) -> None:
    """The copies are those that grouping pieces makes, for large and small splits."""
    units, parts = max(1, total // (16 * MiB)), [0.01, 0.04, 0.95]
    pieces = {
        name: [_piece(name, int(part * total / units)) for _ in range(units)]
        for name, part in zip("abc", parts, strict=True)
    }
    large = large_piece(one for some in pieces.values() for one in some)
    copied = sum(
        sum(placed.piece.files["tokens"].bytes for placed in run)
        for some in pieces.values() for run in group(some, large) if len(run) > 1
    )  # fmt: skip
    peak = estimates._peak_bytes(total, 0, parts, units, exact=False)
    assert abs(peak - total - copied) < 0.01 * total


def _piece(name: str, size: int) -> PlacedPiece:
    piece = Piece(
        split=name, stem=name, documents=1, length=size // 2, text_bytes=0,
        zero_token_documents=0, records=0, crc32={}, files={"tokens": PieceFile(size, "", ())},
    )  # fmt: skip
    return PlacedPiece(piece=piece, directory=Path(), first_record=0)


def test_what_is_there_already_is_not_needed_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on needs only the rest of the disk space."""
    prepared = prepared_for(tmp_path, corpus)
    peak = estimates.estimate(prepared).peak_disk_bytes
    monkeypatch.setattr(estimates, "free_bytes", lambda path: peak // 2)
    with pytest.raises(StorageError) as caught:
        check_disk(estimates.estimate(prepared), tmp_path)
    assert caught.value.code == "E_NOSPACE"
    check_disk(estimates.estimate(prepared), tmp_path, already=peak * 3 // 4)
    check_disk(estimates.estimate(prepared), tmp_path, already=peak * 9)


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_dry_run_says_what_the_build_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    """One byte less than the estimate is too little for both, and that very number is enough."""
    sample = prepared_for(tmp_path, STORIES).sample
    monkeypatch.setattr(prepares, "take_sample", lambda *rest: sample)  # theirs differ in size
    out = tmp_path / "out"
    needed = estimate(BuildOptions(input=(str(STORIES),), out=out)).peak_disk_bytes
    monkeypatch.setattr(estimates, "free_bytes", lambda path: needed + spare)
    words = ["build", "--input", str(STORIES), "--out", str(out), "--quiet"]
    assert main.run([*words, "--dry-run"]) == (4 if spare < 0 else 0)
    assert not out.exists()
    assert main.run(words) == (4 if spare < 0 else 0)
    assert out.exists() == (spare == 0)


def test_notes_come_along(corpus: Path, tmp_path: Path) -> None:
    """What preparing found worth saying is part of the estimate."""
    prepared = replace(prepared_for(tmp_path, corpus), notes=("a note",))
    found = estimates.estimate(prepared)
    assert found.notes == ("a note",)
    assert json.loads(json.dumps(found.as_dict()))["notes"] == ["a note"]


def test_estimate_looks_at_the_place(tmp_path: Path) -> None:
    """What stands in --out ends an estimate as it would end the build, and stays as it is."""
    corpus = write_large(tmp_path / "plain.jsonl", 1)
    out = tmp_path / "out"
    options = BuildOptions(input=(str(corpus),), out=out, tokenizer=str(SMALL_TOKENIZER))
    assert estimate(options).notes == ()
    build_into(out, corpus, tokenizer=str(SMALL_TOKENIZER))
    assert "built already" in estimate(options).notes[0]
    assert estimate(replace(options, overwrite=True, seed=1)).notes == ()
    with pytest.raises(UsageError, match="different seed") as caught:
        estimate(replace(options, seed=1))
    assert caught.value.code == "E_EXISTS"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a dataset"):
        estimate(replace(options, out=foreign))
    assert sorted(path.name for path in foreign.iterdir()) == ["notes.txt"]
