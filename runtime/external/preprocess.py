"""Preprocessing of an example: rename columns, transform, run an engine, make tensors.

`PreprocessedDataset` and `StreamingPreprocessedDataset` both use this module. The input is called
an example, and the result a sample. Errors name the stage, the row and the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import DataprepError, StorageError, UsageError, require

from ..checks import name_of
from ..errors import SampleError
from ..loader.machine_errors import machine_error

__all__ = ["STAGES", "Engine", "PreprocessError", "Preprocessing", "as_tensors"]

STAGES = ("rename", "transform", "engine", "tensors")
_KINDS = {"b": torch.bool, "i": torch.int64, "u": torch.int64, "f": torch.float32}


@runtime_checkable
class Engine(Protocol):
    """Interface of an object that turns an example into the fields that a model takes.

    The method `process` must return the same result each time, because an example is processed
    again in other worker processes, in later epochs, and after removal from a cache. To send the
    engine to spawned workers, it is pickled.
    """

    def process(self, example: Any, /) -> Mapping[str, Any]:
        """Return a dict from field names to lists, arrays, tensors, numbers or texts."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return JSON values that identify the engine.

        Engines that make different fields from an example must return different values.
        """
        ...


class PreprocessError(SampleError):
    """Error for an example that cannot be processed.

    The attribute `stage` names the stage that failed, one of `STAGES`, or is ``"read"`` if the
    example could not be read.
    """

    def __init__(self, problem: str, *, stage: str = "", **parts: Any) -> None:
        self.stage = stage
        super().__init__(problem, **parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """Preprocessing of an example: the stages listed in `STAGES`, one after the other.

    A stage is left out if its option is not set. The last stage always runs, and makes tensors.

    >>> steps = Preprocessing(column_mapping={"body": "text"})
    >>> steps({"body": "Hi", "scores": [1, 2]}, "row 0")
    {'text': 'Hi', 'scores': tensor([1, 2])}
    """

    column_mapping: Mapping[str, str] = field(default_factory=dict)
    """{name in the data: name that the engine expects}; other columns keep their names."""
    transform: Callable[[Any], Any] | None = None
    """Function of the renamed example; its result goes to the engine."""
    engine: Engine | None = None
    """None: the example has the fields already."""

    def __post_init__(self) -> None:
        pairs = self.column_mapping
        texts = isinstance(pairs, Mapping) and all(
            isinstance(name, str) for pair in pairs.items() for name in pair
        )
        require(texts, "column_mapping", f"must map names to names, got {pairs!r}")
        object.__setattr__(self, "column_mapping", dict(pairs))  # a copy
        twice = sorted({new for new in pairs.values() if list(pairs.values()).count(new) > 1})
        require(not twice, "column_mapping", f"gives two columns the name {', '.join(twice)}")
        require(self.transform is None or callable(self.transform), "transform",
                f"must be callable, got {self.transform!r}")  # fmt: skip
        require(
            self.engine is None or isinstance(self.engine, Engine), "prompt_engine",
            f"{type(self.engine).__name__} lacks process(example) or describe(), which an engine "
            "has; a mere function can be the transform",
        )  # fmt: skip

    def __call__(self, example: Any, where: str) -> Any:
        """Return the sample made from `example`.

        Raise `PreprocessError` if a stage fails; the error names the row by the text `where`. Raise
        `StorageError` if the machine failed, for example because memory ran out.
        """
        stage = STAGES[0]
        try:
            if self.column_mapping:
                example = _renamed(example, self.column_mapping)
            stage = STAGES[1]
            if self.transform is not None:
                if isinstance(example, Mapping):  # a copy, as the transform may change it
                    example = dict(example)
                example = self.transform(example)
            stage = STAGES[2]
            if self.engine is not None:
                example = _fields(self.engine.process(example), self.engine)
            stage = STAGES[3]
            return as_tensors(example)
        except StorageError:
            raise  # the machine failed, not the example
        except DataprepError as error:
            raise PreprocessError(
                error.problem, stage=stage, remedy=error.remedy, code=error.code,
                where=f"{where}, {stage}" if error.where is None else f"{where}, {error.where}",
            ) from error  # fmt: skip
        except Exception as error:
            machine = machine_error(error)
            if machine is not None:
                raise machine from error
            raise PreprocessError(
                f"raised {type(error).__name__}: {error}", stage=stage, where=f"{where}, {stage}",
                remedy="Mend or leave out the example, or the code that processes it.",
            ) from error  # fmt: skip

    @property
    def identity(self) -> str:
        """Return a digest (16 hex digits) of the column mapping, the transform and the engine.

        Only the name of a transform is included, so all lambda functions count as equal. Raise
        `UsageError` if the description of the engine is not made of JSON values.
        """
        transform = name_of(self.transform)
        described = {} if self.engine is None else dict(self.engine.describe())
        try:
            return digest_of([dict(self.column_mapping), transform, described])[:16]
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"describe() of {type(self.engine).__name__} gives what JSON has not ({error})",
                where="engine", remedy="Give texts, numbers, lists and dicts.",
            ) from None  # fmt: skip


def as_tensors(value: Any) -> Any:
    """Return `value` with arrays and lists of numbers converted to tensors, also inside mappings.

    Lists of integers become int64 and lists of floats float32; arrays and tensors keep their dtype.
    Single numbers, texts and empty lists are unchanged. A ragged list becomes a list of tensors.

    >>> as_tensors({"input_ids": [1, 2], "label": 3, "answers": [[1], [2, 3]], "name": "a"})
    {'input_ids': tensor([1, 2]), 'label': 3, 'answers': [tensor([1]), tensor([2, 3])], 'name': 'a'}
    """
    if isinstance(value, Mapping):
        return {name: as_tensors(one) for name, one in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        # A writable copy in native byte order, as torch needs it.
        return torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
    if type(value) is list and value:
        return _listed(value)
    return value


def _listed(values: list[Any]) -> Any:
    """Return a non-empty list as a tensor, or as a list if it is ragged or not numeric."""
    if isinstance(values[0], str | bytes | Mapping):
        return [as_tensors(one) for one in values]
    try:
        array = np.array(values)
    except (ValueError, TypeError, RuntimeError):  # ragged
        return [as_tensors(one) for one in values]
    if array.dtype.kind not in _KINDS or array.dtype == np.uint64:
        return [as_tensors(one) for one in values]
    tensor = torch.from_numpy(array)
    keeps_dtype = isinstance(values[0], np.ndarray | torch.Tensor)
    return tensor if keeps_dtype else tensor.to(_KINDS[array.dtype.kind])


def _renamed(example: Any, mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of `example` with columns renamed.

    Raise `SampleError` if `example` is not a mapping, if a column is missing, or if its new name is
    in use already.
    """
    if not isinstance(example, Mapping):
        raise SampleError(
            f"is a {type(example).__name__}, which has no columns to rename",
            remedy="Leave column_mapping out, or make it a dict by a transform.",
        )
    missing = [name for name in mapping if name not in example]
    if missing:
        there = ", ".join(map(repr, example))
        turned = all(new in example for new in mapping.values())
        raise SampleError(
            f"has no column {', '.join(map(repr, missing))}, only {there}", code="E_COLUMN",
            remedy="Write {name in the data: name for the engine}"
            + ("; it seems to be the other way round." if turned else "."),
        )  # fmt: skip
    renamed = {mapping.get(name, name): value for name, value in example.items()}
    if len(renamed) != len(example):
        kept = [new for old, new in mapping.items() if new in example and new not in mapping]
        raise SampleError(
            f"already has a column {', '.join(map(repr, kept))}", code="E_COLUMN",
            remedy="Rename that one as well, or take it out by a transform before.",
        )  # fmt: skip
    return renamed


def _fields(made: Any, engine: Any) -> Mapping[str, Any]:
    if not isinstance(made, Mapping):
        raise SampleError(
            f"{type(engine).__name__}.process gave a {type(made).__name__}, not a mapping of fields"
        )
    return cast("Mapping[str, Any]", made)
