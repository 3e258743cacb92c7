"""The kind `tokens` (builds of texts), and the base class of the kinds `tokens` and `chat`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import DataprepError
from dataprep.formats.files import npy
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.tokens import ChatEntry, Manifest, SplitEntry
from dataprep.formats.read.dataset import Dataset, open_dataset
from dataprep.formats.storage import storage_errors

from ..execute.processes import Processes
from ..kinds import Assembled, Context, PlanRefused, Workplace
from ..options import BuildOptions
from ..plan.splits import split_notes
from ..read.fingerprints import table_fingerprints
from ..tokenize.engines import naming
from ..tokenize.reference import Encoded
from .assemble import TokenAssembler, unknown_notes
from .estimate import ESTIMATE_SAMPLE_BYTES, TokenEstimate, estimate
from .prepare import SAMPLE_BYTES, TokenPrepared, TokenSurvey, prepare, survey
from .reuse import difference
from .task import Encode, EncodedBytes, Load, Ready, Request, TokenResult, TokenTasks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["EarlyTokenizer", "TokenBuild", "TokenKind", "early_tokenizer", "sample_bytes"]

_EXAMPLE_CHARACTERS = 300
_EXAMPLE_TOKENS = 100

_Answer = EncodedBytes | str | None
# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_ANSWER = msgspec.json.Decoder(_Answer)


class EarlyTokenizer:
    """Tokenizer that one worker process loads for all, while the build is still being planned."""

    def __init__(self, workers: Processes, mark: Callable[[str], None] = lambda _: None) -> None:
        self._workers = workers
        self._mark = mark

    def load(self, name: str, engine_json: bytes) -> None:
        """Have the worker load the tokenizer.json `engine_json` into the engine `name`."""
        self._mark("load")
        self._workers.load(_encoded(Load(name, msgspec.Raw(engine_json))))

    def answer(self, texts: Sequence[bytes]) -> Encoded | str | None:
        """Return the ids and offsets of `texts`, as computed by a worker.

        If encoding fails, return the reason as a string. If there is no worker, or the worker has
        failed, return None.
        """
        data = self._workers.ask_loaded(_encoded(Encode([text.decode() for text in texts])))
        found = None if data is None else _ANSWER.decode(data)
        if found is None or isinstance(found, str):
            return found
        self._mark("loaded")
        ids, offsets = found
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.int64)

    def finish(self) -> None:
        """Have the worker load everything else that units need, if several workers will share it.

        A single worker loads it itself, while the coordinator checks the engine.
        """
        if self._workers.count > 1:
            self._workers.load(_encoded(Ready()))


def early_tokenizer(context: Context) -> EarlyTokenizer | None:
    """Return the tokenizer that a worker of `context` loads, or None without workers."""
    return None if context.early is None else EarlyTokenizer(context.early, context.mark)


def _encoded(request: Request) -> bytes:
    return msgspec.json.encode(request)


def sample_bytes(context: Context) -> int:
    """Return the number of bytes of text to sample at each of eight positions of the input.

    An estimate for the user has a larger sample than a build.
    """
    return ESTIMATE_SAMPLE_BYTES if context.estimate else SAMPLE_BYTES


P = TypeVar("P", bound=TokenPrepared)


class TokenBuild(TokenTasks, Generic[P]):
    """Base class of the kinds `tokens` and `chat`."""

    result = TokenResult
    stage = "tokenize"

    def __init__(self) -> None:
        super().__init__()
        self._tokenizer: Tokenizer | None = None

    def load_manifest(self, out: Path) -> Manifest:
        """Return the manifest of the dataset in `out`."""
        return manifests.load(out)

    def check(self, prepared: P) -> None:
        """Compare the engine with tokenizer.json, loaded as users of the dataset will load it.

        The engine is the library that encodes the texts. Raise `PlanRefused` if its ids differ from
        those of the loaded tokenizer.
        """
        if prepared.reference is None:
            return
        with naming(prepared.options.tokenizer):
            self._tokenizer = prepared.reference.tokenizer()
            if prepared.doubt is None:
                return
            problem = prepared.doubt()
        prepared.mark("checked")
        if problem is not None:
            raise PlanRefused(problem)

    def chat_entry(self, prepared: P) -> tuple[ChatEntry, bytes] | None:
        """Return the manifest's entry about conversations, and the chat template.

        All counts in the entry are still 0. Return None for a build of texts.
        """
        return None

    def assemble(self, prepared: P, results: list[TokenResult], workplace: Workplace) -> Assembled:
        """Write shards, indexes and the manifest from the results of all units."""
        plan, options = prepared.plan, prepared.options
        read = plan.payload.read
        chat, template = self.chat_entry(prepared) or (None, b"")
        root, manifest = TokenAssembler(
            plan=plan, staging=workplace.staging, scratch=workplace.scratch,
            tokenizer=prepared.tokenizer, tokenizer_json=prepared.tokenizer_json,
            options=prepared.stored_options, shares=prepared.shares,
            table_fingerprints=table_fingerprints(plan.sources, read.hf_config, read.hf_split),
            threads=workplace.threads, chat=chat, chat_template=template,
        ).assemble(results)  # fmt: skip
        notes = [
            *split_notes(
                {name: split.documents for name, split in manifest.splits.items()},
                prepared.shares, key=options.split_key,
                keys=len({key for unit in results for key in unit.keys}),
                exact=options.split_mode == "count",
            ),
            *unknown_notes(manifest.splits, sum(unit.unknown_tokens for unit in results)),
        ]  # fmt: skip
        return Assembled(root=root, manifest=manifest, notes=tuple(notes))

    def content(self, out: Path, manifest: Manifest) -> dict[str, Any]:
        """Return the fields that describe the dataset in `out` in the output of ``--json``."""
        splits = {
            name: {"documents": split.documents, "tokens": split.tokens}
            for name, split in manifest.splits.items()
        }
        found = {
            "records": msgspec.to_builtins(manifest.records),
            "splits": splits,
            "tokens": msgspec.to_builtins(manifest.tokens),
            "engine": manifest.tokenizer.engine,
            "engine_reason": manifest.tokenizer.engine_reason,
            "example": None,
        }
        with contextlib.suppress(DataprepError):  # another build has taken its place already
            found["example"] = _example(out, self._tokenizer)
        return found


class TokenKind(TokenBuild[TokenPrepared]):
    """The kind `tokens`: builds of texts. See `kinds.Kind`."""

    name = "tokens"

    def survey(self, options: BuildOptions) -> TokenSurvey:
        """Return the inputs, cut into units."""
        return survey(options)

    def prepare(
        self, options: BuildOptions, survey: TokenSurvey, context: Context
    ) -> TokenPrepared:
        """Return the plan of the build, with its inputs, tokenizer and engine."""
        return prepare(
            options, survey, sample_bytes=sample_bytes(context),
            early=early_tokenizer(context),
            engine_problem=context.refused, mark=context.mark,
        )  # fmt: skip

    def difference(self, existing: Manifest, prepared: TokenPrepared) -> str | None:
        """Return how `existing` differs from the dataset to be built, or None if it does not."""
        return difference(existing, prepared)

    def estimate(self, prepared: TokenPrepared, *, details: bool = False) -> TokenEstimate:
        """Return an estimate of the build's size and time."""
        return estimate(prepared)


def _first_ids(dataset: Dataset, split: SplitEntry) -> npt.NDArray[Any]:
    """Return the first ids of the first document of `split`, at most 100.

    The file is read, not memory-mapped. So a bad disk block raises an error, and does not kill the
    process with a signal.
    """
    shard = next(shard for shard in split.shards if shard.documents)
    docs = npy.read_array(dataset.path / shard.docs, "<u8", (shard.documents + 1,))
    dtype = np.dtype(dataset.manifest.tokens.dtype)
    tokens = dataset.path / shard.tokens
    with storage_errors(tokens), tokens.open("rb") as stream:
        data = stream.read(min(int(docs[1]), _EXAMPLE_TOKENS) * dtype.itemsize)
    return np.frombuffer(data, dtype)


def _example(path: Path, tokenizer: Tokenizer | None) -> str | None:
    with open_dataset(path) as dataset:
        for split in dataset.splits.values():
            if split.documents:
                ids = _first_ids(dataset, split.entry)
                return dataset.decode(ids, tokenizer)[:_EXAMPLE_CHARACTERS]
    return None
