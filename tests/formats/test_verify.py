"""Every kind of damage is found, in the right file and block; what is sound passes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.formats import manifest as manifests
from dataprep.formats import npy, verify_report
from dataprep.formats.errors import (
    DataprepError,
    IncompatibleError,
    InputError,
    IntegrityError,
    UsageError,
)
from dataprep.formats.manifest import CONFIG_NAME, CRC_NAME, Manifest, SpecialToken
from dataprep.formats.storage import write_file
from dataprep.formats.verify import Finding, VerifyReport, verify
from dataprep.formats.verify_records import _Bits
from tests.datasets import EOS_ID, make_dataset, random_split

MIB = 1 << 20
LEVELS: tuple[verify_report.Level, ...] = ("stat", "structure", "full")


def small(path: Path, **options: Any) -> Path:
    """Two splits, three shards, an empty document: a few KiB."""
    splits = {"train": random_split([[30, 0, 45], [50]]), "val": random_split([[20, 7]], seed=1)}
    return make_dataset(path / "shards", splits, **options)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return small(tmp_path, add_eos=True)


def files_of(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def codes(report: VerifyReport) -> set[tuple[str, str]]:
    return {(finding.code, finding.file) for finding in report.findings}


def reseal(path: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
    """Make the manifest's sizes and hashes fit the files again, as an attacker or a bug would."""
    manifest = manifests.parse((path / CONFIG_NAME).read_bytes())
    names = {*files_of(path)} - {CONFIG_NAME, CRC_NAME}
    known = {entry.name: entry for entry in manifest.files}
    blank = manifests.FileEntry(name="", bytes=0, dtype=None, shape=None, sha256="")
    (path / CRC_NAME).unlink()
    entries, crcs = {}, [np.empty(0, np.uint32)]
    for name in sorted(names):
        copy = path.parent / "copy"
        found = write_file(copy, (path / name).read_bytes())
        copy.unlink()
        crcs.append(found.crc32)
        entries[name] = msgspec.structs.replace(
            known.get(name, blank), name=name, bytes=found.size, sha256=found.sha256
        )
    crc = np.concatenate(crcs).astype("<u4")
    data = npy.header("<u4", crc.shape) + crc.tobytes()
    found = write_file(path / CRC_NAME, data)
    entries[CRC_NAME] = msgspec.structs.replace(
        known[CRC_NAME], bytes=found.size, sha256=found.sha256, shape=crc.shape
    )
    files = tuple(entry for _, entry in sorted(entries.items()))
    (path / CONFIG_NAME).write_bytes(
        manifests.dump(change(msgspec.structs.replace(manifest, files=files)))
    )


# Sound datasets


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [257, 70_000])
@pytest.mark.parametrize("add_eos", [False, True])
def test_a_sound_dataset_passes(
    tmp_path: Path, level: verify_report.Level, vocab_size: int, add_eos: bool
) -> None:
    """Every level, both widths, with and without EOS; the report has the totals."""
    path = small(tmp_path, vocab_size=vocab_size, add_eos=add_eos)
    report = verify(path, level)
    assert report.findings == ()
    assert report.ok and report.exit_code == 0
    assert report.documents == 6
    assert report.tokens == 152 + 6 * add_eos
    assert report.files == len(files_of(path))
    assert report.bytes == sum((path / name).stat().st_size for name in files_of(path))
    assert report.config_sha256 == hashlib.sha256((path / CONFIG_NAME).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "splits", [{}, {"train": []}, {"train": [[]]}, {"train": [[[]]]}, {"train": [[[1]], [], [[2]]]}]
)
def test_small_shapes_pass(tmp_path: Path, splits: Mapping[str, Sequence[Any]]) -> None:
    """No split, no shard, no document, an empty document, an empty shard between others."""
    assert verify(make_dataset(tmp_path / "shards", splits)).findings == ()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=4), st.booleans())
def test_any_lengths_pass(tmp_path: Path, lengths: list[list[int]], add_eos: bool) -> None:
    """Whatever the lengths of the documents, what was written is found sound."""
    shutil.rmtree(tmp_path / "shards", ignore_errors=True)
    path = make_dataset(tmp_path / "shards", {"train": random_split(lengths)}, add_eos=add_eos)
    assert verify(path).findings == ()


def test_many_documents_over_many_chunks(tmp_path: Path) -> None:
    """Offsets, EOS and ids are followed across read boundaries: 300,000 documents, 2 MiB of ids."""
    lengths = np.random.default_rng(0).integers(0, 7, 300_000).tolist()
    path = make_dataset(tmp_path / "shards", {"train": random_split([lengths])}, add_eos=True)
    assert verify(path).findings == ()
    with (path / "train/tokens-00000.bin").open("r+b") as stream:
        ids = np.fromfile(stream, "<u2")
        at = int(np.flatnonzero(ids == EOS_ID)[-7])
        stream.seek(2 * at)
        stream.write(b"\0\0")
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.start, finding.stop) == ("E_EOS", 2 * at, 2 * at + 2)


def test_progress_ends_at_the_total(dataset: Path) -> None:
    """The bytes read only grow, and end at what was promised."""
    calls: list[tuple[int, int]] = []
    report = verify(dataset, progress=lambda done, total: calls.append((done, total)))
    config = (dataset / CONFIG_NAME).stat().st_size
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (report.bytes - config, report.bytes - config)


def test_an_interrupt_stops_the_threads(dataset: Path) -> None:
    """An exception in the caller's thread or callback ends the run; no thread goes on."""

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(dataset, progress=interrupt)
    assert not [one for one in threading.enumerate() if one.name.startswith("dataprep-verify")]


def test_nothing_heavy_is_imported(dataset: Path) -> None:
    """Neither torch nor a tokenizer library is loaded, whatever the level."""
    program = (
        "import sys; from dataprep.formats.verify import verify; assert verify(sys.argv[1]).ok;"
        "print(*{'torch', 'tokenizers', 'gigatoken', 'pyarrow', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(dataset)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_report_prints_as_json(dataset: Path) -> None:
    """as_dict has plain values only, findings included."""
    (dataset / "val_idx.pt").unlink()
    loaded = json.loads(json.dumps(verify(dataset).as_dict()))
    assert loaded["findings"][0]["where"] == "val_idx.pt"
    assert loaded["ok"] is False and loaded["exit_code"] == 3


# Arguments


def test_pinning_config_json(dataset: Path) -> None:
    """The digest of one run is accepted in the next; any other is a finding."""
    digest = f"sha256:{verify(dataset, 'stat').config_sha256}"
    assert verify(dataset, "stat", expect=digest).ok
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    assert codes(verify(dataset, "stat", expect=other)) == {("E_PIN", CONFIG_NAME)}


@pytest.mark.parametrize("expect", ["", "sha256:", "sha256:xyz", "md5:" + "0" * 64, "0" * 64])
def test_a_pin_that_means_nothing_is_refused(dataset: Path, expect: str) -> None:
    """A mistyped digest is the caller's mistake."""
    with pytest.raises(UsageError, match="sha256"):
        verify(dataset, expect=expect)


def test_an_unknown_level_is_refused(dataset: Path) -> None:
    """Levels have three names."""
    with pytest.raises(UsageError, match="stat, structure or full"):
        verify(dataset, "deep")  # type: ignore[arg-type]


def test_an_unusable_manifest_raises(dataset: Path, tmp_path: Path) -> None:
    """Without a manifest there is nothing to compare with."""
    with pytest.raises(InputError):
        verify(tmp_path / "nothing")
    (dataset / CONFIG_NAME).write_bytes(b"{}")
    with pytest.raises(IntegrityError):
        verify(dataset)
    (dataset / CONFIG_NAME).unlink()
    with pytest.raises(IntegrityError, match="not a finished dataset"):
        verify(dataset)


# Damage to bytes


def outcome(path: Path, level: verify_report.Level = "full") -> list[str]:
    """The files that verify names; config.json where it raises about that."""
    try:
        return [finding.file for finding in verify(path, level).findings]
    except (IntegrityError, IncompatibleError) as error:
        return [str(error.where)]


def test_every_flipped_bit_is_found_and_its_file_named(tmp_path: Path) -> None:
    """All bits of tokens, offsets and provenance, 300 random ones of the rest: none is missed."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[3, 0]])}, add_eos=True)
    random = np.random.default_rng(0)
    for name in files_of(path):
        data = (path / name).read_bytes()
        bits = np.arange(8 * len(data))
        if "/" not in name:
            bits = random.choice(bits, 300, replace=False)
        with (path / name).open("r+b", buffering=0) as stream:
            for position, bit in zip((bits // 8).tolist(), (bits % 8).tolist(), strict=True):
                stream.seek(position)
                stream.write(bytes([data[position] ^ 1 << bit]))
                found = outcome(path)
                stream.seek(position)
                stream.write(data[position : position + 1])
                assert set(found) == {name}, f"bit {bit} of byte {position}"
    assert verify(path).ok


@pytest.mark.parametrize("level", LEVELS)
def test_every_file_cut_grown_or_lost(dataset: Path, level: verify_report.Level) -> None:
    """One byte less, one more, none left, the file gone: every level names the file."""
    for name in files_of(dataset):
        data = (dataset / name).read_bytes()
        for mutant in (data[:-1], data + b"\0", b"", data + data):
            (dataset / name).write_bytes(mutant)
            assert set(outcome(dataset, level)) == {name}
        (dataset / name).unlink()
        lost = str(dataset) if name == CONFIG_NAME else name
        assert set(outcome(dataset, level)) == {lost}
        (dataset / name).write_bytes(data)
    assert verify(dataset).ok


def test_swapped_files_are_both_named(tmp_path: Path) -> None:
    """Two files of one size that changed places."""
    path = make_dataset(tmp_path / "shards", {"train": random_split([[30, 7], [30, 7]])})
    for kind in ("tokens-{}.bin", "docs-{}.npy", "source-{}.npy"):
        one, two = (path / "train" / kind.format(f"0000{number}") for number in (0, 1))
        if one.read_bytes() == two.read_bytes():
            continue  # equal offsets: no reader could tell
        _swap(one, two)
        names = {f"train/{one.name}", f"train/{two.name}"}
        assert set(outcome(path)) == names
        _swap(one, two)
    assert verify(path).ok


def _swap(one: Path, two: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)


def test_a_shard_of_another_build(tmp_path: Path) -> None:
    """Same sizes, other content: the foreign file is named, whole builds are not mixed."""
    one = make_dataset(tmp_path / "one", {"train": random_split([[30, 9]], seed=1)})
    two = make_dataset(tmp_path / "two", {"train": random_split([[30, 9]], seed=2)})
    name = "train/tokens-00000.bin"
    shutil.copy(two / name, one / name)
    assert verify(one, "structure").ok  # a sound shard, but not this build's
    (finding,) = verify(one).findings
    assert (finding.code, finding.file, finding.block) == ("E_HASH", name, 0)
    shutil.copy(two / CONFIG_NAME, one / CONFIG_NAME)
    shutil.copy(two / CRC_NAME, one / CRC_NAME)
    assert verify(one).ok  # now every file is the other build's


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = [[700_000, 1_100_000, 250_123]]
    path = tmp_path_factory.mktemp("large") / "shards"
    return make_dataset(
        path, {"train": random_split(lengths, vocab_size=50_000)}, vocab_size=50_257
    )


@pytest.mark.parametrize(
    ("positions", "ranges"),
    [
        ([0], [(0, 0)]),
        ([MIB - 1], [(0, 0)]),
        ([MIB], [(1, 1)]),
        ([MIB, 2 * MIB + 5], [(1, 2)]),
        ([5, 3 * MIB], [(0, 0), (3, 3)]),
        ([-1], [(3, 3)]),
    ],
)
def test_damage_is_located(
    large: Path, positions: list[int], ranges: list[tuple[int, int]]
) -> None:
    """MiB and byte range are those of the damage, neighbours joined, the last block cut."""
    path = large / "train/tokens-00000.bin"
    size = path.stat().st_size
    assert size > 3 * MIB
    _flip(path, [position % size for position in positions])
    try:
        findings = [f for f in verify(large).findings if f.code == "E_HASH"]
    finally:
        _flip(path, [position % size for position in positions])
    assert [(f.block, f.start, f.stop) for f in findings] == [
        (first, first * MIB, min((last + 1) * MIB, size)) for first, last in ranges
    ]
    assert {f.file for f in findings} == {"train/tokens-00000.bin"}
    assert f"bytes {findings[0].start}:{findings[0].stop}" in findings[0].problem


def _flip(path: Path, positions: list[int]) -> None:
    with path.open("r+b") as stream:
        for position in positions:
            stream.seek(position)
            (value,) = stream.read(1)
            stream.seek(position)
            stream.write(bytes([value ^ 1]))


def test_with_crc32_damaged_too_the_file_is_still_found(large: Path) -> None:
    """SHA-256 says which file; the place is not guessed from a table that cannot be trusted."""
    damaged = [(large / CRC_NAME, [130]), (large / "train/tokens-00000.bin", [MIB + 1])]
    for path, positions in damaged:
        _flip(path, positions)
    try:
        report = verify(large)
    finally:
        for path, positions in damaged:
            _flip(path, positions)
    assert codes(report) == {("E_HASH", CRC_NAME), ("E_HASH", "train/tokens-00000.bin")}
    assert "cannot say where" in report.findings[-1].problem
    assert report.findings[-1].block is None
    assert verify(large).ok


def test_a_changed_hash_with_right_crcs_is_called_deliberate(dataset: Path) -> None:
    """The manifest's SHA-256 of a file was replaced and everything else made to fit."""

    def change(manifest: Manifest) -> Manifest:
        files = tuple(
            msgspec.structs.replace(e, sha256="0" * 64) if e.name == "train_idx.pt" else e
            for e in manifest.files
        )
        return msgspec.structs.replace(manifest, files=files)

    reseal(dataset, change)
    (finding,) = verify(dataset).findings
    assert (finding.code, finding.file) == ("E_HASH", "train_idx.pt")
    assert "on purpose" in finding.problem


def test_wrong_crcs_beside_right_hashes_blame_the_table(dataset: Path) -> None:
    """A crc32.npy whose own hash is right, with a wrong number in it."""
    data = bytearray((dataset / CRC_NAME).read_bytes())
    data[-1] ^= 1
    (dataset / CRC_NAME).write_bytes(data)

    def change(manifest: Manifest) -> Manifest:
        digest = hashlib.sha256(data).hexdigest()
        files = tuple(
            msgspec.structs.replace(e, sha256=digest) if e.name == CRC_NAME else e
            for e in manifest.files
        )
        return msgspec.structs.replace(manifest, files=files)

    config = dataset / CONFIG_NAME
    config.write_bytes(manifests.dump(change(manifests.parse(config.read_bytes()))))
    assert codes(verify(dataset)) == {("E_CRC", CRC_NAME)}


# What does not belong


def test_files_that_do_not_belong_are_named(dataset: Path) -> None:
    """At any level, in the directory and in the folders; folders are named, not searched."""
    extras = ["notes.txt", ".hidden", "train/tokens-00009.bin", "train/.tmp", "config.json.bak"]
    for name in extras:
        (dataset / name).write_bytes(b"x")
    (dataset / "test" / "deep").mkdir(parents=True)
    expected = {("E_EXTRA", name) for name in [*extras, "test"]}
    for level in LEVELS:
        assert codes(verify(dataset, level)) == expected


def test_names_from_outside_cannot_play_with_the_terminal(dataset: Path) -> None:
    """Control characters and broken bytes in the name of a stray file are printed escaped."""
    (dataset / "a\x1b[2Jb\nc").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(dataset) + b"/\xff\xfe")).write_bytes(b"")
    for finding in verify(dataset, "stat").findings:
        assert finding.code == "E_EXTRA"
        assert str(finding).isprintable() and str(finding).isascii()


def test_unfinished_builds_beside_it_are_noted(dataset: Path) -> None:
    """A leftover of a killed build is no failure of this dataset."""
    (dataset.parent / ".shards.building-abc").mkdir()
    report = verify(dataset, "stat")
    assert report.ok
    assert any(".shards.building-abc" in note for note in report.notes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "kind",
    ["link", "dangling", "pipe", "folder", "socket"],
)
def test_only_ordinary_files_count(dataset: Path, level: verify_report.Level, kind: str) -> None:
    """A link to the right bytes, a pipe, a folder or a socket in the place of a file: named."""
    for name in ("train/tokens-00000.bin", "crc32.npy", "tokenizer.json", "val_idx.pt"):
        path = dataset / name
        aside = dataset.parent / "aside"
        path.rename(aside)
        _put(path, kind, aside)
        assert set(outcome(dataset, level)) == {name}
        path.rmdir() if kind == "folder" else path.unlink()
        aside.rename(path)
    assert verify(dataset, level).ok


def _put(path: Path, kind: str, aside: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # socket names are short
            server.bind(path.name)
            os.chdir("/")
    else:
        path.symlink_to(aside if kind == "link" else "nowhere")


@pytest.mark.parametrize("kind", ["link", "file", "nothing"])
def test_a_split_folder_must_be_one(dataset: Path, kind: str) -> None:
    """A link to the right folder, a file, or nothing in its place."""
    (dataset / "val").rename(dataset.parent / "val")
    if kind == "link":
        (dataset / "val").symlink_to(dataset.parent / "val")
    elif kind == "file":
        (dataset / "val").write_bytes(b"")
    report = verify(dataset)
    assert ("E_MISSING", "val/tokens-00000.bin") in codes(report)
    assert (("E_NAME", "val") in codes(report)) == (kind != "nothing")


def test_findings_are_bounded(dataset: Path) -> None:
    """Ten thousand strays give a thousand findings and no more."""
    for number in range(3000):
        (dataset / f"stray-{number}").touch()
    assert len(verify(dataset, "stat").findings) == verify_report.MAX_FINDINGS
    findings = verify_report.Findings(limit=2)
    for number in range(5):
        findings.add(Finding(code="E_X", file=str(number), problem="x"))
    assert len(findings.sorted()) == 2 and findings.dropped == 3
    assert findings.concern("4")


def test_unreadable_files_are_an_environment_problem(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO while reading is reported for its file, ends with 4, and the others are still checked."""
    import errno
    import io

    real = io.FileIO

    class Broken(real):  # type: ignore[misc, valid-type]
        def readinto(self, buffer: Any) -> int:
            if self.fileno() in broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return int(super().readinto(buffer) or 0)

    broken: set[int] = set()
    target = os.stat(dataset / "train/docs-00000.npy").st_ino

    def opened(descriptor: int) -> io.FileIO:
        stream = Broken(descriptor)
        broken.discard(descriptor)
        if os.fstat(descriptor).st_ino == target:
            broken.add(descriptor)
        return stream

    monkeypatch.setattr("dataprep.formats.ordinary.io.FileIO", opened)
    report = verify(dataset)
    assert codes(report) == {("E_IO", "train/docs-00000.npy")}
    assert report.exit_code == 4


# Files that agree with their hashes and not with one another


def edit(path: Path, name: str, dtype: str, offset: int, values: Mapping[int, int]) -> None:
    """Replace numbers of an array file."""
    data = bytearray((path / name).read_bytes())
    array = np.frombuffer(data, dtype, offset=offset)
    for index, value in values.items():
        array[index] = value
    (path / name).write_bytes(data)


DOCS, SOURCE, TOKENS = "train/docs-00000.npy", "train/source-00000.npy", "train/tokens-00000.bin"
WRONG_ARRAYS = {
    # name: file, dtype, header, {index: value}, code, bytes of the place
    "offsets start late": (DOCS, "<u8", 128, {0: 1}, "E_OFFSETS", (128, 136)),
    "offsets fall": (DOCS, "<u8", 128, {2: 5}, "E_OFFSETS", (144, 152)),
    "offsets end early": (DOCS, "<u8", 128, {3: 77}, "E_OFFSETS", (152, 160)),
    "offsets leave": (DOCS, "<u8", 128, {2: 1000}, "E_OFFSETS", (144, 152)),
    "offsets leave far": (DOCS, "<u8", 128, {1: (1 << 64) - 1}, "E_OFFSETS", (136, 144)),
    "id too large": (TOKENS, "<u2", 0, {5: 257}, "E_TOKEN_ID", (10, 12)),
    "no EOS": (TOKENS, "<u2", 0, {31: 3}, "E_EOS", (62, 64)),
    "input unknown": (SOURCE, "<u8", 128, {4: 1}, "E_SOURCE", (160, 176)),
    "input far": (SOURCE, "<u8", 128, {0: (1 << 64) - 1}, "E_SOURCE", (128, 144)),
    "position outside": (SOURCE, "<u8", 128, {3: 600}, "E_SOURCE", (144, 160)),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS.keys())
@pytest.mark.parametrize("level", ["structure", "full"])
def test_arrays_that_do_not_fit(
    dataset: Path,
    case: tuple[str, str, int, dict[int, int], str, tuple[int, int]],
    level: verify_report.Level,
) -> None:
    """With hashes made to fit, structure alone names the file, the code and the bytes."""
    name, dtype, header, values, code, place = case
    edit(dataset, name, dtype, header, values)
    reseal(dataset)
    findings = verify(dataset, level).findings
    assert [(f.code, f.file) for f in findings] == [(code, name)]
    assert (findings[0].start, findings[0].stop) == place


def test_array_headers_must_describe_the_array(dataset: Path) -> None:
    """A header of another shape or type, though the size is right."""
    for name in (DOCS, SOURCE, CRC_NAME):
        data = (dataset / name).read_bytes()
        (dataset / name).write_bytes(data.replace(b"<u", b"<i", 1))
        assert ("E_ARRAY", name) in codes(verify(dataset, "structure"))
        (dataset / name).write_bytes(data)


WRONG_INDEXES: dict[str, tuple[list[int], str]] = {
    "not increasing": ([0, 2, 1, 3], "train_idx.pt"),
    "equal": ([0, 1, 1, 3], "train_idx.pt"),
    "negative": ([-1, 1, 2, 3], "train_idx.pt"),
    "beyond": ([0, 1, 2, 6], "train_idx.pt"),
    "far beyond": ([0, 1, 2, (1 << 63) - 1], "train_idx.pt"),
    "in two splits": ([0, 1, 2, 4], "val_idx.pt"),
}


@pytest.mark.parametrize(("ids", "blamed"), WRONG_INDEXES.values(), ids=WRONG_INDEXES.keys())
def test_indexes_that_do_not_fit(dataset: Path, ids: list[int], blamed: str) -> None:
    """Record ids increase within a split, are records that were read, and stand in one split."""
    _write_index(dataset, "train_idx.pt", ids)
    reseal(dataset)
    assert codes(verify(dataset, "structure")) == {("E_INDEX", blamed)}


def _write_index(path: Path, name: str, ids: list[int]) -> None:
    import io

    from dataprep.formats.torchfile import write_index

    stream = io.BytesIO()
    write_index(stream, [np.array(ids, np.int64)], len(ids))
    (path / name).write_bytes(stream.getvalue())


def _count(**changes: Any) -> Callable[[Manifest], Manifest]:
    """A manifest whose inputs and records say that more was read."""

    def change(manifest: Manifest) -> Manifest:
        records = msgspec.structs.replace(manifest.records, **changes)
        inputs = (msgspec.structs.replace(manifest.inputs[0], records=records.read),)
        return msgspec.structs.replace(manifest, records=records, inputs=inputs)

    return change


def reject(record: int, reason: str = "empty", **changes: Any) -> bytes:
    entry = {
        "record": record, "line": record + 1, "offset": 0, "bytes": 2, "reason": reason,
        "detail": "nothing", "excerpt": "{}", "input": 0, **changes,
    }  # fmt: skip
    return json.dumps(entry).encode() + b"\n"


def rejecting(path: Path, lines: bytes, rejected: dict[str, int]) -> VerifyReport:
    """`path` with these rejects, and a manifest that counts `rejected`."""
    if lines:
        (path / "rejects.jsonl").write_bytes(lines)
    reseal(path, _count(read=6 + sum(rejected.values()), rejected=rejected))
    return verify(path)


def test_rejects_complete_the_records(dataset: Path) -> None:
    """Records in splits and rejects cover what was read, in any order of the rejects."""
    lines = reject(8, "too_deep") + reject(6) + reject(7, line=None, bytes=None)
    report = rejecting(dataset, lines, {"empty": 2, "too_deep": 1, "invalid_json": 0})
    assert report.findings == ()


WRONG_REJECTS: dict[str, tuple[bytes, dict[str, int], str]] = {
    "none": (b"", {"empty": 1}, CONFIG_NAME),
    "too few": (reject(6), {"empty": 2}, "rejects.jsonl"),
    "other reason": (reject(6, "too_deep"), {"empty": 1}, "rejects.jsonl"),
    "twice": (reject(6) * 2, {"empty": 2}, "rejects.jsonl"),
    "in a split": (reject(0), {"empty": 1}, "rejects.jsonl"),
    "beyond": (reject(7), {"empty": 1}, "rejects.jsonl"),
    "negative": (reject(-1), {"empty": 1}, "rejects.jsonl"),
    "no such input": (reject(6, input=1), {"empty": 1}, "rejects.jsonl"),
    "no JSON": (b"{" * 60 + b"\n", {"empty": 1}, "rejects.jsonl"),
    "deep JSON": (b"[" * 100_000 + b"\n", {"empty": 1}, "rejects.jsonl"),
    "no UTF-8": (reject(6).replace(b"nothing", b"\xff\xfe"), {"empty": 1}, "rejects.jsonl"),
    "blank line": (reject(6) + b"\n", {"empty": 1}, "rejects.jsonl"),
    "line without end": (reject(6)[:-1], {"empty": 1}, "rejects.jsonl"),
    "endless line": (b" " * (3 * MIB), {"empty": 1}, "rejects.jsonl"),
    "missing key": (
        b'{"record": 6, "input": 0, "reason": "empty"}\n',
        {"empty": 1},
        "rejects.jsonl",
    ),
    "not an integer": (reject(6, offset=0.5), {"empty": 1}, "rejects.jsonl"),
}


@pytest.mark.parametrize("case", WRONG_REJECTS.values(), ids=WRONG_REJECTS.keys())
def test_rejects_that_do_not_fit(dataset: Path, case: tuple[bytes, dict[str, int], str]) -> None:
    """Each is found, in rejects.jsonl or where its absence contradicts the counts."""
    lines, rejected, blamed = case
    report = rejecting(dataset, lines, rejected)
    assert {finding.file for finding in report.findings} == {blamed}


def test_lost_records_are_counted_and_the_first_is_named(dataset: Path) -> None:
    """Two records vanish from an index and its split, and turn up nowhere else."""
    lines = reject(6) + reject(9)
    (dataset / "rejects.jsonl").write_bytes(lines)
    _write_index(dataset, "val_idx.pt", [5, 8])
    reseal(dataset, _count(read=10, written=8, rejected={"empty": 2}))
    with pytest.raises(IntegrityError):
        verify(dataset)  # written is not what the splits hold
    reseal_free(dataset, read=10, rejected={"empty": 4})
    report = verify(dataset)
    assert ("E_REJECTS", "rejects.jsonl") in codes(report)
    (dataset / "rejects.jsonl").write_bytes(lines + reject(7) + reject(5))
    reseal_free(dataset, read=10, rejected={"empty": 4})
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}  # 5 stands in val


def reseal_free(path: Path, **counts: Any) -> None:
    """As `reseal`, from a manifest whose counts are wrong already."""
    blob = json.loads((path / CONFIG_NAME).read_bytes())
    blob["records"].update(counts, written=6)
    blob["inputs"][0]["records"] = counts["read"]
    manifest = msgspec.convert(blob, Manifest)
    (path / CONFIG_NAME).write_bytes(manifests.dump(manifest))
    reseal(path)


def test_a_record_that_is_nowhere(dataset: Path) -> None:
    """Counts agree, yet record 3 is lost: the ids skip it and another takes its place."""
    _write_index(dataset, "train_idx.pt", [0, 1, 2, 6])
    (dataset / "rejects.jsonl").write_bytes(reject(7))
    reseal(dataset, _count(read=8, rejected={"empty": 2}))
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}
    reseal(dataset, _count(read=7, rejected={"empty": 1}))
    (dataset / "rejects.jsonl").write_bytes(reject(6))
    _write_index(dataset, "train_idx.pt", [0, 1, 2, 6])
    reseal(dataset)
    assert codes(verify(dataset)) == {("E_REJECTS", "rejects.jsonl")}


@given(st.integers(1, 300), st.data())
def test_the_record_set_counts_what_is_missing(count: int, data: st.DataObject) -> None:
    """Against a Python set: first double, number and first of the missing."""
    bits, seen = _Bits(count), set[int]()
    for _ in range(3):
        ids = sorted(data.draw(st.sets(st.integers(0, count - 1))))
        taken = bits.add(np.array(ids, np.int64))
        expected = next((at for at, one in enumerate(ids) if one in seen), None)
        assert taken == expected
        if expected is None:
            seen.update(ids)
    missing = sorted(set(range(count)) - seen)
    assert bits.missing() == (len(missing), missing[0] if missing else None)


def test_zero_token_documents_are_counted(dataset: Path) -> None:
    """A manifest that hides an empty document."""

    def change(manifest: Manifest) -> Manifest:
        train = msgspec.structs.replace(manifest.splits["train"], zero_token_documents=0)
        return msgspec.structs.replace(manifest, splits={**manifest.splits, "train": train})

    reseal(dataset, change)
    assert codes(verify(dataset, "structure")) == {("E_COUNT", CONFIG_NAME)}


# The tokenizer


def test_another_tokenizer_is_refused(dataset: Path) -> None:
    """One byte changed, hashes of the files made to fit: it is not the one that made the ids."""
    path = dataset / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"1.0"', b'"1.1"'))
    reseal(dataset)
    assert codes(verify(dataset, "structure")) == {("E_TOKENIZER", "tokenizer.json")}


TOKENIZERS = {
    "bpe": (b'{"model":{"vocab":{"a":0,"b":256}}}', True),
    "added": (b'{"model":{"vocab":{"a":0}},"added_tokens":[{"id":256,"content":"x"}]}', True),
    "unigram": (b'{"model":{"vocab":[' + b",".join([b'["a",-1.5]'] * 257) + b"]}}", True),
    "too small": (b'{"model":{"vocab":{"a":0,"b":255}}}', False),
    "too large": (b'{"model":{"vocab":{}},"added_tokens":[{"id":257}]}', False),
    "unigram too small": (b'{"model":{"vocab":[["a",0]]}}', False),
    "no model": (b"{}", False),
    "no JSON": (b"\x80\x02ctorch", False),
    "empty": (b"", False),
    "deep": (b'{"model":{"vocab":' + b"[" * 200_000, False),
    "huge id": (b'{"model":{"vocab":{"a":1' + b"0" * 5000 + b"}}}", False),
}


@pytest.mark.parametrize(("data", "sound"), TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_vocabulary_sizes(dataset: Path, data: bytes, sound: bool) -> None:
    """The largest id of model and added tokens, plus one, is tokens.vocab_size."""
    (dataset / "tokenizer.json").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    reseal(dataset, lambda manifest: msgspec.structs.replace(
        manifest, tokenizer=msgspec.structs.replace(manifest.tokenizer, sha256=digest)
    ))  # fmt: skip
    expected = set() if sound else {("E_TOKENIZER", "tokenizer.json")}
    assert codes(verify(dataset, "structure")) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"eos": SpecialToken(id=257, token="x")},
        {"pad": SpecialToken(id=1 << 40, token="x")},
        {"probes": (manifests.Probe(text="x", ids=(1, 999)),)},
        {"add_bos": True},
    ],
    ids=["eos", "pad", "probe", "bos unnamed"],
)
def test_ids_named_by_the_manifest(dataset: Path, changes: dict[str, Any]) -> None:
    """Control tokens and probes lie within the vocabulary; an added BOS has an id."""
    reseal(dataset, lambda manifest: msgspec.structs.replace(
        manifest, tokenizer=msgspec.structs.replace(manifest.tokenizer, **changes)
    ))  # fmt: skip
    assert ("E_TOKENIZER", CONFIG_NAME) in codes(verify(dataset, "structure"))


def test_bos_at_the_start_of_every_document(tmp_path: Path) -> None:
    """With add_bos every document begins with BOS, and one that does not is located."""
    documents = [[[256, 1, 2], [256], [256, 3]]]
    path = make_dataset(tmp_path / "shards", {"train": documents})

    def change(manifest: Manifest) -> Manifest:
        bos = SpecialToken(id=256, token="<|endoftext|>")
        tokenizer = msgspec.structs.replace(manifest.tokenizer, bos=bos, add_bos=True)
        train = msgspec.structs.replace(manifest.splits["train"], zero_token_documents=1)
        return msgspec.structs.replace(manifest, tokenizer=tokenizer, splits={"train": train})

    reseal(path, change)
    assert verify(path).findings == ()
    edit(path, TOKENS, "<u2", 0, {4: 9})
    reseal(path)
    (finding,) = verify(path).findings
    assert (finding.code, finding.start, finding.stop) == ("E_BOS", 8, 10)


# Hostile directories


def test_claims_of_absurd_size_allocate_nothing(tmp_path: Path) -> None:
    """A consistent manifest that says 10**18 of everything: findings, at once, in little memory."""
    path = small(tmp_path)
    blob = json.loads((path / CONFIG_NAME).read_bytes())
    huge = 10**18
    train = blob["splits"]["train"]
    shard = train["shards"][0]
    grown = huge - shard["documents"]
    shard.update(documents=huge, length=huge)
    train.update(documents=train["documents"] + grown, tokens=huge + train["shards"][1]["length"])
    blob["records"].update(read=6 + grown, written=6 + grown)
    blob["inputs"][0]["records"] = 6 + grown
    shapes = {shard["tokens"]: [huge], shard["docs"]: [huge + 1], shard["source"]: [huge, 2]}
    for entry in blob["files"]:
        if entry["name"] in shapes:
            entry.update(shape=shapes[entry["name"]], bytes=2 * huge)
    manifest = msgspec.convert(blob, Manifest)
    (path / CONFIG_NAME).write_bytes(manifests.dump(manifest))
    program = (
        "import resource, sys; from dataprep.formats.verify import verify\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "print(*sorted({finding.code for finding in verify(sys.argv[1]).findings}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == {"E_ARRAY", "E_INDEX", "E_SIZE"}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_random_damage_is_never_a_crash(tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes anywhere, with hashes made to fit: findings or a typed error, nothing else."""
    if not (tmp_path / "clean").exists():
        small(tmp_path).rename(tmp_path / "clean")
    shutil.rmtree(tmp_path / "shards", ignore_errors=True)
    shutil.copytree(tmp_path / "clean", tmp_path / "shards")
    path = tmp_path / "shards"
    name = data.draw(
        st.sampled_from([n for n in files_of(path) if n not in (CONFIG_NAME, CRC_NAME)])
    )
    blob = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))[: len(blob) - at]
    (path / name).write_bytes(blob)
    reseal(path)
    assert {finding.file for finding in verify(path).findings} <= {name, "val_idx.pt", CONFIG_NAME}


def test_reports_combine(dataset: Path) -> None:
    """Findings of other checks join in, and the gravest exit code wins."""
    report = verify(dataset, "stat")
    changed = Finding(code="E_TOKENIZER_CHANGED", file="tokenizer.json", problem="x", exit_code=6)
    joined = report.adding([changed], ["a note"])
    assert not joined.ok and joined.exit_code == 6
    assert "a note" in joined.notes
    assert joined.adding([replace(changed, exit_code=3)]).exit_code == 3
    assert issubclass(IntegrityError, DataprepError)
