"""Counts of what mutated inputs ended in: `benchmarks/results/fuzz.json`.

A fuzz test (``@pytest.mark.fuzz``) takes the fixture `record_outcomes` and calls it once, at its
end, with the count of each outcome; the entry is named after the test, `FILE::TEST[PARAMETERS]`:

    @pytest.mark.fuzz
    def test_templates(record_outcomes: RecordOutcomes) -> None:
        ...
        record_outcomes({"ok": 61, "exit 7": 39}, seed=SEED)

Outcomes are `ok`, `exit 2` to `exit 7`, and those of `FAULTS`, none of which may occur: the call
fails the test if one does, or if nothing was counted. Further figures are free. The entry also
gets the sum of the counts, the seconds that the test took and the commit that it ran on.

The file changes only under ``pytest --write-results``, which `make test-fuzz` passes; without it
the call checks and prints. Entries of tests that did not run stay.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from tests import results
from tests.support import REPOSITORY

__all__ = ["FAULTS", "RESULTS", "RecordOutcomes"]

RESULTS = results.RESULTS / "fuzz.json"
FAULTS = ("bug", "signal", "hang", "memory", "unnoticed")
"""An exception outside the error tree, death by a signal, no end, more memory than allowed, and
damage that was served as if it were data."""


class RecordOutcomes:
    """Takes the counts of one test."""

    def __init__(self, name: str, *, write: bool) -> None:
        self._name = name
        self._write = write
        self._started = time.perf_counter()

    def __call__(self, counts: Mapping[str, int], **more: Any) -> None:
        """Note how often each outcome occurred; fail if one of `FAULTS` did."""
        entry: dict[str, Any] = {
            "inputs": sum(counts.values()),
            "outcomes": dict(sorted(counts.items())),
            **more,
            "seconds": round(time.perf_counter() - self._started, 1),
            "commit": _commit(),
        }
        print(f"\n{self._name}: {json.dumps(entry)}")
        assert entry["inputs"] > 0, "nothing was counted"
        faults = {name: counts[name] for name in FAULTS if counts.get(name)}
        assert not faults, f"{faults} of {entry['inputs']} inputs"
        if self._write:
            results.store(RESULTS, self._name, entry, command="make test-fuzz")


def _commit() -> str:
    words = ["git", "-C", str(REPOSITORY), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
