"""Data modules: objects that give a trainer its loaders.

`DataModule` is the interface. Any class that has its two methods implements it, for example a data
module of Lightning. `UniversalDataModule` is an implementation for data of any kind. A trainer that
calls its `state_dict` and `load_state_dict` can resume within an epoch.

Lightning accepts loaders of any class, but a data module must be a `LightningDataModule`. So derive
a class from both:

    class Data(UniversalDataModule, lightning.LightningDataModule): ...

Pass `use_distributed_sampler=False` to Lightning's Trainer, and `dp_rank` and `dp_size` to the data
module. Without validation data also pass `limit_val_batches=0`, because the Trainer refuses None as
a validation loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

from dataprep.formats.errors import (
    IncompatibleError,
    UsageError,
    naming_dataset,
    require,
)
from dataprep.formats.read.arrays import ArrayData, ArraySplit
from dataprep.formats.read.dataset import Dataset, Split

from ..arrays.pair_data import PairData
from ..loader.loader import Loader
from ..opening import open_data
from ..ranks import data_parallel
from ..specs import BuiltRows, RowKind, RowSpec, row_spec, spec_of, with_options
from ..types import BatchDataset, Collate
from .config import LoaderConfig
from .iterable_loader import foreign_stream_loader
from .map_loader import Buckets, foreign_loader, is_stream, makes_batches
from .random_split import Part, check_fraction, split_parts
from .task import TaskSpec
from .task_data import (
    TEXT_TASK_TYPES,
    check_masked_options,
    labels_for,
    require_form,
    require_task,
    tokenized,
    with_hidden_tokens,
)

__all__ = ["DataModule", "UniversalDataModule", "loaders_of"]

_KIND = "dataprep data module state"
_BUILT = (Dataset, ArrayData, PairData)
_BUILT_SPLITS = (Split, ArraySplit)
_VAL_NAMES = ("val", "validation", "valid", "dev")


@runtime_checkable
class DataModule(Protocol):
    """Interface of a data module.

    >>> class Mine:
    ...     def train_dataloader(self): return [1]
    ...     def val_dataloader(self): return None
    >>> isinstance(Mine(), DataModule), isinstance([], DataModule)
    (True, False)
    """

    def train_dataloader(self) -> Any:
        """Return an iterable of batches to train on."""
        ...

    def val_dataloader(self) -> Any:
        """Return an iterable of batches to validate on, or None if there are none."""
        ...


class _Splits(NamedTuple):
    """Data of the train, validation and test loaders.

    A field is None if there is no data for its loader. Validation and test splits of a built
    dataset are opened later, together with their loaders.
    """

    train: Any
    val: Any
    test: Any


class UniversalDataModule:
    """Train, validation and test loaders over data of any kind.

    Arguments:
        train_data: a map-style dataset (a list of tensors or dicts, a torch or Hugging Face
            dataset), an iterable dataset (a stream), a mapping from split names to datasets (such
            as a `DatasetDict`), or a dataset that `dataprep build` made, open or as a path. Samples
            that are texts, or have a field `text` and no ids, are tokenized if a text task and a
            tokenizer are given. Empty texts in lists and Hugging Face datasets are then left out,
            with a warning. Validation and test splits of a build are opened when their loaders are
            made.
        val_data, test_data: data of the same kinds, used in full.
        task_spec: the task. It chooses the collate function in `collator_registry`.
        tokenizer: the tokenizer of texts. It also gives the pad id to the collate function of a
            text task.
        data_collator: a collate function, used instead of a collator from the registry.
        collator_name, collator_options: the name of a collator in the registry, and its options.
        collator_registry: a `CollatorRegistry`; None: the registry that this process shares.
        batch_size, num_workers, seed: see `LoaderConfig`.
        val_split: the fraction of `train_data` that is held out for validation, chosen at random by
            `seed`. Ignored if there is validation data, and for streams and built datasets.
        config: all other options; `batch_size`, `num_workers` and `seed` override it.
        buckets: options to put training samples of similar length into the same batch.
        rows: the rows of a built dataset: a spec such as `Packed(2048)` or a name, as for
            `create_loader`, or a dict of options such as ``{"rows": "packed", "seq_len": 64}``. A
            task needs unshifted labels. With a task, they are the default of rows that are given by
            a name or by a dict. A spec must request them: ``Packed(2048, labels="unshifted")``.
        identity: a name for the data, stored in the state.
        distributed: get `dp_rank` and `dp_size` from torch.distributed.
        dp_rank, dp_size: rank and number of the data-parallel processes.

    There is only one train loader. Each pass over it is a new epoch, whose order is a function of
    (seed, epoch). Validation and test data are served in stored order, every sample exactly once.

    Raises `UsageError` for a `val_split` outside 0 <= x < 1, and for arguments that contradict each
    other or the data.

    >>> module = UniversalDataModule(list(range(10)), batch_size=4, val_split=0.2)
    >>> sum(len(batch) for batch in module.train_dataloader()), len(module.val_dataloader())
    (8, 1)
    """

    def __init__(
        self,
        train_data: Any,
        val_data: Any = None,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,
        data_collator: Collate | None = None,
        *,
        test_data: Any = None,
        collator_name: str | None = None,
        collator_options: Mapping[str, Any] | None = None,
        collator_registry: Any = None,
        batch_size: int | None = None,
        val_split: float = 0.2,
        num_workers: int | Literal["auto"] | None = None,
        seed: int | None = None,
        config: LoaderConfig | None = None,
        buckets: Buckets | None = None,
        rows: RowSpec | RowKind | Mapping[str, Any] | None = None,
        identity: str | None = None,
        distributed: bool = False,
        dp_rank: int | None = None,
        dp_size: int | None = None,
    ) -> None:
        super().__init__()  # of the trainer's data module, if a class derives from both
        check_fraction("val_split", val_split)
        require(train_data is not None, "train_data", "must not be None")
        require(not isinstance(task_spec, str), "task_spec",
                f"is a name; use TaskSpec.preset({task_spec!r})")  # fmt: skip
        given: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "seed": seed}
        given = {name: value for name, value in given.items() if value is not None}
        self.config = replace(config or LoaderConfig(), **given)
        self.val_split, self.buckets, self.identity = val_split, buckets, identity
        self.dp_rank, self.dp_size = data_parallel(distributed, dp_rank, dp_size)
        self.task_spec, self.tokenizer = task_spec, tokenizer
        self._rows = spec_of(rows) if isinstance(rows, Mapping) else row_spec(rows)
        self._labels_given = isinstance(rows, Mapping) and "labels" in rows
        self._labels_of_task = not (self._labels_given or isinstance(rows, RowSpec))
        self._built, self._hiding = False, cast("Collate | None", None)
        self._tokenizes = (
            tokenizer is not None
            and data_collator is None
            and self.config.collate_fn is None
            and getattr(task_spec, "modality", None) == "text"
            and getattr(task_spec, "task_type", None) in TEXT_TASK_TYPES
        )
        self._data = self._divide(train_data, val_data, test_data)
        require(not rows or self._built, "rows", "are options of datasets that were built; of data "
                "like this collator_options say how rows are cut")  # fmt: skip
        self._collate = self._choose_collate(
            data_collator, collator_name, dict(collator_options or {}), collator_registry
        )
        self._loaders: dict[str, Loader] = {}

    @property
    def seed(self) -> int:
        """Return the seed of the sample order, the validation split and random transforms."""
        return self.config.seed

    def train_dataloader(self) -> Any:
        """Return the train loader; every call returns the same object."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Return the validation loader, or None if there is no validation data."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Return the test loader, or None if there is no test data."""
        return self._loader("test")

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass over the train loader serve `epoch`."""
        self.train_dataloader().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data for a checkpoint, as a dict of JSON values."""
        state = self.train_dataloader().state_dict()
        return {"kind": _KIND, "version": 1, "val_split": self._held_out(), "train": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next training pass continue where `state` was saved.

        Raise `UsageError` if `state` is not the state of a data module, and `IncompatibleError` if
        data, seed or `val_split` differ.
        """
        if not isinstance(state, Mapping) or state.get("kind") != _KIND or "train" not in state:
            raise UsageError("is not the state of a data module", where="state",
                             remedy="Pass what state_dict() gave.")  # fmt: skip
        if state.get("val_split") != self._held_out():
            raise IncompatibleError(
                f"holds out {state.get('val_split')}, not {self._held_out()}", where="val_split",
                code="E_STATE", remedy="Make the module as it was made when the state was taken.",
            )  # fmt: skip
        self.train_dataloader().load_state_dict(state["train"])

    def _held_out(self) -> float:
        """Return the fraction of the training data held out for validation, or 0.0 if none is."""
        return self.val_split if isinstance(self._data.train, Part) else 0.0

    def _divide(self, train: Any, val: Any, test: Any) -> _Splits:
        """Return the data of the three loaders, from the arguments `train`, `val` and `test`.

        If `train` is a mapping of splits, its validation and test splits are used where `val` or
        `test` is None. If there is still no validation data, the fraction `val_split` of map-style
        training data is held out for validation. Raise `UsageError` if a mapping has no split
        ``"train"``.
        """
        if isinstance(train, str | Path):
            train = open_data(train)
        if isinstance(train, _BUILT):
            train = self._splits(train)
        if isinstance(train, Mapping):
            found = [train[name] for name in _VAL_NAMES if name in train]
            val = val if val is not None else (found[0] if found else None)
            test = test if test is not None else train.get("test")
            if "train" not in train:
                raise UsageError(f"there is no 'train' in {', '.join(map(str, train))}",
                                 where="train_data", remedy="Name one split 'train'.")  # fmt: skip
            train = train["train"]
        train = self._with_rows(train, "train")
        val, test = self._without_rows(val, "val"), self._without_rows(test, "test")
        train, val, test = map(self._with_ids, (train, val, test))
        whole = val is not None or not self.val_split or is_stream(train) or makes_batches(train)
        if whole or len(train) == 0:
            return _Splits(train, val, test)
        parts = split_parts(
            train, self.val_split, self.seed, where="val_split",
            remedy="Use more data, val_split=0, or validation data of its own.",
        )  # fmt: skip
        return _Splits(*parts, test)

    def _with_ids(self, data: Any) -> Any:
        """Return `data` with tokenized texts if a text task and a tokenizer are set.

        Otherwise return `data` itself.
        """
        if data is None or isinstance(data, _BUILT_SPLITS) or not self._tokenizes:
            return data
        if makes_batches(data) or is_stream(data) or not len(data):
            return data
        return tokenized(data, self.task_spec, self.tokenizer, draws=self.config.draws)

    def _splits(self, data: Dataset | ArrayData | PairData) -> Mapping[str, Any]:
        """Return a mapping from split names to splits.

        For `PairData`, each split with pairs becomes a dataset of samples; the datasets share the
        opened arrays of `data`.
        """
        if not isinstance(data, PairData):
            return data.splits
        return {
            name: data.split(name, sample_mask=self._masked(name)) if len(split) else split
            for name, split in data.data.splits.items()
        }

    def _masked(self, name: str) -> bool:
        """Return whether batches of the split `name` need a `sample_mask`.

        They need it if the last batch of an epoch may have filling rows; see
        `LoaderConfig.drop_last`.
        """
        return self.dp_size > 1 and not (name == "train" and bool(self.config.drop_last))

    def _without_rows(self, data: Any, name: str) -> Any:
        """Return the split `name` if `data` is a built dataset or its path, else `data` itself.

        The split is not opened, except for pairs. Return None if the split is empty.
        """
        data = open_data(data) if isinstance(data, str | Path) else data
        if isinstance(data, _BUILT):
            held = self._splits(data)
            data = data.split(name) if name not in held else held[name]
        if isinstance(data, _BUILT_SPLITS):
            self._built = True
            return data if len(data) else None
        return data

    def _with_rows(self, data: Any, name: str) -> Any:
        """Return a dataset of rows if `data` is the split of a build, else `data` itself.

        The option `rows` and the task determine the rows. Raise `UsageError` if the split does not
        fit the task.
        """
        if not isinstance(data, _BUILT_SPLITS):
            return data
        self._built, spec = True, self._rows
        if isinstance(data, Split) and self.task_spec is not None:
            require_form(data, self.task_spec)
            if self._labels_of_task:
                spec = with_options(spec, labels=labels_for(data))
        with naming_dataset((data.dataset if isinstance(data, Split) else data.data).path):
            own: Any = spec.of(data) if isinstance(spec, BuiltRows) else spec
            return own.open(data, sample_mask=self._masked(name))

    def _choose_collate(
        self, given: Collate | None, name: str | None, options: dict[str, Any], registry: Any
    ) -> Collate | None:
        """Return the collate function that the options select, or None if they select none.

        The function is the first of these that is set: `given`, the function in the config, the
        collator called `name`, the collator for the task. None means that the loader chooses a
        function for the samples, or that the dataset makes batches itself. Raise `UsageError` for
        options that would have no effect.
        """
        if given is not None or self.config.collate_fn is not None:
            require(name is None and not options, "data_collator",
                    "is given, so collator_name and collator_options mean nothing")  # fmt: skip
            return given or self.config.collate_fn
        if makes_batches(self._data.train):
            hidden = getattr(self.task_spec, "task_type", None) == "masked_lm"
            require(name is None and (hidden or not options), "collator_name",
                    "means nothing for a dataset that makes its batches itself")  # fmt: skip
            self._apply_task(options, registry)
            return None
        if self.task_spec is None and name is None:
            require(not options, "collator_options", "need a task_spec or a collator_name")
            require(self.tokenizer is None, "tokenizer", "needs a task_spec or a collator_name, as "
                    "'padded', of which it gives the pad id")  # fmt: skip
            return None
        special: Mapping[str, Any] = getattr(self.task_spec, "special_tokens", None) or {}
        if special.get("pad") is not None:
            options.setdefault("pad_id", special["pad"])
        return self._from_registry(name, options, registry)

    def _from_registry(self, name: str | None, options: dict[str, Any], registry: Any) -> Collate:
        from ..collate.registry import CollatorRegistry

        found = registry if registry is not None else CollatorRegistry.get_instance()
        return cast(
            "Collate",
            found.get_collator(name, task_spec=self.task_spec, tokenizer=self.tokenizer, **options),
        )

    def _apply_task(self, options: dict[str, Any], registry: Any) -> None:
        """Check that the datasets of the module fit the task. For masked_lm, mask their tokens.

        This method is for datasets that make batches themselves. The dict `options` holds the
        options of the collator. Raise `UsageError` if a dataset or an option does not fit the task.
        """
        task = self.task_spec
        if task is None:
            require(self.tokenizer is None, "tokenizer", "means nothing without a task_spec for a "
                    "dataset that makes its batches itself: it holds ids already")  # fmt: skip
            return
        for data in self._data:
            require_task(data, task, labels_given=self._labels_given)
        if task.task_type != "masked_lm" or not isinstance(self._data.train, BatchDataset):
            return
        check_masked_options(options)
        if self.tokenizer is None:
            options.setdefault("pad_id", 0)  # required, but never used: rows are padded already
        self._hiding = self._from_registry("masked_lm", options, registry)
        self._data = _Splits(*map(self._with_hidden_tokens, self._data))

    def _with_hidden_tokens(self, data: Any) -> Any:
        """Return a dataset that masks tokens in the rows of `data`, if the task is masked_lm.

        For other tasks, and for a split that is not yet opened, return `data` itself.
        """
        if data is None or self._hiding is None or isinstance(data, _BUILT_SPLITS):
            return data
        return with_hidden_tokens(data, self._hiding, seed=self.seed, tokenizer=self.tokenizer)

    def _loader(self, name: Literal["train", "val", "test"]) -> Any:
        data = getattr(self._data, name)
        if data is None:
            return None
        if name not in self._loaders:
            if isinstance(data, _BUILT_SPLITS):
                data = self._with_rows(data, name)
                if self.task_spec is not None and self._collate is None:
                    require_task(data, self.task_spec, labels_given=self._labels_given)
                data = self._with_hidden_tokens(data)
            self._loaders[name] = self._make(data, name)
        return self._loaders[name]

    def _make(self, data: Any, name: str) -> Loader:
        train = name == "train"
        config = self.config
        if not train:
            config = replace(config, shuffle=False, drop_last=False)
        common: dict[str, Any] = {
            "collate": self._collate, "identity": self.identity, "dp_rank": self.dp_rank,
            "dp_size": self.dp_size,
        }  # fmt: skip
        if is_stream(data):
            require(train or not getattr(data, "infinite", False), f"{name}_data",
                    "is an infinite stream, which is never served to its end")  # fmt: skip
            require(not (train and self.buckets), "buckets", "streams have no lengths to sort by")
            return foreign_stream_loader(data, config, **common)
        buckets = self.buckets if train else None
        return foreign_loader(data, config, purpose=name, buckets=buckets, **common)


def loaders_of(
    module: DataModule, stage: str = "fit"
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Return the train loader and the validation loader of any data module.

    The validation loader is None if there is no validation data. The methods `prepare_data()` and
    `setup(stage)` of the module are called first if they exist, as a trainer does. Raise
    `UsageError` if `module` is not a data module, or if a loader is not iterable.

    >>> train, val = loaders_of(UniversalDataModule([1, 2], val_split=0, batch_size=2))
    >>> len(list(train)), val
    (1, None)
    """
    if not isinstance(module, DataModule):
        raise UsageError(
            f"{type(module).__name__} has no train_dataloader and val_dataloader", where="module"
        )
    for name, arguments in (("prepare_data", ()), ("setup", (stage,))):
        method = getattr(module, name, None)
        if callable(method):
            method(*arguments)
    train, val = module.train_dataloader(), module.val_dataloader()
    require(isinstance(train, Iterable), "train_dataloader",
            f"gives a {type(train).__name__}, which is no iterable of batches")  # fmt: skip
    require(val is None or isinstance(val, Iterable), "val_dataloader",
            f"gives a {type(val).__name__}, which is no iterable of batches")  # fmt: skip
    return train, val
