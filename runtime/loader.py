"""`create_loader`: a dataset directory in, a seeded torch DataLoader out.

The loader is a real `torch.utils.data.DataLoader` over a map-style dataset and a batch sampler, so
whatever works with those works with it. What is served is fixed by (dataset, split, seed, epoch,
window options, global batch) and by nothing else: not the worker count, not the number of ranks.

With `num_workers=0`, the default, batches are made in the calling process, which is the fastest:
making one costs less than sending it from another process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from dataprep.formats.dataset import Dataset, open_dataset
from dataprep.formats.errors import UsageError
from dataprep.runtime.order import Order, Sequential, Shuffled
from dataprep.runtime.sampling import End, GlobalBatchSampler
from dataprep.runtime.windows import Batch, Labels, WindowDataset

__all__ = ["Loader", "create_loader", "set_epoch"]

_T = TypeVar("_T")


class Loader(DataLoader[Batch]):
    """A DataLoader that knows its epoch. Made by `create_loader`.

    `dataset_obj` is the map-style dataset and `sampler_obj` the batch sampler.

    Each `iter(loader)` is one pass over the epoch that `epoch` names then. When the last batch of
    the pass is handed over, `epoch` moves on by one, unless another was set meanwhile. A
    pass that is left early does not count: the next one starts the same epoch again. So plain loops
    see a new order each time, and (epoch, batches handed over) says exactly where a run stands.
    """

    dataset_obj: WindowDataset
    sampler_obj: GlobalBatchSampler

    def __init__(self, dataset: WindowDataset, sampler: GlobalBatchSampler, **options: Any) -> None:
        self.dataset_obj = dataset
        self.sampler_obj = sampler
        super().__init__(dataset, batch_sampler=sampler, collate_fn=_as_is, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` serves."""
        return self.sampler_obj.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next `iter` serves."""
        self.sampler_obj.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # In this process and with nothing to pin, torch's iterator is 15 microseconds a batch of
        # bookkeeping around these same two calls.
        direct = self.num_workers == 0 and not self.pin_memory
        batches: Iterator[Batch] = (
            map(self.dataset_obj.__getitems__, self.sampler_obj) if direct else super().__iter__()
        )
        return self._serve(batches, self.epoch)

    def _serve(self, batches: Iterator[Batch], epoch: int) -> Iterator[Batch]:
        last = len(self.sampler_obj)
        for step, batch in enumerate(batches, 1):
            if step == last and self.epoch == epoch:
                self.set_epoch(epoch + 1)
            yield batch


def create_loader(  # noqa: PLR0917  (the names and the order that callers know)
    dataset_dir: str | Path | Dataset,
    split: str,
    batch_size: int,
    num_workers: int = 0,
    distributed: bool = False,
    epoch: int = 0,
    drop_last: bool | None = None,
    pin_memory: bool | None = None,
    *,
    seq_len: int = 1024,
    stride: int | None = None,
    labels: Labels | None = "shifted",
    seed: int = 0,
    shuffle: bool | None = None,
    dp_rank: int | None = None,
    dp_size: int | None = None,
    multiprocessing_context: str | None = None,
) -> Loader:
    """A loader of token windows: dicts of int64 tensors [batch_size, seq_len].

    Arguments:
        dataset_dir: what `dataprep build` made, or an open `Dataset`.
        split: ``"train"``, ``"val"``, ``"test"`` or whatever names the build gave.
        batch_size: rows per step and rank; the global batch is `batch_size` x `dp_size`.
        num_workers: worker processes, kept alive between epochs. They never change what is served,
            and for token windows they make it slower.
        distributed: take `dp_rank` and `dp_size` from torch.distributed, which must be initialised.
        epoch: the first epoch to serve. Every pass moves on by one; see `Loader` and `set_epoch`.
        drop_last: leave out the samples that do not fill the last global batch. None: True for
            ``"train"``, False otherwise. If False, a single rank gets a last, shorter batch. Each
            of several ranks gets its last batch filled up to `batch_size`, so that all make equally
            many steps, and with every batch a bool `sample_mask` [batch_size], False in the rows
            that only fill (whose labels are -100).
        pin_memory: page-locked batches, for copies to an accelerator. None: where there is one.
        seq_len: tokens per row.
        stride: tokens from the start of one window to that of the next. None: `seq_len`.
        labels: ``"shifted"`` (label j is the token after input j), ``"unshifted"`` (equal to the
            inputs, for models that shift inside), or None for no labels.
        seed: of the shuffle; orders of different seeds, epochs and datasets have nothing in common.
        shuffle: a new order each epoch, or the stored order. None: True for ``"train"`` only.
        dp_rank, dp_size: this process among the data-parallel ones; they overrule `distributed`.
            Tensor- and pipeline-parallel peers pass the same rank, and so get the same rows.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"`` for the workers.

    Where the positional arguments differ from other loaders of this signature: any split may be
    named; `pin_memory` is on only where something can use it; `distributed` splits the one order
    among the ranks, rather than wrapping the dataset in a DistributedSampler (which repeats samples
    to even the ranks out); `epoch` moves on by itself.

    Raises `UsageError` for arguments that cannot be met, `InputError` for a split that does not
    fill one window, and what `open_dataset` raises. Costs the opening of the dataset.

        >>> loader = create_loader("shards", "train", 32, seq_len=2048)     # doctest: +SKIP
        >>> for batch in loader:                                            # doctest: +SKIP
        ...     loss = model(batch["input_ids"], labels=batch["labels"])
    """
    _check(num_workers, seed, multiprocessing_context)
    rank, size = _position(distributed, dp_rank, dp_size)
    train = split == "train"
    end = _end(_default(drop_last, train), size)
    opened = dataset_dir if isinstance(dataset_dir, Dataset) else open_dataset(dataset_dir)
    windows = WindowDataset(
        opened.split(split), seq_len=seq_len, stride=stride, labels=labels,
        sample_mask=end == "pad",
    )  # fmt: skip
    sampler = GlobalBatchSampler(
        len(windows), batch_size, order=_order(opened, split, seed, _default(shuffle, train)),
        epoch=epoch, dp_rank=rank, dp_size=size, end=end,
    )  # fmt: skip
    return Loader(
        windows,
        sampler,
        num_workers=num_workers,
        pin_memory=_default(pin_memory, _has_accelerator()),
        persistent_workers=num_workers > 0,
        multiprocessing_context=multiprocessing_context,
        # Its own: a DataLoader draws from the global generator at every `iter` otherwise.
        generator=torch.Generator().manual_seed(seed),
    )


def set_epoch(loader: Loader, epoch: int) -> None:
    """Make `epoch` the one that the next pass over `loader` serves, workers or not."""
    loader.set_epoch(epoch)


def _as_is(batch: Any) -> Any:
    """`WindowDataset.__getitems__` collates already."""
    return batch


def _default(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _end(drop_last: bool, dp_size: int) -> End:
    if drop_last:
        return "drop"
    return "partial" if dp_size == 1 else "pad"


def _order(dataset: Dataset, split: str, seed: int, shuffle: bool) -> Order:
    if not shuffle:
        return Sequential()
    return Shuffled(build_id=dataset.build_id, seed=seed, purpose=f"windows/{split}")


def _has_accelerator() -> bool:
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return accelerator is not None and accelerator.type != "mps"  # which cannot pin


def _position(distributed: bool, rank: int | None, size: int | None) -> tuple[int, int]:
    if (rank is None) != (size is None):
        missing = "dp_rank" if rank is None else "dp_size"
        raise UsageError("dp_rank and dp_size are given together or not at all", where=missing)
    if rank is not None and size is not None:
        return rank, size
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and not group:
        raise UsageError(
            "torch.distributed is not initialised", where="distributed",
            remedy="Call torch.distributed.init_process_group(), or pass dp_rank and dp_size.",
        )  # fmt: skip
    if distributed:
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if group and torch.distributed.get_world_size() > 1:
        warnings.warn(
            "every rank of this torch.distributed group will get the same batches; pass "
            "distributed=True, or dp_rank and dp_size (0 and 1 if this is what you want)",
            stacklevel=3,
        )
    return 0, 1


def _check(num_workers: int, seed: int, context: str | None) -> None:
    if num_workers < 0:
        raise UsageError(f"must not be negative, got {num_workers}", where="num_workers")
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"must be from 0 to 2**63 - 1, got {seed}", where="seed")
    methods = torch.multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise UsageError(
            f"must be one of {', '.join(methods)}, got {context!r}", where="multiprocessing_context"
        )
    if context is not None and num_workers == 0:
        raise UsageError("only means something with workers", where="multiprocessing_context")
