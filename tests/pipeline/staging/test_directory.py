"""The directory of an unfinished build: only our own is used, and it goes in one step."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.storage import remove_tree
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.execute.task import temporary_name
from dataprep.pipeline.staging import directory as staging_module
from dataprep.pipeline.staging import lock
from dataprep.pipeline.staging.directory import Staging, leftovers
from tests.scenes.corpora import STORIES, build_into
from tests.support import REPOSITORY

KEY, LATER = "0123456789abcdef", "f123456789abcdef"
TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
STRANGER = 54321  # a user id


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """An unfinished build of `out`; nothing is there yet."""
    return Staging(tmp_path / "out", KEY)


def refused(error: pytest.ExceptionInfo[StorageError], path: Path) -> None:
    """The error has code 4, names the path and says what to do."""
    assert (error.value.exit_code, error.value.where) == (4, str(path))
    assert error.value.remedy == "Have it removed, or choose another --out."


def key_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of the build that `foretold` does: anybody can find it out."""
    seen: list[str] = []
    original = Staging.create

    def create(self: Staging) -> None:
        seen.append(self.key)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "create", create)
        build_into(tmp_path / "out", STORIES, tokenizer=str(TOKENIZER))
    remove_tree(tmp_path / "out")
    return seen[0]


@pytest.mark.parametrize("what", ["link", "dangling link", "file", "pipe"])
@pytest.mark.parametrize("where", [".", "units", "lock", "plan.json", "tokenizer.json"])
def test_what_was_planted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: str
) -> None:
    """Whatever stands under the foretold names: it is named, and nothing is built.

    Nothing is removed: what stands there is for its owner to look at.
    """
    staging = Staging(tmp_path / "out", key_of(tmp_path, monkeypatch))
    elsewhere = tmp_path / "elsewhere"
    is_file = where not in (".", "units")
    if is_file:
        elsewhere.write_text("precious")
    else:
        (elsewhere / "units").mkdir(parents=True)
    path = staging.path / where
    path.parent.mkdir(exist_ok=True)
    if where != ".":
        staging.path.mkdir(exist_ok=True)
    if what == "file":
        path.mkdir() if is_file else path.write_text("")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(elsewhere if what == "link" else tmp_path / "nowhere")
    with pytest.raises(StorageError) as error:
        build_into(tmp_path / "out", STORIES, tokenizer=str(TOKENIZER))
    refused(error, path)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "nowhere").exists()
    assert os.path.lexists(path)
    if is_file:
        assert elsewhere.read_text() == "precious"
    else:
        assert [entry.name for entry in elsewhere.rglob("*")] == ["units"]


@pytest.mark.parametrize("where", [".", "units"])
def test_a_directory_of_somebody_else_is_refused(staging: Staging, where: str) -> None:
    """Units that another user may have written are no work of ours."""
    staging.create()
    path = staging.path / where
    try:
        os.chown(path, STRANGER, -1)
    except PermissionError:
        pytest.skip("needs the right to give files away")
    with pytest.raises(StorageError, match=f"another user .uid {STRANGER}") as error:
        staging.create()
    refused(error, path)


def test_the_owner_of_the_place_is_trusted(staging: Staging) -> None:
    """Who owns the directory above could exchange ours anyway, as on a disk with one owner."""
    staging.create()
    try:
        for path in (staging.out.parent, staging.path):
            os.chown(path, STRANGER, -1)
    except PermissionError:
        pytest.skip("needs the right to give files away")
    staging.create()


def test_nobody_else_may_look_in(staging: Staging) -> None:
    """With any umask; the dataset itself gets the usual rights."""
    before = os.umask(0)
    try:
        staging.create()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (staging.path, staging.units)} == {0o700}


@pytest.mark.parametrize("key", [KEY, LATER], ids=["this", "another"])
def test_planted_links_are_not_written_through(tmp_path: Path, key: str) -> None:
    """Looking whether other builds are alive changes nothing behind a link."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").write_text("precious")
    (tmp_path / f".out.building-{key}").symlink_to(precious)
    (tmp_path / f".out.building-{key[::-1]}").mkdir()
    (tmp_path / f".out.building-{key[::-1]}" / "lock").symlink_to(precious / "lock")
    for other in leftovers(tmp_path / "out", "0" * 16):
        other.refuse_if_held()
    Staging(tmp_path / "out", key).discard_if_idle()
    assert (precious / "lock").read_text() == "precious"
    assert [path.name for path in precious.iterdir()] == ["lock"]


def test_leftovers_are_directories_with_a_key(tmp_path: Path) -> None:
    """Nothing else of a similar name is called an unfinished build."""
    for name in (f"building-{KEY}", f"building-{KEY}.gone-01234567", "building-x", "building-"):
        (tmp_path / f".out.{name}").mkdir()
    (tmp_path / f".out.building-{LATER}").write_text("")
    (tmp_path / ".out.building-1111111111111111").symlink_to(tmp_path)
    (tmp_path / f".out.building-z.building-{LATER}").mkdir()
    assert [other.key for other in leftovers(tmp_path / "out", LATER)] == [KEY]


def test_what_killed_processes_meant_to_remove(staging: Staging) -> None:
    """It goes with the next build, and nothing goes that only has a similar name."""
    gone = staging.path.with_name(f"{staging.path.name}.gone-01234567")
    (gone / "units").mkdir(parents=True)
    similar = staging.path.with_name(f"{gone.name}.building-{KEY}")  # of an output of that name
    similar.mkdir()
    staging.create()
    staging.sweep()
    assert not gone.exists()
    assert similar.exists()
    gone.mkdir()
    staging.discard_if_idle()
    assert sorted(staging.out.parent.iterdir()) == [similar]


def test_it_goes_in_one_step(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who still works in it finds nothing, rather than half of it."""
    staging.create()
    seen: list[bool] = []

    def remove(path: Path) -> None:
        seen.append(staging.path.exists())
        remove_tree(path)

    monkeypatch.setattr("dataprep.pipeline.staging.directory.remove_tree", remove)
    staging.discard()
    assert seen == [False]
    assert list(staging.out.parent.iterdir()) == []


@pytest.mark.parametrize("locks", [True, False])
def test_giving_up_alone_or_not(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """What is of no use goes after a failure, unless others may be at work in it."""
    if not locks:
        monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: None)
    staging.create()
    with staging.locked():
        staging.give_up(ValueError())
    assert staging.path.exists() == (not locks)


def test_the_lock_of_a_removed_directory_is_worth_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a lock whose owner removes it gets the lock of what stands there then."""
    staging.create()
    acquire = lock._lock
    calls: list[int] = []

    def slow(descriptor: int, *rest: Any) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            staging.discard()  # by its owner, who then lets go
        acquire(descriptor, *rest)

    monkeypatch.setattr(lock, "_lock", slow)
    with staging.locked():
        assert len(calls) == 2
        assert json.loads((staging.path / "lock").read_text())["pid"] == os.getpid()
        with pytest.raises(BusyError):
            staging.refuse_if_held()


def test_a_holder_that_has_yet_to_sign_is_named(staging: Staging) -> None:
    """The lock file may still name the one before; a process that is gone is not the holder."""
    staging.create()
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    signed = {"host": socket.gethostname(), "pid": int(gone.stdout)}
    with staging.locked():
        (staging.path / "lock").write_text(json.dumps(signed))
        sign = threading.Timer(
            0.05, (staging.path / "lock").write_text, [json.dumps({**signed, "pid": os.getpid()})]
        )
        sign.start()
        with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
            staging.refuse_if_held()
        sign.join()
        (staging.path / "lock").write_text("?")
        with pytest.raises(BusyError, match="another process is building this"):
            staging.refuse_if_held()


def test_of_builds_that_start_together_one_stays(tmp_path: Path) -> None:
    """The one with the lower key waits for the other to give way, which does so at once."""
    low, high = Staging(tmp_path / "out", KEY), Staging(tmp_path / "out", LATER)
    low.create()
    high.create()
    with low.locked():
        with high.locked():
            with pytest.raises(BusyError, match="is building this"):
                high.refuse_other_builds()
            started = time.monotonic()
            with pytest.raises(BusyError, match="is building this"):
                low.refuse_other_builds()  # to one that has been at it for longer
            assert time.monotonic() - started > 0.5
        low.refuse_other_builds()


def test_another_user_resumes_nothing_of_ours(tmp_path: Path) -> None:
    """A place shared by two users, as /tmp is: the second is refused, not mixed with the first."""
    staging = Staging(tmp_path / "out", KEY)
    staging.create()
    if os.geteuid() != 0:
        pytest.skip("needs root to be two users")
    tmp_path.chmod(0o1777)
    for path in (staging.path, staging.units):
        os.chown(path, STRANGER, -1)
    report = build_into(tmp_path / "out", STORIES, tokenizer=str(TOKENIZER))  # another key
    assert verify(report.path).findings == ()
    assert staging.path.exists()


def test_a_removal_that_somebody_disturbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was being made while the directory was removed does not keep it."""
    here = Staging(tmp_path / "out", "0" * 16)
    here.create()
    real, calls = remove_tree, 0

    def disturbed(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StorageError("Directory not empty", where=str(path))
        real(path)

    monkeypatch.setattr(staging_module, "remove_tree", disturbed)
    here.discard()
    assert (calls, list(tmp_path.iterdir())) == (2, [])


def test_only_scratch_of_the_dead_is_swept(staging: Staging) -> None:
    """What this process, a living one or another host is writing stays, wherever it lies."""
    gone = subprocess.run(
        [sys.executable, "-c", "from dataprep.pipeline.execute.task import temporary_name as name\n"
         "print(name(), name())"],
        capture_output=True, check=True, text=True,
    ).stdout.split()  # fmt: skip
    host, pid = os.uname().nodename, os.getpid()
    kept = [temporary_name(), f".tmp-{host}-{os.getppid()}-00", f".tmp-other-{host}-{pid}-00"]
    staging.create()
    for place in (staging.path, staging.units):
        for name in [*kept, *gone]:
            (place / name).mkdir()
            (place / name / "half").write_text("half")
    staging.sweep()
    assert sorted(path.name for path in staging.path.iterdir()) == sorted([*kept, "units"])
    assert sorted(path.name for path in staging.units.iterdir()) == sorted(kept)


def test_what_a_killed_run_has_written_in_part_is_written_again(staging: Staging) -> None:
    """A plan or a tokenizer that broke off, or is another, does not stay because it is there."""
    staging.create()
    for old in (b"", b"who", b"older", b"whole"):
        (staging.path / "plan.json").write_bytes(old)
        staging.put((staging.path / "plan.json"), b"whole")
        assert (staging.path / "plan.json").read_bytes() == b"whole"
    assert sorted(path.name for path in staging.path.iterdir()) == ["plan.json", "units"]


def test_a_build_whose_place_is_gone_ends(staging: Staging) -> None:
    """Somebody else has published or removed it: what would come of going on is half a build."""
    staging.create()
    staging.refuse_if_gone()
    staging.discard()
    with pytest.raises(BusyError, match="somebody has removed this unfinished build") as caught:
        staging.refuse_if_gone()
    assert caught.value.where == str(staging.path)
