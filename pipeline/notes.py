"""What a finished build should tell of its content, although nothing is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dataprep.formats.manifest import SplitEntry

__all__ = ["content_notes"]

_UNKNOWN_SHARE = 0.01  # of all tokens: a tokenizer that fits its text gives far fewer


def content_notes(
    splits: Mapping[str, SplitEntry], shares: Mapping[str, float | int | None], unknown: int
) -> Iterator[str]:
    """Splits that were to have documents and got none; many tokens that are the unknown one.

    `shares` are what was asked for, by name (0 asks for nothing, None for the rest); `unknown` is
    how many tokens of the text have the id that the tokenizer gives to what it does not know.
    """
    empty = [name for name, split in splits.items() if not split.documents and shares[name] != 0]
    if empty:
        noun = "split" if len(empty) == 1 else "splits"
        yield (
            f"no document fell to the {noun} {', '.join(empty)}: too few documents for so small a "
            "share; --split-mode count gives exact numbers"
        )
    tokens = sum(split.tokens for split in splits.values())
    if unknown > _UNKNOWN_SHARE * tokens:
        yield (
            f"{unknown:,} tokens, {unknown / tokens:.1%} of all, are the unknown token: what they "
            "stood for is lost; choose a --tokenizer that knows this text"
        )
