"""Reading a dataset directory with numpy alone: splits, documents, tokens, provenance.

Opening reads config.json and compares the size of every file with it; no data is read. Arrays are
mapped when first used, per process, and dropped on pickling. A split is one stream of tokens and
one list of documents: nothing here shows where a shard ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataprep.formats import manifest as manifests
from dataprep.formats import npy
from dataprep.formats.boundaries import Boundaries, Parts
from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest import FileEntry, Manifest, SplitEntry
from dataprep.formats.maps import MapCache, check_size, map_tokens
from dataprep.formats.replaced import Standing
from dataprep.formats.torchfile import open_index

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Dataset", "Split", "open_dataset"]

Ids = npt.NDArray[Any]


def open_dataset(path: str | Path) -> Dataset:
    """Open the dataset in the directory `path`.

    Raises `IntegrityError` for a directory that is unfinished or damaged, `IncompatibleError` for
    one that needs a newer dataprep. Costs a few milliseconds for thousands of shards.

        >>> dataset = open_dataset("shards")                      # doctest: +SKIP
        >>> dataset.splits["train"].tokens                        # doctest: +SKIP
        1048576
        >>> dataset.splits["train"].text(0)                       # doctest: +SKIP
        'Once upon a time ...'
    """
    directory = Path(path).absolute()  # maps are opened later, perhaps from elsewhere
    standing = Standing(directory)
    manifest = standing.open(lambda: _check(directory))
    standing.settle(manifest.build_id)
    return Dataset(directory, manifest, standing)


def _check(directory: Path) -> Manifest:
    """The manifest of the dataset in `directory`, all of whose files have the right size."""
    manifest = manifests.load(directory)
    for folder in sorted({e.name.partition("/")[0] for e in manifest.files if "/" in e.name}):
        _refuse_link(directory, folder)
    for entry in manifest.files:
        check_size(directory / entry.name, entry.name, entry.bytes)
    return manifest


def _refuse_link(directory: Path, folder: str) -> None:
    """Raise if the folder of a split is a link: what it holds is not part of this directory."""
    if (directory / folder).is_symlink():
        raise IntegrityError(
            "is a symbolic link; dataprep reads only ordinary folders", where=folder,
            code="E_NAME", remedy="Copy the folder here.",
        )  # fmt: skip


class Dataset:
    """An open dataset: its manifest and its splits by name."""

    def __init__(self, path: Path, manifest: Manifest, standing: Standing) -> None:
        self.path = path
        self.manifest = manifest
        self.standing = standing
        self._maps = MapCache()
        self._tokenizer: Tokenizer | None = None
        files = {entry.name: entry for entry in manifest.files}
        self.splits: Mapping[str, Split] = {
            name: Split(self, name, entry, files) for name, entry in manifest.splits.items()
        }

    @property
    def build_id(self) -> str:
        """Hex digest that equal content shares."""
        return self.manifest.build_id

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
        return Tokenizer.from_buffer(data)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of `ids`, control tokens spelled out."""
        text: str = self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
        return text

    def close(self) -> None:
        """Drop the maps; arrays handed out stay valid."""
        self._maps.clear()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.tokens:,} tokens" for s in self.splits.values())
        return f"<dataprep.Dataset {self.path} ({parts})>"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.build_id)


def _reopen(path: Path, build_id: str) -> Dataset:
    """Unpickle in another process: the directory must still hold the same build."""
    dataset = open_dataset(path)
    if dataset.build_id != build_id:
        raise IntegrityError(
            f"build {build_id[:12]} was replaced by {dataset.build_id[:12]}", where=str(path),
            code="E_REPLACED", remedy="Open the dataset again.",
        )  # fmt: skip
    return dataset


class Split:
    """One stream of `tokens` tokens and one list of `documents` documents.

    Positions are global to the split; shards are looked up by bisection in two int64 arrays.
    """

    def __init__(
        self, dataset: Dataset, name: str, entry: SplitEntry, files: dict[str, FileEntry]
    ) -> None:
        self.dataset = dataset
        self.name = name
        self.entry = entry
        self.tokens = entry.tokens
        self.documents = entry.documents
        self.dtype: np.dtype[Any] = np.dtype(dataset.manifest.tokens.dtype)
        self._files = files
        self._maps = dataset._maps
        self._token_files = [shard.tokens for shard in entry.shards]
        self._token_base = _bases(shard.length for shard in entry.shards)
        self._shard_length = np.diff(self._token_base)
        self._document_base = _bases(shard.documents for shard in entry.shards)
        self._boundaries = Boundaries(
            token_base=self._token_base, document_base=self._document_base,
            offsets=self._shard_docs, files=[shard.docs for shard in entry.shards],
        )  # fmt: skip

    def __len__(self) -> int:
        return self.documents

    def __repr__(self) -> str:
        return f"<dataprep.Split {self.name}: {self.documents:,} documents, {self.tokens:,} tokens>"

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset.split, (self.dataset, self.name)

    def read(self, start: int, stop: int) -> Ids:
        """Tokens `start` to `stop` of the stream, an owned array [stop - start] of `dtype`."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start}:{stop} are outside 0:{self.tokens}")
        out = np.empty(stop - start, self.dtype)
        self._fill(out, start)
        return out

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        """Windows of `length` tokens at `starts`: an owned array [len(starts), length] of `dtype`.

        A window may run over the end of a shard. Costs one memory copy, and a microsecond a window
        where the windows lie in more than one shard.
        """
        if len(starts) == 0 or length == 0:
            return np.empty((len(starts), length), self.dtype)
        low, high = int(starts.min()), int(starts.max())
        if low < 0 or high + length > self.tokens:
            raise IndexError(f"windows {low}:{high + length} are outside 0:{self.tokens}")
        shard = self._shard_at(low)
        base = int(self._token_base[shard])
        if high + length <= base + int(self._shard_length[shard]):
            ids = self._shard_tokens(shard)
            windows = np.ndarray(  # every window of the shard, overlapping, as a view
                (len(ids) - length + 1, length), ids.dtype, ids, 0, ids.strides * 2
            )
            return windows[starts - base]
        return self._gather_rows(starts, length)

    def _gather_rows(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        out = np.empty((len(starts), length), self.dtype)
        shards = np.searchsorted(self._token_base, starts, "right") - 1
        local = starts - self._token_base[shards]
        inside = local + length <= self._shard_length[shards]
        rows = zip(out, shards.tolist(), local.tolist(), inside.tolist(), strict=True)
        for number, (row, shard, at, whole) in enumerate(rows):
            if whole:
                row[:] = self._shard_tokens(shard)[at : at + length]
            else:
                self._fill(row, int(starts[number]))
        return out

    def _fill(self, out: Ids, start: int) -> None:
        if len(out) == 0:
            return
        shard, done = self._shard_at(start), 0
        while done < len(out):
            at = start + done - int(self._token_base[shard])
            part = self._shard_tokens(shard)[at : at + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
            shard += 1

    def _shard_at(self, token: int) -> int:
        """The shard that holds `token`, never an empty one."""
        return int(np.searchsorted(self._token_base, token, "right")) - 1

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
        inputs = self.dataset.manifest.inputs
        if number >= len(inputs):
            raise IntegrityError(
                f"document {local} names input {number} of {len(inputs)}", where=entry.source,
                code="E_SOURCE", remedy="Restore this file, or build again with --overwrite.",
            )  # fmt: skip
        return inputs[number].name, position

    @property
    def record_ids(self) -> npt.NDArray[np.int64]:
        """int64 [documents]: the record id of each document, mapped."""
        path = self.dataset.path / self.entry.index
        return self.dataset.standing.open(lambda: open_index(path, self.documents))

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

    def _shard_tokens(self, shard: int) -> Ids:
        found = self._maps.find(self._token_files[shard])  # once a window: kept short
        return self._map_tokens(shard) if found is None else found

    def _map_tokens(self, shard: int) -> Ids:
        entry, root, dtype = self.entry.shards[shard], self.dataset.path, self.dtype.str
        return self._map(
            entry.tokens, lambda: map_tokens(root / entry.tokens, entry.tokens, dtype, entry.length)
        )

    def _shard_docs(self, shard: int) -> Ids:
        return self._array(self.entry.shards[shard].docs)

    def _array(self, name: str) -> Ids:
        entry = self._files[name]
        dtype, shape = str(entry.dtype), entry.shape or ()
        root = self.dataset.path
        return self._map(name, lambda: npy.open_array(root / name, dtype, shape))

    def _map(self, name: str, opener: Callable[[], Ids]) -> Ids:
        return self._maps.get(name, lambda: self.dataset.standing.open(opener))

    def parts(self, starts: npt.NDArray[np.int64], length: int) -> Parts:
        """Which document each part of the windows of `length` tokens at `starts` belongs to.

        From the stored offsets; reads no token. Raises `IndexError` for a window outside the
        split, `IntegrityError` for offsets that no build wrote. For the cost see `Boundaries`.
        """
        self._check_windows(starts, length)
        return self._boundaries.parts(starts, length)

    @property
    def has_mask(self) -> bool:
        """Whether a loss mask says which tokens to train on."""
        return any(shard.mask is not None for shard in self.entry.shards)

    def gather_mask(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.uint8]:
        """The loss mask of the windows that `gather` gives: uint8 [len(starts), length], owned.

        1 for a token to train on, 0 for one that is only read. Costs a few microseconds a window.
        Raises `UsageError` if the split has none, `IndexError` for a window outside it.
        """
        if not self.has_mask:
            raise UsageError("has no loss mask", where=f"split {self.name}", code="E_NO_MASK")
        self._check_windows(starts, length)
        out = np.empty((len(starts), length), np.uint8)
        for row, start in zip(out, starts.tolist(), strict=True):
            self._fill_mask(row, start)
        return out

    def _fill_mask(self, out: npt.NDArray[np.uint8], start: int) -> None:
        shard, done = int(self._token_base.searchsorted(start, "right")) - 1, 0
        while done < len(out):
            at = start + done - int(self._token_base[shard])
            part = self._array(str(self.entry.shards[shard].mask))[at : at + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
            shard += 1

    def _check_windows(self, starts: npt.NDArray[np.int64], length: int) -> None:
        if len(starts):
            low, high = int(starts.min()), int(starts.max())
            if low < 0 or high + length > self.tokens:
                raise IndexError(f"windows {low}:{high + length} are outside 0:{self.tokens}")


def _bases(counts: Iterator[int]) -> npt.NDArray[np.int64]:
    """Exclusive prefix sums: [0, c0, c0 + c1, ...]."""
    return np.concatenate([[0], np.cumsum(np.fromiter(counts, np.int64))]).astype(np.int64)
