"""What version 1 has room for: removed records, unknown sizes, folders in folders, newer kinds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dataprep.cli import main
from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.files.index_file import write_index
from dataprep.formats.manifest.tokens import CONFIG_NAME, RecordCounts
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.formats.read.open_files import ReadBy
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.commit import shards as layout
from dataprep.pipeline.interop.convert import convert
from dataprep.runtime.create import create_loader
from dataprep.runtime.inspect.provenance import find_record
from tests.scenes.corpora import build_into, shrink_units
from tests.scenes.verified import LEVELS, codes, files_of, reseal
from tests.scenes.verified_arrays import MANY, Copied
from tests.support import REPOSITORY

Config = dict[str, Any]
SOURCE = str(REPOSITORY / "data_fixtures" / "stories.jsonl")


def rewrite(path: Path, change: Callable[[Config], object]) -> None:
    """Change config.json, which then has a right digest of itself again."""
    config = json.loads((path / CONFIG_NAME).read_bytes())
    change(config)
    sign(path, config)


def sign(path: Path, config: Config) -> None:
    import hashlib

    body = json.dumps({**config, "self_sha256": "0" * 64}, indent=1).encode() + b"\n"
    digest = hashlib.sha256(body).hexdigest().encode()
    (path / CONFIG_NAME).write_bytes(body.replace(b"0" * 64, digest))


def rename(path: Path, names: Mapping[str, str]) -> None:
    """Give files of the dataset in `path` other names, everywhere."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return names.get(value, value) if isinstance(value, str) else value

    config = renamed(json.loads((path / CONFIG_NAME).read_bytes()))
    config["files"].sort(key=lambda entry: entry["name"])
    for old, new in names.items():
        (path / new).parent.mkdir(exist_ok=True)
        (path / old).rename(path / new)
    sign(path, config)
    reseal(path)  # crc32.npy follows the order of the names


def nest(path: Path) -> Path:
    """Put the files of each shard into a folder of their own in the folder of the split."""
    inner = [name for name in files_of(path) if "/" in name]
    parts = [(name, *name.split("/")) for name in inner]
    rename(path, {name: f"{a}/{b.partition('.')[0][-4:]}/{b}" for name, a, b in parts})
    return path


def remove(path: Path, split: str, ids: list[int], read: int) -> None:
    """Let the records of `split` be `ids` of `read` that there were once."""
    with (path / f"{split}_idx.pt").open("wb") as stream:
        write_index(stream, [np.array(ids, np.int64)], len(ids))

    def change(manifest: Any) -> Any:
        old = manifest.records
        gone = read - old.written - sum(old.rejected.values())
        records = msgspec.structs.replace(old, read=read, removed=gone)
        inputs = (msgspec.structs.replace(manifest.inputs[0], records=read),)
        return msgspec.structs.replace(manifest, records=records, inputs=inputs)

    reseal(path, change)


def served(place: Path | Dataset) -> list[list[int]]:
    """The ids of all windows of train, in their order."""
    loader = create_loader(place, "train", 2, seq_len=8, drop_last=False)
    return [row for batch in loader for row in batch["input_ids"].tolist()]


# Removed records


def test_removed_records_stand_nowhere(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records 1, 4 and 8 of 9 are gone: opened, served as before, sound at every level, shown."""
    before = served(dataset)
    remove(dataset, "train", [0, 2, 3, 5], 9)
    remove(dataset, "val", [6, 7], 9)
    assert [verify(dataset, level).findings for level in LEVELS] == [()] * 3
    assert served(dataset) == before
    with open_dataset(dataset) as opened:
        assert opened.manifest.records == RecordCounts(
            read=9, written=6, rejected={}, removed=3, blank_lines=0
        )
        assert find_record(opened, 7)[0].name == "val"
        with pytest.raises(UsageError, match="removed later"):
            find_record(opened, 4)
    assert main.run(["inspect", str(dataset)]) == 0
    assert "9 read, 6 written, 3 removed" in capsys.readouterr().out
    assert main.run(["inspect", str(dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"]["removed"] == 3


def test_removed_records_are_counted(dataset: Path) -> None:
    """A record in two splits, more removed than said, and a manifest that does not add up."""
    remove(dataset, "train", [0, 2, 3, 5], 9)
    remove(dataset, "val", [5, 7], 9)
    assert codes(verify(dataset, "structure")) == {("E_INDEX", "val_idx.pt")}
    remove(dataset, "val", [6, 7], 9)
    rewrite(dataset, lambda config: config["records"].update(removed=2))
    with pytest.raises(IntegrityError, match=r"written \+ rejected \+ removed"):
        verify(dataset)


def test_most_records_may_be_removed(dataset: Path) -> None:
    """Six of a million are left; what the manifest says is no reason to fill the memory."""
    remove(dataset, "train", [0, 2, 3, 500_000], 1_000_000)
    remove(dataset, "val", [700_000, 999_999], 1_000_000)
    report = verify(dataset)
    assert report.findings == () and not any("conservation" in note for note in report.notes)
    remove(dataset, "val", [700_000, (1 << 60) - 1], 1 << 60)
    report = verify(dataset)
    assert report.findings == ()
    (note,) = (note for note in report.notes if "conservation" in note)
    assert f"{(1 << 60) - 6} of {1 << 60} records were removed" in note


def test_removed_rows_of_arrays(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    """Of embeddings too: rows are those that are left."""
    path = copied("embeddings")

    def change(config: Config) -> None:
        config["records"].update(read=20, removed=7)
        config["inputs"][0]["records"] = 20

    rewrite(path, change)
    assert [verify(path, level).findings for level in LEVELS] == [()] * 3
    with open_arrays(path) as opened:
        assert opened.manifest.records.removed == 7
    assert sum(len(batch["label"]) for batch in create_loader(path, "train", 4)) > 0
    assert main.run(["inspect", str(path)]) == 0
    assert "20 read, 12 written, 7 removed" in capsys.readouterr().out


def test_a_dataset_without_the_key_has_none_removed(dataset: Path) -> None:
    """The count is written always and may be absent."""
    assert b'"removed": 0' in (dataset / CONFIG_NAME).read_bytes()
    rewrite(dataset, lambda config: config["records"].pop("removed"))
    assert verify(dataset).findings == ()


def test_tombstones_are_refused_by_name(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A feature of a later version that must not be ignored: exit code 6."""
    rewrite(dataset, lambda config: config.update(required_features=["tombstones"]))
    for command in ("verify", "inspect"):
        assert main.run([command, str(dataset)]) == 6
        error = capsys.readouterr().err
        assert "features tombstones" in error
        assert error.rstrip().endswith("Install a newer dataprep.")


def test_a_build_does_not_take_it_for_its_own(tmp_path: Path) -> None:
    """What records were removed from is another dataset than the build would make."""
    out = tmp_path / "out"
    assert not build_into(out, SOURCE).reused
    assert build_into(out, SOURCE).reused

    def change(config: Config) -> None:
        config["records"].update(read=config["records"]["read"] + 1, removed=1)
        config["inputs"][0]["records"] += 1

    rewrite(out, change)
    with pytest.raises(UsageError, match="without 1 of its records"):
        build_into(out, SOURCE)
    assert not build_into(out, SOURCE, overwrite=True).reused
    assert build_into(out, SOURCE).reused


# Sizes that are not known


def test_the_size_of_the_text_may_be_unknown(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a dataset that was imported: shown as unknown, divided by nowhere."""
    before = served(dataset)
    rewrite(dataset, lambda config: config["splits"]["train"].update(text_bytes=None))
    assert [verify(dataset, level).findings for level in LEVELS] == [()] * 3
    assert served(dataset) == before
    assert main.run(["inspect", str(dataset), "--random", "1"]) == 0
    assert "unknown" in capsys.readouterr().out
    assert main.run(["inspect", str(dataset), "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert (splits["train"]["text_bytes"], splits["train"]["bytes_per_token"]) == (None, None)
    assert splits["val"]["bytes_per_token"] > 0


# Folders in folders


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_files_in_two_folders(dataset: Path, io: ReadBy) -> None:
    """A folder for each shard: opened, served in the same order, sound at every level."""
    before = served(dataset)
    nest(dataset)
    assert (dataset / "train" / "0001" / "tokens-00001.bin").is_file()
    assert [verify(dataset, level).findings for level in LEVELS] == [()] * 3
    with open_dataset(dataset, io=io) as opened:
        assert served(opened) == before
        assert opened.split("val").document(1).tolist()


@pytest.mark.parametrize("kind", ["embeddings", "pairs"])
def test_arrays_in_two_folders(copied: Copied, kind: str) -> None:
    """The same of arrays of several shards, and through a single file and back."""
    path = nest(copied(kind, MANY))
    assert [verify(path, level).findings for level in LEVELS] == [()] * 3
    batches = sum(1 for _ in create_loader(path, "train", 2))
    assert batches > 1
    for name in ("one.safetensors", "one.h5"):
        convert(path, path.parent / name)
        back = path.parent / f"from-{name[4:]}"
        convert(path.parent / name, back)
        assert {n: (back / n).read_bytes() for n in files_of(back)} == {
            n: (path / n).read_bytes() for n in files_of(path)
        }


def test_nested_pairs_become_another_layout(copied: Copied) -> None:
    """Names of files in the dataset are none of JASPER's business."""
    plain = copied("pairs", MANY)
    out = plain.parent
    convert(plain, out / "one", to="jasper")
    convert(nest(plain), out / "two", to="jasper")
    for name in files_of(out / "one"):
        if name != "config.json":
            assert (out / "two" / name).read_bytes() == (out / "one" / name).read_bytes()


@pytest.mark.parametrize("level", LEVELS)
def test_what_does_not_belong_into_inner_folders(dataset: Path, level: Any) -> None:
    """Extra files and folders are named at every depth; rubbish of desktops is ignored."""
    nest(dataset)
    (dataset / "train" / "0000" / "more.bin").write_bytes(b"")
    (dataset / "train" / "0000" / "deep").mkdir()
    (dataset / "train" / "0002").mkdir()
    (dataset / "val" / "0000" / ".DS_Store").write_bytes(b"")
    expected = {("E_EXTRA", f"train/{name}") for name in ("0000/more.bin", "0000/deep", "0002")}
    assert codes(verify(dataset, level)) == expected


@pytest.mark.parametrize("folder", ["train", "train/0000"])
@pytest.mark.parametrize("kind", ["link", "file", "nothing"])
def test_an_inner_folder_must_be_one(dataset: Path, folder: str, kind: str) -> None:
    """A link to the right folder, a file, or nothing in its place, at either depth."""
    nest(dataset)
    aside = dataset.parent / "aside"
    (dataset / folder).rename(aside)
    if kind == "link":
        (dataset / folder).symlink_to(aside)
    elif kind == "file":
        (dataset / folder).write_bytes(b"")
    found = codes(verify(dataset))
    assert ("E_MISSING", "train/0000/tokens-00000.bin") in found
    assert (("E_NAME", folder) in found) == (kind != "nothing")
    with pytest.raises(IntegrityError if kind != "file" else Exception) as caught:
        open_dataset(dataset)
    if kind == "link":
        assert getattr(caught.value, "where", "").endswith(folder)


def test_damage_in_an_inner_folder_is_named_in_full(dataset: Path) -> None:
    """By the whole name of the file, when it is verified and when it is used."""
    nest(dataset)
    name = "train/0000/docs-00000.npy"
    data = bytearray((dataset / name).read_bytes())
    data[:6] = b"\0" * 6
    (dataset / name).write_bytes(data)
    assert {file for _, file in codes(verify(dataset))} == {name}
    with open_dataset(dataset) as opened, pytest.raises(IntegrityError) as caught:
        opened.split("train").document(0)
    assert str(caught.value.where).endswith(name)


def test_overwrite_knows_inner_folders(tmp_path: Path) -> None:
    """A dataset with folders in folders is replaced, one with a foreign file in them is not."""
    out = tmp_path / "out"
    command = ["build", "--input", SOURCE, "--out", str(out), "--workers", "1", "--quiet"]
    assert main.run(command) == 0
    (nest(out) / "train" / "0000" / "mine.txt").write_text("mine")
    assert main.run([*command, "--seed", "1", "--overwrite"]) == 2
    assert (out / "train" / "0000" / "mine.txt").read_text() == "mine"
    (out / "train" / "0000" / "mine.txt").unlink()
    assert main.run([*command, "--seed", "1", "--overwrite"]) == 0
    assert not (out / "train" / "0000").exists()


def test_many_shards_get_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a number of shards a split has a folder for each so many of them; the ids are equal."""
    shrink_units(monkeypatch.setattr, unit_bytes=1 << 12, link_bytes=1)
    monkeypatch.setattr(layout, "SMALL_PART", 1 << 40)
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(f'{{"text": "story {n:080}"}}\n' for n in range(180)))
    build_into(tmp_path / "plain", source, split="train=1")
    monkeypatch.setattr(layout, "ONE_FOLDER", 3)
    monkeypatch.setattr(layout, "A_FOLDER", 2)
    build_into(tmp_path / "nested", source, split="train=1")
    folders = sorted(path.name for path in (tmp_path / "nested" / "train").iterdir())
    assert folders == ["0000", "0001", "0002"]
    assert verify(tmp_path / "nested").findings == ()
    assert served(tmp_path / "nested") == served(tmp_path / "plain")


# What a newer dataprep may write


def _tokens(*place: str) -> Callable[[Config], None]:
    """A change that puts a word of the future where `place` leads."""

    def change(config: Config) -> None:
        *steps, last = place
        inner: Any = config
        for step in steps:
            inner = inner[step]
        inner[last] = "future"

    return change


UNKNOWN: dict[str, tuple[str, Callable[[Config], None]]] = {
    "kind": ("tokens", _tokens("kind")),
    "dtype": ("tokens", _tokens("tokens", "dtype")),
    "structure": ("tokens", _tokens("splits")),
    "form": ("groups", _tokens("chat", "form")),
    "kind of arrays": ("embeddings", _tokens("kind")),
    "dtype of an array": ("embeddings", _tokens("arrays", "embedding", "dtype")),
    "dtype of an array of pairs": ("pairs", _tokens("arrays", "source_embs", "dtype")),
    "structure of arrays": ("pairs", _tokens("arrays", "pair_index", "row")),
    "unit of an input": ("tokens", lambda config: config["inputs"][0].update(unit="future")),
    "mode of a curriculum": (
        "pairs",
        lambda config: config["pairs"].update(curriculum={"mode": "future"}),
    ),
    "array of pairs": (
        "pairs",
        lambda config: config["arrays"].update(
            future={**config["arrays"]["pair_relevance"], "table": True, "rows": 0, "shards": []}
        ),
    ),
}


@pytest.fixture
def of_kind(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    def find(kind: str) -> Path:
        if kind in ("embeddings", "pairs"):
            return Path(request.getfixturevalue("copied")(kind))
        return Path(request.getfixturevalue({"tokens": "dataset", "groups": "groups"}[kind]))

    return find


@pytest.mark.parametrize(("kind", "change"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_of_a_newer_version(
    of_kind: Callable[[str], Path], kind: str, change: Callable[[Config], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Exit code 6 of every command, and nothing that would cost the data; damage stays damage."""
    path = of_kind(kind)
    rewrite(path, change)
    for command in (["verify"], ["verify", "--level", "stat"], ["inspect"]):
        assert main.run([command[0], str(path), *command[1:]]) == 6, command
        error = capsys.readouterr().err
        assert "made by a newer dataprep" in error
        assert error.rstrip().endswith("Install a newer dataprep.")
    config = (path / CONFIG_NAME).read_bytes()
    (path / CONFIG_NAME).write_bytes(config.replace(b"future", b"futurf"))
    assert main.run(["verify", str(path)]) == 3
    assert "E_MANIFEST" in capsys.readouterr().err


BUILDS = {
    "tokens": ["--input", SOURCE],
    "embeddings": ["--kind", "embeddings", "--input", "vectors.npy"],
    "pairs": [
        "--kind",
        "pairs",
        "--input",
        "pairs.jsonl",
        "--question-embs",
        "vectors.npy",
        "--source-embs",
        "vectors.npy",
    ],
}


@pytest.mark.parametrize("build_of", BUILDS)
@pytest.mark.parametrize("kind", ["tokens", "embeddings"])
def test_overwrite_does_not_replace_what_is_newer(
    of_kind: Callable[[str], Path], kind: str, build_of: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of whatever kind it is and whatever is to be built; what the message says works."""
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", np.eye(1, 4, dtype=np.float32))
    Path("pairs.jsonl").write_text('{"question": "q", "source": "s"}\n')
    path = of_kind(kind)
    place = ("tokens", "dtype") if kind == "tokens" else ("arrays", "embedding", "dtype")
    rewrite(path, _tokens(*place))
    before = {name: os.stat(path / name).st_mtime_ns for name in files_of(path)}
    command = ["build", *BUILDS[build_of], "--out", str(path), "--overwrite", "--quiet"]
    assert main.run(command) == 2
    error = capsys.readouterr().err
    assert "newer dataprep" in error and "remove this dataset by hand" in error
    assert {name: os.stat(path / name).st_mtime_ns for name in files_of(path)} == before


@pytest.mark.parametrize("build_of", BUILDS)
def test_without_overwrite_a_newer_dataset_is_named(
    dataset: Path, build_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The build stops with exit code 6, whatever is to be built, and touches nothing."""
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", np.eye(1, 4, dtype=np.float32))
    Path("pairs.jsonl").write_text('{"question": "q", "source": "s"}\n')
    rewrite(dataset, _tokens("tokens", "dtype"))
    assert main.run(["build", *BUILDS[build_of], "--out", str(dataset), "--quiet"]) == 6
    assert "Install a newer dataprep." in capsys.readouterr().err


def test_a_damaged_dataset_of_a_newer_version_is_kept(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the version says is legible where the digest is wrong."""
    rewrite(dataset, lambda config: config.update(format_version=2))
    config = (dataset / CONFIG_NAME).read_bytes()
    (dataset / CONFIG_NAME).write_bytes(config.replace(b'"blank_lines": ', b'"blank_lines": 1'))
    command = ["build", "--input", SOURCE, "--out", str(dataset), "--quiet"]
    assert main.run([*command, "--overwrite"]) == 2
    error = capsys.readouterr().err
    assert "newer dataprep" in error and "config.json is damaged" in error


# Names


DEVICES = ["con", "prn", "aux", "nul", "com0", "com9", "lpt1"]


@pytest.mark.parametrize("name", DEVICES)
def test_splits_are_not_called_like_devices(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error that says why, before anything is written."""
    np.save(tmp_path / "vectors.npy", np.eye(4, dtype=np.float32))
    for what in (
        ["--input", SOURCE],
        ["--kind", "embeddings", "--input", f"{tmp_path}/vectors.npy"],
    ):
        command = ["build", *what, "--out", str(tmp_path / "out"), "--split", f"{name}=1"]
        assert main.run(command) == 2
        assert "is a device on Windows" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_arrays_are_not_called_like_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field of this name may have another one in the dataset."""
    rows = [{"embedding": [1.0, 0.0], "aux": n} for n in range(4)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ["build", "--kind", "embeddings", "--input", str(source), "--out"]
    command += [str(tmp_path / "out"), "--workers", "1", "--split", "train=1"]
    assert main.run([*command, "--columns", "embedding", "--columns", "aux"]) == 2
    assert "'aux' is a device on Windows" in capsys.readouterr().err
    assert main.run([*command, "--columns", "embedding", "--columns", "number=aux"]) == 0


def test_names_that_one_system_takes_for_the_same(dataset: Path) -> None:
    """A file that differs from another one, or from a folder, by case alone."""
    for name in ("TOKENIZER.json", "Config.json", "TRAIN"):

        def add(config: Config, name: str = name) -> None:
            entry = {**config["files"][0], "name": name}
            config["files"] = sorted([*config["files"], entry], key=lambda one: one["name"])

        copy = Path(shutil.copytree(dataset, dataset.parent / name))
        rewrite(copy, add)
        with pytest.raises(IntegrityError, match="by case") as caught:
            open_dataset(copy)
        assert caught.value.code == "E_NAME"


# What is there beside


def test_columns_and_keys_that_are_not_known_are_ignored(dataset: Path) -> None:
    """Listed files that nothing points to, and keys in every part: opened, served, verified."""
    before = served(dataset)
    (dataset / "train" / "language-00000.npy").write_bytes(b"a column of a later version")
    (dataset / "train" / "0007").mkdir()
    (dataset / "train" / "0007" / "language-00001.npy").write_bytes(b"its second shard")

    def change(config: Config) -> None:
        shard = config["splits"]["train"]["shards"][0]
        shard["language"] = "train/language-00000.npy"
        for part in (config, config["records"], config["splits"]["train"], config["files"][0]):
            part["later"] = {"any": ["thing"]}

    reseal(dataset)
    rewrite(dataset, change)
    assert [verify(dataset, level).findings for level in LEVELS] == [()] * 3
    assert served(dataset) == before
    (dataset / "train" / "0007" / "language-00001.npy").write_bytes(b"its second chard")
    assert codes(verify(dataset)) == {("E_HASH", "train/0007/language-00001.npy")}


@pytest.mark.parametrize("kind", ["embeddings", "pairs"])
def test_files_beside_the_arrays_are_ignored(copied: Copied, kind: str) -> None:
    """A listed file that belongs to no array is served by nobody, and hashed."""
    path = copied(kind)
    (path / "beside").mkdir()
    (path / "beside" / "00000.npy").write_bytes(b"numbers of a later version")
    reseal(path)
    assert [verify(path, level).findings for level in LEVELS] == [()] * 3
    with open_arrays(path) as opened:
        assert "beside" not in opened.arrays
    assert sum(1 for _ in create_loader(path, "train", 2)) > 0
