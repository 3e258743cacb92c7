"""Damaged bytes are found, in the right file and MiB."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import CONFIG_NAME, CRC_NAME, Manifest
from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.verified import LEVELS, MIB, codes, files_of, outcome, reseal


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_every_flipped_bit_is_found_and_its_file_named(tmp_path: Path, step: int) -> None:
    """Bits of tokens, offsets and provenance, and random ones of the rest: none is missed.

    Every third one is in another place of its byte each time; `make test-long` has all.
    """
    path = make_dataset(tmp_path / "shards", {"train": random_split([[3, 0]])}, add_eos=True)
    random = np.random.default_rng(0)
    for name in files_of(path):
        data = (path / name).read_bytes()
        bits = np.arange(0, 8 * len(data), step)
        if "/" not in name:
            bits = random.choice(8 * len(data), 300 // step, replace=False)
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
    config.write_bytes(dump_json(change(manifests.parse(config.read_bytes()))))
    assert codes(verify(dataset)) == {("E_CRC", CRC_NAME)}
