"""Every operation of a build that changes the disk fails in turn, once and for good.

After each failure: the error is a StorageError (exit code 4), nothing is published, what stood in
the place of the output still verifies, and the same build run again ends in the same bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import BusyError, StorageError
from dataprep.formats.verify import verify
from dataprep.pipeline.build import _Build
from dataprep.pipeline.executor import Workers
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.prepare import Prepared, prepare, survey
from tests.pipeline.corpora import MESSY, STORIES, build_into, digests
from tests.support import REPOSITORY

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
OPERATIONS = ("open", "write", "fsync", "rename", "replace", "link", "mkdir")


class Faults:
    """Counts the calls that change the disk and fails chosen ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scope: Path) -> None:
        self.calls = 0
        self.fail_at: int | None = None
        self.forever = False
        self.code = errno.ENOSPC
        self._scope = str(scope)
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def arm(self, fail_at: int | None, code: int = errno.ENOSPC, *, forever: bool = False) -> None:
        """Fail the call of this number, counted from now, and all later ones if `forever`."""
        self.calls, self.fail_at, self.code, self.forever = 0, fail_at, code, forever

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            if self._counts(name, first, rest):
                self.calls += 1
                due = self.calls == self.fail_at
                late = self.forever and self.fail_at is not None and self.calls > self.fail_at
                if due or late:
                    raise OSError(self.code, os.strerror(self.code), str(first))
            return function(first, *rest, **named)

        return call

    def _counts(self, name: str, first: Any, rest: tuple[Any, ...]) -> bool:
        """Whether a call is the build's own, and changes something."""
        if isinstance(first, int):
            return self._scope in _path_of(first)
        if name == "open" and not (rest and rest[0] & os.O_CREAT):
            return False
        return self._scope in str(first)


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Faults]:
    """Faults on everything below this test's folder."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell which file a descriptor is")
    yield Faults(monkeypatch, tmp_path / "place")


def _prepared(place: Path, *, overwrite: bool) -> Prepared:
    place.mkdir()
    if overwrite:
        build_into(place / "out", STORIES, seed=1, tokenizer=str(TOKENIZER))
    options = BuildOptions(
        input=(str(MESSY), str(STORIES)), out=place / "out", workers=1, on_error="skip",
        overwrite=overwrite, tokenizer=str(TOKENIZER),
    )  # fmt: skip
    return prepare(options, survey(options), sample_bytes=1 << 16)


def _run(prepared: Prepared) -> None:
    _Build(prepared, Workers(0), None, 0.0).run()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("code", "forever"),
    [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EIO, False), (errno.EROFS, True)],
)
def test_every_failure(
    faults: Faults, tmp_path: Path, code: int, *, forever: bool, overwrite: bool
) -> None:
    """No failure of any operation publishes half a dataset, loses the old one, or ends in a lie."""
    place = tmp_path / "place"
    prepared = _prepared(place, overwrite=overwrite)
    before = digests(place / "out") if overwrite else None
    kept = tmp_path / "kept"
    shutil.copytree(place, kept)
    faults.arm(None)
    _run(prepared)
    total, reference = faults.calls, digests(place / "out")
    assert total > 30
    for number in range(1, total + 1):
        shutil.rmtree(place)
        shutil.copytree(kept, place)
        faults.arm(number, code, forever=forever)
        try:
            _run(prepared)
        except (StorageError, BusyError) as error:
            assert "\n" not in str(error)
            faults.arm(None)
            if (place / "out").exists():
                found = digests(place / "out")
                # Only after the exchange: the new one is whole, what failed is the tidying up.
                assert found in (before, reference), number
            _run_again(prepared, before, reference, place)
        faults.arm(None)
        assert digests(place / "out") == reference, number
    assert verify(place / "out").findings == ()


def _run_again(prepared: Prepared, before: Any, reference: dict[str, str], place: Path) -> None:
    """The same build, unless the failure came after it was published."""
    out = place / "out"
    if out.exists() and digests(out) == reference and reference != before:
        return
    _run(prepared)


def test_a_failed_fsync_is_final(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose fsync failed is not trusted again: its unit is done anew."""
    place = tmp_path / "place"
    prepared = _prepared(place, overwrite=False)
    original = os.fsync
    failed: list[str] = []

    def fsync(descriptor: Any) -> None:
        if "tokens" in _path_of(descriptor) and not failed:
            failed.append(_path_of(descriptor))
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
