"""Progress bars on standard error, if it is a terminal.

Otherwise, or with --quiet, nothing is shown and `rich` is not imported, because a log needs only
the summary and errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from dataprep.pipeline.progress import Progress

__all__ = ["build_progress", "byte_progress"]

_STAGES = {"plan": "reading inputs", "tokenize": "tokenizing", "commit": "writing"}


@contextmanager
def build_progress(
    *, quiet: bool, counts: str = "documents"
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function that shows the progress of a build, or None if nothing is to be shown.

    Nothing is shown if `quiet` is true or standard error is not a terminal. The argument `counts`
    says what is counted. For ``documents`` the bar shows the numbers of documents and tokens, and
    for ``rows`` the number of rows. For ``steps`` it shows the finished parts of the current step.
    """
    if quiet or not output.is_terminal(sys.stderr):
        yield None
        return
    if counts == "steps":
        with _step_progress() as draw:
            yield draw
        return
    text = "rows" if counts == "rows" else "docs  {task.fields[tokens]:,} tokens"
    bar = _bar(f"{{task.fields[documents]:,}} {text}{{task.fields[bad]}}")
    with bar:
        task = bar.add_task(_STAGES["plan"], total=None, documents=0, tokens=0, bad="")

        def show(progress: Progress) -> None:
            bar.update(
                task,
                description=_STAGES.get(progress.stage, progress.stage),
                completed=progress.bytes_done,
                total=progress.bytes_total or None,
                documents=progress.documents,
                tokens=progress.tokens,
                bad=f"  [red]{progress.rejects:,} rejected" if progress.rejects else "",
            )

        yield show


@contextmanager
def _step_progress() -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:10}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("", total=None)

        def show(progress: Progress) -> None:
            bar.update(
                task, description=progress.stage, completed=progress.step_done,
                total=progress.step_total or None,
            )  # fmt: skip

        yield show


@contextmanager
def byte_progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows a progress bar, or None if nothing is to be shown.

    The function takes the number of bytes done and the total. Nothing is shown if `quiet` is true
    or standard error is not a terminal.
    """
    if quiet or not output.is_terminal(sys.stderr):
        yield None
        return
    bar = _bar("")
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bar(counts: str) -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = [
        TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(),
        TransferSpeedColumn(), TimeRemainingColumn(compact=True),
    ]  # fmt: skip
    if counts:
        columns.append(TextColumn(counts))
    return Progress(*columns, console=Console(stderr=True), transient=True)
