"""What messages tell people to use, found in the source, against what there is.

Every text in the code that is no docstring may reach somebody: errors, their remedies, notes and
help are made of them. In each of them an option, an argument with a value, a call, a command or an
extra of pip must be one that exists. Values that are filled in (f-strings) stand as `HOLE`.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import numpy as np
import torch

import dataprep
from dataprep.cli.build.kinds import KINDS
from dataprep.cli.main import COMMANDS
from tests.support import REPOSITORY

__all__ = ["CALLS", "HOLE", "KEYWORDS", "OPTIONS", "mistakes", "modules", "option_names", "texts"]

HOLE = "\0"
BUILDS = tuple(f"build --kind {kind}" for kind in KINDS)
# Whose options a module may tell of; the longest prefix of its path counts.
HOMES = {
    "": (),  # all commands
    "cli/build/tokens.py": BUILDS[:1],
    "cli/build/chat.py": ("build --kind chat",),
    "cli/build/embeddings.py": ("build --kind embeddings",),
    "cli/build/pairs.py": ("build --kind pairs",),
    "cli/convert.py": ("convert",),
    "cli/inspect/command.py": ("inspect",),
    "cli/order/command.py": ("order",),
    "cli/order/run.py": ("order",),
    "cli/tokenizer.py": ("tokenizer train",),
    "cli/order/report.py": ("order",),
    "cli/verify.py": ("verify",),
    "pipeline": (*BUILDS, "tokenizer train"),
    "pipeline/chat": ("build --kind chat",),
    "pipeline/embeddings": ("build --kind embeddings",),
    "pipeline/interop": ("convert",),
    "pipeline/pairs": ("build --kind pairs",),
}
_OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]*)(?:[ =]([a-z][\w-]*(?:\|[\w-]+)*))?")
_KEYWORD = re.compile(r"(?<![\w.-])([a-z_]\w*)=(?:'([^'\0]*)'|(?=[\w\"(\[{<\0]))")
_CALL = re.compile(r"(?<![\w'.|\\])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w+)\(")
_VALUE_OF_OPTION = re.compile(r"--[a-z][\w-]*[ =]\S+")
_COMMAND = re.compile(r"`dataprep ([^`]*)`|^ +dataprep ((?:[^\n\\]|\\\n)*)$", re.MULTILINE)
_PROSE = {"out", "what"}  # "leave --engine out", "say with --format what it is"
_PIP = re.compile(r"pip install (?:'([\w-]+)\[([\w,-]+)\]'|([a-z][\w-]*))")
_MAY_TELL = re.compile(r"--|=|\(|`|pip |^ +dataprep", re.MULTILINE)
_DOTTED = re.compile(r"`(dataprep(?:\.\w+)+)")


def modules() -> Iterator[Path]:
    """The modules whose texts are looked at."""
    for folder in ("cli", "formats", "pipeline", "runtime"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if path.relative_to(REPOSITORY).as_posix() not in NO_MESSAGES:
                yield path
    yield REPOSITORY / "dataprep" / "text.py"


NO_MESSAGES = {
    "cli/order/option_words.py": "patterns, which have a test of their own",
    "pipeline/tokenize/probes.py": "texts that engines are compared on",
}


@cache
def texts(source: str) -> list[tuple[int, str]]:
    """The line and the text of each string in `source` that is no docstring."""
    return list(_texts(source))


def _texts(source: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(source)))
    passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Call) and _is_compile(node.func):
            passed.update(map(id, ast.walk(node.args[0])))
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and id(node) not in passed:
            passed.update(id(part) for part in ast.walk(node) if part is not node)
            parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        if (
            isinstance(node, ast.Constant)
            and id(node) not in passed
            and node.value == str(node.value)
        ):
            yield node.lineno, str(node.value)


def _is_compile(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "compile"


def mistakes(source: str, home: str = "") -> list[str]:
    """What the texts of a module tell of that is not there; `home` is its path."""
    own = max((prefix for prefix in HOMES if home.startswith(prefix)), key=len)
    return [
        f"{home}:{line}: {what}"
        for line, text in texts(source)
        if _MAY_TELL.search(text)
        for check in (_options, _keywords, _calls, _commands, _pip, _dotted)
        for what in check(text, HOMES[own] or tuple(_commands_there_are()))
    ]


@cache
def _commands_there_are() -> dict[str, dict[str, click.Parameter]]:
    """The options of each command, by the words that call it."""
    found: dict[str, click.Command] = {}
    for name, (module, _) in COMMANDS.items():
        command = importlib.import_module(module).command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
        elif name != "build":
            found[name] = command
    found |= {f"build --kind {k}": importlib.import_module(m).command for k, m in KINDS.items()}
    return {
        words: {
            spelled: one
            for one in command.params
            for spelled in (*one.opts, *one.secondary_opts, "--help")
        }
        for words, command in found.items()
    }


def option_names(command: str) -> set[str]:
    """The options of `command`, as --name."""
    return set(_commands_there_are()[command])


def _options(text: str, homes: tuple[str, ...]) -> Iterator[str]:
    for name, values in _OPTION.findall(_COMMAND.sub("", text)):
        yield from _option(f"--{name}", values, homes)


def _option(name: str, values: str, homes: tuple[str, ...]) -> Iterator[str]:
    if name in OPTIONS:
        return
    there = [found[name] for home in homes if name in (found := _commands_there_are()[home])]
    if not there:
        yield f"{name} is no option of {' or '.join(homes)}"
        return
    kinds = [one.type for one in there]
    choices = {str(choice) for kind in kinds if isinstance(kind, click.Choice)
               for choice in kind.choices}  # fmt: skip
    if all(isinstance(kind, click.Choice) for kind in kinds):
        for value in filter(None, values.split("|")):
            if value not in choices and value not in _PROSE:
                yield f"{name} {value}: {name} takes {', '.join(sorted(choices))}"


def _commands(text: str, _: tuple[str, ...]) -> Iterator[str]:
    """Commands in backquotes: there is one of that name, with these options."""
    for line in map("".join, _COMMAND.findall(text)):
        words = line.replace(HOLE, "HOLE").split()
        named = " ".join(words[:2]) if words[0] == "tokenizer" else words[0]
        kind = re.search(r"--kind (\w+)", line)
        homes = (named,) if named != "build" else (f"build --kind {kind[1]}",) if kind else BUILDS
        if not set(homes) <= _commands_there_are().keys():
            yield f"`dataprep {line}`: there is no such command"
            continue
        for name, values in _OPTION.findall(line):
            yield from _option(f"--{name}", values, homes)


@cache
def _public() -> dict[str, set[str]]:
    """The parameters of each public function, class and method, by the name it is called by."""
    found: dict[str, set[str]] = {}
    for name in (*dataprep.__all__, *dataprep._ELSEWHERE):
        one = getattr(dataprep, name)
        if not callable(one):
            continue
        found.setdefault(name, set()).update(_parameters(one))
        for inner, member in inspect.getmembers(one) if inspect.isclass(one) else ():
            if not inner.startswith("_") and callable(member):
                found.setdefault(inner, set()).update(_parameters(member))
    for name in (
        "formats.read.dataset:Dataset", "formats.read.arrays:ArrayData",
        "runtime.arrays.pair_data:PairData", "runtime.loader.loader:Loader",
        "runtime.mixture.order:MixtureOrder",
    ):  # fmt: skip
        module, _, kind = name.partition(":")
        one = getattr(importlib.import_module(f"dataprep.{module}"), kind)
        found.setdefault(kind, set()).update(_parameters(one))
        for inner, member in inspect.getmembers(one, callable):
            if not inner.startswith("_"):
                found.setdefault(inner, set()).update(_parameters(member))
    return found


def _parameters(one: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(one).parameters)
    except (TypeError, ValueError):  # built in
        return set()


@cache
def _values() -> dict[str, set[str]]:
    """The texts that arguments of public functions take, where they take only certain ones."""
    found: dict[str, set[str]] = {}
    for name in (*dataprep.__all__, *dataprep._ELSEWHERE):
        one = getattr(dataprep, name)
        made = one.__init__ if inspect.isclass(one) and not dataclasses.is_dataclass(one) else one
        try:
            hints = get_type_hints(made)
        except (TypeError, NameError):
            continue
        for argument, hint in hints.items():
            parts = (hint, *get_args(hint))
            choices = {c for p in parts if get_origin(p) is Literal for c in get_args(p)}
            open_ended = str in parts
            found.setdefault(argument, set()).update(choices if not open_ended else {"*"})
    return {name: values for name, values in found.items() if values and "*" not in values}


def _keywords(text: str, _: tuple[str, ...]) -> Iterator[str]:
    known = {name for names in _public().values() for name in names}
    for name, value in _KEYWORD.findall(_VALUE_OF_OPTION.sub("", text)):
        if name not in known and name not in KEYWORDS:
            yield f"{name}= is no argument of anything public"
        elif value and value not in _values().get(name, {value}):
            yield f"{name}={value!r}: it takes {', '.join(sorted(_values()[name]))}"


def _calls(text: str, _: tuple[str, ...]) -> Iterator[str]:
    for name in _CALL.findall(text):
        last = name.rpartition(".")[2]
        if last not in _public() and name not in CALLS and not _of_others(name):
            yield f"{name}(): nothing public is called so"
    for name, inside in re.findall(r"(?<![\w'.])([A-Za-z_]\w*)\(([^()]*)\)", text):
        for given, _value in _KEYWORD.findall(inside):
            if name in _public() and given not in _public()[name]:
                yield f"{name}({given}=): it has no such argument"


def _of_others(name: str) -> bool:
    """Whether `name` is of Python itself, or of numpy, torch or json."""
    module, *steps = name.split(".")
    found: Any = builtins
    if steps:
        found = {"np": np, "numpy": np, "torch": torch, "json": json, "sys": sys}.get(module)
    for step in steps or [module]:
        found = getattr(found, step, None)
    return callable(found)


@cache
def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return found


def _pip(text: str, _: tuple[str, ...]) -> Iterator[str]:
    project = _project()
    extras = project["optional-dependencies"]
    needed = {re.split(r"[><=\[;]", one)[0] for names in extras.values() for one in names}
    for name, wanted, alone in _PIP.findall(text):
        if alone and alone not in needed:
            yield f"pip install {alone}: no extra needs it"
        if name and (name != project["name"] or not set(wanted.split(",")) <= extras.keys()):
            yield f"pip install '{name}[{wanted}]': there is no such extra"


def _dotted(text: str, _: tuple[str, ...]) -> Iterator[str]:
    for path in _DOTTED.findall(text):
        module, _, name = path.rpartition(".")
        if not hasattr(importlib.import_module(module), name):
            yield f"{path} is not there"


# What is no part of dataprep, and why it is told of.
OPTIONS = {"--config-settings": "of pip"}
KEYWORDS = {
    "train": "a split, in --split",
    "val": "a split, in --split",
    "test": "a split, in --split",
    "messages": "a name of ours, in --columns",
    "content": "a name of ours, in --columns",
    "user": "a role, in --columns",
    "embedding": "an array, in --columns",
    "weights_only": "of torch.load",
    "write_batch_size": "of pyarrow.parquet.write_table",
    "use_dictionary": "of pyarrow.parquet.write_table",
}
CALLS = {
    "h5py.File": "of h5py, in a command that a test runs",
    "encode": "of a tokenizer that is given",
    "get_vocab": "of a tokenizer that is given",
    "array.astype": "of an array that is given",
    "step": "in the code that a template becomes",
    "environment.join_texts": "in the code that a template becomes",
    "environment.built": "in the code that a template becomes",
    "environment.compare": "in the code that a template becomes",
    "end_with_parent": "in the code that a worker begins with",
    "main": "in the code that a worker begins with",
}
