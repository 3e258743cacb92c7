"""Everything that is settled before the first unit: inputs, tokenizer, engine, plan."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

import dataprep
from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest import Probe, SpecialToken, TokenizerEntry
from dataprep.pipeline.engine import (
    TOKENIZERS,
    Doubt,
    EarlyEngine,
    Encoder,
    EngineChoice,
    choose_engine,
    library_versions,
)
from dataprep.pipeline.inputs import Source, find_sources, folder_notes
from dataprep.pipeline.options import AUTO, NONE, BuildOptions, parse_split
from dataprep.pipeline.plan import Encoding, Plan, Splitting, Unit, make_units, plan_key
from dataprep.pipeline.probes import make_probes
from dataprep.pipeline.readers import ReadOptions
from dataprep.pipeline.sample import Sample, take_sample
from dataprep.pipeline.special_tokens import (
    find_role,
    literal_config,
    parse_config,
    special_tokens,
    template_bos,
    vocab_size,
)
from dataprep.pipeline.splitting import ordered_names, thresholds
from dataprep.pipeline.tokenizer_sources import BUILT_IN, TokenizerSource, resolve_tokenizer

__all__ = ["SAMPLE_BYTES", "Prepared", "Survey", "prepare", "survey"]

SAMPLE_BYTES = 64 << 10  # of text, at each of eight places: what a build looks at before its work

_GATE_TEXTS = 200
_GATE_CHARACTERS = 2000
_NARROW = 1 << 16
_MAX_SOURCES = 1_000_000  # each is some 200 bytes of config.json, which has a limit
_DEFAULTS = {field.name: field.default for field in fields(BuildOptions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A build that could start now."""

    options: BuildOptions
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What there is to read, and how it is cut into units."""

    sources: tuple[Source, ...]
    read: ReadOptions
    units: tuple[Unit, ...]


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
    with _naming(options.tokenizer):
        driven = literal_config(config) if literal else parse_config(config)
    engine_json = msgspec.json.encode(driven)
    if early is not None and options.engine != TOKENIZERS and engine_problem is None:
        early.load(engine_json)
    libraries = library_versions()  # while they load
    sample = take_sample(sources, units, read, sample_bytes)
    probes = make_probes()
    gate = [*probes, *sample.excerpts(_GATE_TEXTS, _GATE_CHARACTERS)]
    with _naming(options.tokenizer):
        choice = choose_engine(
            engine_json, options.engine, [text.encode() for text in gate],
            others=[text.encode() for text in sample.texts], early=early,
            problem=engine_problem,
        )  # fmt: skip
    tokenizer = _Tokenizer(
        options=options, config=config, source=source, choice=choice, libraries=libraries
    )
    encoding, entry = tokenizer.encoding(), tokenizer.entry(probes)
    stored = _stored_options(options, source)
    shares = parse_split(options.split, options.split_mode)
    splitting = _splitting(options, shares)
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
        notes=folder_notes(options),
    )  # fmt: skip


@contextlib.contextmanager
def _naming(tokenizer: str | None) -> Iterator[None]:
    """Complaints about the `tokenizer` name it, in place of the option it was given with."""
    try:
        yield
    except InputError as error:
        if error.where == "--tokenizer":
            error.where = tokenizer or BUILT_IN
        raise


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
    if len(sources) > _MAX_SOURCES:
        raise UsageError(
            f"{len(sources):,} files are more than the limit of {_MAX_SOURCES:,}", where="--input",
            remedy="Concatenate them: JSONL, or text with --document line or block.",
        )  # fmt: skip


def _splitting(options: BuildOptions, shares: dict[str, float | int | None]) -> Splitting:
    names = ordered_names(shares)
    if options.split_mode == "count":
        return Splitting(names=tuple(names), ends=(), seed=options.seed)
    ratios = [float(shares[name] or 0.0) for name in names]
    ends = tuple(str(end) for end in thresholds(ratios))
    return Splitting(names=tuple(names), ends=ends, seed=options.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tokenizer:
    """A tokenizer as this build drives it."""

    options: BuildOptions
    config: dict[str, Any]
    source: TokenizerSource
    choice: EngineChoice
    libraries: dict[str, str]

    def bos(self) -> SpecialToken | None:
        """The token put before documents."""
        if self.options.bos == AUTO:
            return template_bos(self.config)
        return None if self.options.bos == NONE else _named(self.config, self.options.bos, "--bos")

    def eos(self) -> SpecialToken | None:
        """The token put after documents."""
        if self.options.eos == NONE:
            return None
        if self.options.eos != AUTO:
            return _named(self.config, self.options.eos, "--eos")
        found = find_role(self.config, self.source.roles, "eos")
        if found is None:
            raise UsageError(
                "the tokenizer does not say which token ends a document", where="--eos",
                code="E_EOS",
                remedy="Name it with --eos TOKEN, or store documents without one with --eos none.",
            )  # fmt: skip
        return found

    def encoding(self) -> Encoding:
        """What a worker needs."""
        size = vocab_size(self.config)
        bos, eos = self.bos(), self.eos()
        return Encoding(
            engine=self.choice.name,
            dtype="<u2" if size <= _NARROW else "<u4",
            vocab_size=size,
            bos=bos.id if bos else None,
            eos=eos.id if eos else None,
            special_tokens=special_tokens(self.config),
            unknown=_unknown_id(self.config),
            special_text=self.options.special_text,
        )

    def entry(self, probes: Sequence[str]) -> TokenizerEntry:
        """What the manifest keeps."""
        ids, offsets = self.choice.encoder.encode([probe.encode() for probe in probes])
        bos, eos = self.bos(), self.eos()
        return TokenizerEntry(
            file="tokenizer.json",
            sha256=hashlib.sha256(self.source.json).hexdigest(),
            engine=self.choice.name,
            engine_reason=self.choice.reason,
            libraries=self.libraries,
            special_text=self.options.special_text,
            special_text_found={},
            add_bos=bos is not None,
            add_eos=eos is not None,
            bos=bos or find_role(self.config, self.source.roles, "bos"),
            eos=eos or find_role(self.config, self.source.roles, "eos"),
            pad=find_role(self.config, self.source.roles, "pad"),
            probes=tuple(
                Probe(text=text, ids=tuple(ids[offsets[i] : offsets[i + 1]].tolist()))
                for i, text in enumerate(probes)
            ),
        )


def _unknown_id(config: dict[str, Any]) -> int | None:
    """The id that the model itself gives to what it does not know, if it does."""
    model = config["model"]
    if isinstance(model["vocab"], list):
        unknown = model.get("unk_id")
        return unknown if isinstance(unknown, int) else None
    found = model["vocab"].get(model.get("unk_token"))
    return found if isinstance(found, int) else None


def _named(config: dict[str, Any], token: str, where: str) -> SpecialToken:
    found = find_role(config, {"eos_token": token}, "eos")
    if found is None or found.token != token:
        known = ", ".join(list(special_tokens(config))[:10]) or "none"
        raise UsageError(
            f"the tokenizer has no token {token!r} (special tokens: {known})", where=where,
            code="E_TOKEN", remedy="Name one of its tokens, or none.",
        )  # fmt: skip
    return found


def _stored_options(options: BuildOptions, source: TokenizerSource) -> dict[str, Any]:
    names = (
        "format", "field", "document", "hf_config", "hf_split", "engine", "split", "split_mode",
        "split_key", "bos", "eos", "special_text", "on_error", "seed",
    )  # fmt: skip
    stored = {name: getattr(options, name) for name in names}
    return {"tokenizer": source.origin, **msgspec.to_builtins(stored)}
