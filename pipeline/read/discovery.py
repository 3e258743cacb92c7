"""Discovery of inputs: which files a build reads, in what order, and in which format.

Inputs are in the order of the arguments. The files of a folder or glob are sorted by name. The
suffix of a file decides its format, and for an unknown suffix `--format` is required. A .json file
can be one array or JSON lines, so its content is examined. The first bytes of every text file are
read to detect compression and encodings other than UTF-8.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from dataprep.formats.errors import InputError, UsageError
from dataprep.formats.files.other_layouts import other_layout_of, vectors_remedy
from dataprep.formats.files.paths import local_path

from . import huggingface
from .sources import HUB_PREFIX, Source, input_error, reading

__all__ = ["Search", "compression_of", "find_sources", "folder_notes", "json_kind"]

_COMPRESSED = (".gz", ".zst", ".zstd")
_PACKED = {
    ".bz2": "bzip2", ".xz": "xz", ".zip": "ZIP", ".7z": "7z", ".tar": "tar", ".tgz": "tar",
}  # fmt: skip
_TABLES = {".csv": "CSV", ".tsv": "TSV"}
_SAVED_DATASET = ("state.json", "dataset_dict.json")
_NAMED = 3  # files that a note names

_HEAD_BYTES = 4096  # enough to detect compression and encoding
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_REFUSED = {
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "ZIP",
    b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_FEW_ZEROS = 4  # bytes of zero, below which text is taken for UTF-8
_BOM = b"\xef\xbb\xbf"


class Search(Protocol):
    """Interface of the options that select inputs, for any kind of build.

    The property `formats` maps suffixes of file names to formats.
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


def find_sources(options: Search) -> list[Source]:
    """Return all inputs of a build, in order.

    Raise `InputError` if an input is missing or unusable. A Hugging Face dataset is opened and, if
    it is on the hub, downloaded.
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
    """Return notes about files and links in the input folders that the build does not read."""
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
            + (
                _conversion_remedy(suffixes, "them")
                or f"Rename what is to be read by what it holds: {known}."
            )
        )
    if links:
        yield (
            f"linked folders in {_shown(folder)} were left out ({_names(links)}); "
            "name them as inputs to read them"
        )


def _conversion_remedy(suffixes: Collection[str], what: str) -> str | None:
    """Return advice on how to unpack archives, or convert tables, with the given `suffixes`.

    Return None if there is no suffix, or if a suffix is neither that of an archive nor of a table.
    The advice calls the files `what`, which is "it" or "them".
    """
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
    # A dataset stores the name of a local folder without the path to it.
    return _dataset(spec, HUB_PREFIX + place.name if place.is_dir() else spec, options)


def _dataset(path: str, name: str, options: Search) -> Source:
    source = Source(path=path, name=name, format="hf")
    return huggingface.hf_source(source, options.hf_config, options.hf_split)


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
    """Return whether `folder` is a Hugging Face dataset saved by `save_to_disk`.

    Such a folder is a single input.
    """
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
            _conversion_remedy({suffix.lower() for suffix in suffixes}, "them")
            or f"Say what they are with --format {_known(options)}.",
            "E_NOT_FOUND",
        )  # fmt: skip
    yield from known


def _content(folder: Path, options: Search) -> tuple[list[Path], list[Path]]:
    """Return the files below `folder`, and the links to folders below it, both sorted.

    Hidden files, hidden folders and the output directory are left out, and links to folders are not
    followed. Raise `OSError` for a folder that cannot be read, and `InputError` for a link to a
    file that does not exist.
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
    remedy = _conversion_remedy({suffix}, "it")
    if kind is None and remedy:
        unread = (_PACKED | _TABLES)[suffix]
        raise input_error(f"{unread} is not read", str(path), remedy, "E_FORMAT")
    if kind is None and other_layout_of(path) == "hdf5":
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
        head = stream.read(_HEAD_BYTES)
    return compression_of(head, path, kind)


# The content of text files


def compression_of(head: bytes, path: Path, kind: str) -> str | None:
    """Return the compression of the file `path`, or None if it is not compressed.

    The argument `head` holds the first bytes of the file. Raise `InputError` for an archive and for
    text in UTF-16 or UTF-32. If `kind` is "jsonl", also raise `InputError` for a file that is one
    JSON array instead of JSON lines.
    """
    for magic, name in _REFUSED.items():
        if head.startswith(magic):
            raise _not_text(
                f"this is {name}, which is not read", path,
                "Convert it to UTF-8 text, plain or compressed with gzip or zstd.",
            )  # fmt: skip
    if kind == "jsonl" and _opens_array(head):
        raise _not_text(
            "this is one JSON array, not one JSON object per line", path,
            "Convert it first: jq -c '.[]' FILE > FILE.jsonl (of chat data, name it FILE.json)",
        )  # fmt: skip
    compression = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    wide = _wide_encoding(head) if compression is None else None
    if wide:
        raise _not_text(
            f"this looks like {wide}, which is not read", path,
            f"Convert it to UTF-8: iconv -f {wide} -t UTF-8 FILE > NEW",
        )  # fmt: skip
    return compression


def json_kind(path: Path, compression: str | None) -> str:
    """Return "json" if the file begins with ``[``, otherwise "jsonl".

    A byte order mark and white space before this character are skipped. Raise `InputError` if the
    file begins with a JSON object that is written over several lines.
    """
    with reading(path), path.open("rb") as stream:
        head = _head(stream, compression, path)
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.split(b"\n", 1)[0].strip() == b"{":
        raise _not_text(
            "this is one JSON object over several lines, neither an array nor an object per line",
            path, "Convert it first: jq -c . FILE > FILE.jsonl, or take the array out of it.",
        )  # fmt: skip
    return "jsonl"


def _head(stream: BinaryIO, compression: str | None, path: Path) -> bytes:
    """Return up to `_HEAD_BYTES` bytes from the beginning of a file, after decompression.

    Raise `InputError` if the compressed data is damaged.
    """
    if compression is None:
        return stream.read(_HEAD_BYTES)
    import pyarrow as pa

    try:
        return bytes(pa.CompressedInputStream(stream, compression).read(_HEAD_BYTES))
    except OSError as error:
        raise _not_text(
            f"the compressed data is damaged ({error})", path, "Fetch the file again."
        ) from None


def _wide_encoding(head: bytes) -> str | None:
    r"""Return the UTF-16 or UTF-32 encoding that the zero bytes in `head` suggest, or None.

    >>> _wide_encoding("some text".encode("utf-16-le")), _wide_encoding(b"some\0text\0\0\0")
    ('UTF-16LE', None)
    """
    if head.count(0) < _FEW_ZEROS:
        return None
    zeros = [part.count(0) / max(1, len(part)) for part in (head[at::4] for at in range(4))]
    for name, full in (("UTF-32LE", (2, 3)), ("UTF-32BE", (0, 1))):
        others = set(range(4)) - set(full)
        if min(zeros[at] for at in full) > 0.9 and min(zeros[at] for at in others) < 0.1:
            return name
    for name, full in (("UTF-16LE", (1, 3)), ("UTF-16BE", (0, 2))):
        others = set(range(4)) - set(full)
        if min(zeros[at] for at in full) > 0.1 and max(zeros[at] for at in others) < 0.02:
            return name
    return None


def _opens_array(head: bytes) -> bool:
    """Return whether `head` begins a JSON array that continues after the first line.

    An array that is complete on the first line does not count, because the file may be JSON lines
    that are all arrays.
    """
    first = head.removeprefix(_BOM).lstrip().split(b"\n", 1)[0]
    if not first.startswith(b"["):
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False


def _not_text(problem: str, path: Path, remedy: str) -> InputError:
    return input_error(problem, str(path), remedy, "E_FORMAT")
