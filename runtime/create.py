"""`create_loader`: a dataset directory in, a seeded torch DataLoader out.

The loader is a real `torch.utils.data.DataLoader` over a map-style dataset and a batch sampler, so
whatever works with those works with it. What is served is fixed by (dataset, split, seed, epoch,
row options, global batch) and by nothing else: not the worker count, not the number of ranks.

With `num_workers=0`, the default, a thread of the calling process makes the batches, which is the
fastest: making one costs less than sending it from another process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from dataprep.formats.errors import UsageError, naming_dataset
from dataprep.formats.read.arrays import ArrayData
from dataprep.formats.read.dataset import Dataset, Split

from .arrays.opening import opened_any
from .arrays.pair_data import PairData
from .arrays.pairs import Applied, PairDataset
from .checks import flag, flag_or_none
from .create_arrays import array_loader, refuse_array_options
from .loader.batch_sampler import End
from .loader.loader import Loader
from .loader.serve import Shuffle, build_order, require_seed, serve
from .mixture.dataset import MixedDataset
from .mixture.mixture import By
from .order.skips import Skips, skips_of
from .ranks import data_parallel
from .rows.packing import Algorithm
from .rows.windows import WindowDataset
from .specs import Overlong, Rows, row_maker
from .types import Labels, SampleDataset, Transform

__all__ = ["create_loader"]

Place = str | Path | Dataset | ArrayData | PairData
Skip = Iterable[int] | Skips | Mapping[Any, Iterable[int] | Skips | None] | None


def create_loader(  # noqa: PLR0917  (the names and the order that callers know)
    dataset_dir: Place | Mapping[str, float],
    split: str,
    batch_size: int | None = None,
    num_workers: int = 0,
    distributed: bool = False,
    epoch: int = 0,
    drop_last: bool | None = None,
    pin_memory: bool | None = None,
    *,
    rows: Rows | None = None,
    seq_len: int | None = None,
    stride: int | None = None,
    pack: Algorithm | None = None,
    overlong: Overlong | None = None,
    labels: Labels | None = "shifted",
    position_ids: bool = False,
    doc_ids: bool = False,
    cu_seqlens: bool | int = False,
    transform: Transform | None = None,
    seed: int | None = None,
    shuffle: Shuffle | bool | None = None,
    skip: Skip = (),
    weigh_by: By = "samples",
    source_ids: bool = False,
    weights_changed: bool = False,
    mixed_tokenizers: bool = False,
    dp_rank: int | None = None,
    dp_size: int | None = None,
    prefetch: int = 2,
    io: Literal["mmap", "pread"] | None = None,
    mock: bool = False,
    multiprocessing_context: str | None = None,
    fields: Sequence[str] | None = None,
    raw: bool | None = None,
    dtype: torch.dtype | None = None,
    clusters: Sequence[int] | None = None,
    curriculum: Applied | None = None,
    preload: bool | None = None,
    device: str | torch.device | None = None,
) -> Loader:
    """A loader of what `dataset_dir` holds: rows of tokens, of embeddings, or pairs.

    Rows of tokens are dicts of int64 tensors [batch_size, seq_len]; for the others see
    `EmbeddingDataset` and `PairDataset`.

    Arguments:
        dataset_dir: what `dataprep build` made, or what `open_dataset`, `open_arrays` and
            `open_pairs` give. Or several of tokens with a weight each, as ``{"prose": 0.7, "code":
            0.3}``: see below.
        split: ``"train"``, ``"val"``, ``"test"`` or whatever names the build gave.
        batch_size: rows per step and rank; the global batch is `batch_size` x `dp_size`. None: 32,
            as in `LoaderConfig`, which is 0.5 MB a batch of windows; or with a warning as many as
            fill one global batch, where the samples are fewer and `drop_last` would leave out all
            of them. What suits a run follows from its model and its accelerator.
        num_workers: worker processes, kept alive between epochs. They never change what is served,
            and for rows of tokens they make it slower.
        distributed: take `dp_rank` and `dp_size` from torch.distributed, which must be initialised.
        epoch: the first epoch to serve. Every pass moves on by one; see `Loader` and `set_epoch`.
        drop_last: leave out the samples that do not fill the last global batch. None: True for
            ``"train"``, False otherwise. If False, a single rank gets a last, shorter batch. Each
            of several ranks gets its last batch filled up to `batch_size`, so that all make equally
            many steps, and with every batch a bool `sample_mask` [batch_size], False in the rows
            that only fill (whose labels are -100).
        pin_memory: page-locked batches, for copies to an accelerator. None: where there is one.
        rows: ``"windows"`` of the stream of tokens, documents end to end; ``"packed"``: whole
            documents side by side, padded; ``"documents"``: one document a row, padded to the
            longest of the batch and cut at `seq_len`. Of preferences ``"pairs"``, ``"labels"`` or
            ``"groups"``, whichever they are: see `PreferenceDataset`. None: what the build is for,
            which is windows of texts, and packed rows of conversations: windows would cut them
            anywhere.
        seq_len: tokens per row; of documents and preferences, at most. None: 1,024, or of
            conversations and preferences the limit that they were built with if it is higher, as
            longer ones than `seq_len` would be refused; of windows, with a warning, as much as the
            split fills where that is less.
        stride: of windows: tokens from the start of one to that of the next. None: `seq_len`. One
            that leaves out tokens between them warns.
        pack: of packed rows: ``"first-fit"`` (the default) or ``"best-fit"`` decreasing (that of
            conversations).
        overlong: documents over `seq_len`. Of packed rows: ``"split"`` (the default),
            ``"truncate"``, ``"drop"`` or ``"error"``. Of documents: ``"truncate"`` (the default),
            ``"truncate-left"`` or ``"error"``. Of preferences: ``"error"``, or ``"truncate-left"``,
            which takes from the prompt alone. The default for conversations is ``"error"``: without
            its end, or its beginning, one teaches something else.
        labels: ``"shifted"`` (label j is the token after input j), ``"unshifted"`` (equal to the
            inputs, for models that shift inside), or None for no labels.
        position_ids: add int64 `position_ids` [batch_size, seq_len], from 0 in every document.
        doc_ids: add int64 `doc_ids` [batch_size, seq_len], the document of each token in its split.
        cu_seqlens: add int32 `cu_seqlens` of constant length and `max_seqlen`, for attention of
            variable length; a number is the most documents that a row may hold, padding counted
            as one; of packed rows, one that is too small is refused at once.
        transform: a function of a batch and of a seed for each of its rows, uint64 [rows], which
            returns the batch; see `TransformedDataset`. `MaskedLM(...).hide` is one, for rows with
            ``labels="unshifted"``.
        seed: of the shuffle, and of those of rows; orders of different seeds, epochs and datasets
            have nothing in common. None: 0; of pairs the seed in their config.json.
        shuffle: a new order each epoch, or the stored order. None: True for ``"train"`` only.
            ``"blocks"`` reads pieces of 4 MiB and shuffles within 1 GiB, for data larger than
            memory.
        skip: samples to leave out, None for none; the order of all others stays as it is. They are
            part of the state. Of several datasets, ``{"code": [5, 17]}``: each has its own numbers.
        weigh_by: what the weights of several datasets are shares of: ``"samples"``, or ``"tokens"``
            (by the mean tokens of the samples of each, padding not counted).
        source_ids: of several datasets: add int64 `source` [batch_size], the number of the dataset
            that each row is from, in the order given; -1 in rows that only fill.
        weights_changed: of several datasets: take also the state of a run with other weights, or
            with one dataset more or less, and go on from it: see below. False: refuse it.
        mixed_tokenizers: of several datasets: take also builds with other tokenizers, or of which
            one has EOS, BOS or parsed special text and another has not. False: refuse them.
        dp_rank, dp_size: this process among the data-parallel ones; they overrule `distributed`.
            Tensor- and pipeline-parallel peers pass the same rank, and so get the same rows.
        prefetch: batches made ahead of time, by a thread once the trainer leaves it time to, or by
            the worker processes together; 0 makes each when it is asked for.
        io: ``"mmap"``, or ``"pread"`` for file systems where a map is a hazard: an error of the
            storage, or a file that is cut off, is then an exception, and not the end of the process
            (SIGBUS). None: ``"pread"`` on network file systems and FUSE, else ``"mmap"``.
        mock: serve the same shapes from memory, to see what loading costs.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"`` for the workers.
        fields, raw, dtype: of embeddings: see `EmbeddingDataset`.
        clusters, curriculum, preload, device: of pairs: see `PairDataset`. `seed` is also that of
            the steering variants.

    `rows` to `cu_seqlens`, `weigh_by` and `source_ids` are for tokens.

    A mixture draws from its datasets in the exact proportion of the weights (those of the period,
    to which `whole_weights` rounds what does not fit one): no prefix is off by a
    whole sample. Each pass over a dataset is a new order of it. An epoch has as many samples as all
    together. What was drawn of each is `realised(loader)` of runtime/mixture/loader.py. Samples to
    skip are left out of every pass over their dataset; which dataset stands at which place stays
    as it is.

    A run that goes on with `weights_changed` begins the schedule of its weights where the state
    was taken, and every dataset goes on where it stands: no sample of it is lost or repeated within
    a pass. The epoch goes on at its position, or ends if it is not as long as that now. From then
    on the state is one of the new weights.

    Where the positional arguments differ from other loaders of this signature: any split may be
    named; `pin_memory` is on only where something can use it; `distributed` splits the one order
    among the ranks, rather than wrapping the dataset in a DistributedSampler (which repeats samples
    to even the ranks out); `epoch` moves on by itself.

    Raises `UsageError` for arguments that cannot be met, `InputError` for a split that does not
    fill one row, and what `open_dataset` raises. Costs the opening of the dataset, and for packed
    rows, the first time, the lengths of all documents.

        >>> loader = create_loader("shards", "train", 32, seq_len=2048)     # doctest: +SKIP
        >>> for batch in loader:                                            # doctest: +SKIP
        ...     loss = model(batch["input_ids"], labels=batch["labels"])
    """
    train = split == "train"
    rank, size = data_parallel(distributed, dp_rank, dp_size)
    dropped = flag_or_none("drop_last", drop_last)
    end = _end(train if dropped is None else dropped, size)
    make = partial(_made, row_maker(
        rows, stride=stride, pack=pack, overlong=overlong, seq_len=seq_len, labels=labels,
        position_ids=position_ids, doc_ids=doc_ids, cu_seqlens=cu_seqlens, sample_mask=end == "pad",
    ))  # fmt: skip
    served: Callable[..., Loader] = partial(
        serve, batch_size=batch_size, epoch=epoch, end=end, dp_rank=rank, dp_size=size,
        num_workers=num_workers, prefetch=prefetch, pin_memory=pin_memory, mock=mock,
        multiprocessing_context=multiprocessing_context,
    )  # fmt: skip
    kind: Shuffle | bool = train if shuffle is None else shuffle
    source_ids = flag("source_ids", source_ids)
    given_seed = None if seed is None else require_seed(seed)
    seed = given_seed or 0
    if transform is not None:
        served = partial(_transformed, served, transform, given_seed)
    weights_changed = flag("weights_changed", weights_changed)
    mixed_tokenizers = flag("mixed_tokenizers", mixed_tokenizers)
    options = {
        "fields": fields, "raw": raw, "dtype": dtype, "clusters": clusters,
        "curriculum": curriculum, "preload": preload, "device": device,
    }  # fmt: skip
    if isinstance(dataset_dir, Mapping):
        refuse_array_options(options)
        from .mixture.loader import mixed_loader

        return mixed_loader(
            served, make, dataset_dir, split, seed=seed, shuffle=kind, io=io, weigh_by=weigh_by,
            source_ids=source_ids, skip=_of_sources(skip), weights_changed=weights_changed,
            mixed_tokenizers=mixed_tokenizers,
        )  # fmt: skip
    _refuse_mixture_options(
        weigh_by=weigh_by != "samples", source_ids=source_ids, weights_changed=weights_changed,
        mixed_tokenizers=mixed_tokenizers, skip=isinstance(skip, Mapping),
    )  # fmt: skip
    data = opened_any(dataset_dir, io)
    if not isinstance(data, Dataset):
        _refuse_token_options(
            rows=rows is not None, seq_len=seq_len is not None, stride=stride is not None,
            pack=pack is not None, overlong=overlong is not None, labels=labels != "shifted",
            position_ids=position_ids, doc_ids=doc_ids, cu_seqlens=bool(cu_seqlens),
        )  # fmt: skip
        with naming_dataset((data.data if isinstance(data, PairData) else data).path):
            return array_loader(
                partial(served, skip=skip), data, split, seed=given_seed, shuffle=kind,
                sample_mask=end == "pad", options=options,
            )  # fmt: skip
    refuse_array_options(options)
    part = data.split(split)
    with naming_dataset(data.path):
        samples = make(part)
    order, definition = build_order(samples, part, seed=seed, shuffle=kind)
    return served(samples, order=order, definition=definition, skip=skip)


def _transformed(
    served: Callable[..., Loader],
    transform: Transform,
    seed: int | None,
    samples: SampleDataset,
    *,
    definition: Mapping[str, Any],
    **options: Any,
) -> Loader:
    """Return `served` of the samples after `transform`; `seed` None: that of pairs, else 0."""
    from .loader.transformed import TransformedDataset

    if seed is None:
        seed = samples.seed if isinstance(samples, PairDataset) else 0
    data = TransformedDataset(samples, transform, seed=seed)
    return served(data, definition={**definition, **data.transformation}, **options)


def _made(make: Callable[[Split], MixedDataset], split: Split) -> MixedDataset:
    """The rows of a split, with a warning where windows stand far apart."""
    samples = make(split)
    if isinstance(samples, WindowDataset) and samples.unread_tokens:
        warnings.warn(
            f"{samples.unread_tokens:,} of the {split.tokens:,} tokens of split {split.name} are "
            f"never read: windows of {samples.seq_len:,} tokens begin {samples.stride:,} apart; "
            "without stride they stand side by side", stacklevel=3,
        )  # fmt: skip
    return samples


def _of_sources(skip: Skip) -> Mapping[Any, Iterable[int] | Skips | None]:
    """The skip lists of several datasets."""
    if isinstance(skip, Mapping):
        return skip
    if len(skips_of(skip)):
        raise UsageError(
            "must say which dataset the samples are of", where="skip",
            remedy='Pass skip={"dataset": [samples]}.',
        )  # fmt: skip
    return {}


def _refuse_mixture_options(**given: bool) -> None:
    for name, value in given.items():
        if value:
            instead = "Pass the samples alone" if name == "skip" else "Leave it out"
            raise UsageError(
                "is for several datasets with weights",
                where=name,
                remedy=f'{instead}, or give weights: {{"prose": 0.7, "code": 0.3}}.',
            )


def _refuse_token_options(**given: bool) -> None:
    for name, value in given.items():
        if value:
            raise UsageError("is for datasets of tokens", where=name)


def _end(drop_last: bool, dp_size: int) -> End:
    if drop_last:
        return "drop"
    return "pad" if dp_size > 1 else "partial"
