"""What a loader has handed over, and how long the trainer waited for it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoaderStats"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """Counts of one process since its loader was made, or since `Loader.reset_stats`.

    A trainer that waits for a hundredth of its time loses no more than that to loading. Where
    `ready` is at its largest whenever one looks, loading is never what is waited for.
    """

    waited_s: float
    """Seconds between asking for a batch and getting it, summed over all batches."""
    first_batch_s: float
    """The part of `waited_s` that passed before the first batch of each pass."""
    batches: int
    samples: int
    """Rows, without those that only fill a batch."""
    tokens: int
    """Elements of `input_ids` in these rows, padding within them included."""
    ready: int
    """Batches that wait to be taken, made ahead of time by the thread; 0 without it."""
