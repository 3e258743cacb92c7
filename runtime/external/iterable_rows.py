"""Numbered rows of a foreign stream: all rows, the rows of one reader, or shuffled rows.

A stream is a Hugging Face `IterableDataset`, a torch `IterableDataset`, another object that can be
iterated over repeatedly, or a function that returns a new iterator each time. It must yield the
same rows each time, in every rank and worker. If it has a method `set_epoch`, the method is called
first.

Many streams yield only a part of their rows if they notice that they run in a worker process. This
module prevents that, so that a stream always yields all rows. The rows are then divided among the
workers. If the stream uses the global random generators of Python, NumPy or torch, the generators
are seeded by (seed, epoch): see runtime/external/randomness.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker

from dataprep.formats.errors import InputError, UsageError, require

from ..loader.machine_errors import machine_error
from ..seeding import seed_for
from .randomness import UNDECLARED_DRAWS, seeded_rows

__all__ = [
    "NumberedRow", "StreamSource", "all_rows", "part_of_rows", "require_shards", "require_stream",
    "through_buffer",
]  # fmt: skip

StreamSource = Iterable[Any] | Callable[[], Iterable[Any]]
NumberedRow = tuple[int, Any]
_NONE: Any = object()
_NO_STREAMS: tuple[tuple[Any, str, str], ...] = (
    ((str, bytes), "not the rows of one", "Open or load the data first."),
    ((set, frozenset), "whose order is another in every process", "Pass a sorted list of it."),
    (DataLoader, "which gives batches", "Pass its dataset."),
)


def require_stream(source: Any, where: str) -> None:
    """Raise `UsageError` about the argument `where` if `source` cannot be iterated repeatedly."""
    if isinstance(source, Iterator):
        raise UsageError(
            "is an iterator, which can be read once", where=where,
            remedy="Pass the function that makes it, or a list of what it gives.",
        )  # fmt: skip
    for kind, problem, remedy in _NO_STREAMS:
        if isinstance(source, kind):
            raise UsageError(f"is a {type(source).__name__}, {problem}", where=where, remedy=remedy)
    require(isinstance(source, Iterable) or callable(source), where,
            f"a {type(source).__name__} cannot be iterated over")  # fmt: skip


def all_rows(
    source: StreamSource, epoch: int, *, seed: int = 0, draws: bool = True
) -> Iterator[NumberedRow]:
    """Yield (number, row) for every row of the stream in `epoch`.

    The random numbers of the stream depend on `seed`. Raise `InputError` if reading a row fails;
    the error names the row. Raise `UsageError` if the stream uses random numbers although `draws`
    is False.

    >>> list(all_rows(lambda: iter("ab"), 0))
    [(0, 'a'), (1, 'b')]
    """
    rows = seeded_rows(
        partial(_new_iterator, source, epoch), seed_for(seed, "rows", epoch) >> 31, draws=draws
    )
    for number in count():
        hidden, worker._worker_info = worker._worker_info, None  # as if in no worker
        try:
            row = next(rows, _NONE)
        except Exception as error:
            if getattr(error, "code", None) == UNDECLARED_DRAWS:
                raise
            machine = machine_error(error)
            if machine is not None:
                raise machine from error
            raise InputError(
                f"reading it raised {type(error).__name__}: {error}", where=f"row {number}",
                remedy="Mend the stream: nothing after this row can be read.",
            ) from error  # fmt: skip
        finally:
            worker._worker_info = hidden
        if row is _NONE:
            return
        yield number, row


def part_of_rows(
    source: StreamSource,
    epoch: int,
    part: int,
    parts: int,
    *,
    by_shards: bool = False,
    **drawing: Any,
) -> Iterator[NumberedRow]:
    """Return an iterator of (number, row) for reader `part` of `parts` readers of the stream.

    Together, the readers return every row once. Each reader reads the whole stream and returns the
    rows whose number `n` satisfies ``n % parts == part``.

    If `by_shards` is True, each reader reads only its own shards, and row numbers count only the
    rows of these shards. The method `shard(num_shards=, index=)` of the stream selects the shards;
    Hugging Face streams have it. If there are fewer shards than readers, several readers divide the
    rows of a shard. Raise `UsageError` if the stream has no shards.

    The keyword arguments `drawing` are `seed` and `draws` of `all_rows`.

    >>> list(part_of_rows(lambda: iter("abc"), 0, part=0, parts=2))
    [(0, 'a'), (2, 'c')]
    """
    if by_shards:
        groups = min(parts, require_shards(source))
        group, part, parts = part % groups, part // groups, len(range(part % groups, parts, groups))
        if groups > 1:
            source = source.shard(num_shards=groups, index=group, contiguous=False)  # type: ignore[union-attr]
    return islice(all_rows(source, epoch, **drawing), part, None, parts)


def through_buffer(
    rows: Iterator[NumberedRow], size: int, seed: int, epoch: int
) -> Iterator[NumberedRow]:
    """Yield `rows` shuffled by a buffer of `size` rows; the order is a function of (seed, epoch).

    Each new row replaces a random row of the buffer, and the replaced row is yielded. So a row is
    yielded at most `size` - 1 positions early, and any number of positions late. A `size` below 2
    keeps the order.

    >>> rows = through_buffer(enumerate("abcd"), 3, seed=0, epoch=0)
    >>> sorted(rows) == list(enumerate("abcd"))
    True
    """
    if size < 2:
        yield from rows
        return
    # Only `random` is the same in all versions of Python; `randrange` and `shuffle` may change.
    draw = random.Random(seed_for(seed, "stream", epoch)).random
    held = list(islice(rows, size))
    for row in rows:
        at = int(draw() * size)
        yield held[at]
        held[at] = row
    while held:
        at = int(draw() * len(held))
        held[at], held[-1] = held[-1], held[at]
        yield held.pop()


def require_shards(source: Any) -> int:
    """Return the number of shards of the stream, at least 1.

    Raise `UsageError` if the stream is not divided into shards.
    """
    shards = getattr(source, "num_shards", None)
    if not isinstance(shards, int) or not hasattr(source, "shard"):
        raise UsageError(
            f"a {type(source).__name__} has no shards", where="by_shards",
            remedy="Leave it out: rows are then dealt out one by one.",
        )  # fmt: skip
    return max(1, shards)


def _new_iterator(source: StreamSource, epoch: int) -> Iterator[Any]:
    """Return an iterator over the rows of `epoch`; call `set_epoch` first if the stream has it."""
    if hasattr(source, "set_epoch"):
        source.set_epoch(epoch)
    # An iterable that is also callable, as a torch dataset may be, is iterated, not called.
    return iter(source if isinstance(source, Iterable) else source())
