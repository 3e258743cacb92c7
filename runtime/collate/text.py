"""Collate functions for text: causal language models, classification, sequence to sequence.

Labels equal the inputs, position by position, because models shift them internally. If the option
`shift` of `CausalLM` is True, labels are the next tokens, for a loss that compares outputs and
labels position by position. Do not set it for a model that shifts internally: the model would learn
to predict the token after the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..errors import SampleError
from ..padding import Padding, Side
from .columns import Columns, columns_of, is_sequence, kind_of, scalars, stacked
from .padded import Padded, cached_padding, one_each
from .ragged import Array, PaddedLayout, as_rows, check_fit, layout_of

__all__ = ["CausalLM", "ClassLabels", "Classification", "Seq2Seq", "require_fields"]

ClassLabels = Literal["single", "multi", "regression", "token"]
_DECODER_IDS, _DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"
_LABEL_NAMES = ("labels", "label", "label_ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalLM(Padded):
    """Collate function for causal language models: `input_ids`, `attention_mask` and `labels`.

    All are int64 [rows, width] unless the schema sets a dtype. Labels are the labels of the samples
    (-100 for tokens that are not trained on, such as a prompt), or the inputs if samples have none.
    They are `label_pad_id` wherever the attention mask or a `loss_mask` is 0. If `shift` is True,
    the label at position `j` belongs to token `j + 1`, and the last label of each row is
    `label_pad_id`.

    >>> CausalLM()([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])["labels"].tolist()
    [[5, 6, 7], [8, -100, -100]]
    >>> CausalLM(shift=True)([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])["labels"].tolist()
    [[6, 7, -100], [-100, -100, -100]]
    """

    shift: bool = False

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no `input_ids`."""
        columns = columns_of(samples, ("input_ids", "labels"))
        require_fields(columns, "input_ids", where="causal language models")
        given = columns.pop("labels", None)
        work = self.pad(columns)
        rows, layout = work.rows["input_ids"], work.layouts["input_ids"]
        if given is not None:
            rows = one_each("labels", given, rows, whole=True)
        labels = self.padded("labels", rows, layout, self.label_pad_id, shift=self.shift)
        work.batch["labels"] = labels
        for name in ("attention_mask", "loss_mask"):
            if name in columns:
                self._mask(labels, work.batch[name] == 0, own=name == "attention_mask")
        return self.finish(work)

    def _mask(self, labels: Array, out: Array, *, own: bool) -> None:
        """Set the labels of the tokens where `out` is True to the pad value, in place.

        If `shift` is True, the label of token `j + 1` is at position `j`. With `own`, if `out` is
        True at `j`, the label at position `j` is set as well.
        """
        if own or not self.shift:
            np.copyto(labels, self.label_pad(), where=out)
        if self.shift:
            np.copyto(labels[:, :-1], self.label_pad(), where=out[:, 1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Classification(Padded):
    """Collate function for classification and regression: padded ids, and `labels`.

    Labels come from the field `labels`, `label` or `label_ids` of the samples. The option `kind` is
    ``"single"`` (one class, int64 [rows]), ``"multi"`` (one number per class, float32
    [rows, classes]), ``"regression"`` (float32 [rows]) or ``"token"`` (one class per token, int64
    [rows, width], with `label_pad_id` in padding). If samples have no labels, batches have none.

    >>> samples = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [8], "label": 0}]
    >>> Classification()(samples)["labels"]
    tensor([1, 0])
    """

    kind: ClassLabels = "single"

    def __post_init__(self) -> None:
        Padded.__post_init__(self)
        allowed = get_args(ClassLabels)
        require(self.kind in allowed, "kind", f"must be one of {allowed}, got {self.kind!r}")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no `input_ids`."""
        columns = columns_of(samples, ("input_ids", "labels"))
        require_fields(columns, "input_ids", where="classification of text")
        name = next((name for name in _LABEL_NAMES if name in columns), None)
        values = columns.pop(name) if name else None
        if values is not None and self.kind == "token":
            columns["labels"] = values
        work = self.pad(columns)
        if values is not None and self.kind == "token":
            one_each("labels", values, work.rows["input_ids"], whole=True)
        elif values is not None:
            work.batch["labels"] = self._labels(values)
        return self.finish(work)

    def _labels(self, values: list[Any]) -> Array:
        """Return the labels as an array, for every `kind` except ``"token"``.

        Raise `SampleError` for labels that do not match the kind.
        """
        rows = [is_sequence(value) for value in values]
        if any(row != (self.kind == "multi") for row in rows):
            raise SampleError(
                f"is not a label of kind {self.kind!r}", row=rows.index(self.kind != "multi"),
                field="labels", remedy="Use the kind of Classification that the labels are of.",
            )  # fmt: skip
        if self.kind == "multi":
            floats = [array.astype(np.float32) for array in as_rows(values, "labels")]
            return stacked("labels", floats, self.schema)
        if self.kind == "regression":
            values = [_number(row, value) for row, value in enumerate(values)]
        found = scalars("labels", values, self.schema)
        if found is None or (self.kind == "single" and found.dtype.kind == "f"):
            raise SampleError(
                f"is {values[0]!r}, not the number of a class", row=0, field="labels",
                remedy="Number the classes from 0, or use kind='regression'.",
            )  # fmt: skip
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Seq2Seq(Padded):
    """Collate function for encoder-decoder models: padded inputs, decoder inputs and `labels`.

    The field `labels` of a sample holds the ids of the target text. Targets are cut at
    `max_target_length` and padded on `target_side`, independently of the inputs. The batch also
    contains `decoder_attention_mask` and `decoder_input_ids`. By default, `decoder_input_ids` are
    the labels moved one position to the right, with `decoder_start_id` first. If samples have a
    field `decoder_input_ids`, it is used instead. If these samples have no `labels`, the batch has
    none.

    >>> batch = Seq2Seq(decoder_start_id=1)([{"input_ids": [5, 6, 7], "labels": [8, 9]},
    ...                                      {"input_ids": [4], "labels": [3]}])
    >>> batch["decoder_input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 8], [1, 0]], [[8, 9], [3, -100]])
    """

    decoder_start_id: int
    max_target_length: int | None = None
    target_side: Side = "right"

    def __post_init__(self) -> None:
        Padded.__post_init__(self)
        start = whole_number("decoder_start_id", self.decoder_start_id)
        object.__setattr__(self, "decoder_start_id", start)
        self._target()

    def _target(self) -> Padding:
        """Return the padding rules of targets."""
        return cached_padding(
            side=self.target_side, max_length=self.max_target_length, multiple=self.multiple,
            pad_to=self.pad_to if self.max_target_length else None, truncate=self.truncate,
        )  # fmt: skip

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch.

        Raise `UsageError` if the samples have no `input_ids`, or neither `labels` nor
        `decoder_input_ids`.
        """
        columns = columns_of(samples, ("input_ids", "labels"))
        learns = "labels" in columns or _DECODER_IDS not in columns
        named = "labels" if learns else _DECODER_IDS
        require_fields(columns, "input_ids", named, where="sequence to sequence")
        targets = self._rows(columns, named)
        ids = self._rows(columns, _DECODER_IDS, targets) if learns else targets
        masks = self._rows(columns, _DECODER_MASK, targets)
        work, layout = self.pad(columns), layout_of(self._target(), targets, named)
        batch = work.batch
        labels = self.padded("labels", targets, layout, self.label_pad_id)
        if learns:
            batch["labels"] = labels
        batch[_DECODER_IDS] = (
            self.padded(_DECODER_IDS, ids, layout, self.pad_id)
            if ids
            else self._moved_right(labels, layout)
        )
        if masks:
            batch[_DECODER_MASK] = self.padded(_DECODER_MASK, masks, layout)
            np.copyto(labels, self.label_pad(), where=batch[_DECODER_MASK] == 0)
        else:
            batch[_DECODER_MASK] = layout.mask(self.schema.resolve(_DECODER_MASK).numpy)
        return self.finish(work)

    def _moved_right(self, labels: Array, layout: PaddedLayout) -> Array:
        """Return the inputs of the decoder: the start token, then all `labels` except the last."""
        wanted = self.schema.resolve(_DECODER_IDS, pad_value=self.pad_id)
        shown = np.where(labels == self.label_pad(), wanted.pad_value, labels)
        check_fit(list(shown), wanted.numpy, _DECODER_IDS)
        ids: Array = np.full(labels.shape, wanted.pad_value, wanted.numpy)
        ids[:, 1:] = shown[:, :-1]
        mask = layout.mask(np.dtype(bool))
        ids[~mask] = wanted.pad_value
        ids[np.arange(len(ids)), mask.argmax(axis=1)] = self.decoder_start_id
        return ids

    def _rows(self, columns: Columns, name: str, like: list[Array] | None = None) -> list[Array]:
        """Remove the field `name` from `columns`, and return its rows, or [] if it is missing.

        Raise `SampleError` for an empty row. If `like` is a non-empty list, also raise
        `SampleError` for a row whose length differs from the row of `like` at the same index.
        """
        rows = as_rows(columns.pop(name, ()), name, whole=True)
        for row, values in enumerate(rows):
            if not len(values) or (like and len(values) != len(like[row])):
                expected = f"has {len(like[row]):,} labels" if like else "is empty"
                raise SampleError(
                    f"has {len(values):,} numbers, its target {expected}", row=row, field=name,
                    remedy="Leave the sample out, or give one number for each label.",
                )  # fmt: skip
        return rows


def _number(row: int, value: Any) -> float:
    if kind_of(value) is None:
        raise SampleError(
            f"is {value!r}, not a number", row=row, field="labels",
            remedy="Give every sample a number there.",
        )  # fmt: skip
    return float(value)


def require_fields(columns: Columns, *names: str, where: str) -> None:
    """Raise `UsageError` if a name in `names` is not a field of the samples.

    The text `where` names the task that needs the fields. It appears in the error.
    """
    missing = [name for name in names if name not in columns]
    if missing:
        raise UsageError(
            f"samples have no {' and no '.join(map(repr, missing))}, there is "
            f"{', '.join(map(repr, columns)) or 'nothing'}", where=where, code="E_FIELDS",
            remedy="Rename the columns, or tokenize the text first.",
        )  # fmt: skip
