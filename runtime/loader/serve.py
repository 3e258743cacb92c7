"""`serve`: a `Loader` over the samples of any dataset in any order.

`create_loader` (runtime/create.py) opens a directory and calls `serve`. Call `serve` yourself for a
dataset that `create_loader` cannot make: packed rows with special options, or a class of your own
with the methods of `SampleDataset`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch

from dataprep.formats.canonical import canonical_json, digest_of
from dataprep.formats.errors import UsageError
from dataprep.formats.read.arrays import ArraySplit
from dataprep.formats.read.dataset import Split

from ..checks import flag, flag_or_none, whole_number
from ..order.permutation import ALGORITHM, Order, Sequential, Shuffled
from ..order.skips import Skips, skips_of
from ..types import SampleDataset
from .batch_sampler import End, GlobalBatchSampler, StepSampler
from .loader import Loader
from .map_source import MapSource
from .mock import MockDataset
from .order_match import comparable
from .readahead import ReadAhead, memory
from .workers import begin_work

__all__ = [
    "PREFETCH",
    "Shuffle",
    "build_order",
    "pins_memory",
    "require_seed",
    "serve",
    "serve_steps",
    "shuffle_kind",
]

Shuffle = Literal["full", "blocks"]
PREFETCH = 2
"""The default number of batches made ahead of time."""
_BATCH_SIZE = 32
_LONG = 384  # bytes of lists in a definition up to which a state holds the lists themselves


def build_order(
    samples: SampleDataset, split: Split | ArraySplit, *, seed: int, shuffle: Shuffle | bool
) -> tuple[Order, dict[str, Any]]:
    """Return the order of the samples of one split, and its definition (JSON values).

    The argument `shuffle` chooses the order. ``"full"`` (or True) permutes all samples.
    ``"blocks"`` permutes blocks of 4 MiB, then the samples within windows of 1 GiB. It is meant for
    data larger than the page cache. False keeps the stored order. Raise `UsageError` if `shuffle`
    is unknown or `seed` is out of range.
    """
    kind = shuffle_kind(shuffle)
    seed = require_seed(seed)
    content_id, n = split.content_id, len(samples)
    definition: dict[str, Any] = {"content": [content_id], **samples.definition, "samples": n}
    if kind is False:
        return Sequential(), definition | {"shuffle": None}
    definition |= {"shuffle": kind, "seed": seed}
    purpose = str(samples.definition["kind"])
    if kind == "full":
        return Shuffled(content_id=content_id, seed=seed, purpose=purpose), definition
    from ..order.blocks import Blocks, block_sizes

    block, window = block_sizes(_sample_bytes(samples, split))
    order = Blocks(content_id=content_id, seed=seed, purpose=purpose, block=block, window=window,
                   default_sizes=True)  # fmt: skip
    return order, definition | {"block": block, "window": window}


def shuffle_kind(shuffle: Shuffle | bool) -> Shuffle | Literal[False]:
    """Return the name of the shuffle: ``"full"`` for True, otherwise `shuffle` itself.

    Raise `UsageError` if `shuffle` is not a bool, ``"full"`` or ``"blocks"``.
    """
    kind = flag("shuffle", shuffle) if isinstance(shuffle, np.bool_) else shuffle
    if isinstance(kind, bool):
        return "full" if kind else False
    if kind not in get_args(Shuffle):
        raise UsageError(f"must be a bool, 'full' or 'blocks', got {shuffle!r}", where="shuffle")
    return kind


def _sample_bytes(samples: SampleDataset, split: Split | ArraySplit) -> int:
    """Return the approximate size in bytes of a sample in the files."""
    if isinstance(split, Split):
        return max(1, split.tokens * split.dtype.itemsize // len(samples))
    return max(1, getattr(samples, "sample_bytes", 1))


def require_seed(seed: int) -> int:
    """Return `seed` as an int; raise `UsageError` unless it is from 0 to 2**63 - 1."""
    number = whole_number("seed", seed)
    if number >= 1 << 63:
        raise UsageError(f"must be from 0 to 2**63 - 1, got {seed}", where="seed")
    return number


def serve(
    samples: SampleDataset,
    batch_size: int | None,
    *,
    order: Order,
    definition: Mapping[str, Any],
    positions: int | None = None,
    epoch: int = 0,
    end: End = "drop",
    skip: Iterable[int] | Skips | None = (),
    dp_rank: int = 0,
    dp_size: int = 1,
    num_workers: int = 0,
    persistent_workers: bool | None = None,
    multiprocessing_context: str | None = None,
    prefetch: int = PREFETCH,
    pin_memory: bool | None = None,
    mock: bool = False,
) -> Loader:
    """Return a `Loader` that serves `samples` in `order`.

    The argument `definition` identifies the order: a state is valid for loaders with an equal
    definition. Its field `content` is a list of content ids, which seed the digests. The argument
    `positions` is the number of positions in an epoch, by default the number of samples. If
    `batch_size` is None, the batch size is 32. If 32 would drop all samples, warn and use the
    largest size for which the samples fill one global batch. With `persistent_workers` False,
    worker processes end with each pass. The other arguments are those of `create_loader`.

        >>> packed = PackedDataset(split, seq_len=2048, pack="best-fit")       # doctest: +SKIP
        >>> order, definition = build_order(packed, split, seed=0, shuffle="full")
        ...                                                                    # doctest: +SKIP
        >>> loader = serve(packed, 32, order=order, definition=definition)     # doctest: +SKIP
    """
    count = len(samples) if positions is None else positions
    skips = skips_of(skip)
    if batch_size is None:
        batch_size = _default_batch_size(count - len(skips), dp_size, end)
    sampler = GlobalBatchSampler(
        count, batch_size, order=order, epoch=epoch, dp_rank=dp_rank, dp_size=dp_size, end=end,
        skips=skips if len(skips) else None, content=definition.get("content", ()),
        tagged=getattr(samples, "tagged", False),
    )  # fmt: skip
    _require_memory(sampler, definition.get("seq_len", 1))
    return serve_steps(
        samples, sampler, definition=definition, num_workers=num_workers, prefetch=prefetch,
        persistent_workers=persistent_workers, multiprocessing_context=multiprocessing_context,
        pin_memory=pin_memory, dp_rank=dp_rank, mock=mock,
    )  # fmt: skip


def _default_batch_size(samples: int, dp_size: int, end: End) -> int:
    """Return the default batch size: 32, or less if 32 would drop all samples.

    In that case, warn and return the largest size for which `samples` fill one global batch.
    """
    most = samples // dp_size
    if end != "drop" or not 1 <= most < _BATCH_SIZE:
        return _BATCH_SIZE
    warnings.warn(
        f"there are {samples:,} samples: batch_size is {most:,}, not {_BATCH_SIZE}; pass "
        "batch_size to choose", stacklevel=2,
    )  # fmt: skip
    return most


def serve_steps(
    samples: SampleDataset,
    sampler: StepSampler,
    *,
    definition: Mapping[str, Any],
    num_workers: int = 0,
    prefetch: int = PREFETCH,
    persistent_workers: bool | None = None,
    multiprocessing_context: str | None = None,
    pin_memory: bool | None = None,
    dp_rank: int = 0,
    mock: bool = False,
) -> Loader:
    """Return a `Loader` over the steps of `sampler`; for the other arguments see `serve`."""
    num_workers = whole_number("num_workers", num_workers)
    prefetch, mock = whole_number("prefetch", prefetch), flag("mock", mock)
    _check_workers(num_workers, multiprocessing_context)
    pin_memory = flag_or_none("pin_memory", pin_memory)
    pinned = _on_host(samples, num_workers) and pins_memory(pin_memory)
    source = MapSource(
        MockDataset(samples) if mock else samples,
        sampler,
        order=_stored_definition(
            {"algorithm": ALGORITHM, **definition, **({"mock": True} if mock else {})}
        ),
        announcer=None if mock else _announcer(samples),
    )
    return Loader(
        source,
        prefetch=prefetch,
        vocab_size=_vocab_size(samples),
        num_workers=num_workers,
        pin_memory=pinned,
        prefetch_factor=max(1, -(-prefetch // num_workers)) if num_workers else None,
        persistent_workers=num_workers > 0 and persistent_workers is not False,
        multiprocessing_context=multiprocessing_context,
        worker_init_fn=begin_work if num_workers else None,
        # Without one, a DataLoader draws from the global generator at every `iter`.
        generator=torch.Generator().manual_seed(_worker_seed(definition, dp_rank)),
    )


def _worker_seed(definition: Mapping[str, Any], dp_rank: int) -> int:
    """Return the seed of rank `dp_rank`, from which torch derives the seeds of its workers."""
    text = json.dumps([definition.get("seed"), dp_rank]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7])


def _stored_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return `definition` as it appears in states: if its lists are long, a hash replaces them.

    The list `content` of a single dataset is never replaced.
    """
    single, mixed = str | int | float | None, definition.get("kind") == "mixture"
    short = {
        name: value
        for name, value in definition.items()
        if isinstance(value, single) or (name == "content" and not mixed)
    }
    lists = {name: value for name, value in definition.items() if name not in short}
    if len(canonical_json(lists)) <= _LONG:
        return dict(definition)
    return {**short, "sha256": digest_of(comparable(lists))}


def _announcer(samples: SampleDataset) -> ReadAhead | None:
    """Return a `ReadAhead` if `samples` are read from splits or tracks, else None."""
    tracks: object = getattr(samples, "tracks", None)
    if tracks is None:
        tracks = hasattr(samples, "split") or hasattr(samples, "splits")
    return ReadAhead(samples) if tracks else None


def _vocab_size(samples: SampleDataset) -> int | None:
    """Return the vocabulary size of the dataset of `samples`, or None if it has no tokens.

    For a mixture, return the largest vocabulary size.
    """
    splits = getattr(samples, "splits", None) or (getattr(samples, "split", None),)
    sizes = [s.dataset.manifest.tokens.vocab_size for s in splits if isinstance(s, Split)]
    return max(sizes, default=None)


def _on_host(samples: SampleDataset, num_workers: int) -> bool:
    """Return whether the batches of `samples` are in host memory, where they can be pinned.

    Raise `UsageError` if they are on another device and there are worker processes.
    """
    device: torch.device | None = getattr(samples, "device", None)
    if device is None or device.type == "cpu":
        return True
    if num_workers:
        raise UsageError(
            f"batches on {device} are made in this process, not by workers", where="num_workers",
            remedy="Use num_workers=0, which is the fastest, or device='cpu'.",
        )  # fmt: skip
    return False


def pins_memory(asked: bool | None) -> bool:
    """Return whether to copy batches to page-locked memory.

    The answer is True if there is an accelerator and `asked` is not False. Warn if `asked` is True
    and there is no accelerator.
    """
    if asked and not _has_accelerator():
        warnings.warn("pin_memory is left out: there is no accelerator to copy to", stacklevel=4)
    return asked is not False and _has_accelerator()


def _has_accelerator() -> bool:
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return accelerator is not None and accelerator.type != "mps"  # MPS cannot pin memory


def _require_memory(sampler: GlobalBatchSampler, tokens: int) -> None:
    """Raise `UsageError` if the token ids of one batch do not fit into the available memory.

    A row has `tokens` ids. A padded batch has `batch_size` rows, even if there are fewer samples.
    """
    size = sampler.batch_size
    rows = size if sampler.end == "pad" else min(size, sampler.samples)
    needed, free = 8 * rows * tokens, memory()
    if needed > free > 0:
        raise UsageError(
            f"a batch of {rows:,} rows takes {needed / (1 << 30):,.0f} GiB or more, and this "
            f"machine has {free / (1 << 30):,.0f} GiB free",
            where="batch_size", remedy="Use a smaller batch_size.",
        )  # fmt: skip


def _check_workers(num_workers: int, context: str | None) -> None:
    methods = torch.multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise UsageError(
            f"must be one of {', '.join(methods)}, got {context!r}", where="multiprocessing_context"
        )
    if context is not None and num_workers == 0:
        raise UsageError("only means something with workers", where="multiprocessing_context")
