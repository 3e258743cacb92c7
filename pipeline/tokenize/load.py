"""Loader that turns the value of ``--tokenizer`` into the bytes of a tokenizer.json.

A tokenizer.json that the user names is not changed. No file is ever executed or unpickled. A file
that cannot be used raises `InputError` with the code E_TOKENIZER, and a network failure raises
`StorageError`. A tokenizer.json is checked by loading it in `tokenizers`, which takes 0.1 to 1 s.
Only hub repositories and ``tiktoken:NAME`` use the network.
"""

from __future__ import annotations

import contextlib
import logging
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dataprep.formats.errors import InputError, StorageError
from dataprep.formats.files.paths import refuse_address

from .engines import BUILT_IN
from .reference import load_reference
from .sentencepiece import model_to_json, parse_model
from .tiktoken import ENCODINGS, TiktokenEncoding, parse_ranks, ranks_to_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "MAX_TOKENIZER_BYTES",
    "TokenizerSource",
    "download",
    "existing_path",
    "is_repository",
    "load_tokenizer",
    "resolve_tokenizer",
]

MAX_TOKENIZER_BYTES = 256 << 20

_ASSET = Path(__file__).parent / "assets" / "default_tokenizer.json"
_BUILT_IN_ROLES = {"bos_token": "<|bos|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
_ROLES = ("bos_token", "eos_token", "pad_token")
_ROLE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_MAIN_FILES = ("tokenizer.json", "tokenizer.model")
_TIKTOKEN = "tiktoken:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_FILE_ENDINGS = (".json", ".model", ".tiktoken", ".txt", ".bin")
_KINDS = (
    "a tokenizer.json, a folder that holds one, a .tiktoken rank file or a sentencepiece .model"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSource:
    """A tokenizer.json and where it comes from."""

    json: bytes
    """A Hugging Face tokenizer.json: the file itself where one was named, else converted."""
    origin: str
    """Name for messages: "built-in", a file's base name, "tiktoken:NAME" or a hub repository."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Those of bos_token, eos_token and pad_token that a file beside the tokenizer names."""

    config: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """`json`, parsed, except the merges, which are a `msgspec.Raw`. Treat it as read-only."""


def resolve_tokenizer(spec: str | None, *, load: bool = True) -> TokenizerSource:
    """Return the tokenizer that `spec` names, or the built-in tokenizer if `spec` is None.

    The argument `spec` is one of these. A path that exists takes precedence.

    - The path of a tokenizer.json, a .tiktoken file, a sentencepiece .model file, or a folder with
      one of these files.
    - ``tiktoken:NAME``.
    - ``OWNER/NAME`` on the Hugging Face hub.

    If `load` is True, the tokenizer is loaded once to check it. Otherwise the caller must make this
    check with `load_tokenizer`. Raise `InputError` (E_TOKENIZER) if the tokenizer cannot be used,
    and `StorageError` if it cannot be read or downloaded.

    >>> resolve_tokenizer(None).origin
    'built-in'
    """
    if spec is None:
        json = _ASSET.read_bytes()
        config = _config_of(json, BUILT_IN)
        return TokenizerSource(json=json, origin=BUILT_IN, roles=_BUILT_IN_ROLES, config=config)
    if spec.startswith(_TIKTOKEN):
        source = _from_tiktoken(spec.removeprefix(_TIKTOKEN))
    elif (path := existing_path(spec)) is not None:
        source = _from_path(path)
    elif is_repository(spec):
        source = _from_hub(spec)
    else:
        shown = spec[:200] if spec and spec.isprintable() else repr(spec[:200])
        raise _unusable(
            "no such file or folder", shown, f"Give {_KINDS}; hub names are OWNER/NAME."
        )
    config = _config_of(source.json, spec)
    if load:
        load_tokenizer(source.json, spec)
    return replace(source, config=config)


def existing_path(spec: str) -> Path | None:
    """Return `spec` as a path, or None if the path does not exist.

    Raise `UsageError` if `spec` has a scheme, such as ``s3://``.
    """
    refuse_address(spec)
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, NUL, unknown ~user
        path = Path(spec).expanduser()
        return path if spec and path.exists() else None
    return None


def is_repository(spec: str) -> bool:
    """Return whether `spec` looks like OWNER/NAME on the hub, and no local folder OWNER exists."""
    if not _REPOSITORY.fullmatch(spec) or spec.endswith(_FILE_ENDINGS):
        return False
    return not Path(spec).parent.is_dir()


def _from_path(path: Path) -> TokenizerSource:
    try:
        return _from_folder(path) if path.is_dir() else _from_file(path, path.name)
    except OSError as error:
        raise _unusable(
            f"cannot be read ({error.strerror})", str(error.filename or path),
            "Check its permissions and the disk.",
        ) from None  # fmt: skip


def _from_folder(folder: Path) -> TokenizerSource:
    if (folder / "tokenizer.json").is_file():
        return _from_file(folder / "tokenizer.json", folder.resolve().name)
    found = sorted(path for path in folder.iterdir() if path.suffix in (".model", ".tiktoken"))
    if len(found) == 1:
        return _from_file(found[0], found[0].name)
    if found:
        listed = ", ".join(path.name for path in found)
        raise _unusable(
            f"several tokenizers lie here ({listed})", str(folder), "Name one of the files."
        )
    raise _unusable(
        "there is no tokenizer.json, .model or .tiktoken file in this folder", str(folder),
        f"Give {_KINDS}.",
    )  # fmt: skip


def _from_file(path: Path, origin: str) -> TokenizerSource:
    data = _read(path)
    if path.suffix == ".tiktoken":
        encoding = _encoding_of(path)
        json = ranks_to_json(parse_ranks(data, str(path)), encoding)
    elif data.lstrip()[:1] == b"{" or path.suffix == ".json":
        json = data
    elif ".model" in path.name or data[:1] == b"\n":
        json = model_to_json(parse_model(data, str(path)), str(path))
    else:
        raise _unusable("not a tokenizer file", str(path), f"Give {_KINDS}.")
    return TokenizerSource(json=json, origin=origin, roles=_roles_beside(path.parent))


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise _unusable("not a regular file", str(path), f"Give {_KINDS}.")
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        problem = f"{size:,} bytes is over the limit of {MAX_TOKENIZER_BYTES:,} for a tokenizer"
        raise _unusable(problem, str(path), f"Give {_KINDS}.")
    data = path.read_bytes()
    if not data.strip():
        raise _unusable("the file is empty", str(path), "Download it again.")
    return data


def _encoding_of(path: Path) -> TiktokenEncoding:
    encoding = ENCODINGS.get(path.stem)
    if encoding is None:
        raise _unusable(
            "a rank file holds no split pattern and no special tokens, and its name is not one of "
            + ", ".join(ENCODINGS),
            str(path),
            "Name the file after its encoding (cl100k_base.tiktoken), or give a tokenizer.json.",
        )
    return encoding


def _roles_beside(folder: Path) -> dict[str, str]:
    roles: dict[str, str] = {}
    for name in _ROLE_FILES:
        if (folder / name).is_file():
            roles = _roles_in(_read(folder / name), str(folder / name)) | roles
    return roles


def _roles_in(data: bytes, where: str) -> dict[str, str]:
    """Return a mapping from roles, such as ``eos_token``, to the texts of their special tokens.

    The argument `data` is a tokenizer_config.json or a special_tokens_map.json. Roles for which
    the file names no token are left out.
    """
    config = _decode(data, where, dict[str, Any])
    roles = {}
    for name in _ROLES:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content:
            roles[name] = content
    return roles


def _from_tiktoken(name: str) -> TokenizerSource:
    where = _TIKTOKEN + name
    if name not in ENCODINGS:
        raise _unusable("unknown encoding", where, f"Known are {', '.join(ENCODINGS)}.")
    try:
        import tiktoken
    except ImportError:
        raise _unusable(
            "the package tiktoken is not installed",
            where,
            "Run: pip install 'dataprep-shards[tiktoken]'.",
        ) from None
    try:
        # A private attribute, but the documented way to extend an encoding reads it, too.
        ranks = tiktoken.get_encoding(name)._mergeable_ranks
    except Exception as error:
        raise _offline(where, error, f"the file {name}.tiktoken") from error
    return TokenizerSource(json=ranks_to_json(ranks, ENCODINGS[name]), origin=where)


def _from_hub(repository: str) -> TokenizerSource:
    files = (download(repository, name) for name in _MAIN_FILES)
    path = next((path for path in files if path is not None), None)
    if path is None:
        problem = f"the repository has no {' or '.join(_MAIN_FILES)}"
        raise _unusable(problem, repository, f"Download what it has, and give {_KINDS}.")
    for name in _ROLE_FILES:
        download(repository, name)  # to the folder of the first
    return _from_file(path, repository)


def download(repository: str, name: str) -> Path | None:
    """Return the local path of a file from a hub repository, downloaded unless it is cached.

    Return None if the repository has no such file. Raise `InputError` if the repository does not
    exist or requires a login, and `StorageError` if the network fails.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        with _silenced("huggingface_hub"):  # it prints each of its retries
            return Path(hf_hub_download(repository, name))
    except LocalEntryNotFoundError as error:
        if name in _ROLE_FILES:
            return None
        raise _offline(repository, error, "a local tokenizer.json") from error
    except EntryNotFoundError:
        return None
    except GatedRepoError:
        raise _unusable(
            "this repository asks for a login", repository, "Run: hf auth login."
        ) from None
    except RepositoryNotFoundError:
        raise _unusable(
            "neither a file or folder here nor a public repository of the Hugging Face hub",
            repository, f"Check the spelling, or give {_KINDS}.",
        ) from None  # fmt: skip
    except Exception as error:
        raise _offline(repository, error, "a local tokenizer.json") from error


@contextlib.contextmanager
def _silenced(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _offline(where: str, error: Exception, instead: str) -> StorageError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    reason = textwrap.shorten(reason, 160, placeholder=" ...")
    return StorageError(
        f"not found here, and could not be downloaded ({reason})", where=where, code="E_NETWORK",
        remedy=f"Check the network, or give {instead} by its path.",
    )  # fmt: skip


def _config_of(data: bytes, where: str) -> dict[str, Any]:
    """Return the tokenizer.json `data` as a dict. The merges, most of the file, stay unparsed.

    Raise `InputError` if the file is not JSON, or has no model with a vocabulary.
    """
    parts = _decode(data, where, dict[str, msgspec.Raw])
    raw = parts.pop("model", msgspec.Raw(b"{}"))
    is_object = bytes(raw).lstrip().startswith(b"{")
    model = _decode(raw, where, dict[str, msgspec.Raw]) if is_object else {}
    model = {
        name: part if name == "merges" else _decode(part, where, Any)
        for name, part in model.items()
    }
    if not isinstance(model.get("vocab"), dict | list):
        raise _unusable(
            "JSON, but not a tokenizer.json (it has no model with a vocab)", where,
            "Give the file named tokenizer.json; vocab.json and tokenizer_config.json are others.",
        )  # fmt: skip
    return {name: _decode(part, where, Any) for name, part in parts.items()} | {"model": model}


def _decode(data: bytes | msgspec.Raw, where: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise _unusable("not a JSON object", where, f"Give {_KINDS}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(f"not valid JSON ({error})", where, "Download the file again.") from None


def load_tokenizer(data: bytes, where: str | None) -> Tokenizer:
    """Return a `tokenizers.Tokenizer` for the tokenizer.json `data`.

    Raise `InputError` about `where` (None for the built-in tokenizer) if it cannot be loaded.
    """
    return load_reference(data, where or BUILT_IN)


def _unusable(problem: str, where: str, remedy: str) -> InputError:
    return InputError(problem, where=where, remedy=remedy, code="E_TOKENIZER")
