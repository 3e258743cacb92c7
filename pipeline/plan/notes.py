"""What a finished build should tell of its content, although nothing is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dataprep.formats.manifest.tokens import SplitEntry

from .splits import FEW_KEYS

__all__ = ["split_notes", "unknown_notes"]

_UNKNOWN_SHARE = 0.01  # of all tokens: a tokenizer that fits its text gives far fewer
_VERY_FEW_KEYS = 10  # shares can be far off


def split_notes(
    sizes: Mapping[str, int],
    shares: Mapping[str, float | int | None],
    *,
    key: str | None = None,
    keys: int = 0,
    exact: bool = False,
    sampled: bool = False,
) -> Iterator[str]:
    """Say which splits were to have documents and got none, and why.

    `sizes` are the documents of each split; `shares` what was asked for (0 asks for nothing, None
    for the rest). `key` is the field that decides the split, if one does, which has `keys` distinct
    values, or more than `FEW_KEYS`; `exact`: the sizes were given as numbers;
    `sampled`: the values are those of a sample.

    >>> list(split_notes({"train": 3, "val": 0}, {"train": 0.9, "val": 0.1}))[0][:30]
    'nothing fell to the split val:'
    """
    empty = [name for name, size in sizes.items() if not size and shares[name] != 0]
    noun = "split" if len(empty) == 1 else "splits"
    none = f"nothing fell to the {noun} {', '.join(empty)}: " if empty else ""
    if key is not None and len(sizes) > 1 and keys <= (FEW_KEYS if empty else _VERY_FEW_KEYS):
        found = f"only {keys} distinct values" if keys != 1 else "only one value"
        found += " in the sample" if sampled else ""
        means = (
            "exact sizes cut the records of one value apart" if exact
            else "records with equal values stay together, whatever the shares"
        )  # fmt: skip
        yield (
            f"{none}the field {key!r} has {found}, and {means}; if it names the splits, write the "
            "records of each value to a file of their own and build each file with --split NAME=1"
        )
    elif empty:
        yield (
            f"{none}too few documents for so small a share; --split-mode count gives exact numbers"
        )


def unknown_notes(splits: Mapping[str, SplitEntry], unknown: int) -> Iterator[str]:
    """Say that many tokens of the text are the one for what the tokenizer does not know."""
    tokens = sum(split.tokens for split in splits.values())
    if unknown > _UNKNOWN_SHARE * tokens:
        yield (
            f"{unknown:,} tokens, {unknown / tokens:.1%} of all, are the unknown token: what they "
            "stood for is lost; choose a --tokenizer that knows this text"
        )
