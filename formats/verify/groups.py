"""Checks of the records of preferences: their documents, scores and ids.

The file of groups holds the index of the first document of each record. Groups and scores are read
once, side by side, a MiB of each at a time. Afterwards both the groups and the record ids are read
once more and compared.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checksums import BLOCK_BYTES
from ..errors import DataprepError
from ..manifest.tokens import Manifest, ShardEntry, SplitEntry
from ..read.open_files import Files
from ..read.pread import FileArray
from ..read.records import RecordIds
from ..read.staleness import BuildGuard
from .offsets import OffsetCursor, OffsetRule
from .reader import Reader, Verification
from .report import Finding, Refused

__all__ = ["check_groups", "check_records_of_groups"]

Numbers = npt.NDArray[np.int64]
_STEP = BLOCK_BYTES // 8
_DOCUMENTS = {"pairs": 2, "labels": 1}
_ALLOWED_SCORES = {
    "pairs": "1 for the answer chosen, then 0 for the one rejected",
    "labels": "0 or 1",
}


def check_groups(run: Verification, shard: ShardEntry, form: str) -> None:
    """Check the groups and scores of `shard`, whose records have this `form`."""
    with contextlib.ExitStack() as stack:
        groups = run.open(stack, str(shard.groups))
        starts = None if groups is None else _RecordOffsets(groups, run, shard, form)
        with contextlib.ExitStack() as inner:
            scores = run.open(inner, str(shard.scores))
            if scores is not None:
                _check_scores(scores, shard, form, starts)
        while starts is not None and starts.advance():
            pass


class _RecordOffsets(OffsetCursor):
    """Cursor over the group file of a shard, with the index of each record's first document."""

    def __init__(self, reader: Reader, run: Verification, shard: ShardEntry, form: str) -> None:
        self._pending = np.empty(0, np.int64)
        size = _DOCUMENTS.get(form)
        rule = OffsetRule(
            code="E_GROUPS", total=shard.documents, part="record", items="documents",
            least=size or 1, most=size or shard.documents,
            limit="one or more" if size is None else str(size),
        )  # fmt: skip
        super().__init__(run, reader, rule, shard.records or 0)

    def take(self, offsets: Numbers, sizes: Numbers) -> None:
        """Keep the index of the first document of each record, for `until` to return."""
        self._pending = np.concatenate([self._pending, offsets[:-1]])

    def until(self, stop: int) -> Numbers:
        """Return the index of each record's first document, for indices below `stop`.

        An index is returned only once. The file is read until an index reaches `stop`, or to
        its end.
        """
        while (not len(self._pending) or self._pending[-1] < stop) and self.advance():
            pass
        ready = int(np.searchsorted(self._pending, stop))
        found, self._pending = self._pending[:ready], self._pending[ready:]
        return found


def _check_scores(
    reader: Reader, shard: ShardEntry, form: str, starts: _RecordOffsets | None
) -> None:
    """Raise `Refused` about the first score that `form` does not allow.

    In the form ``groups``, also raise `Refused` if only some documents of a record have a score.
    This second check needs to know where records begin, so it is skipped if the cursor `starts` is
    None.
    """
    header = reader.expect_array("<f4", (shard.documents,))
    given = np.zeros(0, np.bool_)  # True if the document before the chunk has a score
    for scores in reader.arrays("<f4"):
        first = (reader.at - scores.nbytes - header) // 4
        if form == "groups":
            wrong, allowed = np.isinf(scores), "finite, or NaN"
        else:
            expected = np.arange(first + 1, first + 1 + len(scores)) % 2
            wrong = scores != expected if form == "pairs" else (scores != 0) & (scores != 1)
            allowed = _ALLOWED_SCORES[form]
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise _wrong_score(reader, header, first + bad, scores[bad], f"must be {allowed}")
        if form != "groups" or starts is None:
            continue
        finite = np.concatenate([given, ~np.isnan(scores)])
        changes = np.flatnonzero(np.diff(finite)) + 1 - len(given) + first
        mixed = np.setdiff1d(changes, starts.until(first + len(scores)))
        if starts.sound and len(mixed):
            bad = int(mixed[0])
            problem = "but only some documents of its record have scores"
            raise _wrong_score(reader, header, bad, scores[bad - first], problem)
        given = finite[-1:]


def _wrong_score(reader: Reader, header: int, document: int, score: Any, problem: str) -> Refused:
    start = header + 4 * document
    text = f"document {document} has the score {score}, {problem}"
    return Refused(reader.finding("E_SCORES", text, start, start + 4))


def check_records_of_groups(run: Verification, manifest: Manifest) -> None:
    """Check that documents have the same record id if, and only if, they are in the same group.

    Splits whose files have findings are skipped.
    """
    files = Files(run.directory, run.files, BuildGuard(run.directory), "pread")
    for split in manifest.splits.values():
        names = [*split.id_files, *(str(shard.groups) for shard in split.shards)]
        if split.records is not None and all(run.sound(name) for name in names):
            try:
                _compare(run, files, split)
            except DataprepError as error:
                run.findings.add_error(error, names[0])


def _compare(run: Verification, files: Files, split: SplitEntry) -> None:
    ids: FileArray | RecordIds
    if split.index is None:
        ids = RecordIds(files, split.shards)
    else:
        ids = files.lazy_index(split.index, split.documents)
    document = 0
    last = np.full(1, -1, np.int64)  # the id of the document before
    for shard in split.shards:
        groups, base, record = files.array(str(shard.groups)), document, 0
        while document < base + shard.documents:
            run.advance(0)
            stop = min(document + _STEP, base + shard.documents)
            found = ids[document:stop]
            upto = int(groups.searchsorted(np.uint64(stop - base), "left"))
            starts = groups[record:upto].astype(np.int64) + base
            changes = np.flatnonzero(np.diff(found, prepend=last)) + document
            odd = np.setxor1d(starts, changes)
            if len(odd):
                at, own = int(odd[0]), int(odd[0]) in starts
                id_ = int(found[at - document])
                problem = (
                    "the same as the one before, of another record"
                    if own
                    else ("another than the one before, of the same record")
                )
                whole = split.index is not None
                file, row = (split.id_files[0], at) if whole else (str(shard.record_ids), at - base)
                run.findings.add(Finding(
                    code="E_INDEX", file=file, row=row,
                    problem=f"document {row}: record id {id_} is {problem}",
                ))  # fmt: skip
                return
            document, record, last = stop, upto, found[-1:]
