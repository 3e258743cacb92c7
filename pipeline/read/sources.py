"""Which files a build reads, in what order, and what is in them.

Order is: the arguments as given, and within a folder or glob by name. Nothing is guessed from
content that the name contradicts; what cannot be told is asked for (`--format`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from dataprep.formats.errors import InputError, StorageError, UsageError
from dataprep.formats.files.other_layouts import foreign_layout, vectors_remedy
from dataprep.formats.files.paths import local_path
from dataprep.formats.storage import storage_errors

from .detect import HEAD_BYTES, compression_of, json_kind

__all__ = [
    "HUB_PREFIX",
    "Search",
    "Source",
    "changed_error",
    "check_unchanged",
    "find_sources",
    "folder_notes",
    "input_error",
    "reading",
]

HUB_PREFIX = "hf:"

_COMPRESSED = (".gz", ".zst", ".zstd")
_PACKED = {
    ".bz2": "bzip2", ".xz": "xz", ".zip": "ZIP", ".7z": "7z", ".tar": "tar", ".tgz": "tar",
}  # fmt: skip
_TABLES = {".csv": "CSV", ".tsv": "TSV"}
_SAVED_DATASET = ("state.json", "dataset_dict.json")
_NAMED = 3  # of the files that a note is about


class Search(Protocol):
    """What is asked for: the options of any kind of build.

    `formats` says which format the name of a file stands for, by its last suffix.
    """

    @property
    def input(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def out(self) -> Path: ...  # noqa: D102
    @property
    def format(self) -> str | None: ...  # noqa: D102
    @property
    def hf_config(self) -> str | None: ...  # noqa: D102
    @property
    def hf_split(self) -> str | None: ...  # noqa: D102
    @property
    def formats(self) -> Mapping[str, str]: ...  # noqa: D102


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input: a file, or a Hugging Face dataset.

    `size` is in bytes, as stored, and `modified` the file's time in nanoseconds. Of a dataset it is
    the size of its Arrow files, and a number that stands for their names, sizes and times.
    """

    path: str
    name: str
    format: str
    compression: str | None = None
    size: int = 0
    modified: int = 0

    @property
    def splittable(self) -> bool:
        """Whether byte ranges of it can be read by themselves."""
        return self.format in ("jsonl", "text") and self.compression is None


def input_error(problem: str, where: str, remedy: str, code: str = "E_INPUT") -> InputError:
    """An `InputError` about the input `where`."""
    return InputError(problem, where=where, remedy=remedy, code=code)


def changed_error(source: Source) -> InputError:
    """The error of an input that is not the planned one any more."""
    return input_error(
        "the file changed while it was being read", source.name,
        "Leave inputs alone during a build, then run the command again.", "E_CHANGED",
    )  # fmt: skip


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn an OSError met on reading `path` into a `StorageError` that says what mends it."""
    with storage_errors(path):
        try:
            yield
        except PermissionError as error:
            raise StorageError(
                os.strerror(error.errno or 0), where=str(error.filename or path), code="E_DENIED",
                remedy="Give yourself permission to read it (chmod).",
            ) from error  # fmt: skip


def check_unchanged(source: Source, found: os.stat_result | None = None) -> None:
    """Raise `InputError` unless the file is still the one that the build was planned with.

    `found` is what is known of the opened file; without it, the path is looked at.
    """
    if found is None:
        with reading(source.path):
            found = Path(source.path).stat()
    if (found.st_size, found.st_mtime_ns) != (source.size, source.modified):
        raise changed_error(source)


def find_sources(options: Search) -> list[Source]:
    """All inputs of a build, in order; raises `InputError` for one that is missing or unusable.

    A Hugging Face dataset is opened (and fetched, if it is on the hub) to see what is in it.
    """
    found: list[Path | str] = []
    for spec in options.input:
        if spec.startswith(HUB_PREFIX):
            found.append(spec)
        else:
            with reading(spec):
                found += _expand(spec, options)
    _refuse_repeats(found)
    root = _common_folder([path for path in found if isinstance(path, Path)])
    return [
        _hub(at, options) if isinstance(at, str) else _describe(at, root, options) for at in found
    ]


def folder_notes(options: Search) -> tuple[str, ...]:
    """What was left out of each folder among the inputs, in words; nothing is no note."""
    notes: list[str] = []
    for spec in options.input:
        folder = Path(spec)
        if spec and not spec.startswith(HUB_PREFIX) and folder.is_dir() and not _is_saved(folder):
            notes += _notes(folder, options)
    return tuple(notes)


def _notes(folder: Path, options: Search) -> Iterator[str]:
    files, links = _content(folder, options)
    unknown = [path for path in files if not (options.format or _format_of(path, options))]
    if unknown:
        kind = "1 file" if len(unknown) == 1 else f"{len(unknown)} files"
        were = "was" if len(unknown) == 1 else "were"
        suffixes = {path.suffix.lower() for path in unknown}
        known = ", ".join(options.formats)
        yield (
            f"{kind} of unknown type in {_shown(folder)} {were} left out ({_names(unknown)}). "
            + (_mended(suffixes, "them") or f"Rename what is to be read by what it holds: {known}.")
        )
    if links:
        yield (
            f"linked folders in {_shown(folder)} were left out ({_names(links)}); "
            "name them as inputs to read them"
        )


def _mended(suffixes: Collection[str], what: str) -> str | None:
    """Return what to do with `what`, files of suffixes none of which is ever read."""
    packed, tables = _PACKED.keys() & suffixes, _TABLES.keys() & suffixes
    if not suffixes or len(packed) + len(tables) < len(suffixes):
        return None
    if packed and tables:
        return "Unpack the archives, and convert the tables to JSONL or Parquet."
    return f"Unpack {what}." if packed else f"Convert {what} to JSONL or Parquet."


def _names(paths: list[Path]) -> str:
    more = [] if len(paths) <= _NAMED else ["..."]
    return ", ".join([_shown(Path(path.name)) for path in paths[:_NAMED]] + more)


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _hub(spec: str, options: Search) -> Source:
    place = Path(spec.removeprefix(HUB_PREFIX))
    if not place.name:
        raise UsageError("names no dataset", where=f"--input {spec}", remedy="Write hf:NAME.")
    _check_text(spec, place)
    # Of a folder of this machine, only the last part may be stored.
    return _dataset(spec, HUB_PREFIX + place.name if place.is_dir() else spec, options)


def _dataset(path: str, name: str, options: Search) -> Source:
    from . import tables

    source = Source(path=path, name=name, format="hf")
    return tables.hf_source(source, options.hf_config, options.hf_split)


def _expand(spec: str, options: Search) -> Iterator[Path]:
    if not spec:
        raise UsageError("is empty", where="--input", remedy="Name a file, folder or glob.")
    path = local_path(spec)
    if path.is_dir():
        yield from _expand_folder(path, options)
    elif path.exists():
        yield path
    elif spec == "-":
        raise UsageError(
            "standard input is not read: a build must be repeatable", where="--input -",
            remedy="Write it to a file first.",
        )  # fmt: skip
    elif glob.has_magic(spec):
        found = sorted(Path(name) for name in glob.glob(spec, recursive=True))  # noqa: PTH207 (absolute and relative)
        out = os.path.realpath(options.out) + os.sep
        files = [name for name in found if name.is_file()]
        files = [name for name in files if not os.path.realpath(name).startswith(out)]
        if not files:
            raise input_error(
                "the pattern matches no file", spec, "Check it; ** spans folders.", "E_NOT_FOUND"
            )
        yield from files
    else:
        raise input_error(
            "no such file or folder", spec,
            "Check the path; a dataset of the Hugging Face hub is written hf:NAME.", "E_NOT_FOUND",
        )  # fmt: skip


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` made `folder`: it is one input."""
    return any((folder / name).is_file() for name in _SAVED_DATASET)


def _expand_folder(folder: Path, options: Search) -> Iterator[Path]:
    if _is_saved(folder):
        yield folder
        return
    files, _ = _content(folder, options)
    known = [path for path in files if options.format or _format_of(path, options)]
    if not known:
        suffixes = {path.suffix for path in files if path.suffix}
        seen = ", ".join(sorted(suffixes)) or "none"
        raise input_error(
            f"the folder holds no file of a known type (suffixes seen: {seen})", str(folder),
            _mended({suffix.lower() for suffix in suffixes}, "them")
            or f"Say what they are with --format {_known(options)}.",
            "E_NOT_FOUND",
        )  # fmt: skip
    yield from known


def _content(folder: Path, options: Search) -> tuple[list[Path], list[Path]]:
    """Files below `folder`, by name, and links to folders; nothing hidden, not the output.

    Raises for a folder that cannot be listed: nothing in it may be lost.
    """
    out = os.path.realpath(options.out)
    files, links = [], []
    for place, folders, names in os.walk(folder, onerror=_raise):
        at = Path(place)
        kept = [name for name in folders if not name.startswith(".")]
        links += [at / name for name in kept if (at / name).is_symlink()]
        folders[:] = [
            name for name in kept
            if os.path.realpath(at / name) != out and not (at / name).is_symlink()
        ]  # fmt: skip
        files += [at / name for name in names if not name.startswith(".")]
    for path in sorted(files):
        _refuse_dangling(path)
    return sorted(filter(Path.is_file, files)), sorted(links)


def _raise(error: OSError) -> None:
    raise error


def _refuse_dangling(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise input_error(
            "a link to nothing", str(path), "Mend or remove it.", "E_NOT_FOUND"
        )  # fmt: skip


def _refuse_repeats(paths: list[Path | str]) -> None:
    seen: dict[str, Path | str] = {}
    for path in paths:
        real = path if isinstance(path, str) else os.path.realpath(path)
        if real in seen:
            raise UsageError(
                f"named twice ({seen[real]} and {path})", where="--input", code="E_REPEATED",
                remedy="Every record would count twice: leave one out.",
            )  # fmt: skip
        seen[real] = path


def _common_folder(paths: list[Path]) -> str:
    parents = [os.path.dirname(os.path.abspath(path)) for path in paths]  # noqa: PTH100, PTH120
    return os.path.commonpath(parents) if parents else ""


def _describe(path: Path, root: str, options: Search) -> Source:
    absolute = os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)
    name = os.path.relpath(absolute, root).replace(os.sep, "/")
    _check_text(absolute, path)
    if path.is_dir():
        return _dataset(absolute, name, options)
    with reading(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise input_error(
            "not an ordinary file (a pipe or device can be read only once)", str(path),
            "Write its content to a file first.", "E_FORMAT",
        )  # fmt: skip
    kind = options.format or _format_of(path, options)
    suffix = path.suffix.lower()
    remedy = _mended({suffix}, "it")
    if kind is None and remedy:
        unread = (_PACKED | _TABLES)[suffix]
        raise input_error(f"{unread} is not read", str(path), remedy, "E_FORMAT")
    if kind is None and foreign_layout(path) == "hdf5":
        remedy = vectors_remedy(path, "hdf5")
        raise input_error("HDF5 is not read", str(path), remedy, "E_FORMAT")
    if kind is None:
        raise input_error(
            f"cannot tell what a {path.suffix or 'nameless'} file holds", str(path),
            f"Say it with --format {_known(options)}.", "E_FORMAT",
        )  # fmt: skip
    compression = _compression(path, kind) if kind in ("jsonl", "json", "text") else None
    kind = json_kind(path, compression) if kind == "json" else kind
    return Source(
        path=absolute, name=name, format=kind, compression=compression,
        size=found.st_size, modified=found.st_mtime_ns,
    )  # fmt: skip


def _check_text(full: str, path: Path) -> None:
    try:
        full.encode()
    except UnicodeEncodeError:
        raise input_error(
            "the path is not valid UTF-8", _shown(path),
            "Rename it: names are stored with the dataset.",
        ) from None  # fmt: skip


def _known(options: Search) -> str:
    return "|".join(dict.fromkeys(options.formats.values()))


def _format_of(path: Path, options: Search) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return options.formats.get(suffixes[-1]) if suffixes else None


def _compression(path: Path, kind: str) -> str | None:
    with reading(path), path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    return compression_of(head, path, kind)
