"""`PairData`: an open dataset of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.formats.manifest.curriculum import Curriculum
from dataprep.formats.read.arrays import ArrayData, open_arrays
from dataprep.formats.read.open_files import ReadBy

from ..choices import Applied
from ..types import Device

if TYPE_CHECKING:
    from .pairs import PairDataset

__all__ = ["PairData", "open_pairs"]


def open_pairs(
    path: str | Path, *, io: ReadBy | None = None, preload: bool = False, device: Device = None
) -> PairData:
    """Open the dataset of pairs in the directory `path`.

    The argument `io` has the same meaning as in `dataprep.open_dataset`, and the same errors are
    raised. The arguments `preload` and `device` are described at `PairDataset`; they apply to every
    split. Opening takes milliseconds for any number of pairs, unless `preload` reads the tables
    into memory.

        >>> with open_pairs("pairs") as pairs:                               # doctest: +SKIP
        ...     train, val = pairs.split("train"), pairs.split("val")
    """
    data = open_arrays(path, io=io)
    return PairData(data, preload=preload, device=device)


class PairData:
    """An open dataset of pairs.

    Its splits share the memory maps, or with `preload` the arrays in memory.
    """

    def __init__(self, data: ArrayData, *, preload: bool = False, device: Device = None) -> None:
        from .curriculum import stored_curriculum
        from .tables import PairTables, device_of

        self.data = data
        self.curriculum = stored_curriculum(data)
        self.tables = PairTables(data, preload=preload, device=device_of(device))

    @property
    def kind(self) -> str:
        """The kind of the dataset: ``"pairs"``."""
        return self.data.kind

    @property
    def io(self) -> ReadBy:
        """How files are read: ``"mmap"`` or ``"pread"``."""
        return self.data.io

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of all splits, including splits without pairs."""
        return tuple(self.data.splits)

    def split(
        self,
        name: str,
        *,
        seed: int | None = None,
        curriculum: Applied = "train",
        schedule: Curriculum | None = None,
        clusters: Sequence[int] | None = None,
        sample_mask: bool = False,
    ) -> PairDataset:
        """Return the pairs of the split `name`. All other arguments are those of `PairDataset`."""
        from .pairs import PairDataset

        return PairDataset(
            self.data.split(name), seed=seed, curriculum=curriculum, schedule=schedule,
            clusters=clusters, sample_mask=sample_mask, tables=self.tables,
        )  # fmt: skip

    def close(self) -> None:
        """Release maps and tables. The next use of a split opens them again."""
        self.tables.close()
        self.data.close()

    def __enter__(self) -> PairData:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(s):,} pairs" for name, s in self.data.splits.items())
        return f"<dataprep.PairData {self.data.path} ({parts})>"
