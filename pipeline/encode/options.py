"""The option `encoder` of builds of embeddings and of pairs.

This module imports neither numpy nor a library of models, because the command line reads it for its
help.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Encoder", "encoder_name"]

Encoder = Callable[[list[str]], Any]
"""Function of a list of texts; returns their vectors, an array or tensor [texts, width]."""


def encoder_name(encoder: str | Encoder | None) -> str | None:
    """Return the name of `encoder` for config.json, or None if there is no encoder.

    The name of a model is returned unchanged. For the path of a folder, the last part is returned,
    and for a function ``module:function``.

    >>> encoder_name("all-MiniLM-L6-v2"), encoder_name(encoder_name)
    ('all-MiniLM-L6-v2', 'dataprep.pipeline.encode.options:encoder_name')
    """
    if isinstance(encoder, str):
        return Path(encoder).resolve().name if Path(encoder).is_dir() else encoder
    if encoder is None:
        return None
    home = encoder if hasattr(encoder, "__qualname__") else type(encoder)
    return f"{home.__module__}:{home.__qualname__}"
