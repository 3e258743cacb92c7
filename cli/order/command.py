"""The command `dataprep order`, which shows the documents of a step, or the steps of a document.

The order of the samples is computed in the same way as in a loader. So the result is true for any
training run with the same datasets and options, finished or not. No batch is made, but torch is
imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dataprep.formats.errors import DataprepError, UsageError, naming_dataset

from .. import output
from ..command import (
    ANY_PATH,
    EPILOG_START,
    SectionedCommand,
    naming_options,
    output_options,
)
from .option_words import in_options
from .run import OrderOptions, State, epoch_order, read_state, require_datasets, split_in

if TYPE_CHECKING:
    from dataprep.formats.read.dataset import Dataset

__all__ = ["command"]

_ASKED, _SERVED = "What to show", "What the loader was made with"


@click.command(
    "order",
    cls=SectionedCommand,
    sections=dict.fromkeys(("step", "rank", "doc", "source", "split", "epoch"), _ASKED)
    | dict.fromkeys(
        ("state", "batch_size", "rows", "seq_len", "stride", "pack", "overlong", "labels",
         "dp_size", "seed", "shuffle", "end", "skip", "weights", "weigh_by"),
        _SERVED,
    ),
    epilog=f"""{EPILOG_START}
  dataprep order shards --step 41200 --batch-size 32 --seq-len 2048 --seed 7
  dataprep order shards --step 41200 --rank 3 --dp-size 8 --batch-size 32 --seq-len 2048
  dataprep order shards --doc 104729 --batch-size 32 --seq-len 2048 --epoch 1
  dataprep order shards --state state.json --batch-size 32
  dataprep order prose code --weight 0.7 --weight 0.3 --step 7 --batch-size 32 --rows packed
  dataprep order shards --step 0 --batch-size 8 --json | python -m json.tool""",
)  # fmt: skip
@click.argument("paths", metavar="PATH...", type=ANY_PATH, nargs=-1, required=True)
@click.option(
    "--step", metavar="N", type=int,
    help="The documents behind step N of the epoch.  [default with --state: the next step]",
)  # fmt: skip
@click.option("--rank", metavar="R", type=int, help="With --step: what rank R gets.")
@click.option(
    "--doc", metavar="ID", type=int,
    help="The steps that see the document with this record id: its number among all records read.",
)  # fmt: skip
@click.option(
    "--source", metavar="N", type=int,
    help="With --doc and several PATHs: the number of the document's own, from 0.",
)  # fmt: skip
@click.option(
    "--split", metavar="NAME",
    help="The split that is served.  [default: that of --doc; train, or the first one]",
)  # fmt: skip
@click.option("--epoch", metavar="N", type=int, show_default="0", help="From 0.")
@click.option(
    "--state", metavar="FILE", type=ANY_PATH,
    help="JSON of what state_dict() of the loader gave: says all but batches and ranks.",
)  # fmt: skip
@click.option(
    "--batch-size", metavar="N", type=int, required=True, help="Rows per step and rank."
)  # fmt: skip
@click.option(
    "--rows",
    type=click.Choice(["windows", "packed", "documents", "pairs", "labels", "groups"]),
    show_default="what it was built for: windows of texts, packed conversations",
    help="What a row holds.",
)  # fmt: skip
@click.option(
    "--seq-len", metavar="N", type=int, show_default="1024", help="Tokens per row."
)  # fmt: skip
@click.option(
    "--stride", metavar="N", type=int, show_default="--seq-len",
    help="Tokens from one window to the next.",
)  # fmt: skip
@click.option(
    "--pack", type=click.Choice(["first-fit", "best-fit"]), show_default="first-fit",
    help="How rows are packed.",
)  # fmt: skip
@click.option(
    "--overlong",
    type=click.Choice(["split", "truncate", "truncate-left", "drop", "error"]),
    show_default="split; documents: truncate; conversations: error",
    help="What becomes of documents longer than a row.",
)  # fmt: skip
@click.option(
    "--labels", type=click.Choice(["shifted", "unshifted", "none"]),
    show_default="shifted", help="shifted labels read one token more.",
)  # fmt: skip
@click.option(
    "--dp-size", metavar="N", type=int, default=1, show_default=True, help="Data-parallel ranks."
)  # fmt: skip
@click.option(
    "--seed", metavar="N", type=int, show_default="0", help="Of the shuffle."
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
    help="Samples that are left out: one to a line, or a JSON array; of several PATHs an object "
    "of arrays by PATH.",
)  # fmt: skip
@click.option(
    "--weight", "weights", metavar="W", type=float, multiple=True,
    help="Of a mixture: once for each PATH, in the order of the loader.",
)  # fmt: skip
@click.option(
    "--weigh-by", type=click.Choice(["samples", "tokens"]), show_default="samples",
    help="What weights are shares of.",
)  # fmt: skip
@output_options
def command(
    *, paths: tuple[Path, ...], step: int | None, rank: int | None, doc: int | None,
    source: int | None, split: str | None, state: Path | None, skip: Path | None,
    as_json: bool, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Show what a step is made of, or which steps see a document.

    PATH is a directory made by `dataprep build`; several make a mixture. The order is computed from
    the options that the loader had, or from its saved state; no training run is needed. Any step of
    any epoch can be shown, with the files and positions that its documents were read from.
    """
    from dataprep.formats.read.dataset import open_dataset
    from dataprep.runtime.order.skips import read_skips

    from .report import document_text, step_text

    with ExitStack() as opened, _naming():
        asked = _Asked(
            step=step, rank=rank, doc=doc, source=source, split=split, datasets=len(paths),
            state=None if state is None else read_state(state),
        )  # fmt: skip
        served = OrderOptions(
            skip=None if skip is None else read_skips(skip), **options,
        )  # fmt: skip
        datasets, names = [], [str(path) for path in paths]
        for path in names:
            with _one_of(names, path):
                datasets.append(opened.enter_context(open_dataset(path)))
        if asked.state is not None:
            require_datasets(asked.state, datasets, names, served)
        import torch  # noqa: F401 (from a short stack; see `SectionedCommand.invoke`)

        show = _step if doc is None else _document
        found = show(datasets, names, asked, served)
    if as_json:
        output.result_json(found)
    elif not quiet:
        output.result(step_text(found) if doc is None else document_text(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The question on the command line: which step or document to show, and from which saved state.

    `doc` is the record id of the document, and `source` is the index of its dataset among the
    PATHs. `datasets` is the number of PATHs. Raises `UsageError` if the options contradict one
    another or `source` is out of range.
    """

    step: int | None
    rank: int | None
    doc: int | None
    source: int | None
    split: str | None
    datasets: int
    state: State | None

    def __post_init__(self) -> None:
        if (self.step is not None) + (self.doc is not None) != 1 and not self._next:
            raise UsageError("give one of the two", where="--step, --doc")
        if self.rank is not None and self.doc is not None:
            raise UsageError("goes with --step", where="--rank")
        if self.source is not None and self.doc is None:
            raise UsageError("goes with --doc", where="--source")
        if self.doc is not None and self.source is None and self.datasets > 1:
            raise UsageError(
                f"record ids are numbers in one dataset, and there are {self.datasets}",
                where="--source", remedy="Give the number of the document's PATH, from 0.",
            )  # fmt: skip
        if not 0 <= (self.source or 0) < self.datasets:
            raise UsageError(f"{self.source} is not in 0 .. {self.datasets - 1}", where="--source")

    @property
    def _next(self) -> bool:
        """True if the command line asks for the step that follows the saved state."""
        return self.state is not None and self.step is None and self.doc is None

    def split_of(self, dataset: Dataset) -> str | None:
        """Return the name of the split to show: --split, or else the split of the state, or None.

        If `dataset` has the split of the state under another name, return the name in `dataset`
        (see `split_in`).
        """
        return self.split or (None if self.state is None else split_in(self.state, dataset))


def _step(
    datasets: Sequence[Dataset], names: Sequence[str], asked: _Asked, served: OrderOptions
) -> dict[str, Any]:
    """Return the facts about the requested step, for --json.

    Raise `UsageError` if the dataset has no splits, or if no step is given and the state belongs to
    a different epoch.
    """
    from dataprep.runtime.inspect.trace import trace_step

    from .report import step_facts

    splits, split = datasets[0].splits, asked.split_of(datasets[0])
    if split is None and not splits:
        raise UsageError("has no splits", where=str(datasets[0].path), code="E_SPLIT")
    first = "train" if "train" in splits else next(iter(splits), "")
    order = epoch_order(datasets, names, split or first, served, asked.state)
    step = order.next_step if asked.step is None else asked.step
    if step is None:
        raise UsageError(
            f"the state is not of epoch {order.epoch}, so no step of that comes next",
            where="--step", remedy="Say which one.",
        )  # fmt: skip
    trace = trace_step(
        order.samples, order.sampler, step, epoch=order.epoch, rank=asked.rank, start=order.start
    )
    return step_facts(trace, order)


def _document(
    datasets: Sequence[Dataset], names: Sequence[str], asked: _Asked, served: OrderOptions
) -> dict[str, Any]:
    """Return the facts about the requested document, for --json.

    If the record of the document consists of several documents, the facts about the other documents
    are in the list `other_documents`.
    """
    from dataprep.runtime.inspect.provenance import find_record
    from dataprep.runtime.inspect.trace import steps_of_document

    from .report import document_facts

    source = asked.source or 0
    with _one_of(names, names[source]):
        split, documents = find_record(
            datasets[source], asked.doc or 0, asked.split_of(datasets[source])
        )
    order = epoch_order(datasets, names, split.name, served, asked.state)
    with _one_of(names, names[source]):
        first, *more = (
            document_facts(
                steps_of_document(
                    order.samples, order.sampler, document, epoch=order.epoch, start=order.start,
                    source=source,
                ),
                order,
            )
            for document in documents
        )  # fmt: skip
    return first | {"other_documents": more} if more else first


def _one_of(names: Sequence[object], name: object) -> AbstractContextManager[None]:
    """Return a context that adds `name` to errors, or does nothing if `names` has a single item.

    `names` are the names of all datasets on the command line.
    """
    return naming_dataset(name) if len(names) > 1 else nullcontext()


@contextmanager
def _naming() -> Iterator[None]:
    """Return a context in which errors name options instead of arguments."""
    names = (
        "batch_size", "seq_len", "stride", "dp_size", "epoch", "end", "step", "rank", "seed",
        "rows", "pack", "overlong", "shuffle", "weigh_by", "skip", "state", "labels",
    )  # fmt: skip
    others = {
        "record": "--doc", "max_length": "--seq-len", "weights": "--weight",
        "dataset_dir": "PATH", "algorithm": "--pack", "by": "--weigh-by",
    }  # fmt: skip
    try:
        with naming_options(*names):
            yield
    except DataprepError as error:
        error.where = others.get(error.where or "", error.where)
        if error.where is not None and error.where.startswith("skip of "):
            error.where = f"--{error.where}"
        in_options(error, names)
        raise
