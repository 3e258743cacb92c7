"""What a row of tokens is: the samples that a loader serves of a split, and their options.

Where nothing is asked for, it is what the build made the split for: windows of texts, packed rows
of conversations (a window would cut them anywhere, and begin in the middle of one), and whole
records of preferences. An option that other rows have is refused, not ignored; so are rows that
would train on the answers of preferences as if all of them were good.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import Split

from .checks import flag, whole_number
from .mixture.dataset import MixedDataset
from .rows.attention_fields import segments_a_row
from .rows.windows import WindowDataset
from .types import empty_split

__all__ = ["Overlong", "Rows", "default_rows", "row_maker"]

Rows = Literal["windows", "packed", "documents", "pairs", "labels", "groups"]
Overlong = Literal["split", "truncate", "drop", "error", "truncate-left"]
_SEQ_LEN = 1024
_FORMS = ("pairs", "labels", "groups")
_DEFAULTS = {
    "stride": None, "pack": None, "overlong": None, "position_ids": False, "doc_ids": False,
    "cu_seqlens": False,
}  # fmt: skip
_OWN = {
    "windows": ("stride", "position_ids", "doc_ids", "cu_seqlens"),
    "packed": ("pack", "overlong", "position_ids", "doc_ids", "cu_seqlens"),
    "documents": ("overlong", "position_ids"),
    **dict.fromkeys(_FORMS, ("overlong",)),
}
_ENDS = {"truncate": "right", "truncate-left": "left", "error": "error"}


def default_rows(split: Split) -> Rows:
    """The rows that `split` is made for."""
    forms: dict[str | None, Rows] = {
        None: "windows", "chat": "packed", "pairs": "pairs", "labels": "labels", "groups": "groups",
    }  # fmt: skip
    return forms[split.form]


def row_maker(rows: Rows | None, **options: Any) -> Callable[[Split], MixedDataset]:
    """What makes the samples of a split; None: `default_rows` of each.

    `options` are those of `create_loader`, all of them, and `sample_mask`. Raises `UsageError` for
    unknown rows, and for options that they do not have; what is made, for rows that a split cannot
    have, and what the datasets raise.
    """
    options |= {
        "seq_len": None if (n := options["seq_len"]) is None else whole_number("seq_len", n, 1),
        "cu_seqlens": segments_a_row(options["cu_seqlens"]),
        **{name: flag(name, options[name]) for name in ("position_ids", "doc_ids")},
    }
    if rows is not None:
        if rows not in get_args(Rows):
            raise UsageError(f"must be one of {get_args(Rows)}, got {rows!r}", where="rows")
        _require_own(rows, options)
    return partial(_make, rows, options)


def _make(rows: Rows | None, options: Mapping[str, Any], split: Split) -> MixedDataset:
    kind = rows or default_rows(split)
    _require_own(kind, options)
    _require_rows(kind, split)
    if not split.documents:
        raise empty_split(split)
    own = {
        name: value
        for name, value in options.items()
        if name not in _DEFAULTS or (name in _OWN[kind] and not _is_default(name, value))
    }
    if own["seq_len"] is None:
        seq_len = _default_seq_len(split)
        if kind == "windows":
            seq_len = _window_len(split, seq_len, shifted=own["labels"] == "shifted")
        own["seq_len"] = seq_len
    if kind == "windows":
        return WindowDataset(split, **own)
    if kind == "packed":
        return _packed(split, **own)
    return (_documents if kind == "documents" else _preferences)(split, **own)


def _default_seq_len(split: Split) -> int:
    """Return 1,024, or the limit that a build of conversations kept to where that is more."""
    chat = split.dataset.chat
    return max(_SEQ_LEN, chat.max_tokens or 0) if chat is not None else _SEQ_LEN


def _window_len(split: Split, seq_len: int, *, shifted: bool) -> int:
    """Return `seq_len`, or with a warning as much as the tokens of `split` fill."""
    most = split.tokens - shifted
    if not 1 <= most < seq_len:
        return seq_len
    warnings.warn(
        f"split {split.name} has {split.tokens:,} tokens, fewer than a window of {seq_len:,} takes:"
        f" seq_len is {most:,} here; pass seq_len to have the same in every split", stacklevel=2,
    )  # fmt: skip
    return most


def _is_default(name: str, value: Any) -> bool:
    return value is _DEFAULTS[name]


def _require_own(rows: Rows, options: Mapping[str, Any]) -> None:
    for name in _DEFAULTS:
        if name not in _OWN[rows] and not _is_default(name, options[name]):
            raise UsageError(f"means nothing for rows={rows!r}", where=name)


def _require_rows(rows: Rows, split: Split) -> None:
    """Preferences are served as such, and nothing else is."""
    held = split.form if split.form in _FORMS else None
    if rows in _FORMS and held is None:
        raise UsageError(
            f"split {split.name} has no preferences", where="rows",
            remedy=f"Use rows={default_rows(split)!r}.",
        )  # fmt: skip
    if held is not None and rows != held:
        raise UsageError(
            f"split {split.name} holds preferences ({held}), good and bad answers; {rows} would "
            "train on all of them", where="rows",
            remedy=f"Use rows={held!r}, or leave it out.",
        )  # fmt: skip


def _packed(split: Split, **options: Any) -> MixedDataset:
    from .rows.packed import PackedDataset

    if split.form == "chat":  # a conversation that is cut without asking is one that nobody sees
        options = {"pack": "best-fit", "overlong": "error", **options}
    return PackedDataset(split, **options)


def _documents(split: Split, *, seq_len: int, **options: Any) -> MixedDataset:
    from .rows.documents import DocumentDataset
    from .rows.length_limit import require_fit

    overlong = options.pop("overlong", "error" if split.form == "chat" else "truncate")
    if overlong not in _ENDS:
        raise UsageError(
            f"must be one of {tuple(_ENDS)} for rows='documents', got {overlong!r}",
            where="overlong",
        )  # fmt: skip
    if overlong == "error":
        require_fit(split, seq_len)
    return DocumentDataset(split, max_length=seq_len, truncate=_ENDS[overlong], **options)  # type: ignore[arg-type]


def _preferences(split: Split, *, seq_len: int, **options: Any) -> MixedDataset:
    from .rows.preferences import PreferenceDataset

    return PreferenceDataset(split, max_length=seq_len, **options)
