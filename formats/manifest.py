"""config.json: typed, validated once at open, and tamper-evident.

Loading costs one read and one decode, a few milliseconds for 10,000 shards. Everything that the
rest of the package believes about a dataset comes from the structs below; none of it is guessed
from the files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dataprep.formats.errors import IncompatibleError, InputError, IntegrityError
from dataprep.formats.ordinary import open_ordinary
from dataprep.formats.storage import storage_errors

__all__ = [
    "CONFIG_NAME",
    "CRC_NAME",
    "FORMAT_VERSION",
    "KNOWN_FEATURES",
    "LOSS_MASK",
    "MAX_CONFIG_BYTES",
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
    "dump",
    "load",
    "parse",
    "read",
]

CONFIG_NAME = "config.json"
CRC_NAME = "crc32.npy"
FORMAT_VERSION = 1
LOSS_MASK = "loss_mask"
"""The feature of a dataset with masks: who ignored them would train on the wrong tokens."""
KNOWN_FEATURES = frozenset({LOSS_MASK})
MAX_CONFIG_BYTES = 256 << 20

_NAME = re.compile(r"([a-z][a-z0-9_]{0,31}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SPLIT = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NO_DIGEST = "0" * 64

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # every size on disk


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    pass


class FileEntry(_Entry, frozen=True, kw_only=True):
    """One file of the dataset: size in bytes, array type where it is an array, SHA-256."""

    name: str
    bytes: Count
    dtype: str | None
    shape: tuple[Count, ...] | None
    sha256: str


class ShardEntry(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """The files that hold `documents` documents in `length` tokens; few datasets have a `mask`."""

    tokens: str
    docs: str
    source: str
    documents: Count
    length: Count
    mask: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all its files."""
        every = (self.tokens, self.docs, self.source)
        return every if self.mask is None else (*every, self.mask)


class SplitEntry(_Entry, frozen=True, kw_only=True):
    """One stream of tokens; `text_bytes` is its size as UTF-8 before tokenizing."""

    index: str
    documents: Count
    tokens: Count
    text_bytes: Count
    zero_token_documents: Count
    shards: tuple[ShardEntry, ...]


class TokensEntry(_Entry, frozen=True, kw_only=True):
    """`dtype` is "<u2" or "<u4"; every id is below `vocab_size`."""

    dtype: str
    vocab_size: Count


class SpecialToken(_Entry, frozen=True, kw_only=True):
    """A control token by id and text."""

    id: Count
    token: str


class Probe(_Entry, frozen=True, kw_only=True):
    """A string and the ids it gave, without BOS and EOS, when the dataset was built."""

    text: str
    ids: tuple[Count, ...]


class TokenizerEntry(_Entry, frozen=True, kw_only=True):
    """Which tokenizer made the ids, how it was driven, and probes to recognise it by."""

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


class InputEntry(_Entry, frozen=True, kw_only=True):
    """One input; `unit` says whether provenance counts bytes or rows of it.

    `bytes` is its size as stored; where `compression` names one, offsets count what comes out.
    """

    name: str
    format: str
    unit: str
    bytes: Count
    fingerprint: str
    records: Count
    compression: str | None = None


class RecordCounts(_Entry, frozen=True, kw_only=True):
    """Conservation: `read` = `written` + the sum of `rejected`."""

    read: Count
    written: Count
    rejected: dict[str, Count]
    blank_lines: Count


class Manifest(_Entry, frozen=True, kw_only=True):
    """config.json as a whole; field order here is key order there."""

    format: str
    format_version: int
    required_features: tuple[str, ...]
    kind: str
    build_id: str
    tokens: TokensEntry
    tokenizer: TokenizerEntry
    splits: dict[str, SplitEntry]
    inputs: tuple[InputEntry, ...]
    records: RecordCounts
    options: dict[str, Any]
    files: tuple[FileEntry, ...]
    self_sha256: str = _NO_DIGEST


class _Header(msgspec.Struct):
    """What must be understood before the rest may be read."""

    format: str = ""
    format_version: int = 0
    required_features: tuple[str, ...] = ()


def check_name(name: str) -> str:
    """Return `name` if it is one that a dataset may contain, else raise `IntegrityError`.

    >>> check_name("train/tokens-00000.bin")
    'train/tokens-00000.bin'
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise IntegrityError(
            f"file name {name!r} is not allowed in a dataset",
            where=CONFIG_NAME,
            code="E_NAME",
            remedy="Do not trust this directory.",
        )
    return name


def dump(manifest: Manifest) -> bytes:
    """The bytes of config.json, with `self_sha256` filled in; equal manifests give equal bytes."""
    blank = msgspec.structs.replace(manifest, self_sha256=_NO_DIGEST)
    body = msgspec.json.format(msgspec.json.encode(blank), indent=1) + b"\n"
    return _with_digest(body, hashlib.sha256(body).hexdigest())


def load(directory: Path) -> Manifest:
    """Read and validate `directory`/config.json."""
    return parse(read(directory))


def read(directory: Path) -> bytes:
    """The bytes of `directory`/config.json, which must be an ordinary file of a sane size."""
    if not directory.is_dir():
        raise InputError(
            "no such dataset directory", where=str(directory), code="E_NOT_FOUND",
            remedy="Check the path; `dataprep build --out` makes one.",
        )  # fmt: skip
    try:
        stream = open_ordinary(directory / CONFIG_NAME, CONFIG_NAME)
    except IntegrityError as error:
        if error.code != "E_MISSING":
            raise
        raise IntegrityError(
            "there is no config.json, so this is not a finished dataset",
            where=str(directory),
            code="E_UNFINISHED",
            remedy="Point at the directory that `dataprep build` reported, or build it again.",
        ) from None
    with stream, storage_errors(CONFIG_NAME):
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_CONFIG_BYTES:
            raise _damaged(f"{size} bytes is over the limit of {MAX_CONFIG_BYTES}")
        return stream.readall()


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_HEADER = msgspec.json.Decoder(_Header)
_MANIFEST = msgspec.json.Decoder(Manifest)


def parse(data: bytes) -> Manifest:
    """Decode and validate the bytes of config.json.

    Checks the format and version, the self digest, the structure, every name, and that shards,
    splits and files agree with one another; costs O(files).
    """
    try:
        header = _HEADER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(f"not valid JSON ({error})") from None
    _check_version(header)
    try:
        manifest = _MANIFEST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(str(error)) from None
    _check_digest(data, manifest.self_sha256)
    _check_consistency(manifest)
    return manifest


def _check_version(header: _Header) -> None:
    if header.format != "dataprep":
        raise _damaged(f"`format` is {header.format!r}, not 'dataprep'")
    unknown = sorted(set(header.required_features) - KNOWN_FEATURES)
    if header.format_version != FORMAT_VERSION or unknown:
        what = f"features {', '.join(unknown)}" if unknown else f"version {header.format_version}"
        raise IncompatibleError(
            f"the dataset needs format {what}; this release reads version {FORMAT_VERSION}",
            where=CONFIG_NAME,
            code="E_VERSION",
            remedy="Install a newer dataprep, or rebuild the dataset with this one.",
        )


def _check_digest(data: bytes, digest: str) -> None:
    blank = _with_digest(data, _NO_DIGEST)
    if hashlib.sha256(blank).hexdigest() != digest:
        raise _damaged("self_sha256 does not match: the file was changed after the build")


def _with_digest(data: bytes, digest: str) -> bytes:
    key = b'"self_sha256": "'
    at = data.rfind(key) + len(key)
    return data[:at] + digest.encode() + data[at + 64 :]


def _check_consistency(manifest: Manifest) -> None:
    names = [entry.name for entry in manifest.files]
    for name in names:
        check_name(name)
    files = {entry.name: entry for entry in manifest.files}
    _require(
        len(files) == len(names) and names == sorted(names), "file names repeat or are unsorted"
    )
    _require(CONFIG_NAME not in files and CRC_NAME in files, "the list of files is incomplete")
    _require(manifest.kind == "tokens", f"kind {manifest.kind!r} is unknown")
    _require(manifest.tokens.dtype in ("<u2", "<u4"), "unknown token dtype")
    limit = 1 << (8 * int(manifest.tokens.dtype[2]))
    _require(0 < manifest.tokens.vocab_size <= limit, "vocab_size does not fit the token dtype")
    _require(manifest.tokenizer.file in files, "the tokenizer is not in the list of files")
    _check_references(manifest)
    for name, split in manifest.splits.items():
        _require(bool(_SPLIT.fullmatch(name)), f"{name!r} cannot name a split")
        _check_split(name, split, files, manifest.tokens.dtype)
    masked = any(s.mask is not None for split in manifest.splits.values() for s in split.shards)
    _require(
        masked == (LOSS_MASK in manifest.required_features),
        "a dataset has masks if, and only if, it requires the feature loss_mask",
    )
    written = sum(split.documents for split in manifest.splits.values())
    records = manifest.records
    _require(records.written == written, "records.written differs from the documents in the splits")
    _require(
        records.read == written + sum(records.rejected.values()),
        "records.read differs from written + rejected",
    )
    _require(
        records.read == sum(entry.records for entry in manifest.inputs),
        "records.read differs from the records of the inputs",
    )


def _check_references(manifest: Manifest) -> None:
    """No file serves twice: a shard listed in two places would be read as twice the data."""
    splits = manifest.splits.values()
    uses = Counter([manifest.tokenizer.file, CRC_NAME, *(split.index for split in splits)])
    for split in splits:
        uses.update(file for shard in split.shards for file in shard.files)
    twice = [file for file, count in uses.items() if count > 1]
    _require(not twice, f"{', '.join(twice[:3])} stands in two places")


def _check_split(name: str, split: SplitEntry, files: dict[str, FileEntry], dtype: str) -> None:
    _require(sum(s.documents for s in split.shards) == split.documents, f"{name}: documents differ")
    _require(sum(s.length for s in split.shards) == split.tokens, f"{name}: tokens differ")
    _require(split.index in files, f"{split.index} is not in the list of files")
    masked = {shard.mask is not None for shard in split.shards}
    _require(len(masked) <= 1, f"{name}: some shards have a mask, others have none")
    for shard in split.shards:
        kinds = (dtype, "<u8", "<u8", "|u1")
        rows, tokens = shard.documents, (shard.length,)
        shapes = (tokens, (rows + 1,), (rows, 2), tokens)
        for file, kind, shape in zip(shard.files, kinds, shapes, strict=False):
            entry = files.get(file)
            _require(entry is not None, f"{file} is not in the list of files")
            agrees = entry is not None and entry.dtype == kind and entry.shape == shape
            _require(agrees, f"{file}: type or shape differs from its shard")
        entry = files[shard.tokens]
        _require(
            entry.bytes == shard.length * int(dtype[2]),
            f"{shard.tokens}: size differs from its length in tokens",
        )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise _damaged(problem)


def _damaged(problem: str) -> IntegrityError:
    return IntegrityError(
        problem,
        where=CONFIG_NAME,
        code="E_MANIFEST",
        remedy="Restore this file, or build again with --overwrite.",
    )
