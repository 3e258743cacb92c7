"""Sample of conversations, rendered before a build starts.

The sample consists of the first records of up to eight units (parts of the input) at equal
distances, beginning with the first unit. A template that did not come with dataprep is run in a
worker process, with limits on its time and memory.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from dataprep.formats.errors import InputError

from ..plan.plan import Unit
from ..plan.sample import Sample
from ..read.process_limits import Watch
from ..read.reader import ReadOptions
from ..read.records import Span
from ..read.sources import Source
from ..tokens.prepare import TokenSurvey
from .plan import ChatPlan
from .records.conversation import ChatBatch, Form
from .records.reader import ChatReader, ChatReadOptions
from .render.marked_texts import MarkedTexts
from .task import Renderings, read_options, renderer_of, rendering
from .trace.renderer import Renderer

__all__ = ["ChatSample", "SampleRequest", "find_form", "sample_of", "take_chat_sample"]

_PLACES = 8
_MAX_BLOCKS = 64  # read at a place: 16 MiB if they hold no usable record
_AT_ONCE = 4  # records rendered between checks of the limits
_ENDLESS = 8  # records over a limit of the template, after which sampling stops


@dataclass(kw_only=True, slots=True)
class ChatSample:
    """Rendered conversations of a sample.

    The item `documents[i]` is the rendering of record `owners[i]` of the sample. The field
    `records` is the number of records read, and `sample` describes the part of the input that was
    read. The counter `refused` maps reasons to numbers of refused records.
    """

    masked_by: str
    sample: Sample = field(default_factory=Sample)
    documents: MarkedTexts = field(default_factory=MarkedTexts)
    owners: list[int] = field(default_factory=list)
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def find_form(sources: Sequence[Source], units: Sequence[Unit], read: ChatReadOptions) -> Form:
    """Return the form of the first usable record. Raise `InputError` if there is none.

    The option `read.form` must be None, so that the fields of the record decide its form.
    """
    first: str | None = None
    for unit in units:
        for span in unit.spans:
            reader = ChatReader(sources[span.source], span, read)
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


class SampleRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Request for a sample of the input.

    Each item of `places` is a pair of an input and a span (a range) of this input. There are at
    most eight items. In item i, the field `source` of the span is i. About `room` bytes of text are
    read from each span.
    """

    chat: ChatPlan
    special_tokens: tuple[str, ...]
    read: ReadOptions
    places: tuple[tuple[Source, Span], ...]
    room: int

    @classmethod
    def of(
        cls, chat: ChatPlan, special_tokens: Iterable[str], surveyed: TokenSurvey, *, room: int
    ) -> SampleRequest:
        """Return a request for a sample of the surveyed inputs.

        About `room` bytes are read at each of up to eight places. If there are only four places or
        fewer, more bytes are read at each, so the sample is about as large as with eight.
        """
        sources, units = surveyed.sources, surveyed.units
        step = max(1, len(units) // _PLACES)
        chosen = units[::step][:_PLACES]
        places = tuple(
            (
                sources[unit.spans[0].source],
                msgspec.structs.replace(unit.spans[0], source=number),
            )
            for number, unit in enumerate(chosen)
        )
        return cls(
            chat=chat, special_tokens=tuple(special_tokens), read=surveyed.read, places=places,
            room=room * (_PLACES // max(1, len(places))),
        )  # fmt: skip


def sample_of(data: bytes) -> ChatSample:
    """Return the sample in `data`, pickled by a worker process of this build."""
    found: ChatSample = pickle.loads(data)  # noqa: S301 (our own process made it)
    return found


def take_chat_sample(request: SampleRequest, watch: Watch | None = None) -> ChatSample:
    """Return the sample for `request`. If `watch` is given, the template runs under its limits."""
    renderer = renderer_of(request.chat, request.special_tokens, watch)
    found = ChatSample(masked_by=renderer.masked_by)
    read = read_options(request.chat, request.read)
    for source, span in request.places:
        if watch is not None:
            watch.begin(
                rendering(request.chat), source=span.source, start=span.start, stop=span.stop
            )
        reader = ChatReader(source, span, read)
        _sample_span(found, reader, renderer, request.room, watch)
    return found


def _sample_span(
    found: ChatSample, reader: ChatReader, renderer: Renderer, room: int, watch: Watch | None
) -> None:
    """Add the first records of `reader`, about `room` bytes in total, to the sample `found`."""
    started = time.perf_counter()
    size = 0
    with contextlib.closing(reader.batches()) as batches:
        for number, batch in enumerate(batches):
            size += _add(found, batch, renderer, room - size, watch)
            if size * 2 >= room or number >= _MAX_BLOCKS or _is_endless(found):
                break
    found.sample.seconds += time.perf_counter() - started


def _add(
    found: ChatSample, batch: ChatBatch, renderer: Renderer, room: int, watch: Watch | None
) -> int:
    """Render the first records of `batch` and add them to `found`. Return their size in bytes.

    Rendering stops after about `room` bytes of input.
    """
    count = size = 0
    while count < len(batch.records) and size < room and not _is_endless(found):
        first = count
        while count < len(batch.records) and size < room and count < first + _AT_ONCE:
            size += batch.sizes[count]
            count += 1
        some = replace(
            batch, records=batch.records[first:count], lines=batch.lines[first:count],
            offsets=batch.offsets[first:count], plain_turns=None,
        )  # fmt: skip
        rendered = Renderings.of(some, renderer, watch=watch)
        _add_rendered(found, rendered, count - first)
    share = size / max(1, sum(batch.sizes))
    found.sample.stored_bytes += round(batch.consumed * share) if batch.records else batch.consumed
    found.sample.rejects += round(len(batch.rejects) * share)
    return size


def _is_endless(found: ChatSample) -> bool:
    """Return whether sampling must stop, because too many records exceeded the template's limits.

    The build itself reports the first such record.
    """
    return found.refused["template_limit"] >= _ENDLESS


def _add_rendered(found: ChatSample, rendered: Renderings, records: int) -> None:
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
