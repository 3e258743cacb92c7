"""config.json of a dataset of tokens, as typed structs that are validated when a dataset is opened.

Loading costs one read and one decode: a few milliseconds for 10,000 shards. All facts about a
dataset come from the structs below, and none is guessed from its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from .common import (
    CONFIG_NAME,
    CRC_NAME,
    FORMAT_VERSION,
    KNOWN_FEATURES,
    LOSS_MASK,
    MAX_CONFIG_BYTES,
    NO_DIGEST,
    PREFERENCE,
    Count,
    Entry,
    FileEntry,
    InputEntry,
    RecordCounts,
    check_content_id,
    check_files,
    check_inputs_file,
    check_known,
    check_name,
    check_records,
    check_split_name,
    decode,
    insist,
    read,
    read_header,
)

__all__ = [
    "CONFIG_NAME",
    "CRC_NAME",
    "FORMAT_VERSION",
    "KNOWN_FEATURES",
    "LOSS_MASK",
    "MAX_CONFIG_BYTES",
    "PREFERENCE",
    "ChatEntry",
    "FileEntry",
    "InputEntry",
    "Manifest",
    "Probe",
    "RecordCounts",
    "ShardEntry",
    "SpecialToken",
    "SplitEntry",
    "TokenizerEntry",
    "TokensEntry",
    "check_name",
    "load",
    "parse",
    "read",
]


class ShardEntry(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """Names of the files of one shard, which has `documents` documents and `length` tokens.

    - `mask`, in datasets of conversations, is the file with the loss mask.
    - `scores`, in datasets of preferences, is the file with the scores (float32 [documents]).
    - `groups`, in datasets of preferences, is the file that says which documents form a record
      (uint64 [records + 1]). It holds the index in the shard of each record's first document, and
      at the end the number of documents.
    - `record_ids` is the file with the record id of each document (int64 [documents]). It exists
      only if the split has no index file.
    """

    tokens: str
    docs: str
    source: str
    documents: Count
    length: Count
    mask: str | None = None
    groups: str | None = None
    scores: str | None = None
    record_ids: str | None = None
    records: Count | None = None
    """Number of records of preferences, whose documents are consecutive."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files of the shard."""
        extra = (self.mask, self.groups, self.scores, self.record_ids)
        return (self.tokens, self.docs, self.source, *(name for name in extra if name is not None))


class SplitEntry(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """A split of a dataset of tokens.

    `text_bytes` is the size of all texts of the split as UTF-8, or null if it is unknown.
    `content_id` is the digest of the content of the split (see `identity`). `index` is the file
    with the record ids of all documents, or null if each shard has a file with its own record ids.
    `records` is the number of records, which is stored only if a record may have several documents.
    """

    content_id: str
    index: str | None
    documents: Count
    tokens: Count
    text_bytes: Count | None
    zero_token_documents: Count
    shards: tuple[ShardEntry, ...]
    records: Count | None = None

    @property
    def id_files(self) -> tuple[str, ...]:
        """Names of the files with the record ids of the split, in the order of its documents."""
        if self.index is not None:
            return (self.index,)
        return tuple(str(shard.record_ids) for shard in self.shards)


class TokensEntry(Entry, frozen=True, kw_only=True):
    """Type of the token ids, "<u2" or "<u4", and size of the vocabulary.

    All ids are below `vocab_size`.
    """

    dtype: str
    vocab_size: Count


class SpecialToken(Entry, frozen=True, kw_only=True):
    """A special token: its id and its text."""

    id: Count
    token: str


class Probe(Entry, frozen=True, kw_only=True):
    """A short text and its token ids at the time of the build, without BOS and EOS.

    The text is encoded again later to find out whether the installed libraries still give these
    ids.
    """

    text: str
    ids: tuple[Count, ...]


class TokenizerEntry(Entry, frozen=True, kw_only=True):
    """Tokenizer of a dataset: its file and engine, and whether BOS and EOS are added.

    `probes` are short texts with their token ids, by which a changed tokenizer is detected.
    """

    file: str
    sha256: str
    engine: str
    engine_reason: str
    libraries: dict[str, str]
    special_text: str
    special_text_found: dict[str, Count]
    add_bos: bool
    add_eos: bool
    bos: SpecialToken | None
    eos: SpecialToken | None
    pad: SpecialToken | None
    probes: tuple[Probe, ...]


class ChatEntry(Entry, frozen=True, kw_only=True):
    """Settings with which conversations were tokenized.

    - `template` is the file with the chat template, byte for byte, and `template_origin` says where
      the template came from.
    - `masked_by` is "generation" if the loss mask comes from markers in the template, or "prefixes"
      if it comes from rendering longer and longer prefixes of the conversation.
    - `form` is "chat", "pairs" (chosen, then rejected), "labels" or "groups".
    - `overlong` is the policy for documents over `max_tokens`, such as "split".
    - `overlong_found` holds up to two counts: the number of documents over `max_tokens`, under the
      name of the policy, and as "untrained_parts" the number of parts of documents that were left
      out because they have no tokens to train on.
    """

    template: str
    template_origin: str
    template_sha256: str
    masked_by: str
    train_on: str
    form: str
    max_tokens: Count | None
    overlong: str | None
    overlong_found: dict[str, Count]
    trained_tokens: Count


class Manifest(Entry, frozen=True, kw_only=True):
    """The contents of config.json. The order of the fields is the order of its keys."""

    format: str
    format_version: int
    required_features: tuple[str, ...]
    kind: str
    recipe_id: str
    tokens: TokensEntry
    tokenizer: TokenizerEntry
    splits: dict[str, SplitEntry]
    inputs: tuple[InputEntry, ...]
    inputs_file: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the side file with the inputs; `inputs` is empty then."""
    records: RecordCounts
    options: dict[str, Any]
    files: tuple[FileEntry, ...]
    chat: ChatEntry | msgspec.UnsetType = msgspec.UNSET
    self_sha256: str = NO_DIGEST


def load(directory: Path) -> Manifest:
    """Return the manifest in `directory`/config.json, validated.

    Raise the errors of `read` and `parse`, among them `UsageError` for a dataset of arrays.
    """
    try:
        return parse(read(directory))
    except UsageError as error:  # of another kind
        error.where = str(directory)
        raise


_DTYPES = ("<u2", "<u4")
# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_MANIFEST = msgspec.json.Decoder(Manifest)


def parse(data: bytes) -> Manifest:
    """Return the manifest in the bytes of config.json, validated.

    The checks cover format, version, digest, structure and names, and that shards, splits and files
    agree with one another. They take time in proportion to the number of files. Raise `UsageError`
    if the manifest belongs to a dataset of arrays, `IncompatibleError` if this release cannot read
    it, and `IntegrityError` if it is damaged.
    """
    kind = read_header(data).kind
    if kind in ("embeddings", "pairs"):
        raise UsageError(
            f"holds {kind}, not tokens", where=CONFIG_NAME, code="E_KIND",
            remedy="Open it with dataprep.open_arrays.",
        )  # fmt: skip
    check_known(kind, ("tokens",), "kind")
    manifest = decode(_MANIFEST, data)
    check_known(manifest.tokens.dtype, _DTYPES, "tokens.dtype")
    if manifest.chat is not msgspec.UNSET:
        check_known(manifest.chat.form, _FORMS, "chat.form")
    _check_consistency(manifest)
    return manifest


def _check_consistency(manifest: Manifest) -> None:
    files = check_files(manifest.files)
    limit = 1 << (8 * int(manifest.tokens.dtype[2]))
    insist(0 < manifest.tokens.vocab_size <= limit, "vocab_size does not fit the token dtype")
    insist(manifest.tokenizer.file in files, "the tokenizer is not in the list of files")
    _check_references(manifest)
    for name, split in manifest.splits.items():
        check_split_name(name)
        check_content_id(name, split.content_id)
        _check_split(name, split, files, manifest.tokens.dtype)
    _check_chat(manifest, files)
    masked = any(s.mask is not None for split in manifest.splits.values() for s in split.shards)
    insist(
        masked == (LOSS_MASK in manifest.required_features),
        "a dataset has masks if, and only if, it requires the feature loss_mask",
    )
    grouped = any(s.groups is not None for split in manifest.splits.values() for s in split.shards)
    insist(
        grouped == (PREFERENCE in manifest.required_features),
        "a dataset has groups if, and only if, it requires the feature preference",
    )
    written = sum(_records(split) for split in manifest.splits.values())
    side = check_inputs_file(manifest.inputs_file, manifest.inputs, files)
    check_records(manifest.records, manifest.inputs, written, "records in the splits", side=side)


def _check_chat(manifest: Manifest, files: dict[str, FileEntry]) -> None:
    """Raise `IntegrityError` if the field `chat` does not fit the files and the shards.

    The field may be absent, but not in a dataset of preferences.
    """
    chat = manifest.chat
    form = "chat" if chat is msgspec.UNSET else chat.form
    insist(
        (form != "chat") == (PREFERENCE in manifest.required_features),
        "chat.form is one of preferences if, and only if, the feature preference is required",
    )
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    for shard in shards:
        wrong = f"{shard.docs}: {shard.documents} documents are not those of its records"
        insist(_FORMS[form](shard.documents, shard.records), wrong)
    if chat is msgspec.UNSET:
        return
    entry = files.get(chat.template)
    insist(entry is not None, "the chat template is not in the list of files")
    same = entry is not None and entry.sha256 == chat.template_sha256
    insist(same, f"{chat.template} is not the template that chat.template_sha256 names")
    unmasked = next((shard.tokens for shard in shards if shard.mask is None), None)
    insist(unmasked is None, f"{unmasked} is of conversations and has no mask")


# For each form: whether a shard may have these numbers of documents and records.
_FORMS: dict[str, Callable[[int, int | None], bool]] = {
    "chat": lambda documents, records: records is None,
    "pairs": lambda documents, records: records is not None and documents == 2 * records,
    "labels": lambda documents, records: documents == records,
    "groups": lambda documents, records: records is not None and documents >= records,
}


def _records(split: SplitEntry) -> int:
    return split.documents if split.records is None else split.records


def _check_references(manifest: Manifest) -> None:
    """Raise `IntegrityError` if a file is named twice.

    The data of a shard that is listed twice would be read twice.
    """
    splits = manifest.splits.values()
    uses = Counter([manifest.tokenizer.file, CRC_NAME])
    uses.update(split.index for split in splits if split.index is not None)
    if manifest.chat is not msgspec.UNSET:
        uses.update([manifest.chat.template])
    for split in splits:
        uses.update(file for shard in split.shards for file in shard.files)
    twice = [file for file, count in uses.items() if count > 1]
    insist(not twice, f"{', '.join(twice[:3])} stands in two places")


def _check_split(name: str, split: SplitEntry, files: dict[str, FileEntry], dtype: str) -> None:
    insist(sum(s.documents for s in split.shards) == split.documents, f"{name}: documents differ")
    insist(sum(s.length for s in split.shards) == split.tokens, f"{name}: tokens differ")
    insist(
        split.index is None or split.index in files, f"{split.index} is not in the list of files"
    )
    for extra in ("mask", "groups", "scores", "record_ids", "records"):
        present = {getattr(shard, extra) is not None for shard in split.shards}
        insist(len(present) <= 1, f"{name}: some shards have {extra}, others have none")
    for shard in split.shards:
        alone = (split.index is None) == (shard.record_ids is not None)
        insist(
            alone, f"{name}: record ids stand in the index, or in every shard where that is null"
        )
    grouped = {(s.groups is None, s.scores is None, s.records is None) for s in split.shards}
    insist(grouped <= {(True,) * 3, (False,) * 3}, f"{name}: groups, scores, records go together")
    if grouped == {(False,) * 3}:
        records = sum(shard.records or 0 for shard in split.shards)
        insist(records == split.records, f"{name}: records differ")
    insist(_records(split) <= split.documents, f"{name}: there are more records than documents")
    for shard in split.shards:
        rows, tokens = shard.documents, (shard.length,)
        described = {
            shard.tokens: (dtype, tokens),
            shard.docs: ("<u8", (rows + 1,)),
            shard.source: ("<u8", (rows, 2)),
            shard.mask: ("|u1", tokens),
            shard.groups: ("<u8", ((shard.records or 0) + 1,)),
            shard.scores: ("<f4", (rows,)),
            shard.record_ids: ("<i8", (rows,)),
        }
        for file in shard.files:
            kind, shape = described[file]
            entry = files.get(file)
            insist(entry is not None, f"{file} is not in the list of files")
            agrees = entry is not None and entry.dtype == kind and entry.shape == shape
            insist(agrees, f"{file}: type or shape differs from its shard")
        entry = files[shard.tokens]
        insist(
            entry.bytes == shard.length * int(dtype[2]),
            f"{shard.tokens}: size differs from its length in tokens",
        )
