"""What a build must never do to other people's files, to other builds, or to its own results."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import BusyError, InputError, StorageError, UsageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.build import build
from dataprep.pipeline.commit import shards as layout
from dataprep.pipeline.execute import processes
from dataprep.pipeline.execute.worker import Event
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.progress import Progress
from dataprep.pipeline.run import _Build
from dataprep.pipeline.staging.directory import Staging
from tests.scenes.corpora import (
    MESSY,
    STORIES,
    build_into,
    digests,
    shrink_units,
    write_large,
)
from tests.support import REPOSITORY
from tests.synced import Synced


def _tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "config", ['{"model_type": "gpt2"}', "not json", '{"name": "x", "format": "dataprep"}']
)
def test_a_foreign_config_is_never_replaced(
    tmp_path: Path, config: str, *, overwrite: bool
) -> None:
    """A folder with somebody else's config.json is refused, with --overwrite too."""
    out = tmp_path / "model"
    out.mkdir()
    (out / "config.json").write_text(config)
    (out / "weights.bin").write_text("weights")
    before = _tree(out)
    with pytest.raises(UsageError, match=r"not a dataset.*nothing was touched"):
        build_into(out, STORIES, overwrite=overwrite)
    assert _tree(out) == before


@pytest.mark.parametrize("name", ["notes.txt", "train/notes.txt", "extra/deep/notes.txt"])
def test_foreign_files_beside_a_dataset_are_never_replaced(tmp_path: Path, name: str) -> None:
    """--overwrite refuses a dataset directory that holds anything else, by its name."""
    out = tmp_path / "out"
    build_into(out, STORIES)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = _tree(out)
    with pytest.raises(UsageError, match=name.split("/", maxsplit=1)[0]):
        build_into(out, STORIES, seed=1, overwrite=True)
    assert _tree(out) == before


def test_a_damaged_dataset_can_be_replaced(tmp_path: Path) -> None:
    """A dataset whose manifest is damaged is still dataprep's, and --overwrite mends it."""
    out = tmp_path / "out"
    build_into(out, STORIES)
    good = digests(out)
    data = bytearray((out / "config.json").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "config.json").write_bytes(data)
    build_into(out, STORIES, overwrite=True)
    assert digests(out) == good


def test_nothing_is_built_inside_a_dataset(tmp_path: Path) -> None:
    """A folder in a dataset is no place for another one."""
    build_into(tmp_path / "out", STORIES)
    with pytest.raises(UsageError, match="lies inside the dataset"):
        build_into(tmp_path / "out" / "more", STORIES)
    assert verify(tmp_path / "out").findings == ()


def test_out_is_a_link(tmp_path: Path) -> None:
    """A link is followed: what it points at is made or replaced, and the link stays."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    build_into(tmp_path / "link", STORIES)
    build_into(tmp_path / "link", STORIES, seed=1, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert verify(tmp_path / "real").findings == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_living_build_is_not_disturbed(tmp_path: Path) -> None:
    """While another command builds here, one with other options is refused at the start."""
    held = Staging(tmp_path / "out", "0123456789abcdef")
    held.create()
    with held.locked(), pytest.raises(BusyError, match=f"process {os.getpid()}"):
        build_into(tmp_path / "out", STORIES)
    assert held.path.exists()


def test_a_build_without_work_leaves_nothing(tmp_path: Path) -> None:
    """A build that fails before any unit is finished takes its staging directory with it."""
    with pytest.raises(InputError):
        build_into(tmp_path / "out", MESSY)
    assert list(tmp_path.iterdir()) == []


class _Stop(Exception):
    pass


def _stop_after_units(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    original = _Build._on_event
    finished = []

    def on_event(self: Any, event: Event) -> None:
        original(self, event)
        finished.extend([event.unit] if event.finished else [])
        if len(finished) == units:
            raise _Stop

    monkeypatch.setattr(_Build, "_on_event", on_event)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_rejects_of_a_finished_unit_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A unit whose rejects were lost is done again, like one whose tokens were."""
    reference = tmp_path / "reference"
    build_into(reference, MESSY, on_error="skip")
    with monkeypatch.context() as patch:
        _stop_after_units(patch, 1)
        with pytest.raises(_Stop):
            build_into(tmp_path / "out", MESSY, on_error="skip")
    (rejects,) = tmp_path.glob(".out.building-*/units/unit-000000/rejects.jsonl")
    if damage == "cut":
        rejects.write_bytes(rejects.read_bytes()[:-50])
    else:
        rejects.unlink()
    report = build_into(tmp_path / "out", MESSY, on_error="skip")
    assert report.resumed_units == 0
    assert digests(tmp_path / "out") == digests(reference)


def test_killed_after_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The staging directory of a run that died after the rename goes at the next run."""
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "discard", lambda self: None)
        build_into(tmp_path / "out", STORIES)
    assert len(list(tmp_path.iterdir())) == 2
    assert build_into(tmp_path / "out", STORIES).reused
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_failing_to_tidy_up_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the dataset is published, a staging directory that stays is no error."""

    def rmtree(path: Any, **_: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    report = build_into(tmp_path / "out", STORIES)
    assert not report.reused
    assert verify(tmp_path / "out").findings == ()


def _three_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink_units(monkeypatch.setattr)
    return write_large(tmp_path / "large.jsonl", 1.1)


def test_a_retried_unit_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects of an attempt that died are not counted again when the unit is tried again."""
    large = write_large(tmp_path / "large.jsonl", 9)  # two units, of which none ends at once
    lines = large.read_bytes().split(b"\n")
    for number in range(0, len(lines) - 1, 50):
        lines[number] = b"{no"
    large.write_bytes(b"\n".join(lines))
    wrong = len(range(0, len(lines) - 1, 50))
    original = _Build._on_event
    killed: list[int] = []

    def on_event(self: Any, event: Event) -> None:
        original(self, event)
        if event.done is not None and event.done.rejects and not killed:
            killed.append(event.unit)
            for process in pools[0]._processes:
                process.kill()

    pools: list[Any] = []
    start = processes.Processes.start

    def noted(pool: Any) -> Any:
        pools.append(pool)
        return start(pool)

    monkeypatch.setattr(processes.Processes, "start", noted)
    monkeypatch.setattr(_Build, "_on_event", on_event)
    report = build_into(tmp_path / "out", large, on_error="skip", max_rejects=wrong, workers=2)
    assert killed
    assert any("it was done again" in note for note in report.notes)
    assert sum(report.manifest.records.rejected.values()) == wrong


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_of_the_caller_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """What the progress callback raises reaches the caller as it is."""
    large = _three_units(tmp_path, monkeypatch)

    def progress(state: Progress) -> None:
        if state.stage == "tokenize":
            raise _Stop

    options = BuildOptions(input=(str(large),), out=tmp_path / "out", workers=workers)
    with pytest.raises(_Stop):
        build(options, progress=progress)


def test_what_a_library_prints_does_no_harm(tmp_path: Path) -> None:
    """Lines on a worker's standard output and error do not get between its events."""
    large = write_large(tmp_path / "large.jsonl", 9)  # two units
    (tmp_path / "sitecustomize.py").write_text("print('hello from a library')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-m", "dataprep.cli.main", "build", "--input", str(large), "--out",
         str(tmp_path / "out"), "--workers", "2", "--quiet"],
        env=environment, timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert verify(tmp_path / "out").findings == ()


def test_resolved_tokens_are_part_of_the_recipe(tmp_path: Path) -> None:
    """The same command with another EOS in the file beside the tokenizer is another build."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(
        REPOSITORY / "pipeline/tokenize/assets/default_tokenizer.json", folder / "tokenizer.json"
    )
    ids = set()
    for number, eos in enumerate(("<|endoftext|>", "<|im_end|>")):
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        report = build_into(tmp_path / str(number), STORIES, tokenizer=str(folder))
        ids.add(report.recipe_id)
    assert len(ids) == 2
    with pytest.raises(UsageError, match="another tokenizer setting: eos"):
        build_into(tmp_path / "0", STORIES, tokenizer=str(folder))


def test_a_unit_that_could_not_be_synced_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that became a shard by a link is not trusted after its fsync failed."""
    large = _three_units(tmp_path, monkeypatch)
    monkeypatch.setattr(layout, "JOIN_BELOW_BYTES", 1)
    original = os.fsync
    failed: list[str] = []

    def fsync(descriptor: Any) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith("train/tokens-00000.bin") and not failed:
            failed.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="Input/output error"):
        build_into(tmp_path / "out", large)
    report = build_into(tmp_path / "out", large)
    assert report.resumed_units == report.units - 1
    assert verify(tmp_path / "out").findings == ()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"hf_split": "train"}, "--hf-split"),
        ({"hf_config": "plain"}, "--hf-config"),
        ({"document": "line"}, "--document"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, options: dict[str, Any], where: str) -> None:
    """An option that cannot apply to these inputs is refused, not ignored."""
    with pytest.raises(UsageError, match=f"{where}: means nothing for jsonl inputs"):
        build_into(tmp_path / "out", STORIES, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "json"}, "--format: must be one of jsonl, text, parquet, hf, got 'json'"),
        ({"document": "lines"}, "--document: must be one of"),
        ({"special_text": "x"}, "--special-text: must be one of"),
        ({"seed": "3"}, "--seed: must be int"),
        ({"seed": True}, "--seed: must be int"),
        ({"workers": 1.5}, "--workers: must be"),
        ({"overwrite": 1}, "--overwrite: must be bool"),
        ({"input": 5}, "--input: 5 is not a path"),
        ({"input": [5]}, "--input:"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    """Options from Python are checked like those from the command line."""
    with pytest.raises(UsageError, match=message):
        BuildOptions(**{"input": "in.jsonl", "out": "out", **options})


def test_paths_of_any_kind(tmp_path: Path) -> None:
    """Strings and paths, alone or in a list, are understood."""
    for given in ("a.jsonl", Path("a.jsonl"), ["a.jsonl"], (Path("a.jsonl"),)):
        assert BuildOptions(input=given, out=str(tmp_path)).input == ("a.jsonl",)  # type: ignore[arg-type]


def test_a_living_rebuild_is_not_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the build finished already does not take the staging directory from a rebuild."""
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "discard", lambda self: None)
        build_into(tmp_path / "out", STORIES)
    (path,) = tmp_path.glob(".out.building-*")
    held = Staging(tmp_path / "out", path.name.rpartition("-")[2])
    with held.locked():
        assert build_into(tmp_path / "out", STORIES).reused
    assert held.path.exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_everything_is_on_stable_storage_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, overwrite: bool
) -> None:
    """Every file and folder is synced under a temporary name, and the final name afterwards."""
    out = tmp_path / "out"
    if overwrite:
        build_into(out, STORIES)
    synced = Synced(monkeypatch)
    build_into(out, MESSY, on_error="skip", seed=1, split="train=0.5,val=0.5", overwrite=overwrite)
    published = len(synced.paths) - 1 - synced.paths[::-1].index(tmp_path)
    assert "out" in synced.names[published]
    before = synced.paths[:published]
    (root,) = {path.parent for path in before if path.name == "config.json"}
    assert out not in (root, *root.parents)
    wanted = [path.relative_to(out) for path in (out, *out.rglob("*"))]
    assert {root / name for name in wanted} <= set(before)
    for name in wanted:
        if (out / name).is_dir():  # with all names in it
            there = synced.names[before.index(root / name)]
            assert there == {path.name for path in (out / name).iterdir()}
