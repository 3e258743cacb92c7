"""Assembly of a dataset of tokens from finished units, in a scratch directory.

A piece is the part of a split that one unit wrote. Large pieces become shards by hard link, and
small pieces are joined. The manifest is written last, and everything is forced to stable storage.
Then `pipeline/run.py` publishes the dataset by one rename. Until then, nothing outside the staging
directory changes. The files depend only on the plan and the results of the units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats.errors import InputError
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.identity import TokenContent
from dataprep.formats.manifest.tokens import (
    FORMAT_VERSION,
    LOSS_MASK,
    PREFERENCE,
    ChatEntry,
    FileEntry,
    Manifest,
    RecordCounts,
    SplitEntry,
    TokenizerEntry,
    TokensEntry,
)
from dataprep.formats.storage import create_directory
from dataprep.formats.write.dataset_writer import DatasetWriter

from ..commit.exact_splits import distribute, split_sizes
from ..commit.provenance import final_rejects, in_blocks, input_entries
from ..commit.shards import (
    PlacedPiece,
    group,
    large_piece,
    record_ids,
    shard_folder,
    write_shard,
)
from ..execute.task import REJECTS_NAME, unit_name
from ..plan.plan import Plan
from ..staging.directory import Staging
from .plan import TokenPayload
from .reuse import token_recipe_id
from .task import TokenResult

__all__ = ["TokenAssembler", "unknown_notes"]

_KIND = "tokens"
_UNKNOWN_SHARE = 0.01  # of all tokens: a tokenizer that suits the text gives far fewer
INDEX_DOCUMENTS = 1 << 28
"""Splits with more documents store record ids per shard, not in one index file of over 2 GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenAssembler:
    """Writer of a dataset of tokens, from the results of the units of a build.

    The field `table_fingerprints` maps the index of each input that is a table to its fingerprint.
    """

    plan: Plan[TokenPayload]
    staging: Staging
    scratch: Path
    tokenizer: TokenizerEntry
    tokenizer_json: bytes
    options: dict[str, Any]
    shares: dict[str, float | int | None]
    table_fingerprints: dict[int, str]
    threads: int
    chat: ChatEntry | None = None
    """In builds of conversations: the manifest entry, with counts still 0."""
    chat_template: bytes = b""

    def assemble(self, results: Sequence[TokenResult]) -> tuple[Path, Manifest]:
        """Write the dataset to stable storage, and return its directory and its manifest."""
        root = self.scratch / "dataset"
        create_directory(root)
        records = self._count_records(results)
        writer = DatasetWriter(root, threads=self.threads)
        splits = self._write_splits(writer, results)
        writer.write(self.tokenizer.file, self.tokenizer_json)
        if self.chat is not None:
            writer.write(self.chat.template, self.chat_template)
        inputs = input_entries(self.plan.sources, results, self.table_fingerprints)
        stated = writer.write_inputs(inputs)
        if records.rejected:
            quoted = self.options.get("excerpts", True)
            lines = in_blocks(final_rejects(self.staging, results, excerpts=quoted))
            writer.write(REJECTS_NAME, lines)
        tokenizer = self._tokenizer(results)
        encoding = self.plan.payload.encoding

        def manifest(files: tuple[FileEntry, ...]) -> Manifest:
            return Manifest(
                format="dataprep", format_version=FORMAT_VERSION,
                required_features=self._features(results), kind=_KIND,
                recipe_id=token_recipe_id(inputs, self.options, tokenizer),
                tokens=TokensEntry(dtype=encoding.dtype, vocab_size=encoding.vocab_size),
                tokenizer=tokenizer, splits=splits, inputs=stated.inputs,
                inputs_file=stated.inputs_file, records=records, options=self.options, files=files,
                chat=self._chat(results),
            )  # fmt: skip

        return root, manifests.parse(writer.finish(manifest))

    def _count_records(self, results: Sequence[TokenResult]) -> RecordCounts:
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
        self, read: int, rejected: Mapping[str, int], results: Sequence[TokenResult]
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
        self, writer: DatasetWriter, results: Sequence[TokenResult]
    ) -> dict[str, SplitEntry]:
        placed = self._place(results)
        if not self.plan.splitting.ends:
            placed = self._distribute(placed)
        large = large_piece(placed)
        splits = {}
        for name in sorted(self.plan.splitting.names, key=list(self.shares).index):
            mine = [one for one in placed if one.piece.split == name]
            splits[name] = self._write_split(writer, name, mine, large)
        return splits

    def _place(self, results: Sequence[TokenResult]) -> list[PlacedPiece]:
        placed, first = [], 0
        for result in results:
            directory = self.staging.units / unit_name(result.number)
            placed += [
                PlacedPiece(piece=piece, directory=directory, first_record=first)
                for piece in result.pieces
            ]
            first += sum(span.records for span in result.spans)
        return placed

    def _distribute(self, placed: Sequence[PlacedPiece]) -> list[PlacedPiece]:
        names = self.plan.splitting.names
        total = sum(p.piece.records for p in placed)
        sizes = split_sizes(names, self.shares, total)
        create_directory(self.scratch / "exact")
        return distribute(placed, names, sizes, self.plan.payload.encoding, self.scratch / "exact")

    def _write_split(
        self, writer: DatasetWriter, name: str, placed: Sequence[PlacedPiece], large: int
    ) -> SplitEntry:
        runs = list(group(placed, large))
        folders = [shard_folder(name, number, len(runs)) for number in range(len(runs))]
        for folder in sorted(
            {name, *folders} if placed else ()
        ):  # no empty folders: git drops them
            writer.folder(folder)
        dtype = self.plan.payload.encoding.dtype
        documents = sum(one.piece.documents for one in placed)
        own_ids = documents > INDEX_DOCUMENTS
        with ThreadPoolExecutor(self.threads) as pool:  # copying and hashing release the GIL
            jobs = [
                pool.submit(
                    write_shard, writer, folders[number], number, run, dtype, own_ids=own_ids
                )
                for number, run in enumerate(runs)
            ]
            shards = [job.result() for job in jobs]
        if not own_ids:
            index = f"{name}_idx.pt"
            writer.write_index(index, record_ids(placed), documents)
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

    def _tokenizer(self, results: Sequence[TokenResult]) -> TokenizerEntry:
        found: Counter[str] = Counter()
        for result in results:
            found.update(result.special_text_found)
        return msgspec.structs.replace(
            self.tokenizer, special_text_found=dict(sorted(found.items()))
        )

    def _features(self, results: Sequence[TokenResult]) -> tuple[str, ...]:
        kinds = {kind for result in results for piece in result.pieces for kind in piece.files}
        needed = {"mask": LOSS_MASK, "groups": PREFERENCE}
        return tuple(feature for kind, feature in needed.items() if kind in kinds)

    def _chat(self, results: Sequence[TokenResult]) -> ChatEntry | msgspec.UnsetType:
        if self.chat is None:
            return msgspec.UNSET
        overlong: Counter[str] = Counter()
        for result in results:
            overlong.update(result.overlong)
        trained = sum(piece.trained for result in results for piece in result.pieces)
        return msgspec.structs.replace(
            self.chat, overlong_found=dict(sorted(overlong.items())), trained_tokens=trained
        )


def _content_id(placed: Sequence[PlacedPiece], dtype: str) -> str:
    """Return the content id of the split that consists of the pieces `placed`, in this order."""
    content = TokenContent(dtype)
    for piece in (one.piece for one in placed):
        counts = {
            "tokens": piece.length, "lengths": piece.documents, "mask": piece.length,
            "groups": piece.records, "scores": piece.documents,
        }  # fmt: skip
        for role, crc in piece.crc32.items():
            content.add(role, counts[role], crc)
    return content.content_id


def unknown_notes(splits: Mapping[str, SplitEntry], unknown: int) -> Iterator[str]:
    """Yield a note if more than 1 % of the tokens of `splits` are unknown tokens.

    The argument `unknown` is the number of unknown tokens.
    """
    tokens = sum(split.tokens for split in splits.values())
    if unknown > _UNKNOWN_SHARE * tokens:
        yield (
            f"{unknown:,} tokens, {unknown / tokens:.1%} of all, are the unknown token: what they "
            "stood for is lost; choose a --tokenizer that knows this text"
        )
