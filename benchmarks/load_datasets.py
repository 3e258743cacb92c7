"""Datasets of a chosen size and number of shards, for benchmarks/load.py.

Written directly in the format of docs/format.md, because only reading is measured: a build of
10**9 samples would take days, and a build into 100 shards needs 100 times the shard size. The ids
are random, or holes in sparse files if `sparse` requests a dataset larger than the disk. Hashes
are zero: `dataprep verify` would refuse these directories, but opening does not check them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.files import npy
from dataprep.formats.files.index_file import head, index_size, tail
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import (
    FileEntry,
    InputEntry,
    Manifest,
    RecordCounts,
    ShardEntry,
    SplitEntry,
    TokenizerEntry,
    TokensEntry,
)

__all__ = ["write_dataset"]

VOCABULARY = {"<u2": 50_257, "<u4": 151_936}
_CHUNK = 1 << 24  # ids written at once
_CRC_BLOCK = 1 << 20

Array = npt.NDArray[Any]


def write_dataset(
    path: Path,
    tokens: int,
    *,
    shards: int = 1,
    dtype: str = "<u2",
    document: int = 1000,
    sparse: bool = False,
    tokenizer: bytes = b"{}",
) -> Path:
    """Make the directory `path`, one split "train" of `tokens` ids in equal shards.

    Documents have `document` tokens each, and a shard ends with a shorter one.
    """
    (path / "train").mkdir(parents=True)
    files: dict[str, FileEntry] = {}
    bounds = [tokens * number // shards for number in range(shards + 1)]
    random = np.random.default_rng(0)
    entries = []
    for number in range(shards):
        length = bounds[number + 1] - bounds[number]
        entries.append(_shard(path, number, length, dtype, document, sparse, random, files))
    documents = sum(entry.documents for entry in entries)
    _file(path, files, "train_idx.pt", index_size(documents), "<i8", (documents,))
    with (path / "train_idx.pt").open("r+b") as stream:
        stream.write(head(documents))
        stream.seek(len(head(documents)) + 8 * documents)
        stream.write(tail(documents, 0))
    (path / "tokenizer.json").write_bytes(tokenizer)
    _entry(files, "tokenizer.json", len(tokenizer), None, None)
    blocks = sum(-(-entry.bytes // _CRC_BLOCK) for entry in files.values())
    _npy(path, files, manifests.CRC_NAME, "<u4", (blocks,))
    content = f"{tokens} {shards} {dtype} {document} {sparse}"
    split = SplitEntry(
        content_id=hashlib.sha256(content.encode()).hexdigest(), index="train_idx.pt",
        documents=documents, tokens=tokens, text_bytes=0,
        zero_token_documents=0, shards=tuple(entries),
    )  # fmt: skip
    data = dump_json(_manifest(split, dtype, documents, tokenizer, content, files))
    (path / manifests.CONFIG_NAME).write_bytes(data)
    return path


def _shard(
    path: Path, number: int, length: int, dtype: str, document: int, sparse: bool,
    random: np.random.Generator, files: dict[str, FileEntry],
) -> ShardEntry:  # fmt: skip
    documents = -(-length // document)
    names = [
        f"train/{kind}" for kind in (f"tokens-{number:05d}.bin", f"docs-{number:05d}.npy",
                                     f"source-{number:05d}.npy")
    ]  # fmt: skip
    size = length * int(dtype[2])
    _file(path, files, names[0], size, dtype, (length,))
    if not sparse:
        limit = VOCABULARY[dtype]
        with (path / names[0]).open("r+b") as stream:
            for start in range(0, length, _CHUNK):
                count = min(_CHUNK, length - start)
                stream.write(random.integers(0, limit, count, dtype[1:]).data)

    def offsets(start: int, stop: int) -> Array:
        return np.minimum(np.arange(start, stop) * document, length)

    _npy(path, files, names[1], "<u8", (documents + 1,), None if sparse else offsets)
    _npy(path, files, names[2], "<u8", (documents, 2))
    return ShardEntry(
        tokens=names[0], docs=names[1], source=names[2], documents=documents, length=length
    )


def _npy(
    path: Path, files: dict[str, FileEntry], name: str, dtype: str, shape: tuple[int, ...],
    numbers: Callable[[int, int], Array] | None = None,
) -> None:  # fmt: skip
    """Write an array file: zeros in a hole, or `numbers` of each range of the first axis."""
    _file(path, files, name, npy.file_size(dtype, shape), dtype, shape)
    with (path / name).open("r+b") as stream:
        stream.write(npy.header(dtype, shape))
        for start in range(0, shape[0] if numbers else 0, _CHUNK):
            part = numbers(start, min(start + _CHUNK, shape[0])) if numbers else np.empty(0)
            stream.write(part.astype(dtype).data)


def _file(
    path: Path, files: dict[str, FileEntry], name: str, size: int, dtype: str,
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    with (path / name).open("wb") as stream:
        stream.truncate(size)
    _entry(files, name, size, dtype, shape)


def _entry(
    files: dict[str, FileEntry], name: str, size: int, dtype: str | None,
    shape: tuple[int, ...] | None,
) -> None:  # fmt: skip
    files[name] = FileEntry(name=name, bytes=size, dtype=dtype, shape=shape, sha256="0" * 64)


def _manifest(
    split: SplitEntry, dtype: str, documents: int, tokenizer: bytes, content: str,
    files: dict[str, FileEntry],
) -> Manifest:  # fmt: skip
    return Manifest(
        format="dataprep", format_version=manifests.FORMAT_VERSION, required_features=(),
        kind="tokens", recipe_id=hashlib.sha256(content.encode()).hexdigest(),
        tokens=TokensEntry(dtype=dtype, vocab_size=VOCABULARY[dtype]),
        tokenizer=TokenizerEntry(
            file="tokenizer.json", sha256=hashlib.sha256(tokenizer).hexdigest(), engine="none",
            engine_reason="random ids", libraries={}, special_text="literal",
            special_text_found={}, add_bos=False, add_eos=False, bos=None, eos=None, pad=None,
            probes=(),
        ),
        splits={"train": split},
        inputs=(
            InputEntry(
                name="random", format="text", unit="byte", bytes=0, fingerprint="none",
                records=documents,
            ),
        ),
        records=RecordCounts(read=documents, written=documents, rejected={}, blank_lines=0),
        options={}, files=tuple(files[name] for name in sorted(files)),
    )  # fmt: skip
