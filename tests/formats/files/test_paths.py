"""Paths of this machine against addresses, wherever a path is taken."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dataprep
from dataprep.formats.errors import StorageError, UsageError
from dataprep.formats.files import paths as mounts
from dataprep.formats.files.paths import local_path, refuse_address
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.read.directory import choose_io
from dataprep.pipeline.interop.single_file import open_single
from dataprep.pipeline.tokenize.train import train_tokenizer
from dataprep.runtime.create import create_loader
from dataprep.runtime.rows.plan_cache import default_plan_dir
from dataprep.runtime.rows.windows import WindowDataset
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.pair_datasets import make_pairs

ADDRESS = "s3://bucket/x"
INPUT = "data.jsonl"
EMBS: dict[str, Any] = {"question_embs": "q.npy", "source_embs": "s.npy"}


@pytest.mark.parametrize(
    "path", [ADDRESS, Path(ADDRESS), "gs://b", "https://host/a", "S3://B", "file:///x", "hf://a/b"]
)
def test_addresses(path: str | Path) -> None:
    with pytest.raises(UsageError, match="is not supported") as caught:
        local_path(path)
    assert (caught.value.code, caught.value.where) == ("E_SCHEME", str(path))
    assert caught.value.remedy


@pytest.mark.parametrize("path", ["a/b", "/a/b", "a:b", "./s3:/x", "~/x", "hf:NAME", "a b://c"])
def test_paths(path: str) -> None:
    refuse_address(path)
    assert local_path(path) == Path(path)


def _options(kind: Callable[..., Any], **asked: Any) -> Any:
    return kind(**{"input": INPUT, "out": "out", **asked})


CALLS: list[Callable[[], Any]] = [
    lambda: dataprep.verify(ADDRESS),
    lambda: dataprep.open_dataset(ADDRESS),
    lambda: dataprep.open_dataset(Path(ADDRESS)),
    lambda: dataprep.open_arrays(ADDRESS),
    lambda: dataprep.open_pairs(ADDRESS),
    lambda: open_single(ADDRESS),
    lambda: dataprep.create_loader(ADDRESS, "train", batch_size=2, seq_len=8),
    lambda: dataprep.create_loader({ADDRESS: 1.0}, "train", batch_size=2, seq_len=8, seed=0),
    lambda: dataprep.external.UniversalDataModule(ADDRESS, batch_size=2),
    lambda: dataprep.text.create_dataloaders(ADDRESS, tokenizer=None),
    lambda: dataprep.text.create_dataloaders(INPUT, tokenizer=ADDRESS),
    lambda: dataprep.text.create_dataloaders(INPUT, tokenizer=None, cache_dir=ADDRESS),
    lambda: dataprep.text.text_windows(ADDRESS, None),
    lambda: dataprep.convert(ADDRESS, "out"),
    lambda: dataprep.convert("x.safetensors", ADDRESS),
    lambda: _options(dataprep.BuildOptions, input=ADDRESS),
    lambda: _options(dataprep.BuildOptions, input=["hf:NAME", "hf://NAME"]),
    lambda: _options(dataprep.BuildOptions, out=ADDRESS),
    lambda: _options(dataprep.BuildOptions, out=Path(ADDRESS)),
    lambda: _options(dataprep.ChatOptions, input=ADDRESS),
    lambda: _options(dataprep.ChatOptions, out=ADDRESS),
    lambda: _options(dataprep.EmbeddingOptions, input=ADDRESS),
    lambda: _options(dataprep.EmbeddingOptions, out=ADDRESS),
    lambda: _options(dataprep.EmbeddingOptions, text_field="t", encoder=ADDRESS),
    lambda: _options(dataprep.PairOptions, **EMBS, input=ADDRESS),
    lambda: _options(dataprep.PairOptions, **EMBS, input=(), split_input=f"train={ADDRESS}"),
    lambda: _options(dataprep.PairOptions, **EMBS, out=ADDRESS),
    lambda: _options(dataprep.PairOptions, question_embs=ADDRESS, source_embs="s.npy"),
    lambda: _options(dataprep.PairOptions, encoder=ADDRESS),
    lambda: _options(dataprep.PairOptions, **EMBS, keyword_clusters=ADDRESS),
    lambda: train_tokenizer(iter(["text"]), vocab_size=300, out=Path(ADDRESS)),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=map(str, range(len(CALLS))))
def test_every_function_refuses_addresses(
    call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them reads or makes a folder of that name."""
    monkeypatch.chdir(tmp_path)
    Path(INPUT).write_text('{"text": "a"}\n')
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.code == "E_SCHEME"
    assert [path.name for path in tmp_path.iterdir()] == [INPUT]


def test_a_tokenizer_or_template_at_an_address(tmp_path: Path) -> None:
    """They are looked for when the build begins."""
    (tmp_path / INPUT).write_text('{"text": "a", "messages": []}\n')
    settings: dict[str, Any] = {"input": tmp_path / INPUT, "out": tmp_path / "out", "workers": 1}
    with pytest.raises(UsageError, match="s3:// is not supported"):
        dataprep.build(dataprep.BuildOptions(tokenizer=f"{ADDRESS}/tokenizer.json", **settings))
    with pytest.raises(UsageError, match="s3:// is not supported"):
        dataprep.build_chat(dataprep.ChatOptions(template=f"{ADDRESS}/chat.jinja", **settings))
    assert not (tmp_path / "out").exists()


def test_caches_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATAPREP_CACHE and `plan_dir`; the plan is not quietly made in memory."""
    path = make_dataset(tmp_path / "shards", {"train": [[list(b"first"), list(b"second")]]})
    split = dataprep.open_dataset(path).splits["train"]
    with pytest.raises(UsageError, match="s3:// is not supported"):
        dataprep.datasets.PackedDataset(split, seq_len=8, plan_dir=ADDRESS)
    monkeypatch.setenv("DATAPREP_CACHE", ADDRESS)
    with pytest.raises(UsageError, match="s3:// is not supported"):
        default_plan_dir()


RELATIVE: list[Callable[[], Any]] = [
    lambda: dataprep.verify("x"),
    lambda: dataprep.open_dataset("x"),
    lambda: dataprep.open_arrays("x"),
    lambda: dataprep.open_pairs("x"),
    lambda: dataprep.create_loader("x", "train", batch_size=2, seq_len=8),
    lambda: dataprep.create_loader({"x": 1.0}, "train", batch_size=2, seq_len=8, seed=0),
    lambda: dataprep.text.create_dataloaders("x.jsonl", tokenizer=None),
    lambda: dataprep.external.UniversalDataModule("x", batch_size=2),
    lambda: dataprep.convert("x", "y"),
    lambda: _options(dataprep.BuildOptions),
    lambda: train_tokenizer(iter(["text"]), vocab_size=300, out=Path("x")),
]


@pytest.mark.parametrize("call", RELATIVE, ids=map(str, range(len(RELATIVE))))
def test_a_working_directory_that_is_gone(
    call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every function says it of a relative path; an absolute one still works."""
    importlib.import_module("torch")  # from there its import ends the process (MKL)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError) as caught:
        call()
    assert caught.value.code == "E_DIRECTORY"
    assert local_path(tmp_path) == tmp_path


LINE = "36 27 {device} / {place} rw,relatime shared:1 - {kind} server:/share rw,vers=4.2"


def fabricated(folder: Path, kind: str) -> Path:
    """A list of mounts in which the file system of `folder` is of another kind."""
    device = folder.stat().st_dev
    own = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        LINE.format(device=f"1{own}", place="/other", kind="ext4"),
        LINE.format(device=own, place="/data", kind=kind),
        LINE.format(device=f"{own}0", place="/more", kind="ext4"),
    ]
    file = folder / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("kind", "io"),
    [
        ("nfs4", "pread"), ("nfs", "pread"), ("cifs", "pread"), ("smb3", "pread"),
        ("lustre", "pread"), ("gpfs", "pread"), ("9p", "pread"), ("fuse.sshfs", "pread"),
        ("fuse", "pread"), ("ceph", "pread"), ("ext4", "mmap"), ("xfs", "mmap"),
        ("tmpfs", "mmap"), ("overlay", "mmap"), ("fuseblk", "mmap"), ("nfsd", "mmap"),
    ],
)  # fmt: skip
def test_remote_file_systems_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, io: str
) -> None:
    """Datasets of every kind, and loaders, choose by the type; what is asked for holds."""
    make_dataset(tmp_path / "d", {"train": random_split([[30]])})
    make_pairs(tmp_path / "p")
    monkeypatch.setattr(mounts, "_MOUNTS", fabricated(tmp_path, kind))
    assert open_dataset(tmp_path / "d").io == open_arrays(tmp_path / "p").io == io
    rows = create_loader(tmp_path / "d", "train", 1, seq_len=4).dataset_obj
    assert isinstance(rows, WindowDataset)
    assert rows.split.dataset.io == io
    assert open_dataset(tmp_path / "d", io="mmap").io == "mmap"
    assert open_dataset(tmp_path / "d", io="pread").io == "pread"


def test_here(tmp_path: Path) -> None:
    """The disk of the tests is known for what it is, and is mapped."""
    device = tmp_path.stat().st_dev
    if mounts._MOUNTS.exists():
        text = mounts._MOUNTS.read_text()
        assert mounts.mounted_type(text, os.major(device), os.minor(device)) is not None
    assert choose_io(None, tmp_path) == "mmap"
    assert choose_io(None, tmp_path / "missing") == "mmap"
    with pytest.raises(UsageError, match="must be one of mmap, pread, got 'direct'"):
        choose_io("direct", tmp_path)  # type: ignore[arg-type]


def test_without_a_list_of_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, files are mapped."""
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "none")
    assert choose_io(None, tmp_path) == "mmap"
