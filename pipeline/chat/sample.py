"""A look at the conversations before the work: their form, their texts, their lengths.

The first records of up to eight units, evenly spread, rendered as the build would render them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dataprep.formats.errors import InputError
from dataprep.pipeline.chat.conversation import ChatBatch, Form
from dataprep.pipeline.chat.marked import MarkedTexts
from dataprep.pipeline.chat.reader import ChatReader, ChatReadOptions
from dataprep.pipeline.chat.rendering import Renderer
from dataprep.pipeline.chat.task import Renderings
from dataprep.pipeline.inputs import Source
from dataprep.pipeline.plan import Unit
from dataprep.pipeline.sample import Sample

__all__ = ["ChatSample", "find_form", "take_chat_sample"]

_PLACES = 8
_TRIES = 64  # blocks: 16 MiB without a usable record
_AT_ONCE = 4  # records, between looks at what has become of them
_ENDLESS = 8  # records that a template does not end with


@dataclass(kw_only=True, slots=True)
class ChatSample:
    """`documents` are the rendered conversations, `owners` the records (numbers) that they are of.

    `sample` tells how much input they are from, `records` how many records were looked at.
    """

    masked_by: str
    sample: Sample = field(default_factory=Sample)
    documents: MarkedTexts = field(default_factory=MarkedTexts)
    owners: list[int] = field(default_factory=list)
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def find_form(sources: Sequence[Source], units: Sequence[Unit], read: ChatReadOptions) -> Form:
    """The form of the first record that has one; `read` asks for none."""
    first: str | None = None
    for unit in units:
        for span, row in zip(unit.spans, unit.first_rows, strict=True):
            reader = ChatReader(sources[span.source], span, read, first_row=row)
            with contextlib.closing(reader.batches()) as batches:
                for batch in batches:
                    if batch.records:
                        return batch.records[0].form
                    if batch.rejects and first is None:
                        first = batch.rejects[0].detail
    none = "there are no records in the input"
    raise InputError(
        f"no record is of a known shape ({first})" if first else none,
        where=sources[0].name, code="E_EMPTY",
        remedy="Say with --shape and --columns what the records look like.",
    )  # fmt: skip


def take_chat_sample(
    sources: Sequence[Source], units: Sequence[Unit], read: ChatReadOptions, renderer: Renderer,
    room: int,
) -> ChatSample:  # fmt: skip
    """Render about `room` bytes of text at each of up to eight places."""
    found = ChatSample(masked_by=renderer.masked_by)
    step = max(1, len(units) // _PLACES)
    places = units[::step][:_PLACES]
    for unit in places:
        span, row = unit.spans[0], unit.first_rows[0]
        reader = ChatReader(sources[span.source], span, read, first_row=row)
        _look(found, reader, renderer, room * (_PLACES // len(places)))
    return found


def _look(found: ChatSample, reader: ChatReader, renderer: Renderer, room: int) -> None:
    """Add the first usable records of a span."""
    started = time.perf_counter()
    size = 0
    with contextlib.closing(reader.batches()) as batches:
        for tries, batch in enumerate(batches):
            size += _add(found, batch, renderer, room - size)
            if size * 2 >= room or tries >= _TRIES or _hopeless(found):
                break
    found.sample.seconds += time.perf_counter() - started


def _add(found: ChatSample, batch: ChatBatch, renderer: Renderer, room: int) -> int:
    """Add the records of `batch` that make about `room` bytes of input; returns how many bytes."""
    count = size = 0
    while count < len(batch.records) and size < room and not _hopeless(found):
        first = count
        while count < len(batch.records) and size < room and count < first + _AT_ONCE:
            size += batch.sizes[count]
            count += 1
        rendered = Renderings.of(
            replace(batch, records=batch.records[first:count], turned=None), renderer
        )
        _keep(found, rendered, count - first)
    share = size / max(1, sum(batch.sizes))
    found.sample.stored_bytes += round(batch.consumed * share) if batch.records else batch.consumed
    found.sample.rejects += round(len(batch.rejects) * share)
    return size


def _hopeless(found: ChatSample) -> bool:
    """Whether the template goes on without end: the build will say so of the first record."""
    return found.refused["template_limit"] >= _ENDLESS


def _keep(found: ChatSample, rendered: Renderings, records: int) -> None:
    sample = found.sample
    text = sum(map(len, rendered.documents.texts))
    sample.text_bytes += text
    sample.read_bytes += text
    sample.kept_bytes += text
    sample.documents += len(rendered.documents)
    sample.rejects += len(rendered.refused)
    sample.texts += [text.decode() for text in rendered.documents.texts]
    found.owners += [owner + found.records for owner in rendered.owners]
    found.documents.extend(rendered.documents)
    found.records += records
    found.refused.update(reason for reason, _ in rendered.refused.values())
