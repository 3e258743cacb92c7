"""Cache of datasets of tokens, which are built from texts on demand.

The name of a dataset in the cache is a hash of everything that determines its content: the bytes of
the inputs, the tokenizer, the options and the library versions. If any of them changes, a new
dataset is built. If several processes need the same dataset at the same time, one process builds
it and all others wait. Each call reads all inputs once to hash them, so the cache is for inputs
that can be read in seconds. Datasets in the cache may be deleted while no process uses them.

A tokenizer may also be a function from text to ids. Then each call encodes every document with the
function, and writes the ids as numbers to a text file. The dataset is built from this file, with a
substitute tokenizer whose words are these numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataprep.formats.errors import BusyError, InputError, StorageError, UsageError
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.formats.storage import (
    create_directory,
    create_file,
    remove_tree,
    rename,
    scratch_directory,
    storage_errors,
    write_file,
)
from dataprep.formats.verify.verify import verify

from .build import build
from .execute.bad_record import record_error
from .options import BuildOptions, DocumentUnit, as_paths
from .plan.plan import make_units
from .read.child_process import reading_apart
from .read.discovery import find_sources
from .read.fingerprints import fingerprint_source
from .read.reader import ReadOptions, SpanReader
from .read.sources import Source
from .tokenize.engines import library_versions
from .tokenize.load import resolve_tokenizer

__all__ = ["SPLIT", "Encode", "TextSource", "cached_texts"]

Encode = Callable[[str], Sequence[int]]
SPLIT = "text"
"""Name of the only split of a dataset in the cache."""
_VERSION = 1
_WAIT_S = 3600.0  # for another process that builds the same
_MAX_IDS = 1 << 22
_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSource:
    """Texts and their tokenizer. Fields of the same name mean the same as in `BuildOptions`."""

    path: tuple[str, ...]
    is_jsonl: bool | None = None
    """None: by the names of the files."""
    field: str = "text"
    document: DocumentUnit = "block"
    on_error: str = "error"
    bos: str = "auto"
    eos: str = "auto"
    tokenizer: str | bytes | Encode | None = None
    """As in `BuildOptions`, or the bytes of a tokenizer.json, or a function from text to ids."""
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Special tokens of a tokenizer given as bytes or as a function; see `TokenizerSource`."""
    vocab_size: int = 0
    """Least number of ids of a tokenizer given as a function."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", as_paths(self.path))

    def options(self, out: Path) -> BuildOptions:
        """Return the options of a build of these texts into the directory `out`."""
        form = {None: None, True: "jsonl", False: "text"}[self.is_jsonl]
        options = BuildOptions(
            input=self.path, out=out, format=form, field=self.field, bos=self.bos, eos=self.eos,  # type: ignore[arg-type]
            on_error=self.on_error, split=f"{SPLIT}=1",  # type: ignore[arg-type]
        )  # fmt: skip
        if any(source.format == "text" for source in find_sources(options)):
            return replace(options, document=self.document)
        return options


@reading_apart()
def cached_texts(source: TextSource, cache: Path) -> Dataset:
    """Return the dataset of `source` from the folder `cache`. If it is missing, it is built.

    The only split of the dataset is `SPLIT`. Warn about records that were left out and about blank
    lines in JSONL, with their line numbers. Raise the errors of `build`.
    """
    create_directory(cache, parents=True, exist_ok=True)
    options = source.options(cache / "-")
    found = find_sources(options)
    if callable(source.tokenizer):
        with scratch_directory(cache, ".ids-") as folder:
            prepared = _ids_as_text(source, options, found, folder, source.tokenizer)
            return _cached(prepared, cache, [])
    if isinstance(source.tokenizer, bytes):
        options = replace(options, tokenizer=str(_store_tokenizer(source, source.tokenizer, cache)))
    else:
        options = replace(options, tokenizer=source.tokenizer)
    dataset = _cached(options, cache, found)
    _report_blank(dataset.manifest.records.blank_lines, found)
    return dataset


def _cached(options: BuildOptions, cache: Path, sources: list[Source]) -> Dataset:
    """Return the dataset of `options` from `cache`. If it is missing, it is built.

    `sources` are the inputs; if it is empty, they are determined from `options`.
    """
    sources = sources or find_sources(options)
    tokenizer = resolve_tokenizer(options.tokenizer, load=False)
    key = _digest(
        _VERSION, library_versions(),
        [(source.name, source.format, source.compression) for source in sources],
        [fingerprint_source(source, None, None) for source in sources],
        [options.field, options.document, options.on_error, options.bos, options.eos],
        hashlib.sha256(tokenizer.json).hexdigest(), dict(tokenizer.roles),
    )  # fmt: skip
    options = replace(options, out=cache / key)
    try:
        dataset = _open_or_build(options)
    except UsageError as error:
        if error.code != "E_EOS":
            raise
        raise UsageError(
            error.problem, where="eos", code=error.code,
            remedy="Pass eos=TOKEN, or eos='none' to have nothing between documents.",
        ) from None  # fmt: skip
    _report_rejects(dataset, sources)
    return dataset


def _open_or_build(options: BuildOptions) -> Dataset:
    """Return the dataset in ``options.out``. If it is missing or damaged, it is built first.

    If another process is building the dataset, wait until it has finished. Raise `BusyError` if
    this takes more than an hour.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        there = (options.out / CONFIG_NAME).is_file()
        if there and verify(options.out).ok:  # about as long as the texts took to hash
            break
        try:
            build(replace(options, overwrite=there))
            break
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    return open_dataset(options.out)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _store_tokenizer(source: TextSource, data: bytes, cache: Path) -> Path:
    """Return the folder in `cache` that holds the tokenizer of `source`.

    The folder holds the tokenizer.json `data`, and the special tokens ``source.roles``. It is
    written if it is missing or has different content.
    """
    digest = _digest(hashlib.sha256(data).hexdigest(), dict(source.roles))
    folder = cache / "tokenizers" / digest
    with storage_errors(folder):
        if folder.is_dir() and not _holds(folder, data, source.roles):
            remove_tree(folder)
        if not (folder / "tokenizer.json").is_file():
            create_directory(cache / "tokenizers", exist_ok=True)
            with scratch_directory(cache, ".tokenizer-") as made:
                _write_tokenizer(made / digest, data, source.roles)
                try:
                    rename(made / digest, folder)
                except StorageError:  # another process was first
                    if not (folder / "tokenizer.json").is_file():
                        raise
    return folder


def _holds(folder: Path, data: bytes, roles: Mapping[str, str]) -> bool:
    """Return whether `folder` holds the tokenizer.json `data` and the special tokens `roles`."""
    try:
        stored = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
        return (
            stored == json.dumps(dict(roles)) and (folder / "tokenizer.json").read_bytes() == data
        )
    except (OSError, ValueError):
        return False


def _write_tokenizer(folder: Path, data: bytes, roles: Mapping[str, str]) -> None:
    create_directory(folder)
    write_file(folder / "tokenizer_config.json", json.dumps(dict(roles)).encode())
    write_file(folder / "tokenizer.json", data)


def _ids_as_text(
    source: TextSource, options: BuildOptions, sources: list[Source], folder: Path, encode: Encode
) -> BuildOptions:
    """Write the token ids of each document as text to a JSONL file in `folder`.

    Also write there a tokenizer for which each number is one token. Return the options of a build
    that uses both files. Raise `InputError` if the function `encode` fails for a document.
    """
    _refuse_specials(source)
    largest, lines, left_out = source.vocab_size - 1, folder / "ids.jsonl", []
    with storage_errors(folder), io.BufferedWriter(create_file(lines)) as stream:
        for number, (text, problem) in enumerate(_documents(options, sources)):
            try:
                ids = [] if text is None else list(encode(text))
            except Exception as error:
                if isinstance(error, UsageError):
                    raise
                raise InputError(
                    f"encode raised {type(error).__name__}: {error}", where=f"document {number}",
                    remedy="Mend the text, or the tokenizer.",
                ) from error  # fmt: skip
            if ids:
                largest = max(largest, *ids)
                stream.write(json.dumps({"text": " ".join(map(str, ids))}).encode() + b"\n")
            elif text is None:
                left_out.append(problem)
    if not lines.stat().st_size:
        raise InputError(
            "there is no text to read", where=sources[0].name, code="E_EMPTY",
            remedy="Name files with documents in them; a tokenizer that gives no ids leaves none.",
        )  # fmt: skip
    if largest >= _MAX_IDS:
        raise UsageError(f"gives the id {largest:,}, over {_MAX_IDS - 1:,}", where="tokenizer")
    _warn_of(left_out[:_SHOWN], len(left_out))
    _write_tokenizer(folder / "words", _stand_in(largest + 1), source.roles)
    return BuildOptions(
        input=(str(lines),), out=options.out, tokenizer=str(folder / "words"), engine="tokenizers",
        bos="none", eos="none", split=options.split, workers=1,
    )  # fmt: skip


def _refuse_specials(source: TextSource) -> None:
    for name in ("bos", "eos"):
        if getattr(source, name) not in ("auto", "none"):
            raise UsageError(
                f"{getattr(source, name)!r} is unknown to a tokenizer that is only a function",
                where=name, remedy="Have its encode give all special tokens.",
            )  # fmt: skip


def _stand_in(size: int) -> bytes:
    """Return a tokenizer.json of `size` tokens for which ``"17"`` is one token with the id 17."""
    parts = dict.fromkeys(
        ("truncation", "padding", "normalizer", "post_processor", "decoder"), None
    )  # fmt: skip
    vocab = {str(number): number for number in range(size)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "0"}  # never needed
    words = {"type": "WhitespaceSplit"}
    whole: dict[str, Any] = {
        "version": "1.0",
        **parts,
        "added_tokens": [],
        "pre_tokenizer": words,
        "model": model,
    }
    return json.dumps(whole).encode()


def _documents(
    options: BuildOptions, sources: list[Source]
) -> Iterator[tuple[str | None, InputError | None]]:
    """Yield (text, None) for each usable document, and (None, error) for each bad record.

    If `options.on_error` is ``"error"``, raise the error of the first bad record instead. At the
    end, warn about blank lines in JSONL.
    """
    read = ReadOptions(
        field=options.field, document=options.document, split_key=None, hf_config=None,
        hf_split=None,
    )  # fmt: skip
    blank = 0
    for unit in make_units(tuple(sources), read):
        for span in unit.spans:
            at = sources[span.source]
            for batch in SpanReader(at, span, read).batches():
                blank += batch.blank_lines
                for reject in batch.rejects:
                    error = record_error(reject, span, at)
                    if options.on_error == "error":
                        raise error
                    yield None, error
                for text in batch.texts:
                    yield text, None
    _report_blank(blank, sources)


def _report_rejects(dataset: Dataset, sources: list[Source]) -> None:
    count = sum(dataset.manifest.records.rejected.values())
    if count:
        with (dataset.path / "rejects.jsonl").open(encoding="utf-8") as stream:
            first = [json.loads(line) for line, _ in zip(stream, range(_SHOWN), strict=False)]
        found = [
            InputError(one["detail"], where=f"{sources[one['input']].name}:{one['line']}")
            for one in first
        ]
        _warn_of(found, count)


def _warn_of(first: Sequence[InputError | None], count: int) -> None:
    if count:
        listed = "; ".join(f"{one.where} {one.problem}" for one in first if one is not None)
        more = ", ..." if count > len(first) else ""
        warnings.warn(f"{count:,} records were left out: {listed}{more}", stacklevel=2)


def _report_blank(count: int, sources: list[Source]) -> None:
    """Warn about `count` blank lines, and name the positions of the first few.

    There is no warning unless all inputs are JSONL, because in plain text blank lines separate
    documents.
    """
    if not count or any(source.format != "jsonl" for source in sources):
        return
    places = []
    for source in (source for source in sources if source.compression is None):
        with storage_errors(source.path), Path(source.path).open("rb") as stream:
            blank = (at for at, line in enumerate(stream, 1) if not line.strip())
            places += [f"{source.name}:{at}" for at, _ in zip(blank, range(_SHOWN), strict=False)]
    listed = ", ".join(places[:_SHOWN]) + (", ..." if count > _SHOWN else "")
    warnings.warn(f"{count:,} blank lines were passed over: {listed}", stacklevel=2)
