"""Limits of a process or of a small disk are errors with a name; without them the build goes on.

Exit code 4, one line with the path, nothing published, and the same bytes in the end. What needs
neither root nor much time runs always; sweeps over many limits have the marker `faults`.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.formats.verify.verify import verify
from tests.faults.mounts import needs_commands
from tests.faults.report import Figures
from tests.faults.scenes import TOKENIZER
from tests.faults.stopped_build import Outcome, Run, StoppedBuilds
from tests.scenes.corpora import MESSY, STORIES, build_into, digests, write_large
from tests.scenes.runner import COMMAND, environment

_BUILD = (
    "build", "--input", str(STORIES), "--input", str(MESSY), "--on-error", "skip", "--tokenizer",
    str(TOKENIZER), "--split", "train=0.8,val=0.2", "--workers", "1",
)  # fmt: skip
_FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def builds() -> Iterator[StoppedBuilds]:
    """The process that forks builds."""
    with StoppedBuilds() as stopped:
        yield stopped


@pytest.fixture
def place(quick_place: Path) -> Path:
    """A folder to build in."""
    folder = quick_place / "place"
    folder.mkdir()
    return folder


@pytest.fixture
def reference(builds: StoppedBuilds, quick_place: Path) -> dict[str, str]:
    """The files of an undisturbed build, by name."""
    folder = quick_place / "reference"
    folder.mkdir()
    assert builds.run(a_run(folder)).code == 0
    assert verify(folder / "out").findings == ()
    return digests(folder / "out")


def a_run(place: Path, **what: object) -> Run:
    """A build into `place`; `what` are fields of `Run`."""
    fields = {"arguments": (*_BUILD, "--out", str(place / "out")), "scope": str(place), **what}
    return Run(**fields)  # type: ignore[arg-type]


def assert_failed(outcome: Outcome, code: str) -> None:
    """Exit code 4 and one line with this error code and a path."""
    assert outcome.code == 4, outcome
    line = rf"dataprep: error\[{code}\] /[^:\n]+: [^\n]+\n"
    assert re.fullmatch(line, outcome.talk), outcome.talk


def assert_resumes(builds: StoppedBuilds, place: Path, reference: dict[str, str]) -> None:
    """Without the fault the same command ends in the same bytes, and leaves nothing else."""
    outcome = builds.run(a_run(place))
    assert outcome.code == 0, outcome
    assert digests(place / "out") == reference
    assert [path.name for path in place.iterdir()] == ["out"]


def test_file_size_limit(builds: StoppedBuilds, place: Path, reference: dict[str, str]) -> None:
    """`ulimit -f`: a file may not become as large as it has to."""
    outcome = builds.run(a_run(place, limits={"RLIMIT_FSIZE": 20_000}))
    assert_failed(outcome, "E_TOOBIG")
    assert not (place / "out").exists()
    assert_resumes(builds, place, reference)


def test_open_files_limit(builds: StoppedBuilds, place: Path, reference: dict[str, str]) -> None:
    """`ulimit -n`: no more files can be opened."""
    outcome = builds.run(a_run(place, more={"RLIMIT_NOFILE": 3}))
    assert_failed(outcome, "E_OPENFILES")
    assert not (place / "out").exists()
    assert_resumes(builds, place, reference)


@pytest.mark.skipif(not _FULL.exists(), reason="needs /dev/full")
def test_standard_output_is_full(
    builds: StoppedBuilds, place: Path, reference: dict[str, str]
) -> None:
    """The dataset stands, but who asked for the summary did not get it: exit code 4."""
    outcome = builds.run(a_run(place, stdout=str(_FULL)))
    assert outcome.code == 4
    assert re.fullmatch(r"dataprep: error\[E_NOSPACE\] standard output: [^\n]+\n", outcome.talk)
    assert digests(place / "out") == reference
    assert_resumes(builds, place, reference)


_IN_A_NAMESPACE = """
mount -t tmpfs -o size=100k t "$PLACE" || exit 99
build() { "$@" 2>"$TOLD/$NAME"; echo $? >>"$TOLD/codes"; ls -A "$PLACE" >"$TOLD/$NAME-left"; }
NAME=bytes build "$@"
mount -o remount,size=8m,nr_inodes=16 "$PLACE"
NAME=files build "$@"
mount -o remount,nr_inodes=1000 "$PLACE"
NAME=none build "$@"
cp -r "$PLACE/out" "$TOLD/out"
"""


def test_a_tiny_file_system(tmp_path: Path) -> None:
    """Too few bytes are found out before the work, too few files when they run out. No root."""
    needs_commands("unshare")
    reference, told, place = tmp_path / "reference", tmp_path / "told", tmp_path / "place"
    told.mkdir()
    place.mkdir()
    words = [*COMMAND, *_BUILD, "--out", str(place / "out"), "--quiet"]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", _IN_A_NAMESPACE, "sh", *words], check=False,
        capture_output=True, text=True, env=environment(PLACE=str(place), TOLD=str(told)),
    )  # fmt: skip
    if not (told / "codes").exists():
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert (told / "codes").read_text().split() == ["4", "4", "0"], done.stderr
    assert re.fullmatch(
        r"dataprep: error\[E_NOSPACE\] \S+: about [\d,]+ bytes are needed and [\d,]+ are free.*\n",
        (told / "bytes").read_text(),
    )
    assert (told / "bytes-left").read_text() == ""
    assert re.fullmatch(
        r"dataprep: error\[E_NOSPACE\] \S+: .*no inodes.* about [\d,]+ are needed to finish.*\n",
        (told / "files").read_text(),
    )
    assert (told / "none").read_text() == ""
    assert (told / "none-left").read_text() == "out\n"
    build_into(
        reference, STORIES, MESSY, on_error="skip", tokenizer=str(TOKENIZER),
        split="train=0.8,val=0.2",
    )  # fmt: skip
    assert digests(told / "out") == digests(reference)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "code", "limits"),
    [
        ("RLIMIT_FSIZE", "E_TOOBIG", [0, 1, 100, 1000, 3000, 10_000, 14_000, 20_000, 40_000]),
        ("RLIMIT_NOFILE", "E_OPENFILES", [0, 1, 2, 3, 4, 5, 6, 8]),
    ],
)
def test_every_limit(
    figures: Figures,
    builds: StoppedBuilds,
    place: Path,
    reference: dict[str, str],
    kind: str,
    code: str,
    limits: list[int],
) -> None:
    """From next to nothing to enough; descriptors count on top of those that are open anyway."""
    found: Counter[str] = Counter()
    for limit in limits:
        field = "more" if kind == "RLIMIT_NOFILE" else "limits"
        outcome = builds.run(a_run(place, **{field: {kind: limit}}))
        if outcome.code == 0:
            assert digests(place / "out") == reference, limit
        else:
            assert_failed(outcome, code)
            assert not (place / "out").exists()
        found[f"exit code {outcome.code}"] += 1
        assert_resumes(builds, place, reference)
        shutil.rmtree(place / "out")
    assert found["exit code 4"] > 2 and found["exit code 0"] > 0
    figures.add(points=found.total(), recovered=found.total(), place=place, found=dict(found))


@pytest.mark.faults
def test_too_few_descriptors_for_the_workers(figures: Figures, quick_place: Path) -> None:
    """The real command, whose worker processes need pipes."""
    large = write_large(quick_place / "large.jsonl", 9)  # two units
    reference = quick_place / "reference"
    build_into(reference, large, tokenizer=str(TOKENIZER))
    out = quick_place / "place" / "out"
    words = [*COMMAND, "build", "--input", large, "--tokenizer", TOKENIZER, "--out", out]
    found: Counter[str] = Counter()
    for limit in (6, 9, 12, 15, 64):
        done = subprocess.run(
            [*map(str, words), "--workers", "2", "--quiet"], capture_output=True, text=True,
            check=False, env=environment(),
            preexec_fn=lambda limit=limit: resource.setrlimit(  # type: ignore[misc]
                resource.RLIMIT_NOFILE, (limit, limit)
            ),
        )  # fmt: skip
        assert done.returncode == 0 or (
            done.returncode == 4
            and re.fullmatch(r"dataprep: error\[E_OPENFILES\] [^\n]+\n", done.stderr)
            and not out.exists()
        ), (limit, done)
        found[f"exit code {done.returncode}"] += 1
    assert len(found) == 2
    assert digests(out) == digests(reference)
    figures.add(points=found.total(), recovered=found.total(), place=quick_place, found=dict(found))
