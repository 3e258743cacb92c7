"""What is read of mutated files: for each reader, sound files, and how they are read."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support import REPOSITORY

__all__ = ["TARGETS", "Target", "UnnoticedError"]

FIXTURES = REPOSITORY / "data_fixtures"
GOLDEN = FIXTURES / "golden" / "v1"
KINDS = ("narrow", "wide", "chat", "answers", "embeddings", "pairs")
TEXTS = [f"Text {n} of a few words, caf\u00e9 \U0001f600, and a number {n * n}." for n in range(24)]


class Target(NamedTuple):
    """`seeds` writes sound files (or folders) into a folder; `read` reads a mutant of one.

    Those of the names `refused` are errors as they are.
    """

    seeds: Callable[[Path], None]
    read: Callable[[Path], None]
    inputs: int
    refused: tuple[str, ...] = ()


def _spans(path: Path, **options: Any) -> None:
    """The texts of an input, as a build of tokens reads them."""
    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.read.reader import SpanReader
    from dataprep.pipeline.tokens.prepare import survey

    found = survey(BuildOptions(input=(str(path),), out=path.parent / "out", **options))
    for unit in found.units:
        for span in unit.spans:
            reader = SpanReader(found.sources[span.source], span, found.read)
            for batch in reader.batches():
                assert len(batch.texts) + len(batch.rejects) == batch.read


def _texts(path: Path) -> None:
    for document in ("file", "line", "block"):
        _spans(path, format="text", document=document)


def _chat(path: Path) -> None:
    """The records of an input, as a build of conversations reads them."""
    from dataprep.pipeline.chat.options import ChatOptions
    from dataprep.pipeline.chat.records.reader import ChatReader, ChatReadOptions
    from dataprep.pipeline.read.discovery import find_sources
    from dataprep.pipeline.read.parquet import parquet_row_groups
    from dataprep.pipeline.read.records import Span

    for source in find_sources(ChatOptions(input=(str(path),), out=path.parent / "out")):
        parquet = source.format == "parquet"
        stop = len(parquet_row_groups(source)) if parquet else source.size
        for _ in ChatReader(source, Span(0, 0, stop), ChatReadOptions()).batches():
            pass


def _rows(path: Path) -> None:
    """The rows of an input, as a build of embeddings reads them."""
    from dataprep.pipeline.embeddings.options import EmbeddingOptions
    from dataprep.pipeline.embeddings.prepare import prepare, survey
    from dataprep.pipeline.embeddings.readers import RowReader

    options = EmbeddingOptions(input=(str(path),), out=path.parent / "out")
    plan = prepare(options, survey(options), None).plan
    for unit in plan.units:
        for span in unit.spans:
            reader = RowReader(
                plan.sources[span.source], span, plan.payload.columns, config=None, split=None,
                lap=lambda _: None,
            )  # fmt: skip
            for rows in reader.rows():
                assert all(
                    len(column.array) == rows.count for column in rows.columns.values()
                    if column.texts is None
                )  # fmt: skip


def _pairs(path: Path) -> None:
    from dataprep.pipeline.pairs.options import PairOptions
    from dataprep.pipeline.pairs.table import pair_texts

    pair_texts(PairOptions(input=(str(path),), out=path.parent / "out", encoder="none"))


def _parquet(path: Path) -> None:
    for read in (_spans, _chat, _rows, _pairs):
        _each(read, path)


def _each(read: Callable[[Path], None], path: Path) -> None:
    """Read it in one of several ways, where it is no failure that another way refuses it."""
    from dataprep.formats.errors import InputError

    try:
        read(path)
    except InputError as error:
        if error.code in ("E_CRASH", "E_PARQUET"):
            raise


def _converted(path: Path) -> None:
    from dataprep.pipeline.interop.convert import convert

    out = path.parent / "converted"
    shutil.rmtree(out, ignore_errors=True)
    convert(path, out)


def _negatives(path: Path) -> None:
    from dataprep.runtime.arrays.negatives import _load

    _load(path)


def _tokenizer(path: Path) -> None:
    from dataprep.pipeline.tokenize.load import resolve_tokenizer

    resolve_tokenizer(str(path))


def _dataset(path: Path) -> None:
    from dataprep.formats.read.dataset import open_dataset

    folder = path.parent / "dataset"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / "config.json")
    open_dataset(folder)


def _array_dataset(path: Path) -> None:
    from dataprep.formats.manifest import arrays as array_manifest

    array_manifest.parse(path.read_bytes())


def _config(path: Path) -> None:
    (_array_dataset if b'"arrays"' in path.read_bytes() else _dataset)(path)


def _plan(path: Path) -> None:
    import msgspec

    from dataprep.pipeline.embeddings.plan import PLAN
    from dataprep.pipeline.plan.plan import Plan, load_plan
    from dataprep.pipeline.tokens.plan import TokenPayload

    if b'"stored_columns"' in path.read_bytes():
        load_plan(path, PLAN)
    else:
        load_plan(path, msgspec.json.Decoder(Plan[TokenPayload]))


_NUMBERS = np.arange(300, dtype=np.int64)


def _stored(folder: Path, name: str) -> Any:
    """Open or make the plan `name` in `folder`."""
    from dataprep.runtime.rows.plan_cache import stored_plan

    def make(emit: Any) -> dict[str, int]:
        emit({"rows": _NUMBERS})
        return {"rows": len(_NUMBERS)}

    return stored_plan({"kind": name}, {"rows": "<i8"}, make, folder)


def _stored_plan(path: Path) -> None:
    """Open a kept plan, which is made again where it is damaged: it serves the same numbers."""
    found = _stored(path, "fuzz")
    if not np.array_equal(found.arrays["rows"], _NUMBERS) or found.report != {"rows": 300}:
        raise UnnoticedError("other numbers")


class UnnoticedError(Exception):
    """A dataset that is damaged, and that `verify` takes for whole."""


def _damaged(kind: str, path: Path) -> None:
    """Verify a dataset that may be damaged, and then serve what can be served of it."""
    import dataprep
    from dataprep.formats.errors import DataprepError
    from dataprep.formats.verify.verify import verify

    sound = GOLDEN / kind
    config = hashlib.sha256((sound / "config.json").read_bytes()).hexdigest()
    try:
        whole = verify(path, expect=f"sha256:{config}").ok
    except DataprepError:
        whole = False
    if whole != (_content(path) == _content(sound)):
        raise UnnoticedError(f"verify says {whole}")
    for split in ("train", "val"):
        rows: dict[str, Any] = {"seq_len": 8} if kind in ("narrow", "wide") else {}
        for _ in dataprep.create_loader(path, split, batch_size=1, num_workers=0, **rows):
            pass


def _content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# Sound files


def _golden(kind: str, folder: Path) -> None:
    shutil.copytree(GOLDEN / kind, folder / kind)


def _jsonl(folder: Path) -> None:
    shutil.copyfile(FIXTURES / "messy.jsonl", folder / "messy.jsonl")
    lines = [json.dumps({"text": text, "n": [1, {"a": None}]}) for text in TEXTS]
    (folder / "plain.jsonl").write_text("\n".join(lines) + "\n")


def _chats(folder: Path) -> None:
    for name in ("talks", "pairs", "labels", "groups"):
        lines = (FIXTURES / "chat" / f"{name}.jsonl").read_text().splitlines()[:12]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        (folder / f"{name}.json").write_text("[" + ",\n".join(lines) + "]")


def _plain(folder: Path) -> None:
    shutil.copyfile(FIXTURES / "notes.txt", folder / "notes.txt")
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(TEXTS).encode())


def _compressed(folder: Path) -> None:
    import zstandard

    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "two.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0) * 2)


def _table() -> Any:
    import pyarrow as pa

    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
             for text in TEXTS]  # fmt: skip
    return pa.table({
        "text": TEXTS, "messages": chats, "question": TEXTS, "source": TEXTS[::-1],
        "vector": pa.array(np.arange(96, dtype=np.float32).reshape(24, 4).tolist(),
                           pa.list_(pa.float32())),
        "label": pa.array(["a", "b", None, "c"] * 6).dictionary_encode(),
    })  # fmt: skip


def _parquets(folder: Path) -> None:
    import pyarrow.parquet as pq

    table = _table()
    forms: list[dict[str, Any]] = [
        {"row_group_size": 10}, {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False, "write_page_index": True},
        {"compression": "gzip", "version": "1.0"},
    ]  # fmt: skip
    for number, options in enumerate(forms):
        pq.write_table(table, folder / f"{number}.parquet", **options)


def _arrows(folder: Path) -> None:
    import pyarrow as pa

    table = _table().select(["vector", "label"])
    for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        for compression in (None, "zstd", "lz4"):
            path = folder / f"{name}-{compression}.arrow"
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as to:
                to.write_table(table)


def _saved(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(folder / "saved"))


_VECTORS = np.arange(60, dtype=np.float32).reshape(20, 3)


def _npys(folder: Path) -> None:
    np.save(folder / "plain.npy", _VECTORS)
    np.save(folder / "half.npy", _VECTORS.astype(np.float16))
    np.save(folder / "fortran.npy", np.asfortranarray(_VECTORS))
    record = np.zeros(20, [("embedding", "<f4", (3,)), ("n", "<i8")])
    np.save(folder / "record.npy", record)


def _npzs(folder: Path) -> None:
    np.savez(folder / "stored.npz", embedding=_VECTORS, n=np.arange(20))
    np.savez_compressed(folder / "packed.npz", embedding=_VECTORS, n=np.arange(20))


def _pts(folder: Path) -> None:
    import torch

    torch.save(torch.from_numpy(_VECTORS), folder / "one.pt")
    torch.save({"embedding": torch.from_numpy(_VECTORS).bfloat16()}, folder / "named.pt")


def _safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"embedding": _VECTORS, "n": np.arange(20)}, folder / "a.safetensors")


def _jasper(folder: Path) -> None:
    from tests.scenes import jasper

    jasper.write(folder / "jasper", jasper.make())


def _hdf5s(folder: Path) -> None:
    from dataprep.pipeline.interop.convert import convert
    from tests.scenes import jasper

    place = folder.parent / "hdf5-seed"
    jasper.write(place, jasper.make())
    convert(place, folder / "whole.h5")
    convert(place, folder / "packed.h5", gzip=True)
    convert(place, folder / "whole.safetensors")


def _jasper_hdf5(folder: Path) -> None:
    from tests.scenes import jasper

    content = jasper.make()
    jasper.write(folder / "jasper", content)
    jasper.write_h5(folder / "jasper", content)
    for path in (folder / "jasper").glob("*.pt"):
        path.unlink()


def _csvs(folder: Path) -> None:
    rows = [f'"{text}",source {n},"k{n},m",0.5' for n, text in enumerate(TEXTS)]
    (folder / "pairs.csv").write_text("question,source,keywords,relevance\r\n" + "\r\n".join(rows))
    records = [{"question": text, "source": f"s {n}"} for n, text in enumerate(TEXTS)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


def _index_files(folder: Path) -> None:
    import torch

    np.save(folder / "negatives.npy", np.arange(60).reshape(20, 3))
    torch.save(torch.arange(60).reshape(20, 3), folder / "negatives.pt")


def _tokenizers(folder: Path) -> None:
    golden = FIXTURES / "golden" / "v1" / "narrow" / "tokenizer.json"
    shutil.copyfile(golden, folder / "tokenizer.json")


def _ranks(folder: Path) -> None:
    from base64 import b64encode

    words = [bytes([octet]) for octet in range(256)] + [b"th", b"the", b" the"]
    lines = [b64encode(word) + b" %d\n" % rank for rank, word in enumerate(words)]
    (folder / "cl100k_base.tiktoken").write_bytes(b"".join(lines))


def _sentencepieces(folder: Path) -> None:
    import sentencepiece

    (folder / "text").write_text("\n".join(TEXTS * 4))
    for kind in ("unigram", "bpe"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / kind), vocab_size=90,
            model_type=kind, hard_vocab_limit=False, minloglevel=9, num_threads=1,
        )  # fmt: skip
        (folder / f"{kind}.vocab").unlink()
    (folder / "text").unlink()


def _configs(folder: Path) -> None:
    for path in sorted((FIXTURES / "golden" / "v1").glob("*/config.json")):
        shutil.copyfile(path, folder / f"{path.parent.name}.json")


def _plans(folder: Path) -> None:
    import msgspec

    from dataprep.pipeline.options import BuildOptions
    from dataprep.pipeline.tokens.prepare import prepare, survey

    options = BuildOptions(input=(str(FIXTURES / "stories.jsonl"),), out=folder / "out")
    prepared = prepare(options, survey(options), sample_bytes=1000)
    plan = replace_sources(prepared.plan)
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))


def _stored_plans(folder: Path) -> None:
    _stored(folder / "plans", "fuzz")


def replace_sources(plan: Any) -> Any:
    """Return `plan` without the path of this machine."""
    import msgspec

    sources = tuple(msgspec.structs.replace(one, path="/nowhere") for one in plan.sources)
    return msgspec.structs.replace(plan, sources=sources)


TARGETS = {
    "jsonl": Target(_jsonl, _spans, 14_000),
    "json_array": Target(_chats, _chat, 9_000),
    "text": Target(_plain, _texts, 8_000),
    "compressed": Target(_compressed, _spans, 9_000),
    "parquet": Target(_parquets, _parquet, 9_000),
    "arrow": Target(_arrows, _rows, 6_000),
    "hf": Target(_saved, _spans, 1_500),
    "npy": Target(_npys, _rows, 9_000, ("fortran.npy",)),
    "npz": Target(_npzs, _rows, 6_000),
    "pt": Target(_pts, _rows, 3_000),
    "safetensors": Target(_safetensors, _rows, 9_000),
    "hdf5": Target(_hdf5s, _converted, 2_000),
    "jasper": Target(_jasper, _converted, 1_000),
    "jasper_hdf5": Target(_jasper_hdf5, _converted, 1_000),
    "tables": Target(_csvs, _pairs, 6_000),
    "index_files": Target(_index_files, _negatives, 4_000),
    "tokenizer_json": Target(_tokenizers, _tokenizer, 1_500),
    "tiktoken": Target(_ranks, _tokenizer, 1_500),
    "sentencepiece": Target(_sentencepieces, _tokenizer, 1_500),
    "config": Target(
        _configs, _config, 5_000, ("narrow.json", "wide.json", "chat.json", "answers.json")
    ),
    "plan": Target(_plans, _plan, 3_000),
    "stored_plan": Target(_stored_plans, _stored_plan, 3_000),
} | {
    f"dataset_{kind}": Target(partial(_golden, kind), partial(_damaged, kind), 850)
    for kind in KINDS
}
