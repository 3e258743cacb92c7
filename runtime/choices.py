"""Choices of options that row specs share with the datasets behind them.

Every spec needs them when it is imported; the datasets are imported when a loader has such rows.
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = [
    "FORMS",
    "Algorithm",
    "Applied",
    "By",
    "Form",
    "PackedOverlong",
    "PreferenceOverlong",
]

Algorithm = Literal["first-fit", "best-fit"]
"""How documents are packed; see `PackingOptions`."""
PackedOverlong = Literal["split", "truncate", "drop", "error"]
"""What packing does with documents that are too long; see `PackingOptions`."""

Form = Literal["pairs", "labels", "groups"]
"""Forms of preferences; see `PreferenceDataset`."""
FORMS = get_args(Form)
PreferenceOverlong = Literal["error", "truncate-left"]
"""What is done with conversations that are too long; see `PreferenceDataset`."""

By = Literal["samples", "tokens"]
"""What the weights of a mixture are shares of."""
Applied = Literal["train", "all"]
"""The splits of pairs in which the curriculum changes with the epoch."""
