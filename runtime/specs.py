"""Row specs: small frozen dataclasses that describe what one sample of a loader is.

A spec validates itself when it is created, and `spec.open(split)` returns the map-style dataset of
its rows. The state of a loader contains the `definition` of that dataset, not the spec. A `Mixture`
is not a spec: it lists several datasets and their weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import torch

from dataprep.formats.errors import UsageError, naming_dataset, require
from dataprep.formats.read.arrays import ArrayData, ArraySplit
from dataprep.formats.read.dataset import Dataset, Split

from .arrays.pair_data import PairData
from .checks import flag, one_of, whole_number
from .choices import FORMS, Algorithm, Applied, By, Form, PackedOverlong, PreferenceOverlong
from .types import Device, Labels, check_id_dtype, empty_split

if TYPE_CHECKING:
    from .arrays.embeddings import EmbeddingDataset
    from .arrays.pairs import PairDataset
    from .arrays.tables import PairTables
    from .mixture.dataset import MixedDataset
    from .rows.windows import WindowDataset

__all__ = [
    "BuiltRows",
    "Documents",
    "Embeddings",
    "Mixture",
    "Packed",
    "Pairs",
    "Preferences",
    "RowKind",
    "RowSpec",
    "TokenRows",
    "Windows",
    "named_spec",
    "open_rows",
    "row_kind",
    "row_spec",
    "spec_of",
    "with_options",
]

RowKind = Literal["windows", "packed", "documents", "pairs", "labels", "groups"]
"""Names of the kinds of token rows. The last three are the forms of preferences."""
AnySplit = Split | ArraySplit

_SEQ_LEN = 1024
_SIDES: dict[str, Any] = {"truncate": "right", "truncate-left": "left", "error": "error"}


class TokenRows(Protocol):
    """A spec whose rows consist of tokens."""

    def open(self, split: Split, *, sample_mask: bool = False) -> MixedDataset:
        """Return the dataset of the rows of `split`.

        With `sample_mask`, batches have a bool field `sample_mask`, which is False in rows that
        only fill a batch. Raise `UsageError` for a split that cannot have such rows, and the
        errors of the dataset.
        """
        ...


@dataclass(frozen=True, slots=True)
class Windows:
    """Fixed-length windows over a split's tokens, with all documents concatenated.

    See `WindowDataset`.

    >>> Windows(2048, stride=1024).labels
    'shifted'
    """

    seq_len: int | None = None
    """Number of tokens in a window. None: 1,024, or for conversations their token limit
    when built, if that is higher. A split with fewer tokens is then one window, with a warning."""
    _: KW_ONLY
    stride: int | None = None
    """Number of tokens from the start of a window to the start of the next. None: `seq_len`."""
    labels: Labels | None = "shifted"
    """``"shifted"``: label j is the token after input j. ``"unshifted"``: label j is input j, for
    models that shift inside. None: no labels."""
    dtype: torch.dtype | None = None
    """Type of ids, labels and position ids: torch.int32 or torch.int64. None: torch.int64."""
    position_ids: bool = False
    """Add `position_ids` [rows, seq_len], from 0 in every document."""
    doc_ids: bool = False
    """Add int64 `doc_ids` [rows, seq_len], the index of each token's document in the split."""
    cu_seqlens: bool | int = False
    """Add int32 `cu_seqlens` of constant length and `max_seqlen`, for variable-length attention.
    A number is the maximum number of segments in a row. Padding counts as one segment."""

    def __post_init__(self) -> None:
        _check_token_rows(self)
        if self.stride is not None:
            _set(self, stride=whole_number("stride", self.stride, 1))

    def open(self, split: Split, *, sample_mask: bool = False) -> WindowDataset:
        """Return the dataset of the windows of `split`; see `TokenRows.open`."""
        from .rows.windows import WindowDataset

        _require_tokens(split, "windows")
        seq_len = self.seq_len
        if seq_len is None:
            seq_len = _window_len(split, _default_seq_len(split), shifted=self.labels == "shifted")
        return WindowDataset(
            split, seq_len=seq_len, stride=self.stride, labels=self.labels,
            position_ids=self.position_ids, doc_ids=self.doc_ids, cu_seqlens=self.cu_seqlens,
            sample_mask=sample_mask, dtype=self.dtype or torch.int64,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packed:
    """Fixed-length rows, each with several whole documents and then padding.

    See `PackedDataset`.

    >>> Packed(2048, algorithm="best-fit", cu_seqlens=True).seq_len
    2048
    """

    seq_len: int | None = None
    """Number of tokens in a row. None: 1,024, or for conversations their token limit
    when built, if that is higher."""
    _: KW_ONLY
    algorithm: Algorithm | None = None
    """``"first-fit"`` or ``"best-fit"`` decreasing. None: best-fit for conversations, else
    first-fit."""
    overlong: PackedOverlong | None = None
    """What to do with documents over `seq_len`: ``"split"``, ``"truncate"``, ``"drop"`` or
    ``"error"`` (raise). None: split, but error for conversations, which need their end."""
    labels: Labels | None = "shifted"
    """As in `Windows`. No label comes from the next document."""
    dtype: torch.dtype | None = None
    """As in `Windows`."""
    position_ids: bool = False
    """As in `Windows`."""
    doc_ids: bool = False
    """As in `Windows`."""
    cu_seqlens: bool | int = False
    """As in `Windows`. If a row has more segments, opening the rows raises an error."""

    def __post_init__(self) -> None:
        _check_token_rows(self)
        _check_choice("algorithm", self.algorithm, Algorithm)
        _check_choice("overlong", self.overlong, PackedOverlong)

    def open(self, split: Split, *, sample_mask: bool = False) -> MixedDataset:
        """Return the dataset of the packed rows of `split`; see `TokenRows.open`.

        The first time, this reads the lengths of all documents.
        """
        from .rows.packed import PackedDataset

        _require_tokens(split, "packed")
        chat = split.form == "chat"
        return PackedDataset(
            split, seq_len=self.seq_len or _default_seq_len(split),
            algorithm=self.algorithm or ("best-fit" if chat else "first-fit"),
            overlong=self.overlong or ("error" if chat else "split"), labels=self.labels,
            position_ids=self.position_ids, doc_ids=self.doc_ids, cu_seqlens=self.cu_seqlens,
            sample_mask=sample_mask, dtype=self.dtype or torch.int64,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Documents:
    """Rows with one document each, padded to the longest document of the batch.

    See `DocumentDataset`.
    """

    seq_len: int | None = None
    """Maximum number of tokens of a document. None: as in `Packed`."""
    _: KW_ONLY
    overlong: Literal["truncate", "truncate-left", "error"] | None = None
    """What to do with documents over `seq_len`: cut off the end (``"truncate"``) or the beginning
    (``"truncate-left"``), or raise (``"error"``). None: error for conversations, else truncate."""
    labels: Labels | None = "shifted"
    """As in `Windows`."""
    dtype: torch.dtype | None = None
    """As in `Windows`, and of the attention mask."""
    position_ids: bool = False
    """As in `Windows`."""

    def __post_init__(self) -> None:
        _check_token_rows(self)
        _check_choice("overlong", self.overlong, tuple(_SIDES))

    def open(self, split: Split, *, sample_mask: bool = False) -> MixedDataset:
        """Return the dataset of the documents of `split`; see `TokenRows.open`."""
        from .rows.document_lengths import require_fit
        from .rows.documents import DocumentDataset

        _require_tokens(split, "documents")
        seq_len = self.seq_len or _default_seq_len(split)
        overlong = self.overlong or ("error" if split.form == "chat" else "truncate")
        if overlong == "error":
            require_fit(split, seq_len)
        return DocumentDataset(
            split, max_length=seq_len, truncate=_SIDES[overlong], labels=self.labels,
            position_ids=self.position_ids, dtype=self.dtype or torch.int64,
            sample_mask=sample_mask,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preferences:
    """Records of preferences, each with all its answers. See `PreferenceDataset`."""

    seq_len: int | None = None
    """Maximum number of tokens of a conversation. None: as in `Packed`."""
    _: KW_ONLY
    form: Form | None = None
    """The form of preferences that the split must have. None: any form."""
    overlong: PreferenceOverlong | None = None
    """What to do with conversations over `seq_len`: raise an error (``"error"``), or cut off the
    beginning of the prompt (``"truncate-left"``). None: error."""
    labels: Labels | None = "shifted"
    """As in `Windows`. Groups have a loss mask instead of labels; ``"unshifted"`` is an error."""
    dtype: torch.dtype | None = None
    """As in `Documents`, and of the loss mask of groups."""

    def __post_init__(self) -> None:
        _check_token_rows(self)
        _check_choice("form", self.form, FORMS)
        _check_choice("overlong", self.overlong, PreferenceOverlong)

    def open(self, split: Split, *, sample_mask: bool = False) -> MixedDataset:
        """Return the dataset of the preference records of `split`; see `TokenRows.open`."""
        from .rows.preferences import PreferenceDataset

        _require_tokens(split, self.form)
        return PreferenceDataset(
            split, max_length=self.seq_len or _default_seq_len(split), sample_mask=sample_mask,
            overlong=self.overlong or "error", labels=self.labels, dtype=self.dtype or torch.int64,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Embeddings:
    """Rows of embeddings and of the arrays stored with them. See `EmbeddingDataset`."""

    fields: Sequence[str] | None = None
    """The arrays to return. None: all with a row for each record, except scales and origins."""
    raw: bool = False
    """Return int8 arrays as stored, instead of as float32 multiplied by their scale."""
    dtype: torch.dtype | None = None
    """Convert floating-point fields to this type. None: keep the stored type."""

    def __post_init__(self) -> None:
        _set(self, raw=flag("raw", self.raw))
        if self.fields is not None and not isinstance(self.fields, str):
            _set(self, fields=tuple(self.fields))

    def open(self, split: ArraySplit, *, sample_mask: bool = False) -> EmbeddingDataset:
        """Return the dataset of the rows of `split`; see `EmbeddingDataset`.

        Raise `UsageError` if the split holds no embeddings.
        """
        from .arrays.embeddings import EmbeddingDataset

        _require_arrays(split, "embeddings")
        return EmbeddingDataset(
            split, fields=self.fields, raw=self.raw, dtype=self.dtype, sample_mask=sample_mask
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Pairs of embeddings with hard negatives and a steering vector. See `PairDataset`."""

    clusters: Sequence[int] | None = None
    """Use only the pairs of these clusters; -1 selects the pairs without a cluster. None: all."""
    curriculum: Applied = "train"
    """The splits in which the curriculum changes with the epoch: ``"train"`` or ``"all"``."""
    preload: bool = False
    """Read all tables into memory on `device`, and make batches there."""
    device: Device = None
    """The device of every tensor of a batch. None: the CPU."""

    def __post_init__(self) -> None:
        one_of("curriculum", self.curriculum, get_args(Applied))
        _set(self, preload=flag("preload", self.preload))
        if self.clusters is not None:
            _set(self, clusters=tuple(whole_number("clusters", n, -1) for n in self.clusters))

    def open(
        self,
        split: ArraySplit,
        *,
        sample_mask: bool = False,
        seed: int | None = None,
        tables: PairTables | None = None,
    ) -> PairDataset:
        """Return the dataset of the pairs of `split`; see `PairDataset`.

        The argument `seed` determines the random steering variants; None means the seed in
        config.json. `tables` are the tables of a `PairData` that is open already. Raise
        `UsageError` if the spec sets `preload` or `device` although `tables` are given, or if the
        split holds no pairs.
        """
        from .arrays.pairs import PairDataset

        _require_arrays(split, "pairs")
        for name, given in (("preload", self.preload), ("device", self.device is not None)):
            if tables is not None and given:
                raise UsageError(
                    "is settled: the dataset is open already", where=name,
                    remedy=f"Open it with open_pairs(path, {name}=...), or give its path.",
                )  # fmt: skip
        return PairDataset(
            split, seed=seed, curriculum=self.curriculum, clusters=self.clusters,
            preload=self.preload, device=self.device, sample_mask=sample_mask, tables=tables,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltRows:
    """Rows of the kind that a split was built for (see `row_kind`).

    The method `of` returns the spec for a split, such as a `Packed`. The attribute `options` holds
    values for the fields of that spec.
    """

    options: Mapping[str, Any]

    def of(self, split: AnySplit) -> RowSpec:
        """Return the spec for `split`.

        Raise `UsageError` if the attribute `options` names a field that this spec does not have.
        """
        if isinstance(split, Split):
            return named_spec(row_kind(split), **self.options)
        if self.options:
            raise _of_tokens(next(iter(self.options)))
        return Embeddings() if split.data.kind == "embeddings" else Pairs()

    def open(self, split: Split, *, sample_mask: bool = False) -> MixedDataset:
        """Return the dataset of the rows of `split`; see `TokenRows.open`.

        Raise `UsageError` if the attribute `options` names a field that the spec for `split` does
        not have.
        """
        return cast("TokenRows", self.of(split)).open(split, sample_mask=sample_mask)


RowSpec = Windows | Packed | Documents | Preferences | Embeddings | Pairs
_TOKEN_SPECS = (Windows, Packed, Documents, Preferences)
_BY_NAME: dict[str, Any] = {
    "windows": Windows, "packed": Packed, "documents": Documents,
    **{form: partial(Preferences, form=form) for form in FORMS},
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Several datasets of tokens, each with a weight.

    The weight of a dataset is its share of all samples, or of all tokens with ``by="tokens"``.
    Weights are converted to whole numbers of samples in a period, such as 7 and 3. They keep their
    exact proportion, or are rounded if the period would be too long. In every prefix of the order,
    the number of samples from a dataset differs by at most one from its share. When all samples of
    a dataset have been used, they come again in a new order. An epoch has as many samples as all
    datasets together.

        >>> Mixture({"prose": 0.7, "code": 0.3}, by="tokens").by
        'tokens'
    """

    weights: Mapping[Any, float]
    """The weight of each dataset. A key is a path or an open `Dataset`. Their order matters."""
    _: KW_ONLY
    by: By = "samples"
    """Whether weights are shares of ``"samples"`` or of ``"tokens"``. For tokens, the mean number
    of tokens in a sample of each dataset is used, not counting padding."""
    source_ids: bool = False
    """Add int64 `source` [batch_size]: for each row the index of its dataset in `weights`, or -1 if
    the row only fills the batch."""
    weights_changed: bool = False
    """Accept the state of a run with different weights or datasets. The schedule of the new weights
    begins where the run stopped, and each dataset continues after its last sample."""
    mixed_tokenizers: bool = False
    """Accept datasets that differ in tokenizer, EOS, BOS or `special_text`."""

    def __post_init__(self) -> None:
        require(isinstance(self.weights, Mapping), "weights",
                f"must be a mapping of datasets to weights, got {self.weights!r}")  # fmt: skip
        one_of("by", self.by, get_args(By))
        for name in ("source_ids", "weights_changed", "mixed_tokenizers"):
            _set(self, **{name: flag(name, getattr(self, name))})


def row_kind(split: Split) -> RowKind:
    """Return the kind of rows that `split` was built for.

    Splits of texts are built for windows. Splits of conversations are built for packed rows,
    because windows would cut conversations at any token. Splits of preferences are built for whole
    records.
    """
    kinds: dict[str | None, RowKind] = {
        None: "windows", "chat": "packed", "pairs": "pairs", "labels": "labels", "groups": "groups",
    }  # fmt: skip
    return kinds[split.form]


def named_spec(name: str, **options: Any) -> RowSpec:
    """Return the spec of the rows called `name` (a `RowKind`), with the given options.

    Raise `UsageError` for an unknown name, and for an option that such rows do not have.

    >>> named_spec("packed", seq_len=64, overlong="drop").overlong
    'drop'
    """
    one_of("rows", name, get_args(RowKind))
    spec = _BY_NAME[name]()
    known = {field.name for field in fields(spec)}
    for option in options:
        if option not in known:
            raise UsageError(f"means nothing for rows={name!r}", where=option)
    return cast("RowSpec", replace(spec, **options))


def spec_of(options: Mapping[str, Any]) -> RowSpec | BuiltRows:
    """Return the spec called ``options["rows"]``, with the remaining `options` as its fields.

    If there is no ``"rows"``, the result is a `BuiltRows`. Raise `UsageError` for an unknown name
    or option.
    """
    known = sorted({field.name for spec in _TOKEN_SPECS for field in fields(spec)} - {"form"})
    unknown = sorted({*options} - {"rows", *known})
    require(not unknown, "rows",
            f"there is no {', '.join(unknown)}; only rows, {', '.join(known)}")  # fmt: skip
    own = dict(options)
    name = own.pop("rows", None)
    return BuiltRows(options=own) if name is None else named_spec(name, **own)


def with_options(spec: RowSpec | BuiltRows, **options: Any) -> RowSpec | BuiltRows:
    """Return a copy of `spec` in which the fields named by `options` have the given values."""
    if isinstance(spec, BuiltRows):
        return BuiltRows(options={**spec.options, **options})
    return replace(spec, **options)


def row_spec(
    rows: RowSpec | BuiltRows | RowKind | None,
    seq_len: int | None = None,
    dtype: torch.dtype | None = None,
) -> RowSpec | BuiltRows:
    """Return the spec for the arguments `rows`, `seq_len` and `dtype` of `create_loader`.

    If `rows` is None, the result is a `BuiltRows`. Raise `UsageError` for an unknown name, for a
    `seq_len` or `dtype` if the rows are not tokens, and for one that differs from that of `rows`.
    """
    given: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if seq_len is not None:
        given["seq_len"] = whole_number("seq_len", seq_len, 1)
    if rows is None or isinstance(rows, BuiltRows):
        return with_options(rows or BuiltRows(options={}), **given)
    spec = rows if isinstance(rows, RowSpec) else named_spec(rows)
    for name, value in given.items():
        if not isinstance(spec, _TOKEN_SPECS):
            raise _of_tokens(name)
        if getattr(spec, name) not in (None, value):
            problem = f"is {value} here and {getattr(spec, name)} in rows"
            raise UsageError(problem, where=name, remedy="Give it once.")
    return replace(spec, **given)


def open_rows(
    data: Dataset | ArrayData | PairData,
    split: str,
    spec: RowSpec | BuiltRows,
    *,
    seed: int | None = None,
    sample_mask: bool = False,
) -> Any:
    """Return the dataset of the rows that `spec` describes, for the split of `data` called `split`.

    The argument `seed` determines the random steering variants of pairs. Raise the errors of
    `spec.open`, with the directory of `data` in the message.
    """
    held = data.data if isinstance(data, PairData) else data
    with naming_dataset(held.path):
        part = held.split(split)
        own: Any = spec.of(part) if isinstance(spec, BuiltRows) else spec
        if isinstance(own, Pairs) and isinstance(part, ArraySplit):
            tables = data.tables if isinstance(data, PairData) else None
            return own.open(part, sample_mask=sample_mask, seed=seed, tables=tables)
        return own.open(part, sample_mask=sample_mask)


def _of_tokens(option: str) -> UsageError:
    """Return the error for `option`, an option of rows of tokens, given for other rows."""
    own = ", or pass rows=Embeddings(dtype=...) for embeddings" if option == "dtype" else ""
    return UsageError("is for datasets of tokens", where=option, remedy=f"Leave it out{own}.")


def _set(spec: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _check_token_rows(spec: Any) -> None:
    """Check and normalize `seq_len`, `labels`, `dtype` and attention fields of a spec of tokens.

    The attention fields are `position_ids`, `doc_ids` and `cu_seqlens`. Raise `UsageError` for an
    invalid value.
    """
    from .rows.segments import SegmentFields

    if spec.seq_len is not None:
        _set(spec, seq_len=whole_number("seq_len", spec.seq_len, 1))
    one_of("labels", spec.labels, (None, *get_args(Labels)))
    if spec.dtype is not None:
        check_id_dtype(spec.dtype)
    names = [field.name for field in fields(SegmentFields) if hasattr(spec, field.name)]
    found = SegmentFields(**{name: getattr(spec, name) for name in names})
    _set(spec, **{name: getattr(found, name) for name in names})


def _check_choice(name: str, value: Any, known: Any) -> None:
    """Raise `UsageError` unless `value` is in `known` or is None, which means the default."""
    if value is not None:
        one_of(name, value, known if isinstance(known, tuple) else get_args(known))


def _require_tokens(split: AnySplit, kind: str | None) -> None:
    """Raise `UsageError` unless the rows of `split` can be of the kind `kind`.

    If `kind` is None, the split must hold preferences, in any form.
    """
    if not isinstance(split, Split):
        raise UsageError(
            "is for datasets of tokens", where="rows",
            remedy=f"Leave it out: the dataset holds {split.data.kind}.",
        )  # fmt: skip
    held = split.form if split.form in FORMS else None
    if held is None and (kind is None or kind in FORMS):
        raise UsageError(
            f"split {split.name} has no preferences", where="rows",
            remedy=f"Use rows={row_kind(split)!r}.",
        )  # fmt: skip
    if held is not None and kind not in (None, held):
        raise UsageError(
            f"split {split.name} holds preferences ({held}), good and bad answers; {kind} would "
            "train on all of them", where="rows",
            remedy=f"Use rows={held!r}, or leave it out.",
        )  # fmt: skip
    if not split.documents:
        raise empty_split(split)


def _require_arrays(split: AnySplit, kind: str) -> None:
    """Raise `UsageError` unless the dataset of `split` has the kind `kind`."""
    held = "tokens" if isinstance(split, Split) else split.data.kind
    if held != kind:
        raise UsageError(
            f"means nothing for a dataset of {held}: these rows are of {kind}", where="rows",
            remedy="Leave it out, or give a spec for that kind.",
        )  # fmt: skip


def _default_seq_len(split: Split) -> int:
    """Return the default `seq_len`: 1,024, or the build's `max_tokens` if that is higher.

    The build of a split of conversations stores `max_tokens`, the limit of one conversation.
    """
    chat = split.dataset.chat
    return max(_SEQ_LEN, chat.max_tokens or 0) if chat is not None else _SEQ_LEN


def _window_len(split: Split, seq_len: int, *, shifted: bool) -> int:
    """Return `seq_len`, or the length of the longest possible window if `split` is shorter.

    Warn if the split is shorter. If `shifted` is true, a window needs one more token than its
    length, for the last label. If the split has too few tokens for a window of length 1, return
    `seq_len`.
    """
    most = split.tokens - shifted
    if not 1 <= most < seq_len:
        return seq_len
    warnings.warn(
        f"split {split.name} has {split.tokens:,} tokens, fewer than a window of {seq_len:,} takes:"
        f" seq_len is {most:,} here; pass seq_len to have the same in every split", stacklevel=3,
    )  # fmt: skip
    return most
