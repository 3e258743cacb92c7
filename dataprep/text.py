"""Token windows straight from text, as document 004 of this project shows, without a build step.

    train, val = create_dataloaders("train.jsonl", "val.jsonl", tokenizer, seq_length=128)

The one place where building and serving meet. The dataset is built in a cache and kept there by
content (`dataprep.pipeline.text_cache`): ``$DATAPREP_CACHE/texts``, else ``~/.cache/dataprep``.
What comes out is that of `create_loader`: memory-mapped ids of 2 or 4 bytes, seeded orders, any
ranks and workers, exact resume. For more than some gigabytes use `dataprep build`.
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

_Place = str | os.PathLike[str]
_OPTION = re.compile(r"--([a-z][a-z-]*)(?: (skip|none)\b)?")
_PHRASES = (
    ("--format jsonl|text|parquet", "is_jsonl=True for JSONL, or is_jsonl=False for text"),
    ("Choose one with --hf-split.", "Give the folder of one of them."),
    (" (or --split-key)", ""),
    ("--out", "cache_dir"),
)
_ROLES = ("bos_token", "eos_token", "pad_token")


def text_windows(
    data_path: _Place,
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
    cache_dir: _Place | None = None,
) -> WindowDataset | PackedDataset:
    """Return the windows of a text file, map-style: dicts of int64 `input_ids` and `labels`
    [seq_length].

    `stride` is in tokens from one window to the next, None: `seq_length`, so that each token is
    input once. All arguments are those of `create_dataloaders`; so are the errors.

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
        raise _explained(error, data_path, split) from None


def create_dataloaders(  # noqa: PLR0917  (the names and the order that callers know)
    train_path: _Place,
    val_path: _Place | None = None,
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
    cache_dir: _Place | None = None,
) -> tuple[Loader, Loader | None]:
    """Return a loader to train on, shuffled each epoch, and one to validate on, in stored order.

    Arguments:
        train_path, val_path: JSONL or plain text, compressed or not; a file, a folder or a glob.
            Without a `val_path` there is no validation loader.
        tokenizer: None: the built-in one. A path or name as `dataprep build` takes; a
            `tokenizers.Tokenizer`, or what has one as `backend_tokenizer`, as in transformers; or
            whatever has `encode(text)` that gives a list of ids or a dict with `input_ids`. The
            last is asked for all documents at each call, and gives all special tokens itself; of
            the others, text that spells a special token stays text.
        batch_size: rows per step and rank.
        seq_length: tokens per row.
        num_workers: worker processes. A thread of this process, with 0, is faster.
        is_jsonl: what the files hold; None: as their names say (.jsonl, .json, .txt, .md, ...).
        field: of JSONL: where the text is; dots reach into nested objects.
        document: of plain text: a ``"block"`` ends at a blank line; or ``"line"``, or ``"file"``.
        stride: of the training windows: tokens from the start of one to that of the next. None:
            `seq_length`.
        cross_documents: windows of one stream, documents end to end. False: rows of whole documents
            side by side, padded, with `position_ids` that begin anew; no label is of another
            document than its input.
        labels: ``"shifted"``: label j is the token after input j; ``"unshifted"``: equal to the
            inputs, for models that shift inside; None.
        bos, eos: the tokens around a document: ``"auto"``, as the tokenizer says; ``"none"``; or a
            token.
        on_error: of a line that cannot be used: stop, or leave it out. Either names the line.
        drop_last: of training, leave out what does not fill the last batch. Validation is complete.
        cache_dir: instead of ``$DATAPREP_CACHE/texts``.

    The other arguments are those of `create_loader`. Raises `RecordError` with file and line for a
    bad record, `InputError` for a corpus too short for one window, with its tokens, and
    `UsageError` for one too short for one batch. The first call costs a build (a second, and a
    second for each hundred megabytes), later ones the reading of the files.

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

    def loader(path: _Place, *, train: bool) -> Loader:
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
            raise _explained(error, path, split) from None

    train = loader(train_path, train=True)
    return train, None if val_path is None else loader(val_path, train=False)


def _split(
    path: _Place, tokenizer: Any, is_jsonl: bool | None, *, cache_dir: _Place | None, **reading: Any
) -> Split:
    require(
        isinstance(path, str | os.PathLike),
        "path",
        f"must be a file, a folder or a glob, got {path!r}; `dataprep build` takes several",
    )
    require(is_jsonl in (None, True, False), "is_jsonl", f"must be a bool or None: {is_jsonl!r}")
    cache = default_plan_dir().parent / "texts" if cache_dir is None else local_path(cache_dir)
    source = TextSource(
        path=(os.fspath(path),), is_jsonl=is_jsonl, **_spelled(tokenizer), **reading
    )  # fmt: skip
    try:
        return cached_texts(source, cache.absolute()).split(SPLIT)
    except DataprepError as error:
        raise _in_python(error) from None


def _in_python(error: DataprepError) -> DataprepError:
    """Return the error with options of the command line as arguments of these functions."""

    def spoken(text: str | None) -> str | None:
        for phrase, instead in _PHRASES:
            text = text and text.replace(phrase, instead)
        return text and _OPTION.sub(_argument, text)

    error.where, error.remedy = spoken(error.where), spoken(error.remedy)
    return error


def _argument(option: re.Match[str]) -> str:
    name = {"input": "the path", "format": "is_jsonl"}.get(option[1], option[1].replace("-", "_"))
    return f"{name}={option[2]!r}" if option[2] else name


def _spelled(tokenizer: Any) -> dict[str, Any]:
    """Return the tokenizer as a name, as its file, or as a function."""
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


def _explained(error: InputError, path: _Place, split: Split) -> InputError:
    """Return the error about the file instead of the split, which the caller does not know."""
    if error.code != "E_TOO_FEW_TOKENS":
        return error
    return InputError(
        error.problem, where=os.fspath(path), code=error.code,
        remedy=f"It has {split.documents:,} documents: use a shorter seq_length, or more text.",
    )  # fmt: skip
