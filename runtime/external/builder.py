"""`DataLoaderBuilder`: a loader configured by method calls, each for a group of options.

    loader = (DataLoaderBuilder()
        .with_dataset(train)
        .with_batch_size(32)
        .with_workers(8)
        .with_distributed(rank=0, world_size=4)
        .build())

Each method checks its options at once and returns the builder. The method `build` calls
`foreign_loader` for map-style datasets and `foreign_stream_loader` for streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from dataprep.formats.errors import UsageError, require

from ..checks import whole_number
from ..loader.loader import Loader
from ..order.permutation import Order
from ..ranks import data_parallel
from ..types import Collate
from .config import LoaderConfig, StartMethod
from .iterable_loader import foreign_stream_loader
from .map_loader import Buckets, foreign_loader, is_stream

if TYPE_CHECKING:
    from ..collate.schema import OutputSchema

__all__ = ["DataLoaderBuilder"]


class DataLoaderBuilder:
    """Builder of a `Loader` over any map-style dataset or stream.

    By default batches have 32 rows, the order is shuffled with seed 42, there are no worker
    processes, and no sample is dropped. The method `build` may be called several times, and returns
    an independent loader each time.

    >>> builder = DataLoaderBuilder().with_dataset(list(range(5))).with_batch_size(2)
    >>> [batch.tolist() for batch in builder.with_shuffle(False).build()]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self) -> None:
        self._dataset: Any = None
        self._config = LoaderConfig()
        self._distributed = False
        self._rank: int | None = None
        self._world_size: int | None = None
        self._padding: dict[str, Any] = {}
        self._sampler: Iterable[int] | Order | None = None
        self._buckets: Buckets | None = None
        self._identity: str | None = None
        self._purpose = "train"

    def with_dataset(self, dataset: Any, *, identity: str | None = None) -> DataLoaderBuilder:
        """Set the dataset: a list, a torch, Hugging Face or dataprep dataset, or a stream.

        A stream is an iterable dataset of torch or Hugging Face, or a function that returns a new
        iterator. The argument `identity` is a name for the data. A loader refuses a state that was
        saved with a different name.
        """
        require(dataset is not None, "dataset", "must not be None")
        self._dataset, self._identity = dataset, identity
        return self

    def with_batch_size(self, batch_size: int) -> DataLoaderBuilder:
        """Set the number of rows per rank and step."""
        return self._set(batch_size=batch_size)

    def with_workers(
        self,
        num: int | Literal["auto"],
        pin_memory: bool = True,
        *,
        multiprocessing_context: StartMethod | None = None,
        prefetch_factor: int | None = None,
        persistent: bool | None = None,
    ) -> DataLoaderBuilder:
        """Set the number of worker processes and their options.

        With ``"auto"``, `suggest_workers` chooses the number. If `pin_memory` is False, batches are
        never in pinned memory. If it is True, they are in pinned memory if an accelerator is
        present. If `multiprocessing_context` or `persistent` is None, the option gets the default
        of `LoaderConfig`. If `prefetch_factor` is None, the option is not changed.
        """
        self._set(num_workers=0, persistent_workers=None, multiprocessing_context=None)
        self._set(
            num_workers=num, multiprocessing_context=multiprocessing_context,
            persistent_workers=persistent,
            **({} if prefetch_factor is None else {"prefetch_factor": prefetch_factor}),
        )  # fmt: skip
        return self.with_pin_memory(pin_memory)

    def with_num_workers(self, num_workers: int | Literal["auto"]) -> DataLoaderBuilder:
        """Set the number of worker processes; with 0, a thread of this process makes batches."""
        return self._set(num_workers=num_workers)

    def with_pin_memory(self, pin_memory: bool = True) -> DataLoaderBuilder:
        """Put batches into pinned memory if an accelerator is present.

        If `pin_memory` is False, never put batches into pinned memory.
        """
        require(isinstance(pin_memory, bool), "pin_memory", f"must be a bool, got {pin_memory!r}")
        return self._set(pin_memory=None if pin_memory else False)

    def with_shuffle(self, shuffle: bool = True) -> DataLoaderBuilder:
        """Shuffle each epoch; if False, serve samples in stored order."""
        return self._set(shuffle=shuffle)

    def with_drop_last(self, drop_last: bool = True) -> DataLoaderBuilder:
        """Set whether to leave out the last samples of an epoch if they do not fill a global batch.

        If this method is not called, the default applies; see `LoaderConfig.drop_last`.
        """
        return self._set(drop_last=drop_last)

    def with_seed(self, seed: int) -> DataLoaderBuilder:
        """Set the seed of the sample order and of random transforms."""
        return self._set(seed=seed)

    def with_collate_fn(self, collate_fn: Collate | None) -> DataLoaderBuilder:
        """Set the function that turns a list of samples into a batch.

        With None, the function is chosen by the type of the first sample.
        """
        return self._set(collate_fn=collate_fn)

    def with_padding(
        self,
        padding_side: Literal["right", "left"] | None = None,
        *,
        max_length: int | None = None,
        pad_id: int | None = None,
        label_pad_id: int | None = None,
        multiple: int | None = None,
    ) -> DataLoaderBuilder:
        """Set padding options of the collate function.

        An option that is None is not changed. If no collate function is set, a `Padded` is used,
        which pads on the right by default.
        """
        given = {
            "padding_side": padding_side, "max_length": max_length, "pad_id": pad_id,
            "label_pad_id": label_pad_id, "multiple": multiple,
        }  # fmt: skip
        self._padding |= {name: value for name, value in given.items() if value is not None}
        return self

    def with_output_schema(self, schema: OutputSchema | Mapping[str, Any]) -> DataLoaderBuilder:
        """Set dtypes and pad values of fields.

        The argument `schema` is an `OutputSchema`, or a mapping such as ``{"labels": "int32"}``.
        """
        if isinstance(schema, Mapping):
            from ..collate.schema import OutputSchema

            schema = OutputSchema.from_dict(schema)
        self._padding["schema"] = schema
        return self

    def with_sampler(self, sampler: Iterable[int] | Order | None) -> DataLoaderBuilder:
        """Set the order of the samples.

        The argument `sampler` is an iterable of sample numbers, or an `Order`. None restores the
        default order. See runtime/order/sampler.py.
        """
        self._sampler = sampler
        return self

    def with_buckets(self, buckets: Buckets | None = None, **options: Any) -> DataLoaderBuilder:
        """Put samples of similar length into the same batch.

        Pass either a `Buckets` object, or its fields as keyword arguments. Raise `UsageError` if
        both are given, or if a field is unknown.
        """
        known = [field.name for field in fields(Buckets)]
        unknown = sorted(set(options) - set(known))
        require(
            not unknown, "buckets", f"there is no {', '.join(unknown)}, only {', '.join(known)}"
        )
        require(buckets is None or not options, "buckets", "are given, so options mean nothing")
        require(buckets is None or isinstance(buckets, Buckets), "buckets",
                f"must be a Buckets, got {type(buckets).__name__}")  # fmt: skip
        self._buckets = buckets if buckets is not None else Buckets(**options)
        return self

    def with_distributed(
        self, rank: int | None = None, world_size: int | None = None
    ) -> DataLoaderBuilder:
        """Set the data-parallel rank and world size.

        A value that is None is taken from torch.distributed. If both values are given, no process
        group is needed.
        """
        if world_size is not None and rank is not None:
            world_size = whole_number("world_size", world_size, 1)
            rank = whole_number("rank", rank)
            require(rank < world_size, "rank", f"{rank} is not in 0 .. {world_size - 1}")
        self._distributed, self._rank, self._world_size = True, rank, world_size
        return self

    def with_purpose(self, purpose: str) -> DataLoaderBuilder:
        """Set the purpose, such as ``"train"`` or ``"val"``.

        Each purpose has an independent shuffled order. A stream has only one order per seed, so
        `build` raises `UsageError` for a shuffled stream whose purpose is not ``"train"``.
        """
        self._purpose = purpose
        return self

    def with_config(self, config: LoaderConfig) -> DataLoaderBuilder:
        """Set all options by a `LoaderConfig`.

        Later calls of other methods change a copy of `config`.
        """
        require(isinstance(config, LoaderConfig), "config",
                f"must be a LoaderConfig, got {type(config).__name__}")  # fmt: skip
        self._config = config
        return self

    def build(self) -> Any:
        """Return the loader.

        Raise `UsageError` if no dataset was set, or if the options do not fit the dataset. See
        `foreign_loader` for map-style datasets and `foreign_stream_loader` for streams.
        """
        return self._build(*data_parallel(self._distributed, self._rank, self._world_size))

    def build_ranks(self, world_size: int | None = None) -> list[Any]:
        """Return a list of the loaders of all ranks, all in this process, for tests.

        If `world_size` is None, the size given to `with_distributed` is used, or 1.

        >>> ranks = DataLoaderBuilder().with_dataset(list(range(8))).with_batch_size(2)
        >>> both = ranks.with_shuffle(False).with_drop_last().build_ranks(2)
        >>> [[batch.tolist() for batch in loader] for loader in both]
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
        """
        size = (self._world_size or 1) if world_size is None else world_size
        size = whole_number("world_size", size, 1)
        return [self._build(rank, size) for rank in range(size)]

    def _build(self, rank: int, world_size: int) -> Loader:
        if self._dataset is None:
            raise UsageError(
                "there is nothing to serve", where="dataset", remedy="Call with_dataset(dataset)."
            )
        if is_stream(self._dataset):
            return self._build_stream(rank, world_size)
        return foreign_loader(
            self._dataset, self._config, collate=self._collate(), sampler=self._sampler,
            buckets=self._buckets, identity=self._identity, purpose=self._purpose,
            dp_rank=rank, dp_size=world_size,
        )  # fmt: skip

    def _build_stream(self, rank: int, world_size: int) -> Loader:
        require(self._sampler is None, "sampler", "a stream has no samples by number")
        require(self._buckets is None, "buckets", "a stream has no lengths to sort by")
        require(self._purpose == "train" or not self._config.shuffle, "purpose",
                "a shuffled stream has one order for each seed: use another seed")  # fmt: skip
        return foreign_stream_loader(
            self._dataset, self._config, collate=self._collate(), identity=self._identity,
            dp_rank=rank, dp_size=world_size,
        )  # fmt: skip

    def _collate(self) -> Collate | None:
        """Return the collate function with the padding options and the schema applied.

        Return None if neither a collate function nor padding is set. Raise `UsageError` if the
        collate function does not have one of the options.
        """
        collate = self._config.collate_fn
        if not self._padding:
            return collate
        if collate is None:
            from ..collate.padded import Padded

            return cast("Collate", Padded(**self._padding))
        known = {field.name for field in fields(collate)} if is_dataclass(collate) else set()
        unknown = sorted(set(self._padding) - known)
        if unknown or isinstance(collate, type):
            raise UsageError(
                f"{type(collate).__name__} has no {', '.join(unknown)}", where="collate_fn",
                remedy="Pad in the collate function, or leave out with_padding and "
                "with_output_schema.",
            )  # fmt: skip
        return replace(collate, **self._padding)  # type: ignore[type-var]

    def _set(self, **options: Any) -> DataLoaderBuilder:
        self._config = replace(self._config, **options)
        return self
