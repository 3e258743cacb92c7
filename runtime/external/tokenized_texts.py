"""Texts as the data of a task, tokenized with the tokenizer of a data module.

Texts are samples that are strings, or dicts with a field `text` and no ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import default_collate

from ..loader.state_errors import caller_stacklevel
from ..seeding import isolated
from .preprocessed_map import PreprocessedDataset
from .randomness import draws_nothing
from .tokenize_engine import TokenizeEngine

__all__ = ["TEXT_TASK_TYPES", "tokenized"]

TEXT_TASK_TYPES = ("lm", "masked_lm", "classification", "multi_label", "regression")
"""The task types whose texts are tokenized."""

_LABELLED = ("classification", "multi_label", "regression")
_ROWS_AT_ONCE = 1000


def tokenized(data: Any, task: Any, tokenizer: Any, *, draws: bool | None) -> Any:
    """Return a dataset with `input_ids` in place of texts, or `data` itself if it has no texts.

    The argument `data` has samples by number, at least one. The first sample decides whether they
    are texts. Labels of the task are kept. For `draws` see `LoaderConfig`. If reading `data`
    certainly uses no random numbers, all texts are read once, and empty texts are left out with a
    warning.
    """
    with isolated():
        first = data[0]
    if not _is_text(first):
        return data
    names = (getattr(task, "target_field", None), "labels", "label", "label_ids")
    fields = first if isinstance(first, Mapping) and task.task_type in _LABELLED else {}
    label = next((name for name in names if name and name in fields), None)
    engine = TokenizeEngine(tokenizer=tokenizer, keep=(label,) if label else ())
    repeatable = draws_nothing(data, default_collate)
    samples = PreprocessedDataset(data, engine, draws=not repeatable if draws is None else draws)
    if not repeatable:
        return samples  # reading all texts could change what is served later
    filled = [
        number for number, text in enumerate(_texts(data))
        if not isinstance(text, str) or text.strip()
    ]  # fmt: skip
    if len(filled) == len(data):
        return samples
    warnings.warn(
        f"{len(data) - len(filled):,} of {len(data):,} texts are empty and left out",
        stacklevel=caller_stacklevel(),
    )
    return samples.select(filled)


def _is_text(sample: Any) -> bool:
    """Return whether `sample` is a string, or a dict with a string `text` and no field of ids."""
    if not isinstance(sample, Mapping):
        return isinstance(sample, str)
    has_ids = any(str(name).endswith("input_ids") for name in sample)
    return isinstance(sample.get("text"), str) and not has_ids


def _texts(data: Any) -> Iterator[Any]:
    """Yield the text of every sample."""
    if hasattr(data, "select_columns"):  # a Hugging Face dataset: without reading other columns
        for rows in data.with_format(None).select_columns(["text"]).iter(_ROWS_AT_ONCE):
            yield from rows["text"]
        return
    for number in range(len(data)):
        sample = data[number]
        yield sample.get("text") if isinstance(sample, Mapping) else sample
