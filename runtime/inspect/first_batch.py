"""Checks of the first batch before an expensive run: shapes, dtypes, ids, labels, vectors.

    validate_first_batch(loader, vocab_size=model.config.vocab_size)

Training runs without an error even if labels are shifted twice, or if ids come from a different
vocabulary. Such a mistake can cost days, and a check of one batch finds it. The check does not
change the state of the loader.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch

from dataprep.formats.errors import IncompatibleError, UsageError
from dataprep.formats.read.dataset import Split

from ..checks import whole_number
from ..external.iterable_loader import BatchStream
from ..external.map_dataset import Collated
from ..loader.loader import Loader
from ..sample_numbers import PADDING
from ..stream.dataset import StreamDataset
from ..types import IGNORED_LABEL, OF_THE_BATCH, Batch

__all__ = ["check_batch", "check_collated", "validate_first_batch"]

_LIKE_INPUTS = ("labels", "position_ids", "doc_ids", "attention_mask")
_REMEDY = "Look at what changes batches between the loader and the model."
_NAMED = 3  # datasets of a mixture, in a remedy
_TENSORS = ("input_ids", "attention_mask", "labels", "pixel_values", "input_values")
_FURTHEST = 3  # tokens by which shifts of labels are looked for, in both directions


def validate_first_batch(loader: Loader, *, vocab_size: int | None = None) -> Any:
    """Check the next batch of `loader`, and return it.

    The argument `vocab_size` is the number of token ids that the model accepts. If it is None, ids
    are compared with the vocabulary of the dataset. Rows of embeddings and pairs are checked by the
    functions of runtime/arrays/batch_checks.py, and batches made by a collate function by
    `check_collated`. Raise `IncompatibleError` (E_BATCH) for the first problem; the error names
    field, row and value. Raise `UsageError` if `loader` is not a `Loader`.

    The next pass serves this batch again. The call takes as long as making one batch. For a stream
    over a built dataset it also reads one window of blocks. For a stream over any other data it
    also reads all rows before the batch.

        >>> batch = validate_first_batch(loader, vocab_size=50304)         # doctest: +SKIP
    """
    if vocab_size is not None:
        vocab_size = whole_number("vocab_size", vocab_size, 1)
    if not isinstance(loader, Loader):
        raise UsageError(
            f"a {type(loader).__name__} cannot show the batch that comes next", where="loader",
            remedy="Pass what create_loader or stream_loader gave.",
        )  # fmt: skip
    step, batch = loader.upcoming()  # of a collate function it may be anything
    served = loader.dataset_obj
    if isinstance(served, StreamDataset):
        return _checked_of_stream(served, batch, vocab_size)
    if isinstance(served, BatchStream) or step is None:
        check_collated(batch, served.collate, vocab_size=vocab_size)
        return batch
    marks = step.samples != PADDING
    real = marks.tolist()
    rows = loader.sampler_obj.batch_size if loader.sampler_obj.end != "partial" else None
    dataset = getattr(served, "real", served)
    origin = _Origin(loader.vocab_size, dataset)
    if isinstance(dataset, Collated):
        check_collated(batch, dataset.collate, rows=len(real), vocab_size=vocab_size)
        if dataset.marks(marks) and not isinstance(batch, Mapping):
            _check_mask({"sample_mask": batch[-1]}, real)
    elif hasattr(dataset, "check_batch"):  # of arrays
        dataset.check_batch(batch, rows=rows)
    elif hasattr(dataset, "token_views"):  # of preferences
        _check_views(dataset.token_views(batch), rows, vocab_size, origin)
    else:
        _check_tokens(batch, rows, vocab_size, origin)
    if isinstance(batch, Mapping):
        _check_mask(batch, real)
    return batch


def _checked_of_stream(stream: StreamDataset, batch: Batch, vocab_size: int | None) -> Batch:
    """Check `batch`, the next batch of `stream`, as rows of tokens, and return it."""
    origin = _Origin(stream.dataset.split.dataset.manifest.tokens.vocab_size, stream.dataset)
    _check_tokens(batch, stream.batch_size if stream.end != "partial" else None, vocab_size, origin)
    if "sample_mask" in batch:  # rows that only fill the batch are its last ones
        _check_mask(batch, sorted(batch["sample_mask"].tolist(), reverse=True))
    return batch


class _Origin(NamedTuple):
    """Dataset of a loader, and the vocabulary size, which is None for data without a tokenizer."""

    vocab_size: int | None
    dataset: object

    @property
    def changed(self) -> bool:
        """Whether a transform changes the batches, for example by masking inputs."""
        return getattr(self.dataset, "transform", None) is not None

    def beyond(self) -> str:
        """Return the advice in the error for an id that is outside the vocabulary.

        It lists commands that verify the datasets of the loader, because a damaged shard can cause
        such an id.
        """
        splits = getattr(self.dataset, "splits", None) or (getattr(self.dataset, "split", None),)
        paths = {str(s.dataset.path): None for s in splits if isinstance(s, Split)}
        if not paths:
            return _REMEDY
        commands = [f"`dataprep verify {shlex.quote(path)}`" for path in paths]
        more = [] if len(commands) <= _NAMED else ["so on"]
        listed = " and ".join(commands[:_NAMED] + more)
        return f"See whether shards are damaged: {listed}. If they are not: {_REMEDY}"


def _check_tokens(batch: Batch, rows: int | None, vocab_size: int | None, origin: _Origin) -> None:
    if vocab_size is not None and origin.vocab_size is not None and vocab_size < origin.vocab_size:
        _refuse(
            "vocab_size", f"the tokenizer has {origin.vocab_size:,} ids, the model {vocab_size:,}",
            f"Enlarge the model's embedding to at least {origin.vocab_size:,} rows, or correct "
            "vocab_size= if it has them.",
        )  # fmt: skip
    check_batch(
        batch, rows=rows, vocab_size=vocab_size or origin.vocab_size, beyond=origin.beyond(),
        changed=origin.changed,
    )  # fmt: skip


def _check_views(
    views: Mapping[str, Batch], rows: int | None, vocab_size: int | None, origin: _Origin
) -> None:
    """Raise `IncompatibleError` for the first problem of a batch that has several parts.

    The mapping `views` has an item for each part. Its key is the prefix of the part's field names,
    such as ``"chosen_"``. Its value is a dict of the part's fields, under their names without the
    prefix. Errors name fields with the prefix. The number of rows is not checked in the part
    ``"responses_"``, because a row of the batch has several responses.
    """
    for prefix, view in views.items():
        try:
            _check_tokens(view, None if prefix == "responses_" else rows, vocab_size, origin)
        except IncompatibleError as error:
            if error.where in view:
                error.where = f"{prefix}{error.where}"
            raise


def _check_mask(batch: Mapping[str, Any], real: list[bool]) -> None:
    if "sample_mask" in batch and batch["sample_mask"].tolist() != real:
        _refuse("sample_mask", "does not say which rows only fill the batch")


def check_collated(
    batch: Any, collate: Any, *, rows: int | None = None, vocab_size: int | None = None
) -> None:
    """Raise `IncompatibleError` for the first problem of a batch that `collate` made.

    In a dict, fields that models read must be tensors, and no two tensors may share memory. Ids
    must be whole numbers [rows, tokens] from 0 to `vocab_size` - 1. Masks must have the shape of
    their ids. Images and sound must be finite. If `rows` is given, ids must have that many rows,
    and so must all tensors of a batch that is a tuple.

    The check of `labels` depends on the collate function:

    - `CausalLM`: labels must equal the inputs, or the inputs shifted by one token;
    - `MaskedLM`: labels are not checked;
    - any other: labels may be classes, numbers or targets. An error is raised if more than half of
      them equal the inputs shifted by more than one token or in the wrong direction.

    Except with `MaskedLM`, at least one label must count in the loss.
    """
    if not isinstance(batch, Mapping):
        _check_unnamed(batch, rows)
        return
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        _refuse("batch", f"has no tensor; there is {', '.join(map(str, batch)) or 'nothing'}")
    for name, value in batch.items():
        if name not in tensors and str(name).endswith(_TENSORS):
            _refuse(name, f"is a {type(value).__name__}, not a tensor")
    _check_memory(tensors)
    own = type(collate).__module__.startswith("dataprep.")
    for name, tensor in tensors.items():
        if own and rows is not None and name not in OF_THE_BATCH and tensor.shape[:1] != (rows,):
            _refuse(name, f"is {_kind(tensor)}, the batch has {rows} rows")
        if name in ("pixel_values", "input_values") and not bool(torch.isfinite(tensor).all()):
            row = (~torch.isfinite(tensor)).nonzero()[0][0].item()
            _refuse(name, f"row {row} has numbers that are not finite")
    collate = getattr(collate, "collate", collate)  # if it only renames the fields of another
    for name in tensors:
        if name.endswith("input_ids"):
            _check_ids(tensors, name.removesuffix("input_ids"), rows, vocab_size)
    _check_targets(tensors, collate)


def _check_unnamed(batch: Any, rows: int | None) -> None:
    """Raise `IncompatibleError` if an unnamed batch has no tensor or a wrong number of rows.

    The batch is a tensor, or a tuple or list of values, so its values have no field names. Values
    that are dicts, tuples or lists are not checked. If `rows` is given, each tensor must have that
    many rows.
    """
    places = list(batch) if isinstance(batch, tuple | list) else [batch]
    tensors = [place for place in places if isinstance(place, torch.Tensor)]
    if not places or (
        not tensors and not any(isinstance(p, Mapping | tuple | list) for p in places)
    ):
        _refuse("batch", f"is a {type(batch).__name__} without a tensor")
    for place, value in enumerate(places):
        if rows is not None and isinstance(value, torch.Tensor) and value.shape[:1] != (rows,):
            _refuse(f"place {place}", f"is {_kind(value)}, the batch has {rows} rows")


def _check_ids(
    tensors: Mapping[str, torch.Tensor], prefix: str, rows: int | None, vocab_size: int | None
) -> None:
    name = f"{prefix}input_ids"
    ids = tensors[name]
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2 or 0 in ids.shape:
        _refuse(name, f"is {_kind(ids)}, not whole numbers [rows, tokens]")
    if rows is not None and len(ids) != rows:
        _refuse(name, f"has {len(ids)} rows, batch_size is {rows}")
    mask = tensors.get(f"{prefix}attention_mask", ids)
    if mask.shape != ids.shape:
        _refuse(f"{prefix}attention_mask", f"is {_kind(mask)}, {name} is {_kind(ids)}")
    _check_range(name, ids, vocab_size, _REMEDY)


def _check_targets(tensors: Mapping[str, torch.Tensor], collate: Any) -> None:
    """Raise `IncompatibleError` for labels that cannot be correct.

    No class may be negative. Labels may not be the inputs shifted by a wrong number of tokens. At
    least one label must count in the loss.
    """
    labels, ids = tensors.get("labels"), tensors.get("input_ids")
    if labels is None:
        return
    real = tensors.get("sample_mask", torch.ones(len(labels), dtype=torch.bool))
    labels = labels[real]
    if labels.is_floating_point() or not labels.numel():
        return
    text = getattr(collate, "text", collate)  # of images with texts
    kind = type(text).__name__ if type(text).__module__.startswith("dataprep.") else ""
    ids = None if ids is None or ids.ndim != 2 else ids[real]
    like_ids = ids is not None and labels.shape == ids.shape
    decoder = tensors.get("decoder_input_ids")
    if ids is not None and like_ids and decoder is None:
        if kind == "CausalLM":
            _check_labels(ids, labels)
        elif kind != "MaskedLM":
            _check_shift(ids, labels)
    counts = labels != getattr(text, "label_pad_id", IGNORED_LABEL)
    if not counts.any() and kind != "MaskedLM":  # it may hide none of few tokens
        _refuse("labels", f"are all {IGNORED_LABEL}: nothing would be learnt")
    if decoder is not None and decoder[real].shape == labels.shape:
        # At each token the decoder predicts its next input.
        targets = labels.masked_fill(~counts, IGNORED_LABEL)
        _check_shift(decoder[real], targets, "decoder_input_ids", (1,))
    elif kind in ("Classification", "Vision") and bool((counts & (labels < 0)).any()):
        place = (counts & (labels < 0)).nonzero()[0].tolist()
        _refuse("labels", f"row {place[0]} is {int(labels[tuple(place)])}, which is no class")


def _check_shift(
    ids: torch.Tensor,
    labels: torch.Tensor,
    name: str = "the inputs",
    allowed: tuple[int, ...] = (0, 1),
) -> None:
    """Raise `IncompatibleError` if `labels` are `ids` shifted by a number that is not `allowed`.

    Shifts of up to 3 tokens are tried in both directions. A shift is recognized if more than half
    of the labels agree with it. The error calls the ids `name`.
    """
    found = {by: _agreement(ids, labels, by) for by in range(-_FURTHEST, _FURTHEST + 1)}
    best = max(found, key=lambda by: (found[by], by in allowed))
    if found[best] > 1 / 2 and best not in allowed:
        _refuse(
            "labels", f"are {name} moved by {best}, and not by {' or '.join(map(str, allowed))}"
        )


def _agreement(ids: torch.Tensor, labels: torch.Tensor, by: int) -> float:
    """Return the fraction of labels that equal the input `by` tokens later.

    A label is not counted if it is -100, or if there is no input `by` tokens later. Return 0.0 if
    no label is counted.
    """
    width = ids.shape[1] - abs(by)
    if width < 1:
        return 0.0
    at, seen = max(0, -by), max(0, by)
    labels, ids = labels[:, at : at + width], ids[:, seen : seen + width]
    counts = labels != IGNORED_LABEL
    return float((labels == ids)[counts].float().mean()) if counts.any() else 0.0


def check_batch(
    batch: Batch,
    *,
    rows: int | None = None,
    vocab_size: int | None = None,
    beyond: str = _REMEDY,
    changed: bool = False,
) -> None:
    """Raise `IncompatibleError` for the first problem of `batch`, a batch of token rows.

    The argument `rows` is the expected number of rows, or None for any number. Ids must be below
    `vocab_size`, unless it is None. The argument `beyond` is the advice in the error for an id of
    `vocab_size` or more. If `changed` is True, the inputs were changed after the labels were
    made, for example masked. Labels are then only checked for a wrong shift.

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
        like = batch.get(name, ids)
        if like.shape != ids.shape or like.dtype not in (ids.dtype, torch.int64):
            _refuse(name, f"is {_kind(like)}, input_ids are {_kind(ids)}")
    _check_memory(batch)
    _check_range("input_ids", ids, vocab_size, beyond)
    real = batch.get("sample_mask", torch.ones(len(ids), dtype=torch.bool))
    if "labels" in batch and real.any():  # all rows of a rank may be filling in the last step
        check = _check_shift if changed else _check_labels
        check(ids[real], batch["labels"][real])
    if "cu_seqlens" in batch:
        _check_boundaries(ids, batch["cu_seqlens"], batch.get("max_seqlen"))


def _check_shape(ids: torch.Tensor, rows: int | None) -> None:
    wanted = "int32" if ids.dtype == torch.int32 else "int64"
    if str(ids.dtype) != f"torch.{wanted}" or ids.ndim != 2 or 0 in ids.shape:
        _refuse("input_ids", f"is {_kind(ids)}, not {wanted} [rows, tokens]")
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
    """Return a bool array with the shape of `ids`, True where a label is wrong.

    If `kind` is ``"unshifted"``, each label must equal the input at its position. Otherwise it must
    equal the next input; the last label of a row, which has no next input, is never wrong.
    """
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
