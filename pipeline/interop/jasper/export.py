"""Export of a dataset of pairs to a directory that JASPER's loader reads.

Every array becomes a `.pt` file with the same numbers, keyword ids become a pickled list of lists,
and splits become NAME_idx.pt. If the dataset was imported from JASPER, config.json, inspection.json
and the order of the splits are restored; otherwise config.json is derived from the manifest. Files
that have no place in JASPER's layout are left out, and notes name them. Memory is needed for one
block of rows, and about 40 bytes per keyword.
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
from .curriculum import to_jasper
from .importing import UNASSIGNED, order_name
from .names import ARRAYS, INSPECTION, KEYWORDS, SPLITS

__all__ = ["export_jasper"]

_OFFSETS = "pair_keyword_offsets"


def export_jasper(
    manifest: ArrayManifest, source: Path, root: Path, *, done: Done | None = None
) -> list[str]:
    """Write the dataset in `source`, which `manifest` describes, to the empty directory `root`.

    Return notes on lost or doubtful data. Raise `UsageError` if the dataset does not contain pairs,
    and `IntegrityError` if one of its files is missing or was changed.
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
    """Return the names of the arrays and files that are lost in the export.

    `tensors` are the tensors that have not been exported. Tensors that an import would create again
    do not count as lost.
    """
    own = {"files/crc32.npy"} | ({f"splits/{UNASSIGNED}"} if FOREIGN in pairs else set())
    return [name.removeprefix("files/") for name in tensors if name not in own]


def _numbers(source: Path, tensor: Tensor) -> npt.NDArray[Any]:
    data = b"".join(read_blocks(source, tensor))
    return np.frombuffer(data, tensor.dtype).reshape(tensor.shape)


def _lists(offsets: npt.NDArray[Any], ids: npt.NDArray[Any]) -> list[list[int]]:
    ends, numbers = offsets.tolist(), ids.tolist()
    return [numbers[a:b] for a, b in itertools.pairwise(ends)]


def _write_splits(tensors: dict[str, Tensor], source: Path, root: Path) -> list[str]:
    """Write the splits and remove them from `tensors`. Return notes for the user.

    A split keeps its original order if that order is stored. The notes name splits that JASPER's
    loader does not read.
    """
    notes = []
    for name in [one.removeprefix("splits/") for one in tensors if one.startswith("splits/")]:
        if name == UNASSIGNED:
            continue
        if name not in SPLITS:
            notes.append(f"JASPER's loader knows {', '.join(SPLITS)}, and no split {name!r}")
        split, kept = tensors.pop(f"splits/{name}"), tensors.pop(f"files/{order_name(name)}", None)
        blocks = read_blocks(source, split) if kept is None else [_in_order(source, kept, split)]
        write_tensor(root / f"{name}_idx.pt", blocks, "<i8", split.shape)
    return notes


def _in_order(source: Path, kept: Tensor, split: Tensor) -> bytes:
    """Return the pair numbers of `split` in the original order, as bytes of int64.

    `kept` is the .npy file that stores the original order.
    """
    return b"".join(read_blocks(source, kept))[-split.bytes :]


def _config(manifest: ArrayManifest, pairs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a config.json for a dataset that was not imported from JASPER, and notes on it."""
    curriculum = msgspec.convert(pairs.get("curriculum") or {}, Curriculum)
    probabilities, schedule, notes = to_jasper(curriculum)
    seed = manifest.options.get("seed", 0)
    rows = {name: entry.rows for name, entry in manifest.arrays.items()}
    return {
        "embedding_dim": manifest.arrays["question_embs"].row[0],
        "n_neg": manifest.arrays["hard_negatives"].row[0],
        "clustering_source": "",
        "split_ratios": _ratios(manifest),
        "steering_probabilities": probabilities,
        "curriculum": schedule,
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
