"""The command `dataprep build`, with an option for each field of `BuildOptions`.

The table below holds only help. The type and default of an option come from the dataclass.
"""

from __future__ import annotations

from typing import Any

import click

from dataprep.pipeline.options import BuildOptions

from ..command import EPILOG_START, output_options
from ..options import OptionHelp, options_of
from ..summary import speed_text, token_counts, token_lines
from . import running as building
from .kinds import KindCommand
from .shared import INPUT, RUNNING, SPLITS, shared

__all__ = ["OPTIONS", "command"]


_TEXT, _IDS = "Records", "Tokens"

OPTIONS: dict[str, OptionHelp] = {
    "input": OptionHelp(
        section=INPUT, metavar="PATH",
        help="File, folder, quoted glob, or hf:NAME for a dataset of the Hugging Face hub; .gz "
        "and .zst are read as they are. Repeatable.",
    ),
    **shared("out", "format", "hf_config", "hf_split"),
    "field": OptionHelp(
        section=_TEXT, metavar="NAME",
        help="Field that holds the text, of JSONL, Parquet and HF records; a.b reaches inside, "
        "unless a field is called so.",
    ),
    "document": OptionHelp(
        section=_TEXT,
        help="What a document of a plain text file is; a block ends at a blank line.",
    ),
    **shared("on_error", "max_rejects", "excerpts"),
    "tokenizer": OptionHelp(
        section=_IDS, metavar="TOKENIZER", default="the built-in one, 32,768 ids",
        help="tokenizer.json, a folder with one, a hub repository, tiktoken:NAME, a .tiktoken "
        "rank file, or a sentencepiece .model.",
    ),
    "engine": OptionHelp(
        section=_IDS,
        help="auto: gigatoken where it gives the same ids as Hugging Face tokenizers, "
        "otherwise tokenizers.",
    ),
    "bos": OptionHelp(
        section=_IDS, metavar="TOKEN",
        help="Put before each document: auto (as the tokenizer's template does), none, or a token.",
    ),
    "eos": OptionHelp(
        section=_IDS, metavar="TOKEN",
        help="Put after each document: auto (the end-of-text token), none, or a token.",
    ),
    "special_text": OptionHelp(
        section=_IDS,
        help="Text that spells a special token stays text, or becomes the token. Counted anyway.",
    ),
    **shared("split", "split_mode"),
    "split_key": OptionHelp(
        section=SPLITS, metavar="FIELD", default="the text",
        help="Records with equal values of this field go to the same split.",
    ),
    **shared("seed", "workers", "overwrite"),
}  # fmt: skip


@output_options
@click.option("--dry-run", is_flag=True, help="Print an estimate from a sample and stop.")
@click.option(
    "--profile", is_flag=True, help="Print a time line, and where the time went, stage by stage."
)
def _command(
    *,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    profile: bool,
    input: tuple[str, ...],  # noqa: A002
    **values: Any,
) -> None:
    """Turn text into a dataset directory of token shards.

    With --kind: conversations, embeddings or pairs; see --kind NAME --help.

    Reads JSONL, plain text, Parquet and Hugging Face datasets. The same inputs and options give
    the same bytes, for any number of workers. An interrupted build resumes when the same
    command is run again; a finished one is recognised and left as it is.
    """
    options = BuildOptions(input=tuple(input), **values)
    if dry_run:
        from dataprep.pipeline.build import estimate

        found = estimate(options).as_dict()
        building.show_estimate(
            found, options.out, counts=token_counts(found), as_json=as_json, quiet=quiet
        )
        return
    building.run(
        options, "tokens", as_json=as_json, quiet=quiet, profile=profile,
        worker="dataprep.pipeline.tokens.task:TokenTasks", speed=speed_text,
        content=lambda report: token_lines(report.manifest),
    )  # fmt: skip


command = click.command(
    "build",
    cls=KindCommand,
    kind="tokens",
    sections={name: entry.section for name, entry in OPTIONS.items()}
    | {"dry_run": RUNNING, "profile": RUNNING},
    epilog=f"""{EPILOG_START}
  dataprep build --input data.jsonl --out shards
  dataprep build --input 'books/*.txt' --document block --out shards
  dataprep build --input part-1.jsonl.zst --input part-2.parquet --field body --out shards
  dataprep build --input data.jsonl --out shards --tokenizer ./my-tokenizer --split train=1
  dataprep build --input data.jsonl --out shards --on-error skip --max-rejects 100
  dataprep build --input data.jsonl --out shards --dry-run
  dataprep build --kind embeddings --input vectors.parquet --out vectors
  dataprep build --kind pairs --help""",
)(_command)
command.params[:0] = options_of(BuildOptions, OPTIONS)
