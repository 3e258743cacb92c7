"""Index files open with torch and with zipfile, and nothing but our own bytes is accepted."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats import torchfile
from dataprep.formats.errors import IntegrityError
from dataprep.formats.torchfile import open_index, write_index

COUNTS = (0, 1, 5, 255, 256, 70_000)


def archive(numbers: np.ndarray) -> bytes:
    stream = io.BytesIO()
    middle = len(numbers) // 3
    write_index(stream, [numbers[:middle], numbers[middle:]], len(numbers))
    return stream.getvalue()


def ids(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * 3 + 1


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("mmap", [False, True])
def test_torch_loads_it_with_weights_only(tmp_path: Path, count: int, mmap: bool) -> None:
    """torch.load gives back the numbers, mapped or not."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "train_idx.pt"
    path.write_bytes(archive(ids(count)))
    found = torch.load(path, weights_only=True, mmap=mmap)
    assert found.dtype == torch.int64
    assert found.tolist() == ids(count).tolist()


@pytest.mark.parametrize("count", COUNTS)
def test_round_trip(tmp_path: Path, count: int) -> None:
    """open_index gives back the numbers, read-only."""
    path = tmp_path / "train_idx.pt"
    path.write_bytes(archive(ids(count)))
    found = open_index(path, count)
    np.testing.assert_array_equal(found, ids(count))
    assert count == 0 or not found.flags.writeable


@pytest.mark.parametrize("count", COUNTS)
def test_it_is_a_sound_zip_archive(count: int) -> None:
    """zipfile finds the four members, right CRCs, no compression, numbers at a multiple of 64."""
    data = archive(ids(count))
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None
        members = opened.infolist()
        assert [member.filename for member in members] == [
            "archive/data.pkl", "archive/byteorder", "archive/data/0", "archive/version",
        ]  # fmt: skip
        assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
        assert opened.read("archive/data/0") == ids(count).tobytes()
    assert len(torchfile.head(count)) % 64 == 0
    assert data[len(torchfile.head(count)) :][: 8 * count] == ids(count).tobytes()
    assert len(data) == torchfile.index_size(count)


def test_bytes_never_change() -> None:
    """The archive of a release is the archive of every later one."""
    digest = hashlib.sha256(archive(ids(1000))).hexdigest()
    assert digest == "6843feadda913f95e1c6e8a2ff07a83f64dec50b6d04d9a676c79c08d725791b"


@pytest.mark.parametrize("count", [(1 << 28) + 5, (1 << 29) + 5, (1 << 31) + 10])
def test_more_than_two_and_four_gib(tmp_path: Path, count: int) -> None:
    """64-bit sizes, offsets and counts hold in zipfile, torch and here (a sparse file)."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "train_idx.pt"
    with path.open("wb") as stream:
        stream.write(torchfile.head(count))
        stream.seek(8 * count, io.SEEK_CUR)
        stream.write(torchfile.tail(count, 0))
    with zipfile.ZipFile(path) as opened:
        assert opened.getinfo("archive/data/0").file_size == 8 * count
        assert opened.read("archive/version") == b"3\n"
    assert open_index(path, count).shape == (count,)
    assert torch.load(path, weights_only=True, mmap=True).shape == (count,)


@given(st.integers(0, (1 << 62) - 1))
def test_the_pickle_states_the_count(count: int) -> None:
    """Whatever the count, the pickle has it as the storage's size and the tensor's shape."""
    data = torchfile.head(count)
    start = data.index(b"archive/data.pkl") + len(b"archive/data.pkl")
    numbers = [argument for _, argument, _ in pickletools.genops(data[start:])]
    assert numbers.count(count) >= 2


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=50), st.integers(1, 9))
def test_chunking_does_not_matter(numbers: list[int], step: int) -> None:
    """How the numbers are handed over leaves the bytes as they are."""
    array = np.array(numbers, np.int64)
    stream = io.BytesIO()
    write_index(stream, [array[at : at + step] for at in range(0, len(array), step)], len(array))
    assert stream.getvalue() == archive(array)


def test_a_wrong_count_is_refused(tmp_path: Path) -> None:
    """Neither writing nor reading accepts another number of numbers than was said."""
    with pytest.raises(ValueError, match="3 numbers were given, 4 promised"):
        write_index(io.BytesIO(), [ids(3)], 4)
    path = tmp_path / "train_idx.pt"
    path.write_bytes(archive(ids(3)))
    for count in (0, 2, 4, 1 << 60):
        with pytest.raises(IntegrityError):
            open_index(path, count)


def test_every_flipped_bit_of_head_and_tail_is_refused(tmp_path: Path) -> None:
    """No bit around the numbers is free, except those of their CRC-32, which verify compares."""
    data = archive(ids(5))
    path = tmp_path / "train_idx.pt"
    start = len(torchfile.head(5))
    path.write_bytes(data)
    accepted = []
    with path.open("r+b") as stream:
        for position in [*range(start), *range(start + 40, len(data))]:
            for bit in range(8):
                stream.seek(position)
                stream.write(bytes([data[position] ^ 1 << bit]))
                stream.flush()
                try:
                    open_index(path, 5)
                    accepted.append(position)
                except IntegrityError as error:
                    assert error.where == "train_idx.pt"
            stream.seek(position)
            stream.write(data[position : position + 1])
    assert accepted == []  # the CRC stands twice in the tail, so one flip cannot hide


class _Exploit:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("executed",)


HOSTILE = {
    "pickle": pickle.dumps(_Exploit()),
    "empty": b"",
    "not a zip": b"\x80\x02ctorch" + bytes(500),
}

_GUARD = """
import sys
from pathlib import Path
from dataprep.formats.errors import IntegrityError
from dataprep.formats.torchfile import open_index

def hook(event, arguments):
    if event == "pickle.find_class":
        print("FOUND", arguments)
sys.addaudithook(hook)
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        open_index(path, 5)
        print("ACCEPTED", path.name)
    except IntegrityError:
        pass
print("torch" in sys.modules, "pickle" in sys.modules)
"""


def test_no_pickle_is_ever_executed(tmp_path: Path) -> None:
    """Mutated archives, bare pickles and torch's own archives are refused without unpickling."""
    sound = archive(ids(5))
    for name, data in HOSTILE.items():
        (tmp_path / name).write_bytes(data)
    evil = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sound)) as source, zipfile.ZipFile(evil, "w") as target:
        for member in source.infolist():
            payload = source.read(member)
            target.writestr(
                member.filename, HOSTILE["pickle"] if "pkl" in member.filename else payload
            )
    (tmp_path / "swapped pickle").write_bytes(evil.getvalue())
    random = np.random.default_rng(0)
    start, stop = sound.index(b"\x80\x02"), sound.index(b"tR.")
    for number in range(200):
        mutant = bytearray(sound)
        for position in random.integers(start, stop, 3):
            mutant[position] = random.integers(256)
        (tmp_path / f"mutant{number}").write_bytes(bytes(mutant).replace(sound, b"?"))
    output = subprocess.run(
        [sys.executable, "-c", _GUARD, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["False", "False"] or output.split() == ["False", "True"], output
    assert "FOUND" not in output and "ACCEPTED" not in output


def test_torchs_own_archive_is_refused_by_name(tmp_path: Path) -> None:
    """A file that torch.save wrote is sound for torch and still not one that this format has."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "val_idx.pt"
    torch.save(torch.arange(5), path)
    with pytest.raises(IntegrityError, match=r"val_idx\.pt"):
        open_index(path, 5)


def test_links_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    """A link is not followed and a pipe is not waited for."""
    import os

    (tmp_path / "real.pt").write_bytes(archive(ids(5)))
    (tmp_path / "link.pt").symlink_to("real.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    for name in ("link.pt", "pipe.pt", "folder.pt"):
        with pytest.raises(IntegrityError, match="not an ordinary file"):
            open_index(tmp_path / name, 5)
    with pytest.raises(IntegrityError, match="missing"):
        open_index(tmp_path / "nothing.pt", 5)
