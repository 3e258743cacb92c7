"""Help texts of the options that several kinds of build have."""

from __future__ import annotations

from dataclasses import replace

from ..options import OptionHelp

__all__ = ["INPUT", "RUNNING", "SPLITS", "shared"]

INPUT, SPLITS, RUNNING = "Input", "Splits", "Running"

_SHARED = {
    "out": OptionHelp(
        section=INPUT, metavar="DIRECTORY",
        help="The directory to make. Must not exist, be empty, or hold this very build.",
    ),
    "format": OptionHelp(section=INPUT, help="Of all inputs.", default="from each name"),
    "hf_config": OptionHelp(section=INPUT, metavar="NAME", help="Configuration of a hub dataset."),
    "hf_split": OptionHelp(
        section=INPUT, metavar="NAME", help="Split of an HF dataset that has several."
    ),
    "on_error": OptionHelp(
        section="Records",
        help="A bad record stops the build, or is written to rejects.jsonl and counted.",
    ),
    "max_rejects": OptionHelp(
        section="Records", metavar="N", default="no limit",
        help="With --on-error skip: stop when more than N records are bad.",
    ),
    "excerpts": OptionHelp(
        section="Records", help="Whether rejects.jsonl quotes bad records.",
    ),
    "split": OptionHelp(
        section=SPLITS, metavar="NAME=SHARE,...",
        help="Ratios that add up to 1; with --split-mode count also numbers of documents, and "
        "rest.",
    ),
    "split_mode": OptionHelp(
        section=SPLITS,
        help="ratio: each document by its own hash, so added data moves none. count: exact sizes.",
    ),
    "seed": OptionHelp(section=SPLITS, metavar="N", help="Of the hash that assigns splits."),
    "workers": OptionHelp(
        section=RUNNING, metavar="N", default="one per core",
        help="Processes. The output is the same for any number.",
    ),
    "overwrite": OptionHelp(section=RUNNING, help="Replace a finished dataset in --out."),
}  # fmt: skip


def shared(*names: str, section: str | None = None) -> dict[str, OptionHelp]:
    """Return the help of the options `names`, in this order.

    If `section` is given, the help shows these options in that section.

    >>> list(shared("workers", "overwrite"))
    ['workers', 'overwrite']
    """
    found = {name: _SHARED[name] for name in names}
    if section is None:
        return found
    return {name: replace(entry, section=section) for name, entry in found.items()}
