"""`dataprep build`: plan, do the units, commit.

The same command run again after any interruption finds its finished units, checks their hashes,
and goes on. The result is a function of the inputs, the options and the library versions: the
number of workers, interruptions and the machine leave no trace in it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dataprep.formats.errors import DataprepError, InputError
from dataprep.formats.manifest import tokens as manifest
from dataprep.formats.manifest.tokens import ChatEntry, Manifest
from dataprep.formats.read.staleness import Mark, mark_of
from dataprep.formats.storage import storage_errors, sync_directory

from .commit import output_dir as destination
from .commit.dataset import Commit
from .commit.full_disk import need_named
from .execute.executor import Workers, run_here
from .execute.launch import release
from .execute.progress import ProgressCallback
from .execute.task import Done, UnitResult, unit_name
from .execute.worker import Event, job_of
from .options import BuildOptions
from .plan.estimate import check_disk
from .plan.notes import split_notes, unknown_notes
from .plan.prepare import SAMPLE_BYTES, Prepared, Survey, prepare, survey
from .plan.tokenizer_setup import naming
from .read import fingerprints
from .read.child_process import reading_apart
from .read.process_limits import available_cores
from .report import BuildReport, report_of
from .run import Ongoing
from .staging.directory import Staging, leftovers
from .staging.resume import finished_units, load_result
from .staging.writeback import Writeback
from .tokenize.engines import Answered, make_encoder
from .tokenize.load import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .chat.options import ChatOptions

__all__ = ["BuildReport", "build", "build_prepared"]


def build(options: BuildOptions, *, progress: ProgressCallback | None = None) -> BuildReport:
    """Build the dataset that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped.

        >>> from pathlib import Path
        >>> options = BuildOptions(input=("data.jsonl",), out=Path("shards"))
        >>> build(options).manifest.records.written         # doctest: +SKIP
        7437
    """
    return build_prepared(options, survey, prepare, progress=progress)


Options = TypeVar("Options", "BuildOptions", "ChatOptions")
Surveyed = TypeVar("Surveyed", bound=Survey)


@reading_apart()
def build_prepared(
    options: Options, survey: Callable[[Options], Surveyed], prepare: Callable[..., Prepared], *,
    progress: ProgressCallback | None,
) -> BuildReport:  # fmt: skip
    """Build what `options` describe, surveyed and prepared by these functions."""
    started = time.perf_counter()
    options = replace(options, out=destination.resolve(options.out))
    seen = mark_of(options.out)
    existing = destination.check(options.out, manifest.load, overwrite=options.overwrite)
    surveyed = survey(options)
    count = min(options.workers or available_cores(), len(surveyed.units))
    if existing is not None and not options.overwrite:
        release()
        return _reuse(prepare(options, surveyed, sample_bytes=SAMPLE_BYTES), existing, started)
    idle = len(surveyed.units) < 2 and not surveyed.apart
    problem = None
    while True:
        try:
            with Workers(0 if idle else count) as workers:  # they start while we go on planning
                prepared = prepare(
                    options, surveyed, sample_bytes=SAMPLE_BYTES, early=workers,
                    engine_problem=problem,
                )  # fmt: skip
                with naming(options.tokenizer):
                    return _build(prepared, workers, progress, started=started, seen=seen)
        except _EngineError as error:
            problem = error.problem


class _EngineError(Exception):
    """The engine that units were begun with cannot be used: they are gone, it is said why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def _reuse(prepared: Prepared, existing: Manifest, started: float) -> BuildReport:
    """Report `existing`, which must be what would be built."""
    staging = Staging(prepared.options.out, prepared.plan.key)
    for other in leftovers(prepared.options.out, prepared.plan.key):
        other.refuse_if_held()
    destination.require_same(existing, prepared)
    destination.require_whole(prepared.options.out)
    sync_directory(prepared.options.out.parent)  # a run killed after its rename has not done it
    staging.discard_if_idle()  # of a run that was killed after it had published
    return report_of(prepared, existing, started, reused=True)


def _build(
    prepared: Prepared,
    workers: Workers,
    progress: ProgressCallback | None,
    *,
    started: float,
    seen: Mark,
) -> BuildReport:
    options = prepared.options
    staging = Staging(options.out, prepared.plan.key)
    for other in leftovers(options.out, prepared.plan.key):
        other.refuse_if_held()
    with need_named(prepared, staging.path):
        return _Build(prepared, workers, progress, started, seen).run()


class _Build:
    def __init__(
        self,
        prepared: Prepared,
        workers: Workers,
        progress: ProgressCallback | None,
        started: float,
        seen: Mark | None = None,
    ) -> None:
        self._prepared = prepared
        self._workers = workers
        self._plan = prepared.plan
        self._options = options = prepared.options
        self._ongoing = Ongoing(
            out=options.out, key=prepared.plan.key, units=prepared.plan.units,
            sources=prepared.plan.sources, overwrite=options.overwrite,
            max_rejects=options.max_rejects, stage="tokenize",
            writeback=Writeback(), progress=progress, started=started,
            seen=mark_of(options.out) if seen is None else seen,
            all_bad=not prepared.sample.documents,
        )  # fmt: skip
        self._staging = self._ongoing.staging
        self._started = started
        self._unknown_tokens = self._distinct_keys = 0
        self._tokenizer: Tokenizer | None = None

    def run(self) -> BuildReport:
        """Do what is left, and publish."""
        ongoing, profile = self._ongoing, self._ongoing.profile
        with ongoing.begun(self._workers.stop):
            resumed = self._resume()
            check_disk(self._prepared, already=self._staging.size())
            self._staging.put(self._staging.tokenizer, self._prepared.tokenizer_json)
            self._staging.put(self._staging.engine, self._prepared.engine_json)
            self._staging.put(self._staging.plan, msgspec.json.encode(self._plan))
            begun = time.perf_counter()
            workers = self._run_units()
            done = time.perf_counter()
            ongoing.tell("commit")
            ongoing.writeback.finish()
            try:
                result = self._commit(workers)
            except InputError:  # there is nothing in the units, or nothing that still holds
                ongoing.worthless = True
                raise
            self._staging.discard()
            profile.prepare = begun - self._started
            profile.units = done - begun
            profile.commit = time.perf_counter() - done
        return report_of(
            self._prepared, result, self._started, resumed=resumed, workers=workers,
            profile=profile, notes=self._notes(result), tokenizer=self._tokenizer,
        )  # fmt: skip

    def _resume(self) -> int:
        """Take over the units that an earlier run finished; returns how many."""
        results = finished_units(
            self._staging, len(self._plan.units), available_cores(), load_result
        )
        for result in results:
            self._ongoing.resumed(
                result.number,
                Done(
                    self._plan.units[result.number].size,
                    sum(piece.documents for piece in result.pieces),
                    sum(piece.length for piece in result.pieces),
                    sum(result.rejected.values()),
                ),
            )
        return len(results)

    def _run_units(self) -> int:
        left = self._ongoing.left()
        if self._workers.count and (len(left) > 1 or (left and self._prepared.apart)):
            self._workers.run(
                self._staging, left, self._on_event, self._check_tokenizer,
                self._ongoing.inputs_of,
            )  # fmt: skip
            return min(self._workers.count, len(left))
        self._check_tokenizer()
        encoder = self._prepared.encoder
        if left and isinstance(encoder, Answered):  # the workers have it, and we have not
            encoder = make_encoder(self._plan.encoding.engine, self._prepared.engine_json)
        run_here(job_of(self._plan, encoder, self._staging.units), left, self._on_event)
        return min(1, len(left))

    def _check_tokenizer(self) -> None:
        """Make the checks that `prepare` left; if one fails, no unit is worth keeping."""
        prepared = self._prepared
        try:
            loaded = load_tokenizer(prepared.tokenizer_json, prepared.options.tokenizer)
            literal = prepared.options.special_text == "literal" and prepared.plan.chat is None
            loaded.encode_special_tokens = literal
            problem = prepared.doubt(loaded) if prepared.doubt else None
            self._tokenizer = loaded
        except DataprepError:
            self._ongoing.worthless = True
            raise
        if problem is not None:
            self._ongoing.worthless = True
            raise _EngineError(problem)

    def _on_event(self, event: Event) -> None:
        if event.finished and self._plan.splitting.ends:  # otherwise the commit deals them out anew
            self._ongoing.writeback.add(self._staging.units / unit_name(event.unit))
        self._ongoing.note(event)

    def _commit(self, workers: int) -> Manifest:
        commit = Commit(
            plan=self._plan,
            staging=self._staging,
            tokenizer=self._prepared.tokenizer,
            tokenizer_json=self._prepared.tokenizer_json,
            options=self._prepared.stored_options,
            shares=self._prepared.shares,
            table_fingerprints=fingerprints.table_fingerprints(
                self._plan.sources, self._plan.read.hf_config, self._plan.read.hf_split
            ),
            threads=max(1, workers),
            chat=_chat_entry(self._prepared),
            chat_template=self._plan.chat.template.encode() if self._plan.chat else b"",
        )
        results = self._results()
        self._unknown_tokens = sum(unit.unknown_tokens for unit in results)
        self._distinct_keys = len({key for unit in results for key in unit.keys})
        root, result = commit.assemble(results)
        self._ongoing.publish(root, result.recipe_id)
        return result

    def _results(self) -> list[UnitResult]:
        numbers = range(len(self._plan.units))
        with storage_errors(self._staging.units):
            return [load_result(self._staging.units, number) for number in numbers]

    def _notes(self, result: Manifest) -> tuple[str, ...]:
        found = [
            *split_notes(
                {name: split.documents for name, split in result.splits.items()},
                self._prepared.shares, key=self._options.split_key, keys=self._distinct_keys,
                exact=self._options.split_mode == "count",
            ),
            *unknown_notes(result.splits, self._unknown_tokens),
        ]  # fmt: skip
        return (*self._prepared.notes, *found, *self._workers.deaths, *self._ongoing.others())


def _chat_entry(prepared: Prepared) -> ChatEntry | None:
    """What is told of conversations, but for what the units find."""
    chat, sample = prepared.plan.chat, prepared.chat
    if chat is None or sample is None:
        return None
    return ChatEntry(
        template="chat_template.jinja", template_origin=prepared.template_origin,
        template_sha256=hashlib.sha256(chat.template.encode()).hexdigest(),
        masked_by=sample.masked_by, train_on=chat.train_on, form=chat.form,
        max_tokens=chat.max_tokens, overlong=chat.overlong, overlong_found={}, trained_tokens=0,
    )  # fmt: skip
