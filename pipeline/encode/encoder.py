"""Encoders, which make vectors of texts: a sentence-transformers model or any function.

Texts are encoded in order, in batches of a fixed size. No batch contains texts of two units of a
build (the parts of the input that separate tasks process), so every run of a build makes the same
batches. This matters for encoders whose vector of a text depends on the other texts in the batch.
The shape and the dtype of each result are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError

from .options import Encoder, encoder_name

__all__ = ["TextEncoder", "load_encoder"]


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Function that makes vectors of texts, and the name that error messages give it."""

    name: str
    function: Encoder

    def encode(
        self, texts: Sequence[str], batch: int, width: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of `texts`, float32 [texts, width].

        At most `batch` texts are encoded at once. Numbers that overflow float32 become infinite. If
        `width` is None, the first batch decides the width. Raise `InputError` if the encoder does
        not return one vector of `width` numbers for each text.
        """
        parts = []
        for start in range(0, len(texts), batch):
            parts.append(self._encode(list(texts[start : start + batch]), width))
            width = parts[-1].shape[1]
        return np.concatenate(parts) if parts else np.empty((0, width or 0), np.float32)

    def _encode(self, texts: list[str], width: int | None) -> npt.NDArray[np.float32]:
        result: Any = self.function(texts)
        if hasattr(result, "detach"):  # a tensor, on any device
            result = result.detach().float().cpu()
        found = np.asarray(result)
        fits = found.ndim == 2 and len(found) == len(texts) and found.dtype.kind in "fiu"
        if not fits or (width is not None and found.shape[1] != width) or not found.shape[1]:
            wanted = f"[{len(texts)}, {width or 'width'}]"
            raise InputError(
                f"gave {found.dtype} {list(found.shape)} for {len(texts)} texts, "
                f"not floats {wanted}",
                where=f"--encoder {self.name}", code="E_ENCODER",
                remedy="An encoder returns one vector for each text, all of one width.",
            )  # fmt: skip
        with np.errstate(over="ignore"):
            return found.astype(np.float32, copy=False)


def load_encoder(encoder: str | Encoder) -> TextEncoder:
    """Return a `TextEncoder` for `encoder`, a function or the name of a model.

    A model is loaded by sentence-transformers. Raise `UsageError` if this library is not installed,
    and `InputError` if it cannot load the model.
    """
    name = encoder_name(encoder) or ""
    if not isinstance(encoder, str):
        return TextEncoder(name, encoder)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UsageError(
            f"{encoder!r} needs sentence-transformers, which is not installed", where="--encoder",
            code="E_MISSING_LIBRARY",
            remedy="Install it: pip install 'dataprep-shards[embed]'.",
        ) from None  # fmt: skip
    try:
        model: Any = SentenceTransformer(encoder)
    except Exception as error:  # the library raises errors of many types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"not a model that sentence-transformers loads ({reason})", where=encoder,
            code="E_ENCODER", remedy="Check --encoder: a name on the hub, or a folder.",
        ) from None  # fmt: skip
    return TextEncoder(
        name,
        lambda texts: model.encode(
            texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False
        ),
    )
