"""Progress of a running build, and the time of each of its stages.

A worker divides its time into consecutive laps, so the times of the stages add up to its whole
time. A lap costs 0.2 us, and there are a dozen laps for every two megabytes of text.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "MOMENTS",
    "STAGES",
    "Profile",
    "Progress",
    "ProgressCallback",
    "StageClock",
    "process_started",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Snapshot of a build: input bytes, documents (or rows), tokens, rejected records, seconds."""

    stage: str
    """``plan``, ``tokenize`` (embeddings: ``read``) or ``commit``; for pairs the name of a step."""
    bytes_done: int = 0
    bytes_total: int = 0
    documents: int = 0
    tokens: int = 0
    rejects: int = 0
    step_done: int = 0
    """Finished parts of the stage, if it counts parts."""
    step_total: int = 0
    """All parts of the stage; 0: unknown."""
    seconds: float = 0.0


ProgressCallback = Callable[[Progress], None]

STAGES = {
    "load": "the plan and the tokenizer",
    "read": "bytes of the inputs, and their fingerprints",
    "parse": "records out of bytes, and the checks of them",
    "embed": "vectors of texts, read or encoded",
    "cluster": "clusters and their centroids",
    "negatives": "hard negatives",
    "check": "vectors looked through for what cannot be used",
    "render": "conversations by their template, and what is trained on",
    "split": "which split each document or row goes to",
    "encode": "ids or vectors out of text: the tokenizer or encoder itself",
    "mask": "the loss mask, conversations over the limit cut or left out",
    "special": "text that spells special tokens",
    "narrow": "BOS and EOS put in, ids checked and narrowed; vectors brought to their type",
    "hash": "SHA-256 and CRC-32 of what is written",
    "write": "bytes to the files of the unit",
    "finish": "closing, and giving the unit its name",
    "wait": "for a unit to do",
}
"""Description of each stage of a worker, in the order of reports."""


MOMENTS = {
    "begin": "the build begins: Python and the modules of the build are imported",
    "load": "the tokenizer begins to load",
    "loaded": "the tokenizer is loaded, and a sample of the input is encoded",
    "units": "the plan is written, and the units begin",
    "checked": "the engine has been compared with the reference library",
    "done": "all units are finished",
    "published": "the dataset is in its place",
}
"""Description of each moment, in the usual order. A build has only those that occur in it."""


class StageClock:
    """Stopwatch that adds up the seconds of each stage.

    >>> clock = StageClock()
    >>> clock.lap("read")
    >>> sorted(clock.take())
    ['read']
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage since the last `take`, and reset them to 0."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


@dataclass(kw_only=True, slots=True)
class Profile:
    """Seconds that the parts of one build took.

    The attributes `prepare`, `units` and `commit` are consecutive periods of wall-clock time. The
    attribute `stages` contains sums over all workers. The attribute `timeline` maps moments (see
    `MOMENTS`) to the seconds from `started`, a value of `time.perf_counter`, to the moment.
    """

    started: float = field(default_factory=time.perf_counter)
    prepare: float = 0.0
    units: float = 0.0
    commit: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    timeline: dict[str, float] = field(default_factory=dict)

    def mark(self, moment: str) -> None:
        """Record that `moment` is now."""
        self.timeline[moment] = time.perf_counter() - self.started

    def add(self, stages: Mapping[str, float]) -> None:
        """Add `stages` (the seconds that a worker needed for each stage of a unit) to the sums."""
        for name, seconds in stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + seconds

    def as_dict(self) -> dict[str, object]:
        """Return all seconds, rounded to milliseconds. The stages are in the order of `STAGES`."""
        stages = {name: round(self.stages[name], 3) for name in STAGES if name in self.stages}
        timeline = {name: round(seconds, 3) for name, seconds in self.timeline.items()}
        return {
            "prepare": round(self.prepare, 3),
            "units": round(self.units, 3),
            "commit": round(self.commit, 3),
            "stages": stages,
            "timeline": timeline,
        }


def process_started() -> float | None:
    """Return the value that `time.perf_counter` had when this process was started, to 10 ms.

    A program that replaced another in its process counts from the start of the first. Return None
    on systems other than Linux.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    return time.perf_counter() - age
