"""Options of a build of tokens, and checks that the options of all kinds share."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from dataprep.formats.errors import UsageError
from dataprep.formats.files.paths import local_path, refuse_address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "AUTO",
    "DEFAULT_SPLIT",
    "NONE",
    "BuildOptions",
    "DocumentUnit",
    "InputFormat",
    "as_assignments",
    "as_paths",
    "as_text",
    "check_common",
    "check_types",
    "different_reject_options",
    "parse_split",
    "refuse_device",
    "stored_excerpts",
]

InputFormat = Literal["jsonl", "text", "parquet", "hf"]
DocumentUnit = Literal["file", "line", "block"]

AUTO = "auto"
NONE = "none"
REST = "rest"
DEFAULT_SPLIT = "train=0.98,val=0.01,test=0.01"


TEXT_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".txt": "text", ".text": "text", ".md": "text", ".rst": "text",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_SPLIT_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options of `dataprep build`.

    The content of the dataset does not depend on `out`, `workers` and `overwrite`.
    """

    input: tuple[str, ...]
    """Files, folders, globs, or ``hf:NAME`` for a dataset of the Hugging Face hub; one string or
    path, or a sequence of them."""
    out: Path
    """Directory to create, a path or a string. If it exists, it must be empty or hold the same
    dataset, unless `overwrite` is set."""
    format: InputFormat | None = None
    """Format of all inputs. None: by the name of each file."""
    field: str = "text"
    """Field that holds the text in JSONL, Parquet and HF records. ``a.b`` is field b of the object
    a, unless there is a field named ``a.b``."""
    document: DocumentUnit = "file"
    """What is one document in a plain text file. A block ends at a blank line."""
    hf_config: str | None = None
    """Configuration of a dataset of the Hugging Face hub."""
    hf_split: str | None = None
    """Split of an HF dataset. Required if the dataset has several splits."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder, a hub repository, ``tiktoken:NAME``, a .tiktoken rank file, or a
    sentencepiece .model, as a string or a path. None: the built-in tokenizer."""
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """auto: gigatoken where it gives the same ids as tokenizers, otherwise tokenizers."""
    split: str = DEFAULT_SPLIT
    """Splits as NAME=RATIO,... with ratios that add up to 1. With `split_mode` count, a size may
    also be given as NAME=COUNT or NAME=rest."""
    split_mode: Literal["ratio", "count"] = "ratio"
    """ratio: the hash of a document alone decides its split. count: splits have exact sizes."""
    split_key: str | None = None
    """Field whose value decides the split of a document. None: the text decides."""
    bos: str = AUTO
    """Token before each document: none, the text of a token, or auto (as in the template of the
    tokenizer)."""
    eos: str = AUTO
    """Token after each document: none, the text of a token, or auto (the tokenizer's end-of-text
    token)."""
    special_text: Literal["literal", "parse"] = "literal"
    """Whether text that looks like a special token stays text or becomes the token."""
    on_error: Literal["error", "skip"] = "error"
    """error: a bad record stops the build. skip: it is written to rejects.jsonl."""
    max_rejects: int | None = None
    """Maximum number of rejected records with `on_error` skip. None: no limit."""
    excerpts: bool = True
    """Whether rejects.jsonl quotes records. If not, `detail` is empty there and `excerpt` null."""
    seed: int = 0
    """Seed of the hash that assigns splits."""
    workers: int | None = None
    """Number of worker processes. None: one per available core. It never changes the output."""
    overwrite: bool = False
    """Whether to replace a finished dataset in `out`."""

    @property
    def formats(self) -> Mapping[str, str]:
        """The input format for each known suffix of file names."""
        return TEXT_FORMATS

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", as_paths(self.input))
        object.__setattr__(self, "out", local_path(self.out))
        as_text(self, "tokenizer")
        check_types(self, ("input", "out"))
        _require(bool(self.input), "--input", "name at least one file, folder or glob")
        _require(bool(self.field), "--field", "must not be empty")
        check_common(self)


class _Common(Protocol):
    """Options that every kind of build has."""

    @property
    def workers(self) -> int | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def max_rejects(self) -> int | None: ...
    @property
    def on_error(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def split_mode(self) -> str: ...


def stored_excerpts(excerpts: bool) -> dict[str, Any]:
    """Return the config.json entries for the option `excerpts`: an empty dict if it is True."""
    return {} if excerpts else {"excerpts": False}


def different_reject_options(
    asked: Mapping[str, Any],
    existing: Mapping[str, Any],
    rejected: Collection[str],
    forgiven: frozenset[str] = frozenset(),
) -> list[str]:
    """Return the names of the options that make a build treat rejected records differently.

    The options of the build (`asked`) are compared with the stored options of a finished dataset
    (`existing`). The argument `rejected` contains the reasons why records were left out of that
    dataset. Records with a reason in `forgiven` make no difference, because every build leaves them
    out.
    """
    different = []
    if asked["on_error"] == "error" and not forgiven.issuperset(rejected):
        different.append("on_error")
    if rejected and not asked.get("excerpts", True) and existing.get("excerpts", True):
        different.append("excerpts")
    return different


def check_common(options: _Common) -> None:
    """Raise `UsageError` if an option that every kind of build has is invalid."""
    _require(options.workers is None or options.workers >= 1, "--workers", "must be at least 1")
    _require(0 <= options.seed < 1 << 64, "--seed", "must be from 0 to 2**64 - 1")
    limit = options.max_rejects
    _require(limit is None or limit >= 0, "--max-rejects", "must not be negative")
    _require(
        limit is None or options.on_error == "skip",
        "--max-rejects", "only means something with --on-error skip",
    )  # fmt: skip
    parse_split(options.split, options.split_mode)


def parse_split(text: str, mode: str) -> dict[str, float | int | None]:
    """Return the size of each split in `text`, such as ``train=0.98,val=0.02``.

    In the mode "ratio" every value is a float, and all add up to 1. In the mode "count" a value is
    an exact number of documents (int), a ratio of all documents (float), or None for ``rest``,
    which may occur once. Raise `UsageError` for any other text.

    >>> parse_split("train=0.9,val=0.1", "ratio")
    {'train': 0.9, 'val': 0.1}
    >>> parse_split("train=rest,val=1000", "count")
    {'train': None, 'val': 1000}
    """
    shares: dict[str, float | int | None] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        _require(
            bool(_SPLIT_NAME.fullmatch(name)), "--split",
            f"{name!r} cannot name a split; write train=0.8,val=0.2 (names: a-z, 0-9, _)",
        )  # fmt: skip
        refuse_device(name, "--split")
        _require(name not in shares, "--split", f"{name!r} stands twice")
        shares[name] = _share(value, mode)
    _check_sum(shares, mode)
    return shares


def refuse_device(name: str, where: str) -> None:
    """Raise `UsageError`, naming the argument `where`, if Windows reserves `name` for a device.

    >>> refuse_device("train", "--split")
    """
    from dataprep.formats.manifest.common import is_device  # imports msgspec, which --help avoids

    _require(
        not is_device(name), where,
        f"{name!r} is a device on Windows, where no file or folder can have this name; "
        "choose another one",
    )  # fmt: skip


def _share(value: str, mode: str) -> float | int | None:
    if value == REST and mode == "count":
        return None
    try:
        if mode == "count" and value.isdigit():
            return int(value)
        share = float(value)
    except ValueError:
        share = -1.0
    counts = ", a count, or rest" if mode == "count" else "; counts need --split-mode count"
    hint = f"a ratio from 0 to 1{counts}"
    _require(0.0 <= share <= 1.0, "--split", f"{value!r} is not {hint}")
    return share


def _check_sum(shares: dict[str, float | int | None], mode: str) -> None:
    ratios = sum(share for share in shares.values() if isinstance(share, float))
    rests = sum(share is None for share in shares.values())
    if mode == "ratio":
        _require(abs(ratios - 1.0) < 1e-9, "--split", f"ratios must add up to 1, got {ratios:g}")
        return
    _require(rests <= 1, "--split", "only one split can take the rest")
    _require(ratios <= 1.0 + 1e-9, "--split", f"ratios add up to {ratios:g}, over 1")
    whole = rests == 1 or (abs(ratios - 1.0) < 1e-9 and len(shares) == _count_ratios(shares))
    _require(whole, "--split", "give one split `rest`, so that every document has a place")


def _count_ratios(shares: dict[str, float | int | None]) -> int:
    return sum(isinstance(share, float) for share in shares.values())


def as_paths(value: object) -> tuple[str, ...]:
    """Return `value` (a path, or a sequence of paths) as a tuple of strings.

    Raise `UsageError` for any other value, and for an address such as ``s3://bucket``.
    """
    parts = (value,) if isinstance(value, str | PathLike) else value
    if not isinstance(parts, Sequence):
        raise UsageError(f"{value!r} is not a path or a list of paths", where="--input")
    if not all(isinstance(part, str | PathLike) for part in parts):
        raise UsageError(f"{value!r} holds something that is no path", where="--input")
    paths = tuple(map(fspath, parts))
    for path in paths:
        if not path.startswith("hf:") or path.startswith("hf://"):
            refuse_address(path)
    return paths


def as_text(options: DataclassInstance, *names: str) -> None:
    """Convert path objects in the fields `names` of `options` to strings."""
    for name in names:
        if isinstance(value := getattr(options, name), PathLike):
            object.__setattr__(options, name, fspath(value))


def as_assignments(value: object, where: str) -> tuple[str, ...]:
    """Return a tuple of assignments "NAME=FIELD" from a string, a sequence or a mapping.

    Raise `UsageError`, naming the argument `where`, for any other value.

    >>> as_assignments({"messages": "dialog"}, "--columns")
    ('messages=dialog',)
    """
    if isinstance(value, Mapping):
        value = [f"{name}={field}" for name, field in value.items()]
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"must be NAME=FIELD, or several, got {value!r}", where=where)
    return tuple(parts)


def check_types(options: DataclassInstance, unchecked: Container[str]) -> None:
    """Raise `UsageError` if the value of a field does not match the field's annotation.

    Fields in `unchecked` are not checked.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for part in allowed for choice in _choices(part)]
        kinds = tuple(part for part in allowed if isinstance(part, type))
        fits = value in choices or isinstance(value, kinds)
        if field.name not in unchecked and (not fits or _is_bool_for_int(value, kinds)):
            expected = "one of " + ", ".join(choices) if choices else _names(kinds)
            raise UsageError(
                f"must be {expected}, got {value!r}", where=f"--{field.name.replace('_', '-')}"
            )


def _choices(hint: object) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _is_bool_for_int(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, bool) and bool not in kinds


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join(sorted(kind.__name__ for kind in kinds))


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise UsageError(problem, where=where)
