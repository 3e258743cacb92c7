"""The command `dataprep build --kind embeddings`, with options from `EmbeddingOptions`."""

from __future__ import annotations

from typing import Any

import click

from dataprep.pipeline.embeddings.options import EmbeddingOptions

from ..command import EPILOG_START, output_options
from ..options import OptionHelp, options_of
from ..summary import array_lines
from . import running as building
from .kinds import KindCommand
from .shared import INPUT, RUNNING, SPLITS, shared

__all__ = ["OPTIONS", "command"]

_ARRAYS, _TEXT = "Arrays", "From text"

OPTIONS: dict[str, OptionHelp] = {
    "input": OptionHelp(
        section=INPUT, metavar="PATH",
        help="File, folder, quoted glob, or hf:NAME: .npy, .npz, .safetensors, .pt, .jsonl, "
        ".parquet, .arrow. Repeatable.",
    ),
    **shared("out", "format", "hf_config", "hf_split"),
    "columns": OptionHelp(
        section=_ARRAYS, metavar="NAME=FIELD",
        default="the one field that holds vectors, as `embedding`",
        help="An array to make and the field it comes from; :vector, :int, :float, :bool or :label "
        "behind it says what the field must hold. Repeatable.",
    ),
    "dim": OptionHelp(
        section=_ARRAYS, metavar="N", help="Numbers in a vector.", default="as in the first"
    ),
    "dtype": OptionHelp(
        section=_ARRAYS, help="How vectors are stored; int8 with a factor for each row."
    ),
    "normalize": OptionHelp(section=_ARRAYS, help="Divide every vector by its length."),
    "on_error": OptionHelp(
        section=_ARRAYS,
        help="A bad record (NaN, infinity, all zero, another width) stops the build, or is written "
        "to rejects.jsonl and counted.",
    ),
    **shared("max_rejects", "excerpts", section=_ARRAYS),
    "text_field": OptionHelp(
        section=_TEXT, metavar="NAME", help="Field of texts to be turned into vectors."
    ),
    "encoder": OptionHelp(
        section=_TEXT, metavar="MODEL", help="Name or folder of a sentence-transformers model."
    ),
    "encode_batch": OptionHelp(
        section=_TEXT, metavar="N", help="Texts that the model is given at once."
    ),
    "split": OptionHelp(
        section=SPLITS, metavar="NAME=SHARE,...",
        help="Ratios that add up to 1; with --split-mode count also numbers of rows, and rest.",
    ),
    "split_mode": OptionHelp(
        section=SPLITS,
        help="ratio: each row by its own hash, so added data moves none. count: exact sizes.",
    ),
    "split_key": OptionHelp(
        section=SPLITS, metavar="FIELD", default="the vector, or the text",
        help="Records with equal values of this field go to the same split.",
    ),
    **shared("seed", "workers", "overwrite"),
}  # fmt: skip


@output_options
@click.option("--dry-run", is_flag=True, help="Print an estimate from a sample and stop.")
@click.option(
    "--profile", is_flag=True, help="Print a time line, and where the time went, stage by stage."
)
def _command(*, as_json: bool, quiet: bool, dry_run: bool, profile: bool, **values: Any) -> None:
    """Turn vectors, or texts and an encoder, into a dataset directory of embeddings.

    A dataset holds any number of arrays with one row for each record: vectors, and the numbers and
    labels that belong to them. An interrupted build resumes when the same command is run again.
    """
    options = EmbeddingOptions(**values)
    if dry_run:
        from dataprep.pipeline.build import estimate_embeddings

        found = estimate_embeddings(options).as_dict()
        counts = [
            f"  rows       about {found['rows']:,}",
            f"  arrays     {', '.join(found['row_bytes'])}",
        ]
        building.show_estimate(found, options.out, counts=counts, as_json=as_json, quiet=quiet)
        return
    building.run(
        options, "embeddings", as_json=as_json, quiet=quiet,
        profile=profile, counts="rows", content=lambda report: array_lines(report.manifest),
    )  # fmt: skip


command = click.command(
    "build",
    cls=KindCommand,
    kind="embeddings",
    sections={name: entry.section for name, entry in OPTIONS.items()}
    | {"dry_run": RUNNING, "profile": RUNNING},
    epilog=f"""{EPILOG_START}
  dataprep build --kind embeddings --input vectors.npy --out vectors
  dataprep build --kind embeddings --input data.parquet --columns embedding=vec --columns label \\
      --out vectors --normalize --dtype float16
  dataprep build --kind embeddings --input texts.jsonl --text-field text \\
      --encoder all-MiniLM-L6-v2 --out vectors""",
)(_command)
command.params[:0] = options_of(EmbeddingOptions, OPTIONS)
