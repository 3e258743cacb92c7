"""Functions that open a dataset directory, and the base class of open datasets of every kind.

Opening reads config.json and compares the size of every file with it. No data is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from ..errors import IntegrityError, UsageError
from ..files.paths import is_remote, local_path
from ..files.safe_open import check_size
from ..manifest.common import FileEntry, InputEntry, folders_of
from ..manifest.inputs import AnyManifest, read_inputs
from .open_files import Files, ReadBy
from .staleness import BuildGuard, require_same

__all__ = ["OpenDirectory", "choose_io", "open_directory", "reopen"]

ManifestT = TypeVar("ManifestT", bound=AnyManifest)
SplitT = TypeVar("SplitT")


def open_directory(
    path: str | os.PathLike[str], io: ReadBy | None, load: Callable[[Path], ManifestT]
) -> tuple[Path, ManifestT, BuildGuard, ReadBy]:
    """Check the dataset at `path` and return the arguments for the constructor of `OpenDirectory`.

    The function `load` reads and validates config.json. Raise `IntegrityError` unless every file
    has the size that config.json says.
    """
    directory = local_path(path).absolute()  # files are opened later, perhaps from elsewhere
    io = choose_io(io, directory)
    guard = BuildGuard(directory)

    def load_checked() -> ManifestT:
        manifest = load(directory)
        _check_sizes(directory, manifest.files)
        return manifest

    manifest = guard.open(load_checked)
    guard.identify(manifest.self_sha256)
    return directory, manifest, guard, io


class OpenDirectory(Generic[ManifestT, SplitT]):
    """An open dataset: its manifest, its files, and its splits by name.

    Each process maps or opens a file on first use. All splits share the open files, and a pickle of
    the dataset does not contain them. ``dataset["train"]`` is a split, and iteration yields the
    names of the splits.
    """

    splits: Mapping[str, SplitT]
    _build_hint: ClassVar[str] = "Name one of these."

    def __init__(
        self, path: Path, manifest: ManifestT, guard: BuildGuard, io: ReadBy = "mmap"
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.io: ReadBy = io
        self.files = Files(path, {entry.name: entry for entry in manifest.files}, guard, io)
        self._guard = guard
        self._inputs: tuple[InputEntry, ...] | None = None

    @property
    def recipe_id(self) -> str:
        """Hex digest of the inputs and options of the build (see docs/format.md)."""
        return self.manifest.recipe_id

    @property
    def inputs(self) -> tuple[InputEntry, ...]:
        """The inputs of the build, in order.

        If the manifest keeps them in a side file, the file is read on first use.
        """
        if self._inputs is None:
            self._inputs = self._guard.open(lambda: read_inputs(self.path, self.manifest))
        return self._inputs

    def split(self, name: str) -> SplitT:
        """Return the split `name`. If there is none, raise a `UsageError` that lists the splits."""
        try:
            return self.splits[name]
        except KeyError:
            raise self._unknown("split", name, self.splits, "E_SPLIT") from None

    def _unknown(self, what: str, name: str, known: Mapping[str, object], code: str) -> UsageError:
        return UsageError(
            f"there is no {what} {name!r}, only {', '.join(known)}", where=str(self.path),
            code=code, remedy=self._build_hint,
        )  # fmt: skip

    def __getitem__(self, name: str) -> SplitT:
        return self.split(name)

    def __contains__(self, name: object) -> bool:
        return name in self.splits

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def close(self) -> None:
        """Drop maps and open files. Arrays returned earlier remain valid."""
        self.files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reopen(
    opener: Callable[..., OpenDirectory[Any, Any]], path: Path, self_sha256: str, io: ReadBy
) -> OpenDirectory[Any, Any]:
    """Return the dataset in `path`, opened by `opener`. Unpickling a dataset calls this function.

    Raise `IntegrityError` if the dataset was replaced, so that the digest of its config.json is no
    longer `self_sha256`.
    """
    dataset = opener(path, io=io)
    require_same(path, self_sha256, dataset.manifest.self_sha256)
    return dataset


def choose_io(io: ReadBy | None, directory: Path) -> ReadBy:
    """Return `io`, or the default for `directory` if `io` is None.

    The default is ``"pread"`` on network file systems and FUSE, else ``"mmap"``. Raise `UsageError`
    for an unknown `io`.
    """
    if io is None:
        return "pread" if is_remote(directory) else "mmap"
    if io not in get_args(ReadBy):
        raise UsageError(f"must be one of {', '.join(get_args(ReadBy))}, got {io!r}", where="io")
    return io


def _check_sizes(directory: Path, entries: Sequence[FileEntry]) -> None:
    """Raise `IntegrityError` unless all `entries` are ordinary files of the stated sizes.

    Raise it also if a folder that contains one of the files is a symbolic link.
    """
    for folder in sorted(folders_of(entry.name for entry in entries)):
        if (directory / folder).is_symlink():
            raise IntegrityError(
                "is a symbolic link; dataprep reads only ordinary folders", where=folder,
                code="E_NAME", remedy="Copy the folder here.",
            )  # fmt: skip
    for entry in entries:
        check_size(f"{directory}/{entry.name}", entry.name, entry.bytes)  # a Path costs 10 us
