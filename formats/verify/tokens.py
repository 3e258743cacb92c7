"""Checks of a dataset of tokens: shards, records, index files, rejects, and the tokenizer.

Of tokenizer.json, only the keys that contain ids are decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from functools import partial

import msgspec

from ..manifest import tokens as manifests
from ..manifest.identity import TokenContent
from ..manifest.tokens import CONFIG_NAME, Manifest, ShardEntry, SplitEntry
from .groups import check_groups, check_records_of_groups
from .reader import Task, Verification, VerifyPlan, run_tasks
from .records import REJECTS_NAME, check_records
from .report import Finding, Refused
from .shards import TokenRules, check_mask, check_shard

__all__ = ["check_tokenizer", "token_plan"]

_MAX_BYTES = 256 << 20


def token_plan(manifest: Manifest) -> VerifyPlan:
    """Return the checks of the dataset with this `manifest`."""
    splits = manifest.splits.values()
    names = {manifest.tokenizer.file, REJECTS_NAME}
    names.update(file for split in splits for file in split.id_files)
    names.update(file for split in splits for shard in split.shards for file in shard.files)
    return VerifyPlan(
        kind=manifest.kind,
        recipe_id=manifest.recipe_id,
        files=manifest.files,
        folders=frozenset(manifest.splits),
        counts={
            "documents": sum(split.documents for split in splits),
            "tokens": sum(split.tokens for split in splits),
        },
        read=frozenset(names),
        check=partial(_check, manifest),
    )


def _check(manifest: Manifest, run: Verification, others: Sequence[Task]) -> None:
    rules = TokenRules.of(manifest)
    shards = [(name, one) for name, split in manifest.splits.items() for one in split.shards]
    masked = [shard for _, shard in shards if shard.mask is not None]
    tasks: list[Task] = [partial(check_shard, run, shard, rules) for _, shard in shards]
    tasks += [partial(check_mask, run, shard) for shard in masked]
    tasks += [partial(check_records, run, manifest), partial(check_tokenizer, run, manifest)]
    if manifest.chat is not msgspec.UNSET:
        form = manifest.chat.form
        grouped = [shard for _, shard in shards if shard.groups is not None]
        tasks += [partial(check_groups, run, shard, form) for shard in grouped]
    results = run_tasks([*tasks, *others], run)
    counts: dict[str, list[int | None]] = {name: [] for name in manifest.splits}
    for (name, _), count in zip(shards, results, strict=False):
        counts[name].append(count)
    for name, split in manifest.splits.items():
        field = f"splits.{name}.zero_token_documents"
        _check_count(run, field, split.zero_token_documents, counts[name], "offsets")
    if manifest.chat is not msgspec.UNSET:
        trained = results[len(shards) : len(shards) + len(masked)]
        _check_count(run, "chat.trained_tokens", manifest.chat.trained_tokens, trained, "masks")
    if manifests.PREFERENCE in manifest.required_features:
        check_records_of_groups(run, manifest)
    for name, split in manifest.splits.items():
        if run.has_contents(file for shard in split.shards for file in _served(shard)):
            found = _content_id(run, split, manifest.tokens.dtype)
            run.check_content(name, split.content_id, found)


def _served(shard: ShardEntry) -> dict[str, tuple[str, int]]:
    """Return the files of `shard` that the content id covers.

    The dict maps the name of a file to the role of its items in the content id, such as "tokens" or
    "lengths", and to the number of its items.
    """
    files = {
        shard.tokens: ("tokens", shard.length),
        shard.docs: ("lengths", shard.documents),
        shard.mask: ("mask", shard.length),
        shard.groups: ("groups", shard.records or 0),
        shard.scores: ("scores", shard.documents),
    }
    return {file: part for file, part in files.items() if file is not None}


def _content_id(run: Verification, split: SplitEntry, dtype: str) -> str:
    content = TokenContent(dtype)
    for shard in split.shards:
        for file, (role, count) in _served(shard).items():
            content.add(role, count, run.content_crcs[file])
    return content.content_id


def _check_count(
    run: Verification, field: str, stated: int, counts: Sequence[int | None], where: str
) -> None:
    """Add a finding if `stated` (the value of `field` in config.json) is not the sum of `counts`.

    Nothing is compared if one of the counts is None. In the finding, the word `where` names the
    files that were counted, such as "masks".
    """
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and sum(known) != stated:
        run.findings.add(Finding(
            code="E_COUNT", file=CONFIG_NAME,
            problem=f"{field} is {stated}, the {where} say {sum(known)}",
        ))  # fmt: skip


class _Added(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: msgspec.Raw


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: tuple[_Added, ...] | None = None


def check_tokenizer(run: Verification, manifest: Manifest) -> None:
    """Check the digest and the vocabulary size of the tokenizer, and the ids in the manifest."""
    _check_ids(run, manifest)
    with contextlib.ExitStack() as stack:
        reader = run.open(stack, manifest.tokenizer.file)
        if reader is None:
            return
        if reader.size > _MAX_BYTES:
            raise Refused(reader.finding("E_TOKENIZER", f"is over {_MAX_BYTES} bytes"))
        data = bytearray()
        while piece := reader.read():
            data += piece
        if hashlib.sha256(data).hexdigest() != manifest.tokenizer.sha256:
            raise Refused(reader.finding("E_TOKENIZER", "is not the tokenizer that made these ids"))
        try:
            size = _vocab_size(bytes(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"is not a tokenizer.json ({error})"
            raise Refused(reader.finding("E_TOKENIZER", problem)) from None
        if size != manifest.tokens.vocab_size:
            problem = f"has ids below {size}, tokens.vocab_size is {manifest.tokens.vocab_size}"
            raise Refused(reader.finding("E_TOKENIZER", problem))


def _check_ids(run: Verification, manifest: Manifest) -> None:
    entry = manifest.tokenizer
    named = [token.id for token in (entry.bos, entry.eos, entry.pad) if token is not None]
    largest = max([*named, *(id_ for probe in entry.probes for id_ in probe.ids)], default=-1)
    problem = None
    if largest >= manifest.tokens.vocab_size:
        problem = f"names id {largest}, tokens.vocab_size is {manifest.tokens.vocab_size}"
    elif (entry.add_bos and entry.bos is None) or (entry.add_eos and entry.eos is None):
        problem = "adds a BOS or EOS that it does not name"
    if problem:
        run.findings.add(
            Finding(code="E_TOKENIZER", file=CONFIG_NAME, problem=f"`tokenizer` {problem}")
        )


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_TOKENIZER = msgspec.json.Decoder(_Tokenizer)


def _vocab_size(data: bytes) -> int:
    """Return the vocabulary size: the largest id of a token or added token, plus one.

    The argument `data` holds the bytes of tokenizer.json.
    """
    tokenizer = _TOKENIZER.decode(data)
    vocab = bytes(tokenizer.model.vocab)
    if vocab.lstrip()[:1] == b"[":  # Unigram: pieces with scores, in the order of their ids
        largest = len(msgspec.json.decode(vocab, type=list[msgspec.Raw])) - 1
    else:
        largest = max(msgspec.json.decode(vocab, type=dict[str, int]).values(), default=-1)
    added = (token.id for token in tokenizer.added_tokens or ())
    return max(largest, *added, -1) + 1
