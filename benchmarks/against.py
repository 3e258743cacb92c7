"""Whether another checkout builds the same bytes and serves the same batches, and how fast.

    python benchmarks/against.py --base CHECKOUT --data DIR --keep FOLDER
                                 [--new CHECKOUT] [--parts bytes batches speed] [--only WORD ...]
                                 [--write]

BASE is an older checkout of this project with an environment in its `.venv`, NEW (None: this one)
what is compared with it. Every process of either runs with its own interpreter and its own code;
the programs in this folder use public names only, and both ways of naming rows.

`bytes`: the command lines of against_builds.py: full builds of every kind, then `verify`,
`inspect`, `order`, `convert` and estimates, of sound and of damaged datasets. Compared are every
byte of every file, exit codes, and what is printed, but for times and places. `batches`: the
configurations of against_loaders.py and against_foreign.py over datasets that BASE built. Compared
are all batches (names, types, shapes, bytes), `order_digest`, and what comes after a resume from
each other's states, where their versions are equal; the plans of packed rows, too. `speed`: see
against_speed.py.

FOLDER keeps what BASE gave and its datasets, so that a second run needs NEW alone; delete it to
begin anew. The exit status is 1 if anything differs. Results: benchmarks/results/against.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from against_builds import Step, prepare, steps
from against_inputs import make_inputs
from against_speed import add_options, measured

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "against.json"
PARTS = ("bytes", "batches", "speed")
PLANS = "plans of packed rows, and texts"
"""Files that configurations leave in their cache."""
VARIES = frozenset({"seconds", "profile", "free_bytes", "steps"})
"""Fields of what is printed that differ between two runs of the same code."""

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A checkout with the interpreter that imports it."""

    root: Path
    keep: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.root / ".venv" / "bin" / "python")

    def command(self, words: Iterable[str]) -> list[str]:
        """Return the command line `dataprep` with `words`, as the checkout declares it."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text())
        module, name = project["project"]["scripts"]["dataprep"].split(":")
        start = f"import sys; from {module} import {name}; sys.argv[0] = 'dataprep'; {name}()"
        return [self.python, "-P", "-c", start, *words]

    def program(self, name: str, words: Iterable[str]) -> list[str]:
        """Return the command of a program in this folder."""
        return [self.python, str(ROOT / "benchmarks" / name), *words]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment, with caches below `folder`."""
        given = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return given | {
            "DATAPREP_CACHE": str(folder / "cache"), "HF_HOME": str(folder / "hub"),
            "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "PYTHONHASHSEED": "0",
            "PYTHONPYCACHEPREFIX": str(self.keep / "bytecode"),
        }  # fmt: skip

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of this side in `folder`."""
        return subprocess.run(
            command, cwd=folder, env=self.environment(folder), capture_output=True, text=True,
            check=False,
        )  # fmt: skip


def answered(text: str, folder: Path) -> Any:
    """Return what was printed, without places and times."""
    text = text.replace(str(folder), "@")
    try:
        return plain(json.loads(text))
    except ValueError:
        return text


def plain(found: Any) -> Any:
    """Return parsed JSON without the fields that vary."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items() if key not in VARIES}
    return [plain(value) for value in found] if isinstance(found, list) else found


def hashes(path: Path) -> Found:
    """Return size and SHA-256 of `path`, or of every file below it."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {
        str(file.relative_to(path)): [
            file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
        ] for file in files
    }  # fmt: skip


def taken(side: Side, step: Step, folder: Path) -> Found:
    """Run one step; what it printed and wrote."""
    prepare(step, folder)
    words = step.words
    command = side.program("against_api.py", words) if step.script else side.command(words)
    done = side.run(command, folder)
    return {
        "code": done.returncode,
        "stdout": answered(done.stdout, folder),
        "stderr": answered(done.stderr, folder),
        "files": hashes(folder / step.out) if step.out else {},
    }


def bytes_of(side: Side, folder: Path, data: Path, only: list[str]) -> Found:
    """Run all steps of one side."""
    folder.mkdir(exist_ok=True)
    return {step.name: taken(side, step, folder) for step in steps(data) if wanted(step.name, only)}


def wanted(name: str, only: list[str]) -> bool:
    """Whether a part of `name` was asked for."""
    return not only or any(word in name for word in only)


def batches_of(side: Side, folder: Path, datasets: Path, only: list[str], *words: str) -> Found:
    """Run all configurations of one side, in one process for each program."""
    folder.mkdir(exist_ok=True)
    found: Found = {}
    for name in ("against_loaders.py", "against_foreign.py"):
        done = side.run(side.program(name, (str(datasets), ",".join(only), *words)), folder)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-4000:]}")
        found |= json.loads(done.stdout.splitlines()[-1])
    return found if words or only else found | {PLANS: hashes(folder / "cache")}


def kept(path: Path, make: Callable[[], Found]) -> Found:
    """Return what the file holds, or what `make` gives, which is kept there."""
    if not path.exists():
        found = make()
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(found, indent=1))
        scratch.replace(path)
    known: Found = json.loads(path.read_text())
    return known


def difference(base: Any, new: Any, place: str = "") -> list[str]:
    """Return the places where two parsed JSON values differ, with the values."""
    if isinstance(base, dict) and isinstance(new, dict):
        keys = [*base, *(key for key in new if key not in base)]
        return [line for key in keys if base.get(key) != new.get(key)
                for line in difference(base.get(key), new.get(key), f"{place}/{key}")]  # fmt: skip
    return [] if base == new else [f"{place}: {str(base)[-300:]!r} is {str(new)[-300:]!r}"]


def compared(base: Found, new: Found) -> list[str]:
    """Print and return the entries that differ."""
    bad = []
    for name in base:
        if lines := difference(base[name], new.get(name)):
            bad.append(name)
            print(f"DIFFERENT {name}", *lines[:6], sep="\n    ", flush=True)
    return bad


class Comparison:
    """Both sides, and where their datasets are."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.keep: Path = arguments.keep.absolute()
        self.data: Path = arguments.data.absolute()
        self.only: list[str] = arguments.only
        self.base = Side(root=arguments.base.absolute(), keep=self.keep)
        self.new = Side(root=arguments.new.absolute(), keep=self.keep)
        if not (self.keep / "inputs").exists():
            make_inputs(self.keep / "inputs", self.data)

    def base_folder(self) -> Path:
        """Build with BASE, unless that was done before."""
        folder = self.keep / "base"
        self.base_bytes()
        return folder

    def base_bytes(self) -> Found:
        """Return what BASE wrote and printed."""
        return kept(self.keep / "base-bytes.json",
                    lambda: bytes_of(self.base, self.keep / "base", self.data, []))  # fmt: skip

    def bytes(self, folder: Path) -> Found:
        """Compare every file, and everything that is printed."""
        base = self.base_bytes()
        new = bytes_of(self.new, folder, self.data, self.only)
        bad = compared({name: base[name] for name in base if wanted(name, self.only)}, new)
        files = sum(len(found["files"]) for found in new.values())
        size = sum(entry[0] for found in new.values() for entry in found["files"].values())
        return {"commands": len(new), "files": files, "megabytes": size // 10**6, "different": bad}

    def batches(self, folder: Path) -> Found:
        """Compare what is served, before and after a resume from states of either side."""
        datasets, known = self.base_folder(), self.keep / "base-batches.json"
        every = kept(known, lambda: batches_of(self.base, self.keep / "base-batches", datasets, []))
        base = {name: every[name] for name in every if wanted(name, self.only)}
        new = batches_of(self.new, folder, datasets, self.only)
        given = folder / "new.json"
        given.write_text(json.dumps(new))
        bad = compared(without_states(base), without_states(new))
        counts: Found = {
            "configurations": len(base.keys() - {PLANS}), "batches": handed_over(base),
            "different": bad,
        }  # fmt: skip
        counts["states_that_differ"] = [
            name for name in base if base[name].get("state") != new.get(name, {}).get("state")
        ]
        for name, side, states in (("base_goes_on_in_new", self.new, known),
                                   ("new_goes_on_in_base", self.base, given)):  # fmt: skip
            resumed = batches_of(side, folder, datasets, self.only, "--states", str(states))
            expected = {n: {"after": base[n].get("after")} for n in resumed}
            counts[name] = {"states": len(resumed), "different": compared(expected, resumed)}
        return counts

    def speed(self, folder: Path) -> Found:
        """Measure both in turn."""
        return measured(self.base, self.new, folder, self.arguments)


def without_states(found: Found) -> Found:
    """Return the same but for states, which may be of another version."""
    return {name: {k: v for k, v in entry.items() if k != "state"} for name, entry in found.items()}


def handed_over(found: Found) -> int:
    """Return the number of batches that went into the digests."""
    return sum(
        entry[part][1] for name, entry in found.items() if name != PLANS
        for part in ("batches", "later", "after") if part in entry
    )  # fmt: skip


def differs(found: Any) -> bool:
    """Whether anything in the results was different."""
    return isinstance(found, dict) and (
        bool(found.get("different")) or any(differs(value) for value in found.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", default=[*PARTS[:2]], choices=PARTS)
    parser.add_argument(
        "--only", nargs="*", default=[], help="parts of names; of `bytes` those of the datasets too"
    )
    parser.add_argument("--write", action="store_true")
    add_options(parser)
    arguments = parser.parse_args()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(arguments)
    results: Found = {}
    for part in arguments.parts:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f"new-{part}-", dir=comparison.keep) as folder:
            results[part] = getattr(comparison, part)(Path(folder))
        print(json.dumps({part: results[part]}, indent=1))
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
    if arguments.write:
        old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(old | results, indent=1) + "\n")
    sys.exit(differs(results))


if __name__ == "__main__":
    main()
