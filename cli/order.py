"""`dataprep order`: the documents, files and bytes behind a step, and the steps behind a document.

Both are computed from the order, as a loader computes it, so they hold for any run with the same
dataset and options, finished or not. Costs the opening of the dataset and the import of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dataprep.cli import output
from dataprep.cli.command import (
    ANY_PATH,
    EPILOG_START,
    SectionedCommand,
    naming_options,
    output_options,
)
from dataprep.formats.errors import DataprepError, UsageError

if TYPE_CHECKING:
    from dataprep.formats.dataset import Dataset, Split
    from dataprep.runtime.sampling import End, GlobalBatchSampler
    from dataprep.runtime.serve import Shuffle
    from dataprep.runtime.windows import Labels, WindowDataset

__all__ = ["OrderOptions", "command"]

_ASKED, _SERVED = "What to show", "What the loader was made with"


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderOptions:
    """What decides the samples of every step, named as the arguments of `create_loader`."""

    batch_size: int
    seq_len: int
    stride: int | None
    labels: Labels | None
    seed: int
    epoch: int
    dp_size: int
    shuffle: str | None
    end: End | None
    skip: Path | None


def _run(split: Split, options: OrderOptions) -> tuple[WindowDataset, GlobalBatchSampler]:
    """The dataset and the sampler that a loader with these options has."""
    from dataprep.runtime.sampling import GlobalBatchSampler
    from dataprep.runtime.serve import build_order
    from dataprep.runtime.skips import read_skips
    from dataprep.runtime.windows import WindowDataset

    windows = WindowDataset(
        split, seq_len=options.seq_len, stride=options.stride, labels=options.labels
    )
    train = split.name == "train"
    kind = options.shuffle or ("full" if train else "none")
    shuffle = False if kind == "none" else cast("Shuffle", kind)
    order, _ = build_order(windows, split, seed=options.seed, shuffle=shuffle)
    end: End = "drop" if train else "pad" if options.dp_size > 1 else "partial"
    sampler = GlobalBatchSampler(
        len(windows), options.batch_size, order=order, epoch=options.epoch,
        dp_size=options.dp_size, end=options.end or end,
        skips=None if options.skip is None else read_skips(options.skip),
    )  # fmt: skip
    return windows, sampler


@click.command(
    "order",
    cls=SectionedCommand,
    sections=dict.fromkeys(("step", "rank", "doc", "split", "epoch"), _ASKED)
    | dict.fromkeys(
        ("batch_size", "seq_len", "stride", "labels", "dp_size", "seed", "shuffle", "end",
         "skip"),
        _SERVED,
    ),
    epilog=f"""{EPILOG_START}
  dataprep order shards --step 41200 --batch-size 32 --seq-len 2048 --seed 7
  dataprep order shards --step 41200 --rank 3 --dp-size 8 --batch-size 32 --seq-len 2048
  dataprep order shards --doc 104729 --batch-size 32 --seq-len 2048 --epoch 1
  dataprep order shards --step 0 --batch-size 8 --json | python -m json.tool""",
)  # fmt: skip
@click.argument("path", type=ANY_PATH)
@click.option("--step", metavar="N", type=int, help="The documents behind step N of the epoch.")
@click.option("--rank", metavar="R", type=int, help="With --step: what rank R gets.")
@click.option(
    "--doc", metavar="ID", type=int,
    help="The steps that see the document with this record id: its number among all records read.",
)  # fmt: skip
@click.option(
    "--split", metavar="NAME",
    help="The split that is served.  [default: that of --doc; train, or the first one]",
)  # fmt: skip
@click.option("--epoch", metavar="N", type=int, default=0, show_default=True, help="From 0.")
@click.option(
    "--batch-size", metavar="N", type=int, required=True, help="Rows per step and rank."
)  # fmt: skip
@click.option(
    "--seq-len", metavar="N", type=int, default=1024, show_default=True, help="Tokens per row."
)  # fmt: skip
@click.option(
    "--stride", metavar="N", type=int, show_default="--seq-len",
    help="Tokens from one window to the next.",
)  # fmt: skip
@click.option(
    "--labels", type=click.Choice(["shifted", "unshifted", "none"]), default="shifted",
    show_default=True, help="shifted labels read one token more.",
)  # fmt: skip
@click.option(
    "--dp-size", metavar="N", type=int, default=1, show_default=True, help="Data-parallel ranks."
)  # fmt: skip
@click.option(
    "--seed", metavar="N", type=int, default=0, show_default=True, help="Of the shuffle."
)  # fmt: skip
@click.option(
    "--shuffle", type=click.Choice(["full", "blocks", "none"]),
    show_default="full for train, otherwise none",
    help="full: all samples. blocks: in pieces, for data larger than the page cache.",
)  # fmt: skip
@click.option(
    "--end", type=click.Choice(["drop", "pad", "partial"]),
    show_default="drop for train, otherwise pad or partial",
    help="What becomes of samples that do not fill the last global batch.",
)  # fmt: skip
@click.option(
    "--skip", metavar="FILE", type=ANY_PATH,
    help="Samples that are left out: one to a line, or a JSON array.",
)  # fmt: skip
@output_options
def command(
    *, path: Path, step: int | None, rank: int | None, doc: int | None, split: str | None,
    labels: str, as_json: bool, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Show what a step is made of, or which steps see a document.

    PATH is a directory made by `dataprep build`. The order is computed: give the options that the
    loader had, and any step of any epoch is known, with the files and bytes it was read from.
    """
    from dataprep.cli.traces import document_text, step_text
    from dataprep.formats.dataset import open_dataset

    asked = _Asked(step=step, rank=rank, doc=doc, split=split)
    served = OrderOptions(labels=None if labels == "none" else cast("Labels", labels), **options)
    with open_dataset(path) as dataset, _naming():
        found = _step(dataset, asked, served) if doc is None else _document(dataset, asked, served)
    if as_json:
        output.result_json(found)
    elif not quiet:
        output.result(step_text(found) if doc is None else document_text(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is to be shown: a step, or a document by its record id."""

    step: int | None
    rank: int | None
    doc: int | None
    split: str | None

    def __post_init__(self) -> None:
        if (self.step is None) == (self.doc is None):
            raise UsageError("give one of the two", where="--step, --doc")
        if self.rank is not None and self.step is None:
            raise UsageError("goes with --step", where="--rank")


def _step(dataset: Dataset, asked: _Asked, served: OrderOptions) -> dict[str, Any]:
    """What --step shows, as --json prints it."""
    from dataprep.cli.traces import step_facts
    from dataprep.runtime.trace import trace_step

    if asked.split is None and not dataset.splits:
        raise UsageError("has no splits", where=str(dataset.path), code="E_SPLIT")
    first = "train" if "train" in dataset.splits else next(iter(dataset.splits), "")
    split = dataset.split(asked.split or first)
    windows, sampler = _run(split, served)
    trace = trace_step(windows, sampler, asked.step or 0, epoch=served.epoch, rank=asked.rank)
    return step_facts(trace, split)


def _document(dataset: Dataset, asked: _Asked, served: OrderOptions) -> dict[str, Any]:
    """What --doc shows, as --json prints it."""
    from dataprep.cli.traces import document_facts
    from dataprep.runtime.provenance import find_record
    from dataprep.runtime.trace import WindowSpans, steps_of_document

    split, document = find_record(dataset, asked.doc or 0, asked.split)
    windows, sampler = _run(split, served)
    trace = steps_of_document(WindowSpans.of(windows), sampler, document, epoch=served.epoch)
    return document_facts(trace, split)


@contextmanager
def _naming() -> Iterator[None]:
    """Errors about an argument name its option."""
    names = ("batch_size", "seq_len", "stride", "dp_size", "epoch", "end", "step", "rank")
    try:
        with naming_options(*names, "seed"):
            yield
    except DataprepError as error:
        error.where = {"record": "--doc", "skip": "--skip"}.get(error.where or "", error.where)
        raise
