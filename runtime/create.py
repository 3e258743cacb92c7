"""`create_loader`: from a dataset directory to a seeded torch DataLoader.

The loader is a real `torch.utils.data.DataLoader` over a map-style dataset and a batch sampler, so
any tool for DataLoaders works with it. The batches are determined by (dataset, split, seed, epoch,
row options, global batch) alone, and do not depend on the number of workers or ranks.

With `num_workers=0`, the default, a thread of the calling process makes the batches. This is the
fastest way, because making a batch costs less than sending it from another process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Never, get_args

import torch

from dataprep.formats.errors import UsageError
from dataprep.formats.read.dataset import Split

from .checks import flag_or_none
from .loader.batch_sampler import End
from .loader.loader import Loader
from .loader.serve import PREFETCH, Shuffle, build_order, require_seed, serve
from .opening import DatasetLike, open_data
from .order.skips import Skips, skips_of
from .ranks import data_parallel
from .specs import BuiltRows, Mixture, RowKind, RowSpec, open_rows, row_spec
from .types import SampleDataset, Transform

if TYPE_CHECKING:
    from .mixture.dataset import MixedDataset

__all__ = ["create_loader"]

_NAMES_IN_SPECS = {"pack": "algorithm", "weigh_by": "by"}

Skip = Iterable[int] | Skips | Mapping[Any, Iterable[int] | Skips | None] | None


def create_loader(  # noqa: PLR0917  (the names and the order that callers know)
    dataset_dir: DatasetLike | Mixture | Mapping[Any, float],
    split: str,
    batch_size: int | None = None,
    num_workers: int = 0,
    distributed: bool = False,
    epoch: int = 0,
    drop_last: bool | None = None,
    pin_memory: bool | None = None,
    *,
    rows: RowSpec | BuiltRows | RowKind | None = None,
    seq_len: int | None = None,
    dtype: torch.dtype | None = None,
    transform: Transform | None = None,
    seed: int | None = None,
    shuffle: Shuffle | bool | None = None,
    skip: Skip = (),
    dp_rank: int | None = None,
    dp_size: int | None = None,
    prefetch: int = PREFETCH,
    mock: bool = False,
    multiprocessing_context: str | None = None,
    **unknown: Never,
) -> Loader:
    """Return a loader of one split, whose rows are tokens, embeddings or pairs.

    A batch of tokens is a dict of tensors [batch_size, seq_len], int64 or `dtype`. For embeddings
    and pairs see `EmbeddingDataset` and `PairDataset`.

    Arguments:
        dataset_dir: a directory made by `dataprep build`, or what `open_dataset`, `open_arrays` or
            `open_pairs` returned. Several datasets of tokens are given as a `Mixture`, or as a dict
            of weights: ``{"prose": 0.7, "code": 0.3}``.
        split: the name of a split of the build: ``"train"``, ``"val"``, ``"test"``, ...
        batch_size: rows per step and rank; the global batch is `batch_size` x `dp_size`. None: 32.
            If `drop_last` would then leave out all samples, the default is the largest size with
            which they fill one global batch (with a warning).
        num_workers: number of worker processes, which stay alive between epochs. They never change
            the batches. Rows of tokens are made more slowly with them.
        distributed: take `dp_rank` and `dp_size` from torch.distributed, which must be initialised.
        epoch: the first epoch of the loader. Each iteration over the loader advances it by one; see
            `Loader.set_epoch`.
        drop_last: leave out the samples that do not fill the last global batch. None: True for
            ``"train"``, False otherwise. With False, a single rank gets a shorter last batch. With
            several ranks, the last batch of each is filled up to `batch_size`, so that all ranks
            make the same number of steps. Every batch then has a bool `sample_mask` [batch_size],
            which is False in the rows that only fill the batch (their labels are -100).
        pin_memory: use page-locked memory for batches, to copy them faster to an accelerator. None:
            only if there is an accelerator.
        rows: what one row holds: a spec (`Windows`, `Packed`, `Documents`, `Preferences`,
            `Embeddings`, `Pairs`), or the name of a spec with its defaults: ``"windows"``,
            ``"packed"``, ``"documents"``, or for preferences ``"pairs"``, ``"labels"``,
            ``"groups"``. None: what the split was built for, which is windows for texts and packed
            rows for conversations.
        seq_len: number of tokens per row, a shortcut for the `seq_len` of `rows`.
        dtype: type of ids and labels, torch.int32 or torch.int64, a shortcut for the `dtype` of
            `rows`. None: torch.int64. Batches of int32 have half the bytes. Embedding layers take
            them, but losses of torch need int64 labels: ``batch["labels"].long()``, after the batch
            is on its device.
        transform: a function that takes a batch and an array of seeds, uint64 [rows], one for each
            row, and returns the changed batch; see `TransformedDataset`. `MaskedLM(...).hide` is
            an example, for rows with ``labels="unshifted"``.
        seed: seed of the shuffle, and of random choices in rows. Orders of different seeds, epochs
            and datasets are independent. None: 0; for pairs the seed in their config.json.
        shuffle: a new order each epoch (True, ``"full"``), or the stored order (False). None: True
            for ``"train"`` only. ``"blocks"`` reads pieces of 4 MiB and shuffles within 1 GiB, for
            data larger than memory.
        skip: numbers of samples to leave out. The order of all other samples does not change. The
            numbers are part of the state. For a mixture, ``{"code": [5, 17]}``: the numbers for
            each dataset.
        dp_rank, dp_size: rank of this process, and number of data-parallel ranks. They take
            precedence over `distributed`. Tensor- and pipeline-parallel peers must pass the same
            rank, so that they get the same rows.
        prefetch: number of batches made ahead of time, by a thread or by all worker processes
            together. With 0, each batch is made when it is requested.
        mock: return batches of the same shapes from memory, to measure what loading costs.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"`` for the workers.

    Differences from other loaders with this signature: any split may be named; `pin_memory` is on
    only where an accelerator can use it; `distributed` divides one order among the ranks instead of
    wrapping the dataset in a DistributedSampler (which repeats samples so that all ranks have the
    same number); `epoch` advances with each iteration over the loader.

    Raise `UsageError` for invalid arguments, `InputError` for a split that does not fill one row,
    and the errors of `open_dataset`. The call takes as long as opening the dataset. The first time,
    packed rows also read the lengths of all documents.

        >>> loader = create_loader("shards", "train", 32, seq_len=2048)     # doctest: +SKIP
        >>> for batch in loader:                                            # doctest: +SKIP
        ...     loss = model(batch["input_ids"], labels=batch["labels"])
    """
    if unknown:
        raise _unknown_argument(next(iter(unknown)))
    rank, size = data_parallel(distributed, dp_rank, dp_size)
    train, dropped = split == "train", flag_or_none("drop_last", drop_last)
    end = _end(train if dropped is None else dropped, size)
    spec = row_spec(rows, seq_len, dtype)
    given_seed = None if seed is None else require_seed(seed)
    make_loader: Callable[..., Loader] = partial(
        serve, batch_size=batch_size, epoch=epoch, end=end, dp_rank=rank, dp_size=size,
        num_workers=num_workers, prefetch=prefetch, pin_memory=pin_memory, mock=mock,
        multiprocessing_context=multiprocessing_context,
    )  # fmt: skip
    if transform is not None:
        make_loader = partial(_transformed, make_loader, transform, given_seed)
    shuffle = train if shuffle is None else shuffle
    if isinstance(dataset_dir, Mapping):
        dataset_dir = Mixture(dataset_dir)
    if isinstance(dataset_dir, Mixture):
        from .mixture.loader import mixed_loader

        return mixed_loader(
            make_loader, partial(_open_split, spec, sample_mask=end == "pad"),
            dataset_dir.weights, split, seed=given_seed or 0, shuffle=shuffle, by=dataset_dir.by,
            source_ids=dataset_dir.source_ids, skip=_skips_by_source(skip),
            weights_changed=dataset_dir.weights_changed,
            mixed_tokenizers=dataset_dir.mixed_tokenizers,
        )  # fmt: skip
    if isinstance(skip, Mapping):
        raise UsageError(
            "is for several datasets with weights", where="skip",
            remedy='Pass the samples alone, or give weights: {"prose": 0.7, "code": 0.3}.',
        )  # fmt: skip
    data = open_data(dataset_dir)
    samples = open_rows(data, split, spec, seed=given_seed, sample_mask=end == "pad")
    _warn_of_unread(samples)
    own_seed = _seed_of(samples, given_seed)
    order, definition = build_order(samples, samples.split, seed=own_seed, shuffle=shuffle)
    return make_loader(samples, order=order, definition=definition, skip=skip)


def _unknown_argument(name: str) -> TypeError:
    """Return the error for the unknown argument `name`.

    Its message names the specs that have an option of this name. The option `io` is one of
    `open_dataset`.
    """
    option = _NAMES_IN_SPECS.get(name, name)
    given = {f"rows={spec.__name__}": spec for spec in get_args(RowSpec)}
    given |= {"dataset_dir=Mixture": Mixture}
    calls = [
        f"{call}({'weights, ' if spec is Mixture else ''}{option}=...)"
        for call, spec in given.items() if option in {field.name for field in fields(spec)}
    ]  # fmt: skip
    if name == "io":
        calls = ["dataset_dir=open_dataset(path, io=...)"]
    hint = f"; pass {' or '.join(calls)}" if calls else ""
    return TypeError(f"create_loader() got an unexpected keyword argument {name!r}{hint}")


def _transformed(
    make_loader: Callable[..., Loader],
    transform: Transform,
    seed: int | None,
    samples: SampleDataset,
    *,
    definition: Mapping[str, Any],
    **options: Any,
) -> Loader:
    """Return a loader made by `make_loader`, whose batches are passed through `transform`.

    If `seed` is None, use the seed of `samples` if that is a `PairDataset`, and 0 otherwise.
    """
    from .loader.transformed import TransformedDataset

    data = TransformedDataset(samples, transform, seed=_seed_of(samples, seed))
    return make_loader(data, definition={**definition, **data.transformation}, **options)


def _seed_of(samples: SampleDataset, given: int | None) -> int:
    """Return the seed of `samples` if they have one, as pairs do; otherwise `given`, or 0."""
    own: int = getattr(samples, "seed", given or 0)
    return own


def _open_split(spec: Any, split: Split, *, sample_mask: bool) -> MixedDataset:
    samples: MixedDataset = spec.open(split, sample_mask=sample_mask)
    _warn_of_unread(samples)
    return samples


def _warn_of_unread(samples: Any) -> None:
    """Warn about tokens that are in no window because `stride` is longer than a window."""
    if getattr(samples, "unread_tokens", 0):
        split = samples.split
        warnings.warn(
            f"{samples.unread_tokens:,} of the {split.tokens:,} tokens of split {split.name} are "
            f"never read: windows of {samples.seq_len:,} tokens begin {samples.stride:,} apart; "
            "without stride they stand side by side", stacklevel=3,
        )  # fmt: skip


def _skips_by_source(skip: Skip) -> Mapping[Any, Iterable[int] | Skips | None]:
    """Return a mapping from datasets of a mixture to their skip lists.

    Raise `UsageError` if `skip` has samples but does not name their datasets.
    """
    if isinstance(skip, Mapping):
        return skip
    if len(skips_of(skip)):
        raise UsageError(
            "must say which dataset the samples are of", where="skip",
            remedy='Pass skip={"dataset": [samples]}.',
        )  # fmt: skip
    return {}


def _end(drop_last: bool, dp_size: int) -> End:
    if drop_last:
        return "drop"
    return "pad" if dp_size > 1 else "partial"
