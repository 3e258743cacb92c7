"""A dataset of pairs as JASPER's directory, which its own loader reads.

Every array becomes a `.pt` file of the same bytes, keyword ids a pickled list of lists, splits
NAME_idx.pt. Where the dataset was made from such a directory, config.json, inspection.json and the
order of splits are what they were; else config.json is made from ours. What the layout has no place
for is told. Memory is a block, and for keyword ids Python's lists: about 40 bytes a keyword.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest.arrays import FOREIGN, ArrayManifest
from dataprep.formats.manifest.common import CONFIG_NAME
from dataprep.formats.manifest.curriculum import Curriculum
from dataprep.formats.storage import sync_directory, sync_file, write_file

from ..tensors import Done, Tensor, read_blocks, tensors_of
from ..torch_pt import write_lists, write_tensor
from .curriculum import to_theirs
from .importing import UNASSIGNED, order_name
from .names import ARRAYS, INSPECTION, KEYWORDS, SPLITS

__all__ = ["export_jasper"]

_OFFSETS = "pair_keyword_offsets"


def export_jasper(
    manifest: ArrayManifest, source: Path, root: Path, *, done: Done | None = None
) -> list[str]:
    """Write the dataset of pairs in `source` into `root`, an empty directory, as JASPER has it.

    Returns notes on what is lost or doubtful. Raises `UsageError` for a dataset of another kind.
    """
    pairs = manifest.pairs
    if pairs is None:
        raise UsageError(
            f"holds {manifest.kind}; JASPER's layout has pairs only", where=str(source),
            code="E_KIND", remedy="Export it as --to safetensors or --to hdf5.",
        )  # fmt: skip
    tensors = tensors_of(manifest)
    missing = [name for name in (*ARRAYS, KEYWORDS, _OFFSETS) if name not in tensors]
    if missing:
        raise IntegrityError(
            f"a dataset of pairs without {missing[0]}", where=CONFIG_NAME, code="E_MANIFEST",
            remedy="Build it again.",
        )  # fmt: skip
    for name in ARRAYS:
        tensor = tensors.pop(name)
        blocks = read_blocks(source, tensor, done)
        write_tensor(root / f"{name}.pt", blocks, tensor.dtype, tensor.shape)
    offsets = _numbers(source, tensors.pop(_OFFSETS))
    ids = _numbers(source, tensors.pop(KEYWORDS))
    write_lists(root / f"{KEYWORDS}.pt", _lists(offsets, ids))
    notes = _write_splits(tensors, source, root)
    config = pairs.get(FOREIGN)
    if config is None:
        config, doubts = _config(manifest, pairs)
        notes += doubts
    write_file(root / CONFIG_NAME, json.dumps(config, indent=2).encode() + b"\n")
    if kept := tensors.pop(f"files/{INSPECTION}", None):
        write_file(root / INSPECTION, b"".join(read_blocks(source, kept)))
    notes += [f"{name}: the layout has no place for it, left out" for name in _lost(tensors, pairs)]
    for path in root.iterdir():
        sync_file(path)
    sync_directory(root)
    return notes


def _lost(tensors: dict[str, Tensor], pairs: dict[str, Any]) -> list[str]:
    """What is in none of the files; crc32.npy is made anew."""
    own = {"files/crc32.npy"} | ({f"splits/{UNASSIGNED}"} if FOREIGN in pairs else set())
    return [name.removeprefix("files/") for name in tensors if name not in own]


def _numbers(source: Path, tensor: Tensor) -> npt.NDArray[Any]:
    data = b"".join(read_blocks(source, tensor))
    return np.frombuffer(data, tensor.dtype).reshape(tensor.shape)


def _lists(offsets: npt.NDArray[Any], ids: npt.NDArray[Any]) -> list[list[int]]:
    ends, numbers = offsets.tolist(), ids.tolist()
    return [numbers[a:b] for a, b in itertools.pairwise(ends)]


def _write_splits(tensors: dict[str, Tensor], source: Path, root: Path) -> list[str]:
    """Write the splits in the order they had; a note on those that their loader does not know."""
    notes = []
    for name in [one.removeprefix("splits/") for one in tensors if one.startswith("splits/")]:
        if name == UNASSIGNED:
            continue
        if name not in SPLITS:
            notes.append(f"their loader knows {', '.join(SPLITS)}, and no split {name!r}")
        split, kept = tensors.pop(f"splits/{name}"), tensors.pop(f"files/{order_name(name)}", None)
        blocks = read_blocks(source, split) if kept is None else [_in_order(source, kept, split)]
        write_tensor(root / f"{name}_idx.pt", blocks, "<i8", split.shape)
    return notes


def _in_order(source: Path, kept: Tensor, split: Tensor) -> bytes:
    """The numbers of a split in the order that it had; they stand behind the header of .npy."""
    return b"".join(read_blocks(source, kept))[-split.bytes :]


def _config(manifest: ArrayManifest, pairs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Their config.json for a dataset that was not theirs, with notes."""
    curriculum = msgspec.convert(pairs.get("curriculum") or {}, Curriculum)
    probabilities, theirs, notes = to_theirs(curriculum)
    seed = manifest.options.get("seed", 0)
    rows = {name: entry.rows for name, entry in manifest.arrays.items()}
    return {
        "embedding_dim": manifest.arrays["question_embs"].row[0],
        "n_neg": manifest.arrays["hard_negatives"].row[0],
        "clustering_source": "",
        "split_ratios": _ratios(manifest),
        "steering_probabilities": probabilities,
        "curriculum": theirs,
        "n_pairs": manifest.rows,
        "n_questions": rows["question_embs"],
        "n_sources": rows["source_embs"],
        "n_keywords": rows["keyword_embs"],
        "n_clusters": rows["centroid_embs"],
        "storage_format": "pt",
        "include_inspection_file": False,
        "random_seed": seed if isinstance(seed, int) else 0,
    }, notes  # fmt: skip


def _ratios(manifest: ArrayManifest) -> list[float]:
    counts = [manifest.splits[name].rows if name in manifest.splits else 0 for name in SPLITS]
    return [count / max(1, sum(counts)) for count in counts]
