"""The sum of all blocks says of a table of CRC-32s what comparing each of them would say."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.checksums import FileHash, FileHasher
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import CONFIG_NAME, CRC_NAME, FileEntry
from dataprep.formats.verify import hashes as verify_hashes
from dataprep.formats.verify.hashes import BlockSum, Hashes
from dataprep.formats.verify.reader import Reader
from dataprep.formats.verify.verify import verify
from tests.scenes.verified import MIB, codes

SMALL = 64  # bytes in a block, so that files of many blocks are quick
Table = npt.NDArray[np.uint32]


def table_of(data: bytes, block: int) -> Table:
    crcs = [zlib.crc32(data[at : at + block]) for at in range(0, len(data), block)]
    return np.array(crcs, np.uint32)


def summed(data: bytes, cuts: list[int]) -> BlockSum:
    """The sum of `data`, given in pieces of these sizes and then the rest."""
    blocks, at = BlockSum(len(data)), 0
    for size in [*cuts, len(data)]:
        blocks.update(data[at : at + size])
        at += len(data[at : at + size])
    return blocks


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(verify_hashes, "BLOCK_BYTES", SMALL)
    verify_hashes._crc_of_zeros.cache_clear()
    yield
    verify_hashes._crc_of_zeros.cache_clear()


sizes = st.integers(0, 20 * SMALL) | st.integers(0, 20).map(lambda blocks: blocks * SMALL)


@pytest.mark.usefixtures("small_blocks")
def test_the_right_table_fits_and_no_other() -> None:
    """Whatever the size and the cuts; one bit, two equal bits, two entries that changed places."""

    @given(sizes, st.lists(st.integers(1, 3 * SMALL), max_size=9))
    def check(size: int, cuts: list[int]) -> None:
        data = np.random.default_rng(size).bytes(size)
        table = table_of(data, SMALL)
        blocks = summed(data, cuts)
        assert blocks.fits(table)
        for wrong in changed(table):
            assert not blocks.fits(wrong)

    check()


def changed(table: Table) -> Iterator[Table]:
    """Tables with one bit flipped, the same bit flipped in two entries, and two entries swapped."""
    for at in range(len(table)):
        wrong = table.copy()
        wrong[at] ^= np.uint32(1 << at)
        yield wrong
        other = (at + 3) % len(table)
        if other != at:
            wrong[other] ^= np.uint32(1 << at)
            yield wrong
            wrong = table.copy()
            wrong[[at, other]] = wrong[[other, at]]
            if not np.array_equal(wrong, table):
                yield wrong


@pytest.mark.usefixtures("small_blocks")
def test_every_flipped_bit_of_the_content_tells() -> None:
    """As with a CRC-32 of each block: no flipped bit goes by."""
    data = np.random.default_rng(0).bytes(5 * SMALL + 7)
    table = table_of(data, SMALL)
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert not summed(bytes(wrong), []).fits(table)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 4 * MIB, 4 * MIB + 17])
def test_blocks_of_their_real_size(size: int) -> None:
    """Against what `FileHasher` stores."""
    data = np.random.default_rng(size).bytes(size)
    hasher = FileHasher()
    hasher.update(data)
    table = hasher.finish().crc32
    blocks = summed(data, [1000, MIB])
    assert blocks.fits(table)
    assert not [wrong for wrong in changed(table) if blocks.fits(wrong)]


def test_a_table_with_two_entries_swapped_is_blamed(large: Path) -> None:
    """In a file of four MiB, through verify: crc32.npy fits its own hash and not the data."""
    kept = {name: (large / name).read_bytes() for name in (CRC_NAME, CONFIG_NAME)}
    table = np.frombuffer(kept[CRC_NAME], "<u4", offset=128).copy()
    table[[3, 4]] = table[[4, 3]]  # of the tokens; one block each of three files stands before
    try:
        (large / CRC_NAME).write_bytes(kept[CRC_NAME][:128] + table.tobytes())
        _seal(large, CRC_NAME)
        assert codes(verify(large)) == {("E_CRC", CRC_NAME)}
    finally:
        for name, data in kept.items():
            (large / name).write_bytes(data)
    assert verify(large).ok


def _seal(path: Path, name: str) -> None:
    """Make the manifest's SHA-256 of one file fit again, and nothing else."""
    digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
    manifest = manifests.parse((path / CONFIG_NAME).read_bytes())
    files = tuple(
        msgspec.structs.replace(one, sha256=digest) if one.name == name else one
        for one in manifest.files
    )
    (path / CONFIG_NAME).write_bytes(dump_json(msgspec.structs.replace(manifest, files=files)))


def _hash(data: bytes) -> FileHash:
    hasher = FileHasher()
    hasher.update(data)
    return hasher.finish()


@pytest.mark.parametrize("first", ["damaged", "sound"])
def test_a_file_that_reads_differently_is_said_to(first: str) -> None:
    """The two readings of a file that was not sound must agree, or nothing can be located."""
    sound, damaged = bytes(100), bytes(99) + b"x"
    entry = FileEntry(
        name="a.bin", bytes=100, dtype=None, shape=None, sha256=_hash(sound).sha256
    )  # fmt: skip
    # Where the first reading was sound, it is the table that made a second one necessary.
    table = _hash(sound).crc32 if first == "damaged" else _hash(damaged).crc32
    hashes = Hashes(entry, table)
    hashes.update(memoryview(damaged if first == "damaged" else sound))
    (finding,) = hashes.findings(lambda: _hash(sound if first == "damaged" else damaged))
    assert (finding.code, finding.file, finding.block) == ("E_HASH", "a.bin", None)
    assert "gave other bytes when it was read again" in finding.problem


def test_only_files_that_are_not_sound_are_read_twice(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CRC-32 of each MiB is computed for damaged files alone."""
    again: list[str] = []
    real = Reader._read_again

    def counted(reader: Reader) -> FileHash:
        again.append(reader.name)
        return real(reader)

    monkeypatch.setattr(Reader, "_read_again", counted)
    assert verify(large, workers=2).ok
    assert again == []
    path = large / "train/tokens-00000.bin"
    data = path.read_bytes()
    try:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert not verify(large, workers=2).ok
    finally:
        path.write_bytes(data)
    assert again == ["train/tokens-00000.bin"]
