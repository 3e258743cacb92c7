"""A dataset as one .safetensors or HDF5 file: whole, the same again, in any process.

Checklist items 104 (compressed single file, complete with splits, fork and spawn safe) and 105
(detection by content, lossless both ways).
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats import storage
from dataprep.formats.errors import BusyError, DataprepError, InputError, StorageError, UsageError
from dataprep.formats.manifest.arrays import DTYPES, load, storage_dtype
from dataprep.formats.manifest.common import InputEntry, RecordCounts
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.formats.write.dataset_writer import ArrayWriter
from dataprep.pipeline.interop.convert import convert
from dataprep.pipeline.interop.detect import detect
from dataprep.pipeline.interop.single_file import open_single
from tests.scenes import jasper
from tests.scenes.datasets import make_dataset
from tests.scenes.single_reader import put_some, read_some
from tests.support import REPOSITORY, examples

pytestmark = pytest.mark.usefixtures("one_child")

FORMS = ("safetensors", "h5")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """The suffix of a single file."""
    if request.param == "h5":
        pytest.importorskip("h5py", reason="HDF5 needs h5py")
    return str(request.param)


def files(root: Path) -> dict[str, bytes]:
    """All files below `root`."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def embeddings(root: Path, *, rows: int = 11, shard_bytes: int = 64, seed: int = 0) -> Path:
    """A dataset with an array of every type, in several shards, an empty split and rejects."""
    root.mkdir()
    draw = np.random.default_rng(seed)
    writer = ArrayWriter(root, shard_bytes=shard_bytes)
    for number, dtype in enumerate(DTYPES):
        stored = np.dtype(storage_dtype(dtype))
        block = draw.integers(0, 2, size=(rows, *(3,) * (number % 3))).astype(stored)
        writer.array(f"a{number}", block, dtype=dtype)
    writer.array("label", np.arange(rows) % 2, categories=('b"\n', "ä"))
    writer.array("nothing", np.empty((0, 4), "<f4"), table=True)
    writer.array("width_0", np.empty((rows, 0), "<f4"))
    writer.split("train", np.arange(rows))
    writer.split("val", np.arange(0))
    writer.write("rejects.jsonl", b"{}\n")
    entry = InputEntry(
        name="a.npy", format="npy", unit="row", bytes=9, fingerprint="x", records=rows + 1
    )
    counts = RecordCounts(read=rows + 1, written=rows, rejected={"nan": 1}, blank_lines=0)
    writer.finish_arrays(
        kind="embeddings", rows=rows, inputs=[entry], records=counts, options={"seed": 3}
    )
    return root


def pairs(root: Path, **sizes: int) -> Path:
    """A dataset of pairs."""
    jasper.write(root.with_name("theirs"), jasper.make(**sizes))
    convert(root.with_name("theirs"), root)
    return root


@pytest.fixture(params=["embeddings", "pairs"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return {"embeddings": embeddings, "pairs": pairs}[request.param](tmp_path / "ours")


@pytest.mark.parametrize("compress", [False, True])
def test_item_104_a_file_is_the_whole_dataset(
    tmp_path: Path, dataset: Path, form: str, compress: bool
) -> None:
    """Items 104, 105: arrays, splits, all other files; back, it is the same build and bytes."""
    if compress and form != "h5":
        with pytest.raises(UsageError, match="gzip: is for hdf5, not safetensors"):
            convert(dataset, tmp_path / f"a.{form}", gzip=True)
        return
    report = convert(dataset, tmp_path / f"a.{form}", gzip=compress)
    assert report.bytes == (tmp_path / f"a.{form}").stat().st_size
    again = convert(tmp_path / f"a.{form}", tmp_path / "again")
    assert files(tmp_path / "again") == files(dataset)
    assert again.recipe_id == report.recipe_id == load(dataset).recipe_id
    with open_arrays(tmp_path / "again") as data, open_single(tmp_path / f"a.{form}") as single:
        for name, array in data.arrays.items():
            rows = array.read(0, array.rows)
            found = single.read(name, 0, array.rows)
            assert (found.dtype, found.shape) == (rows.dtype, rows.shape)
            np.testing.assert_array_equal(found, rows)
        for name, split in data.splits.items():
            rows = split.rows(np.arange(len(split)))
            np.testing.assert_array_equal(single.read(f"splits/{name}", 0, len(split)), rows)
    convert(dataset, tmp_path / f"b.{form}", gzip=compress)
    shutil.move(tmp_path / "again", tmp_path / "elsewhere")
    convert(tmp_path / "elsewhere", tmp_path / f"c.{form}", gzip=compress)
    one = (tmp_path / f"a.{form}").read_bytes()
    assert one == (tmp_path / f"b.{form}").read_bytes() == (tmp_path / f"c.{form}").read_bytes()


@pytest.mark.parametrize("kind", ["embeddings", "pairs"])
def test_what_builds_wrote(tmp_path: Path, form: str, kind: str) -> None:
    """The datasets kept in the repository come back from a file with the same bytes."""
    golden = REPOSITORY / "data_fixtures" / "golden" / "v1" / kind
    convert(golden, tmp_path / f"a.{form}")
    convert(tmp_path / f"a.{form}", tmp_path / "back")
    assert files(tmp_path / "back") == files(golden)
    if kind == "pairs":
        convert(tmp_path / f"a.{form}", tmp_path / "theirs", to="jasper")
        convert(tmp_path / "theirs", tmp_path / "ours")
        assert verify(tmp_path / "ours", "full").findings == ()
        with open_arrays(golden) as one, open_arrays(tmp_path / "ours") as two:
            for name, array in two.arrays.items():
                expected = one.array(name).read(0, array.rows)
                np.testing.assert_array_equal(array.read(0, array.rows), expected)


@examples(16)
@given(rows=st.integers(0, 30), shard_bytes=st.integers(1, 200), block=st.integers(1, 40))
def test_any_sizes(
    tmp_path_factory: pytest.TempPathFactory, rows: int, shard_bytes: int, block: int
) -> None:
    """Shards and blocks of any size, through the one form and out of it into the other."""
    from dataprep.pipeline.interop import tensors

    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    root = tmp_path_factory.mktemp("sizes")
    embeddings(root / "ours", rows=rows, shard_bytes=shard_bytes, seed=block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "BLOCK_BYTES", block)
        convert(root / "ours", root / "a.h5")
        convert(root / "a.h5", root / "b.safetensors")
        convert(root / "b.safetensors", root / "back")
    assert files(root / "back") == files(root / "ours")
    shutil.rmtree(root)


def test_the_reference_library_reads_it(tmp_path: Path) -> None:
    """What Hugging Face's own reader finds: all tensors, aligned, bfloat16 as what it is."""
    library = pytest.importorskip("safetensors", reason="compared with the safetensors library")
    from safetensors.torch import load_file, save_file

    dataset = embeddings(tmp_path / "ours")
    convert(dataset, tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    with open_arrays(dataset) as data:
        for name, array in data.arrays.items():
            rows = array.read(0, array.rows)
            if array.entry.dtype == "bfloat16":
                assert found[name].dtype == torch.bfloat16
                found[name] = found[name].view(torch.uint16)
            np.testing.assert_array_equal(found[name].numpy(), rows)
    with library.safe_open(tmp_path / "a.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["dataprep"])["recipe_id"] == load(dataset).recipe_id
    again = load_file(tmp_path / "a.safetensors")
    save_file(again, tmp_path / "b.safetensors", metadata)  # in its own order
    convert(tmp_path / "b.safetensors", tmp_path / "back")
    assert files(tmp_path / "back") == files(dataset)


def test_hdf5_has_the_groups_of_the_other_system(tmp_path: Path) -> None:
    """With keyword ids in two data sets, chunks, gzip if asked, and no clock."""
    h5py = pytest.importorskip("h5py", reason="HDF5 needs h5py")
    content = jasper.make()
    pairs(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "a.h5", gzip=True)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["embeddings/questions"][:], content["question_embs"])
        np.testing.assert_array_equal(file["negatives/hardnegatives"][:], content["hard_negatives"])
        np.testing.assert_array_equal(file["splits/val"][:], np.sort(content["val_idx"]))
        ends, ids = file["pair_data/keyword_offsets"][:], file["pair_data/keyword_ids"][:]
        lists = [ids[a:b].tolist() for a, b in itertools.pairwise(ends)]
        assert lists == content["pair_keyword_ids"]
        assert file["steering/residual"].compression == "gzip"
        assert file["steering/residual"].chunks == (20, 6)
        assert dict(file.attrs) == {"format": "dataprep", "format_version": 1, "kind": "pairs"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_item_104_processes_read_what_was_opened_elsewhere(
    tmp_path: Path, form: str, method: str
) -> None:
    """Item 104: by fork and by spawn, while the parent goes on reading."""
    convert(embeddings(tmp_path / "ours"), tmp_path / f"a.{form}", to=None)
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    with open_single(tmp_path / f"a.{form}") as single:
        expected = read_some(single)
        children = [context.Process(target=put_some, args=(single, queue)) for _ in range(2)]
        for child in children:
            child.start()
        for _ in range(20):
            single.read("a0", 0, 5)
        assert [queue.get(timeout=60) for _ in children] == [expected] * 2
        for child in children:
            child.join()
            assert child.exitcode == 0


def test_rows_that_are_not_there(tmp_path: Path, form: str) -> None:
    """Names and rows are checked."""
    convert(embeddings(tmp_path / "ours"), tmp_path / f"a.{form}")
    single = open_single(tmp_path / f"a.{form}")
    with pytest.raises(UsageError, match="there is no 'b', only a0, a1"):
        single.read("b", 0, 1)
    for start, stop in ((-1, 2), (0, 12), (3, 2)):
        with pytest.raises(IndexError, match="are not in 0:11"):
            single.read("a0", start, stop)
    single.read("a0", 0, 2)[:] = 0  # owned


def test_item_105_layouts_are_told_by_content(tmp_path: Path, dataset: Path, form: str) -> None:
    """Item 105: whatever the name; and what is none of them is told so."""
    convert(dataset, tmp_path / "file", to="hdf5" if form == "h5" else "safetensors")
    assert detect(tmp_path / "file") == ("hdf5" if form == "h5" else "safetensors")
    assert detect(dataset) == "dataprep"
    convert(tmp_path / "file", tmp_path / "back")
    assert files(tmp_path / "back") == files(dataset)
    make_dataset(tmp_path / "tokens", {"train": [[[1, 2]]]})
    with pytest.raises(DataprepError, match="holds tokens, not arrays"):
        convert(tmp_path / "tokens", tmp_path / "x.safetensors")
    (tmp_path / "text").write_text("a few words")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    for name in ("text", "folder"):
        with pytest.raises(InputError, match="is none of these: a directory of dataprep, a dir"):
            convert(tmp_path / name, tmp_path / "x")
    with pytest.raises(InputError, match="there is no such file"):
        convert(tmp_path / "nowhere", tmp_path / "x")


def cut(data: bytes) -> bytes:
    return data[: len(data) - 50]


def flip_numbers(data: bytes) -> bytes:
    """One bit of the numbers of a0."""
    at = len(data) - 40
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        fields = json.loads(data[8 : 8 + length])
        change(fields)
        text = json.dumps(fields).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return damage


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut, "its tensors have .* bytes, the file has"),
        (flip_numbers, "does not give .* of its config.json"),
        (lambda data: struct.pack("<Q", 1 << 40) + data[8:], "is none of these"),
        (lambda data: struct.pack("<Q", len(data) - 8) + data[8:], "header is not that of safet"),
        (
            lambda data: data[:8] + b"{" * 5000 + data[5008:],
            "its header is not that of safetensors",
        ),
        (header(lambda x: x.pop("__metadata__")), "holds no dataset of dataprep, only tensors"),
        (header(lambda x: x["__metadata__"].update(dataprep="{}")), "`format` is ''"),
        (header(lambda x: x["a0"].update(shape=[1 << 60])), "a0 is F32 .1152921504606846976., exp"),
        (header(lambda x: x["a1"].update(dtype="BF16")), "a1 is BF16 .11, 3., expected F16"),
        (header(lambda x: x["a0"].update(data_offsets=[0, 1 << 50])), "leave a hole or overlap"),
        (header(lambda x: x.update(b=x.pop("a0"))), "its tensors are not those of its config.json"),
        (header(lambda x: x["a0"].update(data_offsets=[-4, 4])), "leave a hole or overlap"),
    ],
)
def test_damaged_safetensors(
    tmp_path: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    """Every lie is found before memory is taken for it, and leaves nothing behind."""
    convert(embeddings(tmp_path / "ours"), tmp_path / "a.safetensors")
    data = damage((tmp_path / "a.safetensors").read_bytes())
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(DataprepError, match=problem):
        convert(tmp_path / "a.safetensors", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "ours"]


def h5_lies(file: Any, kind: str, tmp_path: Path) -> None:
    """Put something in the place of arrays/a0 that is not its numbers."""
    import h5py

    shape, dtype = file["arrays/a0"].shape, file["arrays/a0"].dtype
    numbers = file["arrays/a0"][:]
    del file["arrays/a0"]
    if kind == "external link":
        with h5py.File(tmp_path / "other.h5", "w") as other:
            other["a0"] = numbers
        file["arrays/a0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "a0")
    elif kind == "soft link":
        file["elsewhere"] = numbers
        file["arrays/a0"] = h5py.SoftLink("/elsewhere")
    elif kind == "external storage":
        raw = tmp_path / "raw.bin"
        raw.write_bytes(numbers.tobytes())
        parts = [(str(raw), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("arrays/a0", shape, dtype, external=parts)
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape, dtype)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "a0", shape)
        file.create_virtual_dataset("arrays/a0", layout)
    elif kind == "huge":
        file.create_dataset("arrays/a0", (1 << 40,), dtype, chunks=(1 << 10,))
    elif kind == "lzf":
        file.create_dataset("arrays/a0", data=numbers, compression="lzf")
    elif kind == "group":
        file.create_group("arrays/a0")
    elif kind == "shape":
        file["arrays/a0"] = numbers[:-1]
    elif kind == "type":
        file["arrays/a0"] = numbers.astype("<f8")
    elif kind == "numbers":
        file["arrays/a0"] = numbers + 1
    elif kind == "config":
        file["arrays/a0"] = numbers
        config = file["files/config.json"]
        config[5] = config[5] ^ 1


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("external link", "arrays/a0 is a link to somewhere else"),
        ("soft link", "arrays/a0 is a link to somewhere else"),
        ("external storage", "arrays/a0 lies in another file"),
        ("virtual", "arrays/a0 lies in another file"),
        ("huge", "arrays/a0 promises 4398046511104 bytes, and 0 are stored"),
        ("lzf", "arrays/a0 is packed with lzf, only gzip is read"),
        ("group", "arrays/a0 is not a data set"),
        ("shape", r"arrays/a0: is <f4 \[10\], expected <f4 \[11\]"),
        ("type", r"arrays/a0: is <f8 \[11\], expected <f4 \[11\]"),
        ("missing", "there is no arrays/a0"),
        ("numbers", "a0 does not give a0/00000.npy of its config.json"),
        ("config", "a.h5:config.json: "),
    ],
)
def test_damaged_hdf5(tmp_path: Path, kind: str, problem: str) -> None:
    """Nothing outside the file is read, nothing is taken on trust."""
    h5py = pytest.importorskip("h5py", reason="HDF5 needs h5py")
    convert(embeddings(tmp_path / "ours"), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        h5_lies(file, kind, tmp_path)
    with pytest.raises(DataprepError, match=problem):
        convert(tmp_path / "a.h5", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("keep", [100, 5000])
def test_cut_hdf5(tmp_path: Path, keep: int) -> None:
    """A file that was copied in part is said to be unsound."""
    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    convert(embeddings(tmp_path / "ours"), tmp_path / "a.h5")
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data[:keep])
    with pytest.raises(InputError, match=r"E_LAYOUT\] a.h5: not a readable HDF5 file"):
        convert(tmp_path / "a.h5", tmp_path / "back")


def test_a_damaged_dataset_is_not_exported(tmp_path: Path, form: str) -> None:
    """Nor one that is a file short."""
    dataset = embeddings(tmp_path / "ours")
    data = bytearray((dataset / "a0" / "00000.npy").read_bytes())
    data[-1] ^= 1
    (dataset / "a0" / "00000.npy").write_bytes(data)
    with pytest.raises(DataprepError, match=r"E_HASH\] a0/00000.npy: is not the file that was b"):
        convert(dataset, tmp_path / f"a.{form}")
    (dataset / "a0" / "00000.npy").unlink()
    with pytest.raises(DataprepError, match=r"a0/00000.npy: is missing"):
        convert(dataset, tmp_path / f"a.{form}")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_nothing_is_replaced(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what was there, nor what somebody else put there meanwhile."""
    dataset = embeddings(tmp_path / "ours")
    target = tmp_path / f"a.{form}"
    target.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already; nothing is ever replaced"):
        convert(dataset, target)
    target.unlink()
    target.symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists already"):
        convert(dataset, target)
    target.unlink()

    def late(done: int, total: int) -> None:
        target.write_bytes(b"theirs")

    with pytest.raises(BusyError, match="another file was put here first"):
        convert(dataset, target, progress=late)
    assert target.read_bytes() == b"theirs"
    target.unlink()
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(BusyError):
        convert(dataset, target, progress=late)
    target.unlink()
    convert(dataset, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name, "ours"]
    assert target.stat().st_nlink == 1
    back = tmp_path / "back"
    back.mkdir()
    convert(target, back)  # an empty directory is as good as none
    with pytest.raises(UsageError, match="exists already"):
        convert(target, back)
    with pytest.raises(UsageError, match="lies inside"):
        convert(dataset, dataset / f"a.{form}")
    with pytest.raises(UsageError, match="is a directory of dataprep already"):
        convert(dataset, tmp_path / "copy")
    with pytest.raises(UsageError, match="prefer: is for JASPER's directory"):
        convert(target, tmp_path / "copy", prefer="pt")
    with pytest.raises(StorageError, match="there is no such directory"):
        convert(dataset, tmp_path / "no" / f"a.{form}")


def test_what_a_killed_run_left_goes(tmp_path: Path, form: str) -> None:
    """The next run to the same target removes it; what others are at, or made, stays."""
    dataset, target = embeddings(tmp_path / "ours"), tmp_path / f"a.{form}"
    gone = subprocess.Popen(["true"])
    gone.wait()
    start, host = f".{target.name}.converting.tmp-", os.uname().nodename
    dead, alive = f"{start}{host}-{gone.pid}-ab", f"{start}{host}-{os.getpid()}-ab"
    others = {alive, f"{start}elsewhere-{gone.pid}-ab", f"{start}notes", f".b{dead}"}
    for name in (dead, *others):
        (tmp_path / name / "dataset").mkdir(parents=True)
    convert(dataset, target)
    assert {path.name for path in tmp_path.iterdir()} == others | {target.name, "ours"}


def no_links(*_: object) -> None:
    """A file system without hard links."""
    raise OSError(1, "Operation not permitted")


@pytest.mark.parametrize("number", [28, 5, 27])
def test_a_full_disk_is_said(
    tmp_path: Path, form: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the system refuses while the file is written, and nothing is left."""
    dataset = embeddings(tmp_path / "ours")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    codes = {28: "E_NOSPACE", 5: "E_IO", 27: "E_TOOBIG"}
    with pytest.raises(StorageError) as caught:
        convert(dataset, tmp_path / f"a.{form}")
    assert caught.value.code == codes[number]
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_real_limit_ends_hdf5(tmp_path: Path) -> None:
    """HDF5 tells the number of the system's error in words only."""
    pytest.importorskip("h5py", reason="HDF5 needs h5py")
    dataset = embeddings(tmp_path / "ours", rows=2000, shard_bytes=1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from dataprep.cli.main import run; from dataprep.pipeline.interop import convert\n"
        "import h5py; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, -1))\n"
        "sys.exit(run(['convert', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(dataset), str(tmp_path / "a.h5")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "error[E_TOOBIG]" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_FSIZE)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, whichever way; safetensors needs nothing."""
    dataset = embeddings(tmp_path / "ours")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UsageError, match=r"pip install 'dataprep-shards\[hdf5\]'"):
        convert(dataset, tmp_path / "a.h5")
    convert(dataset, tmp_path / "a.safetensors")


def test_publish_file_wants_nothing_there(tmp_path: Path) -> None:
    """One wins; the name appears with all its bytes."""
    storage.write_file(tmp_path / "one", b"1")
    storage.write_file(tmp_path / "two", b"2")
    storage.publish_file(tmp_path / "one", tmp_path / "out")
    with pytest.raises(BusyError):
        storage.publish_file(tmp_path / "two", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "two"]
