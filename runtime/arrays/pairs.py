"""Pairs of embeddings with hard negatives and a steering vector, as a map-style dataset.

A batch is gathered from memory-mapped files, or with `preload` from arrays in memory. The steering
variant of a pair is determined by (content id, seed, epoch, pair) alone
(runtime/arrays/curriculum.py), and the epoch is part of every index (runtime/order/epoch_tag.py).
So workers, ranks, batch size and resuming do not change the variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, get_args

import msgspec
import numpy as np
import torch

from dataprep.formats.errors import InputError, UsageError, require
from dataprep.formats.manifest.curriculum import VARIANTS, Curriculum
from dataprep.formats.read.arrays import ArraySplit, NamedArray
from dataprep.formats.read.sharded import check_inside

from ..checks import whole_number
from ..choices import Applied
from ..order.epoch_tag import MAX_EPOCH, epochs_of
from ..sample_numbers import PADDING, Indices, Ints, sample_numbers
from ..types import Batch, BatchDataset, Device, empty_split
from .batch_checks import check_pairs
from .curriculum import VERSION, VariantDraw, stored_curriculum, stored_seed
from .negatives import Given, Negatives, read_negatives
from .reports import MemoryReport, PairStatistics, resident_bytes, statistics_of
from .stored_rows import rows_of, spans_of
from .tables import EMBEDDINGS, PairTables, device_of

__all__ = ["PairDataset"]

_SCALARS = ("pair_cluster_id", "pair_relevance", "centroid_distances")
_BLOCK = 1 << 20  # pairs whose clusters are read at once


class PairDataset(BatchDataset):
    """Map-style dataset of the pairs of one split; a sample is a dict of nine tensors.

    In a batch these are float32 `question_emb`, `target_source_emb`, `steering` [rows, dim] and
    `negative_embs` [rows, negatives, dim]; int64 `cluster_id` and `steering_variant` [rows];
    float32 `relevance` and `centroid_distance` [rows]; int64 `negative_tiers` [rows, negatives].
    The `cluster_id` of a pair without a cluster is -1.

    Arguments:
        seed: the seed of the steering variants. None: the seed in config.json; see `stored_seed`.
        curriculum: the splits in which the curriculum changes with the epoch: ``"train"`` or
            ``"all"``. In other splits a pair has the same variant in every epoch, so that
            evaluations can be compared. This variant is chosen with the `probabilities` of the
            curriculum.
        schedule: a `Curriculum` to use in place of the one in config.json.
        clusters: use only the pairs of these clusters, which are numbered from 0. The number -1
            selects the pairs without a cluster.
        preload: read all tables into memory on `device`, and make batches there.
        device: the device of every tensor of a batch. With any device but the CPU, batches must be
            made in the training process: there can be no workers, and no memory is pinned.
        sample_mask: add the bool field `sample_mask` [rows], False where the index is `PADDING`.
            Such a row repeats sample 0, with relevance 0.

    The attribute `epoch` applies to indices that contain no epoch, as in ``dataset[5]``. Raises
    `InputError` if the split, or the chosen clusters, have no pairs. Pickling stores the path of
    the dataset and the arguments, not the data.

        >>> pairs = open_pairs("pairs").split("train")                       # doctest: +SKIP
        >>> pairs.batch([3, 1])["negative_embs"].shape                # doctest: +SKIP
        torch.Size([2, 12, 384])
    """

    varies_by_epoch = True

    def __init__(
        self,
        split: ArraySplit,
        *,
        seed: int | None = None,
        curriculum: Applied = "train",
        schedule: Curriculum | None = None,
        clusters: Sequence[int] | None = None,
        preload: bool = False,
        device: Device = None,
        sample_mask: bool = False,
        tables: PairTables | None = None,
    ) -> None:
        known = get_args(Applied)
        require(
            curriculum in known, "curriculum",
            f"must be one of {', '.join(known)}, got {curriculum!r}",
        )  # fmt: skip
        self.split = split
        self.seed = stored_seed(split.data) if seed is None else whole_number("seed", seed)
        self.curriculum: Applied = curriculum
        self.schedule = stored_curriculum(split.data) if schedule is None else schedule
        self.sample_mask = sample_mask
        self.epoch = 0
        self.version = 0
        """Incremented by every change of the served samples; a loader then restarts its workers."""
        where = device_of(device)
        self.tables = tables or PairTables(split.data, preload=preload, device=where)
        count = self.tables.sizes.clusters
        self.clusters = None if clusters is None else _cluster_numbers(clusters, count)
        if len(split) == 0:
            raise empty_split(split)
        self._chosen = None if self.clusters is None else self._of_clusters(self.clusters)
        self._forced: int | None = None
        self._negatives: Negatives | None = None
        moving = curriculum == "all" or split.name == "train"
        content_id = split.content_id
        self._draw = VariantDraw(
            self.schedule, content_id=content_id, seed=self.seed, moving=moving
        )

    def _of_clusters(self, clusters: Ints) -> Ints:
        """Return the pairs of the split that are in `clusters`, as row numbers in stored order.

        Raise `InputError` if there are no such pairs.
        """
        found = []
        for start in range(0, len(self.split), _BLOCK):
            samples = np.arange(start, min(start + _BLOCK, len(self.split)))
            rows = rows_of(self.split, samples)
            numbers = self.tables.numbers("pair_cluster_id", rows, check=True)
            found.append(rows[np.isin(numbers, clusters)])
        chosen = np.concatenate(found)
        if len(chosen) == 0:
            raise InputError(
                f"has no pair in clusters {clusters.tolist()}", where=f"split {self.split.name}",
                code="E_EMPTY", remedy="Choose clusters that statistics().clusters counts.",
            )  # fmt: skip
        return chosen

    @property
    def device(self) -> torch.device:
        """The device of the tensors of a batch."""
        return self.tables.device

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, with the content id, determine every sample."""
        schedule = msgspec.json.decode(msgspec.json.encode(self.schedule))  # lists, as states have
        steering = {
            "version": VERSION, "seed": self.seed, "moves": self._draw.moving, **schedule
        }  # fmt: skip
        found = {"kind": "pairs", "split": self.split.name, "steering": steering}
        if self.clusters is not None:
            found["clusters"] = self.clusters.tolist()
        return found

    @property
    def sample_bytes(self) -> int:
        """Number of stored bytes that are read for one pair, with the vectors of its negatives."""
        tables = self.tables.arrays
        sizes = {name: prod(a.row_shape) * a.dtype.itemsize for name, a in tables.items()}
        return sum(sizes.values()) + sizes["source_embs"] * self.tables.sizes.negatives

    def __len__(self) -> int:
        return len(self.split) if self._chosen is None else len(self._chosen)

    def __repr__(self) -> str:
        return f"<dataprep.PairDataset {self.split.name}: {len(self):,} pairs>"

    def __reduce__(self) -> tuple[object, ...]:
        options = {
            "seed": self.seed, "curriculum": self.curriculum, "schedule": self.schedule,
            "clusters": None if self.clusters is None else self.clusters.tolist(),
            "preload": self.tables.preload, "device": str(self.device),
            "sample_mask": self.sample_mask,
        }  # fmt: skip
        changes = {name: getattr(self, name) for name in ("epoch", "_forced", "_negatives")}
        return _unpickled, (self.split, options, changes)

    def snapshot(self) -> PairDataset:
        """Return a shallow copy. Later calls of `force_steering` and the like do not change it."""
        found = object.__new__(PairDataset)
        found.__dict__.update(self.__dict__)
        return found

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that applies to indices that contain no epoch.

        The indices of a loader contain their epoch, so this does not affect them. Raise
        `UsageError` unless `epoch` is a whole number in 0 .. `MAX_EPOCH`.
        """
        number = whole_number("epoch", epoch)
        require(number <= MAX_EPOCH, "epoch", f"must be in 0 .. {MAX_EPOCH:,}, got {epoch:,}")
        self.epoch = number

    def force_steering(self, name: str | None) -> None:
        """Give every pair the variant `name`. None restores the variants of the curriculum.

        An iteration of a loader that has already begun does not change. Raise `UsageError` if
        `name` is not a variant.
        """
        if name is not None and name not in VARIANTS:
            raise UsageError(
                f"must be one of {', '.join(VARIANTS)}, or None, got {name!r}", where="name"
            )
        self._forced = None if name is None else VARIANTS.index(name)
        self.version += 1

    def reload_negatives(self, given: Given | None) -> None:
        """Use the negatives `given` in every later iteration of a loader.

        None restores the stored negatives. `read_negatives` describes the accepted values, their
        checks and the errors. After an error the previous negatives stay in use.
        """
        self._negatives = None if given is None else read_negatives(given, self.tables)
        self.version += 1

    def batch(self, indices: Indices) -> Batch:
        """Return the pairs at `indices` as one batch, whose tensors share no memory.

        Raise `IndexError` for an index outside 0 .. len - 1, and `IntegrityError` if a pair
        contains an invalid number, such as NaN or the number of a source that does not exist.
        """
        samples, epochs = epochs_of(sample_numbers(indices, len(self)), self.epoch)
        real = samples != PADDING if self.sample_mask else None
        if real is not None:  # rows that only fill the batch get its epoch, in any process
            samples = np.where(real, samples, 0)
            epochs = np.where(real, epochs, epochs[real][:1] if real.any() else 0)
        pairs = self._pairs(samples)
        variants = self._variants(pairs, epochs)
        questions, sources = self._questions_and_sources(pairs)
        check = not self.tables.are_sound(pairs)
        negatives, tiers = self._hard_negatives(pairs, check=check)
        vectors, numbers_of = self.tables.vectors, self.tables.numbers
        batch = {
            "question_emb": vectors("question_embs", questions),
            "target_source_emb": vectors("source_embs", sources),
            "steering": self.tables.steering(pairs, variants),
            "negative_embs": vectors("source_embs", negatives.reshape(-1)).view(
                *negatives.shape, self.tables.sizes.dim
            ),
        }
        cluster, relevance, distance = (numbers_of(name, pairs, check=check) for name in _SCALARS)
        if check:
            self.tables.note_sound(pairs)
        if real is not None:
            relevance[~real] = 0
        numbers = {
            "cluster_id": cluster, "relevance": relevance, "centroid_distance": distance,
            "steering_variant": variants, "negative_tiers": tiers,
        }  # fmt: skip
        if real is not None:
            numbers["sample_mask"] = real
        for name, array in numbers.items():
            batch[name] = torch.from_numpy(array).to(self.device)
        return batch

    def _pairs(self, samples: Ints) -> Ints:
        """Return the pair number of each of `samples`: its row in the arrays of pairs.

        Raise `IndexError` for a sample outside 0 .. len - 1.
        """
        if self._chosen is None:
            return rows_of(self.split, samples)
        if len(samples):
            check_inside(f"split {self.split.name}: sample", samples, 1, len(self._chosen))
        return self._chosen[samples]

    def _questions_and_sources(self, pairs: Ints) -> tuple[Ints, Ints]:
        """Return the rows of the question and of the source of each pair: two int64 arrays [k].

        Raise `IntegrityError` if such a row does not exist.
        """
        questions, sources = np.ascontiguousarray(self.tables.numbers("pair_index", pairs).T)
        self.tables.check_pointers("pair_index", pairs, questions, "questions")
        self.tables.check_pointers("pair_index", pairs, sources, "sources")
        return questions, sources

    def _hard_negatives(self, pairs: Ints, *, check: bool = False) -> tuple[Ints, Ints]:
        """Return the hard negatives of `pairs` and their tiers: two int64 arrays [k, negatives].

        Raise `IntegrityError` if a stored negative is not the row of an existing source. If `check`
        is true, raise it also if a stored tier is invalid.
        """
        if self._negatives is not None:  # checked already
            return self._negatives.rows.take(pairs), self._negatives.tiers.take(pairs)
        negatives = self.tables.numbers("hard_negatives", pairs)
        self.tables.check_pointers("hard_negatives", pairs, negatives, "sources")
        return negatives, self.tables.numbers("negative_tiers", pairs, check=check)

    def _variants(self, pairs: Ints, epochs: Ints) -> Ints:
        if self._forced is not None:
            return np.full(len(pairs), self._forced, np.int64)
        return self._draw.variants(pairs, epochs)

    @property
    def tracks(self) -> tuple[NamedArray, ...]:
        """The memory-mapped arrays from which samples are read. Read-ahead uses them."""
        mapped = {array.name: array for array in self.tables.mapped}
        return tuple(mapped[name] for name in (*EMBEDDINGS, *_SCALARS) if name in mapped)

    def spans(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return the ranges of array elements that are read for `samples`, as starts and stops.

        Both are int64 arrays of positions in the concatenation of all arrays in `tracks`. The
        ranges include every steering variant, because the variant depends on the epoch, which is
        not known here. The call reads the stored row numbers of the question, source and negatives
        of each pair. Raise the errors of `batch`.
        """
        pairs = self._pairs(samples[samples != PADDING])
        questions, sources = self._questions_and_sources(pairs)
        sources = np.concatenate([sources, self._hard_negatives(pairs)[0].reshape(-1)])
        steering = [pairs] * (len(self.tracks) - 2)
        return spans_of(self.tracks, [questions, sources, *steering])

    def statistics(self) -> PairStatistics:
        """Return counts and ranges of the values of all pairs. This reads all pairs once."""
        pairs = self._pairs(np.arange(len(self)))
        tiers = None if self._negatives is None else self._negatives.tiers
        return statistics_of(self.tables, pairs, tiers)

    def memory(self) -> MemoryReport:
        """Return the memory used by the dataset, including arrays shared with the other splits."""
        names = {entry.file for array in self.tables.mapped for entry in array.entry.shards}
        data = self.split.data
        held = self.tables.held_bytes + (self._negatives.held_bytes if self._negatives else 0)
        return MemoryReport(
            files=sum(data.files.entries[name].bytes for name in names),
            resident=resident_bytes(data.path), held=held,
        )  # fmt: skip

    def check_batch(self, batch: Mapping[str, Any], *, rows: int | None = None) -> None:
        """Raise `IncompatibleError` if `batch` breaks a rule of `batch_checks.check_pairs`.

        The function `validate_first_batch` calls this. The batch must have `rows` rows, if given.
        """
        check_pairs(batch, self.tables.sizes, rows=rows)

    def close(self) -> None:
        """Release maps and tables, including those that other splits share.

        The next use opens them again.
        """
        self.tables.close()
        self.split.data.close()

    def __enter__(self) -> PairDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unpickled(split: ArraySplit, options: dict[str, Any], changes: dict[str, Any]) -> PairDataset:
    found = PairDataset(split, **options)
    found.__dict__.update(changes)
    return found


def _cluster_numbers(clusters: Sequence[int], count: int) -> Ints:
    """Return `clusters` as a sorted int64 array without duplicates.

    Raise `UsageError` if it is empty, or if a cluster is outside -1 .. `count` - 1.
    """
    numbers = np.unique([whole_number("clusters", number, -1) for number in clusters])
    require(len(numbers) > 0, "clusters", "names no cluster")
    require(
        numbers[-1] < count, "clusters", f"there is no {numbers[-1]}: the last one is {count - 1}"
    )
    return numbers.astype(np.int64)
