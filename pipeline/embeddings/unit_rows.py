"""The rows of all finished units, as if they were one: read in blocks, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.checksums import FileHash
from dataprep.formats.files import npy
from dataprep.formats.storage import storage_errors
from dataprep.formats.write.dataset_writer import HashedFile

from ..execute.task import unit_name
from ..plan.splits import Part
from ..staging.writeback import sync_or_remove
from .convert import HASHES
from .task import EmbedResult, piece_name

__all__ = ["LINK_BYTES", "UnitRows"]

LINK_BYTES = 16 << 20
"""A file of a unit as large as this becomes a shard as it is; smaller ones are joined."""
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
        for result in self.results:
            yield from ((result, block) for block in self._unit(result, name, dtype, row))

    def parts(
        self, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[HashedFile | tuple[int, Iterator[npt.NDArray[Any]]]]:
        """The rows of the array `name`: large files as they are, and small ones joined.

        What is linked is on stable storage first: who lost some of it does the unit again.
        """
        small: list[EmbedResult] = []
        for result in self.results:
            file = result.files[piece_name(name)]
            if file.bytes < LINK_BYTES or result.rows != result.planned:
                small.append(result)
                continue
            if small:
                yield self._joined(small, name, dtype, row)
                small = []
            unit = self._units / unit_name(result.number)
            hashed = FileHash(
                size=file.bytes, sha256=file.sha256, crc32=np.array(file.crc32, np.uint32)
            )
            sync = partial(sync_or_remove, unit=unit)
            yield HashedFile(unit / piece_name(name), result.rows, hashed, sync)
        if small:
            yield self._joined(small, name, dtype, row)

    def _joined(
        self, results: Sequence[EmbedResult], name: str, dtype: str, row: tuple[int, ...]
    ) -> tuple[int, Iterator[npt.NDArray[Any]]]:
        blocks = (block for result in results for block in self._unit(result, name, dtype, row))
        return sum(result.rows for result in results), blocks

    def _unit(
        self, result: EmbedResult, name: str, dtype: str, row: tuple[int, ...]
    ) -> Iterator[npt.NDArray[Any]]:
        """The rows of an array in one unit."""
        kind = np.dtype(dtype)
        count = max(1, _BLOCK_BYTES // max(1, prod(row) * kind.itemsize))
        path = self._units / unit_name(result.number) / piece_name(name)
        with storage_errors(path), path.open("rb", buffering=0) as stream:
            stream.seek(len(npy.header(dtype, (result.planned, *row), npy.PAGE)))
            for start in range(0, result.rows, count):
                block = np.empty((min(count, result.rows - start), *row), kind)
                left = block.reshape(-1).view(np.uint8).data
                while left:
                    done = stream.readinto(left)
                    if not done:
                        raise OSError(f"{path.name} has become shorter")
                    left = left[done:]
                yield block

    def hashes(self) -> Iterator[Part]:
        """The hashes of the split keys, and the numbers of their rows."""
        first = 0
        for _, block in self.blocks(HASHES, "<u8", ()):
            yield block, np.arange(first, first + len(block))
            first += len(block)
