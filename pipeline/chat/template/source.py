"""Resolution of the option `template` to the text of a chat template.

If the tokenizer has no template, the option must name a template. No template is guessed, because a
model that is tuned in the wrong format is useless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dataprep.formats.errors import InputError, StorageError

from ...tokenize.load import download, existing_path, is_repository

__all__ = [
    "DEFAULT_TEMPLATE",
    "MAX_TEMPLATE_BYTES",
    "Template",
    "named_templates",
    "resolve_template",
]

DEFAULT_TEMPLATE = "chatml"  # of the built-in tokenizer, which has <|im_start|> and <|im_end|>
MAX_TEMPLATE_BYTES = 1 << 20

_FOLDER = Path(__file__).parent / "builtin"
_OF_TOKENIZER = "tokenizer"
_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""Files with templates, in the order of transformers."""
_MAX_CONFIG_BYTES = 64 << 20  # of a tokenizer_config.json: it may list all added tokens

Fetch = Callable[[str], Path | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """Text of a chat template, and where the text comes from."""

    text: str
    origin: str
    """Name in messages and in config.json: "tokenizer", "tokenizer NAME", "named chatml" or the
    base name of a file."""
    trusted: bool = False
    """Whether it comes with dataprep; other templates run in worker processes, under limits."""


def named_templates() -> tuple[str, ...]:
    """Return the names of the templates that come with dataprep.

    >>> "chatml" in named_templates()
    True
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))


def resolve_template(spec: str | None, tokenizer: str | None) -> Template:
    """Return the template that `spec` names.

    The argument `spec` is the name of a template that comes with dataprep, a path to a file, or
    ``tokenizer:NAME`` for a template of the tokenizer. None means the only template of the
    tokenizer, or its template named "default". The argument `tokenizer` is the option of this name
    (None: the built-in tokenizer). Raise `InputError` if there is no such template. A file that
    cannot be downloaded because the network fails counts as missing.

    >>> resolve_template(None, None).origin
    'named chatml'
    """
    if spec is None:
        return _tokenizer_template(tokenizer, "default")
    if spec in named_templates():
        return _builtin(spec)
    if spec == _OF_TOKENIZER or spec.startswith(_OF_TOKENIZER + ":"):
        return _tokenizer_template(tokenizer, spec.partition(":")[2] or "default")
    path = existing_path(spec)
    if path is None or path.is_dir():
        what = "no such template or file" if path is None else "a folder, not a template"
        raise _unusable(what, spec, _choice())
    return Template(text=_read(path), origin=path.name)


def _builtin(name: str) -> Template:
    return Template(text=_read(_FOLDER / f"{name}.jinja"), origin=f"named {name}", trusted=True)


def _tokenizer_template(tokenizer: str | None, name: str) -> Template:
    if tokenizer is None:
        if name != "default":
            raise _unusable("the built-in tokenizer has one template", name, _choice())
        return _builtin(DEFAULT_TEMPLATE)
    found = _templates_of(tokenizer)
    if not found:
        problem = "this tokenizer comes without a chat template"
        raise _unusable(problem, tokenizer, _choice())
    if name not in found:
        listed = ", ".join(sorted(found))
        problem = f"this tokenizer has no chat template named {name!r}, but {listed}"
        remedy = f"Pick one with --template {_OF_TOKENIZER}:{min(found)}."
        raise _unusable(problem, tokenizer, remedy)
    origin = _OF_TOKENIZER if name == "default" else f"{_OF_TOKENIZER} {name}"
    return Template(text=found[name], origin=origin)


def _templates_of(tokenizer: str) -> dict[str, str]:
    """Return the templates of a tokenizer by name, or an empty dict if it has none.

    They come from the first file in `_FILES` that contains a template.
    """
    path = existing_path(tokenizer)
    if path is not None:
        folder = path if path.is_dir() else path.parent
        return _first_found(lambda name: folder / name if (folder / name).is_file() else None)
    if is_repository(tokenizer):
        return _first_found(lambda name: _from_hub(tokenizer, name))
    return {}


def _from_hub(repository: str, name: str) -> Path | None:
    """Return the path of a downloaded file of a hub repository, or None if there is no such file.

    Without a network, a file that is not in the cache counts as missing.
    """
    try:
        return download(repository, name)
    except StorageError:
        return None


def _first_found(fetch: Fetch) -> dict[str, str]:
    for name in _FILES:
        path = fetch(name)
        if path is None:
            continue
        found = {"default": _read(path)} if path.suffix == ".jinja" else _in_json(path)
        if found:
            return found
    return {}


def _in_json(path: Path) -> dict[str, str]:
    """Return the templates in the field `chat_template` of a JSON file, by name.

    The field contains a text (named "default" here), an object of texts, or a list of objects with
    `name` and `template`. Return an empty dict if there is no such field. Raise `InputError` if the
    file or the field has another form.
    """
    data = _read_bytes(path, _MAX_CONFIG_BYTES)
    try:
        config = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(f"no JSON object ({error})", str(path), "Download it again.") from error
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, Mapping):
        given = [{"name": name, "template": text} for name, text in given.items()]
    if given is None:
        return {}
    try:
        return {entry["name"]: entry["template"] for entry in given if entry["template"] + ""}
    except (TypeError, KeyError) as error:
        problem = "its chat_template is neither a text nor a list of names and templates"
        raise _unusable(problem, str(path), _choice()) from error


def _read(path: Path) -> str:
    try:
        return _read_bytes(path, MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte {error.start:,})"
        raise _unusable(problem, str(path), "Save it as UTF-8.") from error


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size <= limit and path.is_file():
            return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise _unusable(problem, str(path), "Check its permissions and the disk.") from error
    problem = f"no file of at most {limit:,} bytes ({size:,})"
    raise _unusable(problem, str(path), _choice())


def _choice() -> str:
    return (
        f"Give --template with the path of a .jinja file or one of: {', '.join(named_templates())}."
    )


def _unusable(problem: str, where: str, remedy: str) -> InputError:
    return InputError(problem, where=where, remedy=remedy, code="E_TEMPLATE")
