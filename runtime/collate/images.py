"""Collate functions for images: float [rows, channels, height, width], normalised, with labels.

The option `layout` says whether the channels are the first or the last axis of an image. It does
not apply to PIL pictures (channels last), or to arrays of two axes (one channel).

Values are scaled to 0 .. 1 before normalisation. Integers are divided by 255, except that uint16 is
divided by 65,535. Floats must be in 0 .. 1 already. If an image has floats below 0, and none of
magnitude above 16, it is assumed to be standardised already. It is normalised again, with a
warning. Other values out of range raise `SampleError`. With ``normalize=None``, floats are neither
scaled nor checked. The cost is 1 ns per pixel and channel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
import torch

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..errors import SampleError
from ..rows.buffer_pool import Buffers
from .columns import (
    Columns,
    columns_of,
    finished,
    first_filled,
    is_sequence,
    kind_of,
    scalars,
    stacked,
)
from .padded import Padded
from .ragged import Array, as_array, as_rows
from .schema import OutputSchema, dtype_of
from .text import CausalLM

__all__ = ["IMAGES", "NORMALIZE", "ChannelsAt", "Normalize", "Vision", "VisionText"]

ChannelsAt = Literal["CHW", "HWC"]
IMAGES = ("pixel_values", "image", "images", "img")
"""Field names under which images are found."""
_LABELS = ("labels", "label", "fine_label")
_BUFFERS = Buffers()
_INDEXED = ("P", "PA")  # pictures of PIL with a palette, as many PNG and all GIF files are
_STANDARD = 16  # largest absolute value that a standardised image may have
_LARGEST = {"bool": 1, "uint8": 255, "uint16": 65535}


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalize:
    """Normalisation (value - mean) / std for each channel, of values in 0 .. 1.

    Raises `UsageError` for values that are not finite numbers, for standard deviations that are not
    positive, and if the numbers of means and deviations differ.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            try:
                one = isinstance(given, int | float)
                values = tuple(float(value) for value in ([given] if one else given))
            except (TypeError, ValueError):
                values = ()
            require(bool(values) and all(map(isfinite, values)), name, f"is {given!r}")
            object.__setattr__(self, name, values)
        require(
            len(self.mean) == len(self.std), "std",
            f"has {len(self.std)} channels, mean has {len(self.mean)}",
        )  # fmt: skip
        require(all(value > 0 for value in self.std), "std", f"must be more than 0, got {self.std}")


NORMALIZE = {
    # https://docs.pytorch.org/vision/stable/models.html, of the training images
    "imagenet": Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    # means and deviations over all pixels of the training sets
    "cifar10": Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    "mnist": Normalize(mean=(0.1307,), std=(0.3081,)),
    "half": Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),  # to -1 .. 1
}
"""Normalisations by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vision:
    """Collate function for images: `pixel_values` [rows, channels, height, width] and `labels`.

    - `normalize`: a name in `NORMALIZE`, a `Normalize`, or None to scale values to 0 .. 1 only.
    - `layout`: order of the axes of images with three axes, ``"CHW"`` or ``"HWC"``.
    - `channels`: required number of channels. None: the number in the normalisation, or without a
      normalisation the number in the first image.
    - `scale`: factor for all values, in place of the division by the largest value of their type.
      The range of values is then not checked.
    - `schema`: dtypes and pad values. The `pixel_values` are float32 unless the schema has a
      different float dtype for them.

    Images are arrays, tensors or PIL pictures. They are in the field `pixel_values`, `image`,
    `images` or `img`, or first in a tuple. Labels are in `labels`, `label` or `fine_label`, or
    second in the tuple. Labels that are numbers become [rows]; integers become int64, and floats
    float32. All other fields are passed on.

    Raises `SampleError` for an image that differs in shape, number of channels or dtype, and for
    values out of range.

    >>> batch = Vision(normalize=None)([(np.full((2, 2), 255, np.uint8), 7)])
    >>> batch["pixel_values"].shape, batch["pixel_values"].max(), batch["labels"]
    (torch.Size([1, 1, 2, 2]), tensor(1.), tensor([7]))
    """

    normalize: str | Normalize | None = "imagenet"
    layout: ChannelsAt = "CHW"
    channels: int | None = None
    scale: float | None = None
    schema: OutputSchema = field(default_factory=OutputSchema)
    tensors: bool = True

    def __post_init__(self) -> None:
        allowed = get_args(ChannelsAt)
        require(self.layout in allowed, "layout", f"must be one of {allowed}, got {self.layout!r}")
        if isinstance(self.normalize, str):
            known = self.normalize in NORMALIZE
            names = ", ".join(NORMALIZE)
            require(known, "normalize", f"must be one of {names}, got {self.normalize!r}")
        else:
            fine = self.normalize is None or isinstance(self.normalize, Normalize)
            require(fine, "normalize", f"must be a name, a Normalize or None: {self.normalize!r}")
        wanted = self.schema.fields.get("pixel_values")
        kept = wanted is None or wanted.dtype is None or dtype_of(wanted.dtype).is_floating_point
        require(kept, "schema", "pixel_values are fractions, which a whole dtype would cut off")
        if self.scale is not None:
            number = kind_of(self.scale) in ("i", "u", "f")
            require(number and isfinite(self.scale) and self.scale != 0, "scale",
                    f"must be a number other than 0, got {self.scale!r}")  # fmt: skip
        if self.channels is not None:
            object.__setattr__(self, "channels", whole_number("channels", self.channels, 1))
            normal = self.normal
            agree = normal is None or len(normal.mean) == self.channels
            require(agree, "channels", f"is {self.channels}, the normalisation is for another")

    @property
    def normal(self) -> Normalize | None:
        """The `Normalize` that is applied, or None if values are not normalised."""
        given = self.normalize
        return NORMALIZE[given] if isinstance(given, str) else given

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no field of images."""
        return self.of_columns(columns_of(samples, ("pixel_values", "labels")))

    def of_columns(self, columns: Columns) -> dict[str, Any]:
        """Return the batch of samples that are given as columns.

        Raise `UsageError` if there is no field of images.
        """
        name = next((name for name in IMAGES if name in columns), None)
        if name is None:
            raise UsageError(
                f"samples have no field {' or '.join(IMAGES)}, there is {', '.join(columns)}",
                where="vision", code="E_FIELDS", remedy="Rename the column of the images.",
            )  # fmt: skip
        batch: dict[str, Any] = {"pixel_values": None}
        label = next((other for other in _LABELS if other in columns), None)
        for other, values in columns.items():
            if other != name:
                batch["labels" if other == label else other] = self._other(other, values)
        batch = finished(batch, self.schema, tensors=self.tensors)
        pixels = self.images(columns[name], name)
        batch["pixel_values"] = pixels if self.tensors else pixels.tolist()
        return batch

    def images(self, images: Sequence[Any], field: str = "pixel_values") -> torch.Tensor:
        """Return images as a normalised float tensor [rows, channels, height, width].

        Raise `SampleError` for an image that cannot be used; the error names the row and `field`.
        """
        arrays = [self._array(row, image, field) for row, image in enumerate(images)]
        _check_alike(arrays, field)
        out = _BUFFERS.empty((len(arrays), *arrays[0].shape), np.float32)
        largest = self._largest(arrays[0].dtype)
        factor, offset = self._factors(arrays[0].dtype, largest)
        # Image by image, so that each stays in the processor's cache through all steps.
        for row, (target, array) in enumerate(zip(out, arrays, strict=True)):
            np.copyto(target, array, casting="unsafe")
            if largest is not None and array.dtype.name not in _LARGEST:
                _check_range(row, target, largest, field)
            if factor is not None:
                np.multiply(target, factor, out=target)
            if offset is not None:
                np.subtract(target, offset, out=target)
        pixels = torch.from_numpy(out)
        wanted = self.schema.fields.get("pixel_values")
        return pixels.to(dtype_of(wanted.dtype)) if wanted and wanted.dtype else pixels

    def _largest(self, dtype: np.dtype[Any]) -> int | None:
        """Return the number by which pixel values of `dtype` are divided, or None for no division.

        For example, uint8 values are divided by 255.
        """
        if self.scale is not None or (dtype.kind == "f" and self.normalize is None):
            return None
        return _LARGEST.get(dtype.name, 255 if dtype.kind in "iu" else 1)

    def _factors(
        self, dtype: np.dtype[Any], largest: int | None
    ) -> tuple[Array | None, Array | None]:
        """Return the factor and the offset that turn a value into value * factor - offset.

        Both are float32 arrays that can be broadcast to an image. None stands for a factor of 1 or
        an offset of 0. The argument `largest` is the result of `_largest`.
        """
        scale = self.scale or (1 / largest if largest else 1.0)
        normal = self.normal
        if normal is None:
            return (np.array(scale, np.float32) if scale != 1 else None), None
        std = np.array(normal.std, np.float64)[:, None, None]
        mean = np.array(normal.mean, np.float64)[:, None, None]
        return (scale / std).astype(np.float32), (mean / std).astype(np.float32)

    def _array(self, row: int, image: Any, field: str) -> Array:
        """Return a view of an image as [channels, height, width].

        Raise `SampleError` for a value that is not an image, for a picture with a palette, and for
        a wrong number of channels. The error names `row` and `field`.
        """
        picture = not isinstance(image, np.ndarray | torch.Tensor | list | tuple)
        if picture and getattr(image, "mode", None) in _INDEXED:
            raise SampleError(
                f"is a picture of mode {image.mode!r}, whose pixels are numbers of colours",
                row=row, field=field, remedy="Convert it: image.convert('RGB').",
            )  # fmt: skip
        array = np.asarray(image) if picture else as_array(image)
        if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
            raise SampleError(
                f"a {type(image).__name__} of shape {list(array.shape)} is no image", row=row,
                field=field, remedy="Give an array or tensor of 2 or 3 axes, or a PIL picture.",
            )  # fmt: skip
        if array.ndim == 2:
            array = array[None]
        elif picture or self.layout == "HWC":
            array = array.transpose(2, 0, 1)
        expected = self.channels or (len(self.normal.mean) if self.normal else None)
        if expected is not None and len(array) != expected:
            raise self._channels(row, array, expected, field)
        return array

    def _channels(self, row: int, array: Array, expected: int, field: str) -> SampleError:
        other = "HWC" if self.layout == "CHW" else "CHW"
        place = array.shape[2] if self.layout == "CHW" else array.shape[1]
        remedy = "Convert the image, or use a normalisation for its channels."
        if place == expected:
            remedy = f"Its channels seem to be elsewhere: use layout={other!r}."
        return SampleError(
            f"has {len(array)} channels, {expected} are expected", row=row, field=field,
            remedy=remedy,
        )  # fmt: skip

    def _other(self, name: str, values: list[Any]) -> Any:
        if is_sequence(first_filled(values)):
            return stacked(name, as_rows(values, name), self.schema)
        found = scalars("labels" if name in _LABELS else name, values, self.schema)
        return values if found is None else found


def _check_alike(arrays: list[Array], field: str) -> None:
    for row, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise SampleError(
                f"has the shape {list(array.shape)}, row 0 {list(arrays[0].shape)} (channels, "
                "height, width)", row=row, field=field, remedy="Bring all images to one size.",
            )  # fmt: skip
        if array.dtype != arrays[0].dtype:
            raise SampleError(
                f"is {array.dtype}, row 0 {arrays[0].dtype}", row=row, field=field,
                remedy="Bring all images to one dtype.",
            )  # fmt: skip


def _check_range(row: int, pixels: Array, largest: int, field: str) -> None:
    low, high = float(pixels.min(initial=0)), float(pixels.max(initial=0))
    if largest == 1 and low < 0 and max(-low, high) <= _STANDARD and not np.isnan(pixels).any():
        warnings.warn(
            "images with fractions below 0 are normalised, too: if they are normalised already, "
            "use normalize=None", stacklevel=2,
        )  # fmt: skip
    elif not (low >= 0 and high <= largest):  # also true for NaN
        raise SampleError(
            f"has values from {low:g} to {high:g}, outside 0 .. {largest}", row=row, field=field,
            remedy="Give uint8 or values in 0 .. 1, or say the scale.",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionText:
    """Collate function for images with text.

    The collate function `vision` makes `pixel_values`, and `text` makes all other fields.

    >>> import numpy as np
    >>> samples = [{"image": np.zeros((2, 2), np.uint8), "input_ids": [1, 2, 3]}]
    >>> batch = VisionText(vision=Vision(normalize="mnist"))(samples)
    >>> sorted(batch)
    ['attention_mask', 'input_ids', 'labels', 'pixel_values']
    """

    vision: Vision = field(default_factory=Vision)
    text: Padded = field(default_factory=CausalLM)

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no field of images."""
        columns = columns_of(samples)
        images = {name: values for name, values in columns.items() if name in IMAGES}
        batch = self.vision.of_columns(images or columns)  # no image: the error lists the fields
        others = [name for name in columns if name not in images]
        return batch | self.text([{name: sample[name] for name in others} for sample in samples])
