"""Preparation of a build of embeddings: its inputs and columns, the encoder and the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import dataprep
from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.manifest.arrays import ArrayManifest

from ..encode.encoder import TextEncoder, load_encoder
from ..encode.options import encoder_name
from ..encode.probe import OPTION, PROBE_NAME, Probe, make_probe, probe_width, unfinished_probes
from ..kinds import Prepared, Survey
from ..options import parse_split, stored_excerpts
from ..plan.named_splits import named_split_notes
from ..plan.plan import Splitting, plan_key
from ..plan.splits import ordered_names, thresholds
from ..read.array_files import ARRAYS
from ..read.discovery import find_sources, folder_notes
from ..read.sources import Source, input_error
from .assemble import LINK_BYTES
from .options import (
    EMBEDDING,
    EmbeddingOptions,
    RequestedArray,
    parse_columns,
)
from .plan import EmbeddingPayload, EmbeddingPlan, make_embedding_units
from .readers import fields_of
from .rows import Column, FieldType
from .task import EmbeddingTask, EmbeddingTasks

__all__ = ["EmbeddingPrepared", "EmbeddingSurvey", "prepare", "survey"]

_SHOWN = 12  # fields listed in a message
_MAX_SOURCES = 1_000_000
_FITS = {
    "vector": ("vector",), "int": ("int",), "float": ("float", "int"), "bool": ("bool",),
    "label": ("label",), "text": ("label",), "key": ("label", "int"),
}  # fmt: skip
_WORDS = {
    "vector": "vectors", "int": "integers", "float": "numbers", "bool": "booleans",
    "label": "text", "text": "text", "key": "text or integers",
}  # fmt: skip
_ARGUMENT = {"text": "--text-field", "key": "--split-key"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingSurvey(Survey):
    """Inputs of a build of embeddings, divided into units, and the columns to read."""

    columns: tuple[Column, ...]
    """A column of texts has width 0 until the encoder is loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingPrepared(Prepared):
    """Build of embeddings that is ready to run.

    The attribute `shares` maps the name of each split to a ratio, a number of rows, or None for the
    rest.
    """

    options: EmbeddingOptions
    plan: EmbeddingPlan
    shares: dict[str, float | int | None]


def survey(options: EmbeddingOptions) -> EmbeddingSurvey:
    """Return the inputs, the columns to read, and the units into which the inputs are cut.

    Only the headers or the first records of the inputs are read. Raise `InputError` or `UsageError`
    if a field is missing or has the wrong type.
    """
    sources = tuple(find_sources(options))
    _check_sources(options, sources)
    columns = _columns(options, sources)
    return EmbeddingSurvey(
        sources=sources, columns=columns,
        units=make_embedding_units(sources, columns, options.hf_config, options.hf_split),
        in_process=options.encoder is not None,
    )  # fmt: skip


def prepare(
    options: EmbeddingOptions, survey: EmbeddingSurvey, existing: ArrayManifest | None
) -> EmbeddingPrepared:
    """Load the encoder, if the options name one, and return the build that `options` describe.

    An encoder is identified by its vectors of a few fixed texts (the probe). If the `existing`
    dataset or an unfinished build stores a matching probe, the stored probe is used.
    """
    sources, columns = survey.sources, survey.columns
    encoder, probe = _encoder(options, existing)
    if probe is not None:
        text = msgspec.structs.replace(columns[0], width=probe_width(probe))
        columns = (text, *columns[1:])
    shares = parse_split(options.split, options.split_mode)
    stored = _stored_options(options) | ({} if probe is None else {OPTION: probe})
    plan = EmbeddingPlan(
        key=plan_key(
            [dataprep.__version__, "embeddings", sources, survey.units, columns, stored]
        ),
        kind=EmbeddingTasks.address, sources=sources, units=survey.units,
        splitting=_splitting(options, shares), on_error=options.on_error,
        payload=EmbeddingPayload(
            columns=columns, dtype=options.dtype, normalize=options.normalize,
            encode_batch=options.encode_batch, hf_config=options.hf_config,
            hf_split=options.hf_split,
        ),
    )  # fmt: skip
    return EmbeddingPrepared(
        options=options, plan=plan, shares=shares, stored_options=stored,
        notes=(
            *folder_notes(options), *named_split_notes(options, sources, shares, "embeddings"),
        ),
        files={} if probe is None else {PROBE_NAME: msgspec.json.encode(probe)},
        open_here=lambda _: EmbeddingTask(plan, encoder),
        synced=("*.npy", LINK_BYTES),
    )  # fmt: skip


def _encoder(
    options: EmbeddingOptions, existing: ArrayManifest | None
) -> tuple[TextEncoder | None, Probe | None]:
    if options.encoder is None:
        return None, None
    encoder = load_encoder(options.encoder)
    known = [] if existing is None else [existing.options.get(OPTION)]
    return encoder, make_probe(encoder, [*known, *unfinished_probes(options.out)])


def _check_sources(options: EmbeddingOptions, sources: Sequence[Source]) -> None:
    for name in ("hf_config", "hf_split"):
        if getattr(options, name) is not None and all(s.format != "hf" for s in sources):
            raise UsageError(
                "means nothing without a Hugging Face dataset",
                where=f"--{name.replace('_', '-')}", remedy="Leave it out.",
            )  # fmt: skip
    if len(sources) > _MAX_SOURCES:
        raise UsageError(
            f"{len(sources):,} files are more than the limit of {_MAX_SOURCES:,}", where="--input",
            remedy="Join them.",
        )  # fmt: skip


def _columns(options: EmbeddingOptions, sources: Sequence[Source]) -> tuple[Column, ...]:
    """Return the columns to read, with the types that they have in the first input with records.

    All inputs must have these columns, except JSONL files without records. Raise `InputError` or
    `UsageError` if a field is missing or does not have the type of its column.
    """
    first, fields = _first_fields(options, sources)
    requested = parse_columns(options.columns)
    if not requested and options.text_field is None:
        requested = (_only_vectors(fields, first),)
    columns = [_column(array, fields, first, options.dim) for array in requested]
    if options.text_field is not None:
        text = Column(name=EMBEDDING, field=options.text_field, kind="text")
        columns.insert(0, text)
    if not any(column.kind in ("vector", "text") for column in columns):
        raise UsageError(
            "names no field with vectors", where="--columns", code="E_COLUMNS",
            remedy=f"Name one: {_listed(fields)}.",
        )  # fmt: skip
    if options.split_key is not None:
        columns.append(Column(name="", field=options.split_key, kind="key"))
    for column in columns:
        _check(column, fields, first)
    for source in sources:
        if source is not first:
            fields = fields_of(source, options.hf_config, options.hf_split)
            for column in columns if fields else ():
                _check(column, fields, source)
    return tuple(columns)


def _first_fields(
    options: EmbeddingOptions, sources: Sequence[Source]
) -> tuple[Source, dict[str, FieldType]]:
    """Return the input that decides the types of columns, and the fields of this input.

    It is the first input in which all vectors have a known width. If there is none, it is the first
    input that has fields. If no input has fields, it is the first input.
    """
    best: tuple[Source, dict[str, FieldType]] | None = None
    for source in sources:
        fields = fields_of(source, options.hf_config, options.hf_split)
        if fields and all(kind.width for kind in fields.values() if kind.kind == "vector"):
            return source, fields
        if fields and best is None:
            best = source, fields
    return best or (sources[0], {})


def _only_vectors(fields: Mapping[str, FieldType], source: Source) -> RequestedArray:
    found = [name for name, kind in fields.items() if kind.kind == "vector"]
    if len(found) == 1:
        return RequestedArray(name=EMBEDDING, field=found[0])
    if not found:
        raise input_error(
            f"no field holds vectors; there are {_listed(fields)}", source.name,
            "A vector is a list of numbers; texts become vectors with --text-field and --encoder.",
            "E_COLUMNS",
        )  # fmt: skip
    raise input_error(
        f"{len(found)} fields hold vectors: {', '.join(map(repr, found[:_SHOWN]))}", source.name,
        f"Choose with --columns NAME=FIELD, for example {EMBEDDING}={found[0]}; several can be "
        "named.", "E_COLUMNS",
    )  # fmt: skip


def _column(
    array: RequestedArray, fields: Mapping[str, FieldType], source: Source, dim: int | None
) -> Column:
    found = _find(array.field, "--columns", fields, source)
    kind = array.kind or found.kind
    if kind is None:
        raise _unfit(array.field, found, "--columns", "vectors, numbers, booleans or text", source)
    width = (dim or found.width) if kind == "vector" else 0
    if kind == "vector" and not width:
        raise input_error(
            f"the first records of {array.field!r} do not show how wide vectors are", source.name,
            "Give it with --dim.", "E_WIDTH",
        )  # fmt: skip
    return Column(name=array.name, field=array.field, kind=kind, width=width)


def _check(column: Column, fields: Mapping[str, FieldType], source: Source) -> None:
    """Raise `InputError` if the field of `column` is missing, or if its type does not fit.

    `fields` are the fields of the input `source`.
    """
    argument = _ARGUMENT.get(column.kind, "--columns")
    found = _find(column.field, argument, fields, source)
    if found.kind not in _FITS[column.kind]:
        raise _unfit(column.field, found, argument, _WORDS[column.kind], source)
    if column.kind == "vector" and source.format in ARRAYS and found.width != column.width:
        raise input_error(
            f"the field {column.field!r} has rows of {found.width} numbers, not {column.width}",
            source.name, "All inputs need one width; build the others separately.", "E_WIDTH",
        )  # fmt: skip


def _find(field: str, argument: str, fields: Mapping[str, FieldType], source: Source) -> FieldType:
    if field not in fields:
        raise input_error(
            f"there is no field {field!r}; there are {_listed(fields)}", source.name,
            f"Name one of them with {argument}.", "E_FIELD",
        )  # fmt: skip
    return fields[field]


def _unfit(field: str, found: FieldType, argument: str, wanted: str, source: Source) -> InputError:
    return input_error(
        f"the field {field!r} holds {found.shown}, not {wanted}", source.name,
        f"Name another with {argument}.", "E_FIELD",
    )  # fmt: skip


def _listed(fields: Mapping[str, FieldType]) -> str:
    names = [f"{name!r} ({kind.shown})" for name, kind in list(fields.items())[:_SHOWN]]
    more = [] if len(fields) <= _SHOWN else ["..."]
    return ", ".join(names + more) or "none"


def _splitting(options: EmbeddingOptions, shares: Mapping[str, float | int | None]) -> Splitting:
    names = ordered_names(shares)
    if options.split_mode == "count":
        return Splitting(names=tuple(names), ends=(), seed=options.seed)
    ends = thresholds([float(shares[name] or 0.0) for name in names])
    return Splitting(names=tuple(names), ends=tuple(map(str, ends)), seed=options.seed)


def _stored_options(options: EmbeddingOptions) -> dict[str, Any]:
    names = (
        "format", "text_field", "dim", "dtype", "normalize", "hf_config", "hf_split", "split",
        "split_mode", "split_key", "on_error", "seed",
    )  # fmt: skip
    stored = {name: getattr(options, name) for name in names}
    stored |= stored_excerpts(options.excerpts)
    batch = options.encode_batch if options.encoder is not None else None
    encoder = encoder_name(options.encoder)
    return {"columns": list(options.columns), "encoder": encoder, "encode_batch": batch, **stored}
