"""The files that a build of pairs reads: CSV, TSV, JSONL, Parquet; a folder stands for its files.

The order is that of the arguments, and by name within a folder. What a file is, its name says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dataprep.formats.errors import UsageError

from ..read.sources import Source, input_error, reading

__all__ = ["find_tables", "source_of"]

_FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_KNOWN = "Write CSV, TSV, JSONL (these also as .gz or .zst) or Parquet."


def find_tables(paths: Sequence[str]) -> list[tuple[int, Source]]:
    """All files of `paths`, in order, each with the number of the path that it comes from.

    Raises `InputError` for one that is missing or of another kind, `UsageError` for a repeated one.
    """
    found = [(at, file) for at, path in enumerate(paths) for file in _files(Path(path))]
    seen: dict[str, Path] = {}
    for _, file in found:
        real = os.path.realpath(file)
        if real in seen:
            raise UsageError(
                f"named twice ({seen[real]} and {file})", where="--input", code="E_REPEATED",
                remedy="Leave one out.",
            )  # fmt: skip
        seen[real] = file
    folders = [os.path.dirname(os.path.abspath(file)) for file in seen.values()]  # noqa: PTH100, PTH120
    root = os.path.commonpath(folders) if folders else ""
    return [(at, source_of(file, root)) for at, file in found]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    with reading(path):
        inside = sorted(file for file in path.iterdir() if file.is_file())
    known = [file for file in inside if _kind(file)[0] and not file.name.startswith(".")]
    if not known:
        raise input_error("the folder holds no table", str(path), _KNOWN, "E_NOT_FOUND")
    return known


def source_of(path: Path, root: str, kind: str | None = None) -> Source:
    """One file, named by its path below `root`; `kind` is what it holds, if its name does not say.

    Raises `InputError` if it is not there, or is no table and no `kind` is given.
    """
    absolute = os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)
    found_kind, compression = _kind(path)
    if not path.is_file():
        raise input_error("no such file or folder", str(path), "Check the path.", "E_NOT_FOUND")
    if not (kind or found_kind) or (found_kind == "parquet" and compression):
        raise input_error(f"{path.suffix or 'this'} is not read", str(path), _KNOWN, "E_FORMAT")
    with reading(path):
        found = path.stat()
    return Source(
        path=absolute, name=os.path.relpath(absolute, root).replace(os.sep, "/"),
        format=kind or found_kind, compression=compression, size=found.st_size,
        modified=found.st_mtime_ns,
    )  # fmt: skip


def _kind(path: Path) -> tuple[str, str | None]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
    if compression:
        suffixes.pop()
    return (_FORMATS.get(suffixes[-1], "") if suffixes else ""), compression
