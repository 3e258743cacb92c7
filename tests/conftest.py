"""Datasets that many tests read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import REPOSITORY

# One thread, also for the processes that tests start: several that share busy cores wait for one
# another most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of tests inherit it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the suites whose figures are committed."""
    parser.addoption(
        "--write-results", action="store_true", help="put figures into benchmarks/results"
    )


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories of data_fixtures, really built, with splits train, val and test. Do not write."""
    from dataprep.pipeline.build import build
    from dataprep.pipeline.options import BuildOptions

    out = tmp_path_factory.mktemp("stories") / "shards"
    source = str(REPOSITORY / "data_fixtures" / "stories.jsonl")
    options = BuildOptions(
        input=(source,), out=out, split="train=0.8,val=0.1,test=0.1", workers=1
    )  # fmt: skip
    build(options)
    return out
