"""The kind `embeddings`: aligned arrays of vectors, numbers and labels, one row for each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats.manifest import arrays as manifests
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.storage import create_directory

from ..commit.output_dir import same_inputs
from ..encode.probe import OPTION, OTHER_VECTORS
from ..kinds import Assembled, Context, Kind, Workplace
from ..options import different_reject_options
from ..plan.splits import FEW_KEYS, add_keys, split_notes
from .assemble import UnitRows, assemble
from .estimate import EmbeddingEstimate, estimate
from .options import EmbeddingOptions, hashed_options
from .prepare import EmbeddingPrepared, EmbeddingSurvey, prepare, survey
from .task import EmbeddingResult, EmbeddingTasks

__all__ = ["EmbeddingKind"]


class EmbeddingKind(EmbeddingTasks, Kind[EmbeddingOptions, EmbeddingPrepared, ArrayManifest]):
    """The kind of build that makes datasets of embeddings. `kinds.Kind` describes the methods."""

    name = "embeddings"
    result = EmbeddingResult
    stage = "read"

    def load_manifest(self, out: Path) -> ArrayManifest:
        """Return the manifest of the dataset in `out`."""
        return manifests.load(out)

    def survey(self, options: EmbeddingOptions) -> EmbeddingSurvey:
        """Return the inputs, the columns to read, and the units into which the inputs are cut."""
        return survey(options)

    def prepare(
        self, options: EmbeddingOptions, survey: EmbeddingSurvey, context: Context
    ) -> EmbeddingPrepared:
        """Load the encoder, if the build needs it, and return the build with its plan."""
        return prepare(options, survey, context.existing)

    def difference(self, existing: ArrayManifest, prepared: EmbeddingPrepared) -> str | None:
        """Return in words how the dataset `existing` differs from this build.

        Return None if there is no difference.
        """
        if existing.kind != self.name:
            return f"of the kind {existing.kind}"
        plan, asked = prepared.plan, hashed_options(prepared.stored_options)
        different = [name for name in asked if asked[name] != existing.options.get(name)]
        if different == [OPTION]:
            return OTHER_VECTORS
        different += different_reject_options(
            prepared.stored_options, existing.options, existing.records.rejected
        )
        if different:
            return f"different {', '.join(different)}"
        inputs = same_inputs(
            read_inputs(prepared.options.out, existing), plan.sources, plan.payload.hf_config,
            plan.payload.hf_split,
        )  # fmt: skip
        if isinstance(inputs, str):
            return inputs
        same = recipe_id_of(self.name, inputs, asked)
        return None if same == existing.recipe_id else "made by another version"

    def estimate(self, prepared: EmbeddingPrepared, *, details: bool = False) -> EmbeddingEstimate:
        """Return the estimate of the build. The argument `details` is ignored."""
        return estimate(prepared)

    def assemble(
        self, prepared: EmbeddingPrepared, results: list[EmbeddingResult], workplace: Workplace
    ) -> Assembled:
        """Write the arrays, the splits and the manifest of the dataset.

        Return the location of the dataset, its manifest, and notes for the user.
        """
        options = prepared.options
        root = workplace.scratch / "dataset"
        create_directory(root)
        manifest = assemble(
            prepared.plan, workplace.staging, root, results, options=prepared.stored_options,
            shares=prepared.shares,
        )  # fmt: skip
        rows = UnitRows(workplace.staging.units, results)
        keyed = options.split_key is not None and len(prepared.plan.splitting.names) > 1
        notes = split_notes(
            {name: split.rows for name, split in manifest.splits.items()}, prepared.shares,
            key=options.split_key, keys=_distinct_keys(rows) if keyed else 0,
            exact=options.split_mode == "count",
        )  # fmt: skip
        return Assembled(root=root, manifest=manifest, notes=tuple(notes))

    def content(self, out: Path, manifest: ArrayManifest) -> dict[str, Any]:
        """Return the part of the ``--json`` report that describes the dataset in `out`."""
        return {
            "kind": manifest.kind,
            "records": msgspec.to_builtins(manifest.records),
            "rows": manifest.rows,
            "splits": {name: {"rows": split.rows} for name, split in manifest.splits.items()},
            "arrays": _array_summary(manifest),
        }


def _distinct_keys(rows: UnitRows) -> int:
    """Return the number of distinct split keys if it is at most `FEW_KEYS`.

    Otherwise return a number above `FEW_KEYS`, because counting stops there.
    """
    keys: set[int] = set()
    for hashes, _ in rows.hashes():
        add_keys(keys, hashes)
        if len(keys) > FEW_KEYS:
            break
    return len(keys)


def _array_summary(manifest: ArrayManifest) -> dict[str, dict[str, Any]]:
    """Return a description of each array by name.

    A description contains the dtype, the shape of a row, and the numbers of rows, bytes and
    categories.
    """
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    return {
        name: {
            "dtype": entry.dtype,
            "row": list(entry.row),
            "rows": entry.rows,
            "bytes": sum(sizes[shard.file] for shard in entry.shards),
            "categories": None if entry.categories is None else len(entry.categories),
        }
        for name, entry in manifest.arrays.items()
    }
