"""`dataprep build --kind embeddings`: one option for each field of `EmbeddingOptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataprep.formats.errors import StorageError
from dataprep.pipeline.embeddings.options import EmbeddingOptions

from .. import output
from ..command import EPILOG_START, output_options
from ..options import OptionHelp, options_of
from .kinds import KindCommand
from .shared import INPUT, RUNNING, SPLITS, shared

if TYPE_CHECKING:
    from dataprep.pipeline.embeddings.report import EmbeddingReport

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
def _command(
    *,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    input: tuple[str, ...],  # noqa: A002
    **values: Any,
) -> None:
    """Turn vectors, or texts by an encoder, into a dataset directory of embeddings.

    Any number of arrays, aligned by record: vectors, and the numbers and labels that belong to
    them. An interrupted build resumes when the same command is run again.
    """
    options = EmbeddingOptions(input=tuple(input), **values)
    if dry_run:
        _estimate(options, as_json=as_json, quiet=quiet)
        return
    from dataprep.pipeline.embeddings.build import build_embeddings

    from ..progress import build_progress

    with build_progress(quiet=quiet, rows=True) as show:
        report = build_embeddings(options, progress=show)
    if as_json:
        output.result_json(report.as_dict())
    elif not quiet:
        output.result("\n".join(_lines(report)))


def _estimate(options: EmbeddingOptions, *, as_json: bool, quiet: bool) -> None:
    """Print what a build would take; a build that cannot fit on the disk ends as it would."""
    from dataprep.pipeline.embeddings.estimate import estimate_embeddings

    from ..summary import bytes_text, duration_text

    found = estimate_embeddings(options).as_dict()
    fits = found["peak_disk_bytes"] <= found["free_bytes"]
    if as_json:
        output.result_json({**found, "fits": fits})
    elif not quiet:
        lines = [
            f"  inputs     {found['inputs']:,}, {bytes_text(found['input_bytes'])}",
            f"  rows       about {found['rows']:,}",
            f"  arrays     {', '.join(found['row_bytes'])}",
            f"  output     about {bytes_text(found['output_bytes'])}",
            f"  disk       {bytes_text(found['peak_disk_bytes'])} at most needed, "
            f"{bytes_text(found['free_bytes'])} free{'' if fits else ': NOT ENOUGH'}",
            f"  time       about {duration_text(found['seconds'])}",
            *(f"  note       {output.one_line(note)}" for note in found["notes"]),
            f"Nothing was built{': run it without --dry-run' if fits else ''}.",
        ]
        output.result("\n".join(lines))
    if not fits:
        error = StorageError(
            f"about {found['peak_disk_bytes']:,} bytes are needed and {found['free_bytes']:,} are "
            "free",
            where=str(options.out), code="E_NOSPACE",
            remedy="Free some space, or choose another --out.",
        )  # fmt: skip
        output.talk(output.one_line(f"dataprep: {error}"))
        raise click.exceptions.Exit(error.exit_code)


def _lines(report: EmbeddingReport) -> list[str]:
    from ..summary import array_lines, reused_lines

    if report.reused:
        return reused_lines(report.path, report.recipe_id)
    lines = array_lines(report.path, report.manifest, report.seconds)
    if report.resumed_units:
        lines.append(f"  resumed    {report.resumed_units} of {report.units} units were there")
    lines += [f"  note       {output.one_line(note)}" for note in report.notes]
    return [*lines, f"Check it: dataprep verify {report.path}"]


command = click.command(
    "build",
    cls=KindCommand,
    kind="embeddings",
    sections={name: entry.section for name, entry in OPTIONS.items()} | {"dry_run": RUNNING},
    epilog=f"""{EPILOG_START}
  dataprep build --kind embeddings --input vectors.npy --out vectors
  dataprep build --kind embeddings --input data.parquet --columns embedding=vec --columns label \\
      --out vectors --normalize --dtype float16
  dataprep build --kind embeddings --input texts.jsonl --text-field text \\
      --encoder all-MiniLM-L6-v2 --out vectors""",
)(_command)
command.params[:0] = options_of(EmbeddingOptions, OPTIONS)
