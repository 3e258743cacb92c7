"""Looks at the first batch before an expensive run does: shapes, dtypes, ids, labels, vectors.

    validate_first_batch(loader, vocab_size=model.config.vocab_size)

A mistake that trains nevertheless (labels moved by one too many, ids of another vocabulary) costs
days, and is one comparison to find. The batch is made beside the passes of the loader: nothing is
served, counted or moved by it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import torch

from dataprep.formats.dataset import Split
from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.runtime.arguments import whole_number
from dataprep.runtime.loader import Loader
from dataprep.runtime.samples import Batch
from dataprep.runtime.stream_loader import StreamLoader
from dataprep.runtime.windows import IGNORED_LABEL, PADDING

__all__ = ["check_batch", "validate_first_batch"]

_LIKE_INPUTS = ("labels", "position_ids", "doc_ids", "attention_mask")
_REMEDY = "Look at what changes batches between the loader and the model."
_NAMED = 3  # datasets of a mixture, in a remedy


def validate_first_batch(loader: Loader | StreamLoader, *, vocab_size: int | None = None) -> Batch:
    """The batch that `loader` would serve next, after a look at everything about it.

    `vocab_size` is the number of embeddings of the model; without it ids are compared with the
    vocabulary of the dataset. Of embeddings and pairs, `dataprep.runtime.array_batch` says what is
    looked at. Raises `IncompatibleError` (E_BATCH) with the first finding: field, row and value;
    and `UsageError` for what is no such loader, as one of somebody's own stream is not. The next
    pass serves this batch again. Costs one batch; of a stream, one window of blocks.

        >>> batch = validate_first_batch(loader, vocab_size=50304)         # doctest: +SKIP
    """
    if vocab_size is not None:
        vocab_size = whole_number("vocab_size", vocab_size, 1)
    if isinstance(loader, StreamLoader):
        return _look_at_stream(loader, vocab_size)
    if not isinstance(loader, Loader):
        raise UsageError(
            f"a {type(loader).__name__} cannot show the batch that comes next", where="loader",
            remedy="Pass what create_loader or stream_loader gave.",
        )  # fmt: skip
    step, batch = loader.upcoming()
    rows = loader.sampler_obj.batch_size if loader.sampler_obj.end != "partial" else None
    dataset = getattr(loader.dataset_obj, "real", loader.dataset_obj)
    known = _Known(loader.vocab_size, dataset)
    if hasattr(dataset, "check_batch"):  # of arrays
        dataset.check_batch(batch, rows=rows)
    elif hasattr(dataset, "token_views"):  # of preferences
        _check_views(dataset.token_views(batch), rows, vocab_size, known)
    else:
        _check_tokens(batch, rows, vocab_size, known)
    _check_mask(batch, (step.samples != PADDING).tolist())
    return batch


def _look_at_stream(loader: StreamLoader, vocab_size: int | None) -> Batch:
    stream, batch = loader.dataset_obj, loader.upcoming()
    known = _Known(stream.dataset.split.dataset.manifest.tokens.vocab_size, stream.dataset)
    _check_tokens(batch, stream.batch_size if stream.end != "partial" else None, vocab_size, known)
    if "sample_mask" in batch:  # what fills up comes last
        _check_mask(batch, sorted(batch["sample_mask"].tolist(), reverse=True))
    return batch


class _Known(NamedTuple):
    """The dataset behind a loader, and how many ids its tokenizer has, where it has one."""

    size: int | None
    dataset: object

    def beyond(self) -> str:
        """The remedy for ids that the tokenizer does not have."""
        splits = getattr(self.dataset, "splits", None) or (getattr(self.dataset, "split", None),)
        paths = {str(s.dataset.path): None for s in splits if isinstance(s, Split)}
        if not paths:
            return _REMEDY
        commands = [f"`dataprep verify {shlex.quote(path)}`" for path in paths]
        more = [] if len(commands) <= _NAMED else ["so on"]
        listed = " and ".join(commands[:_NAMED] + more)
        return f"See whether shards are damaged: {listed}. If they are not: {_REMEDY}"


def _check_tokens(batch: Batch, rows: int | None, vocab_size: int | None, known: _Known) -> None:
    if vocab_size is not None and known.size is not None and vocab_size < known.size:
        _refuse(
            "vocab_size", f"the tokenizer has {known.size:,} ids, the model {vocab_size:,}",
            f"Enlarge the model's embedding to at least {known.size:,} rows, or correct "
            "vocab_size= if it has them.",
        )  # fmt: skip
    check_batch(batch, rows=rows, vocab_size=vocab_size or known.size, beyond=known.beyond())


def _check_views(
    views: Mapping[str, Batch], rows: int | None, vocab_size: int | None, known: _Known
) -> None:
    """Each part of a batch by itself; errors name its fields as the batch does."""
    for prefix, view in views.items():
        try:
            _check_tokens(view, None if prefix == "responses_" else rows, vocab_size, known)
        except IncompatibleError as error:
            if error.where in view:
                error.where = f"{prefix}{error.where}"
            raise


def _check_mask(batch: Batch, real: list[bool]) -> None:
    if "sample_mask" in batch and batch["sample_mask"].tolist() != real:
        _refuse("sample_mask", "does not say which rows only fill the batch")


def check_batch(
    batch: Batch,
    *,
    rows: int | None = None,
    vocab_size: int | None = None,
    beyond: str = _REMEDY,
) -> None:
    """Raise `IncompatibleError` for the first thing that is wrong with `batch`.

    `beyond` is the remedy where an id is `vocab_size` or more.

    >>> ids = torch.tensor([[1, 2, 3]])
    >>> check_batch({"input_ids": ids, "labels": torch.tensor([[2, 3, -100]])}, vocab_size=4)
    >>> try:
    ...     check_batch({"input_ids": ids, "labels": torch.tensor([[3, 1, 2]])})
    ... except IncompatibleError as error:
    ...     error.where, error.problem
    ('labels', 'are neither the inputs nor the inputs moved by one: row 0, token 0 is 3')
    """
    for name, tensor in batch.items():
        if not isinstance(tensor, torch.Tensor):
            _refuse(name, f"is a {type(tensor).__name__}, not a tensor")
    ids = batch.get("input_ids")
    if ids is None:
        _refuse("input_ids", f"is missing; there is {', '.join(batch) or 'nothing'}")
    _check_shape(ids, rows)
    for name in _LIKE_INPUTS:
        if name in batch and (batch[name].shape, batch[name].dtype) != (ids.shape, ids.dtype):
            _refuse(name, f"is {_kind(batch[name])}, input_ids are {_kind(ids)}")
    _check_memory(batch)
    _check_range("input_ids", ids, vocab_size, beyond)
    real = batch.get("sample_mask", torch.ones(len(ids), dtype=torch.bool))
    if "labels" in batch and real.any():  # a rank may have nothing but filling in the last step
        _check_labels(ids[real], batch["labels"][real])
    if "cu_seqlens" in batch:
        _check_boundaries(ids, batch["cu_seqlens"], batch.get("max_seqlen"))


def _check_shape(ids: torch.Tensor, rows: int | None) -> None:
    if ids.dtype != torch.int64 or ids.ndim != 2 or 0 in ids.shape:
        _refuse("input_ids", f"is {_kind(ids)}, not int64 [rows, tokens]")
    if rows is not None and len(ids) != rows:
        _refuse("input_ids", f"has {len(ids)} rows, batch_size is {rows}")


def _check_memory(batch: Batch) -> None:
    owners: dict[int, str] = {}
    for name, tensor in batch.items():
        if not tensor.is_contiguous():
            _refuse(name, "is not contiguous")
        other = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
        if other != name and tensor.numel():
            _refuse(name, f"shares its memory with {other}")


def _check_range(name: str, ids: torch.Tensor, vocab_size: int | None, beyond: str) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        worst = low if low < 0 else high
        row, token = (ids == worst).nonzero()[0].tolist()
        size = "" if vocab_size is None else f" .. {vocab_size - 1:,}"
        problem = f"id {worst} of row {row}, token {token} is outside 0{size}"
        _refuse(name, problem, _REMEDY if low < 0 else beyond)


def _check_labels(ids: torch.Tensor, labels: torch.Tensor) -> None:
    real = labels != IGNORED_LABEL
    if not real.any():
        _refuse("labels", f"are all {IGNORED_LABEL}: nothing would be learnt")
    wrong = {kind: _misaligned(ids, labels, kind) & real for kind in ("unshifted", "shifted")}
    if all(bool(places.any()) for places in wrong.values()):
        fewest = min(wrong.values(), key=lambda places: int(places.sum()))
        row, token = fewest.nonzero()[0].tolist()
        _refuse(
            "labels", "are neither the inputs nor the inputs moved by one: "
            f"row {row}, token {token} is {int(labels[row, token])}",
        )  # fmt: skip


def _misaligned(ids: torch.Tensor, labels: torch.Tensor, kind: str) -> torch.Tensor:
    """Where labels differ from what they would be; the last shifted one cannot be seen."""
    if kind == "unshifted":
        return labels != ids
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    wrong[:, :-1] = labels[:, :-1] != ids[:, 1:]
    return wrong


def _check_boundaries(
    ids: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: torch.Tensor | None
) -> None:
    lengths = cu_seqlens.diff()
    if cu_seqlens.dtype != torch.int32 or int(cu_seqlens[0]) != 0 or int(lengths.min()) < 0:
        _refuse("cu_seqlens", "is not int32 rising from 0")
    if int(cu_seqlens[-1]) != ids.numel():
        _refuse("cu_seqlens", f"ends at {int(cu_seqlens[-1])}, the batch has {ids.numel()} tokens")
    if max_seqlen is not None and int(max_seqlen) != int(lengths.max()):
        _refuse("max_seqlen", f"is {int(max_seqlen)}, the longest is {int(lengths.max())}")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _refuse(name: str, problem: str, remedy: str = _REMEDY) -> NoReturn:
    raise IncompatibleError(problem, where=name, code="E_BATCH", remedy=remedy)
