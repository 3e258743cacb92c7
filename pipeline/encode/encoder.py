"""Vectors of texts by an encoder: a sentence-transformers model, or any function.

Texts are handed over in their order, so many at a time within each unit, so that an encoder whose
numbers depend on what else is in a batch gives the same ones in every run. Whatever it returns is
compared with what was asked for before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError

from ..embeddings.options import Encoder, encoder_name

__all__ = ["Encode", "encode_texts", "load_encoder", "probe_vectors"]

Encode = Encoder


def load_encoder(encoder: str | Encoder) -> Encode:
    """The function that is `encoder`, or the model of that name or folder."""
    if not isinstance(encoder, str):
        return encoder
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UsageError(
            f"{encoder!r} needs sentence-transformers, which is not installed", where="--encoder",
            code="E_MISSING_LIBRARY", remedy="Install it: pip install 'dataprep-shards[embed]'.",
        ) from None  # fmt: skip
    try:
        model: Any = SentenceTransformer(encoder)
    except Exception as error:  # theirs are of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"not a model that sentence-transformers loads ({reason})", where=encoder,
            code="E_ENCODER", remedy="Check --encoder: a name on the hub, or a folder.",
        ) from None  # fmt: skip
    return lambda texts: model.encode(
        texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False
    )


def probe_vectors(
    encode: Encode, encoder: str | Encoder, texts: list[str]
) -> npt.NDArray[np.float32]:
    """Return what `encode`, which is `encoder`, gives for `texts`: float32 [texts, width]."""
    return _checked(encode, texts, None, encoder)


def encode_texts(
    encode: Encode, texts: Sequence[str], batch: int, width: int
) -> npt.NDArray[np.float32]:
    """The vectors of `texts`, up to `batch` of them at a time: float32 [texts, width]."""
    found = np.empty((len(texts), width), np.float32)
    for start in range(0, len(texts), batch):
        part = list(texts[start : start + batch])
        found[start : start + batch] = _checked(encode, part, width, encode)
    return found


def _checked(
    encode: Encode, texts: list[str], width: int | None, encoder: str | Encoder
) -> npt.NDArray[np.float32]:
    made: Any = encode(texts)
    if hasattr(made, "detach"):  # a tensor, wherever it is
        made = made.detach().float().cpu()
    found = np.asarray(made)
    fits = found.ndim == 2 and len(found) == len(texts) and found.dtype.kind in "fiu"
    if not fits or (width is not None and found.shape[1] != width) or not found.shape[1]:
        wanted = f"[{len(texts)}, {width or 'width'}]"
        raise InputError(
            f"gave {found.dtype} {list(found.shape)} for {len(texts)} texts, not floats {wanted}",
            where=f"--encoder {encoder_name(encoder)}", code="E_ENCODER",
            remedy="An encoder returns one vector for each text, all of one width.",
        )  # fmt: skip
    return found.astype(np.float32, copy=False)
