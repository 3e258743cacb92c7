"""Checks of a batch of embeddings or of pairs, for `validate_first_batch`.

Each problem raises an `IncompatibleError` (E_BATCH) that names the field, the row and the value.
The checks do not use `assert`, which ``python -O`` removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from dataprep.formats.errors import IncompatibleError
from dataprep.formats.manifest.arrays import PairSizes
from dataprep.formats.manifest.curriculum import TIERS, VARIANTS

__all__ = ["PAIR_FIELDS", "check_pairs", "check_rows"]

_REMEDY = "Look at what changes batches between the loader and the model, or run `dataprep verify`."
_MASK = "sample_mask"
_SLACK = 0.001  # of a cosine of rounded vectors, as `dataprep verify` has it

PAIR_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "question_emb": ("float32", ("rows", "dim")),
    "target_source_emb": ("float32", ("rows", "dim")),
    "steering": ("float32", ("rows", "dim")),
    "negative_embs": ("float32", ("rows", "negatives", "dim")),
    "cluster_id": ("int64", ("rows",)),
    "relevance": ("float32", ("rows",)),
    "centroid_distance": ("float32", ("rows",)),
    "steering_variant": ("int64", ("rows",)),
    "negative_tiers": ("int64", ("rows", "negatives")),
}
"""The fields of a batch of pairs, in order: type and shape."""


def check_rows(
    batch: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, rows: int | None = None
) -> None:
    """Raise `IncompatibleError` for the first problem in a batch of embedding rows.

    The argument `shapes` maps each field to the shape of its rows. The batch must have these fields
    with rows of these shapes. It may have `sample_mask`, but no other field. All fields must have
    the same number of rows (`rows`, if given), be contiguous, share no memory, and contain neither
    NaN nor infinity.

    >>> check_rows({"embedding": torch.zeros(4, 8)}, {"embedding": (8,)}, rows=4)
    """
    _check_names(batch, shapes)
    count = rows if rows is not None else len(batch[next(iter(shapes))])
    for name, shape in shapes.items():
        _check_shape(name, batch[name], (count, *shape))
    _check_memory(batch)
    for name in shapes:
        if batch[name].is_floating_point():
            _check_finite(name, batch[name])


def check_pairs(batch: Mapping[str, Any], sizes: PairSizes, *, rows: int | None = None) -> None:
    """Raise `IncompatibleError` for the first problem in a batch of pairs.

    The batch must have the fields of `PAIR_FIELDS`, and may have `sample_mask`, but no other field.
    The fields must have the types and shapes in `PAIR_FIELDS`, be on one device, and contain
    neither NaN nor infinity. Cluster ids must be in -1 .. clusters - 1, relevance in 0 .. 1,
    centroid distances in 0 .. 2, steering variants in 0 .. 3 and tiers in 1 .. 4. The steering of
    variant 0 must be zeros. On the meta device, which holds no values, only names, types and shapes
    are checked.
    """
    _check_names(batch, PAIR_FIELDS)
    first = next(iter(batch.values()))
    shape = {
        "rows": len(first) if rows is None else rows, "dim": sizes.dim,
        "negatives": sizes.negatives,
    }  # fmt: skip
    for name, (dtype, axes) in PAIR_FIELDS.items():
        _check_shape(name, batch[name], tuple(shape[axis] for axis in axes), dtype)
    for name, tensor in batch.items():
        if tensor.device != first.device:
            _refuse(name, f"is on {tensor.device}, {next(iter(batch))} on {first.device}")
    if first.is_meta:
        return
    _check_memory(batch)
    for name, (dtype, _) in PAIR_FIELDS.items():
        if dtype == "float32":
            _check_finite(name, batch[name])
    _check_range("cluster_id", batch["cluster_id"], -1, sizes.clusters - 1)
    _check_range("relevance", batch["relevance"], 0, 1)
    _check_range("centroid_distance", batch["centroid_distance"], 0, 2, slack=_SLACK)
    _check_range("steering_variant", batch["steering_variant"], 0, len(VARIANTS) - 1)
    _check_range("negative_tiers", batch["negative_tiers"], 1, len(TIERS))
    _check_zero(batch["steering"], batch["steering_variant"])


def _check_names(batch: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in batch:
            _refuse(name, f"is missing; there is {', '.join(batch) or 'nothing'}")
    for name, tensor in batch.items():
        if name not in wanted and name != _MASK:
            _refuse(name, "is no field of this dataset")
        if not isinstance(tensor, torch.Tensor):
            _refuse(name, f"is a {type(tensor).__name__}, not a tensor")


def _check_shape(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: str | None = None
) -> None:
    found = str(tensor.dtype).removeprefix("torch.")
    if tuple(tensor.shape) != shape or (dtype is not None and found != dtype):
        wanted = f"{dtype or ''} {list(shape)}".strip()
        _refuse(name, f"is {found} {list(tensor.shape)}, not {wanted}")


def _check_memory(batch: Mapping[str, torch.Tensor]) -> None:
    owners: dict[int, str] = {}
    for name, tensor in batch.items():
        if not tensor.is_contiguous():
            _refuse(name, "is not contiguous")
        other = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
        if other != name and tensor.numel():
            _refuse(name, f"shares its memory with {other}")


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    _point_at(name, tensor, ~torch.isfinite(tensor), "which is no finite number")


def _check_range(name: str, tensor: torch.Tensor, low: int, high: int, slack: float = 0) -> None:
    wrong = (tensor < low - slack) | (tensor > high + slack)
    _point_at(name, tensor, wrong, f"outside {low} .. {high}")


def _check_zero(steering: torch.Tensor, variant: torch.Tensor) -> None:
    wrong = (variant == 0)[:, None] & (steering != 0)
    _point_at("steering", steering, wrong, "but its variant is zero")


def _point_at(name: str, tensor: torch.Tensor, wrong: torch.Tensor, what: str) -> None:
    """Raise `IncompatibleError` for the first element of `tensor` where `wrong` is True, if any."""
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        column = f", column {', '.join(map(str, place[1:]))}" if place[1:] else ""
        _refuse(name, f"row {place[0]}{column} is {tensor[tuple(place)].item():g}, {what}")


def _refuse(name: str, problem: str) -> NoReturn:
    raise IncompatibleError(problem, where=name, code="E_BATCH", remedy=_REMEDY)
