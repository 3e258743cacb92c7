"""Index files open with torch and with zipfile; ours and those of torch.save are accepted."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import IntegrityError
from dataprep.formats.files import index_file as torchfile
from dataprep.formats.files.index_file import check_index, open_index, write_index
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.verified import reseal

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


def test_every_flipped_bit_of_head_and_tail_is_refused_or_harmless(tmp_path: Path) -> None:
    """The tail is all ours. Of the head some bits say nothing, such as dates: the numbers stay."""
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
                    found = open_index(path, 5)
                    assert found.tolist() == ids(5).tolist()
                    accepted.append(position)
                except IntegrityError as error:
                    assert error.where == "train_idx.pt"
            stream.seek(position)
            stream.write(data[position : position + 1])
    assert all(position < start for position in accepted)
    pickle_at = data.index(b"\x80\x02ctorch"), data.index(b"tR.") + 3
    assert not set(accepted) & set(range(*pickle_at))


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
from dataprep.formats.files.index_file import open_index

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
    """Mutated archives and bare pickles are refused without unpickling."""
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


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("target", ["path", "stream"])
def test_torchs_own_archives_are_read(tmp_path: Path, count: int, target: str) -> None:
    """Whatever torch.save calls its members; another count is refused."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "val_idx.pt"  # a name as long as "archive"
    if target == "path":
        torch.save(torch.from_numpy(ids(count)), path)
    else:
        stream = io.BytesIO()
        torch.save(torch.from_numpy(ids(count)), stream)
        path.write_bytes(stream.getvalue())
    found = open_index(path, count)
    assert found.tolist() == ids(count).tolist()
    data = path.read_bytes()
    assert data[check_index(path, count) :][: 8 * count] == ids(count).tobytes()
    for other in {0, 1, 4, count - 1, count + 1, 1 << 60} - {count, -1}:
        with pytest.raises(IntegrityError, match="E_INDEX"):
            open_index(path, other)


def rezip(data: bytes, change: dict[str, bytes | None], method: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with some members left out or other ones, written by zipfile."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", method) as target:
        members = {member.filename: source.read(member) for member in source.infolist()}
        for name, found in (members | change).items():
            if found is not None:
                target.writestr(name, found)
    return out.getvalue()


def test_older_layouts_are_read(tmp_path: Path) -> None:
    """Without byteorder and serialization id, as torch 1.6 wrote, and from any ZIP writer."""
    path = tmp_path / "train_idx.pt"
    changes: list[dict[str, bytes | None]] = [
        {}, {"archive/byteorder": None}, {"archive/.data/serialization_id": b"1"},
    ]  # fmt: skip
    for change in changes:
        path.write_bytes(rezip(archive(ids(7)), change))
        assert open_index(path, 7).tolist() == ids(7).tolist()


FOREIGN: dict[str, tuple[dict[str, bytes | None], int, str]] = {
    "compressed": ({}, zipfile.ZIP_DEFLATED, "compressed or encrypted"),
    "big-endian": ({"archive/byteorder": b"big"}, 0, "not little-endian"),
    "float": ({"archive/data.pkl": b"ctorch\nDoubleStorage\n"}, 0, "no int64 tensor"),
    "no pickle": ({"archive/data.pkl": None}, 0, "no int64 tensor"),
    "two vectors": ({"other/data/0": bytes(56)}, 0, r"2 members \*/data/0"),
    "no numbers": ({"archive/data/0": None, "archive/data/1": bytes(56)}, 0, r"0 members"),
    "fewer numbers": ({"archive/data/0": bytes(48), "x": bytes(8)}, 0, "has 48 bytes"),
    "many members": ({f"{number}": b"" for number in range(70)}, 0, "74 members"),
}


@pytest.mark.parametrize(("change", "method", "says"), FOREIGN.values(), ids=FOREIGN)
def test_other_archives_are_refused(
    tmp_path: Path, change: dict[str, bytes | None], method: int, says: str
) -> None:
    """With a reason each."""
    path = tmp_path / "train_idx.pt"
    path.write_bytes(rezip(archive(ids(7)), change, method))
    with pytest.raises(IntegrityError, match=says) as caught:
        open_index(path, 7)
    assert caught.value.code == "E_INDEX"


OFFSETS = (
    1,
    40,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


@pytest.mark.parametrize("target", range(4))
@pytest.mark.parametrize("offset", OFFSETS)
def test_members_that_lie_elsewhere_are_refused(tmp_path: Path, target: int, offset: int) -> None:
    """Whatever 64-bit offset the directory names for the header of any member."""
    path = tmp_path / "train_idx.pt"
    path.write_bytes(moved(rezip(archive(ids(7)), {}), target, offset))
    with pytest.raises(IntegrityError) as caught:
        open_index(path, 7)
    assert caught.value.code == "E_INDEX"


@pytest.mark.parametrize("change", ["transposed", "rows", "every other"])
def test_what_is_no_contiguous_vector_is_refused(tmp_path: Path, change: str) -> None:
    """Its numbers would be read in the order of the storage."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(6)
    tensor = {
        "transposed": whole.reshape(2, 3).T, "rows": whole.reshape(2, 3),
        "every other": whole[::2],
    }[change]  # fmt: skip
    path = tmp_path / "val_idx.pt"
    for protocol in (2, 4):
        torch.save(tensor, path, pickle_protocol=protocol)
        with pytest.raises(IntegrityError, match="no contiguous vector of 6 numbers"):
            open_index(path, 6)


def moved(data: bytes, target: int, offset: int) -> bytes:
    """The archive with another offset of its member number `target`, in a 64-bit field."""
    at = data.index(b"PK\1\2")
    for _ in range(target):
        at = data.index(b"PK\1\2", at + 4)
    name, extra = struct.unpack("<HH", data[at + 28 : at + 32])
    field = struct.pack("<HHQ", 1, 8, offset)
    entry = bytearray(data[at : at + 46 + name + extra] + field)
    entry[30:32] = struct.pack("<H", extra + len(field))
    entry[42:46] = b"\xff" * 4
    found = data[:at] + entry + data[at + 46 + name + extra :]
    end = found.rindex(b"PK\5\6")
    (size,) = struct.unpack("<L", found[end + 12 : end + 16])
    return found[: end + 12] + struct.pack("<L", size + len(field)) + found[end + 16 :]


@given(st.data())
def test_fuzzed_directories_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """64-bit offsets, and other bytes in the directory."""
    offsets = st.one_of(st.sampled_from(OFFSETS), st.integers(0, (1 << 64) - 1))
    sound = rezip(archive(ids(5)), {})
    changed = bytearray(moved(sound, data.draw(st.integers(0, 3)), data.draw(offsets)))
    first = changed.index(b"PK\1\2")
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(first, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "train_idx.pt"
    path.write_bytes(changed)
    try:
        assert open_index(path, 5).shape == (5,)
    except IntegrityError as error:
        assert error.code == "E_INDEX"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle_is_read(tmp_path: Path, protocol: int) -> None:
    """From 4 on a pickle spells the name of a class in another way; float64 stays refused."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "val_idx.pt"
    torch.save(torch.from_numpy(ids(70)), path, pickle_protocol=protocol)
    assert open_index(path, 70).tolist() == ids(70).tolist()
    torch.save(torch.from_numpy(ids(70)).double(), path, pickle_protocol=protocol)
    with pytest.raises(IntegrityError, match="no int64 tensor"):
        open_index(path, 70)


def test_the_form_before_zip_is_refused_by_name(tmp_path: Path) -> None:
    """It is a stream of pickles."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "val_idx.pt"
    torch.save(torch.from_numpy(ids(70)), path, _use_new_zipfile_serialization=False)
    with pytest.raises(IntegrityError, match="before ZIP archives"):
        open_index(path, 70)


@given(st.data())
def test_fuzzed_archives_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut, joined and changed bytes give an error with a code, or some five numbers."""
    sound = bytearray(rezip(archive(ids(5)), {}) if data.draw(st.booleans()) else archive(ids(5)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(sound) - 1))
        if data.draw(st.booleans()):
            sound[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        else:
            sound[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0x50, 0x4B]))
    path = tmp_path_factory.mktemp("fuzz") / "train_idx.pt"
    path.write_bytes(sound)
    try:
        assert open_index(path, 5).shape == (5,)
    except IntegrityError as error:
        assert error.code == "E_INDEX"


def test_a_dataset_with_an_index_of_torch_opens_and_verifies(tmp_path: Path) -> None:
    """Mapped, read, and at every level; wrong numbers in it are found."""
    torch = pytest.importorskip("torch")
    splits = {"train": random_split([[3, 4], [5]]), "val": random_split([[7]])}
    path = make_dataset(tmp_path / "d", splits)
    torch.save(torch.tensor([0, 1, 2]), path / "train_idx.pt")
    reseal(path)
    assert verify(path, "full").ok
    for way in ("mmap", "pread"):
        with open_dataset(path, io=way) as dataset:
            assert dataset.split("train").record_ids.tolist() == [0, 1, 2]
    torch.save(torch.tensor([0, 2, 1]), path / "train_idx.pt")
    reseal(path)
    (finding,) = verify(path, "full").findings
    assert (finding.code, finding.row) == ("E_INDEX", 2)


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
