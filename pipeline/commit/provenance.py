"""Provenance of a dataset: its inputs with their fingerprints, and the records left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from dataprep.formats.manifest.common import InputEntry
from dataprep.formats.storage import storage_errors

from ..execute.task import REJECTS_NAME, StagedReject, UnitResult, unit_name
from ..read.fingerprints import STREAMS, combine
from ..read.records import without_text
from ..read.sources import Source
from ..staging.directory import Staging

__all__ = ["final_rejects", "in_blocks", "input_entries"]

_BLOCK_BYTES = 1 << 18


def input_entries(
    sources: Sequence[Source], results: Sequence[UnitResult], table_fingerprints: Mapping[int, str]
) -> tuple[InputEntry, ...]:
    """Return the manifest entries of the inputs, with fingerprints and numbers of records.

    The mapping `table_fingerprints` maps the indexes of tables in `sources` to their fingerprints.
    Fingerprints of byte streams are combined from the chunk digests in `results`.
    """
    digests: dict[int, list[str]] = {}
    records: Counter[int] = Counter()
    for result in results:
        for span in result.spans:
            digests.setdefault(span.source, []).extend(span.chunk_digests)
            records[span.source] += span.records
    return tuple(
        InputEntry(
            name=source.name,
            format=source.format,
            unit="byte" if source.format in STREAMS else "row",
            compression=source.compression,
            bytes=source.size,
            fingerprint=table_fingerprints.get(number) or combine(digests[number]),
            records=records[number],
        )
        for number, source in enumerate(sources)
    )


def final_rejects(
    staging: Staging, results: Sequence[UnitResult], *, excerpts: bool = True
) -> Iterator[bytes]:
    """Yield the lines of rejects.jsonl, a JSON object for each record that was left out.

    Records are numbered over all inputs, and lines within each input. Without `excerpts`, the texts
    of records are removed.
    """
    decoder = msgspec.json.Decoder(StagedReject)
    first_record = 0
    lines: Counter[int] = Counter()
    for result in results:
        bases = []
        for span in result.spans:
            bases.append(lines[span.source])
            lines[span.source] += span.lines
        path = staging.units / unit_name(result.number) / REJECTS_NAME
        with storage_errors(path), path.open("rb") as stream:
            for staged in map(decoder.decode, stream):
                line = None if staged.line is None else staged.line + bases[staged.span] + 1
                final = staged.final(first_record, line)
                yield msgspec.json.encode(final if excerpts else without_text(final)) + b"\n"
        first_record += sum(span.records for span in result.spans)


def in_blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `lines` joined into blocks of at least 256 KiB.

    The last block may be smaller or empty.
    """
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)
