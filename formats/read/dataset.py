"""Reading a dataset directory with numpy alone: splits, documents, tokens, provenance.

Opening reads config.json and compares the size of every file with it; no data is read. Files are
mapped, or opened, when first used, per process, and dropped on pickling. A split is one stream of
tokens and one list of documents: nothing here shows where a shard ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import IncompatibleError, IntegrityError, UsageError
from ..files.paths import local_path
from ..library_errors import rust_errors
from ..manifest import tokens as manifests
from ..manifest.inputs import read_inputs
from ..manifest.tokens import ChatEntry, InputEntry, Manifest, SplitEntry
from .boundaries import HELD_DOCUMENTS, Boundaries, HeldBoundaries, Parts
from .open_files import Files, ReadBy, check_files_of, choose_io
from .records import Groups, RecordIds
from .sharded import Stream, bases, check_inside
from .staleness import Standing, require_same

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Dataset", "ReadBy", "Split", "open_dataset"]

Ids = npt.NDArray[Any]


def open_dataset(path: str | Path, *, io: ReadBy | None = None) -> Dataset:
    """Open the dataset in the directory `path`.

    `io` says how data is read. ``"mmap"`` maps the files: the fastest. A block that the disk cannot
    read then ends the process with SIGBUS, and so does a file that is cut off while it is read,
    unless the looks at its size that are taken at most every 10 ms find it first. ``"pread"`` maps
    nothing, for file systems where that is a hazard (network, FUSE): every such failure is a
    `StorageError` or `IntegrityError` that names the file, and a window costs about 2 microseconds
    more. What is read is the same. None chooses ``"pread"`` on the network file systems and FUSE
    that Linux tells of, else ``"mmap"``.

    Raises `IntegrityError` for a directory that is unfinished or damaged, `IncompatibleError` for
    one that needs a newer dataprep. Costs a few milliseconds for thousands of shards.

        >>> dataset = open_dataset("shards")                      # doctest: +SKIP
        >>> dataset.splits["train"].tokens                        # doctest: +SKIP
        1048576
        >>> dataset.splits["train"].text(0)                       # doctest: +SKIP
        'Once upon a time ...'
    """
    directory = local_path(path).absolute()  # maps are opened later, perhaps from elsewhere
    io = choose_io(io, directory)
    standing = Standing(directory)
    manifest = standing.open(lambda: _check(directory))
    standing.settle(manifest.self_sha256)
    return Dataset(directory, manifest, standing, io)


def _check(directory: Path) -> Manifest:
    """The manifest of the dataset in `directory`, all of whose files have the right size."""
    manifest = manifests.load(directory)
    check_files_of(directory, manifest.files)
    return manifest


class Dataset:
    """An open dataset: its manifest and its splits by name."""

    def __init__(
        self, path: Path, manifest: Manifest, standing: Standing, io: ReadBy = "mmap"
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.standing = standing
        self.io: ReadBy = io
        self._tokenizer: Tokenizer | None = None
        self._inputs: tuple[InputEntry, ...] | None = None
        entries = {entry.name: entry for entry in manifest.files}
        self.files = Files(path, entries, standing, io)
        self.splits: Mapping[str, Split] = {
            name: Split(self, name, entry) for name, entry in manifest.splits.items()
        }

    @property
    def recipe_id(self) -> str:
        """Hex digest of what was built, and how: see docs/format.md."""
        return self.manifest.recipe_id

    @property
    def inputs(self) -> tuple[InputEntry, ...]:
        """What was read, in order; where a side file has it, that is read on first use."""
        if self._inputs is None:
            self._inputs = self.standing.open(lambda: read_inputs(self.path, self.manifest))
        return self._inputs

    @property
    def chat(self) -> ChatEntry | None:
        """How conversations became tokens; None where the documents are texts."""
        chat = self.manifest.chat
        return None if chat is msgspec.UNSET else chat

    def split(self, name: str) -> Split:
        """The split called `name`, or a `UsageError` that lists the ones there are."""
        try:
            return self.splits[name]
        except KeyError:
            raise UsageError(
                f"there is no split {name!r}, only {', '.join(self.splits)}", where=str(self.path),
                code="E_SPLIT", remedy="Name one of these, or build with --split.",
            ) from None  # fmt: skip

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids (a `tokenizers.Tokenizer`), loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        return self._tokenizer

    def _load_tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        entry = self.manifest.tokenizer
        data = self.standing.open((self.path / entry.file).read_bytes)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise IntegrityError(
                "is not the tokenizer that made these ids", where=entry.file, code="E_HASH",
                remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip
        with rust_errors(self._unusable):
            return Tokenizer.from_buffer(data)

    def decode(self, ids: npt.ArrayLike, tokenizer: Tokenizer | None = None) -> str:
        """The text of `ids`, control tokens spelled out; by `tokenizer` if it is loaded already."""
        tokenizer = tokenizer or self.tokenizer
        with rust_errors(self._unusable):
            text: str = tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text

    def _unusable(self, reason: str) -> IncompatibleError:
        entry = self.manifest.tokenizer
        version = entry.libraries.get("tokenizers", "")
        return IncompatibleError(
            f"the tokenizers library cannot use it ({reason})", where=str(self.path / entry.file),
            code="E_TOKENIZER",
            remedy=f"Install tokenizers {version}, which it was built with; if that does not help, "
            "restore the file, or build again with --overwrite.",
        )  # fmt: skip

    def close(self) -> None:
        """Drop maps and open files; arrays handed out stay valid."""
        for split in self.splits.values():
            split.close()
        self.files.clear()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.tokens:,} tokens" for s in self.splits.values())
        return f"<dataprep.Dataset {self.path} ({parts})>"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.manifest.self_sha256, self.io)


def _reopen(path: Path, self_sha256: str, io: ReadBy) -> Dataset:
    """Unpickle in another process: the directory must still hold the same dataset."""
    dataset = open_dataset(path, io=io)
    require_same(path, self_sha256, dataset.manifest.self_sha256)
    return dataset


class Split:
    """One stream of `tokens` tokens and one list of `documents` documents.

    Positions are global to the split; shards are looked up by bisection in two int64 arrays.
    """

    def __init__(self, dataset: Dataset, name: str, entry: SplitEntry) -> None:
        self.dataset = dataset
        self.name = name
        self.entry = entry
        self.tokens = entry.tokens
        self.documents = entry.documents
        self.dtype: np.dtype[Any] = np.dtype(dataset.manifest.tokens.dtype)
        shards = entry.shards
        lengths = [shard.length for shard in shards]
        names = [shard.tokens for shard in shards]
        self.files = dataset.files.read_from(names, self.dtype.str, lengths)
        self.stream = Stream(dataset.files.source(names, self.dtype.str, lengths), lengths)
        self._masks = self._mask_stream(lengths)
        self._token_base = self.stream.base
        self._document_base = bases(shard.documents for shard in shards)
        self._boundaries = Boundaries(
            token_base=self._token_base, document_base=self._document_base,
            offsets=self._shard_docs, files=[shard.docs for shard in shards],
        )  # fmt: skip
        self._held: HeldBoundaries | None = None
        self._ids: RecordIds | None = None
        grouped = bool(shards) and shards[0].groups is not None
        self._groups = Groups(shards, self._array) if grouped else None

    def __len__(self) -> int:
        return self.documents

    def __repr__(self) -> str:
        return f"<dataprep.Split {self.name}: {self.documents:,} documents, {self.tokens:,} tokens>"

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset.split, (self.dataset, self.name)

    @property
    def content_id(self) -> str:
        """Hex digest that splits with equal content share: what orders and states are keyed by."""
        return self.entry.content_id

    def close(self) -> None:
        """Drop the maps; see `Dataset.close`."""
        self.stream.source.close()
        if self._masks is not None:
            self._masks.source.close()
        self._ids = None

    def read(self, start: int, stop: int) -> Ids:
        """Tokens `start` to `stop` of the stream, an owned array [stop - start] of `dtype`."""
        return self.stream.read(start, stop)

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        """Windows of `length` tokens at `starts`: an owned array [len(starts), length] of `dtype`.

        A window may run over the end of a shard. Costs one memory copy, whatever the number of
        shards, where files are mapped, and 2 microseconds a window where they are not.
        """
        return self.stream.gather(starts, length)

    def gather_in_turn(
        self, starts: npt.NDArray[np.int64], length: int, rows: Sequence[int]
    ) -> Iterator[Ids]:
        """What `gather` gives for the first `rows[0]` of `starts`, for the next `rows[1]`, ...

        Some microseconds cheaper each.
        """
        return self.stream.gather_in_turn(starts, length, rows)

    def span(self, document: int) -> tuple[int, int]:
        """Where `document` starts and stops in the stream of the split."""
        shard, local = self._locate(document)
        first, last = self._shard_docs(shard)[local : local + 2].tolist()
        base = int(self._token_base[shard])
        if not first <= last <= self.entry.shards[shard].length:
            raise IntegrityError(
                f"document {local} spans {first}:{last}", where=self.entry.shards[shard].docs,
                code="E_OFFSETS", remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip
        return base + first, base + last

    def document(self, document: int) -> Ids:
        """The ids of `document`, with the BOS and EOS that the build added; an owned array."""
        return self.read(*self.span(document))

    def text(self, document: int) -> str:
        """The decoded text of `document`, without the BOS and EOS that the build added."""
        tokenizer = self.dataset.manifest.tokenizer
        ids = self.document(document)
        ids = ids[int(tokenizer.add_bos) : len(ids) - int(tokenizer.add_eos)]
        return self.dataset.decode(ids)

    def source(self, document: int) -> tuple[str, int]:
        """Where `document` came from: the input's name, and the byte offset or row in it."""
        shard, local = self._locate(document)
        entry = self.entry.shards[shard]
        number, position = self._array(entry.source)[local].tolist()
        inputs = self.dataset.inputs
        if number >= len(inputs):
            raise IntegrityError(
                f"document {local} names input {number} of {len(inputs)}", where=entry.source,
                code="E_SOURCE", remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip
        return inputs[number].name, position

    @property
    def record_ids(self) -> npt.NDArray[np.int64] | RecordIds:
        """int64 [documents]: the record id of each document, mapped (with ``"pread"``: read).

        Where every shard has its own (``entry.index`` is None) it is a `RecordIds`, which reads
        what it is asked for; `np.asarray` makes an array of it.
        """
        if self.entry.index is not None:
            return self.dataset.files.index(self.entry.index, self.documents)
        if self._ids is None:
            self._ids = RecordIds(self.dataset.files, self.entry.shards)
        return self._ids

    def lengths(self) -> Iterator[npt.NDArray[np.int64]]:
        """The length in tokens of every document, one int64 array per shard."""
        for shard in range(len(self.entry.shards)):
            starts = self._shard_docs(shard).astype(np.int64)
            yield starts[1:] - starts[:-1]

    def _locate(self, document: int) -> tuple[int, int]:
        if not 0 <= document < self.documents:
            raise IndexError(f"document {document} is outside 0:{self.documents}")
        shard = int(np.searchsorted(self._document_base, document, "right")) - 1
        return shard, document - int(self._document_base[shard])

    def _mask_stream(self, lengths: list[int]) -> Stream | None:
        """The loss mask of every token; all shards have one, or none has."""
        names = [shard.mask for shard in self.entry.shards if shard.mask is not None]
        if not names:
            return None
        return Stream(self.dataset.files.source(names, "|u1", lengths), lengths)

    def _shard_docs(self, shard: int) -> Ids:
        return self._array(self.entry.shards[shard].docs)

    def _array(self, name: str) -> Ids:
        return self.dataset.files.array(name)

    def parts(self, starts: npt.NDArray[np.int64], length: int) -> Parts:
        """Which document each part of the windows of `length` tokens at `starts` belongs to.

        From the stored offsets; reads no token. Raises `IndexError` for a window outside the
        split, `IntegrityError` for offsets that no build wrote. For the cost see `Boundaries`.
        """
        self._check_windows(starts, length)
        if self._held is None and self.documents <= HELD_DOCUMENTS:
            self._held = HeldBoundaries.read(self._boundaries)
        return (self._held or self._boundaries).parts(starts, length)

    @property
    def has_mask(self) -> bool:
        """Whether a loss mask says which tokens to train on."""
        return self._masks is not None

    @property
    def masks(self) -> Stream:
        """The loss mask as a stream of uint8, one number a token; `UsageError` if there is none."""
        if self._masks is None:
            raise UsageError("has no loss mask", where=f"split {self.name}", code="E_NO_MASK")
        return self._masks

    @property
    def form(self) -> str | None:
        """What a record is: "chat", "pairs", "labels" or "groups"; None where they are texts."""
        chat = self.dataset.chat
        return None if chat is None else chat.form

    @property
    def records(self) -> int:
        """How many records became the documents; of some a record is several."""
        return self.documents if self.entry.records is None else self.entry.records

    @property
    def has_groups(self) -> bool:
        """Whether a record is one document or more that belong together, as of preferences."""
        return self._groups is not None

    @property
    def groups(self) -> Groups:
        """The documents and the scores of each record; `UsageError` where there are none."""
        if self._groups is None:
            raise UsageError("has no preferences", where=f"split {self.name}", code="E_NO_GROUPS")
        return self._groups

    def gather_mask(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.uint8]:
        """The loss mask of the windows that `gather` gives: uint8 [len(starts), length], owned.

        1 for a token to train on, 0 for one that is only read. Costs as much as `gather`.
        Raises `UsageError` if the split has none, `IndexError` for a window outside it.
        """
        return self.masks.gather(starts, length)

    def _check_windows(self, starts: npt.NDArray[np.int64], length: int) -> None:
        if len(starts):
            check_inside("windows", starts, length, self.tokens)
