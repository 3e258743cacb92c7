"""`foreign_loader`: a `Loader` over any map-style dataset, for builders and data modules.

Datasets that make batches themselves, such as those of dataprep, are passed to `Loader` directly.
All others are wrapped in `Collated`. In both cases `Loader` provides order, ranks, resuming,
buckets and worker processes. For an empty dataset, the loader has no batches, and a warning is
issued.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import IterableDataset

from dataprep.formats.errors import InputError, UsageError, require

from ..checks import whole_number
from ..collate.fallback import Default
from ..loader.batch_sampler import End
from ..loader.loader import Loader
from ..loader.serve import build_order, serve, serve_steps
from ..loader.token_budget import TokenBudgetSampler
from ..loader.workers import require_picklable
from ..order.buckets import POOL, Bucketed
from ..order.lengths import Lengths, lengths_for
from ..order.permutation import Order
from ..order.phased import phased
from ..order.sampler import SamplerOrder
from ..seeding import isolated
from ..types import Collate, SampleDataset
from .config import LoaderConfig
from .map_dataset import Collated, collated_order, failed, marked
from .preprocessed_map import PreprocessedDataset
from .randomness import SeededDraws, draws_nothing

__all__ = ["Buckets", "chosen_collate", "foreign_loader", "is_stream", "makes_batches"]

_MAX_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Options for batches of samples with similar length; see runtime/order/buckets.py."""

    lengths: Any = None
    """Lengths of all samples in tokens: numbers or a `Lengths`; None: those of the dataset."""
    pool: int = POOL
    """Number of consecutive samples that are sorted by length together."""
    max_tokens: int | None = None
    """The most ids of a batch, padding included; None: batches of `batch_size` rows."""
    max_rows: int = _MAX_ROWS
    """With `max_tokens`: the most rows of a batch."""
    rows_multiple: int | None = None
    """With `max_tokens`: the rows of all ranks together are a multiple of this."""

    def __post_init__(self) -> None:
        for name in ("pool", "max_tokens", "max_rows", "rows_multiple"):
            value = getattr(self, name)
            if value is not None or name in ("pool", "max_rows"):
                object.__setattr__(self, name, whole_number(name, value, 1))
        if self.max_tokens is None:
            require(self.max_rows == _MAX_ROWS, "max_rows", "means nothing without max_tokens")
            require(self.rows_multiple is None, "rows_multiple",
                    "means nothing without max_tokens")  # fmt: skip

    def ordered(
        self, order: Order, known: Lengths, config: LoaderConfig, *, dp_size: int, **key: str
    ) -> Bucketed:
        """Return `order` rearranged so that samples of a global batch have similar length.

        The argument `known` holds the lengths of the samples. The keyword arguments `key` are
        `content_id` and `purpose` of `Bucketed`.
        """
        return Bucketed(
            order=order, lengths=known, batch=config.batch_size * dp_size, pool=self.pool,
            seed=config.seed, **key,
        )  # fmt: skip

    def steps(
        self, order: Order, known: Lengths, config: LoaderConfig, **more: Any
    ) -> TokenBudgetSampler:
        """Return a sampler of batches with at most `max_tokens` tokens.

        The argument `known` holds the lengths of the samples. The keyword arguments `more` are
        passed to the sampler.
        """
        return TokenBudgetSampler(
            known, self.max_tokens or 0, order=order, seed=config.seed,
            max_rows=self.max_rows, rows_multiple=self.rows_multiple, pool=self.pool, **more,
        )  # fmt: skip


def foreign_loader(
    dataset: Any,
    config: LoaderConfig,
    *,
    collate: Collate | None = None,
    purpose: str = "train",
    identity: str | None = None,
    sampler: Iterable[int] | Order | None = None,
    buckets: Buckets | None = None,
    skip: Iterable[int] = (),
    epoch: int = 0,
    dp_rank: int = 0,
    dp_size: int = 1,
) -> Loader:
    """Return a `Loader` over `dataset` with the options of `config`.

    Arguments:
        dataset: a map-style dataset. A list of tensors is treated like a `TensorDataset`: each
            sample is a tuple of one tensor.
        collate: the collate function. None: `config.collate_fn`, or a function that fits the first
            sample. Must be None for a dataset that makes batches itself.
        purpose: each purpose (``"train"``, ``"val"``, ...) has its own shuffled order.
        identity: a name for the data, part of a loader's state; None: the type of the dataset.
        sampler: an iterable of sample numbers or an `Order`, in place of a shuffle.
        buckets: options to put samples of similar length into the same batch.
        skip: the numbers of samples to leave out.
        epoch: the epoch of the first pass.
        dp_rank, dp_size: rank and number of the data-parallel processes.

    Raise `UsageError` for arguments that contradict each other, and for a dataset or collate
    function that cannot be sent to worker processes. Raise `InputError` for tensors that cannot be
    stacked. The first sample that is not skipped is read if `collate` has to be chosen, or if
    batches may need a `sample_mask`.
    """
    if is_stream(dataset):
        raise UsageError("is a stream, which has no samples by number", where="dataset",
                         remedy="Use UniversalDataModule, which takes streams too.")  # fmt: skip
    skip = list(skip)
    samples, light = _samples(dataset, config, collate, identity, skip)
    if len(samples) == 0:
        warnings.warn(f"the {purpose} dataset is empty: its loader has no batches", stacklevel=3)
        config, sampler, buckets = replace(config, drop_last=False), None, None
        dp_rank, dp_size = 0, 1
    workers = config.workers("light" if light else "heavy")
    if workers:
        require_picklable("dataset", samples, config.start_method)
    seeded = isinstance(samples, SeededDraws)
    run = config.run_options(workers, thread=not seeded)
    order, definition = _order(samples, config, purpose, sampler)
    count = len(order) if isinstance(order, SamplerOrder) else len(samples)
    budget = buckets is not None and buckets.max_tokens is not None
    left = None if budget else (count - len(set(skip))) % (config.batch_size * dp_size)
    end = _end(samples, config, purpose, dp_size, left, own=makes_batches(dataset), skip=skip)
    if buckets is not None:
        require(sampler is None, "sampler", "buckets have an order of their own")
        key = {
            "content_id": definition["content"][0],
            "purpose": definition.get("purpose", definition["kind"]),
        }
        known = lengths_for(samples if makes_batches(dataset) else dataset, buckets.lengths)
        if buckets.max_tokens is not None:
            require(not skip, "skip", "is for batches of rows, not of tokens")
            steps = buckets.steps(
                order, known, config, **key, epoch=epoch, dp_rank=dp_rank, dp_size=dp_size,
                end=end, content=definition["content"], tagged=getattr(samples, "tagged", False),
            )  # fmt: skip
            definition |= steps.definition
            return serve_steps(samples, steps, definition=definition, dp_rank=dp_rank, **run)
        order = buckets.ordered(order, known, config, dp_size=dp_size, **key)
        definition |= order.definition
    return serve(
        samples, config.batch_size, order=order, definition=definition, positions=count,
        end=end, skip=skip, epoch=epoch, dp_rank=dp_rank, dp_size=dp_size, **run,
    )  # fmt: skip


def makes_batches(dataset: Any) -> bool:
    """Return whether the dataset makes batches itself, as datasets of dataprep do."""
    return all(hasattr(dataset, name) for name in ("definition", "spans", "batch"))


def is_stream(dataset: Any) -> bool:
    """Return whether `dataset` is a stream: an iterable that is not map-style, or a function.

    Raise `UsageError` if `dataset` is the class of a map-style dataset, and not an object.
    """
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if by_number and isinstance(dataset, type):
        raise UsageError(f"is the class {dataset.__name__}, and not a dataset", where="dataset",
                         remedy="Call it to make one.")  # fmt: skip
    if isinstance(dataset, IterableDataset) or by_number:  # torch defines __getitem__ for both
        return not by_number or isinstance(dataset, IterableDataset)
    return hasattr(dataset, "__iter__") or callable(dataset)


def _end(
    samples: SampleDataset,
    config: LoaderConfig,
    purpose: str,
    dp_size: int,
    left: int | None,
    *,
    own: bool,
    skip: list[int],
) -> End:
    """Return what to do with the last samples of an epoch if they do not fill a global batch.

    The result is "drop", "partial" or "pad"; see `LoaderConfig.drop_last`. The argument `left` is
    the number of the last samples, or None if it is unknown. The argument `own` is True if the
    dataset makes batches itself. Raise `UsageError` if such a dataset would need a `sample_mask`
    but has none.

    If `own` is False, also set the attributes of `samples` that decide which batches get a
    `sample_mask`. This may collate the first sample that is not in `skip`.
    """
    if config.drop_last:
        return "drop"
    if dp_size == 1:
        return "partial"
    if own or not isinstance(samples, Collated):
        if not getattr(samples, "sample_mask", False):
            raise UsageError(
                "the dataset cannot tell rows that only fill a batch", where="drop_last",
                remedy="Make it with sample_mask=True, or use drop_last=True.",
            )  # fmt: skip
        return "pad"
    first = _first(len(samples), skip)
    if first is None:
        return "drop"  # the loader refuses it, as no sample is left
    samples.filler = first
    batch: Any = samples.batch([first])
    if not isinstance(batch, Mapping):
        if config.drop_last is None and config.shuffle and purpose == "train":
            if left != 0:
                which = "samples, if any," if left is None else f"{left:,} samples"
                warnings.warn(
                    f"each epoch leaves out the {which} that fill no batch on all {dp_size:,} "
                    "ranks; drop_last=True says so, and drop_last=False serves them, with a "
                    "sample_mask as the last element of every batch", stacklevel=4,
                )  # fmt: skip
            return "drop"
        samples.masks_whole = (
            left != 0
        )  # if nothing is left over, only a resumed run with another batch size needs masks
        if left != 0:
            marked(batch, np.ones(1, np.bool_))  # raises if the batch cannot have a mask
    samples.sample_mask = True
    return "pad"


def _first(count: int, skip: list[int]) -> int | None:
    """Return the lowest number below `count` that is not in `skip`, or None if there is none."""
    skipped = set(skip)
    return next((number for number in range(count) if number not in skipped), None)


class _Tensors:
    """Map-style dataset of the samples ``(tensor,)``, one for each tensor in `rows`.

    The argument `rows` is a list of tensors, or a `Part` of such a list.
    """

    draws = False

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self.rows[index],)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor]]:
        together = getattr(self.rows, "__getitems__", None)  # a `Part` has it
        rows = [self.rows[index] for index in indices] if together is None else together(indices)
        return [(row,) for row in rows]


def _samples(
    dataset: Any,
    config: LoaderConfig,
    collate: Collate | None,
    identity: str | None,
    skip: list[int],
) -> tuple[SampleDataset, bool]:
    """Return a dataset that collates samples of `dataset`, and whether reading samples is cheap.

    Reading is cheap if no user code runs. If `dataset` makes batches itself, it is returned
    unchanged. Raise `UsageError` if a collate function is given for such a dataset.
    """
    collate = collate or config.collate_fn
    if makes_batches(dataset):
        require(collate is None, "collate_fn", "this dataset makes its batches itself")
        return cast("SampleDataset", dataset), True
    whole = getattr(dataset, "whole", dataset)  # a `Part` has `whole`
    if type(whole) in (list, tuple) and len(whole) and isinstance(whole[0], torch.Tensor):
        chosen = collate or Default(report=False)
        if isinstance(chosen, Default):
            _check_tensors(whole)
        dataset = _Tensors(dataset)
    else:
        chosen = collate or chosen_collate(dataset, skip)
    if identity is None and isinstance(whole, PreprocessedDataset):
        identity = whole.identity
    if identity is None:
        identity = type(whole).__name__
    light = draws_nothing(dataset, chosen)
    if config.draws is True or (config.draws is None and not light):
        return SeededDraws(dataset, chosen, seed=config.seed, identity=identity), False
    light = light and not isinstance(whole, PreprocessedDataset)
    return Collated(dataset, chosen, identity=identity), light


def chosen_collate(dataset: Any, skip: list[int] | None = None) -> Collate:
    """Return a collate function for `dataset`: `Padded` for token ids, else `Default`.

    The first sample that is not in `skip` decides. Raise `SampleError` if it cannot be read.
    """
    first = None
    number = _first(len(dataset), skip or []) if hasattr(dataset, "__len__") else None
    if number is not None:
        try:
            with isolated():
                first = dataset[number]
        except Exception as error:
            raise failed(f"sample {number}", "reading it", error) from error
    if isinstance(first, Mapping) and any(str(name).endswith("input_ids") for name in first):
        from ..collate.padded import Padded

        return Padded()
    return Default(report=False)


def _check_tensors(rows: Any) -> None:
    """Raise `InputError` unless all elements of `rows` are tensors of the same shape."""
    first = rows[0]
    for number, row in enumerate(rows):
        shape = list(row.shape) if isinstance(row, torch.Tensor) else type(row).__name__
        if shape != list(first.shape):
            raise InputError(
                f"has shape {shape}, tensor 0 has {list(first.shape)}: they cannot be stacked",
                where=f"tensor {number}", code="E_RAGGED",
                remedy="Pad them: give a task_spec of text, or a collate function as CausalLM.",
            )  # fmt: skip


def _order(
    samples: SampleDataset, config: LoaderConfig, purpose: str, sampler: Any
) -> tuple[Order, dict[str, Any]]:
    """Return the order of the samples and its definition, which is part of a loader's state.

    Raise `UsageError` if the dataset has no order and no sampler is given.
    """
    if sampler is None and isinstance(samples, Collated):
        return collated_order(samples, seed=config.seed, shuffle=config.shuffle, purpose=purpose)
    split = getattr(samples, "split", None)
    if sampler is None and split is not None:
        return build_order(samples, split, seed=config.seed, shuffle=config.shuffle)
    if sampler is None:
        raise UsageError("has no order of its own", where="sampler", remedy="Pass an Order.")
    content = {} if split is None else {"content": [split.content_id]}
    definition = {**content, **samples.definition, "samples": len(samples), "seed": config.seed}
    definition["sampler"] = _described(sampler)
    if hasattr(sampler, "positions") and hasattr(sampler, "samples"):
        return cast("Order", sampler), definition
    return SamplerOrder(sampler, samples=len(samples), seed=config.seed), definition


def _described(sampler: Any) -> dict[str, Any] | str:
    """Return the `definition` of a dataprep order with its type, as part of a loader's state.

    For any other sampler, return the name of its type.
    """
    mixture = phased(sampler)
    if mixture is not None:  # weights and sources are in the definition of its phases
        return {"kind": "mixture", "seed": mixture.seed}
    known = getattr(sampler, "definition", None)
    if not isinstance(known, Mapping):
        return type(sampler).__name__
    names = ("content_id", "seed", "purpose")
    own = {name: getattr(sampler, name) for name in names if hasattr(sampler, name)}
    inner = {"order": _described(sampler.order)} if hasattr(sampler, "order") else {}
    return {"kind": type(sampler).__name__, **own, **inner, **known}
