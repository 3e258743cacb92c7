"""The result of a verification: findings, which are failures, and notes, which are not.

A finding has the four parts of an error (code, file, problem, advice) and is printed like an error.
It also has the range of damaged bytes, if this is known.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import RESTORE, DataprepError, IntegrityError

__all__ = ["MAX_FINDINGS", "Finding", "Findings", "Level", "Refused", "VerifyReport"]

Level = Literal["stat", "structure", "full"]

MAX_FINDINGS = 1000
"""Most findings in a report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Difference between a dataset and its manifest.

    `start` and `stop` are the range of bytes in `file`, `block` is the index of the first damaged
    MiB, and `row` is the row of the array or split. Each of the four is None if it is unknown or
    does not apply. `exit_code` is the exit code of a command that has no other finding.

    >>> print(Finding(code="E_HASH", file="crc32.npy", problem="is damaged"))
    error[E_HASH] crc32.npy: is damaged. Restore this file, or build again with --overwrite.
    """

    code: str
    file: str
    problem: str
    remedy: str = RESTORE
    start: int | None = None
    stop: int | None = None
    block: int | None = None
    row: int | None = None
    exit_code: int = IntegrityError.exit_code

    def __str__(self) -> str:
        return f"error[{self.code}] {self.file}: {self.problem}. {self.remedy}"

    def as_dict(self) -> dict[str, str | int | None]:
        """Return the fields of the finding as ``--json`` prints them."""
        return {
            "error": self.code,
            "where": self.file,
            "problem": self.problem,
            "remedy": self.remedy,
            "start": self.start,
            "stop": self.stop,
            "block": self.block,
            "row": self.row,
            "exit_code": self.exit_code,
        }


class Refused(Exception):  # noqa: N818 (control flow inside one check, never seen outside)
    """Exception that ends the check of one file; `finding` becomes part of the report."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Findings:
    """Thread-safe collection of the first `limit` findings, with the number of further findings.

    The findings are sorted by file and byte. Which of them are kept, and their order, do not depend
    on the order in which they are added.
    """

    def __init__(self, limit: int = MAX_FINDINGS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._found: list[Finding] = []
        self._files: set[str] = set()
        self.dropped = 0

    def add(self, finding: Finding) -> None:
        """Add `finding`. If there are more than `limit` findings then, drop the last one."""
        with self._lock:
            self._files.add(finding.file)
            insort(self._found, finding, key=_place)
            if len(self._found) > self._limit:
                self._found.pop()
                self.dropped += 1

    def add_error(self, error: DataprepError | Refused, file: str) -> None:
        """Add a finding for `error`.

        The finding is about `file` if the error does not say where the problem is.
        """
        if isinstance(error, Refused):
            self.add(error.finding)
            return
        self.add(
            Finding(
                code=error.code, file=error.where or file, problem=error.problem,
                remedy=error.remedy or RESTORE, exit_code=error.exit_code,
            )
        )  # fmt: skip

    def any_in(self, file: str) -> bool:
        """Return whether any finding was added for `file`."""
        with self._lock:
            return file in self._files

    def sorted(self) -> tuple[Finding, ...]:
        """Return the findings, sorted by file and byte."""
        with self._lock:
            return tuple(self._found)


def _place(finding: Finding) -> tuple[str, int, str, str]:
    """Return the key by which findings are sorted."""
    return finding.file, finding.start or 0, finding.code, finding.problem


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """Result of one verification.

    `files` and `bytes` are the number and total size of the files compared with the manifest,
    config.json included. `counts` are the totals in the manifest: `documents` and `tokens`, or
    `rows` and `arrays`. `config_sha256` is the digest to give to ``--expect``.
    """

    path: Path
    level: Level
    recipe_id: str
    config_sha256: str
    files: int
    bytes: int
    counts: Mapping[str, int]
    kind: str = "tokens"
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def documents(self) -> int:
        """Number of documents in a token dataset, 0 for other kinds."""
        return self.counts.get("documents", 0)

    @property
    def tokens(self) -> int:
        """Number of tokens in a token dataset, 0 for other kinds."""
        return self.counts.get("tokens", 0)

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """Smallest exit code of the findings, or 0 if there are none.

        Smaller codes are more serious: 3 means damage, and comes before 4, 5 and 6.
        """
        return min((finding.exit_code for finding in self.findings), default=0)

    def adding(self, findings: Iterable[Finding] = (), notes: Iterable[str] = ()) -> VerifyReport:
        """Return a copy of the report with `findings` and `notes` added."""
        return replace(self, findings=(*self.findings, *findings), notes=(*self.notes, *notes))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as ``--json`` prints it."""
        return {
            "ok": self.ok,
            "path": str(self.path),
            "level": self.level,
            "kind": self.kind,
            "recipe_id": self.recipe_id,
            "config_sha256": self.config_sha256,
            "files": self.files,
            "bytes": self.bytes,
            **self.counts,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": list(self.notes),
            "exit_code": self.exit_code,
        }
