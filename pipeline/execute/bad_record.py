"""Errors for bad records and failed units, with file, line and advice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.formats import errors
from dataprep.formats.errors import DataprepError, RecordError
from dataprep.formats.storage import storage_errors

from ..read.process_limits import SECONDS_VARIABLE
from ..read.records import Reject, Span
from ..read.sources import Source

if TYPE_CHECKING:
    from .worker import Event

__all__ = ["DECISIONS", "failure_of", "lines_before", "record_error"]

_READ_BYTES = 1 << 20
_SKIP = "leave such records out and list them with --on-error skip"
_MEND = ("Mend it",)
_REMEDIES = {
    "missing_field": ("Name another field with --field",),
    "not_a_string": ("Name another field with --field",),
    "bad_split_key": ("Name another field with --split-key",),
    "invalid_utf8": ("Convert the input to UTF-8 (iconv -t UTF-8)",),
    "missing": ("Name another field with --columns",),
    "wrong_type": ("Name another field with --columns",),
    "wrong_width": ("Say with --dim what they should have",),
    "overlong": ("Raise --max-tokens", "choose another --overlong"),
    "untrained": ("Raise --max-tokens", "keep it with --keep-untrained"),
    "no_assistant": ("Train on other turns with --train-on all",),
    "template": ("Mend it", "choose another --template"),
    "template_limit": ("Mend it", "choose another --template"),
    "roles": ("Mend it", "choose another --template"),
    "unmaskable": (
        "Give a --template with generation markers (such as a named one)",
        "take --train-on all",
    ),
    "too_long": ("Cut the record into documents",),
    "unknown_shape": ("Say with --columns what its fields are, as in messages=dialog",),
    "unknown_role": ("Say with --columns what it stands for, as in user=Human",),
    "bad_label": ("Leave labels alone with --form chat",),
}
"""Remedies of a bad record by reason, besides leaving it out."""

DECISIONS = {
    "template_time": "Mend the template, or choose another --template; the environment variable "
    f"{SECONDS_VARIABLE} sets the limit.",
    "template_crash": "Mend the template, or choose another --template.",
    "template_memory": "Mend the template, choose another --template, or use fewer --workers.",
    "undecided": "Decide with --overlong error, drop, truncate-left, truncate-right or split; "
    "--dry-run tells how many records each would leave out.",
}
"""Remedies by reason, for failures that leaving a record out does not mend."""


def failure_of(event: Event, sources: Sequence[Source], *, all_bad: bool = False) -> DataprepError:
    """Return the error for the failure that `event` reports.

    The argument `sources` holds the inputs. For a bad record, the error names its input. If
    `all_bad` is true, every record of a sample was bad, and the error does not advise leaving bad
    records out.
    """
    if event.bad_record is not None:
        reject, span = event.bad_record
        return record_error(reject, span, sources[span.source], all_bad=all_bad)
    if event.error is not None:
        kind, problem, where, remedy, code = event.error
        error_type = getattr(errors, kind, DataprepError)
        error: DataprepError = error_type(problem, where=where, remedy=remedy, code=code)
        return error
    return DataprepError(f"unit {event.unit} failed:\n{event.crash}", where="worker")


def record_error(
    reject: Reject, span: Span, source: Source, *, all_bad: bool = False
) -> RecordError:
    """Return the error for `reject`, a bad record in the part `span` of the input `source`.

    To count lines, the file is read from its beginning to the span.
    """
    if reject.line is None:
        where = f"{source.name} row {reject.offset}"
    else:
        before = lines_before(Path(source.path), span.start) if span.start else 0
        where = f"{source.name}:{before + reject.line + 1} (byte {reject.offset})"
    remedy = DECISIONS.get(reject.reason) or _remedy(reject.reason, all_bad)
    return RecordError(reject.detail, where=where, remedy=remedy, code=f"E_{reject.reason.upper()}")


def _remedy(reason: str, all_bad: bool) -> str:
    ways = _REMEDIES.get(reason, _MEND)
    if all_bad:
        return f"{', or '.join(ways)}; none of the records that were looked at can be used."
    return f"{', '.join(ways)}, or {_SKIP}."


def lines_before(path: Path, offset: int) -> int:
    """Return the index, counted from 0, of the first line that starts at or after byte `offset`."""
    count = at = 0
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        while at < offset and (data := stream.read(min(_READ_BYTES, offset - at))):
            count += data.count(b"\n")
            at += len(data)
        ends_line = data.endswith(b"\n") if at else True
    return count + (not ends_line)
