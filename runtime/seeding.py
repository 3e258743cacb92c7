"""Seeding of the global random generators of Python, NumPy and torch.

Loaders of dataprep's datasets do not use these generators: their batches are computed from (seed,
epoch, position). Models use the generators, and so do users' own datasets and transforms.
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

from .checks import whole_number

__all__ = ["Mode", "isolated", "seed_all", "seed_for", "seed_here", "seed_worker",
           "seeded_generator"]  # fmt: skip

Mode = Literal["fast", "deterministic"]
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_all(seed: int, mode: Mode = "fast") -> None:
    """Seed the generators of Python, NumPy and torch, and choose the kernels that torch uses.

    With ``"fast"``, torch may choose the fastest kernels. With ``"deterministic"``, torch uses only
    kernels that give the same bits each time. An operation without such a kernel then raises an
    error, as https://docs.pytorch.org/docs/stable/notes/randomness.html describes. Each mode undoes
    the torch settings of the other. ``"deterministic"`` also sets the environment variable
    CUBLAS_WORKSPACE_CONFIG, unless it is set. cuBLAS reads this variable when it is first used, so
    call `seed_all` at the start of a program.

    Raise `UsageError` unless `seed` is from 0 to 2**63 - 1. The call takes 0.1 milliseconds.

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
    """Seed Python, NumPy and torch in a worker process: a `worker_init_fn` for any DataLoader.

    The seed is the one that torch gave to this worker; every worker has a different seed. If the
    DataLoader has a seeded `generator`, a worker gets the same random numbers in every run.
    dataprep's own loaders do not need this function.
    """
    seed_here(torch.initial_seed() % (1 << 63))


def seeded_generator(seed: int) -> torch.Generator:
    """Return a seeded `torch.Generator`, for samplers and loaders with a `generator` argument.

    >>> torch.rand(1, generator=seeded_generator(3)) == torch.rand(1, generator=seeded_generator(3))
    tensor([True])
    """
    return torch.Generator().manual_seed(_folded(_checked(seed)))


def seed_for(seed: int, *parts: int | str) -> int:
    """Return a seed from 0 to 2**63 - 1 that is a hash of all arguments.

    Seeds of different arguments are unrelated. (With ``seed + epoch``, epoch 1 of seed 0 would get
    the same seed as epoch 0 of seed 1.) The call takes a microsecond.

    >>> seed_for(0, "sample", 1) != seed_for(1, "sample", 0)
    True
    """
    text = "\0".join([str(seed), *map(str, parts)]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_here(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch on the CPU. The call takes 10 us."""
    random.seed(seed)
    np.random.seed(_folded(seed))
    torch.default_generator.manual_seed(_folded(seed))


@contextmanager
def isolated() -> Iterator[None]:
    """Restore the states of the generators of Python, NumPy and torch (CPU) after the block.

    Inside the block, NumPy uses a spare generator in an unknown state. So seed the generators
    before you use them in the block. The block costs 20 us.

    >>> seed_all(1)
    >>> with isolated():
    ...     seed_here(2)
    >>> torch.initial_seed()
    1
    """
    python, torch_state = random.getstate(), torch.get_rng_state()
    # Saving and restoring NumPy's state takes 100 us, exchanging its generator no time.
    generators: Any = np.random  # whose types lack these two functions
    own = generators.get_bit_generator()
    spare = _SPARE.pop() if _SPARE else np.random.MT19937(0)
    generators.set_bit_generator(spare)
    try:
        yield
    finally:
        generators.set_bit_generator(own)
        _SPARE.append(spare)
        random.setstate(python)
        torch.set_rng_state(torch_state)


_SPARE: list[np.random.MT19937] = []


def _folded(seed: int) -> int:
    """Return `seed` if it has at most 32 bits, else a 32-bit hash of `seed`.

    The generators of NumPy and torch use no more than 32 bits.
    """
    if seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest())


def _checked(seed: int) -> int:
    seed = whole_number("seed", seed)
    require(seed < 1 << 63, "seed", f"must be from 0 to 2**63 - 1, got {seed}")
    return seed
