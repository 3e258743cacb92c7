"""The command `dataprep build --kind chat`, for conversations and preferences.

It has an option for each field of `ChatOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dataprep.pipeline.chat.options import ChatOptions

from ..command import EPILOG_START, output_options
from ..options import OptionHelp, options_of
from ..summary import speed_text, token_counts, token_lines
from . import running as building
from .kinds import KindCommand
from .shared import INPUT, RUNNING, SPLITS, shared
from .tokens import OPTIONS as TEXT_OPTIONS

if TYPE_CHECKING:
    from dataprep.formats.manifest.tokens import ChatEntry, Manifest
    from dataprep.pipeline.chat.estimate import ChatEstimate, Lengths, PolicyEffect
    from dataprep.pipeline.report import BuildReport

__all__ = ["OPTIONS", "command"]

_RECORDS, _TEMPLATE, _LENGTH = "Records", "Template and mask", "Length"


OPTIONS: dict[str, OptionHelp] = {
    "input": OptionHelp(
        section=INPUT, metavar="PATH",
        help="File, folder, quoted glob, or hf:NAME for a dataset of the Hugging Face hub: JSONL, "
        "JSON arrays, Parquet. Repeatable.",
    ),
    **shared("out", "format", "hf_config", "hf_split"),
    "shape": OptionHelp(
        section=_RECORDS, metavar="NAME", default="told from the fields of each record",
        help="What records look like: messages, sharegpt, alpaca, prompt, ...",
    ),
    "form": OptionHelp(
        section=_RECORDS, default="what the first record is",
        help="chat; pairs: an answer chosen, one rejected (DPO); labels: judgements (KTO); groups: "
        "several answers to a prompt (GRPO).",
    ),
    "columns": OptionHelp(
        section=_RECORDS, metavar="NAME=FIELD",
        help="A field, or a role, that is called otherwise in the records: messages=dialog, "
        "content=utterance, user=Human. Repeatable.",
    ),
    "system": OptionHelp(
        section=_RECORDS, metavar="TEXT", help="A system turn for conversations that have none."
    ),
    **shared("on_error", "max_rejects", "excerpts"),
    "tokenizer": TEXT_OPTIONS["tokenizer"],
    "engine": TEXT_OPTIONS["engine"],
    "template": OptionHelp(
        section=_TEMPLATE, metavar="NAME|FILE", default="the tokenizer's own",
        help="Chat template: the name of one that comes along (chatml, llama3, ...), or a file.",
    ),
    "template_arg": OptionHelp(
        section=_TEMPLATE, metavar="NAME=VALUE",
        help="A variable of the template; the value is JSON, or text. Repeatable.",
    ),
    "template_date": OptionHelp(
        section=_TEMPLATE, metavar="YYYY-MM-DD", help="Date for templates that ask for today's."
    ),
    "train_on": OptionHelp(
        section=_TEMPLATE,
        help="What the loss mask lets through: what the assistant says, its last turn, or all.",
    ),
    "special_text": OptionHelp(
        section=_TEMPLATE,
        help="Text of a message that spells a special token stays text, or becomes the token. "
        "Counted anyway.",
    ),
    "max_tokens": OptionHelp(
        section=_LENGTH, metavar="N", default="no limit", help="Of a conversation."
    ),
    "overlong": OptionHelp(
        section=_LENGTH, default="the build stops at the first one and asks",
        help="A conversation over --max-tokens is a bad record, left out, loses its beginning "
        "(truncate-left) or its end, or is cut in pieces.",
    ),
    "keep_untrained": OptionHelp(
        section=_LENGTH, help="Keep conversations that, once cut, have no token to train on left."
    ),
    **shared("split", "split_mode"),
    "split_key": OptionHelp(
        section=SPLITS, metavar="FIELD", default="the conversation; of preferences the prompt",
        help="Records with equal values of this field go to the same split.",
    ),
    **shared("seed", "workers", "overwrite"),
}  # fmt: skip


@output_options
@click.option("--dry-run", is_flag=True, help="Print an estimate from a sample, with lengths.")
@click.option(
    "--profile", is_flag=True, help="Print a time line, and where the time went, stage by stage."
)
def _command(*, as_json: bool, quiet: bool, dry_run: bool, profile: bool, **values: Any) -> None:
    """Turn conversations or preferences into tokens with a loss mask.

    Every record is rendered by the chat template, exactly as apply_chat_template of transformers
    renders it, and tokenized as a whole. The mask selects what the assistant says. Conversations
    may come as messages, sharegpt, alpaca, or prompt and completion, with content blocks or tool
    calls. Preferences may come as chosen and rejected answers, labels, or groups of answers.
    Nothing is cut or left out without being counted.
    """
    options = ChatOptions(**values)
    if dry_run:
        from dataprep.pipeline.build import estimate_chat

        found = estimate_chat(options)
        fields = found.as_dict()
        building.show_estimate(
            fields, options.out, counts=token_counts(fields), as_json=as_json,
            quiet=quiet, more=_length_lines(found),
        )  # fmt: skip
        return
    building.run(
        options, "chat", as_json=as_json, quiet=quiet,
        profile=profile, more=_chat_lines, worker="dataprep.pipeline.chat.worker:ChatTasks",
        content=lambda report: token_lines(report.manifest), speed=speed_text,
    )  # fmt: skip


def _length_lines(found: ChatEstimate) -> list[str]:
    """Return the lines of an estimate that describe form, lengths, limits and unusable records."""
    lengths = found.lengths
    shares = ", ".join(f"{value:,} ({share} %)" for share, value in lengths.percentiles.items())
    lines = [
        f"  form       {found.form}, by the template {found.template} ({found.masked_by})",
        f"  lengths    tokens of {lengths.sampled_records:,} records, up to: {shares}",
        f"  trained    {lengths.trained_share:.1%} of the tokens",
    ]
    lines += _limit_lines(lengths)
    if found.refused:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in found.refused.items())
        lines.append(f"  refused    of the sample: {reasons}")
    return lines


def _limit_lines(lengths: Lengths) -> list[str]:
    """Return a line for each length limit that some records exceed.

    The line says how many records exceed the limit, and how many of them each value of --overlong
    would leave out. If no limit is exceeded, return a single line that says so.
    """
    by_limit: dict[int, list[PolicyEffect]] = {}
    for one in lengths.overlong:
        by_limit.setdefault(one.limit, []).append(one)
    lines = []
    for limit, touched in by_limit.items():
        policies = ", ".join(f"{one.policy} {one.left_out:,}" for one in touched)
        if count := touched[0].touched:
            lines.append(
                f"  overlong   about {count:,} over {limit:,} tokens; left out by: {policies}"
            )
    if not lines:
        lines = [f"  overlong   none of the sample is over {min(by_limit):,} tokens"]
    return lines


def _chat_lines(report: BuildReport[Manifest]) -> Sequence[str]:
    """Return the summary lines about the chat template, the loss mask and overlong records.

    Return no lines for a reused dataset or one without conversations.
    """
    chat = report.manifest.chat
    if report.reused or not chat:
        return ()
    tokens = sum(split.tokens for split in report.manifest.splits.values())
    share = chat.trained_tokens / max(1, tokens)
    lines = [
        f"  template   {chat.template_origin}, masked by {chat.masked_by}, trains on "
        f"{chat.train_on}: {chat.trained_tokens:,} tokens, {share:.1%}",
    ]
    return [*lines, *_overlong_lines(chat)]


def _overlong_lines(chat: ChatEntry) -> list[str]:
    if not chat.overlong_found:
        return []
    counts = ", ".join(
        f"{count:,} {what.replace('_', ' ')}" for what, count in chat.overlong_found.items()
    )
    return [f"  overlong   over {chat.max_tokens:,} tokens: {counts}"]


command = click.command(
    "build",
    cls=KindCommand,
    kind="chat",
    sections={name: entry.section for name, entry in OPTIONS.items()}
    | {"dry_run": RUNNING, "profile": RUNNING},
    epilog=f"""{EPILOG_START}
  dataprep build --kind chat --input chat.jsonl --tokenizer Qwen/Qwen2.5-0.5B --out shards
  dataprep build --kind chat --input chat.jsonl --template chatml --max-tokens 4096 \\
      --overlong truncate-right --out shards
  dataprep build --kind chat --input dpo.json --form pairs --tokenizer ./model --out pairs
  dataprep build --kind chat --input chat.jsonl --tokenizer ./model --out shards --dry-run""",
)(_command)
command.params[:0] = options_of(ChatOptions, OPTIONS)
