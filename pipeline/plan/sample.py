"""A sample of the texts in the inputs, and an iterator over all texts.

The sample is used to compare engines and to make estimates. It contains the first records of up to
eight units, evenly spaced. For inputs and records of any size, making it takes a fraction of a
second and some megabytes of memory. The iterator, `iterate_texts`, is used to train a tokenizer.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ..options import BuildOptions, DocumentUnit, InputFormat
from ..read.child_process import reading_apart
from ..read.discovery import find_sources
from ..read.reader import ReadOptions, SpanReader
from ..read.records import MAX_DOCUMENT_BYTES, MAX_RECORD_BYTES, Batch
from ..read.sources import Source
from .plan import Unit, make_units
from .splits import FEW_KEYS

__all__ = ["Sample", "iterate_texts", "take_sample"]

_PLACES = 8
_SPANS = 16  # that are read of one unit, which may have thousands of small files
_TRIES = 16  # blocks that are read of a span if their texts are short of the wanted size
_BOM = "\ufeff"
_NOWHERE = Path(os.devnull)  # as the output directory: it can contain no input


@dataclass(kw_only=True, slots=True)
class Sample:
    """Sample of texts, some of them truncated, and measurements made while it was read.

    `documents` is the number of documents examined. They take up `stored_bytes` bytes of the input
    and contain `text_bytes` bytes of text. Of this text, `read_bytes` bytes were read in `seconds`
    seconds, and `kept_bytes` bytes are in `texts`.
    """

    texts: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    kept_bytes: int = 0
    documents: int = 0
    rejects: int = 0
    seconds: float = 0.0
    keys: set[bytes] = field(default_factory=set)
    """Distinct split keys; none are added once there are more than `FEW_KEYS`."""

    def keep(self, texts: Iterable[str], room: int) -> int:
        """Add `texts` to the sample, truncated to `room` bytes in total.

        Return the number of bytes of all `texts`, including those not added.
        """
        total = 0
        for text in texts:
            data = text.encode()
            if total < room:
                kept = data[: room - total].decode("utf-8", "ignore")
                self.texts += [kept] if kept else []
                self.kept_bytes += len(kept.encode())
            total += len(data)
        return total

    def excerpts(self, count: int, characters: int) -> list[str]:
        """Return at most `count` texts, evenly spaced, cut to at most `characters` characters."""
        step = max(1, len(self.texts) // count)
        return [text[:characters] for text in self.texts[::step][:count]]


def take_sample(
    sources: Sequence[Source], units: Sequence[Unit], read: ReadOptions, block_bytes: int
) -> Sample:
    """Return a sample of about `block_bytes` bytes of text from each of up to eight units.

    If there are fewer than eight units, more text is read from units that are compressed files.
    """
    sample = Sample()
    step = max(1, len(units) // _PLACES)
    places = units[::step][:_PLACES]
    for unit in places:
        packed = sources[unit.spans[0].source].compression is not None
        room = block_bytes * (_PLACES // len(places) if packed else 1)
        for span in unit.spans[:_SPANS]:
            source = sources[span.source]
            reader = SpanReader(source, span, read, block_bytes=block_bytes)
            whole = source.format == "text" and read.document == "file"
            look = _look_at_file if whole else _look_at_records
            room -= look(sample, source, reader, room)
            if room <= 0:
                break
    return sample


def _look_at_records(sample: Sample, source: Source, reader: SpanReader, room: int) -> int:
    """Add usable records from the start of a span to `sample`, up to `room` bytes of text.

    Return the number of bytes of text that were read. It may be larger than `room`.
    """
    started = time.perf_counter()
    stored = found = 0
    with contextlib.closing(cast("Generator[Batch]", reader.batches())) as batches:
        for tries, batch in enumerate(batches):
            stored += batch.consumed
            sample.documents += len(batch.texts)
            sample.rejects += len(batch.rejects)
            if batch.keys and len(sample.keys) <= FEW_KEYS:
                sample.keys.update(batch.keys)
            found += sample.keep(batch.texts, room)
            if found * 2 >= room or tries >= (
                _TRIES if sample.rejects or found else MAX_RECORD_BYTES // room
            ):
                break
        sample.seconds += time.perf_counter() - started
        sample.stored_bytes += reader.needed_bytes() if source.compression else stored
    sample.text_bytes += found
    sample.read_bytes += found
    return found


def _look_at_file(sample: Sample, source: Source, reader: SpanReader, room: int) -> int:
    """Add the beginning of a file to `sample`, up to `room` bytes. The whole file is one document.

    Return the number of bytes of text that were added, or 0 if the file cannot be used.
    """
    started = time.perf_counter()
    data, stored = reader.head(room)
    sample.seconds += time.perf_counter() - started
    sample.stored_bytes += source.size
    text = ""
    with contextlib.suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-8")().decode(data).removeprefix(_BOM)
    size = source.size * len(data) // max(1, stored)
    if not text or size > MAX_DOCUMENT_BYTES:
        sample.rejects += 1
        return 0
    sample.documents += 1
    sample.text_bytes += size
    sample.read_bytes += len(data)
    return sample.keep([text], room)


def iterate_texts(
    input: tuple[str, ...],  # noqa: A002 (the name of the option)
    format: InputFormat | None = None,  # noqa: A002
    field: str = "text",
    document: DocumentUnit = "file",
) -> Iterator[str]:
    """Yield the usable texts of `input`, in order. Records that cannot be used are skipped."""
    options = BuildOptions(input=input, out=_NOWHERE, format=format, field=field, document=document)
    read = ReadOptions(
        field=field, document=document, split_key=None, hf_config=None, hf_split=None
    )
    with reading_apart():
        sources = tuple(find_sources(options))
        for unit in make_units(sources, read):
            for span in unit.spans:
                reader = SpanReader(sources[span.source], span, read)
                for batch in reader.batches():
                    yield from batch.texts
