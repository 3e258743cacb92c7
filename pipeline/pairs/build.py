"""``dataprep build --kind pairs``: from tables and texts to a published dataset of pairs.

The steps, each timed: read and clean, embed, cluster, split, negatives, write (with steering, and
every check), publish. What takes long (vectors from an encoder, k-means, negatives) is kept until
the dataset is published, so that the same command goes on where it stopped. The result follows
from the inputs, the options, the encoder and the library versions; the number of workers and
interruptions leave no trace in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

import dataprep
from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.common import FORMAT_VERSION, InputEntry
from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import (
    create_directory,
    publish_directory,
    remove_tree,
    replace_directory,
)

from ..commit import output_dir as destination
from ..encode.encoder import TextEncoder, load_encoder
from ..encode.options import Encoder
from ..encode.probe import OPTION, OTHER_VECTORS, PROBE_NAME, Probe, make_probe, unfinished_probes
from ..execute.task import temporary_name
from ..options import quotes_too_much
from ..plan.own_splits import own_splits
from ..read.child_process import reading_apart
from ..staging.checkpoints import Kept
from ..staging.directory import Staging, leftovers
from .assemble import Content, write_pairs
from .clusters import cluster, require_clusters, require_kmeans
from .negatives import mine_pairs, require_enough
from .options import PairOptions, hashed_options
from .output_dir import existing_dataset
from .search import choose_search
from .splits import require_splits, splits_of
from .steps import Steps, StepsCallback
from .table import Inputs, Table, find_inputs, read_pairs
from .vectors import Embedding, require_vectors

__all__ = ["PairReport", "build_pairs"]

_KIND = "pairs"


@dataclass(frozen=True, kw_only=True, slots=True)
class PairReport:
    """What a build of pairs did; `manifest` says what is in the dataset."""

    path: Path
    recipe_id: str
    reused: bool
    """The same build stood there already; nothing was done."""
    manifest: ArrayManifest = field(repr=False)
    seconds: float
    steps: dict[str, float]
    """Seconds of each step, in order."""
    resumed: int
    """Arrays that an earlier run had finished."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        pairs = self.manifest.pairs or {}
        return {
            "path": str(self.path),
            "recipe_id": self.recipe_id,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "steps": {name: round(seconds, 3) for name, seconds in self.steps.items()},
            "resumed": self.resumed,
            "notes": list(self.notes),
            "records": msgspec.to_builtins(self.manifest.records),
            "splits": {name: split.rows for name, split in self.manifest.splits.items()},
            "pairs": {name: value for name, value in pairs.items() if name != "curriculum"},
        }


@reading_apart()
def build_pairs(
    options: PairOptions,
    *,
    encoder: Encoder | None = None,
    progress: StepsCallback | None = None,
) -> PairReport:
    """Build the dataset of pairs that `options` describe.

    `encoder` makes vectors of texts where none are given; ``options.encoder`` is then its name,
    or else that of a sentence-transformers model to load. Raises the errors of
    `dataprep.formats.errors`; after any of them the same call goes on where it stopped.

        >>> options = PairOptions(input="pairs.csv", out="pairs", encoder="all-MiniLM-L6-v2")
        >>> build_pairs(options).manifest.rows                         # doctest: +SKIP
        7473
    """
    steps = Steps(progress)
    options = replace(options, out=destination.resolve(options.out))
    if encoder is not None and options.encoder is None:
        raise UsageError(
            "a callable needs a name, by which its vectors are known again", where="encoder",
            remedy="Give PairOptions(encoder=NAME) too.",
        )  # fmt: skip
    _require_libraries(options, encoder)
    seen = mark_of(options.out)
    existing = existing_dataset(options.out, options.overwrite)
    inputs = find_inputs(options)
    if existing is not None and not options.overwrite:
        return _reuse(options, inputs, encoder, existing, steps)
    prepared = _prepare(options, inputs, encoder, existing, steps)
    return _Build(prepared, steps, seen).run()


def _require_libraries(options: PairOptions, encoder: Encoder | None) -> None:
    """Before any work: what the options need is installed."""
    choose_search(options.search, 0)
    embeds = options.encoder is not None and encoder is None
    if embeds and find_spec("sentence_transformers") is None:
        load_encoder(str(options.encoder))  # raises
    kmeans = options.clusters == "kmeans" or options.n_clusters is not None
    if kmeans:
        require_kmeans()


def _reuse(
    options: PairOptions,
    inputs: Inputs,
    encoder: Encoder | None,
    existing: ArrayManifest,
    steps: Steps,
) -> PairReport:
    """Report `existing`, which must be what would be built."""
    why = _difference(options, inputs, encoder, existing)
    if why:
        raise UsageError(
            f"holds another finished dataset ({why})", where=str(options.out), code="E_EXISTS",
            remedy="Replace it with --overwrite, or choose another --out.",
        )  # fmt: skip
    open_arrays(options.out).close()  # every file is there, in its size
    key = _key(options, inputs, existing.options.get(OPTION))
    Staging(options.out, key).discard_if_idle()  # of one killed at the very end
    return PairReport(
        path=options.out, recipe_id=existing.recipe_id, reused=True, manifest=existing,
        seconds=steps.total(), steps=steps.seconds, resumed=0, notes=(),
    )  # fmt: skip


def _difference(
    options: PairOptions, inputs: Inputs, encoder: Encoder | None, existing: ArrayManifest
) -> str | None:
    """Return how `existing` differs from what would be built; the encoder is asked last."""
    if existing.kind != _KIND:
        return f"of the kind {existing.kind}"
    sources = (existing.pairs or {}).get("sources", 0)
    search = choose_search(options.search, sources)
    chosen = options.stored(inputs.splits) | {"search": search}
    asked = hashed_options(chosen)
    stored = hashed_options(existing.options)
    different = [name for name in asked if asked[name] != stored.get(name)]
    if options.on_error == "error" and existing.records.rejected:
        different.append("on_error")
    if quotes_too_much(chosen, existing.options, existing.records.rejected):
        different.append("excerpts")
    if different:
        return f"different {', '.join(different)}"
    known = read_inputs(options.out, existing)
    found = inputs.entries([entry.records for entry in known])
    if _contents(found) != _contents(known):
        return "made from other inputs"
    if recipe_id_of(_KIND, found, stored) != existing.recipe_id:
        return "made by another version"
    return _other_encoder(options, encoder, stored.get(OPTION))


def _contents(inputs: Sequence[InputEntry]) -> list[InputEntry]:
    """Return `inputs` without their names, which are for people."""
    return [msgspec.structs.replace(entry, name="") for entry in inputs]


def _other_encoder(options: PairOptions, encoder: Encoder | None, stored: Any) -> str | None:
    if stored is None:  # no text was without a vector
        return None
    if options.encoder is None:
        return "different encoder"
    probe = make_probe(_loaded(options, encoder), [stored])
    return None if probe == stored else OTHER_VECTORS


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """What is settled before the first vector is made."""

    options: PairOptions
    inputs: Inputs
    table: Table
    search: str
    encoder: TextEncoder | None
    probe: Probe | None


def _prepare(
    options: PairOptions,
    inputs: Inputs,
    encoder: Encoder | None,
    existing: ArrayManifest | None,
    steps: Steps,
) -> _Prepared:
    """Read the tables, check them, and load the encoder if any text needs it."""
    for other in leftovers(options.out):
        other.refuse_if_held()
    with steps("read"):
        table = read_pairs(options, inputs)
        search = choose_search(options.search, len(table.pairs.sources))
        require_enough(table.links(0), options.n_neg, table.pairs.questions)
        require_splits(options, table)
        require_clusters(options, inputs, table)
    loaded = probe = None
    with steps("embed"):
        if require_vectors(options, inputs, table.pairs):
            loaded = _loaded(options, encoder)
            known = [] if existing is None else [existing.options.get(OPTION)]
            probe = make_probe(loaded, [*known, *unfinished_probes(options.out)])
    return _Prepared(
        options=options, inputs=inputs, table=table, search=search, encoder=loaded, probe=probe
    )


def _loaded(options: PairOptions, encoder: Encoder | None) -> TextEncoder:
    name = str(options.encoder)
    return load_encoder(name) if encoder is None else TextEncoder(name, encoder)


class _Build:
    """One build, from its tables to the rename."""

    def __init__(self, prepared: _Prepared, steps: Steps, seen: Mark) -> None:
        self._prepared = prepared
        self._options = prepared.options
        self._inputs = prepared.inputs
        self._steps = steps
        self._seen = seen
        key = _key(prepared.options, prepared.inputs, prepared.probe)
        self._staging = Staging(prepared.options.out, key)
        self._place: Path | None = None

    def run(self) -> PairReport:
        options = self._options
        self._staging.create()
        with self._staging.locked(), self._cleaned_up():
            self._staging.give_way()
            destination.refuse_newer(options.out, self._seen)
            self._staging.sweep()
            if self._prepared.probe is not None:
                self._staging.put(
                    self._staging.path / PROBE_NAME, msgspec.json.encode(self._prepared.probe)
                )
            kept = Kept(self._staging)
            content = self._content(kept)
            root = self._scratch()
            with self._steps("write"):
                manifest = write_pairs(root, options, content, self._steps.tell)
            with self._steps("publish"):
                self._publish(root)
            self._staging.discard()
        return PairReport(
            path=options.out, recipe_id=manifest.recipe_id, reused=False, manifest=manifest,
            seconds=self._steps.total(), steps=self._steps.seconds, resumed=kept.reused,
            notes=(*content.notes(), *self._notes(content)),
        )  # fmt: skip

    def _notes(self, content: Content) -> Iterator[str]:
        if self._options.shares() is not None and "split" in content.table.present:
            yield "the column of splits was not used: --split says ratios"
        by_column = self._options.shares() is None and "split" in content.table.present
        found = own_splits(self._inputs.tables)
        if found and self._options.input and not by_column:
            given = [
                f"--split-input {split}={shlex.quote(source.path)}"
                for split, sources in sorted(found.items()) for source in sources
            ]  # fmt: skip
            yield (
                "inputs look like splits of their own, and questions are divided anew; to keep "
                f"them apart give, in the place of --input: {' '.join(given)}"
            )
        others = leftovers(self._options.out, self._staging.key)
        if others:
            names = ", ".join(other.path.name for other in others[:3])
            yield (
                f"{len(others)} unfinished with other options or inputs beside it ({names}); "
                "delete what is no longer wanted"
            )

    def _content(self, kept: Kept) -> Content:
        options, inputs, steps = self._options, self._inputs, self._steps
        table, search = self._prepared.table, self._prepared.search
        with steps("embed"):
            embedding = Embedding(
                options=options, inputs=inputs, encoder=self._prepared.encoder, kept=kept,
                tell=steps.tell,
            )  # fmt: skip
            vectors = embedding.of(table.pairs)
        with steps("cluster"):
            clustering = cluster(options, inputs, table, vectors, kept)
        with steps("split"):
            splits = splits_of(options, table, clustering.of_pair)
        with steps("negatives"):
            negatives, tiers = mine_pairs(
                options, table, vectors, clustering, kept, search=search, tell=steps.tell
            )
        return Content(
            inputs=inputs, table=table, vectors=vectors, clustering=clustering, splits=splits,
            negatives=negatives, tiers=tiers, search=search, probe=self._prepared.probe,
        )  # fmt: skip

    def _scratch(self) -> Path:
        self._place = self._staging.path / temporary_name()
        create_directory(self._place)
        root = self._place / "dataset"
        create_directory(root)
        return root

    @contextlib.contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        """After a failure keep what is worth keeping, and nothing else."""
        try:
            yield
        except BaseException as error:
            if self._place is not None:
                remove_tree(self._place)
            self._staging.give_up(error)
            raise

    def _publish(self, root: Path) -> None:
        out = self._options.out
        destination.refuse_newer(out, self._seen)
        if self._options.overwrite and out.is_dir() and any(out.iterdir()):
            replace_directory(root, out)
        else:
            publish_directory(root, out)


def _key(options: PairOptions, inputs: Inputs, probe: Probe | None) -> str:
    """Return what stands for what is built, from what, and by which encoder."""
    parts = {
        "version": dataprep.__version__,  # another one may make other negatives
        "format_version": FORMAT_VERSION,
        "kind": _KIND,
        "inputs": [msgspec.structs.asdict(entry) for entry in inputs.entries()],
        "options": options.stored(inputs.splits),
        OPTION: probe,
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]
