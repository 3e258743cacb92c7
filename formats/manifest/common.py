"""The part of config.json that all kinds of datasets share, with functions to read and write it.

This part holds the format version, the digest of config.json itself, the names and hashes of all
files, the inputs, and the counts of records. The modules `tokens` and `arrays` add the fields of
their kinds.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from ..errors import IncompatibleError, InputError, IntegrityError, damaged_file
from ..files.other_layouts import refuse_other_layout
from ..files.safe_open import open_ordinary
from ..storage import storage_errors

__all__ = [
    "CONFIG_NAME",
    "CRC_NAME",
    "FORMAT_VERSION",
    "KNOWN_FEATURES",
    "LOSS_MASK",
    "MAX_CONFIG_BYTES",
    "NO_DIGEST",
    "PREFERENCE",
    "UNITS",
    "Count",
    "Entry",
    "FileEntry",
    "Header",
    "InputEntry",
    "RecordCounts",
    "check_content_id",
    "check_files",
    "check_inputs_file",
    "check_known",
    "check_name",
    "check_records",
    "check_split_name",
    "damaged",
    "decode",
    "dump_json",
    "folders_of",
    "insist",
    "is_device",
    "newer",
    "read",
    "read_header",
    "says_newer",
]

CONFIG_NAME = "config.json"
CRC_NAME = "crc32.npy"
FORMAT_VERSION = 1
LOSS_MASK = "loss_mask"
"""Feature of a dataset with loss masks: a reader without it would train on wrong tokens."""
PREFERENCE = "preference"
"""Feature of a dataset whose records are groups of documents."""
KNOWN_FEATURES = frozenset({LOSS_MASK, PREFERENCE})
UNITS = ("byte", "row")
"""Units of the positions in an input."""
MAX_CONFIG_BYTES = 256 << 20
_HEAD_BYTES = 256  # at the beginning of config.json, which name the format
NO_DIGEST = "0" * 64

_NAME = re.compile(
    r"(?:[a-z][a-z0-9_]{0,31}+/(?:[a-z0-9][a-z0-9_]{0,31}+/)?+)?+[A-Za-z0-9][A-Za-z0-9._-]{0,127}+"
    r"(?<!\.)"
)
_DEVICE = re.compile(r"(?<![^/\n])(con|prn|aux|nul|com[0-9]|lpt[0-9])(?=[./\n]|$)")
_DEVICES = ("con", "prn", "aux", "nul", "com", "lpt")  # searched for first, which is fast
_BUILD_FILES = re.compile(r"crc32\.npy|[a-z][a-z0-9_]{0,31}_idx\.pt")
_SPLIT = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # every size on disk


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base class of the structs in config.json. Unknown fields are ignored."""


class FileEntry(Entry, frozen=True, kw_only=True):
    """One file of a dataset: name, size in bytes, array type and shape, SHA-256.

    `dtype` and `shape` are None if the file is not an array.
    """

    name: str
    bytes: Count
    dtype: str | None
    shape: tuple[Count, ...] | None
    sha256: str


class InputEntry(Entry, frozen=True, kw_only=True):
    """One input of a dataset.

    `unit` is "byte" or "row", the unit in which positions in this input are counted. `bytes` is the
    size of the input as stored. If `compression` is set, positions count decompressed bytes.
    """

    name: str
    format: str
    unit: str
    bytes: Count
    fingerprint: str
    records: Count
    compression: str | None = None


class RecordCounts(Entry, frozen=True, kw_only=True):
    """Numbers of records: `read` = `written` + all numbers in `rejected` + `removed`.

    `removed` is the number of records that were removed after the build and are in no file. In
    datasets of pairs, `read` also includes the records that were merged into the pair of an earlier
    record.
    """

    read: Count
    written: Count
    rejected: dict[str, Count]
    removed: Count = 0
    blank_lines: Count


class Header(msgspec.Struct):
    """Fields of config.json that decide whether the rest of it can be read."""

    format: str = ""
    format_version: int = 0
    required_features: tuple[str, ...] = ()
    kind: str = ""
    recipe_id: str = ""
    self_sha256: str = ""


def check_name(name: str) -> str:
    """Return `name` if a file of a dataset may have this name, else raise `IntegrityError`.

    >>> check_name("train/tokens-00000.bin")
    'train/tokens-00000.bin'
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise _bad_name(f"file name {name!r} is not allowed in a dataset")
    if is_device(name):
        raise _bad_name(f"file name {name!r} contains the name of a device of Windows")
    return name


def is_device(name: str) -> bool:
    """Return whether a component of the path `name` is reserved as the name of a Windows device.

    An extension makes no difference. The argument may hold several paths, separated by line feeds.

    >>> is_device("aux"), is_device("train/NUL.bin"), is_device("auxiliary")
    (True, True, False)
    """
    lower = name.lower()
    return any(word in lower for word in _DEVICES) and _DEVICE.search(lower) is not None


def folders_of(names: Iterable[str]) -> set[str]:
    """Return every folder that holds one of the files `names`, and the parents of these folders.

    >>> sorted(folders_of(["config.json", "train/0003/tokens-03000.bin"]))
    ['train', 'train/0003']
    """
    inner = {name.rpartition("/")[0] for name in names}
    return (inner | {folder.rpartition("/")[0] for folder in inner}) - {""}


def _bad_name(problem: str) -> IntegrityError:
    return IntegrityError(
        problem, where=CONFIG_NAME, code="E_NAME", remedy="Do not trust this directory."
    )


def dump_json(manifest: msgspec.Struct) -> bytes:
    """Return the bytes of config.json, with `self_sha256` set. Equal manifests give equal bytes."""
    blank = msgspec.structs.replace(manifest, self_sha256=NO_DIGEST)
    body = msgspec.json.format(msgspec.json.encode(blank), indent=1) + b"\n"
    return _with_digest(body, hashlib.sha256(body).hexdigest())


def read(directory: Path) -> bytes:
    """Return the bytes of `directory`/config.json.

    Raise `InputError` if `directory` does not exist or was not made by dataprep, and
    `IntegrityError` if config.json is too large, or missing because a build did not finish.
    """
    if not directory.is_dir():
        refuse_other_layout(directory)
        if directory.is_file():
            raise InputError(
                "is a file, not the directory of a dataset", where=str(directory),
                code="E_NOT_FOUND",
                remedy=f"`dataprep build --input {shlex.quote(str(directory))} --out DIR` makes a "
                "dataset of texts, JSONL and Parquet, and with --kind embeddings of .npy and "
                ".safetensors; then name DIR.",
            )  # fmt: skip
        raise InputError(
            "no such dataset directory", where=str(directory), code="E_NOT_FOUND",
            remedy="Check the path; `dataprep build --out` makes one.",
        )  # fmt: skip
    try:
        stream = open_ordinary(directory / CONFIG_NAME, CONFIG_NAME)
    except IntegrityError as error:
        if error.code != "E_MISSING":
            raise
        refuse_other_layout(directory)
        _refuse_unbuilt(directory)
        raise IntegrityError(
            "there is no config.json, so this is not a finished dataset",
            where=str(directory),
            code="E_UNFINISHED",
            remedy="Point at the directory that `dataprep build` reported, or build it again.",
        ) from None
    with stream, storage_errors(CONFIG_NAME):
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_CONFIG_BYTES:
            raise damaged(f"{size} bytes is over the limit of {MAX_CONFIG_BYTES}")
        data = stream.readall()
    if b'"dataprep"' not in data[:_HEAD_BYTES]:
        refuse_other_layout(directory)
    return data


def _refuse_unbuilt(directory: Path) -> None:
    """Raise `InputError` if `directory` has files, but no file that a build writes."""
    with storage_errors(directory):
        names = os.listdir(directory)  # noqa: PTH208
    staging = ".building-" in directory.name
    if names and not staging and not any(map(_BUILD_FILES.fullmatch, names)):
        raise InputError(
            "there is no config.json and nothing that a build writes, so this is no dataset of "
            "dataprep", where=str(directory), code="E_LAYOUT",
            remedy="Name the directory that `dataprep build --out` made, or build one from these "
            f"files if they are data: `dataprep build --input {shlex.quote(str(directory))} "
            "--out DIR`.",
        )  # fmt: skip


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_HEADER = msgspec.json.Decoder(Header)


def read_header(data: bytes) -> Header:
    """Return the header of config.json.

    Raise `IntegrityError` if the file is damaged, and `IncompatibleError` if this release cannot
    read its version. The digest is checked before the version, so damage is not reported as a newer
    version.
    """
    try:
        header = _HEADER.decode(data)
    except msgspec.ValidationError as error:
        raise _other_structure(error) if _is_whole(data) else damaged(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"not valid JSON ({error})") from None
    if header.format != "dataprep":
        raise damaged(f"`format` is {header.format!r}, not 'dataprep'")
    if not _is_whole(data):
        raise damaged("self_sha256 does not match: the file was changed after the build")
    _check_version(header)
    return header


Decoded = TypeVar("Decoded")


def decode(decoder: msgspec.json.Decoder[Decoded], data: bytes) -> Decoded:
    """Return the manifest in `data`, the bytes of a config.json that `read_header` has accepted.

    Raise `IncompatibleError` if its structure is unknown, and `IntegrityError` if it is not valid
    JSON.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _other_structure(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(str(error)) from None


def _other_structure(error: msgspec.ValidationError) -> IncompatibleError:
    return newer(f"its structure ({error})")


def newer(what: str) -> IncompatibleError:
    """Return the error for a dataset with the feature `what`, which only a later release knows."""
    return IncompatibleError(
        f"{what} is not known to this version: the dataset was made by a newer dataprep",
        where=CONFIG_NAME, code="E_VERSION", remedy="Install a newer dataprep.",
    )  # fmt: skip


def check_known(value: str, known: Container[str], what: str) -> None:
    """Raise `IncompatibleError` if `value` is not in `known`.

    The text `what` describes the value in the error.
    """
    if value not in known:
        raise newer(f"{what} {value!r}")


def says_newer(data: bytes) -> bool:
    """Return whether a config.json needs a format version or features that this release lacks.

    If its header cannot be decoded, return False.
    """
    try:
        _check_version(_HEADER.decode(data))
    except IncompatibleError:
        return True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return False


def _check_version(header: Header) -> None:
    unknown = sorted(set(header.required_features) - KNOWN_FEATURES)
    if header.format_version != FORMAT_VERSION or unknown:
        what = f"features {', '.join(unknown)}" if unknown else f"version {header.format_version}"
        raise IncompatibleError(
            f"the dataset needs format {what}; this release reads version {FORMAT_VERSION}",
            where=CONFIG_NAME,
            code="E_VERSION",
            remedy="Install a newer dataprep.",
        )


def _is_whole(data: bytes) -> bool:
    """Return whether `data`, the bytes of config.json, match the digest that they contain."""
    at = _digest_at(data)
    blank = _with_digest(data, NO_DIGEST)
    return hashlib.sha256(blank).hexdigest().encode() == data[at : at + 64]


def _with_digest(data: bytes, digest: str) -> bytes:
    at = _digest_at(data)
    return data[:at] + digest.encode() + data[at + 64 :]


def _digest_at(data: bytes) -> int:
    key = b'"self_sha256": "'
    return data.rfind(key) + len(key)


def check_files(files: Sequence[FileEntry]) -> dict[str, FileEntry]:
    """Return the entries of `files` by name.

    Raise `IntegrityError` unless the names are allowed, sorted and unique, and include crc32.npy.
    Names that differ only by case name the same file on Windows and macOS, so they are refused.
    """
    names = [entry.name for entry in files]
    text = "\n".join(names)
    if ".." in text or is_device(text) or not all(map(_NAME.fullmatch, names)):
        for name in names:  # all at once takes a third of the time
            check_name(name)
    found = {entry.name: entry for entry in files}
    insist(len(found) == len(names) and names == sorted(names), "file names repeat or are unsorted")
    insist(CONFIG_NAME not in found and CRC_NAME in found, "the list of files is incomplete")
    folders = folders_of(names)
    if text != text.lower() or not folders.isdisjoint(found):
        _refuse_same([CONFIG_NAME, *folders, *names])
    return found


def _refuse_same(names: Iterable[str]) -> None:
    """Raise `IntegrityError` if two of `names` are equal or differ only by case."""
    taken: set[str] = set()
    for name in names:
        if name.lower() in taken:
            raise _bad_name(f"file name {name!r} differs from another one at most by case")
        taken.add(name.lower())


def check_records(
    records: RecordCounts, inputs: Sequence[InputEntry], written: int, what: str, *,
    merged: int = 0, side: bool = False,
) -> None:  # fmt: skip
    """Raise an error if the counts in `records` disagree with the inputs or the dataset.

    Every record that was read must have been written, rejected, removed, or merged into an earlier
    one. The argument `written` is the number of documents or rows in the dataset, `merged` is the
    number of merged records, and `what` describes `written` in the error. If `side` is true, the
    inputs are in a side file, and their records are compared when that file is read. Raise
    `IncompatibleError` for an input with an unknown unit, and `IntegrityError` for other problems.
    """
    for entry in inputs:
        check_known(entry.unit, UNITS, "inputs.unit")
    insist(records.written == written, f"records.written differs from the {what}")
    insist(
        records.read == written + sum(records.rejected.values()) + records.removed + merged,
        "records.read differs from written + rejected + removed" + " + merged" * bool(merged),
    )
    insist(
        side or records.read == sum(entry.records for entry in inputs),
        "records.read differs from the records of the inputs",
    )


def check_inputs_file(
    name: str | msgspec.UnsetType, inputs: Sequence[InputEntry], files: Mapping[str, FileEntry]
) -> bool:
    """Return whether the inputs are in a side file.

    The argument `name` is the name of the side file, or UNSET if there is none. Raise
    `IntegrityError` in these cases:

    - The file `name` is not in `files`.
    - The file `name` is an array.
    - There is a side file, but `inputs`, the inputs in config.json, are not empty.
    """
    if name is msgspec.UNSET:
        return False
    found = files.get(name)
    insist(found is not None and found.dtype is None, f"{name} is no file of inputs")
    insist(not inputs, "inputs stand in two places")
    return True


def check_split_name(name: str) -> None:
    """Raise `IntegrityError` unless a split or an array may have this `name`."""
    insist(bool(_SPLIT.fullmatch(name)), f"{name!r} cannot name a split")
    if is_device(name):
        raise _bad_name(f"{name!r} is the name of a device of Windows and names no split")


def check_content_id(split: str, content_id: str) -> None:
    """Raise `IntegrityError` unless `content_id` has 64 lower-case hex digits.

    The error names the `split`.
    """
    insist(bool(_DIGEST.fullmatch(content_id)), f"splits.{split}.content_id is no SHA-256")


def insist(condition: bool, problem: str) -> None:
    """Raise `IntegrityError` with the text `problem` about config.json if `condition` is false."""
    if not condition:
        raise damaged(problem)


def damaged(problem: str) -> IntegrityError:
    """Return the error for a damaged config.json."""
    return damaged_file(problem, CONFIG_NAME, "E_MANIFEST")
