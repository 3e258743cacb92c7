"""Writes a dataset directory from arrays, by the rules of docs/format.md and nothing else.

Tests of readers need a directory of known content in milliseconds; tests of the build make theirs
by building.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dataprep.formats.checksums import FileHash
from dataprep.formats.files import npy
from dataprep.formats.files.index_file import write_index
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import (
    ChatEntry,
    FileEntry,
    InputEntry,
    Manifest,
    Probe,
    RecordCounts,
    ShardEntry,
    SpecialToken,
    SplitEntry,
    TokenizerEntry,
    TokensEntry,
)
from dataprep.formats.storage import FileWriter, write_file
from tests.scenes.contents import token_content_id

__all__ = ["BYTE_VOCAB", "EOS_ID", "EOS_TEXT", "byte_tokenizer", "make_dataset", "random_split"]

Documents = Sequence[npt.ArrayLike]
Scores = Sequence[Sequence[Sequence[float]]]  # by shard, record and document of it

EOS_ID = 256
EOS_TEXT = "<|endoftext|>"
BYTE_VOCAB = 257  # 256 bytes and EOS_TEXT
_Written = dict[str, tuple[FileHash, str | None, tuple[int, ...] | None]]  # hash, dtype, shape
_RECORD_BYTES = 100  # the made-up size of each input record
_version = cache(version)  # reads a file each time
TEMPLATE = b"{% for message in messages %}{{ message.content }}{% endfor %}\n"
_PROBES = ("Hello, world!", "naïve café\n\t0123")


def byte_tokenizer(vocab_size: int = BYTE_VOCAB) -> bytes:
    """A tokenizer.json whose ids 0..255 are the bytes, 256 is EOS, and the last is a filler."""
    vocab = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    vocab[EOS_TEXT] = EOS_ID
    if vocab_size > BYTE_VOCAB:
        vocab["<last>"] = vocab_size - 1
    added = {
        "id": EOS_ID, "content": EOS_TEXT, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocab, "merges": [],
    }  # fmt: skip
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
        "normalizer": None, "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None, "decoder": {**level, "use_regex": True}, "model": model,
    }  # fmt: skip
    return json.dumps(document, ensure_ascii=False).encode()


def _byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def random_split(
    lengths: Sequence[Sequence[int]], *, seed: int = 0, vocab_size: int = 256
) -> list[list[npt.NDArray[np.int64]]]:
    """Shards of documents of these lengths, filled with random ids."""
    random = np.random.default_rng(seed)
    found = []
    for shard in lengths:
        ends = np.cumsum([0, *shard])
        ids = random.integers(0, vocab_size, int(ends[-1]))
        found.append([ids[start:stop] for start, stop in pairwise(ends.tolist())])
    return found


def make_dataset(
    path: Path,
    splits: Mapping[str, Sequence[Documents]],
    *,
    vocab_size: int = BYTE_VOCAB,
    tokenizer_json: bytes | None = None,
    add_eos: bool = False,
    masks: Mapping[str, Sequence[Documents]] | None = None,
    form: str | None = None,
    scores: Mapping[str, Scores] | None = None,
    sizes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    max_tokens: int | None = None,
) -> Path:
    """Make the directory `path`: split -> shards -> documents as arrays of ids; returns `path`.

    Record ids count the documents in the order given, and all come from one input of 100 bytes a
    record. `vocab_size` is at least 257 unless a `tokenizer_json` of that size is given. `masks`
    has, for some splits, the loss mask of each document, EOS included where there is one.

    With a `form` it is a dataset of conversations, whose splits all have `masks`. Of preferences,
    `scores` has, for all splits, those of each document, by record. `sizes` says, for some splits,
    how many documents a record is cut into. `max_tokens` is the limit that a build of conversations
    kept to.
    """
    path.mkdir(parents=True)
    tokenizer = byte_tokenizer(vocab_size) if tokenizer_json is None else tokenizer_json
    hashes: _Written = {}
    hashes["tokenizer.json"] = (write_file(path / "tokenizer.json", tokenizer), None, None)
    content = hashlib.sha256(tokenizer)
    entries: dict[str, SplitEntry] = {}
    masks, scores, sizes = masks or {}, scores or {}, dict(sizes or {})
    sizes |= {name: [[*map(len, shard)] for shard in of] for name, of in scores.items()}
    if form is not None:
        hashes["chat_template.jinja"] = (write_file(path / "chat_template.jinja", TEMPLATE), *_RAW)
    first = 0
    for name, shards in splits.items():
        arrays = [_documents(shard, vocab_size, add_eos) for shard in shards]
        entries[name] = _write_split(
            path, name, arrays, first, hashes, vocab_size, add_eos, sizes.get(name)
        )
        if name in masks:
            entries[name] = _write_masks(path, name, entries[name], masks[name], hashes, content)
        if name in scores:
            entries[name] = _write_groups(path, name, entries[name], scores[name], hashes, content)
        records = entries[name].records
        first += entries[name].documents if records is None else records
        for ids in (ids for shard in arrays for ids in shard):  # how it is sharded does not matter
            content.update(f"{name} {len(ids)} ".encode() + ids.tobytes())
        entries[name] = _identified(path, entries[name], _dtype(vocab_size))
    _write_crc(path, hashes)
    manifest = Manifest(
        format="dataprep",
        format_version=manifests.FORMAT_VERSION,
        required_features=(manifests.LOSS_MASK,) * bool(masks)
        + (manifests.PREFERENCE,) * bool(scores),
        kind="tokens",
        recipe_id=content.hexdigest(),
        tokens=TokensEntry(dtype=_dtype(vocab_size), vocab_size=vocab_size),
        tokenizer=_tokenizer_entry(tokenizer, add_eos),
        splits=entries,
        inputs=(_input_entry(first, content.digest()),),
        records=RecordCounts(read=first, written=first, rejected={}, blank_lines=0),
        options={"field": "text", "seed": 0, "split_key": None, "split_mode": "ratio"},
        files=tuple(
            FileEntry(name=name, bytes=found.size, dtype=dtype, shape=shape, sha256=found.sha256)
            for name, (found, dtype, shape) in sorted(hashes.items())
        ),
        chat=msgspec.UNSET if form is None else _chat_entry(form, masks, max_tokens),
    )
    write_file(path / manifests.CONFIG_NAME, dump_json(manifest))
    return path


_RAW = (None, None)


def _chat_entry(
    form: str, masks: Mapping[str, Sequence[Documents]], max_tokens: int | None
) -> ChatEntry:
    every = [np.asarray(mask) for shards in masks.values() for shard in shards for mask in shard]
    return ChatEntry(
        template="chat_template.jinja", template_origin="named test",
        template_sha256=hashlib.sha256(TEMPLATE).hexdigest(), masked_by="prefixes",
        train_on="assistant", form=form, max_tokens=max_tokens, overlong=None, overlong_found={},
        trained_tokens=sum(int(mask.sum()) for mask in every),
    )  # fmt: skip


def _dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def _documents(shard: Documents, vocab_size: int, add_eos: bool) -> list[npt.NDArray[Any]]:
    arrays = [np.asarray(ids, np.int64) for ids in shard]
    every = np.concatenate([*arrays, np.empty(0, np.int64)])
    assert every.size == 0 or (every.min() >= 0 and every.max() < vocab_size), "id out of range"
    eos = np.array([EOS_ID])
    return [np.concatenate([array, eos]) for array in arrays] if add_eos else arrays


def _write_split(
    path: Path,
    name: str,
    shards: list[list[npt.NDArray[Any]]],
    first_record: int,
    hashes: _Written,
    vocab_size: int,
    add_eos: bool,
    sizes: Sequence[Sequence[int]] | None,
) -> SplitEntry:
    (path / name).mkdir()
    record, entries, ids = first_record, [], [np.empty(0, np.int64)]
    for number, documents in enumerate(shards):
        lengths = np.array([len(ids) for ids in documents], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        own = [1] * len(documents) if sizes is None else sizes[number]
        records = np.repeat(np.arange(record, record + len(own)), own)
        assert len(records) == len(documents), "as many documents as the records have"
        source = np.stack([np.zeros_like(records), records * _RECORD_BYTES], axis=1)
        tokens = np.concatenate([*documents, np.empty(0, np.int64)]).astype(_dtype(vocab_size))
        entry = ShardEntry(
            tokens=f"{name}/tokens-{number:05d}.bin", docs=f"{name}/docs-{number:05d}.npy",
            source=f"{name}/source-{number:05d}.npy", documents=len(documents), length=len(tokens),
        )  # fmt: skip
        found = write_file(path / entry.tokens, tokens.tobytes())
        hashes[entry.tokens] = (found, _dtype(vocab_size), tokens.shape)
        _write_npy(path, entry.docs, starts.astype("<u8"), hashes)
        _write_npy(path, entry.source, source.astype("<u8"), hashes)
        entries.append(entry)
        ids.append(records)
        record += len(own)
    index = f"{name}_idx.pt"
    with FileWriter(path / index) as writer:
        stream = cast(BinaryIO, writer)
        every = np.concatenate(ids)
        write_index(stream, [every], len(every))
        hashes[index] = (writer.close(), "<i8", every.shape)
    text = [len(ids) - add_eos for shard in shards for ids in shard]
    return SplitEntry(
        content_id="", index=index, documents=len(text),
        tokens=sum(entry.length for entry in entries),
        text_bytes=sum(text), zero_token_documents=text.count(0), shards=tuple(entries),
        records=None if sizes is None else record - first_record,
    )  # fmt: skip


def _identified(path: Path, entry: SplitEntry, dtype: str) -> SplitEntry:
    shards = [msgspec.to_builtins(shard) for shard in entry.shards]
    content_id = token_content_id(path, dtype, shards)
    return msgspec.structs.replace(entry, content_id=content_id)


def _write_groups(
    path: Path, name: str, entry: SplitEntry, scores: Scores, hashes: _Written, content: Any
) -> SplitEntry:
    shards = []
    for number, (shard, records) in enumerate(zip(entry.shards, scores, strict=True)):
        groups, said = f"{name}/groups-{number:05d}.npy", f"{name}/scores-{number:05d}.npy"
        starts = np.cumsum([0, *map(len, records)]).astype("<u8")
        values = np.array([score for record in records for score in record], "<f4")
        _write_npy(path, groups, starts, hashes)
        _write_npy(path, said, values, hashes)
        content.update(starts.tobytes() + values.tobytes())
        shards.append(msgspec.structs.replace(
            shard, groups=groups, scores=said, records=len(records)
        ))  # fmt: skip
    return msgspec.structs.replace(entry, shards=tuple(shards))


def _write_masks(
    path: Path,
    name: str,
    entry: SplitEntry,
    masks: Sequence[Documents],
    hashes: _Written,
    content: Any,
) -> SplitEntry:
    shards = []
    for number, (shard, documents) in enumerate(zip(entry.shards, masks, strict=True)):
        file = f"{name}/mask-{number:05d}.npy"
        values = [np.asarray(mask, np.uint8) for mask in documents]
        _write_npy(path, file, np.concatenate([*values, np.empty(0, np.uint8)]), hashes)
        assert hashes[file][2] == (shard.length,), "one value for each token"
        content.update(b"".join(value.tobytes() for value in values))
        shards.append(msgspec.structs.replace(shard, mask=file))
    return msgspec.structs.replace(entry, shards=tuple(shards))


def _write_npy(
    path: Path,
    name: str,
    array: npt.NDArray[Any],
    hashes: _Written,
) -> None:
    data = npy.header(array.dtype.str, array.shape) + array.tobytes()
    hashes[name] = (write_file(path / name, data), array.dtype.str, array.shape)


def _write_crc(path: Path, hashes: _Written) -> None:
    blocks = [hashes[name][0].crc32 for name in sorted(hashes)]
    _write_npy(path, manifests.CRC_NAME, np.concatenate(blocks).astype("<u4"), hashes)


def _tokenizer_entry(data: bytes, add_eos: bool) -> TokenizerEntry:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(data.decode())
    probes = [
        Probe(text=text, ids=tuple(tokenizer.encode(text, add_special_tokens=False).ids))
        for text in _PROBES
    ]
    eos = tokenizer.token_to_id(EOS_TEXT)
    return TokenizerEntry(
        file="tokenizer.json", sha256=hashlib.sha256(data).hexdigest(), engine="tokenizers",
        engine_reason="written by a test", libraries={"tokenizers": _version("tokenizers")},
        special_text="literal", special_text_found={}, add_bos=False, add_eos=add_eos, bos=None,
        eos=None if eos is None else SpecialToken(id=eos, token=EOS_TEXT), pad=None,
        probes=tuple(probes),
    )  # fmt: skip


def _input_entry(records: int, seed: bytes) -> InputEntry:
    digest = xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(seed))
    return InputEntry(
        name="input.jsonl", format="jsonl", unit="byte", bytes=records * _RECORD_BYTES,
        fingerprint=f"xxh3-128:{digest}", records=records,
    )  # fmt: skip
