"""Functions that make collators, with the names and arguments of other projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..padding import Side
from ..types import IGNORED_LABEL
from .padded import Padded
from .schema import OutputSchema
from .text import CausalLM, Seq2Seq

__all__ = ["create_causal_lm_collate", "create_collate_fn", "create_seq2seq_collate"]

Schema = OutputSchema | Mapping[str, Any] | None


def create_collate_fn(  # noqa: PLR0917  (names and order as in other projects)
    pad_token_id: int = 0,
    label_pad_token_id: int = IGNORED_LABEL,
    padding_side: Side = "right",
    max_length: int | None = None,
    output_schema: Schema = None,
    return_tensors: bool = True,
) -> Padded:
    """Return a `Padded` that pads to the longest row, or pads and cuts all rows to `max_length`.

    >>> create_collate_fn(pad_token_id=9, max_length=2)([{"input_ids": [1]}])["input_ids"]
    tensor([[1, 9]])
    """
    return Padded(
        pad_id=pad_token_id, label_pad_id=label_pad_token_id, padding_side=padding_side,
        max_length=max_length, schema=_schema(output_schema), tensors=return_tensors,
    )  # fmt: skip


def create_causal_lm_collate(  # noqa: PLR0917  (the same)
    pad_token_id: int = 0,
    label_pad_token_id: int = IGNORED_LABEL,
    padding_side: Side = "right",
    max_length: int | None = None,
    output_schema: Schema = None,
    return_tensors: bool = True,
    *,
    shift: bool = False,
) -> CausalLM:
    """Return a `CausalLM`. Its labels equal the inputs, or the next tokens if `shift` is True.

    >>> create_causal_lm_collate()([{"input_ids": [1, 2]}])["labels"]
    tensor([[1, 2]])
    """
    return CausalLM(
        pad_id=pad_token_id, label_pad_id=label_pad_token_id, padding_side=padding_side,
        max_length=max_length, schema=_schema(output_schema), tensors=return_tensors, shift=shift,
    )  # fmt: skip


def create_seq2seq_collate(  # noqa: PLR0917  (the same)
    pad_token_id: int = 0,
    label_pad_token_id: int = IGNORED_LABEL,
    decoder_start_token_id: int | None = None,
    max_length: int | None = None,
    max_target_length: int | None = None,
    padding_side: Side = "right",
    output_schema: Schema = None,
    return_tensors: bool = True,
) -> Seq2Seq:
    """Return a `Seq2Seq`, the collate function for encoder-decoder models.

    If `decoder_start_token_id` is None, the decoder starts with the pad token, as in T5.

    >>> batch = create_seq2seq_collate()([{"input_ids": [1, 2], "labels": [3]}])
    >>> batch["decoder_input_ids"].tolist()
    [[0]]
    """
    start = pad_token_id if decoder_start_token_id is None else decoder_start_token_id
    return Seq2Seq(
        pad_id=pad_token_id, label_pad_id=label_pad_token_id, padding_side=padding_side,
        decoder_start_id=start, max_length=max_length, max_target_length=max_target_length,
        schema=_schema(output_schema), tensors=return_tensors,
    )  # fmt: skip


def _schema(given: Schema) -> OutputSchema:
    if isinstance(given, OutputSchema):
        return given
    return OutputSchema.from_dict(given or {})
