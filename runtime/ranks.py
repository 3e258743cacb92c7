"""The data-parallel rank of this process, from the caller's arguments or torch.distributed."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch

from dataprep.formats.errors import UsageError, require

from .checks import flag, whole_number

__all__ = ["DataParallel", "data_parallel"]


class DataParallel(NamedTuple):
    """The rank of this process, and the number of ranks among which one order is divided."""

    rank: int
    size: int


def data_parallel(distributed: bool, dp_rank: int | None, dp_size: int | None) -> DataParallel:
    """Return the rank of this process and the number of ranks.

    They are `dp_rank` and `dp_size`, if these are given. Otherwise they come from torch.distributed
    if `distributed` is True, and are 0 and 1 if it is False. Raise `UsageError` if only one of
    `dp_rank` and `dp_size` is given, if the rank is not below the size, or if `distributed` is True
    but torch.distributed is not initialised. Warn if the defaults 0 and 1 are used although
    torch.distributed has several ranks, because then all ranks get the same batches.
    """
    distributed = flag("distributed", distributed)
    if (dp_rank is None) != (dp_size is None):
        missing = "dp_rank" if dp_rank is None else "dp_size"
        raise UsageError("dp_rank and dp_size are given together or not at all", where=missing)
    if dp_rank is not None and dp_size is not None:
        size, rank = whole_number("dp_size", dp_size, 1), whole_number("dp_rank", dp_rank)
        require(rank < size, "dp_rank", f"{rank} is not in 0 .. {size - 1}")
        return DataParallel(rank, size)
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and not group:
        raise UsageError(
            "torch.distributed is not initialised", where="distributed",
            remedy="Call torch.distributed.init_process_group(), or pass dp_rank and dp_size.",
        )  # fmt: skip
    if distributed:
        return DataParallel(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if group and torch.distributed.get_world_size() > 1:
        warnings.warn(
            "every rank of this torch.distributed group will get the same batches; pass "
            "distributed=True, or dp_rank and dp_size (0 and 1 if this is what you want)",
            stacklevel=4,
        )
    return DataParallel(0, 1)
