"""Seeds for the generators that Python, NumPy and torch keep for everybody.

Loaders here draw nothing from them: what they serve is arithmetic on (seed, epoch, position). These
functions are for models, and for transforms of other people's datasets, which do.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch

from dataprep.formats.errors import require

from ..checks import whole_number

__all__ = ["Mode", "isolated", "seed_all", "seed_for", "seed_here", "seed_worker",
           "seeded_generator"]  # fmt: skip

Mode = Literal["fast", "deterministic"]
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_all(seed: int, mode: Mode = "fast") -> None:
    """Seed Python's, NumPy's and torch's generators, and say how torch is to compute.

    ``"fast"`` lets torch choose the quickest kernels. ``"deterministic"`` has it use only those
    that give the same bits each time, or raise where it has none, as
    https://docs.pytorch.org/docs/stable/notes/randomness.html says. Each mode undoes the other:
    nothing is left of an earlier call. ``"deterministic"`` sets CUBLAS_WORKSPACE_CONFIG unless it
    is set; cuBLAS reads it when it is first used, so call this at the start.

    Raises `UsageError` unless `seed` is from 0 to 2**63 - 1. Costs a tenth of a millisecond.

    >>> seed_all(7)
    >>> first = random.random(), np.random.random(), torch.rand(1).item()
    >>> seed_all(7)
    >>> first == (random.random(), np.random.random(), torch.rand(1).item())
    True
    """
    require(mode in get_args(Mode), "mode", f"must be one of {get_args(Mode)}, got {mode!r}")
    seed = _checked(seed)
    random.seed(seed)
    np.random.seed(_folded(seed))
    torch.manual_seed(_folded(seed))
    deterministic = mode == "deterministic"
    if deterministic:
        os.environ.setdefault(_CUBLAS, ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call takes a second
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic


def seed_worker(worker: int) -> None:
    """Seed Python, NumPy and torch in a worker: the `worker_init_fn` of any DataLoader.

    From the seed that torch gave the worker, which is another in each: so a loader with a seeded
    `generator` has workers that draw the same numbers in every run. Loaders made here need it not.
    """
    seed_here(torch.initial_seed() % (1 << 63))


def seeded_generator(seed: int) -> torch.Generator:
    """Return a generator of torch's, for samplers and loaders that take one.

    >>> torch.rand(1, generator=seeded_generator(3)) == torch.rand(1, generator=seeded_generator(3))
    tensor([True])
    """
    return torch.Generator().manual_seed(_folded(_checked(seed)))


def seed_for(seed: int, *parts: int | str) -> int:
    """Return a seed from 0 to 2**63 - 1 that is a hash of all arguments, so that none are related.

    `seed + epoch` would make epoch 1 of seed 0 equal to epoch 0 of seed 1. Costs a microsecond.

    >>> seed_for(0, "sample", 1) != seed_for(1, "sample", 0)
    True
    """
    text = "\0".join([str(seed), *map(str, parts)]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_here(seed: int) -> None:
    """Seed what draws on the processor: Python, NumPy, torch without its devices; 10 us."""
    random.seed(seed)
    np.random.seed(_folded(seed))
    torch.default_generator.manual_seed(_folded(seed))


@contextmanager
def isolated() -> Iterator[None]:
    """Restore the generators of Python, NumPy and torch (CPU) after the block; 20 us.

    Seed inside whatever is to be drawn there: NumPy's generator is another one.

    >>> seed_all(1)
    >>> with isolated():
    ...     seed_here(2)
    >>> torch.initial_seed()
    1
    """
    python, torch_state = random.getstate(), torch.get_rng_state()
    # Saving NumPy's state and setting it again takes 100 us, another generator in its place none.
    own = _NUMPY.get_bit_generator()
    spare = _SPARE.pop() if _SPARE else np.random.MT19937(0)
    _NUMPY.set_bit_generator(spare)
    try:
        yield
    finally:
        _NUMPY.set_bit_generator(own)
        _SPARE.append(spare)
        random.setstate(python)
        torch.set_rng_state(torch_state)


_NUMPY: Any = np.random  # whose types lack these two functions
_SPARE: list[np.random.MT19937] = []


def _folded(seed: int) -> int:
    """Return a seed of 32 bits, hashed if it is larger: generators ignore or refuse higher bits."""
    if seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest())


def _checked(seed: int) -> int:
    seed = whole_number("seed", seed)
    require(seed < 1 << 63, "seed", f"must be from 0 to 2**63 - 1, got {seed}")
    return seed
