"""Everything that is settled before the first unit: inputs, tokenizer, engine, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Union

import msgspec

import dataprep
from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.tokens import TokenizerEntry

from ..options import BuildOptions, parse_split, stored_excerpts
from ..read.discovery import find_sources, folder_notes
from ..read.reader import ReadOptions
from ..read.sources import Source
from ..tokenize.engines import (
    TOKENIZERS,
    Doubt,
    EarlyEngine,
    Encoder,
    choose_engine,
    library_versions,
)
from ..tokenize.load import TokenizerSource, resolve_tokenizer
from ..tokenize.probes import make_probes
from ..tokenize.special_tokens import (
    literal_config,
    parse_config,
)
from .own_splits import own_split_notes
from .plan import Plan, Splitting, Unit, make_units, plan_key
from .sample import Sample, take_sample
from .splits import ordered_names, thresholds
from .tokenizer_setup import DrivenTokenizer, naming

if TYPE_CHECKING:
    from ..chat.options import ChatOptions
    from ..chat.sample import ChatSample

__all__ = [
    "SAMPLE_BYTES",
    "AnyOptions",
    "Prepared",
    "Survey",
    "check_sources",
    "gate_texts",
    "prepare",
    "splitting_of",
    "survey",
]

AnyOptions = Union[BuildOptions, "ChatOptions"]

SAMPLE_BYTES = 64 << 10  # of text, at each of eight places: what a build looks at before its work

_GATE_TEXTS = 200
_GATE_CHARACTERS = 2000

_MAX_SOURCES = 2_000_000  # each takes some 330 bytes of memory in every list of them
_DEFAULTS = {field.name: field.default for field in fields(BuildOptions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A build that could start now."""

    options: AnyOptions
    plan: Plan
    tokenizer: TokenizerEntry
    tokenizer_json: bytes
    tokenizer_origin: str
    engine_json: bytes
    encoder: Encoder
    doubt: Doubt | None
    shares: dict[str, float | int | None]
    stored_options: dict[str, Any]
    sample: Sample
    notes: tuple[str, ...]
    chat: ChatSample | None = None
    """Of conversations: a few of them, rendered."""
    template_origin: str = ""
    apart: bool = False
    """Whether units are done in worker processes only: what they run is not to be trusted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What there is to read, and how it is cut into units."""

    sources: tuple[Source, ...]
    read: ReadOptions
    units: tuple[Unit, ...]
    apart: bool = False
    """Whether what units run is not to be trusted, and so is run in worker processes only."""


def survey(options: BuildOptions) -> Survey:
    """Find the inputs and cut them up; reads no more than footers."""
    sources = tuple(find_sources(options))
    _check_fields(options, sources)
    read = ReadOptions(
        field=options.field, document=options.document, split_key=options.split_key,
        hf_config=options.hf_config, hf_split=options.hf_split,
    )  # fmt: skip
    return Survey(sources=sources, read=read, units=make_units(sources, read))


def prepare(
    options: BuildOptions,
    surveyed: Survey,
    *,
    sample_bytes: int,
    early: EarlyEngine | None = None,
    engine_problem: str | None = None,
) -> Prepared:
    """Settle everything that can be settled without reading the inputs through.

    Whoever gives an `early` engine has no time to lose, and makes the last checks while units are
    done already: that `load_tokenizer` can load the tokenizer, and that `doubt` finds nothing
    wrong with the engine. If it does, that is the `engine_problem` to prepare with again. The
    `encoder` may then know only the probes and the texts of the sample.
    """
    sources, read, units = surveyed.sources, surveyed.read, surveyed.units
    source = resolve_tokenizer(options.tokenizer, load=early is None)
    config = source.config
    literal = options.special_text == "literal"
    with naming(options.tokenizer):
        driven = literal_config(config) if literal else parse_config(config)
    engine_json = msgspec.json.encode(driven)
    if early is not None and options.engine != TOKENIZERS and engine_problem is None:
        early.load(engine_json)
    libraries = library_versions()  # while they load
    sample = take_sample(sources, units, read, sample_bytes)
    probes = make_probes()
    gate = gate_texts(probes, sample)
    with naming(options.tokenizer):
        choice = choose_engine(
            engine_json, options.engine, gate,
            others=[text.encode() for text in sample.texts], early=early,
            problem=engine_problem,
        )  # fmt: skip
    tokenizer = DrivenTokenizer(
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
        key=plan_key(what), sources=sources, units=units, read=read, encoding=encoding,
        splitting=splitting, on_error=options.on_error, probes=entry.probes,
    )  # fmt: skip
    return Prepared(
        options=options, plan=plan, tokenizer=entry, tokenizer_json=source.json,
        tokenizer_origin=source.origin, engine_json=engine_json, encoder=choice.encoder,
        doubt=choice.doubt, shares=shares, stored_options=stored, sample=sample,
        notes=(*folder_notes(options), *own_split_notes(options, sources, shares)),
    )  # fmt: skip


def gate_texts(probes: Sequence[str], sample: Sample) -> list[bytes]:
    """What the engines are compared on."""
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
    """Raise `UsageError` for more inputs than memory is planned for."""
    if len(sources) > _MAX_SOURCES:
        raise UsageError(
            f"{len(sources):,} files are more than the limit of {_MAX_SOURCES:,}", where="--input",
            remedy=remedy,
        )  # fmt: skip


def splitting_of(options: AnyOptions, shares: dict[str, float | int | None]) -> Splitting:
    """Which split a document goes to, as the workers need it."""
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
