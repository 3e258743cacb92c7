"""Collate function for waveforms and spectrograms of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataprep.formats.errors import UsageError, require

from ..errors import SampleError
from ..padding import Padding, PadTo, Side, Truncate
from ..types import IGNORED_LABEL
from .columns import Columns, columns_of, finished, first_filled, is_sequence, scalars
from .padded import cached_padding, one_each
from .ragged import Array, PaddedLayout, as_rows, check_fit, layout_of
from .schema import OutputSchema

__all__ = ["Audio"]

_NAMES = ("input_values", "input_features", "waveform", "audio")
_LABELS = ("labels", "label")


@dataclass(frozen=True, kw_only=True, slots=True)
class Audio:
    """Collate function for sound: padded arrays of float32, with `attention_mask` and `lengths`.

    The sound of a sample is its field `input_values`, `input_features`, `waveform` or `audio`. The
    batch contains it under the same name. A sound has one axis (time), or two, of which `time_axis`
    is time. In the batch, these axes follow the axis of rows. A dict with the field `array`, as in
    Hugging Face datasets, is also accepted. int16 and int32 (PCM) are scaled to -1 .. 1. Padding
    has the value `pad_value`, unless the schema sets a value.

    If samples have an `attention_mask`, it is padded like the sound. If they have `lengths`, the
    lengths computed here replace them. Labels that are sequences (as for CTC) are padded with
    `label_pad_id`. Labels that are single numbers become a tensor of shape [rows].

    >>> batch = Audio()([{"waveform": [0.5, 1.0], "label": 3}, {"waveform": [0.25], "label": 4}])
    >>> batch["waveform"].tolist(), batch["lengths"].tolist(), batch["labels"].tolist()
    ([[0.5, 1.0], [0.25, 0.0]], [2, 1], [3, 4])
    """

    time_axis: int = -1
    pad_value: float = 0.0
    padding_side: Side = "right"
    max_length: int | None = None
    pad_to: PadTo | None = None
    multiple: int = 1
    truncate: Truncate | None = None
    label_pad_id: int = IGNORED_LABEL
    schema: OutputSchema = field(default_factory=OutputSchema)
    tensors: bool = True

    def __post_init__(self) -> None:
        self._padding()
        allowed = (-2, -1, 0, 1)
        require(self.time_axis in allowed, "time_axis", f"must be one of {allowed}")

    def _padding(self) -> Padding:
        return cached_padding(
            side=self.padding_side, max_length=self.max_length, pad_to=self.pad_to,
            multiple=self.multiple, truncate=self.truncate,
        )  # fmt: skip

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no field of sound."""
        columns = columns_of(samples, ("input_values", "labels"))
        name = next((name for name in _NAMES if name in columns), None)
        if name is None:
            raise UsageError(
                f"samples have no field {' or '.join(_NAMES)}, there is {', '.join(columns)}",
                where="audio", code="E_FIELDS", remedy="Rename the column of the sound.",
            )  # fmt: skip
        given = _arrays(columns.pop(name), name)
        sounds = [self._row(row, sound, name) for row, sound in enumerate(given)]
        rows = as_rows(sounds, name)
        layout = layout_of(self._padding(), rows, name)
        return finished(self._batch(name, rows, layout, columns), self.schema, tensors=self.tensors)

    def _batch(
        self, name: str, rows: list[Array], layout: PaddedLayout, columns: Columns
    ) -> dict[str, Any]:
        wanted = self.schema.resolve(name, pad_value=self.pad_value, kind="f")
        check_fit(rows, wanted.numpy, name)
        sound = layout.fill(rows, wanted.pad_value, wanted.numpy)
        if sound.ndim == 3 and self.time_axis in (-1, 1):
            sound = np.ascontiguousarray(sound.transpose(0, 2, 1))
        batch: dict[str, Any] = {
            name: sound,
            "attention_mask": self._mask(columns.pop("attention_mask", None), rows, layout),
            "lengths": np.array(layout.lengths, np.int64),
        }
        columns.pop("lengths", None)
        label = next((other for other in _LABELS if other in columns), None)
        for other, values in columns.items():
            batch["labels" if other == label else other] = self._other(other, values)
        return batch

    def _mask(self, given: list[Any] | None, rows: list[Array], layout: PaddedLayout) -> Array:
        """Return the `attention_mask` [rows, time].

        If `given` is None, the mask is 1 for sound and 0 for padding. Otherwise `given` holds the
        mask of each sample, and the result holds these masks, padded. Raise `SampleError` if the
        length of a mask differs from that of its sound.
        """
        wanted = self.schema.resolve("attention_mask")
        if given is None:
            return layout.mask(wanted.numpy)
        masks = one_each("attention_mask", given, rows)
        check_fit(masks, wanted.numpy, "attention_mask")
        return layout.fill(masks, wanted.pad_value, wanted.numpy)

    def _row(self, row: int, sound: Any, name: str) -> Array:
        """Return the sound of a sample as [time] or [time, features].

        int16 and int32 become float32 in -1 .. 1. Raise `SampleError` for an empty sound or more
        than two axes.
        """
        (array,) = self._numbers(row, sound, name)
        if array.ndim > 2 or not array.size:
            raise SampleError(
                f"has the shape {list(array.shape)}", row=row, field=name,
                remedy="Give [time], or two axes and their time_axis.",
            )  # fmt: skip
        if array.ndim == 2 and self.time_axis in (-1, 1):
            array = array.T
        if array.dtype in (np.int16, np.int32):
            return array.astype(np.float32) / np.float32(-int(np.iinfo(array.dtype).min))
        return array

    @staticmethod
    def _numbers(row: int, sound: Any, name: str) -> list[Array]:
        try:
            return as_rows([sound], name)
        except SampleError as error:
            raise SampleError(error.problem, row=row, field=name, remedy=error.remedy) from error

    def _other(self, name: str, values: list[Any]) -> Any:
        labels = name in _LABELS
        if is_sequence(first_filled(values)):
            rows = as_rows(values, name)
            kind = rows[0].dtype.kind
            pad = self.label_pad_id if labels else None
            wanted = self.schema.resolve("labels" if labels else name, pad_value=pad, kind=kind)
            check_fit(rows, wanted.numpy, name)
            layout = layout_of(cached_padding(side=self.padding_side), rows, name)
            return layout.fill(rows, wanted.pad_value, wanted.numpy)
        found = scalars("labels" if labels else name, values, self.schema)
        return values if found is None else found


def _arrays(sounds: list[Any], name: str) -> list[Any]:
    """Return a list with the array of each sound.

    A sound that is a dict holds the array in its field `array`. Raise `SampleError` if such dicts
    have different sampling rates.
    """
    rates = [s.get("sampling_rate") if isinstance(s, Mapping) else None for s in sounds]
    for row, rate in enumerate(rates):
        if rate != rates[0]:
            raise SampleError(
                f"has the sampling rate {rate}, row 0 {rates[0]}", row=row, field=name,
                remedy="Bring all to one rate.",
            )  # fmt: skip
    return [s["array"] if isinstance(s, Mapping) and "array" in s else s for s in sounds]
