"""Rewriting of loader errors for the command line: seq_len=64 becomes --seq-len 64.

The command `dataprep order` makes a loader, as a Python program does. The loader's errors name its
arguments, and this module replaces them by options.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dataprep.formats.errors import DataprepError

__all__ = ["in_options"]

_SAME_OPTIONS = "Give the options that the loader had; what the state says need not be given."
_PHRASES = (
    (r"batch_size (?=\d)", "--batch-size "),
    (r"dp_size (?=\d)", "--dp-size "),
    (r"more than seq_len", "more than --seq-len"),
    ("drop_last drops it", "--end drop drops it"),
    ("drop_last=False", "--end pad (or partial)"),
    (r"(smaller|larger) (batch|seq)_(size|len)", r"\1 --\2-\3"),
    ("another overlong", "another --overlong"),
    (r"labels=None", "--labels none"),
    (r"shuffle=False", "--shuffle none"),
    (r" Or pass weights_changed=True[^.]*\.", ""),
    (r"Pass weights_changed=True[^.]*\.", "Give the PATHs and weights that it was taken with."),
    (r"Make the loader [^.]*\.", _SAME_OPTIONS),
    (r"Pass (json\.loads\(\.\.\.\) of it: )?what state_dict\(\) gave\.",
     "Write json.dumps(loader.state_dict()) to the file."),
    (r"Load an earlier state, or begin without one\.", "Give an earlier state."),
)  # fmt: skip
_VALUE = r"=(?:'(?P<quoted>[^']*)'|(?P<plain>\w+(?:[.,]\w+)*))"


def in_options(error: DataprepError, names: Collection[str]) -> None:
    """Replace the arguments `names` by options in the texts of `error`, in place.

    >>> error = DataprepError("longer than seq_len=64", remedy="Use overlong='split'.")
    >>> in_options(error, ["seq_len", "overlong"])
    >>> error.problem, error.remedy
    ('longer than --seq-len 64', 'Use --overlong split.')
    """
    error.problem = _translated(error.problem, names)
    if error.remedy is not None:
        error.remedy = _translated(error.remedy, names)


def _translated(text: str, names: Collection[str]) -> str:
    for phrase, instead in _PHRASES:
        text = re.sub(phrase, instead, text)
    return re.sub(rf"\b(?P<name>{'|'.join(names)}){_VALUE}", _option, text)


def _option(found: re.Match[str]) -> str:
    value = found["quoted"] if found["plain"] is None else found["plain"]
    return f"--{found['name'].replace('_', '-')} {value}"
