"""The progress bar and the words of a summary."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from dataprep.cli.progress import build_progress, byte_progress
from dataprep.cli.summary import estimate_lines, token_counts
from tests.scenes.runner import environment

SHOW = """
from dataprep.cli.progress import build_progress
from dataprep.pipeline.progress import Progress
with build_progress(quiet=False) as show:
    if show is None:
        print("nothing")
    else:
        show(Progress(stage="plan"))
        show(Progress(stage="tokenize", bytes_done=5_000_000, bytes_total=10_000_000,
                      documents=1234, tokens=56789, rejects=7, seconds=1.0))
"""


def test_bar_on_a_terminal_shows_everything() -> None:
    """Bytes, documents, tokens and rejects stand in the bar, on standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", SHOW], stderr=theirs, stdout=subprocess.PIPE, check=True,
        env=environment(TERM="xterm", COLUMNS="150", NO_COLOR="1"),
    )  # fmt: skip
    os.close(theirs)
    drawn = b""
    while part := read(ours):
        drawn += part
    os.close(ours)
    assert process.stdout == b""
    for piece in ("tokenizing", "5.0/10.0 MB", "1,234 docs", "56,789 tokens", "7 rejected"):
        assert piece in drawn.decode()


def read(descriptor: int) -> bytes:
    """What is there; Linux says with an error that the other side is closed."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_no_bar_where_nobody_looks() -> None:
    """Piped, the same build draws nothing."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW], capture_output=True, text=True, check=True, env=environment()
    )
    assert (done.stdout, done.stderr) == ("nothing\n", "")


@pytest.mark.parametrize("quiet", [True, False])
def test_no_function_without_a_terminal(quiet: bool) -> None:
    """Callers are told that nobody would see it, and can leave reporting out."""
    with build_progress(quiet=quiet) as show, byte_progress("x", quiet=quiet) as show_bytes:
        assert show is None
        assert show_bytes is None


def test_estimate_in_words() -> None:
    """Every figure of an estimate is there, in units for people."""
    found: dict[str, Any] = {
        "inputs": 2, "input_bytes": 5_000_000, "documents": 1000.4, "tokens": 1_250_000,
        "bytes_per_token": 4.0, "tokenizer": "built-in", "engine": "gigatoken",
        "engine_reason": "same ids", "output_bytes": 2_500_000, "peak_disk_bytes": 5_200_000,
        "free_bytes": 1_000_000_000, "seconds": 90, "splits": {}, "fits": True,
        "notes": ("a note\nin two lines",),
    }  # fmt: skip
    text = "\n".join(estimate_lines(found, token_counts(found)))
    for piece in (
        "2, 5.0 MB",
        "1,000",
        "1,250,000",
        "4.00 bytes",
        "2.5 MB",
        "1.0 GB",
        "1 min 30 s",
        "note       a note\\nin two lines",
    ):
        assert piece in text
