"""What a running build tells whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "ProgressCallback"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A snapshot: bytes of input, documents (or rows) and tokens written, rejects, seconds."""

    stage: str
    """``plan``, ``tokenize`` (of embeddings ``read``) or ``commit``."""
    bytes_done: int = 0
    bytes_total: int = 0
    documents: int = 0
    tokens: int = 0
    rejects: int = 0
    seconds: float = 0.0


ProgressCallback = Callable[[Progress], None]
