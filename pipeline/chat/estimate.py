"""Estimate of a build of conversations, and of their lengths, from a sample: `--dry-run`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt

from ..tokenize.engines import make_encoder
from ..tokens.estimate import TokenEstimate, estimate
from .encode import MarkedEncoder
from .options import Overlong
from .overlong import Cutter
from .prepare import ChatPrepared
from .sample import ChatSample

__all__ = ["ChatEstimate", "Lengths", "Touched", "estimate_lengths"]

PERCENTILES = (50, 90, 95, 99, 100)
_LIMITS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """Records that an over-length policy affects at a limit, extrapolated to all of the input.

    `touched` have a conversation over the limit; `left_out` of them would not be stored, as they
    are dropped, or have nothing left to train on.
    """

    limit: int
    policy: str
    touched: int
    left_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of a conversation, by percentile, and the share of tokens that is trained on."""

    percentiles: dict[int, int]
    trained_share: float
    sampled_records: int
    overlong: tuple[Touched, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEstimate(TokenEstimate):
    """Estimate of a build of conversations, with the form and the lengths of the records."""

    form: str
    template: str
    masked_by: str
    lengths: Lengths
    refused: dict[str, int]
    """Number of records of the sample that could not be rendered, by reason."""


def estimate_lengths(prepared: ChatPrepared) -> ChatEstimate:
    """Extrapolate from the sample, and encode its conversations to know their lengths."""
    found = estimate(prepared, mask=True)
    common = {field.name: getattr(found, field.name) for field in fields(found)}
    return ChatEstimate(
        **common, form=prepared.plan.payload.chat.form, template=prepared.template_origin,
        masked_by=prepared.chat.masked_by, lengths=_lengths(prepared, prepared.chat),
        refused=dict(prepared.chat.refused),
    )  # fmt: skip


def _lengths(prepared: ChatPrepared, sample: ChatSample) -> Lengths:
    plan = prepared.plan
    engine = make_encoder(plan.payload.encoding.engine, prepared.engine_json)
    encoder = MarkedEncoder(plan.payload.encoding, engine, prepared.engine_json)
    _, offsets, mask = encoder.encode(sample.documents)
    lengths = np.diff(offsets)
    values = np.percentile(lengths if len(lengths) else [0], PERCENTILES, method="higher")
    limit = plan.payload.chat.max_tokens
    limits = _LIMITS if limit is None else (limit,)
    found = _Found(
        offsets=offsets, mask=mask, owners=np.array(sample.owners, np.int64),
        scale=plan.input_bytes / max(1, sample.sample.stored_bytes),
    )  # fmt: skip
    return Lengths(
        percentiles=dict(zip(PERCENTILES, map(int, values), strict=True)),
        trained_share=round(float(mask.mean()) if len(mask) else 0.0, 4),
        sampled_records=sample.records,
        overlong=tuple(one for limit in limits for one in _touched(prepared, found, limit)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """The encoded sample; the whole input is `scale` times as large."""

    offsets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.int64]
    scale: float


def _touched(prepared: ChatPrepared, found: _Found, limit: int) -> list[Touched]:
    """Return what each policy would do with this limit."""
    chat = prepared.plan.payload.chat
    long = set(found.owners[np.diff(found.offsets) > limit].tolist())
    touched = []
    for policy in get_args(Overlong):
        if policy == "error" or (policy == "split" and chat.form != "chat"):
            continue
        tried = msgspec.structs.replace(chat, max_tokens=limit, overlong=policy)
        _, refused = Cutter(tried, Counter()).cut(found.offsets, found.mask, found.owners)
        touched.append(
            Touched(
                limit=limit, policy=policy, touched=round(len(long) * found.scale),
                left_out=round(len(long & set(refused)) * found.scale),
            )
        )  # fmt: skip
    return touched
