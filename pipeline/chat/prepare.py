"""Preparation of a build of conversations: a plan made from its inputs, template and tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import dataprep
from dataprep.formats.errors import InputError, UsageError

from ..execute.bad_record import failure_of
from ..execute.processes import Processes
from ..execute.task import Task
from ..options import NONE, parse_split, stored_excerpts
from ..plan.named_splits import named_split_notes
from ..plan.plan import Plan, make_units, plan_key
from ..read.discovery import find_sources, folder_notes
from ..read.reader import ReadOptions
from ..tokenize.engines import (
    GIGATOKEN,
    TOKENIZERS,
    EarlyEngine,
    Encoder,
    choose_engine,
    library_versions,
    naming,
)
from ..tokenize.load import TokenizerSource, resolve_tokenizer
from ..tokenize.probes import make_probes
from ..tokenize.setup import BuildTokenizer
from ..tokenize.special_tokens import Role, find_role, parse_config, special_tokens
from ..tokens.prepare import (
    TokenPrepared,
    TokenSurvey,
    check_sources,
    files_of,
    gate_texts,
    ready_encoder,
    reference_of,
    splitting_of,
    synced,
)
from .options import ChatOptions, parse_assignments, parse_variables
from .plan import ChatPayload, ChatPlan
from .sample import (
    ChatSample,
    SampleRequest,
    find_form,
    sample_of,
    take_chat_sample,
)
from .task import ChatTask, read_options
from .template.source import Template, resolve_template
from .worker import ChatTasks

__all__ = ["ChatPrepared", "ChatSurvey", "prepare_chat", "survey_chat"]

_STORED = (
    "format", "shape", "columns", "system", "hf_config", "hf_split", "engine", "template_arg",
    "template_date", "train_on", "special_text", "max_tokens", "overlong", "keep_untrained",
    "split", "split_mode", "split_key", "on_error", "seed",
)  # fmt: skip
_SPECIAL_TOKEN = re.compile(r"<\|[\w.-]+\|>|<(?:start|end)_of_turn>")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_SEARCHED_TEXTS = 100
_ROLES: tuple[Role, ...] = ("bos", "eos", "pad")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSurvey(TokenSurvey):
    """Inputs of a build of conversations, and the template that renders them."""

    template: Template


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPrepared(TokenPrepared):
    """A build of conversations that is ready to start."""

    plan: Plan[ChatPayload]
    chat: ChatSample
    """Rendered conversations from a few places of the input."""
    template_origin: str


def survey_chat(options: ChatOptions) -> ChatSurvey:
    """Return the inputs, cut into units, and the template.

    Only the first bytes or the footers of inputs are read. Raise `UsageError` if `hf_config` or
    `hf_split` is set, but no input is a Hugging Face dataset. Raise `InputError` if an input or the
    template cannot be used.
    """
    sources = tuple(find_sources(options))
    check_sources(sources, "Concatenate them.")
    if "hf" not in {source.format for source in sources}:
        for name in ("hf_config", "hf_split"):
            if getattr(options, name) is not None:
                raise UsageError(
                    "means nothing without a Hugging Face dataset",
                    where=f"--{name.replace('_', '-')}", remedy="Leave it out.",
                )  # fmt: skip
    read = ReadOptions(
        field="", document="file", split_key=options.split_key, hf_config=options.hf_config,
        hf_split=options.hf_split,
    )  # fmt: skip
    try:
        template = resolve_template(options.template, options.tokenizer)
    except InputError:
        resolve_tokenizer(options.tokenizer, load=False)  # report a missing tokenizer first
        raise
    return ChatSurvey(
        sources=sources,
        read=read,
        units=make_units(sources, read),
        template=template,
        untrusted=not template.trusted,
    )


def prepare_chat(
    options: ChatOptions,
    surveyed: ChatSurvey,
    *,
    sample_bytes: int,
    early: EarlyEngine | None = None,
    workers: Processes | None = None,
    engine_problem: str | None = None,
    mark: Callable[[str], None] = lambda _: None,
) -> ChatPrepared:
    """Return the plan and a rendered sample of the inputs; see `tokens.prepare.prepare`.

    If the template did not come with dataprep, a worker process renders the sample.
    """
    sources, units, read = surveyed.sources, surveyed.units, surveyed.read
    source = resolve_tokenizer(options.tokenizer, load=early is None)
    with naming(options.tokenizer):
        engine_json = msgspec.json.encode(parse_config(source.config))
    chat = _chat_plan(options, surveyed, source)
    request = SampleRequest.of(chat, special_tokens(source.config), surveyed, room=sample_bytes)
    sampled = None if surveyed.template.trusted else _sample_in_worker(request, workers)
    if early is not None:
        slow = options.engine == TOKENIZERS or engine_problem is not None
        early.load(TOKENIZERS if slow else GIGATOKEN, engine_json)
    libraries = library_versions()  # while a worker loads the engine
    if sampled is None:
        sampled = take_chat_sample(request)
    probes = make_probes()
    gate = gate_texts(probes, sampled.sample)
    compared = gate if engine_problem is None and options.engine != TOKENIZERS else []
    reference = (
        None if early is None else reference_of(options.tokenizer, source, compared, literal=False)
    )
    with naming(options.tokenizer):
        choice = choose_engine(
            engine_json, options.engine, gate,
            others=[text.encode() for text in sampled.sample.texts], early=early,
            reference=reference, problem=engine_problem,
        )  # fmt: skip
    if early is not None:
        early.finish()
    # Special tokens in rendered text are parsed, since templates write them. `MarkedEncoder` takes
    # care of those that messages spell.
    tokenizer = BuildTokenizer(
        bos=NONE, eos=NONE, special_text="parse", config=source.config, source=source,
        choice=choice, libraries=libraries,
    )  # fmt: skip
    encoding, entry = tokenizer.encoding(), tokenizer.entry(probes)
    stored = _stored_options(options, chat, source, surveyed.template)
    shares = parse_split(options.split, options.split_mode)
    splitting = splitting_of(options, shares)
    what = [dataprep.__version__, "chat", sources, units, read, encoding, splitting,
            options.on_error, entry, stored, chat]  # fmt: skip
    plan = Plan(
        key=plan_key(what), kind=ChatTasks.address, sources=sources, units=units,
        splitting=splitting, on_error=options.on_error,
        payload=ChatPayload(
            read=read, encoding=encoding, probes=entry.probes, tokenizer=options.tokenizer,
            chat=chat,
        ),
    )  # fmt: skip
    return ChatPrepared(
        options=options, plan=plan, tokenizer=entry, tokenizer_json=source.json,
        tokenizer_origin=source.origin, engine_json=engine_json, encoder=choice.encoder,
        doubt=choice.doubt, reference=reference, mark=mark, shares=shares, stored_options=stored,
        sample=sampled.sample,
        notes=(
            *folder_notes(options), *named_split_notes(options, sources, shares, "chat"),
            *_missing_token_notes(surveyed.template, source, sampled),
        ),
        chat=sampled, template_origin=surveyed.template.origin, untrusted=surveyed.untrusted,
        files=files_of(source, engine_json), synced=synced(splitting),
        open_here=partial(_open_here, plan, choice.encoder, engine_json),
        all_bad=not sampled.sample.documents,
    )  # fmt: skip


def _open_here(
    plan: Plan[ChatPayload], encoder: Encoder, engine_json: bytes, staging: Path
) -> Task:
    return ChatTask(plan, ready_encoder(plan, encoder, engine_json), engine_json)


def _chat_plan(options: ChatOptions, surveyed: ChatSurvey, source: TokenizerSource) -> ChatPlan:
    plan = ChatPlan(
        template=surveyed.template.text, template_origin=surveyed.template.origin,
        variables=_variables(options, source),
        date=options.template_date, train_on=options.train_on, form=options.form or "chat",
        shape=options.shape, columns=parse_assignments(options.columns, "--columns"),
        system=options.system, literal=options.special_text == "literal",
        max_tokens=options.max_tokens, overlong=options.overlong,
        keep_untrained=options.keep_untrained,
    )  # fmt: skip
    if options.form is None:
        read = replace(read_options(plan, surveyed.read), form=None)
        plan = msgspec.structs.replace(plan, form=find_form(surveyed.sources, surveyed.units, read))
    if plan.form != "chat" and plan.overlong == "split":
        raise UsageError(
            f"split would tear the answers of these records ({plan.form}) from their prompts",
            where="--overlong", remedy="Use truncate-left, truncate-right, drop or error.",
        )  # fmt: skip
    return plan


def _variables(options: ChatOptions, source: TokenizerSource) -> dict[str, Any]:
    """Return the variables of the template: special tokens such as `bos_token`, and `template_arg`.

    A variable in `options.template_arg` replaces a special token of the same name.
    """
    found = {role: find_role(source.config, source.roles, role) for role in _ROLES}
    tokens = {f"{role}_token": token.token for role, token in found.items() if token is not None}
    return {**tokens, **source.roles, **parse_variables(options.template_arg)}


def _sample_in_worker(request: SampleRequest, workers: Processes | None) -> ChatSample:
    """Return the sample, rendered in one of `workers`, or in a new process if `workers` is None.

    If the process fails, raise the error that it reports.
    """
    with contextlib.ExitStack() as stack:
        asked = workers or stack.enter_context(Processes(0, ChatTasks.address))
        event = asked.ask(msgspec.json.encode(request))
    if event.answer is None:
        raise failure_of(event, [source for source, _ in request.places])
    return sample_of(event.answer)


def _missing_token_notes(
    template: Template, source: TokenizerSource, sampled: ChatSample
) -> tuple[str, ...]:
    """Return a tuple with a note on special tokens that the tokenizer does not have.

    The note names the tokens that are written in `template` and occur in the sample. The tuple is
    empty if the tokenizer has all of them.
    """
    written = sorted(set(_SPECIAL_TOKEN.findall(_COMMENT.sub("", template.text))))
    known = {token["content"] for token in source.config.get("added_tokens") or []}
    some = "\n".join(sampled.sample.texts[:_SEARCHED_TEXTS])
    missing = [token for token in written if token not in known and token in some]
    if not missing:
        return ()
    return (
        f"the template writes {', '.join(missing[:4])}, which this tokenizer does not have: it is "
        "stored as plain text, several tokens each; choose another --template or --tokenizer",
    )


def _stored_options(
    options: ChatOptions, chat: ChatPlan, source: TokenizerSource, template: Template
) -> dict[str, Any]:
    stored = {name: getattr(options, name) for name in _STORED}
    stored |= stored_excerpts(options.excerpts)
    stored |= {name: list(stored[name]) for name in ("columns", "template_arg")}
    return {
        "tokenizer": source.origin,
        "template": template.origin,
        "template_sha256": hashlib.sha256(template.text.encode()).hexdigest(),
        "template_variables": chat.variables,
        "form": chat.form,
        **msgspec.to_builtins(stored),
    }
