"""Collate functions for preference training: pairs (DPO), single judgements (KTO), groups (GRPO).

No labels are made, because the loss decides which tokens count. Labels in the samples are padded
and masked as in `Padded`. Every field of the samples is passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dataprep.formats.errors import require

from ..errors import SampleError
from .columns import Columns, columns_of, is_sequence, kind_of
from .padded import Padded, cached_padding
from .ragged import Array, as_rows, check_fit, layout_of
from .text import require_fields

__all__ = ["GRPO", "KTO", "Preference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference(Padded):
    """Collate function for pairs: `chosen_input_ids` and `rejected_input_ids`, each with its mask.

    If `equal_widths` is True, both are padded to the same width, for a loss that concatenates them
    into one batch.

    >>> pairs = [{"chosen_input_ids": [1, 2], "rejected_input_ids": [3], "margin": 0.5}]
    >>> batch = Preference(equal_widths=True)(pairs)
    >>> batch["rejected_input_ids"].tolist(), batch["rejected_attention_mask"].tolist()
    ([[3, 0]], [[1, 0]])
    """

    equal_widths: bool = False

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples lack a field of ids."""
        columns = columns_of(samples)
        require_fields(columns, "chosen_input_ids", "rejected_input_ids", where="preference pairs")
        return self.finish(self.pad(columns, ("chosen_", "rejected_") if self.equal_widths else ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class KTO(Padded):
    """Collate function for single judgements: `input_ids`, and the field `tag` as bool [rows].

    A `tag` is True for a wanted answer; samples may have 0 and 1 instead. A field `weight` becomes
    float32. All other fields are treated as in `Padded`.

    >>> batch = KTO()([{"input_ids": [1, 2], "tag": 1, "weight": 0.5}])
    >>> batch["tag"], batch["weight"]
    (tensor([True]), tensor([0.5000]))
    """

    tag: str = "tag"

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `SampleError` for a `tag` that is neither True nor False."""
        columns = columns_of(samples)
        require_fields(columns, self.tag, where="KTO")
        for row, tag in enumerate(columns[self.tag]):
            if kind_of(tag) is None or tag not in (0, 1):
                raise SampleError(
                    f"is {tag!r}, neither true nor false", row=row, field=self.tag,
                    remedy="Give True for a wanted answer, False for an unwanted one.",
                )  # fmt: skip
        work = self.pad(columns)
        work.batch[self.tag] = work.batch[self.tag].astype(
            self.schema.resolve(self.tag, kind="b").numpy
        )
        return self.finish(work)


@dataclass(frozen=True, kw_only=True, slots=True)
class GRPO(Padded):
    """Collate function for groups of responses to a prompt, with their scores.

    A sample has `responses`, a list of lists of ids. It may also have `scores`, one number per
    response. The batch contains these fields:

    - `responses`: int64 [rows, group, width].
    - `responses_attention_mask`: [rows, group, width], 1 for tokens and 0 for padding.
    - `scores`: float32 [rows, group].

    Smaller groups are extended to the size of the largest group, by responses that are only padding
    and have a score of 0. Responses that are texts stay lists.

    >>> batch = GRPO()([{"input_ids": [1], "responses": [[5, 6], [7]], "scores": [1.0, 0.0]}])
    >>> batch["responses"].tolist(), batch["scores"].tolist()
    ([[[5, 6], [7, 0]]], [[1.0, 0.0]])
    """

    responses: str = "responses"
    scores: str = "scores"

    def __post_init__(self) -> None:
        Padded.__post_init__(self)
        require(self.responses != self.scores, "scores", "must not be the field of the responses")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch; raise `UsageError` if the samples have no `responses`."""
        columns = columns_of(samples)
        require_fields(columns, self.responses, where="GRPO")
        groups = columns[self.responses] = [
            list(group) if isinstance(group, np.ndarray | torch.Tensor) and group.ndim else group
            for group in columns[self.responses]
        ]
        self._check(columns)
        scores = columns.pop(self.scores, None)
        ids = any(is_sequence(answer) for group in groups for answer in group)
        if ids:
            del columns[self.responses]
        work = self.pad(columns)
        if ids:
            work.batch.update(self._answers(groups))
        if scores is not None:  # padded on the right, like the answers of a small group
            rows = as_rows(scores, self.scores)
            work.batch[self.scores] = self.padded(
                self.scores, rows, layout_of(cached_padding(), rows)
            )
        return self.finish(work)

    def _answers(self, groups: list[Any]) -> dict[str, Array]:
        """Return a dict of the responses and their mask, both [rows, group, width].

        Raise `SampleError` for a response that is not a row of ids, or does not fit the dtype in
        the schema.
        """
        size = max(map(len, groups))
        flat: list[Any] = []
        for group in _by_row(groups, self.responses):
            flat += [*group, *[_NOTHING] * (size - len(group))]
        wanted = self.schema.resolve(self.responses, pad_value=self.pad_id)
        try:
            rows = as_rows(flat, whole=True)
            layout = layout_of(self.padding_of(self.responses), rows)
            check_fit(rows, wanted.numpy)
        except SampleError as error:  # its row is a number among all answers
            row, answer = divmod(error.row or 0, size)
            raise SampleError(
                f"response {answer} {error.problem}", row=row, field=self.responses,
                remedy=error.remedy, code=error.code,
            ) from None  # fmt: skip
        mask = self.schema.resolve(f"{self.responses}_attention_mask").numpy
        shape = len(groups), size, layout.width
        return {
            self.responses: layout.fill(rows, wanted.pad_value, wanted.numpy).reshape(shape),
            f"{self.responses}_attention_mask": layout.mask(mask).reshape(shape),
        }

    def _check(self, columns: Columns) -> None:
        """Raise `SampleError` if a sample has no responses, or a wrong number of scores.

        A sample needs one score for each response. If the samples have no scores at all, they are
        valid.
        """
        groups = columns[self.responses]
        scores = columns.get(self.scores, groups)
        for row, (group, own) in enumerate(zip(groups, scores, strict=True)):
            if not isinstance(group, list | tuple) or not group:
                raise SampleError(
                    f"is {group!r}, not a list of responses", row=row, field=self.responses,
                    remedy="Give each sample a list with a list of ids for each response.",
                )  # fmt: skip
            count = f"{len(own)} scores" if hasattr(own, "__len__") else f"{own!r}"
            if count != f"{len(group)} scores":
                raise SampleError(
                    f"has {count} for {len(group)} responses", row=row, field=self.scores,
                    remedy="Give one score for each response.",
                )  # fmt: skip


_NOTHING: Array = np.empty(0, np.int64)


def _by_row(groups: list[Any], field: str) -> list[Any]:
    """Return `groups` unchanged; raise `SampleError` for an answer that is not a row of numbers."""
    for row, group in enumerate(groups):
        if not all(is_sequence(answer) for answer in group):
            raise SampleError(
                "is not a list of rows of ids", row=row, field=field,
                remedy="Give each sample a list with a list of ids for each response.",
            )  # fmt: skip
    return groups
