"""The rows of all finished units, as if they were one: read in blocks, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.storage import storage_errors
from dataprep.pipeline.embeddings.convert import HASHES
from dataprep.pipeline.embeddings.task import EmbedResult, piece_name
from dataprep.pipeline.splitting import Part
from dataprep.pipeline.task import unit_name

__all__ = ["UnitRows"]

_BLOCK_BYTES = 4 << 20


class UnitRows:
    """`rows` rows of every array, in the directory `units`."""

    def __init__(self, units: Path, results: Sequence[EmbedResult]) -> None:
        self.results = results
        self.rows = sum(result.rows for result in results)
        self._units = units

    def blocks(
        self, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[tuple[EmbedResult, npt.NDArray[Any]]]:
        """The rows of the array `name`, each block with the unit that it is from."""
        kind = np.dtype(dtype)
        count = max(1, _BLOCK_BYTES // max(1, prod(row) * kind.itemsize))
        for result in self.results:
            path = self._units / unit_name(result.number) / piece_name(name)
            with storage_errors(path), path.open("rb", buffering=0) as stream:
                for start in range(0, result.rows, count):
                    block = np.empty((min(count, result.rows - start), *row), kind)
                    left = block.reshape(-1).view(np.uint8).data
                    while left:
                        done = stream.readinto(left)
                        if not done:
                            raise OSError(f"{path.name} has become shorter")
                        left = left[done:]
                    yield result, block

    def hashes(self) -> Iterator[Part]:
        """The hashes of the split keys, and the numbers of their rows."""
        first = 0
        for _, block in self.blocks(HASHES, "<u8", ()):
            yield block, np.arange(first, first + len(block))
            first += len(block)
