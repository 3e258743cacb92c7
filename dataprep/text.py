"""Loaders of token windows straight from text files, without a separate build step.

    train, val = create_dataloaders("train.jsonl", "val.jsonl", tokenizer, seq_length=128)

The first call builds the texts into a dataset in a cache (`dataprep.pipeline.text_cache`). Later
calls find this dataset by the content of the files. The cache is ``$DATAPREP_CACHE/texts``, or else
``~/.cache/dataprep/texts``. The loaders are those of `create_loader`: memory-mapped ids of 2 or 4
bytes, seeded orders, any number of ranks and workers, exact resume. For more than a few gigabytes
of text use `dataprep build`.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any, Literal

from dataprep.formats.errors import DataprepError, InputError, UsageError, require
from dataprep.formats.files.paths import local_path
from dataprep.formats.read.dataset import Split
from dataprep.pipeline.options import DocumentUnit
from dataprep.pipeline.text_cache import SPLIT, TextSource, cached_texts
from dataprep.runtime.checks import whole_number
from dataprep.runtime.create import create_loader
from dataprep.runtime.external.tokenize_engine import encode_text
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.rows.packed import PackedDataset
from dataprep.runtime.rows.plan_cache import default_plan_dir
from dataprep.runtime.rows.windows import WindowDataset
from dataprep.runtime.specs import Packed, Windows
from dataprep.runtime.types import Labels

__all__ = ["create_dataloaders", "text_windows"]

_Path = str | os.PathLike[str]
_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (skip|none)\b)?")
_PHRASES = (
    ("--format jsonl|text|parquet", "is_jsonl=True for JSONL, or is_jsonl=False for text"),
    ("Choose one with --hf-split.", "Give the folder of one of them."),
    (" (or --split-key)", ""),
    ("--out", "cache_dir"),
)
_ROLES = ("bos_token", "eos_token", "pad_token")


def text_windows(
    data_path: _Path,
    tokenizer: Any = None,
    seq_length: int = 128,
    is_jsonl: bool | None = None,
    *,
    stride: int | None = None,
    labels: Labels | None = "shifted",
    cross_documents: bool = True,
    field: str = "text",
    document: DocumentUnit = "block",
    bos: str = "auto",
    eos: str = "auto",
    on_error: Literal["error", "skip"] = "error",
    cache_dir: _Path | None = None,
) -> WindowDataset | PackedDataset:
    """Return a map-style dataset of rows of tokens from a text file.

    The rows are windows, or padded rows of whole documents if `cross_documents` is false. A sample
    is a dict of int64 tensors, among them `input_ids` and `labels` [seq_length]. Arguments and
    errors are those of `create_dataloaders`.

        >>> text_windows("stories.txt", seq_length=64)[0]["labels"].shape   # doctest: +SKIP
        torch.Size([64])
    """
    seq_length = whole_number("seq_length", seq_length, 1)
    split = _split(
        data_path, tokenizer, is_jsonl, field=field, document=document, bos=bos, eos=eos,
        on_error=on_error, cache_dir=cache_dir,
    )  # fmt: skip
    if not cross_documents:
        if stride is not None:
            raise UsageError("means nothing with cross_documents=False", where="stride")
        return PackedDataset(split, seq_len=seq_length, labels=labels, position_ids=True)
    try:
        return WindowDataset(split, seq_len=seq_length, stride=stride, labels=labels)
    except InputError as error:
        raise _about_file(error, data_path, split) from None


def create_dataloaders(  # noqa: PLR0917  (the names and the order that callers know)
    train_path: _Path,
    val_path: _Path | None = None,
    tokenizer: Any = None,
    batch_size: int = 16,
    seq_length: int = 128,
    num_workers: int = 0,
    *,
    is_jsonl: bool | None = None,
    field: str = "text",
    document: DocumentUnit = "block",
    stride: int | None = None,
    cross_documents: bool = True,
    labels: Labels | None = "shifted",
    bos: str = "auto",
    eos: str = "auto",
    on_error: Literal["error", "skip"] = "error",
    seed: int = 0,
    drop_last: bool = True,
    pin_memory: bool | None = None,
    distributed: bool = False,
    dp_rank: int | None = None,
    dp_size: int | None = None,
    multiprocessing_context: str | None = None,
    cache_dir: _Path | None = None,
) -> tuple[Loader, Loader | None]:
    """Return a training loader, shuffled each epoch, and a validation loader, in stored order.

    Arguments:
        train_path, val_path: JSONL or plain text, compressed or not; a file, a folder or a glob.
            Without a `val_path` the validation loader is None.
        tokenizer: None for the built-in tokenizer; a path or a name, as for `dataprep build`; a
            `tokenizers.Tokenizer`; an object with such a tokenizer as `backend_tokenizer`, as in
            transformers; or any object whose `encode(text)` returns a list of ids or a dict with
            `input_ids`. An object of this last kind adds all special tokens itself, and every call
            encodes all documents again. The other tokenizers encode special tokens in the text as
            plain text.
        batch_size: rows per step and rank.
        seq_length: tokens per row.
        num_workers: number of worker processes; 0 for a thread of this process, which is faster.
        is_jsonl: True for JSONL, False for plain text, None to decide by the names of the files
            (.jsonl, .json, .txt, .md, ...).
        field: key of the text in a JSONL record; dots reach into nested objects.
        document: what counts as one document in plain text: ``"block"``, which ends at a blank
            line, ``"line"``, or ``"file"``.
        stride: tokens from the start of one training window to the start of the next; None for
            `seq_length`, so that each token is an input once.
        cross_documents: True for windows of one stream of all documents, concatenated. False for
            padded rows of whole documents side by side, with `position_ids` that start again at
            each document; input and label are then always from the same document.
        labels: ``"shifted"``: label j is the token after input j; ``"unshifted"``: labels equal the
            inputs, for models that shift them; None: no labels.
        bos, eos: token added before and after each document: ``"auto"`` for the choice of the
            tokenizer, ``"none"``, or a token.
        on_error: ``"error"`` to stop at a line that cannot be used, ``"skip"`` to leave it out with
            a warning. Both name the line.
        drop_last: True to leave out training rows that do not fill the last batch. Validation is
            always complete.
        cache_dir: directory of the cache, in place of ``$DATAPREP_CACHE/texts``.

    The other arguments are those of `create_loader`. Raise `RecordError` with file and line for a
    bad record, `InputError` with the number of tokens for a corpus that is too short for one
    window, and `UsageError` for a corpus that is too short for one batch. The first call takes a
    second, and another second for each hundred megabytes, because it builds a dataset. Later calls
    take as long as reading the files.

        >>> train, val = create_dataloaders("train.txt", "val.txt", seq_length=64)  # doctest: +SKIP
        >>> for batch in train:                                                     # doctest: +SKIP
        ...     loss = model(batch["input_ids"], batch["labels"])
    """

    seq_length = whole_number("seq_length", seq_length, 1)

    def rows(*, train: bool) -> Windows | Packed:
        if cross_documents:
            return Windows(seq_length, stride=stride if train else None, labels=labels)
        if stride is not None:
            raise UsageError("means nothing with cross_documents=False", where="stride")
        return Packed(seq_length, labels=labels, position_ids=True)

    def loader(path: _Path, *, train: bool) -> Loader:
        split = _split(
            path, tokenizer, is_jsonl, field=field, document=document, bos=bos, eos=eos,
            on_error=on_error, cache_dir=cache_dir,
        )  # fmt: skip
        try:
            return create_loader(
                split.dataset, SPLIT, batch_size, num_workers, distributed,
                drop_last=drop_last and train, shuffle=train, pin_memory=pin_memory,
                rows=rows(train=train), seed=seed, dp_rank=dp_rank, dp_size=dp_size,
                multiprocessing_context=multiprocessing_context,
            )  # fmt: skip
        except InputError as error:
            raise _about_file(error, path, split) from None

    train = loader(train_path, train=True)
    return train, None if val_path is None else loader(val_path, train=False)


def _split(
    path: _Path, tokenizer: Any, is_jsonl: bool | None, *, cache_dir: _Path | None, **reading: Any
) -> Split:
    require(
        isinstance(path, str | os.PathLike),
        "path",
        f"must be a file, a folder or a glob, got {path!r}; `dataprep build` takes several",
    )
    require(is_jsonl in (None, True, False), "is_jsonl", f"must be a bool or None: {is_jsonl!r}")
    cache = default_plan_dir().parent / "texts" if cache_dir is None else local_path(cache_dir)
    source = TextSource(
        path=(os.fspath(path),), is_jsonl=is_jsonl, **_tokenizer_fields(tokenizer), **reading
    )  # fmt: skip
    try:
        return cached_texts(source, cache.absolute()).split(SPLIT)
    except DataprepError as error:
        raise _in_python(error) from None


def _in_python(error: DataprepError) -> DataprepError:
    """Return `error`, with command-line options replaced by arguments of Python functions."""

    def rewritten(text: str | None) -> str | None:
        for phrase, instead in _PHRASES:
            text = text and text.replace(phrase, instead)
        return text and _OPTION.sub(_argument, text)

    error.where, error.remedy = rewritten(error.where), rewritten(error.remedy)
    return error


def _argument(option: re.Match[str]) -> str:
    name = {"input": "the path", "format": "is_jsonl"}.get(option[1], option[1].replace("-", "_"))
    return f"{name}={option[2]!r}" if option[2] else name


def _tokenizer_fields(tokenizer: Any) -> dict[str, Any]:
    """Return the fields of `TextSource` that describe `tokenizer`.

    The field `tokenizer` holds a name or path, the contents of tokenizer.json, or a function that
    encodes a text. The other fields hold the special tokens and the vocabulary size, if known.
    """
    if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
        return {"tokenizer": None if tokenizer is None else os.fspath(tokenizer)}
    named = {role: getattr(tokenizer, role, None) for role in _ROLES}
    roles = {role: str(token) for role, token in named.items() if token}
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(getattr(inner, "to_str", None)):
        return {"tokenizer": inner.to_str().encode(), "roles": roles}
    ids = {role: getattr(tokenizer, f"{role}_id", None) for role in _ROLES}
    vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
    return {
        "tokenizer": partial(encode_text, tokenizer),
        "roles": {role: str(id_) for role, id_ in ids.items() if isinstance(id_, int)},
        "vocab_size": max(vocabulary.values(), default=-1) + 1,
    }


def _about_file(error: InputError, path: _Path, split: Split) -> InputError:
    """Return an error about the file `path` if `error` says that its text has too few tokens.

    The original error is about the split in the cache. Return any other error unchanged.
    """
    if error.code != "E_TOO_FEW_TOKENS":
        return error
    return InputError(
        error.problem, where=os.fspath(path), code=error.code,
        remedy=f"It has {split.documents:,} documents: use a shorter seq_length, or more text.",
    )  # fmt: skip
