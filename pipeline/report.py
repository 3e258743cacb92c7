"""What a build says when it is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError
from dataprep.formats.files import npy
from dataprep.formats.manifest.tokens import Manifest, SplitEntry
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.formats.storage import storage_errors

from .execute.stages import Profile
from .plan.prepare import Prepared

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["BuildReport", "report_of"]

_EXAMPLE_CHARACTERS = 300
_EXAMPLE_TOKENS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """What a build did; `manifest` says what is in the dataset."""

    path: Path
    recipe_id: str
    reused: bool
    """The same build stood there already; nothing was done."""
    manifest: Manifest = field(repr=False)
    seconds: float
    units: int
    resumed_units: int
    workers: int
    profile: Profile
    """Where the time went."""
    notes: tuple[str, ...]
    example: str | None
    """The beginning of the first document, decoded from its ids."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        splits = {
            name: {"documents": split.documents, "tokens": split.tokens}
            for name, split in self.manifest.splits.items()
        }
        return {
            "path": str(self.path),
            "recipe_id": self.recipe_id,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "units": self.units,
            "resumed_units": self.resumed_units,
            "workers": self.workers,
            "profile": self.profile.as_dict(),
            "notes": list(self.notes),
            "records": msgspec.to_builtins(self.manifest.records),
            "splits": splits,
            "tokens": msgspec.to_builtins(self.manifest.tokens),
            "engine": self.manifest.tokenizer.engine,
            "engine_reason": self.manifest.tokenizer.engine_reason,
            "example": self.example,
        }


def report_of(
    prepared: Prepared,
    result: Manifest,
    started: float,
    *,
    reused: bool = False,
    resumed: int = 0,
    workers: int = 0,
    profile: Profile | None = None,
    notes: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> BuildReport:
    """What there is to say of a build that is over, since `started` on `time.perf_counter`."""
    return BuildReport(
        path=prepared.options.out,
        recipe_id=result.recipe_id,
        reused=reused,
        manifest=result,
        seconds=time.perf_counter() - started,
        units=len(prepared.plan.units),
        resumed_units=resumed,
        workers=workers,
        profile=profile or Profile(prepare=time.perf_counter() - started),
        notes=tuple(notes) or prepared.notes,
        example=_example_of(prepared.options.out, tokenizer),
    )


def _first_ids(dataset: Dataset, split: SplitEntry) -> npt.NDArray[Any]:
    """The first document's; read and not mapped: a bad block is an error then, and no signal."""
    shard = next(shard for shard in split.shards if shard.documents)
    docs = npy.read_array(dataset.path / shard.docs, "<u8", (shard.documents + 1,))
    dtype = np.dtype(dataset.manifest.tokens.dtype)
    tokens = dataset.path / shard.tokens
    with storage_errors(tokens), tokens.open("rb") as stream:
        data = stream.read(min(int(docs[1]), _EXAMPLE_TOKENS) * dtype.itemsize)
    return np.frombuffer(data, dtype)


def _example_of(path: Path, tokenizer: Tokenizer | None) -> str | None:
    with contextlib.suppress(DataprepError):  # another build has taken its place already
        return _example(path, tokenizer)
    return None


def _example(path: Path, tokenizer: Tokenizer | None) -> str | None:
    with open_dataset(path) as dataset:
        for split in dataset.splits.values():
            if split.documents:
                ids = _first_ids(dataset, split.entry)
                return dataset.decode(ids, tokenizer)[:_EXAMPLE_CHARACTERS]
    return None
