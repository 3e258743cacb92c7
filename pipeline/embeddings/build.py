"""`dataprep build --kind embeddings`: plan, do the units, commit.

The same command run again after any interruption finds its finished units, checks their hashes,
and goes on. The result is a function of the inputs, the options and the encoder: the number of
workers, interruptions and the machine leave no trace in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.identity import recipe_id_of
from dataprep.formats.manifest.inputs import read_inputs
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import storage_errors, sync_directory

from ..commit import output_dir as destination
from ..encode.probe import OPTION, OTHER_VECTORS, PROBE_NAME
from ..execute.launch import release
from ..execute.processes import Processes
from ..execute.serial import Serial
from ..execute.task import Done, unit_name
from ..execute.worker import Event
from ..options import quotes_too_much
from ..plan.plan import PLAN_NAME
from ..plan.splits import FEW_KEYS, add_keys, split_notes
from ..progress import Profile, ProgressCallback
from ..read.child_process import reading_apart
from ..read.fingerprints import fingerprint_source
from ..read.process_limits import available_cores
from ..run import Ongoing
from ..staging.directory import Staging, leftovers
from ..staging.resume import finished_units, load_result
from ..staging.writeback import Writeback
from .commit import LINK_BYTES, EmbedCommit
from .estimate import check_embedding_disk
from .options import EmbeddingOptions, hashed_options
from .prepare import EmbedPrepared, prepare_embeddings
from .report import EmbeddingReport
from .task import RESULT, EmbeddingTasks, EmbedResult, EmbedTask
from .unit_rows import UnitRows

__all__ = ["EmbeddingReport", "build_embeddings"]


@reading_apart()
def build_embeddings(
    options: EmbeddingOptions, *, progress: ProgressCallback | None = None
) -> EmbeddingReport:
    """Build the dataset of embeddings that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped. `progress` counts rows as documents.

        >>> options = EmbeddingOptions(input="vectors.npy", out="shards")
        >>> build_embeddings(options).manifest.arrays["embedding"].row      # doctest: +SKIP
        (384,)
    """
    started = time.perf_counter()
    options = replace(options, out=destination.resolve(options.out))
    seen = mark_of(options.out)
    existing = destination.check(options.out, array_manifest.load, overwrite=options.overwrite)
    prepared = prepare_embeddings(options, existing)
    for other in leftovers(options.out, prepared.plan.key):
        other.refuse_if_held()
    if existing is not None and not options.overwrite:
        release()
        return _reuse(prepared, existing, started)
    return _Build(prepared, progress, started, seen).run()


def _reuse(prepared: EmbedPrepared, existing: ArrayManifest, started: float) -> EmbeddingReport:
    """Report `existing`, which must be what would be built."""
    out = prepared.options.out
    destination.refuse_another(out, _difference(existing, prepared))
    destination.require_whole(out)
    sync_directory(out.parent)  # a run killed after its rename has not done it
    Staging(out, prepared.plan.key).discard_if_idle()  # of one killed after it had published
    return EmbeddingReport(
        path=out, recipe_id=existing.recipe_id, reused=True, manifest=existing,
        seconds=time.perf_counter() - started, units=len(prepared.plan.units), resumed_units=0,
        workers=0, profile=Profile(prepare=time.perf_counter() - started), notes=prepared.notes,
    )  # fmt: skip


def _difference(existing: ArrayManifest, prepared: EmbedPrepared) -> str | None:
    if existing.kind != "embeddings":
        return f"of the kind {existing.kind}"
    plan, asked = prepared.plan, hashed_options(prepared.stored_options)
    different = [name for name in asked if asked[name] != existing.options.get(name)]
    if different == [OPTION]:
        return OTHER_VECTORS
    if plan.on_error == "error" and existing.records.rejected:
        different.append("on_error")
    if quotes_too_much(prepared.stored_options, existing.options, existing.records.rejected):
        different.append("excerpts")
    if different:
        return f"different {', '.join(different)}"
    inputs = destination.same_inputs(
        read_inputs(prepared.options.out, existing), plan.sources, plan.hf_config, plan.hf_split
    )
    if isinstance(inputs, str):
        return inputs
    same = recipe_id_of("embeddings", inputs, asked)
    return None if same == existing.recipe_id else "made by another version"


class _Build:
    def __init__(
        self,
        prepared: EmbedPrepared,
        progress: ProgressCallback | None,
        started: float,
        seen: Mark,
    ) -> None:
        self._prepared = prepared
        self._plan = prepared.plan
        options = prepared.options
        self._ongoing = Ongoing(
            out=options.out, key=self._plan.key, units=self._plan.units,
            sources=self._plan.sources, overwrite=options.overwrite,
            max_rejects=options.max_rejects, stage="read", progress=progress, started=started,
            seen=seen, writeback=Writeback(("*.npy", LINK_BYTES)),
        )  # fmt: skip
        self._staging = self._ongoing.staging
        self._started = started
        self._keys: set[int] = set()

    def run(self) -> EmbeddingReport:
        """Do what is left, and publish."""
        ongoing, profile = self._ongoing, self._ongoing.profile
        workers = Processes(0, EmbeddingTasks.address)
        with ongoing.begun(workers.stop):
            resumed = self._resume()
            check_embedding_disk(self._prepared, already=self._staging.size())
            self._staging.put(self._staging.path / PLAN_NAME, msgspec.json.encode(self._plan))
            if self._prepared.probe is not None:
                self._staging.put(
                    self._staging.path / PROBE_NAME, msgspec.json.encode(self._prepared.probe)
                )
            begun = time.perf_counter()
            left = ongoing.left()
            workers = Processes(self._workers_for(len(left)), EmbeddingTasks.address)
            self._run_units(workers, left)
            done = time.perf_counter()
            ongoing.tell("commit")
            ongoing.writeback.finish()
            try:
                result = self._commit()
            except (InputError, UsageError):  # nothing is in the units, or they never fit
                ongoing.worthless = True
                raise
            self._staging.discard()
            profile.prepare = begun - self._started
            profile.units = done - begun
            profile.commit = time.perf_counter() - done
        return EmbeddingReport(
            path=self._prepared.options.out, recipe_id=result.recipe_id, reused=False,
            manifest=result, seconds=time.perf_counter() - self._started,
            units=len(self._plan.units), resumed_units=resumed,
            workers=max(workers.count, min(1, len(left))), profile=profile,
            notes=(
                *self._prepared.notes, *self._split_notes(result), *workers.notes,
                *ongoing.others(),
            ),
        )  # fmt: skip

    def _resume(self) -> int:
        """Take over the units that an earlier run finished; returns how many."""
        results = finished_units(self._staging, len(self._plan.units), available_cores(), RESULT)
        for result in results:
            size = self._plan.units[result.number].size
            rejects = sum(result.rejected.values())
            self._ongoing.resumed(result.number, Done(size, result.rows, 0, rejects))
        return len(results)

    def _workers_for(self, units: int) -> int:
        """Worker processes for so many units; none for one, or where an encoder is at work."""
        if units < 2 or self._prepared.encoder is not None:
            return 0
        return min(self._prepared.options.workers or available_cores(), units)

    def _run_units(self, workers: Processes, left: list[int]) -> None:
        if workers.count:
            with workers:
                workers.run(
                    self._staging.path, left, self._on_event, begun=lambda: None,
                    inputs=self._ongoing.inputs_of,
                )  # fmt: skip
            return
        release()
        Serial(lambda _: EmbedTask(self._plan, self._prepared.encoder)).run(
            self._staging.path, left, self._on_event, begun=lambda: None,
            inputs=self._ongoing.inputs_of,
        )  # fmt: skip

    def _on_event(self, event: Event) -> None:
        if event.finished:
            self._ongoing.writeback.add(self._staging.units / unit_name(event.unit))
        self._ongoing.note(event)

    def _commit(self) -> ArrayManifest:
        plan = self._plan
        numbers = range(len(plan.units))
        with storage_errors(self._staging.units):
            results = [load_result(self._staging.units, number, RESULT) for number in numbers]
        commit = EmbedCommit(
            plan=plan, staging=self._staging, options=self._prepared.stored_options,
            shares=self._prepared.shares,
            fingerprints={  # all others were taken while they were read
                number: fingerprint_source(source, plan.hf_config, plan.hf_split)
                for number, source in enumerate(plan.sources) if source.format == "hf"
            },
        )  # fmt: skip
        root, result = commit.assemble(results)
        self._count_keys(results)
        self._ongoing.publish(root, result.recipe_id)
        return result

    def _count_keys(self, results: Sequence[EmbedResult]) -> None:
        """Look at the values of the field that decides the split, until there are many."""
        if self._prepared.options.split_key is not None and len(self._plan.splitting.names) > 1:
            for hashes, _ in UnitRows(self._staging.units, results).hashes():
                add_keys(self._keys, hashes)
                if len(self._keys) > FEW_KEYS:
                    return

    def _split_notes(self, result: ArrayManifest) -> Iterator[str]:
        options = self._prepared.options
        return split_notes(
            {name: split.rows for name, split in result.splits.items()}, self._prepared.shares,
            key=options.split_key, keys=len(self._keys), exact=options.split_mode == "count",
        )  # fmt: skip
