"""What is checked in a dataset of tokens: shards, records, index files, rejects, the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from ..manifest import tokens as manifests
from ..manifest.common import CONFIG_NAME
from ..manifest.content import TokenContent
from ..manifest.tokens import Manifest, ShardEntry, SplitEntry
from .groups import check_groups, check_records_of_groups
from .plan import Plan, Task, do
from .reader import Run
from .records import REJECTS_NAME, check_records
from .report import Finding
from .shards import Rules, check_mask, check_shard
from .vocabulary import check_tokenizer

__all__ = ["token_plan"]


def token_plan(manifest: Manifest) -> Plan:
    """How to check the dataset that `manifest` describes."""
    splits = manifest.splits.values()
    names = {manifest.tokenizer.file, REJECTS_NAME}
    names.update(file for split in splits for file in split.id_files)
    names.update(file for split in splits for shard in split.shards for file in shard.files)
    return Plan(
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


def _check(manifest: Manifest, run: Run, others: Sequence[Task]) -> None:
    rules = Rules.of(manifest)
    shards = [(name, one) for name, split in manifest.splits.items() for one in split.shards]
    masked = [shard for _, shard in shards if shard.mask is not None]
    tasks: list[Task] = [partial(check_shard, run, shard, rules) for _, shard in shards]
    tasks += [partial(check_mask, run, shard) for shard in masked]
    tasks += [partial(check_records, run, manifest), partial(check_tokenizer, run, manifest)]
    if manifest.chat is not msgspec.UNSET:
        form = manifest.chat.form
        grouped = [shard for _, shard in shards if shard.groups is not None]
        tasks += [partial(check_groups, run, shard, form) for shard in grouped]
    results = do([*tasks, *others], run)
    counts: dict[str, list[int | None]] = {name: [] for name in manifest.splits}
    for (name, _), count in zip(shards, results, strict=False):
        counts[name].append(count)
    for name, split in manifest.splits.items():
        _check_zero_tokens(run, name, split, counts[name])
    _check_trained(run, manifest, results[len(shards) : len(shards) + len(masked)])
    if manifests.PREFERENCE in manifest.required_features:
        check_records_of_groups(run, manifest)
    for name, split in manifest.splits.items():
        if run.added_up(file for shard in split.shards for file in _served(shard)):
            found = _content_id(run, split, manifest.tokens.dtype)
            run.check_content(name, split.content_id, found)


def _served(shard: ShardEntry) -> dict[str, tuple[str, int]]:
    """Return the role and the count of what each file adds to the content of the split."""
    files = {
        shard.tokens: ("tokens", shard.length),
        shard.docs: ("lengths", shard.documents),
        shard.mask: ("mask", shard.length),
        shard.groups: ("groups", shard.records or 0),
        shard.scores: ("scores", shard.documents),
    }
    return {file: part for file, part in files.items() if file is not None}


def _content_id(run: Run, split: SplitEntry, dtype: str) -> str:
    content = TokenContent(dtype)
    for shard in split.shards:
        for file, (role, count) in _served(shard).items():
            content.add(role, count, run.numbers[file])
    return content.content_id


def _check_trained(run: Run, manifest: Manifest, counts: Sequence[int | None]) -> None:
    known = [count for count in counts if count is not None]
    if manifest.chat is msgspec.UNSET or len(known) < len(counts):
        return
    if sum(known) != manifest.chat.trained_tokens:
        run.findings.add(Finding(
            code="E_COUNT", file=CONFIG_NAME,
            problem=f"chat.trained_tokens is {manifest.chat.trained_tokens}, "
            f"the masks say {sum(known)}",
        ))  # fmt: skip


def _check_zero_tokens(run: Run, name: str, split: SplitEntry, counts: list[int | None]) -> None:
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and sum(known) != split.zero_token_documents:
        run.findings.add(Finding(
            code="E_COUNT", file=CONFIG_NAME,
            problem=f"splits.{name}.zero_token_documents is {split.zero_token_documents}, "
            f"the offsets say {sum(known)}",
        ))  # fmt: skip
