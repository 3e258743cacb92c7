"""Estimate of a build of conversations for `--dry-run`, with lengths measured on a sample."""

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

__all__ = ["ChatEstimate", "Lengths", "PolicyEffect", "estimate_lengths"]

PERCENTILES = (50, 90, 95, 99, 100)
_LIMITS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEffect:
    """Estimated numbers of records in the whole input that an over-length policy affects."""

    limit: int
    """Tokens that a conversation may have."""
    policy: str
    touched: int
    """Records with a conversation over the limit."""
    left_out: int
    """Those of them that would be dropped, or have no token to train on left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths in tokens of the sampled conversations, and the fraction of tokens trained on."""

    percentiles: dict[int, int]
    trained_share: float
    sampled_records: int
    overlong: tuple[PolicyEffect, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEstimate(TokenEstimate):
    """Estimate of a build of conversations, with the form and the lengths of its records."""

    form: str
    template: str
    masked_by: str
    lengths: Lengths
    refused: dict[str, int]
    """Number of sampled records that could not be rendered, by reason."""


def estimate_lengths(prepared: ChatPrepared) -> ChatEstimate:
    """Return the estimate of size and time, with the lengths of conversations.

    To measure lengths, the sampled conversations are encoded in this process.
    """
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
    found = _EncodedSample(
        offsets=offsets, mask=mask, owners=np.array(sample.owners, np.int64),
        scale=plan.input_bytes / max(1, sample.sample.stored_bytes),
    )  # fmt: skip
    return Lengths(
        percentiles=dict(zip(PERCENTILES, map(int, values), strict=True)),
        trained_share=round(float(mask.mean()) if len(mask) else 0.0, 4),
        sampled_records=sample.records,
        overlong=tuple(one for limit in limits for one in _effects(prepared, found, limit)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _EncodedSample:
    """Encoded conversations of a sample.

    The whole input is `scale` times as large as the sample.
    """

    offsets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.int64]
    scale: float


def _effects(prepared: ChatPrepared, found: _EncodedSample, limit: int) -> list[PolicyEffect]:
    """Return how many records each policy would affect if `max_tokens` were `limit`."""
    chat = prepared.plan.payload.chat
    long = set(found.owners[np.diff(found.offsets) > limit].tolist())
    touched = []
    for policy in get_args(Overlong):
        if policy == "error" or (policy == "split" and chat.form != "chat"):
            continue
        tried = msgspec.structs.replace(chat, max_tokens=limit, overlong=policy)
        _, refused = Cutter(tried, Counter()).cut(found.offsets, found.mask, found.owners)
        touched.append(
            PolicyEffect(
                limit=limit, policy=policy, touched=round(len(long) * found.scale),
                left_out=round(len(long & set(refused)) * found.scale),
            )
        )  # fmt: skip
    return touched
