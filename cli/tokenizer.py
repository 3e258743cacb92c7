"""The command group `dataprep tokenizer`, with the command `train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import get_args

import click

from dataprep.pipeline.options import DocumentUnit, InputFormat

from . import output
from .command import (
    ANY_PATH,
    EPILOG_START,
    InputCommand,
    SuggestingGroup,
    naming_options,
    output_options,
)
from .summary import bytes_text

__all__ = ["command"]


def _split_at_commas(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Return the parts of `value` between commas, without surrounding spaces.

    If `value` is None, return None.
    """
    return None if value is None else tuple(part.strip() for part in value.split(","))


@click.group(
    "tokenizer", cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]}
)
def command() -> None:
    """Train a tokenizer on your own text."""


@command.command(
    "train",
    cls=InputCommand,
    epilog=f"""{EPILOG_START}
  dataprep tokenizer train --input data.jsonl --vocab-size 16384 --out tokenizer.json
  dataprep tokenizer train --input a.txt --out b.json --special-tokens '[PAD],[CLS],[SEP],[MASK]'
  dataprep build --input data.jsonl --tokenizer tokenizer.json --out shards""",
)
@click.option(
    "--input", metavar="PATH", type=click.Path(readable=False), multiple=True, required=True,
    help="File, folder or quoted glob, as for `dataprep build`. Repeatable.",
)  # fmt: skip
@click.option(
    "--out", metavar="FILE", type=ANY_PATH, required=True,
    help="The tokenizer.json to write; must not exist.",
)  # fmt: skip
@click.option(
    "--vocab-size", metavar="N", type=int, default=32_768, show_default=True,
    help="Number of ids, with the 256 bytes and the special tokens.",
)  # fmt: skip
@click.option(
    "--special-tokens", metavar="LIST", callback=_split_at_commas,
    help="Special tokens between commas, which get the last ids, in this order; in place of those "
    "of the built-in tokenizer.",
)  # fmt: skip
@click.option(
    "--format", "format_", type=click.Choice(get_args(InputFormat)),
    show_default="from each name", help="Of all inputs.",
)  # fmt: skip
@click.option(
    "--field", metavar="NAME", default="text", show_default=True,
    help="Field that holds the text; a.b reaches inside.",
)  # fmt: skip
@click.option(
    "--document", type=click.Choice(get_args(DocumentUnit)), default="file", show_default=True,
    help="What a document of a plain text file is.",
)  # fmt: skip
@output_options
def train(
    *, input: tuple[str, ...], out: Path, vocab_size: int,  # noqa: A002 (the option)
    special_tokens: tuple[str, ...] | None, format_: InputFormat | None, field: str,
    document: DocumentUnit, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Train a byte-level BPE tokenizer on the texts of the inputs.

    Every text can be encoded, and decodes to itself. Reads the first 256 MiB of text, and holds the
    distinct words of that text in memory.
    """
    from dataprep.pipeline.plan.sample import iterate_texts
    from dataprep.pipeline.tokenize.train import DEFAULT_SPECIAL_TOKENS, train_tokenizer

    texts = iterate_texts(input, format_, field, document)
    specials = DEFAULT_SPECIAL_TOKENS if special_tokens is None else special_tokens
    with naming_options("vocab_size", "special_tokens"):
        report = train_tokenizer(texts, vocab_size=vocab_size, out=out, special_tokens=specials)
    if as_json:
        output.result_json({"out": str(out), **asdict(report)})
    elif not quiet:
        output.result(
            f"{out}: {report.vocab_size:,} ids from {report.texts:,} texts "
            f"({bytes_text(report.bytes)}), {report.bytes_per_token:.2f} bytes per token on them"
        )
