"""From finished units to a published dataset.

The dataset is put together in a scratch directory, large pieces by hard link and small ones joined,
described by its manifest, forced to stable storage, and then renamed to its final name in one
step. Until that rename nothing outside the staging directory has changed; after it, everything is
there. Everything written depends on the plan and the results of the units alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dataprep.formats.errors import InputError
from dataprep.formats.files import npy
from dataprep.formats.files.index_file import write_index
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import folders_of
from dataprep.formats.manifest.identity import TokenContent
from dataprep.formats.manifest.inputs import INPUTS_NAME, MANY_INPUTS, encode_inputs
from dataprep.formats.manifest.tokens import (
    FORMAT_VERSION,
    LOSS_MASK,
    PREFERENCE,
    ChatEntry,
    FileEntry,
    InputEntry,
    Manifest,
    RecordCounts,
    ShardEntry,
    SplitEntry,
    TokenizerEntry,
    TokensEntry,
)
from dataprep.formats.storage import (
    FileWriter,
    create_directory,
    storage_errors,
    sync_directory,
    sync_file,
    write_file,
)

from ..execute.task import (
    REJECTS_NAME,
    SpanResult,
    StagedReject,
    UnitResult,
    temporary_name,
    unit_name,
)
from ..plan.plan import Plan
from ..plan.recipe import token_recipe_id
from ..read.fingerprints import STREAMS, combine
from ..read.records import without_text
from ..read.sources import Source
from ..staging.directory import Staging
from ..staging.writeback import sync_or_remove
from .exact_splits import deal_out, sizes_of
from .shards import (
    PlacedPiece,
    WrittenFile,
    group,
    large_piece,
    record_ids,
    shard_folder,
    write_shard,
)

__all__ = ["Commit", "final_rejects", "in_blocks", "input_entries"]

_KIND = "tokens"
_BLOCK_BYTES = 1 << 18
INDEX_DOCUMENTS = 1 << 28
"""Splits with more documents have their record ids beside each shard, and no one file of 2 GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """Everything besides the units that goes into a dataset.

    `table_fingerprints` are those of inputs that are not read as byte streams, by number.
    """

    plan: Plan
    staging: Staging
    tokenizer: TokenizerEntry
    tokenizer_json: bytes
    options: dict[str, Any]
    shares: dict[str, float | int | None]
    table_fingerprints: dict[int, str]
    threads: int
    chat: ChatEntry | None = None
    """Of conversations: the entry, but for what the units found."""
    chat_template: bytes = b""

    def assemble(self, results: Sequence[UnitResult]) -> tuple[Path, Manifest]:
        """Write the dataset into a scratch directory, durably; returns it and its manifest."""
        scratch = self.staging.path / temporary_name()
        root = scratch / "dataset"
        create_directory(scratch)
        create_directory(root)
        records = self._count_records(results)
        files: list[WrittenFile] = []
        splits = self._write_splits(root, scratch, results, files)
        files.append(self._write(root, self.tokenizer.file, self.tokenizer_json))
        if self.chat is not None:
            files.append(self._write(root, self.chat.template, self.chat_template))
        inputs = input_entries(self.plan.sources, results, self.table_fingerprints)
        if len(inputs) > MANY_INPUTS:
            files.append(_write_blocks(root, INPUTS_NAME, encode_inputs(inputs)))
        if records.rejected:
            quoted = self.options.get("excerpts", True)
            lines = in_blocks(final_rejects(self.staging, results, excerpts=quoted))
            files.append(_write_blocks(root, REJECTS_NAME, lines))
        files.sort(key=lambda file: file.name)
        files.append(_write_crcs(root, files))
        files.sort(key=lambda file: file.name)
        manifest = self._manifest(results, inputs, records, splits, files)
        write_file(root / manifests.CONFIG_NAME, manifests.dump(manifest))
        self._sync(root, files)
        return root, manifest

    def _count_records(self, results: Sequence[UnitResult]) -> RecordCounts:
        rejected: Counter[str] = Counter()
        for result in results:
            rejected.update(result.rejected)
        read = sum(span.records for result in results for span in result.spans)
        written = sum(piece.records for result in results for piece in result.pieces)
        blank = sum(span.blank_lines for result in results for span in result.spans)
        if not written:
            raise self._nothing_written(read, rejected, results)
        return RecordCounts(
            read=read, written=written, rejected=dict(sorted(rejected.items())), blank_lines=blank
        )

    def _nothing_written(
        self, read: int, rejected: Mapping[str, int], results: Sequence[UnitResult]
    ) -> InputError:
        if not read:
            return InputError(
                "there are no records in the input",
                where=self.plan.sources[0].name,
                code="E_EMPTY",
                remedy="Check --input and --format.",
            )
        first = next(final_rejects(self.staging, results))
        detail = msgspec.json.decode(first)["detail"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.items())
        return InputError(
            f"none of the {read} records could be used ({reasons}; the first: {detail})",
            where=self.plan.sources[0].name,
            code="E_EMPTY",
            remedy="Check --field and --format." if self.chat is None else "Check --columns.",
        )

    def _write_splits(
        self,
        root: Path,
        scratch: Path,
        results: Sequence[UnitResult],
        files: list[WrittenFile],
    ) -> dict[str, SplitEntry]:
        placed = self._place(results)
        if not self.plan.splitting.ends:
            placed = self._deal_out(placed, scratch)
        large = large_piece(placed)
        splits = {}
        for name in sorted(self.plan.splitting.names, key=list(self.shares).index):
            mine = [one for one in placed if one.piece.split == name]
            splits[name] = self._write_split(root, name, mine, large, files)
        return splits

    def _place(self, results: Sequence[UnitResult]) -> list[PlacedPiece]:
        placed, first = [], 0
        for result in results:
            directory = self.staging.units / unit_name(result.number)
            placed += [
                PlacedPiece(piece=piece, directory=directory, first_record=first)
                for piece in result.pieces
            ]
            first += sum(span.records for span in result.spans)
        return placed

    def _deal_out(self, placed: Sequence[PlacedPiece], scratch: Path) -> list[PlacedPiece]:
        names = self.plan.splitting.names
        total = sum(p.piece.records for p in placed)
        sizes = sizes_of(names, self.shares, total)
        create_directory(scratch / "exact")
        return deal_out(placed, names, sizes, self.plan.encoding, scratch / "exact")

    def _write_split(
        self, root: Path, name: str, placed: Sequence[PlacedPiece], large: int,
        files: list[WrittenFile],
    ) -> SplitEntry:  # fmt: skip
        runs = list(group(placed, large))
        folders = [shard_folder(name, number, len(runs)) for number in range(len(runs))]
        for folder in sorted({name, *folders} if placed else ()):  # git would lose an empty one
            create_directory(root / folder)
        dtype = self.plan.encoding.dtype
        documents = sum(one.piece.documents for one in placed)
        own_ids = documents > INDEX_DOCUMENTS
        with ThreadPoolExecutor(self.threads) as pool:  # copying and hashing release the GIL
            jobs = [
                pool.submit(write_shard, root, folders[number], number, run, dtype, own_ids=own_ids)
                for number, run in enumerate(runs)
            ]
            done = [job.result() for job in jobs]
        shards: list[ShardEntry] = [shard for shard, _ in done]
        files += [file for _, written in done for file in written]
        if not own_ids:
            index = f"{name}_idx.pt"
            with FileWriter(root / index) as writer:
                write_index(writer, record_ids(placed), documents)  # type: ignore[arg-type]
                files.append(
                    WrittenFile(name=index, hashed=writer.close(), dtype="<i8", shape=(documents,))
                )
        return SplitEntry(
            content_id=_content_id(placed, dtype),
            index=None if own_ids else index,
            documents=documents,
            tokens=sum(shard.length for shard in shards),
            text_bytes=sum(p.piece.text_bytes for p in placed),
            zero_token_documents=sum(p.piece.zero_token_documents for p in placed),
            shards=tuple(shards),
            records=sum(p.piece.records for p in placed) if self.chat else None,
        )

    def _write(self, root: Path, name: str, data: bytes) -> WrittenFile:
        return WrittenFile(name=name, hashed=write_file(root / name, data))

    def _manifest(
        self,
        results: Sequence[UnitResult],
        inputs: tuple[InputEntry, ...],
        records: RecordCounts,
        splits: dict[str, SplitEntry],
        files: Sequence[WrittenFile],
    ) -> Manifest:
        found: Counter[str] = Counter()
        for result in results:
            found.update(result.special_text_found)
        many = any(file.name == INPUTS_NAME for file in files)
        tokenizer = msgspec.structs.replace(
            self.tokenizer, special_text_found=dict(sorted(found.items()))
        )
        encoding = self.plan.encoding
        return Manifest(
            format="dataprep",
            format_version=FORMAT_VERSION,
            required_features=self._features(results),
            kind=_KIND,
            recipe_id=token_recipe_id(inputs, self.options, tokenizer),
            tokens=TokensEntry(dtype=encoding.dtype, vocab_size=encoding.vocab_size),
            tokenizer=tokenizer,
            splits=splits,
            inputs=() if many else inputs,
            inputs_file=INPUTS_NAME if many else msgspec.UNSET,
            records=records,
            options=self.options,
            files=tuple(
                FileEntry(
                    name=file.name,
                    bytes=file.hashed.size,
                    dtype=file.dtype,
                    shape=file.shape,
                    sha256=file.hashed.sha256,
                )
                for file in files
            ),
            chat=self._chat(results),
        )

    def _features(self, results: Sequence[UnitResult]) -> tuple[str, ...]:
        kinds = {kind for result in results for piece in result.pieces for kind in piece.files}
        needed = {"mask": LOSS_MASK, "groups": PREFERENCE}
        return tuple(feature for kind, feature in needed.items() if kind in kinds)

    def _chat(self, results: Sequence[UnitResult]) -> ChatEntry | msgspec.UnsetType:
        if self.chat is None:
            return msgspec.UNSET
        overlong: Counter[str] = Counter()
        for result in results:
            overlong.update(result.overlong)
        trained = sum(piece.trained for result in results for piece in result.pieces)
        return msgspec.structs.replace(
            self.chat, overlong_found=dict(sorted(overlong.items())), trained_tokens=trained
        )

    def _sync(self, root: Path, files: Sequence[WrittenFile]) -> None:
        with ThreadPoolExecutor(self.threads * 2) as pool:
            units = [file.unit for file in files]
            list(pool.map(sync_or_remove, [root / file.name for file in files], units))
        sync_file(root / manifests.CONFIG_NAME)
        for folder in ("", *folders_of(file.name for file in files)):
            sync_directory(root / folder)


def _content_id(placed: Sequence[PlacedPiece], dtype: str) -> str:
    """Return the content id of a split of these pieces, in order."""
    content = TokenContent(dtype)
    for piece in (one.piece for one in placed):
        counts = {
            "tokens": piece.length, "lengths": piece.documents, "mask": piece.length,
            "groups": piece.records, "scores": piece.documents,
        }  # fmt: skip
        for role, crc in piece.crc32.items():
            content.add(role, counts[role], crc)
    return content.content_id


class _Result(Protocol):
    """What units of any kind leave behind."""

    @property
    def number(self) -> int: ...
    @property
    def spans(self) -> Sequence[SpanResult]: ...


def input_entries(
    sources: Sequence[Source], results: Sequence[_Result], table_fingerprints: Mapping[int, str]
) -> tuple[InputEntry, ...]:
    """The inputs with their fingerprints and the records found in each."""
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
    staging: Staging, results: Sequence[_Result], *, excerpts: bool = True
) -> Iterator[bytes]:
    """Yield the lines of rejects.jsonl, numbered over the whole build."""
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
    """`lines` joined into blocks of a few hundred kilobytes."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


def _write_blocks(root: Path, name: str, blocks: Iterable[bytes]) -> WrittenFile:
    with FileWriter(root / name) as writer:
        for block in blocks:
            writer.write(block)
        return WrittenFile(name=name, hashed=writer.close())


def _write_crcs(root: Path, files: Sequence[WrittenFile]) -> WrittenFile:
    crcs = np.concatenate([np.empty(0, np.uint32), *(file.hashed.crc32 for file in files)])
    with FileWriter(root / manifests.CRC_NAME) as writer:
        writer.write(npy.header("<u4", crcs.shape))
        writer.write(crcs.astype("<u4").data)
        hashed = writer.close()
    return WrittenFile(name=manifests.CRC_NAME, hashed=hashed, dtype="<u4", shape=crcs.shape)
