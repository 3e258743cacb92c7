"""Every operation of a build that changes the disk fails in turn, once and for good.

After each failure: the error is a StorageError (exit code 4), nothing is published, what stood in
the place of the output still verifies, and the same build run again ends in the same bytes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.build import build
from dataprep.pipeline.execute.processes import Processes
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.run import _Build
from dataprep.pipeline.tokens.kind import TokenKind
from dataprep.pipeline.tokens.prepare import TokenPrepared, prepare, survey
from tests.faults.operations import Call, watch
from tests.faults.report import Figures
from tests.scenes.corpora import MESSY, STORIES, build_into, digests
from tests.support import REPOSITORY

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
CODES = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EFBIG)


def _sort(path: str) -> str:
    """The name of the file, with nothing in it that tells one shard or split from another."""
    return re.sub(r"train|val|test|[0-9a-f]{6,}|\d+", "*", os.path.basename(path))


class Faults:
    """Counts the calls that change the disk and fails chosen ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scope: Path) -> None:
        self.calls = 0
        self.kinds: list[str] = []
        """What was called since the last `arm`, and on which sort of file."""
        self.failed: Call | None = None
        self._fail_at: int | None = None
        self._forever = False
        self._code = errno.ENOSPC
        self._lock = threading.Lock()
        watch(scope, self._around, monkeypatch.setattr)

    def arm(self, fail_at: int | None, code: int = errno.ENOSPC, *, forever: bool = False) -> None:
        """Fail the call of this number, counted from now, and all later ones if `forever`."""
        self.calls, self._fail_at, self._code, self._forever = 0, fail_at, code, forever
        self.kinds = []
        self.failed = None

    def _around(self, call: Call, make: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls += 1
            self.kinds.append(f"{call.name} {_sort(call.path)}")
            number = self.calls
        due = self._fail_at is not None and (
            number == self._fail_at or (self._forever and number > self._fail_at)
        )
        if not due:
            return make()
        if call.name == "close":
            make()  # a failed close closes all the same
        self.failed = self.failed or call
        raise OSError(self._code, os.strerror(self._code), call.path)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, quick_place: Path) -> Iterator[Faults]:
    """Faults on everything below this test's folder."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell which file a descriptor is")
    yield Faults(monkeypatch, quick_place / "place")


def _prepared(place: Path, *, overwrite: bool) -> TokenPrepared:
    place.mkdir()
    if overwrite:
        build_into(place / "out", STORIES, seed=1, tokenizer=str(TOKENIZER))
    options = BuildOptions(
        input=(str(MESSY), str(STORIES)), out=place / "out", workers=1, on_error="skip",
        overwrite=overwrite, tokenizer=str(TOKENIZER),
    )  # fmt: skip
    return prepare(options, survey(options), sample_bytes=1 << 16)


def _run(prepared: TokenPrepared) -> None:
    kind = TokenKind()
    _Build(kind, prepared, Processes(0, kind.address)).run()


class Every:
    """The place of a build, and what to expect of it whatever fails."""

    def __init__(self, faults: Faults, root: Path, *, overwrite: bool) -> None:
        self._faults = faults
        self._place = root / "place"
        self._kept = root / "kept"
        self._prepared = _prepared(self._place, overwrite=overwrite)
        self._before = digests(self._place / "out") if overwrite else None
        shutil.copytree(self._place, self._kept)
        faults.arm(None)
        _run(self._prepared)
        self.total, self.kinds = faults.calls, tuple(faults.kinds)
        self._reference = digests(self._place / "out")
        assert verify(self._place / "out").findings == ()

    def fail(self, number: int, code: int, *, forever: bool) -> None:
        """Have one operation fail, and check what comes of it."""
        shutil.rmtree(self._place)
        shutil.copytree(self._kept, self._place)
        self._faults.arm(number, code, forever=forever)
        failed = self._attempt()
        assert self._faults.failed is not None
        assert failed or self._may_go_on(self._faults.failed), "an error was swallowed"
        published = self._published()
        self._faults.arm(None)
        if failed and not published:
            _run(self._prepared)
        elif len(os.listdir(self._place)) > 1:  # could not tidy up: the next run does
            options = self._prepared.options
            assert isinstance(options, BuildOptions)
            build(options)
        assert digests(self._place / "out") == self._reference
        assert os.listdir(self._place) == ["out"]

    def _may_go_on(self, call: Call) -> bool:
        """Whether a build may go on when this fails: tidying up, and signing the lock."""
        if call.name in ("unlink", "remove", "rmdir"):
            return True
        if call.name in ("rename", "replace"):
            return ".gone-" in call.path
        if call.name == "mkdir":  # it stands there already
            return Path(call.path) == self._place
        return call.path.removesuffix(" (deleted)").endswith("/lock")

    def _attempt(self) -> bool:
        """Run the build; whether it said that it failed."""
        try:
            _run(self._prepared)
        except (StorageError, BusyError) as error:
            assert "\n" not in str(error)
            return True
        assert self._published(), "failed without a word"
        return False

    def _published(self) -> bool:
        """Whether the new dataset stands there; if not, what stood there before does."""
        out = self._place / "out"
        if not out.exists():
            assert self._before is None
            return False
        found = digests(out)
        # Only after the exchange: the new one is whole, what failed is the tidying up.
        assert found in (self._before, self._reference)
        return found == self._reference


def one_of_each_kind(every: Every) -> list[int]:
    """The number of one operation of each kind: the first of this one, the second of that."""
    numbers: dict[str, list[int]] = {}
    for number, kind in enumerate(every.kinds, 1):
        numbers.setdefault(kind, []).append(number)
    return sorted(same[turn % len(same)] for turn, same in enumerate(numbers.values()))


@pytest.mark.parametrize("overwrite", [False, True])
def test_failures_of_every_kind(faults: Faults, quick_place: Path, *, overwrite: bool) -> None:
    """No failure publishes half a dataset, loses the old one, or ends in a lie.

    One operation of each kind fails, once or for good in turn; those around the publishing do both.
    """
    every = Every(faults, quick_place, overwrite=overwrite)
    published = next(at for at, kind in enumerate(every.kinds, 1) if kind.endswith(" out"))
    points = {(at, bool(turn % 2)) for turn, at in enumerate(one_of_each_kind(every))}
    points |= {(at, how) for at in range(published - 2, published + 3) for how in (False, True)}
    assert len(points) > 50
    for number, forever in sorted(points):
        every.fail(number, CODES[number % len(CODES)], forever=forever)


@pytest.mark.faults
@pytest.mark.parametrize("overwrite", [False, True])
def test_every_failure(
    figures: Figures, faults: Faults, quick_place: Path, *, overwrite: bool
) -> None:
    """Each of the errors at each of the operations, and each of these once and for good."""
    every = Every(faults, quick_place, overwrite=overwrite)
    points = 0
    for turn, code in enumerate(CODES):
        for number in range(1, every.total + 1):
            every.fail(number, code, forever=bool((number + turn) % 2))
            points += 1
    codes = [errno.errorcode[code] for code in CODES]
    figures.add(points=points, recovered=points, place=quick_place, codes=codes)


def test_a_failed_fsync_is_final(
    faults: Faults, quick_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose fsync failed is not trusted again: its unit is done anew."""
    place = quick_place / "place"
    prepared = _prepared(place, overwrite=False)
    original = os.fsync
    failed: list[str] = []

    def fsync(descriptor: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "tokens" in path and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="Input/output error"):
        _run(prepared)
    assert failed
    assert not Path(failed[0]).exists()
    assert not (place / "out").exists()
    _run(prepared)
    assert verify(place / "out").findings == ()
