"""What the fault tests share: figures for the committed results, a quick place, quick builds."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forked_builds import ForkedBuilds
from tests.faults.killed_builds import Place
from tests.faults.report import Figures


@pytest.fixture
def figures(request: pytest.FixtureRequest, tmp_path: Path) -> Figures:
    """Takes what a long test found; see `tests.faults.report`."""
    write = bool(request.config.getoption("--write-results"))
    return Figures(f"{request.path.name}::{request.node.name}", tmp_path, write=write)


@contextlib.contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """An empty folder in memory, where there is such a place; else `otherwise`."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK | os.X_OK) or shutil.disk_usage(memory).free < 1 << 28:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-faults-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def quick_place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory if possible: hundreds of builds wait for no disk.

    A killed process loses nothing that it handed to the kernel, so for faults short of a power cut
    any file system with hard links and atomic renames tells the same.
    """
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="session")
def builds() -> Iterator[ForkedBuilds]:
    """The process that forks builds."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell which file a descriptor is")
    with ForkedBuilds() as forks:
        yield forks


@pytest.fixture(scope="session")
def new_place(builds: ForkedBuilds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place for builds where nothing stands; tests reset it."""
    with quick_folder(tmp_path_factory.mktemp("new")) as folder:
        yield Place(builds, folder / "place")


@pytest.fixture(scope="session")
def old_place(builds: ForkedBuilds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The same, where an older dataset stands that is to be replaced."""
    with quick_folder(tmp_path_factory.mktemp("old")) as folder:
        yield Place(builds, folder / "place", overwrite=True)
