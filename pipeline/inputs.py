"""Which files a build reads, in what order, and what is in them.

Order is: the arguments as given, and within a folder or glob by name. Nothing is guessed from
content that the name contradicts; what cannot be told is asked for (`--format`).
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.storage import storage_errors
from dataprep.pipeline.options import BuildOptions

__all__ = ["HUB_PREFIX", "Source", "check_unchanged", "find_sources", "input_error"]

HUB_PREFIX = "hf:"

_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".txt": "text", ".text": "text", ".md": "text", ".rst": "text",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = (".gz", ".zst", ".zstd")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_REFUSED = {
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "ZIP",
    b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_SAVED_DATASET = ("state.json", "dataset_dict.json")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input: a file, or a Hugging Face dataset. `size` is in bytes, as stored."""

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


def check_unchanged(source: Source, found: os.stat_result | None = None) -> None:
    """Raise `InputError` unless the file is still the one that the build was planned with.

    `found` is what is known of the opened file; without it, the path is looked at.
    """
    if found is None:
        with storage_errors(source.path):
            found = Path(source.path).stat()
    if (found.st_size, found.st_mtime_ns) != (source.size, source.modified):
        raise input_error(
            "the file changed while it was being read", source.name,
            "Leave inputs alone during a build, then run the command again.", "E_CHANGED",
        )  # fmt: skip


def find_sources(options: BuildOptions) -> list[Source]:
    """All inputs of a build, in order; raises `InputError` for one that is missing or unusable."""
    found: list[Path | str] = []
    for spec in options.input:
        if spec.startswith(HUB_PREFIX):
            found.append(spec)
        else:
            with storage_errors(spec):
                found += _expand(spec, options)
    _refuse_repeats(found)
    root = _common_folder([path for path in found if isinstance(path, Path)])
    return [_hub(at) if isinstance(at, str) else _describe(at, root, options) for at in found]


def _hub(spec: str) -> Source:
    place = Path(spec.removeprefix(HUB_PREFIX))
    if not place.name:
        raise UsageError("names no dataset", where=f"--input {spec}", remedy="Write hf:NAME.")
    # Of a folder of this machine, only the last part may be stored.
    return Source(path=spec, name=HUB_PREFIX + place.name if place.is_dir() else spec, format="hf")


def _expand(spec: str, options: BuildOptions) -> Iterator[Path]:
    if not spec:
        raise UsageError("is empty", where="--input", remedy="Name a file, folder or glob.")
    path = Path(spec)
    if path.is_dir():
        yield from _expand_folder(path, options)
    elif path.exists():
        yield path
    elif glob.has_magic(spec):
        found = sorted(Path(name) for name in glob.glob(spec, recursive=True))  # noqa: PTH207 (absolute and relative)
        files = [name for name in found if name.is_file()]
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


def _expand_folder(folder: Path, options: BuildOptions) -> Iterator[Path]:
    if any((folder / name).is_file() for name in _SAVED_DATASET):
        yield folder
        return
    found = sorted(path for path in folder.rglob("*") if _visible(path, folder))
    for path in found:
        _refuse_dangling(path)
    files = [path for path in found if path.is_file()]
    known = [path for path in files if options.format or _format_of(path)]
    if not known:
        suffixes = ", ".join(sorted({path.suffix for path in files if path.suffix})) or "none"
        raise input_error(
            f"the folder holds no file of a known type (suffixes seen: {suffixes})", str(folder),
            "Say what they are with --format jsonl|text|parquet.", "E_NOT_FOUND",
        )  # fmt: skip
    yield from known


def _visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


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


def _describe(path: Path, root: str, options: BuildOptions) -> Source:
    absolute = os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)
    name = os.path.relpath(absolute, root).replace(os.sep, "/")
    _check_text(name, path)
    if path.is_dir():
        return Source(path=absolute, name=name, format="hf")
    with storage_errors(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise input_error(
            "not an ordinary file (a pipe or device can be read only once)", str(path),
            "Write its content to a file first.", "E_FORMAT",
        )  # fmt: skip
    kind = options.format or _format_of(path)
    if kind is None:
        raise input_error(
            f"cannot tell what a {path.suffix or 'nameless'} file holds", str(path),
            "Say it with --format jsonl|text|parquet.", "E_FORMAT",
        )  # fmt: skip
    compression = _sniff(path, kind) if kind in ("jsonl", "text") else None
    return Source(
        path=absolute, name=name, format=kind, compression=compression,
        size=found.st_size, modified=found.st_mtime_ns,
    )  # fmt: skip


def _check_text(name: str, path: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise input_error(
            "the file name is not valid UTF-8", os.fsencode(path).decode("utf-8", "replace"),
            "Rename it: the name is stored with the dataset.",
        ) from None  # fmt: skip


def _format_of(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def _sniff(path: Path, kind: str) -> str | None:
    """The compression of a text file, from its first bytes."""
    with storage_errors(path), path.open("rb") as stream:
        head = stream.read(4096)
    for magic, name in _REFUSED.items():
        if head.startswith(magic):
            raise input_error(
                f"this is {name}, which is not read", str(path),
                "Convert it to UTF-8 text, plain or compressed with gzip or zstd.", "E_FORMAT",
            )  # fmt: skip
    if kind == "jsonl" and _opens_array(head):
        raise input_error(
            "this is one JSON array, not one JSON object per line", str(path),
            "Convert it first: jq -c '.[]' FILE > FILE.jsonl", "E_FORMAT",
        )  # fmt: skip
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _opens_array(head: bytes) -> bool:
    """Whether the file starts with a JSON array that its first line does not finish."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if not first.startswith(b"["):
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False
