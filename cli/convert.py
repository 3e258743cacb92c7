"""The command `dataprep convert`, which writes embeddings and pairs in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import output
from .command import (
    ANY_PATH,
    EPILOG_START,
    SectionedCommand,
    naming_options,
    output_options,
)
from .summary import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from dataprep.pipeline.interop.convert import ConvertReport
    from dataprep.pipeline.interop.detect import DatasetLayout
    from dataprep.pipeline.interop.jasper.read import JasperForm

__all__ = ["command"]

_LAYOUTS = ("dataprep", "jasper", "safetensors", "hdf5")


@click.command(
    "convert",
    cls=SectionedCommand,
    epilog=f"""{EPILOG_START}
  dataprep convert jasper_dataset pairs          # JASPER's .pt files, or its dataset.h5
  dataprep convert pairs back --to jasper
  dataprep convert pairs pairs.safetensors       # everything in one file
  dataprep convert pairs pairs.h5 --gzip
  dataprep convert pairs.safetensors pairs       # the same bytes as before""",
)
@click.argument("source", type=ANY_PATH)
@click.argument("out", type=ANY_PATH)
@click.option(
    "--to", type=click.Choice(_LAYOUTS), metavar="LAYOUT",
    help="dataprep, jasper, safetensors or hdf5.  [default: by the suffix of OUT, else dataprep]",
)  # fmt: skip
@click.option(
    "--prefer", type=click.Choice(["pt", "hdf5"]),
    help="Which to read where JASPER's directory holds .pt files and a dataset.h5 that differ.",
)  # fmt: skip
@click.option(
    "--gzip", is_flag=True,
    help="Pack HDF5: some 7 % smaller for vectors, and many times slower.",
)  # fmt: skip
@output_options
def command(
    *,
    source: Path,
    out: Path,
    to: DatasetLayout | None,
    prefer: JasperForm | None,
    gzip: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert a dataset of embeddings or pairs to another layout.

    SOURCE is a directory made by dataprep, a directory of JASPER, or a .safetensors or HDF5 file
    that this command wrote, recognised by its content. OUT must not exist. JASPER's files are
    checked completely before anything is written, and no pickle is run. Exits with 7 if data from
    another program is invalid, with 3 if data from dataprep was changed.
    """
    from dataprep.pipeline.interop.convert import convert

    from .progress import byte_progress

    with byte_progress("converting", quiet=quiet) as show, naming_options("to", "prefer", "gzip"):
        report = convert(source, out, to=to, prefer=prefer, gzip=gzip, progress=show)
    if as_json:
        output.result_json(report.as_dict())
    elif not quiet:
        output.result("\n".join(_lines(report)))


def _lines(report: ConvertReport) -> list[str]:
    """Return the lines that describe the result, with notes and the next command to run."""
    splits = ", ".join(f"{name} {rows:,}" for name, rows in report.splits.items())
    lines = [
        f"{report.path}: {report.layout} from {report.source_layout} in "
        f"{duration_text(report.seconds)} ({bytes_text(report.bytes)})",
        f"  {report.kind:10} {count_text(report.rows, 'row')} in "
        f"{count_text(report.arrays, 'array')} ({splits})",
        *(f"  note       {output.one_line(note)}" for note in report.notes),
    ]
    if report.layout == "dataprep":
        lines.append(f"Check it: dataprep verify {report.path}")
    return lines
