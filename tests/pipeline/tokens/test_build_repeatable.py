"""Equal inputs and options give equal bytes: any workers, any interruption, any surroundings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dataprep.formats.errors import BusyError, DataprepError, StorageError, UsageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline import run as builds
from dataprep.pipeline.execute import launch, processes
from dataprep.pipeline.execute.forking import CAN_FORK, Forked
from dataprep.pipeline.execute.worker import Event
from dataprep.pipeline.plan.plan import Plan, load_plan
from dataprep.pipeline.run import _Build
from dataprep.pipeline.staging import directory as staging
from dataprep.pipeline.tokens.plan import TokenPayload
from tests.scenes.corpora import (
    MESSY,
    SMALL_TOKENIZER,
    STORIES,
    build_into,
    digests,
    shrink_units,
    write_large,
)
from tests.support import REPOSITORY

UNITS = 4


class Made(NamedTuple):
    """An input of four units, and the bytes of an undisturbed build of it with one worker."""

    input: Path
    digests: dict[str, str]


def _made(folder: Path, megabytes: float) -> Made:
    source = write_large(folder / "large.jsonl", megabytes)
    assert build_into(folder / "out", source).units == UNITS
    return Made(source, digests(folder / "out"))


@pytest.fixture(scope="module")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with pytest.MonkeyPatch.context() as patch:
        shrink_units(patch.setattr)
        return _made(tmp_path_factory.mktemp("small"), 1.8)


@pytest.fixture
def small(_small: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    """With units of half a megabyte."""
    shrink_units(monkeypatch.setattr)
    return _small


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With units as they are."""
    return _made(tmp_path_factory.mktemp("large"), 27)


@pytest.mark.parametrize(
    ("size", "workers", "fork"), [("large", 2, True), ("small", 3, True), ("small", 2, False)]
)
def test_workers_leave_no_trace(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: str,
    workers: int, fork: bool,
) -> None:  # fmt: skip
    """The bytes are the same for any number of workers, forked ones and new interpreters."""
    if not fork:
        monkeypatch.setattr(processes, "CAN_FORK", False)
        monkeypatch.setattr(launch, "CAN_FORK", False)
    made: Made = request.getfixturevalue(size)
    report = build_into(tmp_path / "out", made.input, workers=workers)
    assert report.workers == workers
    assert digests(tmp_path / "out") == made.digests
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


class _Interrupt(Exception):
    pass


def _interrupt_after(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """Stop builds after so many units, which are done here: a worker would have gone on."""
    monkeypatch.setattr(builds, "Processes", lambda count, address: processes.Processes(0, address))
    original = _Build._on_event
    finished = []

    def on_event(self: Any, event: Event) -> None:
        original(self, event)
        finished.extend([event.unit] if event.finished else [])
        if len(finished) == units:
            raise _Interrupt

    monkeypatch.setattr(_Build, "_on_event", on_event)


def test_a_stopped_build_goes_on(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command keeps finished units, with other workers too, and ends in the same bytes."""
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 2)
        with pytest.raises(_Interrupt):
            build_into(tmp_path / "out", small.input)
    assert not (tmp_path / "out").exists()
    report = build_into(tmp_path / "out", small.input, workers=2)
    assert report.resumed_units == 2
    assert digests(tmp_path / "out") == small.digests
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_damaged_unit_is_done_again(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished unit is trusted only if its bytes still have their hashes."""
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 2)
        with pytest.raises(_Interrupt):
            build_into(tmp_path / "out", small.input)
    (victim,) = tmp_path.glob(".out.building-*/units/unit-000001/train-0.tokens")
    data = bytearray(victim.read_bytes())
    data[1000] ^= 1
    victim.write_bytes(data)
    report = build_into(tmp_path / "out", small.input)
    assert report.resumed_units == 1
    assert digests(tmp_path / "out") == small.digests


def test_kill_nine(large: Made, tmp_path: Path) -> None:
    """A build that is killed with its workers at any moment can be taken up again."""
    command = _command(tmp_path / "out", large.input, "--workers", "2")
    process = subprocess.Popen(
        command, env=_environment(), start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.building-*/units/unit-*")):
        assert time.monotonic() < deadline, "no unit was finished"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if (tmp_path / "out").exists():
        pytest.skip("the build was faster than the signal")
    report = build_into(tmp_path / "out", large.input)
    assert report.resumed_units >= 1
    assert digests(tmp_path / "out") == large.digests


@pytest.mark.skipif(not CAN_FORK, reason="workers are not forked here")
def test_the_worker_that_others_were_forked_from_is_killed(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on, and one that is killed as well is replaced by a new interpreter."""
    start = processes.Processes.start
    started: list[Any] = []

    def once_dying(pool: Any) -> Any:
        process = start(pool)
        started.append(process)
        if len(started) == 3:
            pool._origin.kill()
            process.kill()
        return process

    monkeypatch.setattr(processes.Processes, "start", once_dying)
    report = build_into(tmp_path / "out", small.input, workers=2)
    assert [type(one._worker) for one in started] == [Forked, Forked, Forked, launch.Launched]
    assert any("it was done again" in note for note in report.notes)
    assert digests(tmp_path / "out") == small.digests


def test_a_killed_worker_is_replaced(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One death costs nothing, and is told."""
    start = processes.Processes.start
    started = []

    def once_dying(pool: Any) -> Any:
        process = start(pool)
        started.append(process)
        if len(started) == 2:  # the first only encodes the sample
            process.kill()
        return process

    monkeypatch.setattr(processes.Processes, "start", once_dying)
    report = build_into(tmp_path / "out", small.input, workers=2)
    assert any(
        re.fullmatch(r"the worker was killed by SIGKILL in unit \d; it was done again", note)
        for note in report.notes
    )
    assert len(started) == 4
    assert digests(tmp_path / "out") == small.digests


def test_only_the_last_unit_may_be_spread(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there are units for all, each worker keeps to one core; the ids are the same."""
    send = processes._Process.send
    threads: dict[int, int] = {}

    def noting(process: Any, data: bytes) -> None:
        if found := re.fullmatch(rb"unit (\d+) (\d+)\n", data):
            threads[int(found[1])] = int(found[2])
        send(process, data)

    monkeypatch.setattr(processes._Process, "send", noting)
    build_into(tmp_path / "out", small.input, workers=2, engine="tokenizers")
    assert [threads[number] for number in sorted(threads)] == [1] * (len(threads) - 1) + [2]
    assert len(threads) > 2
    found = digests(tmp_path / "out")
    ids = [name for name in found if name.endswith(".bin")]
    assert [found[name] for name in ids] == [small.digests[name] for name in ids]  # other engine


def test_workers_that_keep_dying_stop_the_build(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second death in one unit ends the build, and names the unit and the signal."""
    start = processes.Processes.start

    def dying(pool: Any) -> Any:
        process = start(pool)
        process.kill()
        return process

    monkeypatch.setattr(processes.Processes, "start", dying)
    with pytest.raises(StorageError, match=r"SIGKILL in unit \d+, twice"):
        build_into(tmp_path / "out", small.input, workers=2)
    assert not (tmp_path / "out").exists()


def test_surroundings_leave_no_trace(tmp_path: Path) -> None:
    """Locale, time zone, hash seed and umask change nothing."""
    found = []
    for number, extra in enumerate(
        (
            {"LC_ALL": "C", "TZ": "UTC", "PYTHONHASHSEED": "0"},
            {"LC_ALL": "C.UTF-8", "TZ": "Asia/Kolkata", "PYTHONHASHSEED": "17"},
        )
    ):
        out = tmp_path / str(number)
        subprocess.run(
            _command(out, STORIES, MESSY, "--on-error", "skip"),
            env=_environment(**extra), check=True, capture_output=True,
        )  # fmt: skip
        found.append(digests(out))
    assert found[0] == found[1]


def test_another_dataset_is_not_replaced(tmp_path: Path) -> None:
    """Other options or changed inputs are refused by name, until --overwrite is given."""
    source = tmp_path / "in.jsonl"
    shutil.copy(STORIES, source)
    build_into(tmp_path / "out", source)
    before = digests(tmp_path / "out")
    with pytest.raises(UsageError, match=r"different seed.*--overwrite"):
        build_into(tmp_path / "out", source, seed=1)
    lines = source.read_bytes().split(b"\n")
    source.write_bytes(b"\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(UsageError, match=r"has changed.*--overwrite"):
        build_into(tmp_path / "out", source)
    assert digests(tmp_path / "out") == before
    build_into(tmp_path / "out", source, overwrite=True)
    assert digests(tmp_path / "out") != before
    assert verify(tmp_path / "out").findings == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out"]


def test_overwrite_keeps_open_readers(tmp_path: Path) -> None:
    """A reader that mapped the old files goes on reading them."""
    from dataprep import open_dataset

    build_into(tmp_path / "out", STORIES)
    with open_dataset(tmp_path / "out") as dataset:
        split = dataset.split("train")
        before = split.read(0, split.tokens).tolist()
        build_into(tmp_path / "out", MESSY, on_error="skip", overwrite=True)
        assert split.read(0, split.tokens).tolist() == before


def test_a_failed_overwrite_keeps_the_old_dataset(tmp_path: Path) -> None:
    """Nothing is replaced before the new one is whole."""
    build_into(tmp_path / "out", STORIES)
    before = digests(tmp_path / "out")
    with pytest.raises(DataprepError):
        build_into(tmp_path / "out", MESSY, overwrite=True)
    assert digests(tmp_path / "out") == before


def test_one_builder_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one build runs the same command is refused, with who runs it."""
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 1)
        with pytest.raises(_Interrupt):
            build_into(tmp_path / "out", STORIES)
    (path,) = tmp_path.glob(".out.building-*")
    held = staging.Staging(tmp_path / "out", path.name.rpartition("-")[2])
    with held.locked(), pytest.raises(BusyError, match=f"process {os.getpid()} on "):
        build_into(tmp_path / "out", STORIES)
    assert build_into(tmp_path / "out", STORIES).resumed_units == 1


@pytest.mark.parametrize("same", [True, False])
def test_racing_builders(tmp_path: Path, same: bool) -> None:
    """Of four builders of one directory exactly one wins, and the result is whole."""
    processes = [
        subprocess.Popen(
            _command(tmp_path / "out", STORIES, "--seed", str(0 if same else n)),
            env=_environment(), stderr=subprocess.PIPE, text=True,
        )
        for n in range(4)
    ]  # fmt: skip
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    codes = sorted(code for _, code in ends)
    assert codes.count(0) >= 1
    # 5: somebody else was first; 2: a finished dataset with other options stood there already;
    # 0 for a second one only when it is the very same build.
    assert set(codes) <= ({0, 5} if same else {0, 2, 5}), ends
    assert same or codes.count(0) == 1, ends
    assert verify(tmp_path / "out").findings == ()


def _command(out: Path, *rest: Path | str) -> list[str]:
    inputs = [["--input", str(part)] if isinstance(part, Path) else [part] for part in rest]
    words = [word for part in inputs for word in part]
    words += ["--tokenizer", str(SMALL_TOKENIZER)]  # as `build_into` has it
    return [sys.executable, "-m", "dataprep.cli.main", "build", "--out", str(out), *words]


def _environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}


def test_plan_is_enough_for_a_worker(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker started by hand with nothing but the staging directory does its unit."""
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 1)
        with pytest.raises(_Interrupt):
            build_into(tmp_path / "out", small.input)
    (path,) = tmp_path.glob(".out.building-*")
    last = _serve(path, 3)
    assert last["finished"]
    assert {"load", "read", "parse", "split", "encode", "write"} <= set(last["stages"])
    assert build_into(tmp_path / "out", small.input).resumed_units == 2


def _serve(staging: Path, unit: int) -> dict[str, Any]:
    """The last event of a worker that is started by hand for one unit."""
    code = "from dataprep.pipeline.execute.worker import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=f"plan {staging}\nunit {unit} 1\n".encode(),
        env=_environment(), capture_output=True, check=True, cwd=staging,
    )  # fmt: skip
    event: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return event


def test_a_worker_with_another_tokenizer_refuses(
    small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the libraries give other ids than they gave the plan, no unit is done."""
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 1)
        with pytest.raises(_Interrupt):
            build_into(tmp_path / "out", small.input)
    (path,) = tmp_path.glob(".out.building-*")
    plan = load_plan(path / "plan.json", msgspec.json.Decoder(Plan[TokenPayload]))
    first, *rest = plan.payload.probes
    changed = msgspec.structs.replace(first, ids=(*first.ids, 7))
    payload = msgspec.structs.replace(plan.payload, probes=(changed, *rest))
    plan = msgspec.structs.replace(plan, payload=payload)
    (path / "plan.json").write_bytes(msgspec.json.encode(plan))
    event = _serve(path, 3)
    assert event["error"][0] == "IncompatibleError"
    assert not (path / "units" / "unit-000003").exists()
