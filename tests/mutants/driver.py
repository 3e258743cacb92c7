"""Which small changes of the code the tests notice: `make test-mutants`.

Each mutant is put into a copy of the tree and the tests of its module are run there, up to the
first that fails. Mutants are the places of `places.toml`, found by their text, and a sample of all
changes of the modules in `modules.toml`. Those in `equivalent.toml` change nothing that anybody
could see, and count as neither killed nor survived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.mutations import Mutant, mutants_of, sample
from tests.results import load as stored
from tests.results import store
from tests.support import REPOSITORY

__all__ = ["Outcome", "Suite", "load", "share_of"]

HERE = Path(__file__).parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "mutants.json"
COMMAND = "make test-mutants"
SEED, SAMPLE, AT_ONCE = 17, 100, 2
LIBRARIES = (
    "numpy", "torch.utils.data", "msgspec", "pyarrow.parquet", "tokenizers", "gigatoken",
    "hypothesis.strategies",
)  # fmt: skip
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
_MADE = ("build", "dist", "demo")  # by the Makefile, in the root
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_MEMORY = 8 << 30  # a mutant may allocate without end
_PATIENCE, _TIMES = 20.0, 3.0  # a limit of so many seconds, and of times what the tests take
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
    """Copies of the tree `root`, in which the tests of `modules` (by path of the source) run.

    `libraries` are those that most of the tests import.
    """

    def __init__(
        self,
        root: Path,
        modules: Mapping[str, Sequence[str]],
        scratch: Path,
        *,
        at_once: int,
        libraries: Sequence[str] = (),
    ) -> None:
        self._modules = modules
        self._seconds: dict[str, float] = {}
        self._copies: SimpleQueue[_Copy] = SimpleQueue()
        self._pool = ThreadPoolExecutor(at_once)
        for number in range(at_once):
            self._copies.put(_Copy(root, scratch / f"{number}", libraries))

    def check(self, paths: set[str]) -> None:
        """Raise `MistakeError` unless all tests of these modules pass without a mutant."""
        files = sorted({file for path in paths for file in self._tests(path)})
        found = self._pool.map(self._alone, files)
        for file, (code, seconds, said) in zip(files, found, strict=True):
            if code:
                raise MistakeError(f"{file} fails without a mutant ({code}):\n{said}")
            self._seconds[file] = seconds

    def run(self, mutants: Sequence[Mutant]) -> Iterator[Outcome]:
        """Put each mutant into a copy and run the tests of its module there, in their order."""
        return self._pool.map(self._run, mutants)

    def close(self) -> None:
        """End the processes that run the tests, once they have nothing more to do."""
        self._pool.shutdown(cancel_futures=True)
        while not self._copies.empty():
            self._copies.get().close()

    def _run(self, mutant: Mutant) -> Outcome:
        tests = self._tests(mutant.path)
        limit = _PATIENCE + _TIMES * sum(self._seconds[file] for file in tests)
        copy = self._copies.get()
        try:
            code, seconds, _ = copy.run(tests, limit, mutant)
        finally:
            self._copies.put(copy)
        if code == _NO_TESTS:
            raise MistakeError(f"{mutant.path}: none of its tests ran")
        ends = {None: "timeout", 0: "survived"}
        return Outcome(mutant, ends.get(code, "killed"), seconds)

    def _alone(self, file: str) -> tuple[int | None, float, str]:
        copy = self._copies.get()
        try:
            return copy.run([file], 600)
        finally:
            self._copies.put(copy)

    def _tests(self, path: str) -> Sequence[str]:
        if not self._modules.get(path):
            raise MistakeError(f"{path}: modules.toml names no tests for it")
        return self._modules[path]


class _Copy:
    """A copy of the tree `root` in the folder `place`, and the process that runs tests in it."""

    def __init__(self, root: Path, place: Path, libraries: Sequence[str]) -> None:
        self._tree, self._temporary, self._said = place / "tree", place / "tmp", place / "said"
        shutil.copytree(root, self._tree, symlinks=True, ignore=_left_out)
        self._server = subprocess.Popen(
            [sys.executable, HERE / "server.py", *libraries], cwd=place, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT, "TMPDIR": str(place)},
        )  # fmt: skip

    def run(
        self, tests: Sequence[str], limit: float, mutant: Mutant | None = None
    ) -> tuple[int | None, float, str]:
        """The exit code (None: it took too long), the seconds, and the end of what was said."""
        if mutant is None:
            return self._pytest(tests, limit)
        path = self._tree / mutant.path
        source = path.read_bytes()
        try:
            _put(path, mutant.applied(source))
            return self._pytest(tests, limit)
        finally:
            _put(path, source)

    def _pytest(self, tests: Sequence[str], limit: float) -> tuple[int | None, float, str]:
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        asked = {
            "copy": str(self._tree), "said": str(self._said), "limit": limit,
            "arguments": [*options, f"--basetemp={self._temporary}", *tests],
        }  # fmt: skip
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise MistakeError("the process that runs the tests is gone")
        code, seconds = json.loads(answer)
        shutil.rmtree(self._temporary, ignore_errors=True)
        return code, seconds, self._said.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        self._server.communicate()  # there is nothing more to read: it ends


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Which of the `names` in `folder` are no part of the tree."""
    made = _MADE if (Path(folder) / "pyproject.toml").exists() else ()
    return {*_LEFT_OUT(folder, names), *made}


def _put(path: Path, source: bytes) -> None:
    """Write `source`, and drop what was compiled of it: times and sizes may be the same."""
    path.write_bytes(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


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
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
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
        outcomes = _outcomes(lists, chosen)
        found = share_of(outcomes, lists.equivalent)
    except MistakeError as error:
        print(f"test-mutants: {error}", file=sys.stderr)
        return 2
    print(f"{found['killed']} of {found['mutants'] - found['equivalent']} killed: "
          f"{found['share_killed']:.1%} ({found['by_timeout']} by the time limit; "
          f"{found['equivalent']} more change nothing)")  # fmt: skip
    print(*found["survivors"], sep="\n")
    if asked.write:
        if not asked.only:
            RESULTS.unlink(missing_ok=True)  # and with it modules that have been moved
        _write(outcomes, lists.equivalent)
    return 0


def _outcomes(lists: Lists, mutants: Sequence[Mutant]) -> list[Outcome]:
    """Run the tests with each of `mutants`, and say how it went."""
    began, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        suite = Suite(
            REPOSITORY, lists.modules, Path(scratch), at_once=AT_ONCE, libraries=LIBRARIES
        )
        with contextlib.closing(suite):
            suite.check({one.path for one in mutants})
            print(f"{time.monotonic() - began:.0f} s: all tests pass without a mutant", flush=True)
            for outcome in suite.run(mutants):
                outcomes.append(outcome)
                took = f"{outcome.end:8} {outcome.seconds:5.1f} s"
                print(f"{took}  {outcome.mutant.path}: {outcome.mutant.name}", flush=True)
    print(f"{time.monotonic() - began:.0f} s in all")
    return outcomes


def _write(outcomes: Sequence[Outcome], equivalent: Mapping[str, str]) -> None:
    """Store the shares of the modules that were run, and that of all that were ever."""
    for path in sorted({outcome.mutant.path for outcome in outcomes}):
        own = [outcome for outcome in outcomes if outcome.mutant.path == path]
        store(RESULTS, path, share_of(own, equivalent), command=COMMAND)
    entries = [entry for name, entry in stored(RESULTS).items() if name != "all"]
    total = {
        name: sum(entry[name] for entry in entries)
        for name in ("mutants", "killed", "by_timeout", "equivalent")
    }
    share = total["killed"] / (total["mutants"] - total["equivalent"])
    store(RESULTS, "all", {**total, "share_killed": round(share, 4)}, command=COMMAND)


if __name__ == "__main__":
    sys.exit(main())
