"""Functions that prepare the data of a data module for a task: texts, or rows of built datasets.

Texts are samples that are strings, or dicts with a field `text` and no ids. They are tokenized with
the tokenizer of the data module. Datasets built by dataprep must fit the task: labels are unshifted
(equal to the inputs), because models shift labels internally (docs/guide.md). For the task type
masked_lm, tokens of the built rows are masked.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import default_collate

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import Split

from ..arrays.embeddings import EmbeddingDataset
from ..arrays.pairs import PairDataset
from ..collate.masked_lm import MaskedLM
from ..loader.state_errors import caller_stacklevel
from ..loader.transformed import TransformedDataset
from ..mixture.dataset import MixtureDataset
from ..rows.documents import DocumentDataset
from ..rows.packed import PackedDataset
from ..rows.preferences import PreferenceDataset
from ..rows.windows import WindowDataset
from ..seeding import isolated
from ..specs import row_kind
from ..types import Labels, SampleDataset
from .preprocessed_map import PreprocessedDataset
from .randomness import draws_nothing
from .tokenize_engine import TokenizeEngine

__all__ = [
    "TEXT_TASK_TYPES",
    "check_masked_options",
    "labels_for",
    "require_form",
    "require_task",
    "tokenized",
    "with_hidden_tokens",
]

TEXT_TASK_TYPES = ("lm", "masked_lm", "classification", "multi_label", "regression")
"""The task types whose texts are tokenized."""

_LABELLED = ("classification", "multi_label", "regression")
_ROWS_AT_ONCE = 1000

_MASKED_OPTIONS = (
    "mask_id", "vocab_size", "special_ids", "probability", "mask_share", "random_share",
    "whole_words", "continuations",
)  # fmt: skip

_OF_BUILD = "Pass the tokenizer of the build: the tokenizer.json in its directory."
_ROWS = (WindowDataset, PackedDataset, DocumentDataset)
_TASKS = {"pairs": "preference", "labels": "kto", "groups": "grpo"}
_Content = tuple[str, tuple[str, ...]]
"""What a dataset holds, as errors say it, and the task types that it can serve."""
_TOKEN_ROWS: _Content = ("rows of tokens", ("lm", "masked_lm"))


def labels_for(split: Split) -> Labels:
    """Return the option `labels` for rows of `split` that are made for a task: ``"unshifted"``.

    If the split holds groups of answers, return the default, ``"shifted"``. Such groups have no
    labels, so the option has no effect.
    """
    # Groups of answers have no labels, so the default stays.
    return "shifted" if row_kind(split) == "groups" else "unshifted"


def require_task(samples: Any, task: Any, *, labels_given: bool) -> None:
    """Raise `UsageError` if `samples` come from a dataprep dataset that does not fit `task`.

    Datasets of other packages are not checked. For masked_lm, shifted labels are always an error.
    For other tasks, they are an error if `labels_given` is False, that is, if the user did not set
    the option ``"labels"``.
    """
    found = _content(samples)
    if found is None:
        return
    holds, tasks = found
    _require(holds, tasks, task)
    shifted = any(map(_is_shifted, _parts(samples)))
    if shifted and (task.task_type == "masked_lm" or not labels_given):
        raise UsageError(
            "the labels of the data are the next tokens; those of a task stand under their own, "
            "for models that shift", where="labels", code="E_TASK",
            remedy="Make the rows with labels='unshifted', or leave task_spec out.",
        )  # fmt: skip


def require_form(split: Split, task: Any) -> None:
    """Raise `UsageError` if rows of `split` do not fit `task`, without opening the split."""
    form = split.form if split.form in _TASKS else None
    _require(*(_TOKEN_ROWS if form is None else _preferences(form)), task)


def _preferences(form: str) -> _Content:
    return f"preferences ({form})", (_TASKS[form],)


def _require(holds: str, tasks: tuple[str, ...], task: Any) -> None:
    if task.modality != "text" or task.task_type not in tasks:
        raise UsageError(
            f"{task.name!r} is a task of {task.modality} ({task.task_type}), the data holds "
            f"{holds}", where="task_spec", code="E_TASK",
            remedy=f"Pass a task of text with the task_type {' or '.join(map(repr, tasks))}, or "
            "none." if tasks else "Leave it out.",
        )  # fmt: skip


def with_hidden_tokens(
    samples: SampleDataset, collate: Any, *, seed: int, tokenizer: Any = None
) -> TransformedDataset:
    """Return a dataset of the rows of `samples` in which `collate`, a `MaskedLM`, masks tokens.

    Special tokens of the build are never masked. Raise `UsageError` if `collate` is not a
    `MaskedLM`, if its vocabulary is larger than the vocabulary of the build, or if a token of
    `tokenizer` has a different id in the build.
    """
    if not isinstance(collate, MaskedLM):
        raise UsageError(
            f"masked_lm is made by a {type(collate).__name__}, not by MaskedLM",
            where="collator_registry", remedy="Leave it out for datasets that were built.",
        )  # fmt: skip
    special = set(collate.special_ids)
    for part in _parts(samples):
        split = getattr(part, "split", None)
        if not isinstance(split, Split):
            continue
        manifest = split.dataset.manifest
        entry, known = manifest.tokenizer, manifest.tokens.vocab_size
        special.update(t.id for t in (entry.bos, entry.eos, entry.pad) if t is not None)
        if collate.vocab_size > known:
            raise UsageError(
                f"has {collate.vocab_size:,} ids, the data was built with one of {known:,}",
                where="tokenizer", code="E_TOKENIZER",
                remedy=_OF_BUILD,
            )  # fmt: skip
        if tokenizer is not None:
            _require_same_ids(tokenizer, split)
    collate = replace(collate, special_ids=tuple(sorted(special)))
    return TransformedDataset(samples, collate.hide, seed=seed)


def _require_same_ids(tokenizer: Any, split: Split) -> None:
    """Raise `UsageError` if a token has different ids in `tokenizer` and in the build."""
    built = split.dataset.tokenizer.get_vocab()
    for token, number in tokenizer.get_vocab().items():
        if built.get(token, number) != number:
            raise UsageError(
                f"has {token!r} as id {number}, the data was built with one that has it as "
                f"{built[token]}", where="tokenizer", code="E_TOKENIZER", remedy=_OF_BUILD,
            )  # fmt: skip


def _is_shifted(part: Any) -> bool:
    """Return whether the labels of `part` are the next tokens.

    Groups of answers have no labels, so the result for them is False.
    """
    return getattr(part, "labels", None) == "shifted" and getattr(part, "form", None) != "groups"


def _parts(samples: Any) -> list[Any]:
    """Return the datasets of a mixture, or ``[samples]`` if `samples` is not a mixture."""
    return list(samples.sources.values()) if isinstance(samples, MixtureDataset) else [samples]


def _content(samples: Any) -> _Content | None:
    """Return a description of the content of `samples`, and the task types that it can serve.

    Return None if the dataset comes from another package. If the tuple of task types is empty, no
    task can use the data.
    """
    inner = samples.dataset if isinstance(samples, TransformedDataset) else samples
    first = _parts(inner)[0]
    if isinstance(first, PreferenceDataset):
        return _preferences(first.form)
    if isinstance(first, _ROWS):
        return _TOKEN_ROWS
    if isinstance(first, PairDataset):
        return "pairs of embeddings", ()
    return ("embeddings", ()) if isinstance(first, EmbeddingDataset) else None


def check_masked_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a name in `options` is not an option of masking.

    Options of padding, for example, do not apply because built rows are padded already.
    """
    odd = sorted(set(options) - set(_MASKED_OPTIONS))
    if odd:
        raise UsageError(
            f"{', '.join(odd)}: no option for rows that were built", where="collator_options",
            remedy=f"rows= says how rows are cut; here there are {', '.join(_MASKED_OPTIONS)}.",
        )  # fmt: skip


def tokenized(data: Any, task: Any, tokenizer: Any, *, draws: bool | None) -> Any:
    """Return a dataset with `input_ids` in place of texts, or `data` itself if it has no texts.

    Whether `data`, a map-style dataset, has texts is decided by its first sample. `data` must not
    be empty. The label of a sample is kept if the task has labels. If reading `data` certainly uses
    no random numbers, all texts are read once, and empty texts are left out with a warning. For
    `draws` see `LoaderConfig`.
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
