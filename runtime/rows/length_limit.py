"""Whether all documents of a split fit into rows, told when a loader is made and not days later.

Free where the build kept to a limit. Otherwise the lengths of all documents are read once, 8 bytes
each, and what was found is kept (runtime/rows/plan_cache.py).
"""

from __future__ import annotations

from pathlib import Path

from dataprep.formats.errors import InputError
from dataprep.formats.read.dataset import Split

from .packing_plan import document_lengths
from .plan_cache import Emit, stored_plan

__all__ = ["longest_document", "require_fit", "too_long"]


def longest_document(split: Split, plan_dir: str | Path | None = None) -> tuple[int, int]:
    """The number of the longest document of `split` and its tokens; (-1, 0) without documents.

    >>> longest_document(dataset.split("train"))                     # doctest: +SKIP
    (5121, 3077)
    """
    definition = {
        "kind": "longest", "content_id": split.content_id, "split": split.name, "version": 1,
    }  # fmt: skip

    def make(_: Emit) -> dict[str, int]:
        base, document, tokens = 0, -1, 0
        for lengths in document_lengths(split):
            if len(lengths) and int(lengths.max()) > tokens:
                document, tokens = base + int(lengths.argmax()), int(lengths.max())
            base += len(lengths)
        return {"document": document, "tokens": tokens}

    report = stored_plan(definition, {}, make, plan_dir, io=split.dataset.io).report
    return report["document"], report["tokens"]


def require_fit(split: Split, max_length: int, plan_dir: str | Path | None = None) -> None:
    """Raise `InputError`, naming the longest document, unless all have `max_length` or less."""
    chat = split.dataset.chat
    if chat is not None and chat.max_tokens is not None and chat.max_tokens <= max_length:
        return
    document, tokens = longest_document(split, plan_dir)
    if tokens > max_length:
        raise too_long(document, tokens, max_length)


def too_long(document: int, tokens: int, max_length: int) -> InputError:
    """The error of a document over the limit."""
    return InputError(
        f"has {tokens:,} tokens, more than seq_len {max_length:,}", where=f"document {document}",
        code="E_OVERLONG",
        remedy=f"Use seq_len={tokens}, another overlong, or build with --max-tokens.",
    )  # fmt: skip
