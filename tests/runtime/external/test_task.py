"""Task specs: fields, presets, a round trip through JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from dataprep.formats.errors import UsageError
from dataprep.runtime.external.task import PRESETS, TaskSpec


def test_a_task_says_what_its_data_is() -> None:
    """Item 43: modality, schemas and preprocessing options are kept as given."""
    task = TaskSpec(
        name="digits", task_type="classification", modality="vision",
        input_fields=["pixel_values"], target_field="label",  # type: ignore[arg-type]
        input_schema={"shape": (1, 28, 28)}, output_schema={"labels": {"dtype": "int32"}},
        preprocessing_config={"mean": [0.13], "std": [0.31]},
    )  # fmt: skip
    assert (task.modality, task.input_fields) == ("vision", ("pixel_values",))
    assert task.input_schema == {"shape": [1, 28, 28]}  # as JSON gives it back
    assert task.preprocessing_config["mean"] == [0.13]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_class_methods_and_names(name: str) -> None:
    """Items 43, 44: each preset is a method, and has a name; both give the same task."""
    task = getattr(TaskSpec, name)()
    assert task == TaskSpec.preset(name)
    assert task.name == name


def test_presets_differ_as_their_names_say() -> None:
    """Item 44: lm, cls and seq2seq are text, vision is vision."""
    found = {name: TaskSpec.preset(name) for name in PRESETS}
    assert [(task.modality, task.task_type) for task in found.values()] == [
        ("text", "lm"), ("text", "classification"), ("text", "seq2seq"),
        ("vision", "classification"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="lm_tiny, cls_tiny, seq2seq_tiny, vision_tiny, got 'lm'"):
        TaskSpec.preset("lm")
    with pytest.raises(UsageError, match="must be one of"):
        TaskSpec.preset("from_dict")


@pytest.mark.parametrize("name", PRESETS)
def test_dict_round_trip(name: str) -> None:
    """Item 43: through a dict, JSON and pickle a task comes back equal; the dict is a copy."""
    task = TaskSpec.preset(name)
    values = task.to_dict()
    assert TaskSpec.from_dict(json.loads(json.dumps(values))) == task
    assert pickle.loads(pickle.dumps(task)) == task
    values["input_schema"]["changed"] = True
    assert task == TaskSpec.preset(name)


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("name", {"name": ""}),
        ("name", {"name": None}),
        ("task_type", {"task_type": "language"}),
        ("modality", {"modality": "Vision Images"}),
        ("input_fields", {"input_fields": "input_ids"}),
        ("metrics", {"metrics": [1]}),
        ("additional_config", {"additional_config": {"f": print}}),
        ("input_schema", {"input_schema": {"scale": float("nan")}}),
        ("special_tokens", {"special_tokens": {1: 2}}),
        ("values", {"modalty": "text"}),
    ],
)
def test_mistakes_are_named(where: str, values: dict[str, Any]) -> None:
    """A field that is wrong, or does not exist, is named."""
    with pytest.raises(UsageError) as caught:
        TaskSpec.from_dict({"name": "a", "task_type": "lm"} | values)
    assert caught.value.where == where


def test_what_has_no_default_must_be_there() -> None:
    """`from_dict` says which field is missing."""
    with pytest.raises(UsageError, match="task_type: is missing"):
        TaskSpec.from_dict({"name": "a"})
