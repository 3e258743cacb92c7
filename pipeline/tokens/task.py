"""Task of the kind `tokens`: read, parse, assign splits, tokenize and write the texts of a unit.

A task holds a few batches of text and their ids in memory. The kind `chat` also uses `RecordUnit`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.storage import FileWriter, storage_errors

from ..execute.task import (
    REJECTS_NAME,
    BadRecordError,
    Done,
    Report,
    SpanResult,
    Task,
    UnitResult,
)
from ..execute.unit_files import ALL, DocumentRows, Piece, PieceWriter
from ..own_files import read_own
from ..plan.plan import PLAN_NAME, Plan, Unit, load_plan
from ..plan.splits import FEW_KEYS, Hashes, add_keys, assign, hash_keys
from ..progress import StageClock
from ..read.process_limits import Watch
from ..read.reader import SpanReader
from ..read.records import Batch, Reject, Span
from ..read.sources import Source
from ..tokenize.engines import (
    GIGATOKEN,
    TOKENIZERS,
    Encoder,
    encode_or_problem,
    load_gigatoken,
    make_encoder,
    naming,
)
from ..tokenize.reference import Encoded
from ..tokenize.special_text import SpecialTextCounter
from ..tokenize.stored_tokens import EncodingSettings, with_bos_eos
from .plan import TokenPayload

__all__ = [
    "ENGINE_NAME",
    "Encode",
    "EncodedBytes",
    "Load",
    "Ready",
    "RecordReader",
    "RecordUnit",
    "Request",
    "SplitSink",
    "TextTask",
    "TokenResult",
    "TokenTasks",
]

ENGINE_NAME = "engine.json"
"""File of the staging directory with the tokenizer.json that the engine loads."""

_SLICE_BYTES = 2 << 20  # of text: its ids fit the caches


class TokenResult(UnitResult, frozen=True, kw_only=True):
    """Result of a unit of texts or conversations. Record numbers start at 0 in each unit."""

    pieces: tuple[Piece, ...]
    special_text_found: dict[str, int]
    unknown_tokens: int
    """Tokens of the text that are the unknown token."""
    overlong: dict[str, int] = {}  # noqa: RUF012 (msgspec copies it)
    """Number of conversations that each over-length policy affected, by policy."""
    keys: tuple[int, ...] = ()
    """With `split_key`: hashes of the distinct values of the field, at most `FEW_KEYS` + 1."""

    @property
    def documents(self) -> int:
        """Number of documents written."""
        return sum(piece.documents for piece in self.pieces)

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return sum(piece.length for piece in self.pieces)

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the unit, by file name."""
        found = {
            f"{piece.stem}.{kind}": file.sha256
            for piece in self.pieces
            for kind, file in piece.files.items()
        }
        return {**found, **super().hashes()}


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class RecordReader(Protocol[B_co]):
    """Reader of the records of a span (a range of bytes or rows of one input), in batches."""

    def batches(self) -> Iterator[B_co]:
        """Yield all records of the span, in order, in batches."""

    @property
    def chunk_digests(self) -> list[str]:
        """Digests of the chunks of the span. The fingerprint of the input is made from them.

        The list is complete when the iterator `batches` has ended.
        """


class SplitSink(Protocol):
    """Writer of the documents of one split."""

    special_text: Counter[str]
    unknown: int

    def flush(self) -> int:
        """Write the buffered documents, and return the number of tokens written."""

    def finish(self) -> list[Piece]:
        """Close the files, and return all pieces (parts of the split) that were written."""


class RecordUnit(ABC, Generic[B]):
    """Base class for processing one unit, whether of texts or of conversations."""

    forgiven: frozenset[str] = frozenset()
    """Reject reasons that never stop the build, even with `on_error` "error"."""
    fatal: frozenset[str] = frozenset()
    """Reject reasons that always stop the build, even with `on_error` "skip"."""

    def __init__(
        self,
        plan: Plan[TokenPayload],
        unit: Unit,
        scratch: Path,
        *,
        report: Report,
        clock: StageClock,
    ) -> None:
        self._plan = plan
        self._unit = unit
        self._scratch = scratch
        self._report = report
        self._clock = clock
        self._overlong: Counter[str] = Counter()
        splitting = plan.splitting
        self._keys: set[int] = set()
        self._names = splitting.names if splitting.ends else (ALL,)
        self._ends = [int(end) for end in splitting.ends]
        self._records = 0
        self._done = Done(0, 0, 0, 0)
        self._rejected: Counter[str] = Counter()
        self._rejects = FileWriter(scratch / REJECTS_NAME)
        self._spans: list[SpanResult] = []

    @property
    @abstractmethod
    def sinks(self) -> Sequence[SplitSink]:
        """The writers of the splits, in the order of the plan's splits."""

    @abstractmethod
    def reader(self, source: Source, span: Span) -> RecordReader[B]:
        """Return a reader of the records in `span`, which is a part of `source`."""

    @abstractmethod
    def route(self, batch: B, span: Span) -> int:
        """Pass each document of `batch` to the writer of its split.

        Return the number of tokens written. Tokens of buffered documents do not count.
        """

    def run(self) -> TokenResult:
        """Process the unit: write its files to the scratch directory, and return the result."""
        with self._rejects:
            return self._run()

    def _run(self) -> TokenResult:
        for span in self._unit.spans:
            self._read(span)
        for sink in self.sinks:
            sink.flush()
        rejects = self._rejects.close()
        special: Counter[str] = Counter()
        for sink in self.sinks:
            special.update(sink.special_text)
        return TokenResult(
            number=self._unit.number,
            pieces=tuple(piece for sink in self.sinks for piece in sink.finish()),
            spans=tuple(self._spans),
            rejected=dict(sorted(self._rejected.items())),
            rejects_sha256=rejects.sha256,
            special_text_found=dict(sorted(special.items())),
            unknown_tokens=sum(sink.unknown for sink in self.sinks),
            overlong=dict(sorted(self._overlong.items())),
            keys=tuple(sorted(self._keys)[: FEW_KEYS + 1]),
        )

    def hashes(self, keys: Sequence[bytes]) -> Hashes:
        """Return a uint64 hash of each split key in `keys`.

        The hash decides to which split a document belongs. If there is only one split, all hashes
        are 0.
        """
        if len(self._ends) == 1:
            return np.zeros(len(keys), np.uint64)  # one split takes all
        hashes = hash_keys(keys, self._plan.splitting.seed)
        if self._plan.payload.read.split_key is not None:
            add_keys(self._keys, hashes)
        return hashes

    def _read(self, span: Span) -> None:
        source = self._plan.sources[span.source]
        lap = self._clock.lap
        reader = self.reader(source, span)
        records = lines = blank = 0
        for batch in reader.batches():
            lap("parse")
            self._take(batch, span)
            records += batch.read
            lines += batch.lines
            blank += batch.blank_lines
        lap("read")  # the end of the span, read for the fingerprint alone
        self._records += records
        self._spans.append(
            SpanResult(
                source=span.source,
                records=records,
                lines=lines,
                blank_lines=blank,
                chunk_digests=tuple(reader.chunk_digests),
            )
        )

    def _take(self, batch: B, span: Span) -> None:
        self._rejects.write(b"".join(self._reject(one, span) for one in batch.rejects))
        tokens = self.route(batch, span)
        done = self._done
        self._done = Done(
            done.bytes + batch.consumed,
            done.documents + batch.documents,
            done.tokens + tokens,
            done.rejects + len(batch.rejects),
        )
        self._report(self._done)

    def _reject(self, reject: Reject, span: Span) -> bytes:
        stops = self._plan.on_error == "error" and reject.reason not in self.forgiven
        if stops or reject.reason in self.fatal:
            raise BadRecordError(reject, span)
        self._rejected[reject.reason] += 1
        place = {"input": span.source, "span": len(self._spans)}
        fields = {**msgspec.structs.asdict(reject), **place}
        fields["record"] += self._records
        return msgspec.json.encode(fields) + b"\n"


class TextTask:
    """Task that processes units of texts with `encoder`."""

    def __init__(self, plan: Plan[TokenPayload], encoder: Encoder) -> None:
        self._plan = plan
        self._encoder = encoder

    def run(
        self, number: int, scratch: Path, report: Report, clock: StageClock, threads: int
    ) -> TokenResult:
        """Process unit `number`: write its files to `scratch`, and return the result."""
        if threads:
            self._encoder.spread(threads)
        plan, unit = self._plan, self._plan.units[number]
        with naming(plan.payload.tokenizer):
            return _TextUnit(self._encoder, plan, unit, scratch, report=report, clock=clock).run()


class _TextUnit(RecordUnit[Batch]):
    def __init__(
        self, encoder: Encoder, plan: Plan[TokenPayload], unit: Unit, scratch: Path, *,
        report: Report, clock: StageClock,
    ) -> None:  # fmt: skip
        super().__init__(plan, unit, scratch, report=report, clock=clock)
        self._sinks = [
            TextSink(name, plan.payload.encoding, encoder, scratch, clock) for name in self._names
        ]

    @property
    def sinks(self) -> Sequence[TextSink]:
        return self._sinks

    def reader(self, source: Source, span: Span) -> SpanReader:
        lap = self._clock.lap
        return SpanReader(source, span, self._plan.payload.read, lap=lap)

    def route(self, batch: Batch, span: Span) -> int:
        """Pass each document of `batch` to the writer of its split.

        Return the number of tokens written. Tokens of buffered documents do not count.
        """
        if not batch.texts:
            return 0
        texts = [text.encode() for text in batch.texts]
        rows = self._rows(batch, texts, span)
        self._clock.lap("split")
        if len(self._sinks) == 1:
            return self._sinks[0].add(texts, rows)
        parts = assign(rows.hashes, self._ends)
        tokens = 0
        for number, sink in enumerate(self._sinks):
            chosen = np.flatnonzero(parts == number)
            if len(chosen):
                tokens += sink.add([texts[index] for index in chosen.tolist()], rows.take(chosen))
        return tokens

    def _rows(self, batch: Batch, texts: list[bytes], span: Span) -> DocumentRows:
        count = len(texts)
        offsets = np.asarray(batch.offsets, np.uint64)
        return DocumentRows(
            sizes=np.fromiter(map(len, texts), np.int64, count),
            source=np.stack([np.full(count, span.source, np.uint64), offsets], 1),
            records=np.asarray(batch.records).astype(np.int64) + self._records,
            hashes=self.hashes(batch.keys or texts),
        )


class Load(msgspec.Struct, frozen=True, tag=True):
    """Request to load a tokenizer into an engine, before the plan is complete.

    The field `engine` holds the tokenizer.json, and `name` is the name of the engine.
    """

    name: str
    engine: msgspec.Raw


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Request for the ids and offsets of `texts`. On failure, the reply states the reason."""

    texts: list[str]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Request to load everything else that units need.

    It is the last request before the first unit.
    """


Request = Load | Encode | Ready
EncodedBytes = tuple[bytes, bytes]
"""Answer to `Encode`: the bytes of the ids (uint32) and of the offsets (int64), in native order."""
# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_REQUEST = msgspec.json.Decoder(Request)
_PLAN = msgspec.json.Decoder(Plan[TokenPayload])


class TokenTasks:
    """The part of the kind `tokens` that runs in worker processes.

    It can load the tokenizer before there is a plan. Once there is a plan, it makes the task that
    processes units.
    """

    address = "dataprep.pipeline.tokens.task:TokenTasks"
    libraries = ("gigatoken",)

    def __init__(self) -> None:
        self._early: tuple[str, bytes, Encoder] | None = None
        self._engine_json = b""
        self._refused: str | None = None

    def answer(self, request: bytes, watch: Watch | None) -> bytes:
        """Carry out the encoded `Request`, and return the answer as JSON."""
        asked = _REQUEST.decode(request)
        if isinstance(asked, Load):
            self._load(asked.name, bytes(asked.engine))
        elif isinstance(asked, Encode):
            return msgspec.json.encode(self._ids([text.encode() for text in asked.texts]))
        else:
            self.get_ready(self._engine_json)
        return b"null"

    def get_ready(self, engine_json: bytes) -> None:
        """Load the reference library (tokenizers) if gigatoken could not load the tokenizer.

        The units will then be encoded with the reference library.
        """
        if self._refused is not None:
            self._load_reference()

    def open_task(self, staging: Path, watch: Watch | None) -> Task:
        """Return a task that processes the units of the plan in the directory `staging`."""
        plan = load_plan(staging / PLAN_NAME, _PLAN)
        with naming(plan.payload.tokenizer):
            return TextTask(plan, self.encoder(plan, staging))

    def encoder(self, plan: Plan[TokenPayload], staging: Path) -> Encoder:
        """Return the encoder that the plan names, loaded from the directory `staging`.

        Raise `IncompatibleError` if its ids for the probe texts differ from the ids in the plan.
        """
        with storage_errors(staging):
            engine_json = read_own(staging / ENGINE_NAME)
        name = plan.payload.encoding.engine
        if self._early and self._early[:2] == (name, engine_json):
            encoder = self._early[2]
        else:
            encoder = make_encoder(name, engine_json, alone=True)
        self._early = None
        _check_probes(plan.payload, encoder)
        return encoder

    def _load(self, name: str, engine_json: bytes) -> None:
        self._engine_json = engine_json
        with contextlib.suppress(MemoryError):  # a unit reports it if it occurs again
            if name == TOKENIZERS:
                self._load_reference()
                return
            encoder, self._refused = load_gigatoken(engine_json, alone=True)
            if encoder is not None:
                self._early = (GIGATOKEN, engine_json, encoder)

    def _load_reference(self) -> None:
        with contextlib.suppress(Exception):  # the coordinator reports the error
            encoder = make_encoder(TOKENIZERS, self._engine_json)
            self._early = (TOKENIZERS, self._engine_json, encoder)

    def _ids(self, texts: list[bytes]) -> EncodedBytes | str | None:
        found: Encoded | str | None = self._refused
        with contextlib.suppress(MemoryError):  # the coordinator encodes them instead
            found = encode_or_problem(self._early[2], texts) if self._early else found
        if found is None or isinstance(found, str):
            return found
        return found[0].tobytes(), found[1].tobytes()


def _check_probes(payload: TokenPayload, encoder: Encoder) -> None:
    """Raise `IncompatibleError` unless `encoder` gives the ids stored with the probe texts."""
    ids, offsets = encoder.encode([probe.text.encode() for probe in payload.probes])
    for number, probe in enumerate(payload.probes):
        if tuple(ids[offsets[number] : offsets[number + 1]].tolist()) != probe.ids:
            raise IncompatibleError(
                f"the tokenizer gives other ids here for {probe.text!r}", where="worker",
                code="E_ENGINE",
                remedy="Use the same versions of gigatoken and tokenizers on all machines.",
            )  # fmt: skip


class TextSink:
    """Writer of the texts of one split, which buffers texts and encodes them together."""

    def __init__(
        self,
        name: str,
        encoding: EncodingSettings,
        encoder: Encoder,
        scratch: Path,
        clock: StageClock,
    ) -> None:
        self._lap = clock.lap
        self._encoding = encoding
        self._encoder = encoder
        self._writer = PieceWriter(
            scratch, name, encoding.dtype, added=encoding.added, keys=name == ALL,
            lap=clock.lap,
        )  # fmt: skip
        self._counter = SpecialTextCounter(encoding)
        self.special_text = self._counter.found
        self.unknown = 0
        self._texts: list[bytes] = []
        self._rows: list[DocumentRows] = []
        self._bytes = 0

    def add(self, texts: list[bytes], rows: DocumentRows) -> int:
        """Buffer UTF-8 `texts`, and write all buffered texts if the buffer is full.

        Return the number of tokens written, which is 0 until the buffer is full.
        """
        self._texts += texts
        self._rows.append(rows)
        self._bytes += int(rows.sizes.sum())
        return self.flush() if self._bytes >= self._encoder.batch_bytes else 0

    def flush(self) -> int:
        """Encode and write the buffered documents, and return the number of tokens written."""
        if not self._texts:
            return 0
        self._lap("split")
        ids, offsets = self._encoder.encode(self._texts)
        self._lap("encode")
        texts, rows = self._texts, DocumentRows.join(self._rows)
        self._texts, self._rows, self._bytes = [], [], 0
        return sum(
            self._write(
                texts[part], rows.take(part),
                ids[offsets[part.start] : offsets[part.stop]],
                offsets[part.start : part.stop + 1] - offsets[part.start],
            )
            for part in _slices(rows.sizes)
        )  # fmt: skip

    def _write(
        self,
        texts: list[bytes],
        rows: DocumentRows,
        ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
    ) -> int:
        """Write the given documents with BOS and EOS, and return the number of tokens written."""
        encoding = self._encoding
        self._counter.count(texts, ids)
        if encoding.unknown is not None:
            self.unknown += int(np.count_nonzero(ids == encoding.unknown))
        self._lap("special")
        stored, lengths = with_bos_eos(
            ids, offsets, bos=encoding.bos, eos=encoding.eos,
            dtype=encoding.dtype, vocab_size=encoding.vocab_size,
        )  # fmt: skip
        self._lap("narrow")
        self._writer.write(stored, lengths, rows)
        return len(stored)

    def finish(self) -> list[Piece]:
        """Close the files, and return all pieces (parts of the split) that were written."""
        return self._writer.finish()


def _slices(sizes: npt.NDArray[np.int64]) -> list[slice]:
    """Return slices that divide the documents into parts of about `_SLICE_BYTES` of text each.

    >>> _slices(np.array([2, 1]) << 20), _slices(np.array([1, 1, 1]))
    ([slice(0, 1, None), slice(1, 2, None)], [slice(0, 3, None)])
    """
    bands = (np.cumsum(sizes) - 1) // _SLICE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]
