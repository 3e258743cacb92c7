"""Samples of an image and a text: each part by its own collator, in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .columns import columns_of
from .images import IMAGES, Vision
from .padded import Padded
from .text import CausalLM

__all__ = ["VisionText"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionText:
    """`pixel_values` by `vision`, everything else by `text` (captions: `CausalLM`).

    >>> import numpy as np
    >>> samples = [{"image": np.zeros((2, 2), np.uint8), "input_ids": [1, 2, 3]}]
    >>> batch = VisionText(vision=Vision(normalize="mnist"))(samples)
    >>> sorted(batch)
    ['attention_mask', 'input_ids', 'labels', 'pixel_values']
    """

    vision: Vision = field(default_factory=Vision)
    text: Padded = field(default_factory=CausalLM)

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """The batch."""
        columns = columns_of(samples)
        images = {name: values for name, values in columns.items() if name in IMAGES}
        batch = self.vision.of_columns(images or columns)  # which tells what there is
        others = [name for name in columns if name not in images]
        return batch | self.text([{name: sample[name] for name in others} for sample in samples])
