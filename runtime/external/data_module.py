"""Data modules: one object that gives a trainer its loaders.

`DataModule` is the interface: two methods, which need not be inherited, so Lightning's data modules
have it too. `UniversalDataModule` implements it over data of any kind; a trainer that calls
`state_dict` and `load_state_dict` resumes it in mid-epoch.

Lightning takes any loaders, but a `datamodule=` of its own class only: derive one from both.

    class Data(UniversalDataModule, lightning.LightningDataModule): ...

Pass `use_distributed_sampler=False` to its Trainer, and `dp_rank` and `dp_size` here; and
`limit_val_batches=0` if there is no validation data, as it refuses None.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

from torch.utils.data import default_collate

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
from ..seeding import isolated
from ..specs import BuiltRows, RowKind, RowSpec, row_spec, spec_of, with_options
from ..types import BatchDataset, Collate
from .config import LoaderConfig
from .iterable_loader import foreign_stream_loader
from .map_loader import Buckets, foreign_loader, is_own, is_stream
from .preprocessed_map import PreprocessedDataset
from .random_split import Part, check_fraction, split_by_fraction
from .randomness import draws_nothing
from .task import TaskSpec

__all__ = ["DataModule", "UniversalDataModule", "loaders_of"]

_KIND = "dataprep data module state"
_TEXT_TASKS = ("lm", "masked_lm", "classification", "multi_label", "regression")
_AT_ONCE = 1000  # texts
_BUILT = (Dataset, ArrayData, PairData)
_BUILT_SPLITS = (Split, ArraySplit)
_VAL_NAMES = ("val", "validation", "valid", "dev")


@runtime_checkable
class DataModule(Protocol):
    """Interface of data modules: two methods.

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
        """Return the batches to validate on, or None if there are none."""
        ...


class _Splits(NamedTuple):
    train: Any
    val: Any
    test: Any


class UniversalDataModule:
    """Loaders for training, validation and test over data of any kind.

    Arguments:
        train_data: samples by number (a list, of tensors or dicts; a torch dataset; a Hugging Face
            one), a stream of them, a mapping of splits to those (as a `DatasetDict`), or a dataset
            that `dataprep build` made, open or by its path: its splits are opened when their
            loaders are asked for, and one that is empty has none. Samples by number that are texts,
            or have a field `text` and no ids, are tokenized where task and tokenizer are given;
            empty texts in lists and Hugging Face datasets are left out, with a warning that counts
            them.
        val_data, test_data: the same, not divided.
        task_spec: chooses the collate function, from `collator_registry`.
        tokenizer: what the collate function of a text task takes its pad id from, and what texts
            are tokenized by.
        data_collator: a collate function, instead of one that is chosen.
        collator_name, collator_options: which of the registry, and the options of its factory.
        batch_size, num_workers, seed: see `LoaderConfig`.
        val_split: the share of `train_data` that is held out for validation, a seeded random one.
            Without effect where there is validation data, for streams, which cannot be divided,
            and for datasets that were built, which have their own splits.
        config: everything else; `batch_size`, `num_workers` and `seed` overrule it where given.
        buckets: batches of like length to train on.
        rows: what a row of a dataset that was built holds, as `create_loader` takes it: a spec
            such as `Packed(2048)` or a name. Or a dict of the options of a spec, as
            ``{"rows": "packed", "seq_len": 64}``. The labels of a name, and of a dict that names
            none, are those of the task.
        identity: a name for the data, part of the state.
        distributed: take `dp_rank` and `dp_size` from torch.distributed.
        dp_rank, dp_size: this process among the data-parallel ones.

    The train loader is made once: each pass over it is a new epoch, a function of (seed, epoch).
    Validation and test are served in their stored order, to the last sample, no sample twice.

    Raises `UsageError` for a `val_split` outside 0 <= x < 1 and whatever else cannot be met.

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
        super().__init__()  # of a trainer's own class, where there is one besides
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
        self._built, self._hidden_by = False, cast("Collate | None", None)
        self._tokenizes = (
            tokenizer is not None
            and data_collator is None
            and self.config.collate_fn is None
            and getattr(task_spec, "modality", None) == "text"
            and getattr(task_spec, "task_type", None) in _TEXT_TASKS
        )
        self._data = self._divide(train_data, val_data, test_data)
        require(not rows or self._built, "rows", "are options of datasets that were built; of data "
                "like this collator_options say how rows are cut")  # fmt: skip
        self._collate = self._chosen(
            data_collator, collator_name, dict(collator_options or {}), collator_registry
        )
        self._loaders: dict[str, Loader] = {}

    @property
    def seed(self) -> int:
        """Return the seed of the order, the split and random transforms."""
        return self.config.seed

    def train_dataloader(self) -> Any:
        """Return the train loader; the same at each call."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Return the batches to validate on, or None if there are none."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Return the loader of the test data, or None if there is none."""
        return self._loader("test")

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next pass over the train loader serves."""
        self.train_dataloader().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of training as plain JSON, for a checkpoint."""
        state = self.train_dataloader().state_dict()
        return {"kind": _KIND, "version": 1, "val_split": self._held_out(), "train": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with exactly the next batch after `state` was taken.

        Raises `IncompatibleError` for a state of other data, another seed or another split.
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
        """Return the share of the training data that was held out."""
        return self.val_split if isinstance(self._data.train, Part) else 0.0

    def _divide(self, train: Any, val: Any, test: Any) -> _Splits:
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
        train = self._opened(train, "train")
        val, test = self._given(val, "val"), self._given(test, "test")
        train, val, test = map(self._tokenized, (train, val, test))
        whole = val is not None or not self.val_split or is_stream(train) or is_own(train)
        if whole or len(train) == 0:
            return _Splits(train, val, test)
        return _Splits(*split_by_fraction(train, self.val_split, self.seed), test)

    def _tokenized(self, data: Any) -> Any:
        """Return `data` with `input_ids` in place of texts."""
        own = data is None or isinstance(data, _BUILT_SPLITS) or is_own(data)
        if own or not self._tokenizes or is_stream(data) or not len(data):
            return data
        with isolated():
            first = data[0]
        if isinstance(first, Mapping):
            texts = isinstance(first.get("text"), str)
            if not texts or any(str(name).endswith("input_ids") for name in first):
                return data
        elif not isinstance(first, str):
            return data
        from .tokenize_engine import TokenizeEngine

        learns = self.task_spec is not None and self.task_spec.task_type not in ("lm", "masked_lm")
        names = (getattr(self.task_spec, "target_field", None), "labels", "label", "label_ids")
        fields = first if isinstance(first, Mapping) else {}
        label = next((name for name in names if name and learns and name in fields), None)
        engine = TokenizeEngine(tokenizer=self.tokenizer, keep=(label,) if label else ())
        holds = draws_nothing(data, default_collate)
        draws = not holds if self.config.draws is None else self.config.draws
        wrapped = PreprocessedDataset(data, engine, draws=draws)
        if not holds:
            return wrapped  # texts cannot be looked at without what reading them may do
        kept = [
            n for n, text in enumerate(_column(data)) if not isinstance(text, str) or text.strip()
        ]
        if len(kept) == len(data):
            return wrapped
        warnings.warn(
            f"{len(data) - len(kept):,} of {len(data):,} texts are empty and left out", stacklevel=5
        )
        return wrapped.select(kept)

    def _splits(self, data: Dataset | ArrayData | PairData) -> Mapping[str, Any]:
        """Return the splits by name; of pairs that are open, samples that share their tables."""
        if not isinstance(data, PairData):
            return data.splits
        return {
            name: data.split(name, sample_mask=self._masked(name)) if len(split) else split
            for name, split in data.data.splits.items()
        }

    def _masked(self, name: str) -> bool:
        """Return whether rows of the split only fill batches, and must be told."""
        return self.dp_size > 1 and not (name == "train" and bool(self.config.drop_last))

    def _given(self, data: Any, name: str) -> Any:
        """Return `data`, of a dataset that was built the split of that name; None of an empty one.

        Its rows are made when its loader is asked for.
        """
        data = open_data(data) if isinstance(data, str | Path) else data
        if isinstance(data, _BUILT):
            held = self._splits(data)
            data = data.split(name) if name not in held else held[name]
        if isinstance(data, _BUILT_SPLITS):
            self._built = True
            return data if len(data) else None
        return data

    def _opened(self, data: Any, name: str) -> Any:
        """Return the rows of the split `data` of a dataset that was built; other data as it is."""
        if not isinstance(data, _BUILT_SPLITS):
            return data
        self._built, spec = True, self._rows
        if isinstance(data, Split) and self.task_spec is not None:
            from .built_tasks import labels_for, require_form

            require_form(data, self.task_spec)
            if self._labels_of_task:
                spec = with_options(spec, labels=labels_for(data))
        with naming_dataset((data.dataset if isinstance(data, Split) else data.data).path):
            own: Any = spec.of(data) if isinstance(spec, BuiltRows) else spec
            return own.open(data, sample_mask=self._masked(name))

    def _chosen(
        self, given: Collate | None, name: str | None, options: dict[str, Any], registry: Any
    ) -> Collate | None:
        """Return the collate function: given, registered, or None to suit the samples."""
        if given is not None or self.config.collate_fn is not None:
            require(name is None and not options, "data_collator",
                    "is given, so collator_name and collator_options mean nothing")  # fmt: skip
            return given or self.config.collate_fn
        if is_own(self._data.train):
            hidden = getattr(self.task_spec, "task_type", None) == "masked_lm"
            require(name is None and (hidden or not options), "collator_name",
                    "means nothing for a dataset that makes its batches itself")  # fmt: skip
            self._serve_task(options, registry)
            return None
        if self.task_spec is None and name is None:
            require(not options, "collator_options", "need a task_spec or a collator_name")
            require(self.tokenizer is None, "tokenizer", "needs a task_spec or a collator_name, as "
                    "'padded', of which it gives the pad id")  # fmt: skip
            return None
        special: Mapping[str, Any] = getattr(self.task_spec, "special_tokens", None) or {}
        if special.get("pad") is not None:
            options.setdefault("pad_id", special["pad"])
        return self._registered(name, options, registry)

    def _registered(self, name: str | None, options: dict[str, Any], registry: Any) -> Collate:
        from ..collate.registry import CollatorRegistry

        found = registry if registry is not None else CollatorRegistry.get_instance()
        return cast(
            "Collate",
            found.get_collator(name, task_spec=self.task_spec, tokenizer=self.tokenizer, **options),
        )

    def _serve_task(self, options: dict[str, Any], registry: Any) -> None:
        """Have datasets that make their batches themselves serve the task, or refuse it."""
        task = self.task_spec
        if task is None:
            require(self.tokenizer is None, "tokenizer", "means nothing without a task_spec for a "
                    "dataset that makes its batches itself: it holds ids already")  # fmt: skip
            return
        from . import built_tasks

        for data in self._data:
            built_tasks.require_task(data, task, asked=self._labels_given)
        if task.task_type != "masked_lm" or not isinstance(self._data.train, BatchDataset):
            return
        built_tasks.check_masked_options(options)
        if self.tokenizer is None:
            options.setdefault("pad_id", 0)  # of no row: they come padded
        self._hidden_by = self._registered("masked_lm", options, registry)
        self._data = _Splits(*map(self._with_hidden_tokens, self._data))

    def _with_hidden_tokens(self, data: Any) -> Any:
        """Return rows with tokens hidden, where the task hides some; splits have no rows yet."""
        if data is None or self._hidden_by is None or isinstance(data, _BUILT_SPLITS):
            return data
        from .built_tasks import with_hidden_tokens

        return with_hidden_tokens(data, self._hidden_by, seed=self.seed, tokenizer=self.tokenizer)

    def _loader(self, name: Literal["train", "val", "test"]) -> Any:
        data = getattr(self._data, name)
        if data is None:
            return None
        if name not in self._loaders:
            if isinstance(data, _BUILT_SPLITS):
                data = self._opened(data, name)
                if self.task_spec is not None and self._collate is None:
                    from .built_tasks import require_task

                    require_task(data, self.task_spec, asked=self._labels_given)
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


def _column(data: Any) -> Iterator[Any]:
    """Yield the texts of `data`."""
    if hasattr(data, "select_columns"):  # of Hugging Face: without the other columns
        for part in data.with_format(None).select_columns(["text"]).iter(_AT_ONCE):
            yield from part["text"]
        return
    for number in range(len(data)):
        sample = data[number]
        yield sample.get("text") if isinstance(sample, Mapping) else sample


def loaders_of(
    module: DataModule, stage: str = "fit"
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Return the train and validation loaders of any data module, also Lightning's.

    Calls its `prepare_data()` and `setup(stage)` first, where it has them, as a trainer would.
    Raises `UsageError` for what is no data module, or gives no iterable.

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
