"""Kinds and executors: the conformance suites, and a kind that no module of the core knows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.verify.verify import verify
from dataprep.pipeline.execute.executor import Executor
from dataprep.pipeline.execute.processes import Processes
from dataprep.pipeline.execute.serial import Serial
from dataprep.pipeline.execute.worker import UNITS_NAME
from dataprep.pipeline.kinds import Context
from dataprep.pipeline.plan.plan import PLAN_NAME
from dataprep.pipeline.run import run_build
from dataprep.testing import check_executor, check_kind
from tests.scenes.line_counts import LineKind, LineOptions
from tests.support import REPOSITORY


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Four files of text; workers find the kind."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    paths = [tmp_path / f"{number}.txt" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_text("a line\n" * (number + 1))
    return tuple(map(str, paths))


def test_a_kind_of_ones_own(texts: tuple[str, ...], tmp_path: Path) -> None:
    """Builds with two workers, resumes, verifies, is recognised, and leaves nothing."""
    place = tmp_path / "place"
    place.mkdir()
    check_kind(LineKind, LineOptions(input=texts, out=place / "out"))
    (array,) = (place / "out-two" / "lines").iterdir()
    assert np.load(array).tolist() == [1, 2, 3, 4]


def test_a_kind_of_ones_own_that_is_killed(texts: tuple[str, ...], tmp_path: Path) -> None:
    """After SIGKILL the same build keeps its finished units."""
    out = tmp_path / "out"
    code = (
        "from tests.scenes.line_counts import LineKind, LineOptions\n"
        "from dataprep.pipeline.run import run_build\nfrom pathlib import Path\n"
        f"run_build(LineKind(), LineOptions(input={texts!r}, out=Path({str(out)!r}), workers=2))"
    )
    environment = {**os.environ, "SLOW_LINES": "0.3"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=REPOSITORY)
    while not list(tmp_path.glob(f".out.building-*/{UNITS_NAME}/unit-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = run_build(LineKind(), LineOptions(input=texts, out=out, workers=2))
    assert 1 <= report.resumed_units < 4
    assert verify(out).ok


def _staged(texts: tuple[str, ...], tmp_path: Path) -> Path:
    """A staging directory with a plan of line counts, and no unit done."""
    kind = LineKind()
    options = LineOptions(input=texts, out=tmp_path / "out")
    plan = kind.prepare(options, kind.survey(options), Context()).plan
    staging = tmp_path / "staging"
    (staging / UNITS_NAME).mkdir(parents=True)
    (staging / PLAN_NAME).write_bytes(msgspec.json.encode(plan))
    return staging


def _serial() -> Executor:
    return Serial(lambda staging: LineKind().open_task(staging, None))


def _processes() -> Executor:
    return Processes(2, LineKind.address).__enter__()


@pytest.mark.parametrize("make", [_serial, _processes])
@pytest.mark.parametrize("failing", [None, 2])
def test_executors(
    make: object, failing: int | None, texts: tuple[str, ...], tmp_path: Path
) -> None:
    """Both do every unit once, and hand on what goes wrong."""
    staging = _staged(texts, tmp_path)
    if failing is not None:
        Path(texts[failing]).unlink()
    check_executor(make, staging, 4, failing)  # type: ignore[arg-type]


def test_a_suite_that_fails(texts: tuple[str, ...], tmp_path: Path) -> None:
    """A kind that forgets what it has built is found."""

    class Forgetful(LineKind):
        def difference(self, *_: object) -> str | None:
            return "different"

    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(UsageError, match="another finished dataset"):
        check_kind(Forgetful, LineOptions(input=texts, out=place / "out"))
    with pytest.raises(InputError):
        LineKind().survey(LineOptions(input=("nowhere",), out=place / "out"))
