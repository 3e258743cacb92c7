"""`Padded`: the collator that pads token ids, and base class of collators for text and preferences.

`Padded` itself makes no labels; the collators of text.py and masked_lm.py do. The module ragged.py
fills the padded arrays.

The name of a field decides its treatment. ``input_ids``, and any name that ends with
``_input_ids``, is a field of token ids. It gets an attention mask from the lengths:
``chosen_attention_mask`` for ``chosen_input_ids``. A field with one number per token (see
`FieldSchema.along`), such as ``chosen_labels``, is cut and padded like the ids. In all other
fields, lists of numbers are padded to the longest list, single numbers become tensors [rows], and
other values stay a list.

A batch of 32 samples of up to 2,048 ids, with labels, takes 130 microseconds if ids are arrays. If
they are lists, each id takes 15 ns more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dataprep.formats.errors import require

from ..errors import SampleError
from ..padding import Padding, PadTo, Side, Truncate
from ..types import IGNORED_LABEL
from .columns import (
    Columns,
    columns_of,
    finished,
    first_filled,
    is_sequence,
    scalars,
)
from .ragged import Array, PaddedLayout, as_rows, check_fit, layout_of, plain_int
from .schema import OutputSchema

__all__ = ["Padded", "UnfinishedBatch", "cached_padding", "one_each"]

_IDS, _MASK = "input_ids", "attention_mask"


cached_padding = lru_cache(maxsize=256)(Padding)  # checking a `Padding` costs more than using it


class UnfinishedBatch(NamedTuple):
    """Arrays and lists of a batch by field, before they become tensors.

    For each field of ids, `rows` holds the ids of each sample before padding, and `layouts` their
    layout in the padded array. The set `apart` holds the names of label fields whose lengths differ
    from those of the ids. The masks of the ids do not apply to such labels.
    """

    batch: dict[str, Any]
    rows: dict[str, list[Array]]
    layouts: dict[str, PaddedLayout]
    apart: set[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """Collate function that pads every field of the samples.

    - `pad_id`: value in the padding of ids.
    - `label_pad_id`: value in the padding of labels, and wherever an attention or loss mask is 0.
    - `padding_side`, `max_length`, `pad_to`, `multiple`, `truncate`: see `Padding`.
    - `schema`: dtypes and pad values by field.
    - `tensors`: if False, the batch contains lists in place of tensors.
    - `tokenizer`: pad `input_ids` and the other `model_input_names` of this tokenizer by its method
      `pad`, for models that need special rules. This is slower, and the result is usually the same.

    Raises `SampleError` for a sample without tokens, for a sample whose fields differ from those of
    the first sample, and for masks or labels of a different length than the tokens. The error names
    the row and the field.

    >>> batch = Padded(pad_id=9)([{"input_ids": [1, 2, 3], "id": "a"},
    ...                           {"input_ids": [4], "id": "b"}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["id"]
    ([[1, 2, 3], [4, 9, 9]], [[1, 1, 1], [1, 0, 0]], ['a', 'b'])
    """

    pad_id: int = 0
    label_pad_id: int = IGNORED_LABEL
    padding_side: Side = "right"
    max_length: int | None = None
    pad_to: PadTo | None = None
    multiple: int = 1
    truncate: Truncate | None = None
    schema: OutputSchema = field(default_factory=OutputSchema)
    tensors: bool = True
    tokenizer: Any = None

    def __post_init__(self) -> None:
        self.padding_of(_IDS)
        fine = self.tokenizer is None or callable(getattr(self.tokenizer, "pad", None))
        require(fine, "tokenizer", "has no method pad; leave it out, and give pad_id")
        for name in ("pad_id", "label_pad_id"):
            value = plain_int(getattr(self, name))
            object.__setattr__(self, name, value)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole, name, f"must be a whole number, got {value!r}")
        require(isinstance(self.schema, OutputSchema), "schema", "must be an OutputSchema")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch as a dict of tensors [rows, width] or [rows].

        Fields that are not numeric are lists.
        """
        return self.finish(self.pad(columns_of(samples, (_IDS, "labels"))))

    def padding_of(self, name: str) -> Padding:
        """Return the padding rules for the field of ids called `name`."""
        return cached_padding(
            side=self.padding_side, max_length=self.max_length, pad_to=self.pad_to,
            multiple=self.multiple, truncate=self.truncate,
        )  # fmt: skip

    def finish(self, work: UnfinishedBatch) -> dict[str, Any]:
        """Return the batch with arrays converted to tensors, or to lists if `tensors` is False."""
        return finished(work.batch, self.schema, tensors=self.tensors)

    def pad(self, columns: Columns, equal: tuple[str, ...] = ()) -> UnfinishedBatch:
        """Return `columns` as padded arrays, with labels set to their pad value where a mask is 0.

        Fields of ids with a prefix in `equal`, such as ``"chosen_"``, are padded to the same width.
        Raise `SampleError` for a row that cannot be padded.
        """
        rows = {name: self._ids(name, values) for name, values in columns.items() if _is_ids(name)}
        work = UnfinishedBatch(batch={}, rows=rows, layouts={}, apart=set())
        for name, arrays in rows.items():
            work.layouts[name] = layout_of(self.padding_of(name), arrays, name)
        if equal:
            _equalize_widths(work.layouts, [prefix + _IDS for prefix in equal])
        own = self._by_tokenizer(columns, work) if self.tokenizer is not None else {}
        for name in columns:
            if name in own:
                work.batch[name] = own[name]
            elif name in rows:
                self._pad_ids(name, work, given=_mask_of(name) in columns)
            else:
                work.batch[name] = None  # keeps the order of fields; filled below, after all ids
        work.batch.update(own)
        for name, values in columns.items():
            if name not in rows and name not in own:
                along = self.schema.along(name)
                work.batch[name] = (
                    self._pad_along(name, values, along, work)
                    if along in rows and (_holds_rows(values) or not name.endswith("labels"))
                    else self._pad_other(name, values)
                )
        for name in work.layouts:
            self.mask_labels(work, name)
        return work

    def _by_tokenizer(self, columns: Columns, work: UnfinishedBatch) -> dict[str, Array]:
        """Return a dict of the padded arrays that the method `pad` of the tokenizer makes.

        The fields are `input_ids`, `attention_mask` and the tokenizer's `model_input_names`. Before
        padding, they are cut by the same rules as all other fields. The dict is empty if there are
        no `input_ids`.
        """
        if _IDS not in work.rows:
            return {}
        layout, ids = work.layouts[_IDS], work.rows[_IDS]
        names = {_IDS, _MASK, *getattr(self.tokenizer, "model_input_names", ())} & set(columns)
        cut = {
            name: [row.tolist() for row in layout.kept(one_each(name, columns[name], ids))]
            for name in sorted(names)
        }
        found = self.tokenizer.pad(
            cut, padding="max_length", max_length=layout.width, padding_side=self.padding_side,
            return_tensors="np",
        )  # fmt: skip
        batch = {}
        for name, values in found.items():
            array = np.asarray(values)
            wanted = self.schema.resolve(name, kind=array.dtype.kind).numpy
            check_fit(list(array), wanted, name)
            batch[name] = array.astype(wanted)
        return batch

    def mask_labels(self, work: UnfinishedBatch, ids: str) -> None:
        """Set labels to their pad value, in place, wherever a mask of the ids is 0.

        The argument `ids` is the name of a field of ids. Labels and masks are the fields with the
        same prefix: for ``"chosen_input_ids"``, `chosen_labels`, `chosen_attention_mask` and
        `chosen_loss_mask`. A mask is ignored if its shape differs from that of the labels.
        """
        prefix = ids.removesuffix(_IDS)
        labels = work.batch.get(prefix + "labels")
        if not isinstance(labels, np.ndarray) or prefix + "labels" in work.apart:
            return
        for name in (_MASK, "loss_mask"):
            mask = work.batch.get(prefix + name)
            if isinstance(mask, np.ndarray) and mask.shape == labels.shape:
                np.copyto(labels, self.label_pad(prefix + "labels"), where=mask == 0)

    def label_pad(self, name: str = "labels") -> Any:
        """Return the pad value of labels from the schema, or `label_pad_id` if it has none."""
        return self.schema.resolve(name, pad_value=self.label_pad_id).pad_value

    def padded(
        self,
        name: str,
        rows: list[Array],
        layout: PaddedLayout,
        pad_value: float | None = None,
        *,
        shift: bool = False,
    ) -> Array:
        """Return `rows` as a padded array with the dtype and pad value of the field `name`.

        The argument `pad_value` is used if the schema has no pad value. If `shift` is True, each
        row loses its first element and ends with an additional pad value. Raise `SampleError` if
        the dtype cannot hold a number.
        """
        wanted = self.schema.resolve(name, pad_value=pad_value, kind=rows[0].dtype.kind)
        check_fit(rows, wanted.numpy, name)
        return layout.fill(rows, wanted.pad_value, wanted.numpy, shift=shift)

    def _ids(self, name: str, values: list[Any]) -> list[Array]:
        rows = as_rows(values, name, whole=True)
        if rows[0].ndim == 1 and all(map(len, rows)):  # as_rows: then all have one axis
            return rows
        for number, row in enumerate(rows):
            if not row.size:
                raise SampleError(
                    "has no tokens", row=number, field=name, remedy="Leave the sample out."
                )
            if row.ndim != 1:
                raise SampleError(
                    f"is {row.dtype} of {row.ndim} axes, not token ids in a row", row=number,
                    field=name, remedy="Give each sample one list of whole numbers.",
                )  # fmt: skip
        return rows

    def _pad_ids(self, name: str, work: UnfinishedBatch, *, given: bool) -> None:
        layout = work.layouts[name]
        work.batch[name] = self.padded(name, work.rows[name], layout, self.pad_id)
        mask = _mask_of(name)
        work.batch[mask] = None if given else layout.mask(self.schema.resolve(mask).numpy)

    def _pad_along(self, name: str, values: list[Any], along: str, work: UnfinishedBatch) -> Array:
        labels, ids, layout = name.endswith("labels"), work.rows[along], work.layouts[along]
        if labels:
            rows = as_rows(values, name)
            if [*map(len, rows)] != [*map(len, ids)]:  # labels of a decoder
                work.apart.add(name)
                return self.padded_apart(name, rows)
        else:
            rows = one_each(name, values, ids)
        return self.padded(name, rows, layout, self.label_pad_id if labels else None)

    def padded_apart(self, name: str, rows: list[Array]) -> Array:
        """Return a padded array of labels whose lengths differ from those of the ids.

        Labels are cut and padded by the same rules as ids.
        """
        return self.padded(
            name, rows, layout_of(self.padding_of(name), rows, name), self.label_pad_id
        )

    def _pad_other(self, name: str, values: list[Any]) -> Any:
        first = first_filled(values)
        nested = isinstance(first, list | tuple) and first and _is_row(first[0])
        if is_sequence(first) and not (nested and name not in self.schema.fields):
            rows = as_rows(values, name)
            layout = layout_of(cached_padding(side=self.padding_side), rows, name)
            return self.padded(name, rows, layout)
        found = scalars(name, values, self.schema)
        return values if found is None else found


def one_each(
    name: str, values: Sequence[Any], ids: Sequence[Array], *, whole: bool = False
) -> list[Array]:
    """Return the rows of a field that has one number per token.

    Raise `SampleError` for a row whose length differs from the row of `ids` at the same index, and
    for a row of floats if `whole` is True.
    """
    number = next((row for row, value in enumerate(values) if not is_sequence(value)), None)
    rows = as_rows(values, name, whole=whole) if number is None else []
    for row, (numbers, tokens) in enumerate(zip(rows, ids, strict=False)):
        if len(numbers) != len(tokens):
            number = row
            break
    if number is not None:
        count = f"{len(values[number]):,} numbers" if rows else f"{values[number]!r}"
        raise SampleError(
            f"has {count} for {len(ids[number]):,} tokens", row=number, field=name,
            remedy="Give one for each token, or leave the field out.",
        )  # fmt: skip
    return rows


def _equalize_widths(layouts: dict[str, PaddedLayout], names: list[str]) -> None:
    width = max(layouts[name].width for name in names)
    layouts.update({name: replace(layouts[name], width=width) for name in names})


def _holds_rows(values: list[Any]) -> bool:
    return is_sequence(first_filled(values))


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple) or is_sequence(value)


def _is_ids(name: str) -> bool:
    return name == _IDS or name.endswith("_" + _IDS)


def _mask_of(ids: str) -> str:
    return ids.removesuffix(_IDS) + _MASK
