"""The kind `pairs`: pairs of a question and a source text, with their vectors and hard negatives.

Unlike other builds, a build of pairs is not divided into units. Its steps run one after the other:
read, embed, cluster, split, negatives, write. Results that take long to compute (encoded vectors,
k-means, negatives) are stored as checkpoints. After an interruption the same command continues from
the checkpoints.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

import dataprep
from dataprep.formats.manifest import arrays as manifests
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import FORMAT_VERSION, InputEntry
from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.storage import create_directory

from ..encode.encoder import TextEncoder, load_encoder
from ..encode.options import Encoder
from ..encode.probe import OPTION, OTHER_VECTORS, PROBE_NAME, Probe, make_probe, unfinished_probes
from ..execute.task import Task, UnitResult
from ..kinds import Assembled, Context, Kind, Prepared, Survey, Workplace
from ..options import different_reject_options
from ..plan.named_splits import named_splits
from ..plan.plan import Plan, Splitting
from ..progress import StageClock
from ..read.process_limits import Watch
from ..staging.checkpoints import Checkpoints
from .assemble import PairContent, write_pairs
from .clusters import cluster, require_clusters, require_kmeans
from .estimate import PairEstimate, estimate
from .negatives import mine_pairs, require_enough
from .options import PairOptions, hashed_options
from .search import choose_search
from .splits import require_splits, splits_of
from .table import PairInputs, PairTable, find_inputs, read_pairs
from .vectors import EmbeddingStep, require_vectors

__all__ = ["PairKind"]

_STEPS = ("read", "embed", "cluster", "split", "negatives", "write")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSurvey(Survey):
    """Input files of a pairs build, with their fingerprints."""

    inputs: PairInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class PairPrepared(Prepared):
    """Pairs build that is ready to run, with its inputs and encoder.

    `table` is None if the tables have not been read, because a finished dataset may be reused.
    """

    options: PairOptions
    inputs: PairInputs
    table: PairTable | None
    encoder: TextEncoder | None
    probe: Probe | None


class PairKind(Kind[PairOptions, PairPrepared, ArrayManifest]):
    """The kind of build that makes datasets of pairs. `kinds.Kind` describes the methods.

    The argument `encoder` is a function from texts to vectors. By default the build uses the model
    that the options name.
    """

    name = "pairs"
    address = "dataprep.pipeline.pairs.kind:PairKind"
    result = UnitResult
    stage = "read"

    def __init__(self, encoder: Encoder | None = None) -> None:
        self._encoder = encoder
        self._clock = StageClock()
        self._steps: dict[str, float] = {}
        self._resumed = 0

    def open_task(self, staging: Path, watch: Watch | None) -> Task:
        """Raise `NotImplementedError`, because builds of pairs have no units."""
        raise NotImplementedError

    def load_manifest(self, out: Path) -> ArrayManifest:
        """Return the manifest of the dataset in `out`."""
        return manifests.load(out)

    def survey(self, options: PairOptions) -> PairSurvey:
        """Return the input files. Each file is read once, for its fingerprint.

        Raise `UsageError` if a library that the options need is not installed.
        """
        choose_search(options.search, 0)
        named = options.encoder is not None and self._encoder is None
        if named and find_spec("sentence_transformers") is None:
            load_encoder(str(options.encoder))  # raises
        if options.clusters == "kmeans" or options.n_clusters is not None:
            require_kmeans()
        inputs = find_inputs(options)
        return PairSurvey(
            sources=(*inputs.tables, *inputs.others.values()), units=(), inputs=inputs
        )

    def prepare(self, options: PairOptions, survey: PairSurvey, context: Context) -> PairPrepared:
        """Return the build, ready to run, with its tables and plan.

        The build has an encoder only if some texts lack vectors. If `out` contains a finished
        dataset and the option `overwrite` is false, the tables are not read and no encoder is
        loaded. In this case, `difference` decides later whether the finished dataset can be reused.
        """
        inputs, existing = survey.inputs, context.existing
        table = encoder = None
        probe = None if existing is None else existing.options.get(OPTION)
        if existing is None or options.overwrite:
            table = self._read(options, inputs, context)
            encoder, probe = self._probed(options, inputs, table, probe)
        plan = Plan[None](
            key=_key(options, inputs, probe), kind=self.address, sources=survey.sources, units=(),
            splitting=Splitting(names=(), ends=(), seed=options.seed), on_error=options.on_error,
            payload=None,
        )  # fmt: skip
        return PairPrepared(
            options=options, plan=plan, stored_options=options.stored(inputs.splits),
            inputs=inputs, table=table, encoder=encoder, probe=probe,
            files={} if probe is None else {PROBE_NAME: msgspec.json.encode(probe)},
        )  # fmt: skip

    def _read(self, options: PairOptions, inputs: PairInputs, context: Context) -> PairTable:
        context.tell("read", 0, 0)
        table = read_pairs(options, inputs)
        require_enough(table.links(0), options.n_neg, table.pairs.questions)
        require_splits(options, table)
        require_clusters(options, inputs, table)
        self._clock.lap("read")
        return table

    def _probed(
        self, options: PairOptions, inputs: PairInputs, table: PairTable, existing: object
    ) -> tuple[TextEncoder | None, Probe | None]:
        """Return the encoder and its probe, or None for both if no text needs the encoder.

        The probe consists of the encoder's vectors for a few fixed texts, and identifies the
        encoder. `existing` is the probe that the finished dataset stores, or None. If the encoder
        still makes the same vectors, `existing` is returned as the probe.
        """
        if not require_vectors(options, inputs, table.pairs):
            return None, None
        encoder = self._loaded(options)
        probe = make_probe(encoder, [existing, *unfinished_probes(options.out)])
        self._clock.lap("embed")
        return encoder, probe

    def _loaded(self, options: PairOptions) -> TextEncoder:
        name = str(options.encoder)
        return load_encoder(name) if self._encoder is None else TextEncoder(name, self._encoder)

    def difference(self, existing: ArrayManifest, prepared: PairPrepared) -> str | None:
        """Return in words how the dataset `existing` differs from this build.

        Return None if there is no difference. The encoder is loaded only if nothing else
        differs.
        """
        if existing.kind != self.name:
            return f"of the kind {existing.kind}"
        options, inputs = prepared.options, prepared.inputs
        search = choose_search(options.search, (existing.pairs or {}).get("sources", 0))
        chosen = prepared.stored_options | {"search": search}
        asked, stored = hashed_options(chosen), hashed_options(existing.options)
        different = [name for name in asked if asked[name] != stored.get(name)]
        different += different_reject_options(chosen, existing.options, existing.records.rejected)
        if different:
            return f"different {', '.join(different)}"
        known = read_inputs(options.out, existing)
        found = inputs.entries([entry.records for entry in known])
        if _contents(found) != _contents(known):
            return "made from other inputs"
        if recipe_id_of(self.name, found, stored) != existing.recipe_id:
            return "made by another version"
        return self._other_encoder(options, stored.get(OPTION))

    def _other_encoder(self, options: PairOptions, probe: Probe | None) -> str | None:
        if probe is None:  # every text has a given vector
            return None
        if options.encoder is None:
            return "different encoder"
        same = make_probe(self._loaded(options), [probe]) == probe
        return None if same else OTHER_VECTORS

    def estimate(self, prepared: PairPrepared, *, details: bool = False) -> PairEstimate:
        """Return the estimate of the build. The tables are read if `prepare` has not read them."""
        table = _table_of(prepared)
        return estimate(prepared.options, prepared.inputs, table, prepared.probe)

    def assemble(
        self, prepared: PairPrepared, results: list[UnitResult], workplace: Workplace
    ) -> Assembled:
        """Make vectors, clusters, splits and negatives, and write the dataset.

        Return the location of the dataset, its manifest, and notes for the user.
        """
        options, inputs, table = prepared.options, prepared.inputs, _table_of(prepared)
        checkpoints = Checkpoints(workplace.staging)
        self._clock.lap("wait")

        def step(name: str) -> Callable[[int, int], None]:
            workplace.tell(name, 0, 0)
            return partial(workplace.tell, name)

        search = choose_search(options.search, len(table.pairs.sources))
        embedding = EmbeddingStep(
            options=options, inputs=inputs, encoder=prepared.encoder, checkpoints=checkpoints,
            progress=step("embed"),
        )  # fmt: skip
        vectors = embedding.vectors_of(table.pairs)
        self._clock.lap("embed")
        step("cluster")
        clustering = cluster(options, inputs, table, vectors, checkpoints)
        self._clock.lap("cluster")
        step("split")
        splits = splits_of(options, table, clustering.of_pair)
        self._clock.lap("split")
        negatives, tiers = mine_pairs(
            options,
            table,
            vectors,
            clustering,
            checkpoints,
            search=search,
            progress=step("negatives"),
        )
        self._clock.lap("negatives")
        content = PairContent(
            inputs=inputs, table=table, vectors=vectors, clustering=clustering, splits=splits,
            negatives=negatives, tiers=tiers, search=search, probe=prepared.probe,
        )  # fmt: skip
        root = workplace.scratch / "dataset"
        create_directory(root)
        manifest = write_pairs(root, options, content, step("write"))
        self._clock.lap("write")
        self._resumed = checkpoints.reused
        seconds = self._clock.take()
        self._steps = {name: seconds[name] for name in _STEPS if name in seconds}
        return Assembled(
            root=root, manifest=manifest, notes=(*content.notes(), *_notes(prepared, table)),
            stages=self._steps,
        )  # fmt: skip

    def content(self, out: Path, manifest: ArrayManifest) -> dict[str, Any]:
        """Return the part of the ``--json`` report that describes the dataset in `out`."""
        if self._steps:
            self._clock.lap("publish")
            self._steps |= self._clock.take()
        pairs = manifest.pairs or {}
        return {
            "kind": manifest.kind,
            "steps": {name: round(seconds, 3) for name, seconds in self._steps.items()},
            "resumed": self._resumed,
            "records": msgspec.to_builtins(manifest.records),
            "splits": {name: split.rows for name, split in manifest.splits.items()},
            "pairs": {name: value for name, value in pairs.items() if name != "curriculum"},
        }


def _contents(inputs: Sequence[InputEntry]) -> list[InputEntry]:
    """Return `inputs` with empty names, because renaming a file does not change the dataset."""
    return [msgspec.structs.replace(entry, name="") for entry in inputs]


def _table_of(prepared: PairPrepared) -> PairTable:
    """Return the pairs of the inputs. They are read here if `prepare` has not read them."""
    return prepared.table or read_pairs(prepared.options, prepared.inputs)


def _notes(prepared: PairPrepared, table: PairTable) -> Iterator[str]:
    """Yield notes for the user if the inputs seem to contain splits that the build ignores."""
    options = prepared.options
    has_column = "split" in table.present
    if options.shares() is not None and has_column:
        yield "the column of splits was not used: --split says ratios"
    found = named_splits(prepared.inputs.tables)
    if found and options.input and (options.shares() is not None or not has_column):
        given = [
            f"--split-input {split}={shlex.quote(source.path)}"
            for split, sources in sorted(found.items()) for source in sources
        ]  # fmt: skip
        yield (
            "inputs look like splits of their own, and questions are divided anew; to keep them "
            f"apart give, in the place of --input: {' '.join(given)}"
        )


def _key(options: PairOptions, inputs: PairInputs, probe: Probe | None) -> str:
    """Return 16 hex digits that identify the build by its inputs, options and encoder."""
    parts = {
        "version": dataprep.__version__,  # another version may draw other negatives
        "format_version": FORMAT_VERSION,
        "kind": PairKind.name,
        "inputs": [msgspec.structs.asdict(entry) for entry in inputs.entries()],
        "options": options.stored(inputs.splits),
        OPTION: probe,
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]
