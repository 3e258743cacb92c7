"""Reconstruction of a loader's order from options of `dataprep order` or from a saved state.

The loader is made in the same way as by `create_loader`, raises the same errors, and loads the
state if there is one. Options that the state determines need not be given, and an option that
contradicts the state is an error. The datasets are opened, but no batch is made. For packed rows,
the packing is computed if it is not stored.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dataprep.formats.errors import IncompatibleError, InputError, UsageError
from dataprep.formats.storage import storage_errors

if TYPE_CHECKING:
    from dataprep.formats.read.dataset import Dataset, Split
    from dataprep.runtime.choices import Algorithm, By
    from dataprep.runtime.inspect.trace import Traceable
    from dataprep.runtime.loader.batch_sampler import End, GlobalBatchSampler
    from dataprep.runtime.loader.loader import Loader
    from dataprep.runtime.loader.serve import Shuffle
    from dataprep.runtime.mixture.dataset import MixtureDataset
    from dataprep.runtime.order.permutation import Positions
    from dataprep.runtime.order.skips import Skips
    from dataprep.runtime.specs import RowKind

__all__ = [
    "EpochOrder",
    "OrderOptions",
    "State",
    "epoch_order",
    "read_state",
    "require_datasets",
    "split_in",
]

State = Mapping[str, Any]
_LARGEST = 256 << 20  # bytes of a state: ten million skipped samples
_WRITE = "Write json.dumps(loader.state_dict()) to it."
_ANY = 1 << 62  # positions: more than any epoch has


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderOptions:
    """Options that decide the samples of every step, named as in `create_loader`.

    An option that is None gets its value from the saved state. If there is no state, or the state
    has no such value, it gets the default. If `labels` is the text "none", samples have no labels.
    """

    batch_size: int
    dp_size: int
    rows: RowKind | None = None
    seq_len: int | None = None
    stride: int | None = None
    pack: Algorithm | None = None
    overlong: str | None = None
    labels: str | None = None
    seed: int | None = None
    epoch: int | None = None
    shuffle: str | None = None
    end: End | None = None
    skip: Skips | Mapping[str, Skips] | None = None
    """Skip lists of several datasets, by PATH as it was given."""
    weights: tuple[float, ...] = ()
    weigh_by: By | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochOrder:
    """Order of a loader's samples in one epoch, with the `sampler` that divides it into steps.

    For a mixture, `names` are the paths of its datasets, as written on the command line. For a
    single dataset, `names` is empty.
    """

    samples: Traceable
    sampler: GlobalBatchSampler
    rows: RowKind
    names: tuple[str, ...]
    epoch: int
    start: int = 0
    """Number of samples served before step 0."""
    next_step: int | None = None
    """Step that follows the state; None if the state is of another epoch."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """The split of each dataset."""
        from dataprep.runtime.inspect.trace import splits_of

        return splits_of(self.samples)

    def sources(self, samples: Positions) -> Positions:
        """Return for each of `samples` the index of its dataset in the mixture."""
        base = cast("MixtureDataset", self.samples).base
        return base.searchsorted(samples, "right") - 1

    @property
    def first_position(self) -> int:
        """Position in the epoch of the first sample of step 0."""
        return self.sampler.position(self.start, self.epoch)


def read_state(path: Path) -> State:
    """Return the loader state in the JSON file `path`, as `state_dict()` returned it.

    Raise `InputError` if the file is not JSON, and the errors of `load_state_dict` if it is not a
    state.
    """
    from dataprep.runtime.loader.state import progress_from

    with storage_errors(path):
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= _LARGEST else b""
        except (FileNotFoundError, IsADirectoryError):
            raise InputError(
                "is no file",
                where=str(path),
                code="E_NOT_FOUND",
                remedy=f"Check the path. {_WRITE}",
            ) from None
    if size > _LARGEST:
        raise InputError(f"has {size:,} bytes; {_LARGEST:,} are the limit", where=str(path))
    try:
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not JSON ({error})", where=str(path),
            remedy=_WRITE,
        ) from None  # fmt: skip
    order = state.get("order") if isinstance(state, dict) else None
    progress_from(state, cast("State", order), _ANY)
    return cast("State", state)


def epoch_order(
    datasets: Sequence[Dataset],
    names: Sequence[str],
    split: str,
    options: OrderOptions,
    state: State | None,
) -> EpochOrder:
    """Return the order of a loader with these options, in the epoch where the loader starts.

    If `state` is given, the loader resumes from it, and an option that is None gets its value from
    the state. Errors call the datasets by their `names`. Raise the errors of `create_loader` and,
    if `state` does not fit, of `load_state_dict`.
    """
    from dataprep.runtime.specs import row_kind

    mixed = is_mixture(datasets, options, state)
    if state is not None:
        options = _as_in(state, options, names)
    if mixed:
        loader = _mixture(datasets, names, split, options)
    else:
        loader = _single(datasets[0], split, options)
    order = EpochOrder(
        samples=cast("Traceable", loader.dataset_obj), sampler=loader.sampler_obj,
        rows=options.rows or row_kind(datasets[0].split(split)),
        names=tuple(names) if mixed else (), epoch=loader.epoch,
    )  # fmt: skip
    return order if state is None else _at(order, loader, state, options.epoch)


def _at(order: EpochOrder, loader: Loader, state: State, epoch: int | None) -> EpochOrder:
    """Return `order` in the epoch of `state`, with steps that continue where the state was saved.

    The state is loaded into `loader`. If `epoch` is given and differs from the epoch of the state,
    return `order` unchanged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a skip list that --skip gives instead
        loader.load_state_dict(_without_transform(state))
    now = loader.state_dict()
    if epoch is not None and epoch != now["epoch"]:
        return order
    count = order.sampler.count(now["position"], now["epoch"])
    step, start = divmod(count, order.sampler.global_batch)
    return replace(order, epoch=now["epoch"], start=start, next_step=step)


def _single(dataset: Dataset, split: str, options: OrderOptions) -> Loader:
    from dataprep.runtime.loader.serve import build_order, serve

    if options.weigh_by is not None:
        raise UsageError(
            "is for several datasets with weights", where="weigh_by",
            remedy="Leave it out, or give several PATHs with a --weight each.",
        )  # fmt: skip
    if isinstance(options.skip, Mapping):
        raise UsageError(
            "has samples of several datasets, and there is one", where="skip",
            remedy="Write its samples alone: one to a line, or a JSON array.",
        )  # fmt: skip
    part = dataset.split(split)
    samples: Any = _spec(options, part).open(part)
    shuffle, seed = _shuffle(options, split), options.seed or 0
    order, definition = build_order(samples, part, seed=seed, shuffle=shuffle)
    return serve(
        samples, order=order, definition=definition, skip=options.skip or (),
        **_served(options, split),
    )  # fmt: skip


def _mixture(
    datasets: Sequence[Dataset], names: Sequence[str], split: str, options: OrderOptions
) -> Loader:
    from dataprep.runtime.loader.serve import require_seed, serve
    from dataprep.runtime.mixture.loader import mixed_loader

    given, wanted = len(options.weights), len(datasets)
    if given != wanted:
        raise UsageError(
            f"given {given} times for {wanted} datasets", where="--weight",
            remedy="Give it once for each PATH, in their order.",
        )  # fmt: skip
    return mixed_loader(
        partial(serve, **_served(options, split)),
        lambda part: _spec(options, part).open(part),
        dict(zip(datasets, options.weights, strict=True)), split,
        seed=require_seed(options.seed or 0), shuffle=_shuffle(options, split),
        by=options.weigh_by or "samples", skip=_skips_of(datasets, names, options.skip),
        mixed_tokenizers=True,  # which rows are served does not depend on it
    )  # fmt: skip


def _skips_of(
    datasets: Sequence[Dataset], names: Sequence[str], skip: Skips | Mapping[str, Skips] | None
) -> dict[Dataset, Skips]:
    """Return the skip lists (samples to leave out) by dataset, for datasets that have one.

    The argument `skip` maps paths of datasets to skip lists. If `skip` is None or empty, the result
    is empty. Raise `UsageError` if `skip` is a single list or names an unknown path.
    """
    if skip is None or not len(skip):
        return {}
    if not isinstance(skip, Mapping):
        raise UsageError(
            "must say which dataset the samples are of", where="skip",
            remedy='Write {"PATH": [samples], ...} to the file.',
        )  # fmt: skip
    known = {Path(name): dataset for name, dataset in zip(names, datasets, strict=True)}
    odd = sorted(name for name in skip if Path(name) not in known)
    if odd:
        raise UsageError(
            f"{', '.join(odd)}: no PATH of this mixture", where="skip",
            remedy=f"Name each as it is given: {', '.join(names)}.",
        )  # fmt: skip
    return {known[Path(name)]: samples for name, samples in skip.items()}


def _spec(options: OrderOptions, split: Split) -> Any:
    """Return the row spec that `create_loader` would use for `options` and `split`."""
    from dataprep.runtime.specs import named_spec, row_kind

    given = {
        "seq_len": options.seq_len, "stride": options.stride, "algorithm": options.pack,
        "overlong": options.overlong,
    }  # fmt: skip
    labels = None if options.labels == "none" else options.labels or "shifted"
    own = {name: value for name, value in given.items() if value is not None}
    return named_spec(options.rows or row_kind(split), labels=labels, **own)


def _served(options: OrderOptions, split: str) -> dict[str, Any]:
    """Return the arguments of `serve` for batches and ranks.

    Options that are None get the defaults of `create_loader` for the split named `split`.
    """
    end = "drop" if split == "train" else "pad" if options.dp_size > 1 else "partial"
    return {
        "batch_size": options.batch_size, "epoch": options.epoch or 0, "end": options.end or end,
        "dp_size": options.dp_size, "prefetch": 0,
        "pin_memory": False,
    }  # fmt: skip


def _shuffle(options: OrderOptions, split: str) -> Shuffle | bool:
    kind = options.shuffle or ("full" if split == "train" else "none")
    return False if kind == "none" else cast("Shuffle", kind)


def _order(state: State) -> State:
    """Return the part of `state` that defines the order."""
    return cast("State", state["order"])


def _as_in(state: State, options: OrderOptions, names: Sequence[str]) -> OrderOptions:
    """Return `options` in which each None is replaced by the value in `state`.

    Raise `IncompatibleError` if `options.rows` differs from the form of the rows in `state`, and
    the error for a damaged state if the skip list in `state` is invalid.
    """
    order = _order(state)
    kind = order.get("rows") if order.get("kind") == "mixture" else order.get("kind")
    if options.rows is not None and isinstance(kind, str) and kind != options.rows:
        raise IncompatibleError(
            f"is of rows {kind}, not {options.rows}", where="state", code="E_STATE",
            remedy=f"Leave out --rows, or give --rows {kind}.",
        )  # fmt: skip
    stored = {
        "rows": _text(kind), "seq_len": _number(order.get("seq_len", order.get("max_length"))),
        "stride": _number(order.get("stride")), "pack": _text(order.get("pack")),
        "overlong": _overlong(order),
        "labels": _text(order.get("labels")) or "none",
        "seed": _number(order.get("seed")),
        "shuffle": _text(order.get("shuffle")) or "none", "weigh_by": _text(order.get("by")),
        "skip": _skips(state, names),
    }  # fmt: skip
    new: dict[str, Any] = {n: value for n, value in stored.items() if getattr(options, n) is None}
    weights = order.get("weights")
    equal = order.get("by") == "samples" or kind == "windows"  # else they are divided by the means
    if equal and not options.weights and isinstance(weights, list):
        new["weights"] = tuple(number for number in weights if type(number) is int)
    return replace(options, **new)


def _without_transform(state: State) -> State:
    """Return `state` without its transform, which does not affect the order."""
    names = ("transform", "transform_seed")
    return {**state, "order": {n: v for n, v in _order(state).items() if n not in names}}


def _overlong(order: State) -> str | None:
    """Return the policy for overlong documents in `order`, as a value of --overlong.

    Return None if `order` states no policy.
    """
    ends = {"right": "truncate", "left": "truncate-left", "error": "error"}
    return _text(order.get("overlong")) or ends.get(str(order.get("truncate")))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


def _skips(state: State, names: Sequence[str]) -> Skips | dict[str, Skips]:
    """Return the skip list in `state`, that is, the samples to leave out.

    For a mixture, return a dict from the name of each dataset to its skip list. Raise the error for
    a damaged state if a skip list is invalid, or if a mixture does not have one for each dataset.
    """
    from dataprep.runtime.loader.state_errors import damaged
    from dataprep.runtime.order.skips import Skips

    skip = state["skip"]
    try:
        if _order(state).get("kind") != "mixture":
            return Skips(skip)
        return {name: Skips(own) for name, own in zip(names, skip, strict=bool(skip))}
    except UsageError as error:
        raise damaged(f"skip {error.problem}") from None
    except ValueError:
        raise damaged(f"skip has {len(skip)} lists for {len(names)} datasets") from None


def is_mixture(datasets: Sequence[Dataset], options: OrderOptions, state: State | None) -> bool:
    """Return whether the datasets form a mixture.

    Several datasets always do. A single dataset does if it has weights, or if `state` was saved by
    a mixture of one dataset.
    """
    if len(datasets) > 1 or options.weights or state is None:
        return len(datasets) > 1 or bool(options.weights)
    order = _order(state)
    return order.get("kind") == "mixture" and order.get("sources") == 1


def require_datasets(
    state: State, datasets: Sequence[Dataset], names: Sequence[str], options: OrderOptions
) -> None:
    """Raise the error of `load_state_dict` if `state` was saved with different datasets.

    The error calls the datasets by their `names`.
    """
    from dataprep.runtime.loader import order_match

    splits = [dataset.splits.get(split_in(state, dataset) or "") for dataset in datasets]
    known = [
        order_match.OpenSplit(dataset.recipe_id if split is None else split.content_id, name)
        for dataset, split, name in zip(datasets, splits, names, strict=True)
    ]
    order_match.require_datasets(state, known, mixed=is_mixture(datasets, options, state))


def split_in(state: State, dataset: Dataset) -> str | None:
    """Return the name of the split for which `state` was saved, or None if `state` names no split.

    If `dataset` holds that split's data only under another name, return the name in `dataset`.
    """
    from dataprep.runtime.loader.order_match import contents_of

    named = _text(_order(state).get("split"))
    contents = {content[:16] for content in contents_of(state, _order(state))}
    equal = [name for name, s in dataset.splits.items() if s.content_id[:16] in contents]
    return named if named is None or named in equal or not equal else equal[0]
