"""`TaskSpec`: a description of a training task and its data, in JSON values.

A `TaskSpec` names the fields of a sample and their kinds, and what is predicted from them. From the
description, data modules choose a collate function. The method `to_dict` returns a dict for a
config file, and `from_dict` makes an equal `TaskSpec` from the dict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from dataprep.formats.errors import UsageError, require

__all__ = ["MODALITIES", "PRESETS", "TASK_TYPES", "TaskSpec"]

TASK_TYPES = (
    "lm", "masked_lm", "seq2seq", "classification", "token_classification", "multi_label",
    "regression", "preference", "kto", "grpo", "custom",
)  # fmt: skip
"""Task types; ``"custom"`` is for tasks that have a collate function of their own."""

MODALITIES = ("text", "vision", "audio", "tabular", "multimodal")
"""Usual modalities; collators may be registered for others."""

PRESETS = ("lm_tiny", "cls_tiny", "seq2seq_tiny", "vision_tiny")
"""Names of the ready-made tasks: see `TaskSpec.preset`."""

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """Description of a training task: its name, its type, and the fields of its samples.

    Lists of names are stored as tuples. Raises `UsageError` for an unknown task type, and for
    values that JSON cannot hold.

    >>> TaskSpec.cls_tiny().target_field
    'label'
    >>> audio = TaskSpec(name="speech", task_type="classification", modality="audio")
    >>> TaskSpec.from_dict(audio.to_dict()) == audio
    True
    """

    name: str
    task_type: str
    """One of `TASK_TYPES`."""
    modality: str = "text"
    """Kind of the samples: one of `MODALITIES`, or another that a collator is registered for."""
    model_family: str = "decoder"
    """Architecture, for the trainer; dataprep does not read it."""
    input_fields: tuple[str, ...] = ("input_ids",)
    """Fields of a sample that the model reads, for the trainer; dataprep does not read it."""
    target_field: str | None = "labels"
    """Field that the built-in collate functions take the labels from, or None. They find `labels`,
    `label` and `label_ids` in any case."""
    loss_type: str = "cross_entropy"
    metrics: tuple[str, ...] = ()
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of special tokens, as ``{"pad": 0}``; they overrule those of a tokenizer."""
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the inputs, such as shapes, vocabulary size, number of channels."""
    output_schema: Mapping[str, Any] = field(default_factory=dict)
    """Dtype and pad value of fields of a batch, as `OutputSchema.from_dict` takes them."""
    preprocessing_config: Mapping[str, Any] = field(default_factory=dict)
    """Options of the collate function, by the names of its arguments."""
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    """Other values for the trainer, such as the number of classes."""

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and bool(self.name), "name", "must be a name")
        require(
            self.task_type in TASK_TYPES, "task_type",
            f"must be one of {', '.join(TASK_TYPES)}, got {self.task_type!r}",
        )  # fmt: skip
        named = isinstance(self.modality, str) and _NAME.fullmatch(self.modality)
        require(bool(named), "modality", f"must be a name in lower case, got {self.modality!r}")
        for where in ("input_fields", "metrics"):
            object.__setattr__(self, where, _names(where, getattr(self, where)))
        for where in _MAPPINGS:
            object.__setattr__(self, where, _json(where, getattr(self, where)))

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Return a language modelling task on `input_ids`; labels equal the inputs."""
        return cls(name="lm_tiny", task_type="lm", metrics=("loss", "perplexity"))

    @classmethod
    def cls_tiny(cls) -> TaskSpec:
        """Return a text classification task with two classes."""
        return cls(
            name="cls_tiny", task_type="classification", model_family="encoder",
            input_fields=("input_ids", "attention_mask"), target_field="label",
            metrics=("loss", "accuracy"), additional_config={"num_classes": 2},
        )  # fmt: skip

    @classmethod
    def seq2seq_tiny(cls) -> TaskSpec:
        """Return a text-to-text task for an encoder-decoder model."""
        return cls(
            name="seq2seq_tiny", task_type="seq2seq", model_family="encoder_decoder",
            input_fields=("input_ids", "attention_mask"), metrics=("loss",),
        )  # fmt: skip

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Return an image classification task: RGB, normalised as for ImageNet, ten classes."""
        return cls(
            name="vision_tiny", task_type="classification", modality="vision",
            model_family="encoder", input_fields=("pixel_values",), metrics=("loss", "accuracy"),
            input_schema={"channels": 3}, preprocessing_config={"normalize": "imagenet"},
            additional_config={"num_classes": 10},
        )  # fmt: skip

    @classmethod
    def preset(cls, name: str) -> TaskSpec:
        """Return the predefined task `name`; raise `UsageError` if `name` is not in `PRESETS`.

        >>> TaskSpec.preset("lm_tiny") == TaskSpec.lm_tiny()
        True
        """
        require(name in PRESETS, "name", f"must be one of {', '.join(PRESETS)}, got {name!r}")
        return cast(TaskSpec, getattr(cls, name)())

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of all fields as JSON values."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return cast("dict[str, Any]", json.loads(json.dumps(values)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaskSpec:
        """Return the task described by `values`, a dict that `to_dict` returned.

        Missing fields get their defaults. Raise `UsageError` for a key that is not a field, and if
        `name` or `task_type` is missing.
        """
        known = {part.name for part in fields(cls)}
        unknown = sorted(set(values) - known)
        require(not unknown, "values", f"a task has no field {', '.join(unknown)}")
        for name in ("name", "task_type"):
            if name not in values:
                raise UsageError("is missing", where=name, remedy="Pass what to_dict() gave.")
        return cls(**values)


_MAPPINGS = (
    "special_tokens", "input_schema", "output_schema", "preprocessing_config", "additional_config",
)  # fmt: skip


def _names(where: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return `given` as a tuple of strings.

    Raise `UsageError` for a single string, and for values that are not strings.
    """
    names = () if isinstance(given, str) else tuple(given)
    sound = not isinstance(given, str) and all(isinstance(name, str) for name in names)
    require(sound, where, f"must be a list of names, got {given!r}")
    return names


def _json(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `given` after conversion to JSON and back.

    Raise `UsageError` for values that JSON cannot hold, and for keys that are not strings.
    """
    try:
        found = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"must hold JSON values only ({error})", where=where) from None
    require(all(isinstance(key, str) for key in given), where, "must have names as keys")
    return cast("dict[str, Any]", found)
