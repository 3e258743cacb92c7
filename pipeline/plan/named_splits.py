"""Detection of inputs that are named like splits, such as ``data/test-00000-of-00004.parquet``.

The names of splits are those that the `datasets` library recognizes:
https://huggingface.co/docs/datasets/repository_structure
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..read.sources import Source

__all__ = ["NamedSplitOptions", "named_split_notes", "named_splits", "split_in_name"]

_WORDS = {
    "train": "train", "training": "train",
    "validation": "val", "valid": "val", "dev": "val", "val": "val",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_LONGEST_FIRST = "|".join(sorted(_WORDS, key=len, reverse=True))
_WORD = re.compile(rf"(?:^|[-._ 0-9])({_LONGEST_FIRST})(?=[-._ 0-9]|$)", re.IGNORECASE)
_WHOLE = re.compile(rf"({_LONGEST_FIRST})(?:-\d+-of-\d+)?", re.IGNORECASE)
_LISTED = 8  # inputs at most that a command lists


class NamedSplitOptions(Protocol):
    """Interface of the options that `named_split_notes` reads."""

    @property
    def input(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def out(self) -> Path: ...  # noqa: D102
    @property
    def hf_split(self) -> str | None: ...  # noqa: D102


def split_in_name(name: str) -> str | None:
    """Return "train", "val" or "test" if the path `name` contains the name of a split, or None.

    The file name is examined first, then the folders, from the innermost outwards.

    >>> split_in_name("data/validation-00000-of-00004.parquet"), split_in_name("attest.jsonl")
    ('val', None)
    """
    *folders, file = name.split("/")
    for part in (file, *reversed(folders)):
        found = _WORD.search(part)
        if found:
            return _WORDS[found[1].lower()]
    return None


def named_splits(sources: Sequence[Source], hf_split: str | None = None) -> dict[str, list[Source]]:
    """Return, by split, the inputs that are named like splits and should be built separately.

    An input named like `val` or `test` is called held out. The result is an empty dict unless an
    input is held out and one of these is true:

    - Other inputs are named like `train`.
    - All inputs are held out.
    - The whole name of a held-out file is that of a split, such as ``test.jsonl``.

    For example, a folder ``test`` beside other folders may contain anything, so the result is
    empty.
    """
    found: dict[str, list[Source]] = {}
    for source in sources:
        name = hf_split if source.format == "hf" and hf_split else source.name
        split = split_in_name(name)
        if split is not None:
            found.setdefault(split, []).append(source)
    held = [source for split in found if split != "train" for source in found[split]]
    apart = "train" in found or len(held) == len(sources) or any(map(_is_whole, held))
    return found if held and apart else {}


def _is_whole(source: Source) -> bool:
    return _WHOLE.fullmatch(source.name.rpartition("/")[2].partition(".")[0]) is not None


def named_split_notes(
    options: NamedSplitOptions,
    sources: Sequence[Source],
    shares: Mapping[str, float | int | None],
    kind: str = "",
) -> Iterator[str]:
    """Yield a note on inputs that are named like splits, and commands that build them separately.

    Yield nothing if there are no such inputs. Also yield nothing if all of them are named like the
    same split, and the build has only one split with records.

    The argument `shares` maps each split of the build to its share. The argument `kind` is the
    value of ``--kind`` in the commands. If it is empty, the option is left out.
    """
    found = named_splits(sources, options.hf_split)
    if not found and (split := _only_folder(options)):
        found = {split: list(sources)}
    if not found or (len(found) == 1 and sum(share != 0 for share in shares.values()) == 1):
        return
    named = "; ".join(f"{split}: {_named(inputs)}" for split, inputs in sorted(found.items()))
    dealt = "are divided anew among" if len(shares) > 1 else "go to"
    yield (
        f"inputs look like splits of their own ({named}), and the records of all of them {dealt} "
        f"{', '.join(shares)}. To keep them apart build each by itself, with your other options:"
    )
    for split, inputs in sorted(found.items()):
        words = ["dataprep build", *([f"--kind {kind}"] if kind else [])]
        words += [f"--input {shlex.quote(path)}" for path in _spelled(inputs, sources)]
        if options.hf_split and any(source.format == "hf" for source in inputs):
            words.append(f"--hf-split {shlex.quote(options.hf_split)}")
        yield " ".join([*words, f"--out {shlex.quote(f'{options.out}-{split}')} --split {split}=1"])


def _only_folder(options: NamedSplitOptions) -> str | None:
    """Return "val" or "test" if the only input is a folder with that name, otherwise None.

    For example, the result is "val" for folders named `val`, `dev` and `validation`.
    """
    if len(options.input) != 1 or not Path(options.input[0]).is_dir():
        return None
    split = _WORDS.get(Path(options.input[0]).name.lower())
    return None if split == "train" else split


def _named(inputs: Sequence[Source]) -> str:
    more = "" if len(inputs) == 1 else f" and {len(inputs) - 1:,} more"
    return f"{_short(inputs[0].path)}{more}"


def _spelled(inputs: Sequence[Source], sources: Sequence[Source]) -> list[str]:
    """Return values of ``--input`` that select `inputs`, but no other members of `sources`.

    If possible, the result is a single path or pattern.
    """
    paths = sorted(source.path for source in inputs)
    folder = os.path.commonpath(paths)
    if len(paths) == 1:
        return [_short(folder)]
    names = [os.path.relpath(path, folder) for path in paths]
    start = os.path.commonprefix(names)  # noqa: RUF071 (of characters)
    ends = [name[len(start) :][::-1] for name in names]
    end = os.path.commonprefix(ends)[::-1]  # noqa: RUF071
    pattern = f"{glob.escape(_short(folder))}/{glob.escape(start)}*{glob.escape(end)}"
    matches = map(os.path.abspath, glob.glob(pattern))  # noqa: PTH207 (given as a pattern)
    if sorted(filter(os.path.isfile, matches)) == paths:
        return [pattern]
    if sum(source.path.startswith(folder + os.sep) for source in sources) == len(paths):
        return [_short(folder)]
    return [_short(path) for path in paths[:_LISTED]] + ["..."] * (len(paths) > _LISTED)


def _short(path: str) -> str:
    """Return `path` relative to the working directory if it lies inside, otherwise unchanged."""
    if path.startswith("hf:"):
        return path
    found = os.path.relpath(path)
    return path if found.startswith("..") else found
