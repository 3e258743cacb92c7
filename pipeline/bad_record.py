"""The message for a record that stops a build: which line of which file, and what to do."""

from __future__ import annotations

from pathlib import Path

from dataprep.formats.errors import RecordError
from dataprep.formats.storage import storage_errors
from dataprep.pipeline.inputs import Source
from dataprep.pipeline.records import Reject, Span

__all__ = ["lines_before", "record_error"]

_READ_BYTES = 1 << 20
_SKIP = "or leave such records out and list them with --on-error skip."
_REMEDIES = {
    "missing_field": "Name another field with --field,",
    "not_a_string": "Name another field with --field,",
    "bad_split_key": "Name another field with --split-key,",
    "invalid_utf8": "Convert the input to UTF-8 (iconv -t UTF-8),",
    "missing": "Name another field with --columns,",
    "wrong_type": "Name another field with --columns,",
    "wrong_width": "Say with --dim what they should have,",
    "overlong": "Raise --max-tokens, choose another --overlong,",
    "untrained": "Raise --max-tokens, keep it with --keep-untrained,",
    "no_assistant": "Train on other turns with --train-on all,",
    "template": "Mend it, choose another --template,",
    "unmaskable": "Use a template with generation markers, or --train-on all,",
    "too_long": "Cut the record into documents,",
}

_DECISIONS = {
    "undecided": "Decide with --overlong error, drop, truncate-left, truncate-right or split; "
    "--dry-run tells how many records each would leave out.",
}


def record_error(reject: Reject, span: Span, source: Source) -> RecordError:
    """Say where the bad record stands; counts the lines before its span, which costs a read."""
    if reject.line is None:
        where = f"{source.name} row {reject.offset}"
    else:
        before = lines_before(Path(source.path), span.start) if span.start else 0
        where = f"{source.name}:{before + reject.line + 1} (byte {reject.offset})"
    if (remedy := _DECISIONS.get(reject.reason)) is None:
        remedy = f"{_REMEDIES.get(reject.reason, 'Mend it,')} {_SKIP}"
    return RecordError(reject.detail, where=where, remedy=remedy, code=f"E_{reject.reason.upper()}")


def lines_before(path: Path, offset: int) -> int:
    """How many lines start before the first line start at or after `offset`."""
    count = at = 0
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        while at < offset and (data := stream.read(min(_READ_BYTES, offset - at))):
            count += data.count(b"\n")
            at += len(data)
        ends_line = data.endswith(b"\n") if at else True
    return count + (not ends_line)
