"""Which small changes of the code the tests notice: `make test-mutants`.

Each mutant is put into a copy of the tree and the tests of its module are run there, up to the
first that fails. Mutants are the places of `places.toml`, found by their text, and a sample of all
changes of the modules in `modules.toml`. Those in `equivalent.toml` change nothing that anybody
could see, and count as neither killed nor survived.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.mutations import Mutant, mutants_of, sample
from tests.results import store
from tests.support import REPOSITORY

__all__ = ["Outcome", "Suite", "load", "share_of"]

HERE = Path(__file__).parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "mutants.json"
SEED, SAMPLE, AT_ONCE = 17, 100, 2
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo", "*.egg-info")
_MEMORY = 8 << 30  # a mutant may allocate without end
_PATIENCE, _TIMES = 20.0, 5.0  # a limit of so many seconds, and of times what the tests take
_NO_TESTS = 5  # pytest's exit code


class MistakeError(Exception):
    """What is wrong with the lists, or with the tests as they are."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests took a mutant: ``"killed"``, ``"timeout"`` or ``"survived"``."""

    mutant: Mutant
    end: str
    seconds: float


class Suite:
    """Copies of the tree `root`, in which the tests of `modules` (by path of the source) run."""

    def __init__(
        self, root: Path, modules: Mapping[str, Sequence[str]], scratch: Path, *, at_once: int
    ) -> None:
        self._modules = modules
        self._at_once = at_once
        self._seconds: dict[str, float] = {}
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(at_once):
            copy = scratch / f"{number}" / "tree"
            shutil.copytree(root, copy, symlinks=True, ignore=_LEFT_OUT)
            self._copies.put(copy)

    def check(self, paths: set[str]) -> None:
        """Raise `MistakeError` unless all tests of these modules pass without a mutant."""
        files = sorted({file for path in paths for file in self._tests(path)})
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for file, (code, seconds, said) in zip(
                files, pool.map(self._alone, files), strict=True
            ):
                if code:
                    raise MistakeError(f"{file} fails without a mutant ({code}):\n{said}")
                self._seconds[file] = seconds

    def run(self, mutant: Mutant) -> Outcome:
        """Run the tests of the module of `mutant`, the quickest first, in a copy with it."""
        tests = sorted(self._tests(mutant.path), key=lambda file: self._seconds[file])
        limit = _PATIENCE + _TIMES * sum(self._seconds[file] for file in tests)
        copy = self._copies.get()
        source = (copy / mutant.path).read_bytes()
        try:
            _put(copy / mutant.path, mutant.applied(source))
            code, seconds, _ = _pytest(copy, tests, limit)
        finally:
            _put(copy / mutant.path, source)
            self._copies.put(copy)
        if code == _NO_TESTS:
            raise MistakeError(f"{mutant.path}: none of its tests ran")
        ends = {None: "timeout", 0: "survived"}
        return Outcome(mutant, ends.get(code, "killed"), seconds)

    def _alone(self, file: str) -> tuple[int | None, float, str]:
        copy = self._copies.get()
        try:
            return _pytest(copy, [file], 600)
        finally:
            self._copies.put(copy)

    def _tests(self, path: str) -> Sequence[str]:
        if not self._modules.get(path):
            raise MistakeError(f"{path}: modules.toml names no tests for it")
        return self._modules[path]


def _put(path: Path, source: bytes) -> None:
    """Write `source`, and drop what was compiled of it: times and sizes may be the same."""
    path.write_bytes(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _pytest(copy: Path, tests: Sequence[str], limit: float) -> tuple[int | None, float, str]:
    """The exit code (None: it took too long), the seconds, and the end of what was said."""
    place = copy.with_name("tmp")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    began = time.monotonic()
    with copy.with_name("said").open("w+b") as said:
        process = subprocess.Popen(
            [*command, f"--basetemp={place}", *tests], cwd=copy, stdout=said,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(copy.parent)},
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        seconds = time.monotonic() - began
        said.seek(0)
        text = said.read().decode(errors="replace")
    shutil.rmtree(place, ignore_errors=True)
    return code, seconds, text[-2000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, which is all in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Lists:
    """What the three files say, and all mutants there are."""

    modules: dict[str, list[str]]
    places: list[Mutant]
    changes: list[Mutant]
    equivalent: dict[str, str]


def load(root: Path, folder: Path) -> Lists:
    """Read the lists in `folder` for `root`; raise `MistakeError` for what is there no more."""
    modules = _read(folder / "modules.toml")
    sources: dict[str, bytes] = {}
    for path, tests in modules.items():
        gone = [name for name in (path, *tests) if not (root / name).is_file()]
        if gone:
            raise MistakeError(f"modules.toml: there is no file {', '.join(gone)}")
        sources[path] = (root / path).read_bytes()
    places = [
        _place(one, sources) for one in _read(folder / "places.toml").get("place", [])
    ]  # fmt: skip
    changes = [one for path, source in sources.items() for one in mutants_of(path, source)]
    return Lists(modules, places, changes, _read(folder / "equivalent.toml"))


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _place(entry: Mapping[str, str], sources: Mapping[str, bytes]) -> Mutant:
    """The place that the text of `entry` stands at, in whichever module it is."""
    name, text = entry["name"], entry["text"].encode()
    found = [path for path, source in sources.items() for _ in range(source.count(text))]
    if len(found) != 1:
        stands = f"stands in {', '.join(found)}" if found else "is in none of the modules"
        raise MistakeError(f"places.toml: the text of {name!r} {stands}; it must stand once")
    start = sources[found[0]].index(text)
    return Mutant(name, found[0], start, start + len(text), entry["to"])


def share_of(outcomes: Sequence[Outcome], equivalent: Mapping[str, str]) -> dict[str, Any]:
    """Count `outcomes`; raise `MistakeError` for a mutant that is equivalent and was killed."""
    wrong = [o.mutant.name for o in outcomes if o.end != "survived" and o.mutant.name in equivalent]
    if wrong:
        raise MistakeError(f"equivalent.toml: a test notices {', '.join(map(repr, wrong))}")
    ends = [outcome.end for outcome in outcomes]
    survived = [outcome.mutant for outcome in outcomes if outcome.end == "survived"]
    same = [one for one in survived if one.name in equivalent]
    killed = ends.count("killed") + ends.count("timeout")
    return {
        "mutants": len(outcomes),
        "killed": killed,
        "by_timeout": ends.count("timeout"),
        "equivalent": len(same),
        "share_killed": round(killed / max(1, len(outcomes) - len(same)), 4),
        "survivors": [f"{one.path}: {one.name}" for one in survived if one not in same],
    }


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make test-mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name or path contains this")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many drawn (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="for drawing (%(default)s)")
    parser.add_argument("--list", action="store_true", help="name them, and do not run them")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    asked = parser.parse_args()
    try:
        lists = load(REPOSITORY, HERE)
        drawn = sample(lists.changes, asked.sample, asked.seed)
        chosen = [
            one for one in [*lists.places, *drawn] if asked.only in f"{one.path}: {one.name}"
        ]  # fmt: skip
        if asked.list:
            print(*(f"{one.path}: {one.name}" for one in chosen), sep="\n")
            return 0
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))  # of every process we start
        found = _measured(lists, chosen)
    except MistakeError as error:
        print(f"test-mutants: {error}", file=sys.stderr)
        return 2
    print(f"{found['killed']} of {found['mutants'] - found['equivalent']} killed: "
          f"{found['share_killed']:.1%} ({found['by_timeout']} by the time limit; "
          f"{found['equivalent']} more change nothing)")  # fmt: skip
    print(*found["survivors"], sep="\n")
    if asked.write:
        store(RESULTS, f"seed {asked.seed}", found, command="make test-mutants")
    return 0


def _measured(lists: Lists, mutants: Sequence[Mutant]) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        suite = Suite(REPOSITORY, lists.modules, Path(scratch), at_once=AT_ONCE)
        suite.check({one.path for one in mutants})
        print(f"{time.monotonic() - began:.0f} s: all tests pass without a mutant", flush=True)
        outcomes = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for outcome in pool.map(suite.run, mutants):
                outcomes.append(outcome)
                one = outcome.mutant
                print(
                    f"{outcome.end:8} {outcome.seconds:5.1f} s  {one.path}: {one.name}", flush=True
                )
    return {**share_of(outcomes, lists.equivalent), "seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    sys.exit(main())
