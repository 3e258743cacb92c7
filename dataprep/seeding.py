"""Functions that seed the random generators of a run and set the epoch of its loaders."""

from __future__ import annotations

from dataprep.runtime.loader.loader import set_epoch
from dataprep.runtime.seeding import seed_all, seed_worker, seeded_generator

__all__ = ["seed_all", "seed_worker", "seeded_generator", "set_epoch"]
