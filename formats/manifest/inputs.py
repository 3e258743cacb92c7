"""The inputs of a dataset, which are in config.json, or in a side file if there are many.

A million inputs would make a config.json of hundreds of megabytes, which is read whenever the
dataset is opened. The side file inputs.jsonl holds the same JSON objects, one on each line, and is
read only when the name of an input is needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import damaged_file
from ..files.safe_open import open_ordinary, wrong_size
from ..storage import storage_errors
from .common import FileEntry, InputEntry, RecordCounts

__all__ = ["INPUTS_NAME", "MANY_INPUTS", "AnyManifest", "encode_inputs", "read_inputs"]

INPUTS_NAME = "inputs.jsonl"
MANY_INPUTS = 10_000
"""Most inputs in config.json, which stays below some megabytes; more go to the side file."""
_BLOCK_LINES = 1 << 12

# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_INPUT = msgspec.json.Decoder(InputEntry)


def encode_inputs(inputs: Sequence[InputEntry]) -> Iterator[bytes]:
    """Yield the content of the side file inputs.jsonl for `inputs`, in blocks of lines."""
    for start in range(0, len(inputs), _BLOCK_LINES):
        lines = [msgspec.json.encode(one) + b"\n" for one in inputs[start : start + _BLOCK_LINES]]
        yield b"".join(lines)


class AnyManifest(Protocol):
    """Protocol with the fields that the manifests of all kinds have."""

    @property
    def recipe_id(self) -> str:
        """Digest of the inputs and options."""
        ...

    @property
    def self_sha256(self) -> str:
        """Digest of config.json."""
        ...

    @property
    def inputs(self) -> tuple[InputEntry, ...]:
        """The inputs, or an empty tuple if they are in a side file."""
        ...

    @property
    def inputs_file(self) -> str | msgspec.UnsetType:
        """Name of the side file with the inputs, or UNSET if there is none."""
        ...

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files of the dataset except config.json."""
        ...

    @property
    def records(self) -> RecordCounts:
        """Numbers of records read, written, rejected and removed."""
        ...


def read_inputs(directory: Path, manifest: AnyManifest) -> tuple[InputEntry, ...]:
    """Return the inputs of the dataset in `directory`, from config.json or from the side file.

    Raise `IntegrityError` if the size, SHA-256 or records of the side file differ from what
    config.json states.
    """
    if manifest.inputs_file is msgspec.UNSET:
        return manifest.inputs
    entry = next(file for file in manifest.files if file.name == manifest.inputs_file)
    with open_ordinary(directory / entry.name, entry.name) as stream, storage_errors(entry.name):
        size = os.fstat(stream.fileno()).st_size
        if size != entry.bytes:
            raise wrong_size(entry.name, entry.bytes, size)
        data = stream.readall()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise damaged_file("is not the file that was built (SHA-256 differs)", entry.name, "E_HASH")
    try:
        found = tuple(_INPUT.decode_lines(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_file(f"is no list of inputs ({error})", entry.name, "E_INPUTS") from None
    if sum(one.records for one in found) != manifest.records.read:
        problem = "the records of its inputs are not records.read of config.json"
        raise damaged_file(problem, entry.name, "E_INPUTS")
    return found
