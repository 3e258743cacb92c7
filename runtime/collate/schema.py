"""Output schema of a batch: the dtype and the pad value of every field.

A field is looked up by its name, then by its name without prefix. So an entry for ``input_ids``
also applies to ``chosen_input_ids``, unless there is an entry for ``chosen_input_ids``. Without an
entry, the table `_KNOWN` gives the dtype and pad value that models expect. For a field that is not
in the table, the type of its numbers decides: int64, float32 or bool, with pad value 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import UsageError, require

__all__ = ["FieldSchema", "OutputSchema", "Resolved", "dtype_of"]

_NUMPY: dict[torch.dtype, type[Any]] = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16,
    torch.int32: np.int32, torch.int64: np.int64, torch.float16: np.float16,
    torch.bfloat16: np.float32, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _NUMPY}
_BY_NAME |= {"long": torch.int64, "int": torch.int32, "half": torch.float16, "float": torch.float32}
_OF_KIND = {"b": torch.bool, "i": torch.int64, "u": torch.int64, "f": torch.float32}


def dtype_of(name: torch.dtype | str) -> torch.dtype:
    """Return the torch dtype for `name`, which may be a dtype or the name of a dtype.

    Raise `UsageError` for a dtype that is not supported.

    >>> dtype_of("int32")
    torch.int32
    """
    text = name.removeprefix("torch.") if isinstance(name, str) else ""
    found = name if isinstance(name, torch.dtype) else _BY_NAME.get(text)
    if found not in _NUMPY:
        raise UsageError(f"must be one of {', '.join(_BY_NAME)}, got {name!r}", where="dtype")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldSchema:
    """Dtype and pad value of a field; None stands for the default.

    - `dtype`: a torch dtype or its name.
    - `pad_value`: the value in padding.
    - `along`: the name of a field of ids. The described field has one number per id, and is cut and
      padded like the ids. The option is not needed for labels, attention_mask, token_type_ids,
      position_ids, special_tokens_mask and loss_mask, because their default is ``input_ids``.
    """

    dtype: torch.dtype | str | None = None
    pad_value: float | None = None
    along: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.pad_value, int | float | np.number)
        require(self.pad_value is None or number, "pad_value",
                f"must be a number, got {self.pad_value!r}")  # fmt: skip
        require(self.along is None or isinstance(self.along, str), "along",
                f"must be the name of a field, got {self.along!r}")  # fmt: skip
        if self.dtype is not None:
            object.__setattr__(self, "dtype", dtype_of(self.dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """Dtype and pad value of a field; `numpy` is the dtype of its array before conversion.

    The two dtypes differ only for bfloat16, which NumPy does not have: its array is float32.
    """

    dtype: torch.dtype
    numpy: np.dtype[Any]
    pad_value: float


_KNOWN = {
    "labels": FieldSchema(dtype=torch.int64, pad_value=-100, along="input_ids"),
    "attention_mask": FieldSchema(dtype=torch.int64, pad_value=0, along="input_ids"),
    "token_type_ids": FieldSchema(dtype=torch.int64, pad_value=0, along="input_ids"),
    "position_ids": FieldSchema(dtype=torch.int64, pad_value=0, along="input_ids"),
    "special_tokens_mask": FieldSchema(dtype=torch.int64, pad_value=1, along="input_ids"),
    "loss_mask": FieldSchema(dtype=torch.int64, pad_value=0, along="input_ids"),
    "input_ids": FieldSchema(dtype=torch.int64),
    "scores": FieldSchema(dtype=torch.float32),
    "rewards": FieldSchema(dtype=torch.float32),
    "weight": FieldSchema(dtype=torch.float32),
}


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """Dtypes and pad values by field name.

    >>> schema = OutputSchema({"input_ids": FieldSchema(dtype="int32", pad_value=3)})
    >>> schema.resolve("chosen_input_ids", pad_value=0)
    Resolved(dtype=torch.int32, numpy=dtype('int32'), pad_value=3)
    >>> schema.resolve("scores", kind="f").dtype
    torch.float32
    """

    fields: Mapping[str, FieldSchema] = field(default_factory=dict)
    _resolved: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(isinstance(self.fields, Mapping), "schema",
                f"must be a mapping of fields, got {self.fields!r}")  # fmt: skip
        for name, schema in self.fields.items():
            require(
                isinstance(name, str) and isinstance(schema, FieldSchema), "schema",
                f"must hold a FieldSchema for every name, got {schema!r} for {name!r}",
            )  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> OutputSchema:
        """Return the schema described by plain values.

        An example is ``{"labels": {"dtype": "int32", "pad_value": 0}}``. A dtype alone is also
        valid: ``{"labels": "int32"}``. Raise `UsageError` for other values.
        """
        require(isinstance(fields, Mapping), "schema", f"must be a mapping, got {fields!r}")
        found = {}
        for name, given in fields.items():
            values = {"dtype": given} if isinstance(given, str | torch.dtype) else given
            try:
                found[name] = values if isinstance(values, FieldSchema) else FieldSchema(**values)
            except TypeError as error:
                raise UsageError(f"{name}: {error}", where="schema") from None
        return cls(found)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return a dict of JSON values from which `from_dict` makes the same schema."""
        return {name: _plain(schema) for name, schema in self.fields.items()}

    def along(self, name: str) -> str | None:
        """Return the name of the field of ids that determines how the field `name` is padded.

        Both fields are cut and padded in the same way. For ``"chosen_labels"`` the result is
        ``"chosen_input_ids"``. Return None if `name` is not known to have one number per id.
        """
        if (name, "along") in self._resolved:
            found: str | None = self._resolved[name, "along"]
            return found
        base, prefix = _split(name, self.fields, _KNOWN)
        known = self.fields.get(base, FieldSchema()).along or _KNOWN.get(base, FieldSchema()).along
        return self._resolved.setdefault((name, "along"), prefix + known if known else None)

    def resolve(self, name: str, *, pad_value: float | None = None, kind: str = "i") -> Resolved:
        """Return the dtype and pad value of the field `name`.

        The argument `kind` is NumPy's letter for the type of the field's numbers: ``"b"``, ``"i"``,
        ``"u"`` or ``"f"``. Floats stay floats unless the schema sets a different dtype, so labels
        of a regression are float32. The argument `pad_value` is used if the schema has no pad
        value. Raise `UsageError` if the pad value does not fit the dtype.
        """
        key = (name, pad_value, kind)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(name, pad_value, kind)
        found: Resolved = self._resolved[key]
        return found

    def _resolve(self, name: str, pad_value: float | None, kind: str) -> Resolved:
        own, known = (table.get(_split(name, table)[0], FieldSchema())
                      for table in (self.fields, _KNOWN))  # fmt: skip
        dtype = own.dtype or (known.dtype if kind != "f" else None) or _OF_KIND[kind]
        values = (own.pad_value, pad_value, known.pad_value)
        value = next((value for value in values if value is not None), 0)
        return _resolved(name, dtype_of(dtype), value)


def _split(name: str, *tables: Mapping[str, Any]) -> tuple[str, str]:
    """Return `name` without its prefix, and the prefix.

    For ``"chosen_input_ids"`` the result is ("input_ids", "chosen_"). A prefix ends with an
    underscore, and the rest of the name must be in one of `tables`. If several prefixes fit, use
    the shortest. If none fits, return (`name`, "").
    """
    base, prefix = name, ""
    while not any(base in table for table in tables):
        head, mark, base = base.partition("_")
        if not mark:
            return name, ""
        prefix += head + mark
    return base, prefix


def _resolved(name: str, dtype: torch.dtype, value: float) -> Resolved:
    numpy = np.dtype(_NUMPY[dtype])
    if numpy.kind in "iub":
        limits = (0, 1) if numpy.kind == "b" else (np.iinfo(numpy).min, np.iinfo(numpy).max)
        fits = float(value).is_integer() and limits[0] <= value <= limits[1]
        require(fits, f"field {name!r}", f"the pad value {value} does not fit {dtype}")
        value = int(value)
    return Resolved(dtype=dtype, numpy=numpy, pad_value=value)


def _plain(schema: FieldSchema) -> dict[str, Any]:
    values = {"dtype": schema.dtype, "pad_value": schema.pad_value, "along": schema.along}
    if schema.dtype is not None:
        values["dtype"] = str(schema.dtype).removeprefix("torch.")
    return {name: value for name, value in values.items() if value is not None}
