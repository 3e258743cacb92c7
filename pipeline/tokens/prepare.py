"""Preparation of a build of texts: a plan with its inputs, tokenizer and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

import dataprep
from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.tokens import TokenizerEntry

from ..commit import shards
from ..execute.task import Task
from ..kinds import Prepared, Survey
from ..options import BuildOptions, parse_split, stored_excerpts
from ..plan.named_splits import named_split_notes
from ..plan.plan import Plan, Splitting, make_units, plan_key
from ..plan.sample import Sample, take_sample
from ..plan.splits import ordered_names, thresholds
from ..read.discovery import find_sources, folder_notes
from ..read.reader import ReadOptions
from ..read.sources import Source
from ..tokenize.engines import (
    GIGATOKEN,
    TOKENIZERS,
    Doubt,
    EarlyEngine,
    Encoder,
    PreEncoded,
    choose_engine,
    library_versions,
    make_encoder,
    naming,
)
from ..tokenize.load import TokenizerSource, load_tokenizer, resolve_tokenizer
from ..tokenize.probes import make_probes
from ..tokenize.reference import Reference
from ..tokenize.setup import BuildTokenizer
from ..tokenize.special_tokens import (
    literal_config,
    parse_config,
)
from .plan import TokenPayload
from .task import ENGINE_NAME, TextTask, TokenTasks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "SAMPLE_BYTES",
    "TokenPrepared",
    "TokenSurvey",
    "check_sources",
    "files_of",
    "gate_texts",
    "prepare",
    "ready_encoder",
    "reference_of",
    "splitting_of",
    "survey",
    "synced",
]

SAMPLE_BYTES = 64 << 10
"""Bytes of text that a build reads at each of eight places of the input before it starts."""

_GATE_TEXTS = 200
_GATE_CHARACTERS = 2000

_MAX_SOURCES = 2_000_000  # each takes some 330 bytes of memory in every list of them
_DEFAULTS = {field.name: field.default for field in fields(BuildOptions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSurvey(Survey):
    """The inputs of a build of tokens, with the options for reading them."""

    read: ReadOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrepared(Prepared):
    """A build of tokens that is ready to start."""

    plan: Plan[TokenPayload]
    tokenizer: TokenizerEntry
    tokenizer_json: bytes
    tokenizer_origin: str
    engine_json: bytes
    encoder: Encoder
    doubt: Doubt | None
    reference: Reference | None
    """The user's tokenizer, unless it was loaded and compared during the preparation."""
    mark: Callable[[str], None] = lambda _: None
    """As in `Context`."""
    shares: dict[str, float | int | None]
    sample: Sample


def survey(options: BuildOptions) -> TokenSurvey:
    """Return the inputs, cut into units. Only the footers of Parquet files are read."""
    sources = tuple(find_sources(options))
    _check_fields(options, sources)
    read = ReadOptions(
        field=options.field, document=options.document, split_key=options.split_key,
        hf_config=options.hf_config, hf_split=options.hf_split,
    )  # fmt: skip
    return TokenSurvey(sources=sources, read=read, units=make_units(sources, read))


def prepare(
    options: BuildOptions,
    surveyed: TokenSurvey,
    *,
    sample_bytes: int,
    early: EarlyEngine | None = None,
    engine_problem: str | None = None,
    mark: Callable[[str], None] = lambda _: None,
) -> TokenPrepared:
    """Return the plan of a build, made from its options and a sample of its inputs.

    If `early` is given, worker processes load the tokenizer, and two things are different:

    - The engine (the library that encodes) is not checked yet. The caller must check it, and can do
      so while workers process units: wait for `TokenPrepared.reference`, and call the function
      `TokenPrepared.doubt`, unless `doubt` is None. If the function returns a problem, call
      `prepare` again with the problem as `engine_problem`.
    - The encoder `TokenPrepared.encoder` may know only the ids of the probe texts and of the texts
      in the sample.
    """
    sources, read, units = surveyed.sources, surveyed.read, surveyed.units
    source = resolve_tokenizer(options.tokenizer, load=early is None)
    config = source.config
    literal = options.special_text == "literal"
    with naming(options.tokenizer):
        used_config = literal_config(config) if literal else parse_config(config)
    engine_json = msgspec.json.encode(used_config)
    if early is not None:
        slow = options.engine == TOKENIZERS or engine_problem is not None
        early.load(TOKENIZERS if slow else GIGATOKEN, engine_json)
    libraries = library_versions()  # while a worker loads the engine
    sample = take_sample(sources, units, read, sample_bytes)
    probes = make_probes()
    gate = gate_texts(probes, sample)
    compared = gate if engine_problem is None and options.engine != TOKENIZERS else []
    reference = (
        None
        if early is None
        else reference_of(options.tokenizer, source, compared, literal=literal)
    )
    with naming(options.tokenizer):
        choice = choose_engine(
            engine_json, options.engine, gate,
            others=[text.encode() for text in sample.texts], early=early, reference=reference,
            problem=engine_problem,
        )  # fmt: skip
    if early is not None:
        early.finish()
    tokenizer = BuildTokenizer(
        bos=options.bos, eos=options.eos, special_text=options.special_text, config=config,
        source=source, choice=choice, libraries=libraries,
    )  # fmt: skip
    encoding, entry = tokenizer.encoding(), tokenizer.entry(probes)
    stored = _stored_options(options, source)
    shares = parse_split(options.split, options.split_mode)
    splitting = splitting_of(options, shares)
    what = [dataprep.__version__, sources, units, read, encoding, splitting, options.on_error,
            entry, stored]  # fmt: skip
    plan = Plan(
        key=plan_key(what), kind=TokenTasks.address, sources=sources, units=units,
        splitting=splitting, on_error=options.on_error,
        payload=TokenPayload(
            read=read, encoding=encoding, probes=entry.probes, tokenizer=options.tokenizer
        ),
    )  # fmt: skip
    return TokenPrepared(
        options=options, plan=plan, tokenizer=entry, tokenizer_json=source.json,
        tokenizer_origin=source.origin, engine_json=engine_json, encoder=choice.encoder,
        doubt=choice.doubt, reference=reference, mark=mark, shares=shares, stored_options=stored,
        sample=sample,
        notes=(*folder_notes(options), *named_split_notes(options, sources, shares)),
        files=files_of(source, engine_json), synced=synced(splitting),
        open_here=partial(_open_here, plan, choice.encoder, engine_json),
        all_bad=not sample.documents,
    )  # fmt: skip


def _open_here(
    plan: Plan[TokenPayload], encoder: Encoder, engine_json: bytes, staging: Path
) -> Task:
    return TextTask(plan, ready_encoder(plan, encoder, engine_json))


def ready_encoder(plan: Plan[TokenPayload], encoder: Encoder, engine_json: bytes) -> Encoder:
    """Return an encoder for any text.

    The result is `encoder` itself if it can encode any text. If it only knows ids that workers have
    computed, a new encoder is loaded from `engine_json`.
    """
    if isinstance(encoder, PreEncoded):
        return make_encoder(plan.payload.encoding.engine, engine_json)
    return encoder


def reference_of(
    tokenizer: str | None, source: TokenizerSource, texts: Sequence[bytes], *, literal: bool
) -> Reference:
    """Start loading the user's tokenizer, and encoding `texts` with it.

    If `literal` is True, the tokenizer keeps special tokens spelled in texts as plain text.
    """

    def load() -> Tokenizer:
        loaded = load_tokenizer(source.json, tokenizer)
        loaded.encode_special_tokens = literal
        return loaded

    return Reference(load, texts)


def files_of(source: TokenizerSource, engine_json: bytes) -> dict[str, bytes]:
    """Return the tokenizer files for the staging directory: a dict from file name to content.

    They are the tokenizer.json of the dataset and the one that the engine loads.
    """
    return {"tokenizer.json": source.json, ENGINE_NAME: engine_json}


def synced(splitting: Splitting) -> tuple[str, int] | None:
    """Return which files of a unit are synced early: a glob pattern and a minimum size in bytes.

    These are the files that will probably be hard-linked as shards; see `Prepared.synced`. Return
    None for splits of exact sizes, because all their documents are copied.
    """
    return ("*.tokens", shards.JOIN_BELOW_BYTES) if splitting.ends else None


def gate_texts(probes: Sequence[str], sample: Sample) -> list[bytes]:
    """Return the texts on which engines (libraries that encode) are compared.

    They are `probes` and excerpts of `sample`.
    """
    texts = [*probes, *sample.excerpts(_GATE_TEXTS, _GATE_CHARACTERS)]
    return [text.encode() for text in texts]


def _check_fields(options: BuildOptions, sources: Sequence[Source]) -> None:
    formats = {source.format for source in sources}
    if options.split_key and "text" in formats:
        raise UsageError(
            "plain text has no fields to split by", where="--split-key",
            remedy="Leave it out: the text itself decides.",
        )  # fmt: skip
    for name, used in (
        ("hf_config", "hf" in formats),
        ("hf_split", "hf" in formats),
        ("document", "text" in formats),
        ("field", formats != {"text"}),
    ):
        if not used and getattr(options, name) != _DEFAULTS[name]:
            raise UsageError(
                f"means nothing for {', '.join(sorted(formats))} inputs",
                where=f"--{name.replace('_', '-')}", remedy="Leave it out.",
            )  # fmt: skip
    check_sources(sources, "Concatenate them: JSONL, or text with --document line or block.")


def check_sources(sources: Sequence[Source], remedy: str) -> None:
    """Raise `UsageError` for over two million inputs, whose list would need too much memory.

    The text `remedy` is the advice in the error.
    """
    if len(sources) > _MAX_SOURCES:
        raise UsageError(
            f"{len(sources):,} files are more than the limit of {_MAX_SOURCES:,}", where="--input",
            remedy=remedy,
        )  # fmt: skip


class _SplitOptions(Protocol):
    @property
    def split_mode(self) -> str: ...
    @property
    def seed(self) -> int: ...


def splitting_of(options: _SplitOptions, shares: dict[str, float | int | None]) -> Splitting:
    """Return the rule by which workers assign documents to splits.

    If splits have exact sizes, the field `ends` of the rule is empty, and documents are assigned
    later.
    """
    names = ordered_names(shares)
    if options.split_mode == "count":
        return Splitting(names=tuple(names), ends=(), seed=options.seed)
    ratios = [float(shares[name] or 0.0) for name in names]
    ends = tuple(str(end) for end in thresholds(ratios))
    return Splitting(names=tuple(names), ends=ends, seed=options.seed)


def _stored_options(options: BuildOptions, source: TokenizerSource) -> dict[str, Any]:
    names = (
        "format", "field", "document", "hf_config", "hf_split", "engine", "split", "split_mode",
        "split_key", "bos", "eos", "special_text", "on_error", "seed",
    )  # fmt: skip
    stored = {name: getattr(options, name) for name in names}
    stored |= stored_excerpts(options.excerpts)
    return {"tokenizer": source.origin, **msgspec.to_builtins(stored)}
