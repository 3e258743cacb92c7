"""Task of the kind `chat`: read, render, encode, mask, cut and write the conversations of a unit.

Records are rendered and encoded in blocks of 256 KiB as they are read, so every problem of a record
is found before the next block is read. A record is also bad if the template fails on its
conversation, or if the conversation is too long or has nothing to train on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.read.boundaries import ragged
from dataprep.formats.read.sharded import distinct

from ..execute.task import Report
from ..execute.unit_files import ALL, DocumentRows, Marks, Piece, PieceWriter
from ..plan.plan import Plan, Unit
from ..plan.splits import assign
from ..progress import StageClock
from ..read.process_limits import Watch
from ..read.reader import ReadOptions
from ..read.records import Batch, Reject, Span, excerpt
from ..read.sources import Source
from ..tokenize.engines import Encoder, naming
from ..tokens.task import RecordUnit, TokenResult
from .encode import MarkedEncoder
from .overlong import OVERLONG, UNDECIDED, Cutter, Parts
from .plan import ChatPayload, ChatPlan
from .records.conversation import ChatBatch, ChatRecord, Conversation
from .records.reader import ChatReader, ChatReadOptions
from .render.marked_texts import Filled, MarkedTexts
from .template.compiled import OUT_OF_MEMORY, RenderError
from .trace.renderer import Renderer

__all__ = ["ChatTask", "Renderings", "read_options", "renderer_of", "rendering"]

_FEW = 8  # if at most one of 8 documents is chosen, positions are cheaper than a boolean mask


class ChatTask:
    """Task that processes units of conversations.

    The template is compiled once. If `watch` is given, the template runs under its limits.
    """

    def __init__(
        self,
        plan: Plan[ChatPayload],
        encoder: Encoder,
        engine_json: bytes,
        watch: Watch | None = None,
    ) -> None:
        self._plan = plan
        self._encoder = encoder
        payload = plan.payload
        self._resources = _Resources(
            renderer=renderer_of(payload.chat, payload.encoding.special_tokens, watch),
            encoder=MarkedEncoder(payload.encoding, encoder, engine_json), watch=watch,
        )  # fmt: skip

    def run(
        self, number: int, scratch: Path, report: Report, clock: StageClock, threads: int
    ) -> TokenResult:
        """Process unit `number`, write its files to `scratch`, and return its result.

        If `threads` is not 0, the engine may encode with up to `threads` threads.
        """
        if threads:
            self._encoder.spread(threads)
        plan, unit = self._plan, self._plan.units[number]
        with naming(plan.payload.tokenizer):
            return _ChatUnit(self._resources, plan, unit, scratch, report=report, clock=clock).run()


def renderer_of(
    chat: ChatPlan, special_tokens: Iterable[str], watch: Watch | None = None
) -> Renderer:
    """Return the renderer for the template and the settings in `chat`.

    If `watch` is given, the template is compiled under its limits. Raise `InputError` if the
    template does not compile.
    """
    if watch is not None:
        watch.begin(f"compiling the template {chat.template_origin}")
    with _limits(watch):
        return Renderer(
            chat.template, train_on=chat.train_on, variables=chat.variables,
            special_tokens=tuple(special_tokens), literal=chat.literal, date=chat.date,
            origin=chat.template_origin,
        )  # fmt: skip


def rendering(chat: ChatPlan) -> str:
    """Return the description of the rendering step, as an argument for `Watch.begin`.

    Error messages contain this description if a worker process ends during the step.
    """
    return f"rendering it by the template {chat.template_origin}"


def _limits(watch: Watch | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if watch is None else watch.limits()


def read_options(chat: ChatPlan, read: ReadOptions) -> ChatReadOptions:
    """Return the options for reading the records of a plan."""
    return ChatReadOptions(
        shape=chat.shape, form=chat.form, columns=chat.columns, system=chat.system,
        split_key=read.split_key, hf_config=read.hf_config, hf_split=read.hf_split,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Resources:
    """Objects that all units of a task share."""

    renderer: Renderer
    encoder: MarkedEncoder
    watch: Watch | None


@dataclass(kw_only=True, slots=True)
class Renderings:
    """Rendered conversations of a batch of records, and the records that were refused.

    The item `documents[i]` is the rendering of record `owners[i]` of the batch. The mapping
    `refused` maps the index of each refused record to the reason and its detail.
    """

    documents: MarkedTexts = field(default_factory=MarkedTexts)
    owners: list[int] = field(default_factory=list)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, batch: ChatBatch, renderer: Renderer, *, until_refused: bool = False,
        watch: Watch | None = None,
    ) -> Renderings:  # fmt: skip
        """Return the renderings of all records of `batch`.

        With `until_refused`, rendering stops at the first record that is refused. If `watch` is
        given, the template runs under its limits. The time limit starts again at each record for
        which the template runs.
        """
        found = cls()
        if watch is not None and batch.records:
            watch.at(batch.lines[0], int(batch.offsets[0]))
        with _limits(watch):
            found._render(batch, renderer, until_refused, watch)
        return found

    def _render(
        self, batch: ChatBatch, renderer: Renderer, until_refused: bool, watch: Watch | None
    ) -> None:
        conversations = [one for record in batch.records for one in record.conversations]
        filled = renderer.fill(conversations, batch.plain_turns)
        if None not in filled and len(filled) == len(batch.records):
            self.documents.extend(filled)  # type: ignore[arg-type]  # None is not among them
            self.owners += range(len(filled))
            return
        texts: list[Filled] = []
        stop = 0
        for number, record in enumerate(batch.records):
            start, stop = stop, stop + len(record.conversations)
            found: Sequence[Any] = filled[start:stop]
            if None in found:
                if watch is not None:
                    watch.at(batch.lines[number], int(batch.offsets[number]))
                try:
                    found = list(map(renderer.render, record.conversations))
                except RenderError as error:
                    self.refused[number] = (error.reason, error.detail)
                    if until_refused:
                        break
                    continue
            texts += found
            self.owners += [number] * len(found)
        self.documents.extend(texts)


@dataclass(kw_only=True, slots=True)
class _EncodedBatch(Batch):
    """Encoded documents of a batch.

    The array `ids` holds the tokens of all documents, concatenated. The field `marks` holds their
    loss mask and the scores of the documents. The other arrays have one item for each document.
    The number of tokens is in `lengths`, and the bytes of text are in `sizes`. The position of the
    record in the input is in `starts`, and the hash that decides the split is in `hashes`.
    """

    ids: npt.NDArray[np.generic]
    lengths: npt.NDArray[np.int64]
    marks: Marks
    sizes: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    """Number of the record of each document within the span."""
    starts: npt.NDArray[np.uint64]
    hashes: npt.NDArray[np.uint64]

    @property
    def documents(self) -> int:
        return len(self.lengths)


class _EncodedReader:
    """Reader for the encoded batches of a span."""

    def __init__(self, reader: ChatReader, encode: Callable[[ChatBatch], _EncodedBatch]) -> None:
        self._reader = reader
        self._encode = encode

    def batches(self) -> Iterator[_EncodedBatch]:
        return map(self._encode, self._reader.batches())

    @property
    def chunk_digests(self) -> list[str]:
        return self._reader.chunk_digests


class _ChatSink:
    """Writer for the documents of one split; see `tokens.task.SplitSink`."""

    def __init__(self, writer: PieceWriter) -> None:
        self._writer = writer
        self.special_text: Counter[str] = Counter()
        self.unknown = 0
        self.write = writer.write
        self.finish: Callable[[], list[Piece]] = writer.finish

    def flush(self) -> int:
        """Do nothing, because no tokens are buffered. Return 0, the number of tokens written."""
        return 0


class _ChatUnit(RecordUnit[_EncodedBatch]):
    def __init__(
        self,
        resources: _Resources,
        plan: Plan[ChatPayload],
        unit: Unit,
        scratch: Path,
        *,
        report: Report,
        clock: StageClock,
    ) -> None:  # fmt: skip
        super().__init__(plan, unit, scratch, report=report, clock=clock)
        self._chat = plan.payload.chat
        self._resources = resources
        self._reading = read_options(self._chat, plan.payload.read)
        self.fatal = frozenset({UNDECIDED, OUT_OF_MEMORY})
        if self._chat.overlong == "drop":
            self.forgiven = frozenset({OVERLONG})
        self._cutter = Cutter(self._chat, self._overlong)
        self._sinks = [
            _ChatSink(
                PieceWriter(
                    scratch,
                    name,
                    plan.payload.encoding.dtype,
                    added=0,
                    keys=name == ALL,
                    lap=clock.lap,
                )
            )
            for name in self._names
        ]
        resources.renderer.special_text.clear()
        self._sinks[0].special_text = resources.renderer.special_text

    @property
    def sinks(self) -> Sequence[_ChatSink]:
        return self._sinks

    def reader(self, source: Source, span: Span) -> _EncodedReader:
        if self._resources.watch is not None:
            self._resources.watch.begin(
                rendering(self._chat), source=span.source, start=span.start, stop=span.stop
            )
        reader = ChatReader(source, span, self._reading, lap=self._clock.lap)
        return _EncodedReader(reader, self._encode)

    def _encode(self, batch: ChatBatch) -> _EncodedBatch:
        """Return the documents of `batch`: its conversations rendered, tokenized, masked and cut.

        Records that are refused become rejects of the result.
        """
        lap = self._clock.lap
        lap("parse")
        stops = self._plan.on_error == "error"
        found = Renderings.of(
            batch, self._resources.renderer, until_refused=stops, watch=self._resources.watch
        )
        lap("render")
        ids, offsets, mask = self._resources.encoder.encode(found.documents)
        lap("encode")
        owners = np.array(found.owners, np.int64)
        parts, refused = self._cutter.cut(offsets, mask, owners)
        for number, refusal in refused.items():
            found.refused[number] = (refusal.reason, refusal.detail)
        encoded = self._batch(batch, found, (ids, mask), parts)
        lap("mask")
        return encoded

    def _batch(
        self, batch: ChatBatch, found: Renderings,
        tokens: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]], parts: Parts,
    ) -> _EncodedBatch:  # fmt: skip
        ids, mask = tokens
        if not parts.whole(len(ids)):
            kept = _kept_tokens(parts, len(ids))
            ids, mask = ids[kept], mask[kept]
        unknown = self._plan.payload.encoding.unknown
        if unknown is not None:
            self._sinks[0].unknown += int(np.count_nonzero(ids == unknown))
        owners = np.array(found.owners, np.int64)[parts.documents]
        sizes = np.fromiter(map(len, found.documents.texts), np.int64, len(found.documents))
        rejects = [*batch.rejects, *(_reject(batch, *item) for item in found.refused.items())]
        return _EncodedBatch(
            ids=ids.astype(self._plan.payload.encoding.dtype, copy=False),
            lengths=parts.stops - parts.starts,
            marks=Marks(mask=mask, scores=self._scores(batch, found, parts)),
            sizes=_text_bytes(sizes, parts.documents),
            numbers=np.asarray(batch.numbers).astype(np.int64)[owners],
            starts=np.asarray(batch.offsets, np.uint64)[owners],
            hashes=self._hashes(batch, found)[owners],
            rejects=sorted(rejects, key=lambda reject: reject.record),
            read=batch.read, lines=batch.line_count, blank_lines=batch.blank_lines,
            consumed=batch.consumed,
        )  # fmt: skip

    def _scores(
        self, batch: ChatBatch, found: Renderings, parts: Parts
    ) -> npt.NDArray[np.float32] | None:
        if self._chat.form == "chat":
            return None
        refused = _are_unrendered(found, len(batch.records))
        scores = [
            score
            for record, bad in zip(batch.records, refused, strict=True) if not bad
            for score in record.scores or ()
        ]  # fmt: skip
        return np.array(scores, np.float32)[parts.documents]

    def _hashes(self, batch: ChatBatch, found: Renderings) -> npt.NDArray[np.uint64]:
        """Return the hash of the split key of each record, uint64 [records].

        The hashes are 0 if there is only one split.
        """
        if len(self._ends) == 1:
            return np.zeros(len(batch.records), np.uint64)  # one split takes all
        return self.hashes(batch.keys or self._own_keys(batch, found))

    def _own_keys(self, batch: ChatBatch, found: Renderings) -> list[bytes]:
        """Return the split key of each record, for a build without the option `split_key`.

        The key of a conversation is its rendered text. The key of a preference record is its prompt
        or, if there is no prompt, its first text. The key of a refused record is meaningless.
        """
        texts = found.documents.texts
        if found.owners == list(range(len(batch.records))) and self._chat.form == "chat":
            return texts
        keys = [b""] * len(batch.records)
        for owner, text in zip(reversed(found.owners), reversed(texts), strict=True):
            keys[owner] = text
        if self._chat.form == "chat":
            return keys
        return [_prompt(record) or key for record, key in zip(batch.records, keys, strict=True)]

    def route(self, batch: _EncodedBatch, span: Span) -> int:
        """Write the documents of `batch` to their splits. Return the number of tokens written."""
        if not batch.documents:
            return 0
        source = np.stack([np.full(batch.documents, span.source, np.uint64), batch.starts], 1)
        rows = DocumentRows(
            sizes=batch.sizes, source=source, records=batch.numbers + self._records,
            hashes=batch.hashes,
        )  # fmt: skip
        if len(self._sinks) == 1:
            self._sinks[0].write(batch.ids, batch.lengths, rows, batch.marks)
            return len(batch.ids)
        split = assign(batch.hashes, self._ends)
        for number in distinct(split).tolist():
            chosen = np.flatnonzero(split == number)
            own = _tokens_of(chosen, batch.lengths)
            marks = batch.marks.take(own, chosen)
            self._sinks[number].write(
                batch.ids[own], batch.lengths[chosen], rows.take(chosen), marks
            )
        return len(batch.ids)


def _tokens_of(
    chosen: npt.NDArray[np.intp], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_] | npt.NDArray[np.int64]:
    """Return an index that selects the tokens of the `chosen` documents.

    The index is a boolean mask or, if few documents are chosen, an array of positions.
    """
    if len(chosen) * _FEW > len(lengths):
        own = np.zeros(len(lengths), np.bool_)
        own[chosen] = True
        return np.repeat(own, lengths)
    starts = (np.cumsum(lengths) - lengths)[chosen]
    return ragged(starts, starts + lengths[chosen])[1]


def _kept_tokens(parts: Parts, tokens: int) -> npt.NDArray[np.bool_]:
    """Return a boolean mask [tokens] of the tokens that belong to a part.

    The parts must be in order and not overlap.
    """
    steps = np.zeros(tokens + 1, np.int64)
    np.add.at(steps, parts.starts, 1)
    np.add.at(steps, parts.stops, -1)
    return np.cumsum(steps)[:-1] > 0


def _text_bytes(
    sizes: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the text size of each part in bytes.

    The array `sizes` holds the text size of each document, and `documents` the index of the
    document of each part. If a document is cut, its whole size counts for its first part, and the
    other parts have 0 bytes.
    """
    first = np.diff(documents, prepend=-1) != 0
    return np.where(first, sizes[documents], 0)


def _are_unrendered(found: Renderings, count: int) -> list[bool]:
    has = np.zeros(count, bool)
    has[found.owners] = True
    return (~has).tolist()


def _prompt(record: ChatRecord) -> bytes:
    """Return the prompt of a record as JSON, or b"" if it has none."""
    one: Conversation = record.conversations[0]
    return msgspec.json.encode(one.messages[: one.prompt]) if one.prompt else b""


def _reject(batch: ChatBatch, number: int, why: tuple[str, str]) -> Reject:
    """Return the reject for the record with the index `number` in `batch`.

    The argument `why` is a pair (reason, detail).
    """
    reason, detail = why
    record = batch.records[number]
    raw = msgspec.json.encode(record.conversations[0].messages)
    return Reject(
        record=int(batch.numbers[number]), line=batch.lines[number],
        offset=int(batch.offsets[number]), bytes=batch.sizes[number], reason=reason, detail=detail,
        excerpt=excerpt(raw),
    )  # fmt: skip
