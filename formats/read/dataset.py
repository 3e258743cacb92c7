"""Datasets of tokens, read with numpy alone.

A split is one stream of tokens and one list of documents, for any number of shards. For each
document, the dataset also stores the input that contained the document.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import IncompatibleError, IntegrityError, UsageError, damaged_file
from ..library_errors import rust_errors
from ..manifest import tokens as manifests
from ..manifest.tokens import ChatEntry, Manifest, SplitEntry
from .boundaries import LOADED_DOCUMENTS, Boundaries, LoadedBoundaries, Parts
from .directory import OpenDirectory, open_directory, reopen
from .open_files import ReadBy
from .records import Groups, RecordIds
from .sharded import Stream, bases, check_inside
from .staleness import BuildGuard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Dataset", "ReadBy", "Split", "open_dataset"]

Ids = npt.NDArray[Any]
_OFFSETS = 1 << 12  # read at once in an iteration over documents


def open_dataset(path: str | os.PathLike[str], *, io: ReadBy | None = None) -> Dataset:
    """Open the dataset in the directory `path`.

    The argument `io` selects how data is read. The data is the same in all cases.

    - ``"mmap"`` maps the files, which is fastest. If the disk cannot read a block, or a file is
      truncated while it is read, the process ends with SIGBUS. File sizes are checked at most every
      10 ms, and a check that finds a truncated file raises an error.
    - ``"pread"`` maps nothing, and takes about 2 microseconds more for each window. A block that
      the disk cannot read raises a `StorageError`, and a truncated file an `IntegrityError`. Use
      it for network file systems and FUSE, where maps are a hazard.
    - None, the default, is ``"pread"`` if Linux reports a network file system or FUSE, else
      ``"mmap"``.

    Raise `IntegrityError` if the directory is unfinished or damaged, and `IncompatibleError` if it
    needs a newer dataprep. Opening takes a few milliseconds for thousands of shards.

        >>> dataset = open_dataset("shards")                      # doctest: +SKIP
        >>> dataset["train"].tokens                               # doctest: +SKIP
        1048576
        >>> dataset["train"].text(0)                              # doctest: +SKIP
        'Once upon a time ...'
    """
    return Dataset(*open_directory(path, io, manifests.load))


class Dataset(OpenDirectory[Manifest, "Split"]):
    """An open dataset of tokens: its manifest, its tokenizer, and its splits by name.

    >>> dataset["train"].lengths()                                # doctest: +SKIP
    array([512, 77, 1031])
    """

    _build_hint = "Name one of these, or build with --split."

    def __init__(
        self, path: Path, manifest: Manifest, guard: BuildGuard, io: ReadBy = "mmap"
    ) -> None:
        super().__init__(path, manifest, guard, io)
        self._tokenizer: Tokenizer | None = None
        self.splits = {name: Split(self, name, entry) for name, entry in manifest.splits.items()}

    @property
    def chat(self) -> ChatEntry | None:
        """Settings with which conversations were tokenized, or None for plain texts."""
        chat = self.manifest.chat
        return None if chat is msgspec.UNSET else chat

    @property
    def tokenizer(self) -> Tokenizer:
        """The `tokenizers.Tokenizer` that made the ids, loaded on first use.

        Raises `IntegrityError` if the stored file has changed, and `IncompatibleError` if the
        tokenizers library cannot read it.
        """
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        return self._tokenizer

    def _load_tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        entry = self.manifest.tokenizer
        data = self._guard.open((self.path / entry.file).read_bytes)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise damaged_file("is not the tokenizer that made these ids", entry.file, "E_HASH")
        with rust_errors(self._unusable):
            return Tokenizer.from_buffer(data)

    def decode(self, ids: npt.ArrayLike, tokenizer: Tokenizer | None = None) -> str:
        """Return the text of `ids`, including special tokens.

        The ids are decoded by `tokenizer`, or by the dataset's own tokenizer if `tokenizer` is
        None. Raise `IncompatibleError` if the tokenizers library fails.
        """
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
        """Drop maps and open files. Arrays returned earlier remain valid."""
        for split in self.splits.values():
            split.close()
        super().close()

    def __repr__(self) -> str:
        parts = "; ".join(f"{split.name}: {split.summary}" for split in self.splits.values())
        return f"<dataprep.Dataset {self.path} ({parts})>"

    def __reduce__(self) -> tuple[object, ...]:
        return reopen, (open_dataset, self.path, self.manifest.self_sha256, self.io)


class Split:
    """Split of a dataset: a stream of `tokens` tokens, cut into `documents` documents.

    Positions and document indices count from the start of the split, not of a shard. ``len(split)``
    is the number of documents. ``split[i]`` is the array of the token ids of document `i`, and
    iteration yields these arrays.
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
        self.document_base = bases(shard.documents for shard in shards)
        """First document of each shard, and their number in all: int64 [shards + 1]."""
        self._boundaries = Boundaries(
            token_base=self._token_base, document_base=self.document_base,
            offsets=self.offsets, files=[shard.docs for shard in shards],
        )  # fmt: skip
        self._loaded: LoadedBoundaries | None = None
        self._ids: RecordIds | None = None
        grouped = bool(shards) and shards[0].groups is not None
        self._groups = Groups(shards, self._array) if grouped else None

    def __len__(self) -> int:
        return self.documents

    def __repr__(self) -> str:
        return f"<dataprep.Split {self.name} of {self.dataset.path} ({self.summary})>"

    def __getitem__(self, document: int) -> Ids:
        return self.document(document + self.documents if document < 0 else document)

    def __iter__(self) -> Iterator[Ids]:
        for shard in range(len(self.entry.shards)):
            base, offsets = int(self._token_base[shard]), self.offsets(shard)
            for start in range(0, len(offsets) - 1, _OFFSETS):
                spans = offsets[start : start + _OFFSETS + 1].tolist()
                for local, (first, last) in enumerate(pairwise(spans), start):
                    if not first <= last <= self.entry.shards[shard].length:
                        raise self._bad_span(shard, local, first, last)
                    yield self.read(base + first, base + last)

    @property
    def summary(self) -> str:
        """The numbers of documents and tokens, as text for messages."""
        return f"{self.documents:,} documents, {self.tokens:,} tokens"

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset.split, (self.dataset, self.name)

    @property
    def content_id(self) -> str:
        """Hex digest that is equal for splits of equal content.

        The shuffled order of the samples depends on it, on the seed and on the epoch.
        """
        return self.entry.content_id

    def close(self) -> None:
        """Drop the maps of this split (see `Dataset.close`)."""
        self.stream.source.close()
        if self._masks is not None:
            self._masks.source.close()
        self._ids = None

    def read(self, start: int, stop: int) -> Ids:
        """Return a copy of tokens `start` to `stop` - 1 of the stream: an array [stop - start].

        Raise `IndexError` if they are outside the stream.
        """
        return self.stream.read(start, stop)

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        """Return the windows of `length` tokens at positions `starts`: [len(starts), length].

        A window may run over the end of a shard. The call costs one memory copy for any number
        of shards if files are mapped, otherwise 2 microseconds for each window. Raise
        `IndexError` for a window outside the stream.
        """
        return self.stream.gather(starts, length)

    def gather_in_turn(
        self, starts: npt.NDArray[np.int64], length: int, rows: Sequence[int]
    ) -> Iterator[Ids]:
        """Yield the windows at `starts` in batches: `rows[0]` windows, then `rows[1]`, and so on.

        Batch `i` is an array [rows[i], length]. It equals the result of `gather` for the same
        positions, but takes a few microseconds less.
        """
        return self.stream.gather_in_turn(starts, length, rows)

    def span(self, document: int) -> tuple[int, int]:
        """Return (start, stop): `document` has the tokens `start` to `stop` - 1 of the split.

        Raise `IndexError` if there is no such document, and `IntegrityError` for damaged offsets.
        """
        shard, local = self._locate(document)
        first, last = self.offsets(shard)[local : local + 2].tolist()
        base = int(self._token_base[shard])
        if not first <= last <= self.entry.shards[shard].length:
            raise self._bad_span(shard, local, first, last)
        return base + first, base + last

    def document(self, document: int) -> Ids:
        """Return a copy of the ids of `document`, with the BOS and EOS that the build added."""
        return self.read(*self.span(document))

    def text(self, document: int) -> str:
        """Return the decoded text of `document`, without the BOS and EOS that the build added."""
        tokenizer = self.dataset.manifest.tokenizer
        ids = self.document(document)
        ids = ids[int(tokenizer.add_bos) : len(ids) - int(tokenizer.add_eos)]
        return self.dataset.decode(ids)

    def source(self, document: int) -> tuple[str, int]:
        """Return the name of the input that contains `document`, and its location in that input.

        The location is a byte offset or a row number. Raise `IndexError` if there is no such
        document, and `IntegrityError` if the stored input number is invalid.
        """
        shard, local = self._locate(document)
        entry = self.entry.shards[shard]
        number, position = self._array(entry.source)[local].tolist()
        inputs = self.dataset.inputs
        if number >= len(inputs):
            problem = f"document {local} names input {number} of {len(inputs)}"
            raise damaged_file(problem, entry.source, "E_SOURCE")
        return inputs[number].name, position

    @property
    def record_ids(self) -> npt.NDArray[np.int64] | RecordIds:
        """Record id of each document: int64 [documents].

        If ``entry.index`` names one file for the whole split, this is an array, mapped if `io` is
        ``"mmap"``. Otherwise each shard has its own file of ids, and this is a `RecordIds`. A
        `RecordIds` reads ids on demand, and `np.asarray` converts it to an array.
        """
        if self.entry.index is not None:
            return self.dataset.files.index(self.entry.index, self.documents)
        if self._ids is None:
            self._ids = RecordIds(self.dataset.files, self.entry.shards)
        return self._ids

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the length of every document in tokens: int64 [documents]."""
        return np.concatenate([np.empty(0, np.int64), *self.shard_lengths()])

    def shard_lengths(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the lengths of the documents of each shard in tokens, as int64 arrays."""
        for shard in range(len(self.entry.shards)):
            starts = self.offsets(shard).astype(np.int64)
            yield starts[1:] - starts[:-1]

    def _bad_span(self, shard: int, local: int, first: int, last: int) -> IntegrityError:
        problem = f"document {local} spans {first}:{last}"
        return damaged_file(problem, self.entry.shards[shard].docs, "E_OFFSETS")

    def _locate(self, document: int) -> tuple[int, int]:
        """Return the index of the shard that holds `document`, and the document's index in it.

        Raise `IndexError` if there is no such document.
        """
        if not 0 <= document < self.documents:
            raise IndexError(f"document {document} is outside 0:{self.documents}")
        shard = int(np.searchsorted(self.document_base, document, "right")) - 1
        return shard, document - int(self.document_base[shard])

    def _mask_stream(self, lengths: list[int]) -> Stream | None:
        """Return the loss mask as a stream, or None if the shards have none."""
        names = [shard.mask for shard in self.entry.shards if shard.mask is not None]
        if not names:
            return None
        return Stream(self.dataset.files.source(names, "|u1", lengths), lengths)

    def offsets(self, shard: int) -> Ids:
        """Return the offsets of the documents in `shard`: uint64 [documents + 1].

        Document `i` of the shard has the tokens at positions ``offsets[i]`` to
        ``offsets[i + 1] - 1`` of the shard.
        """
        return self._array(self.entry.shards[shard].docs)

    def _array(self, name: str) -> Ids:
        return self.dataset.files.array(name)

    def parts(self, starts: npt.NDArray[np.int64], length: int) -> Parts:
        """Return the parts of documents in the windows of `length` tokens that begin at `starts`.

        The function reads the stored offsets, not the tokens. Raise `IndexError` for a window
        outside the split, and `IntegrityError` for damaged offsets. For the cost see `Boundaries`.
        """
        self._check_windows(starts, length)
        if self._loaded is None and self.documents <= LOADED_DOCUMENTS:
            self._loaded = LoadedBoundaries.read(self._boundaries)
        return (self._loaded or self._boundaries).parts(starts, length)

    @property
    def has_mask(self) -> bool:
        """True if a loss mask marks the tokens to train on."""
        return self._masks is not None

    @property
    def masks(self) -> Stream:
        """Loss mask as a stream of uint8, one number for each token.

        Raises `UsageError` if there is no mask.
        """
        if self._masks is None:
            raise UsageError("has no loss mask", where=f"split {self.name}", code="E_NO_MASK")
        return self._masks

    @property
    def form(self) -> str | None:
        """Form of the records: "chat", "pairs", "labels" or "groups", or None for plain texts."""
        chat = self.dataset.chat
        return None if chat is None else chat.form

    @property
    def records(self) -> int:
        """Number of records in the split. A record of preferences has several documents."""
        return self.documents if self.entry.records is None else self.entry.records

    @property
    def has_groups(self) -> bool:
        """True if each record is a group of documents, as in datasets of preferences."""
        return self._groups is not None

    @property
    def groups(self) -> Groups:
        """Documents and scores of each record.

        Raises `UsageError` if the split has no preferences.
        """
        if self._groups is None:
            raise UsageError("has no preferences", where=f"split {self.name}", code="E_NO_GROUPS")
        return self._groups

    def gather_mask(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.uint8]:
        """Return the loss mask of the windows that `gather` returns: uint8 [len(starts), length].

        The number 1 marks a token to train on, and 0 any other token. This costs as much as
        `gather`. Raise `UsageError` if the split has no mask, and `IndexError` for a window outside
        the split.
        """
        return self.masks.gather(starts, length)

    def _check_windows(self, starts: npt.NDArray[np.int64], length: int) -> None:
        if len(starts):
            check_inside("windows", starts, length, self.tokens)
