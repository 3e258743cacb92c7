"""Masked language modelling, where a hash and not a random generator selects the masked tokens.

The hash depends on the seed, the epoch, the number and the ids of the sample, and the position of
the token in the sample. So the result does not depend on workers, batches or padding. Each epoch
masks different tokens, a resumed run masks the same tokens as an uninterrupted run, and equal
samples are masked independently. If the collator is called without sample numbers, for example by a
stock DataLoader, equal samples have the same masked tokens in an epoch. The cost is 40 ns per
position of the batch, padding included.

Masked ("hidden") tokens are the tokens to predict: 80 % of them become the mask token, 10 % a
random token, and 10 % are unchanged (Devlin et al.: BERT, section 3.1,
https://arxiv.org/abs/1810.04805).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from dataprep.formats.canonical import digest_of
from dataprep.formats.errors import require

from ..checks import whole_number
from ..errors import SampleError
from ..loader.serve import require_seed
from ..order.hash64 import FIRST, GOLDEN, SECOND, finalise
from ..types import IGNORED_LABEL, Batch
from .columns import columns_of
from .padded import Padded, UnfinishedBatch, one_each
from .ragged import Array
from .text import require_fields

__all__ = ["MaskedLM"]

_Words = npt.NDArray[np.uint64]
_MASK64 = (1 << 64) - 1
_WHICH, _WHAT, _OTHER = 1, 2, 3  # purposes of the independent draws for one token


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLM(Padded):
    """Collate function for masked language models, which masks some tokens of each sample.

    The `labels` hold the original ids of masked tokens, and `label_pad_id` at all other positions.

    - `mask_id`: the mask token.
    - `vocab_size`: random tokens have ids below this number.
    - `special_ids`: tokens that are never masked and never used as a random token. Tokens marked by
      a field `special_tokens_mask` are not masked either; the batch does not have that field.
    - `probability`: the probability that a token is masked. Of the masked tokens, the fraction
      `mask_share` becomes the mask token, and the fraction `random_share` a random token.
    - `whole_words`: mask whole words, each with `probability`. Words come from the field `word_ids`
      of the samples (None outside of words), or from `continuations`.
    - `continuations`: the ids of tokens that continue a word, as the function
      `dataprep.runtime.collate.tokenizer_ids.continuations` returns them.
    - `seed`, `epoch`: seed and epoch of the hash. `Collated` sets the epoch (`at_epoch`).

    >>> collate = MaskedLM(mask_id=9, vocab_size=10, probability=0.5, seed=1)
    >>> batch = collate([{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[9, 9, 9, 4, 5, 9, 9, 9]], [[1, 2, 3, -100, -100, 6, 7, 8]])
    """

    numbered: ClassVar[bool] = True
    """True, so that `Collated` passes the sample numbers as a second argument."""

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = ()
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    continuations: tuple[int, ...] | None = None
    seed: int = 0
    epoch: int = 0
    _special: Array = field(init=False, repr=False, compare=False)
    _ordinary: Array = field(init=False, repr=False, compare=False)
    _goes_on: Array | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Padded.__post_init__(self)
        self._check_numbers()
        inside = 0 <= self.mask_id < self.vocab_size
        require(inside, "mask_id", f"{self.mask_id} is outside 0:{self.vocab_size}")
        special = np.zeros(self.vocab_size, bool)
        special[[i for i in (*self.special_ids, self.mask_id) if 0 <= i < self.vocab_size]] = True
        require(not special.all(), "special_ids", "leave no token to draw")
        object.__setattr__(self, "_special", special)
        object.__setattr__(self, "_ordinary", np.flatnonzero(~special))
        object.__setattr__(self, "_goes_on", self._continuing())

    def _check_numbers(self) -> None:
        for name in ("probability", "mask_share", "random_share"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            require(number and 0 <= value <= 1, name, f"must be from 0 to 1, got {value!r}")
        require(self.probability > 0, "probability", "must be more than 0")
        shares = self.mask_share + self.random_share
        require(shares <= 1, "random_share", f"is too much: the shares are {shares} together")
        for name, given in (
            ("vocab_size", whole_number("vocab_size", self.vocab_size, 1)),
            ("mask_id", whole_number("mask_id", self.mask_id)),
            ("seed", require_seed(self.seed)),
            ("epoch", whole_number("epoch", self.epoch)),
        ):
            object.__setattr__(self, name, given)

    def _continuing(self) -> Array | None:
        """Return bool [vocab_size], True for tokens that continue a word.

        Return None if `continuations` is None.
        """
        if self.continuations is None:
            return None
        outside = [i for i in self.continuations if not 0 <= i < self.vocab_size]
        require(not outside, "continuations", f"{outside[:1]} is outside 0:{self.vocab_size}")
        goes_on = np.zeros(self.vocab_size, bool)
        goes_on[list(self.continuations)] = True
        return goes_on

    @property
    def definition(self) -> dict[str, Any]:
        """JSON values that, together with the argument `seeds` of `hide`, determine its result."""
        shares = ("probability", "mask_share", "random_share")
        words = self.continuations
        return {
            **{
                name: getattr(self, name)
                for name in ("mask_id", "vocab_size", "whole_words", "seed")
            },
            **{name: float(getattr(self, name)) for name in shares},
            "special_ids": sorted({int(i) for i in self.special_ids}),
            "continuations": None
            if words is None
            else digest_of(sorted(set(map(int, words))))[:16],
        }

    def at_epoch(self, epoch: int) -> MaskedLM:
        """Return a copy of this collator that masks the tokens of `epoch`."""
        return replace(self, epoch=epoch)

    def __call__(
        self, samples: Sequence[Any], numbers: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """Return the batch with masked tokens and their labels.

        The argument `numbers` holds the numbers of the samples in the dataset. If it is None, equal
        samples have the same masked tokens. Raise `UsageError` if the samples have no `input_ids`,
        and `SampleError` if an id is outside the vocabulary.
        """
        columns = columns_of(samples, ("input_ids",))
        require_fields(columns, "input_ids", where="masked language models")
        words = columns.pop("word_ids", None)
        columns.pop("labels", None)
        work = self.pad(columns)
        ids, layout = work.batch["input_ids"], work.layouts["input_ids"]
        real = layout.mask(np.dtype(bool))
        self._check_ids(ids, real)
        allowed = (
            real & ~self._special[np.where(real, ids, 0)] & (work.batch["attention_mask"] != 0)
        )
        marked = work.batch.pop("special_tokens_mask", None)
        if marked is not None:
            allowed &= marked == 0
        hashes = self._hashes(ids, real, numbers)
        groups = self._positions(real)
        if self.whole_words:
            groups, allowed = self._words(words, work, real, allowed)
        hidden = allowed & (_uniform(_draw(hashes, groups, _WHICH)) < self.probability)
        dtype = self.schema.resolve("labels", pad_value=self.label_pad_id).numpy
        work.batch["labels"] = self._hide(ids, hidden, hashes, self._positions(real), dtype)
        return self.finish(work)

    def hide(self, batch: Batch, seeds: npt.NDArray[np.uint64]) -> Batch:
        """Mask tokens of `batch` in place, and return the batch.

        The method can be used as the transform of a `TransformedDataset`. The batch must have
        `input_ids` and labels made with ``labels="unshifted"``. Tokens whose label is -100 are
        never masked: padding, tokens outside of the loss mask, and the first token of each document
        in rows of documents. The array `seeds` has one number per row. The labels keep their type.
        Raise `UsageError` if the labels are missing or are not the tokens at their own positions.
        """
        missing = [name for name in ("input_ids", "labels") if name not in batch]
        require(not missing, "labels", f"{' and '.join(missing)} missing: make the rows with "
                "labels='unshifted'")  # fmt: skip
        ids = batch["input_ids"].numpy()
        labels = batch["labels"].numpy()
        real = labels != IGNORED_LABEL
        require(bool(((labels == ids) | ~real).all()), "labels",
                "are not the tokens of their own places: make the rows with "
                "labels='unshifted'")  # fmt: skip
        self._check_ids(ids, real)
        allowed = real & ~self._special[np.where(real, ids, 0)]
        key = np.uint64((self.seed * SECOND + 1) & _MASK64)
        hashes = finalise(finalise(np.atleast_1d(key)) ^ seeds)[:, None]
        groups = positions = self._positions(real)
        if self.whole_words:
            work = UnfinishedBatch(batch={"input_ids": ids}, rows={}, layouts={}, apart=set())
            groups, allowed = self._words(None, work, real, allowed)
        hidden = allowed & (_uniform(_draw(hashes, groups, _WHICH)) < self.probability)
        batch["labels"] = torch.from_numpy(self._hide(ids, hidden, hashes, positions, labels.dtype))
        return batch

    def _check_ids(self, ids: Array, real: Array) -> None:
        """Raise `SampleError` if an id is outside the vocabulary, unless it is padding.

        The array `real` is False where ids are padding.
        """
        wrong = real & ((ids < 0) | (ids >= self.vocab_size))
        if wrong.any():
            row, place = np.argwhere(wrong)[0].tolist()
            raise SampleError(
                f"holds {ids[row, place]}, which is outside 0:{self.vocab_size}", row=row,
                field="input_ids", remedy="Use the vocab_size of the tokenizer that made the ids.",
            )  # fmt: skip

    def _positions(self, real: Array) -> Array:
        """Return the positions of tokens, counted from the first token of each row.

        The result is int64 [rows, width]. The bool array `real` is False where ids are padding.
        """
        first = real.argmax(axis=1)
        positions: Array = np.arange(real.shape[1]) - first[:, None]
        return positions

    def _hashes(self, ids: Array, real: Array, numbers: Sequence[int] | None) -> _Words:
        """Return a uint64 array [rows, 1] with a hash for each row.

        The hash depends on the seed, the epoch, the sample number and the ids of the row.
        """
        positions = self._positions(real).view(np.uint64)
        words = finalise(ids.astype(np.uint64) * np.uint64(GOLDEN) + positions * np.uint64(FIRST))
        sums = np.where(real, words, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        if numbers is not None:
            own = np.asarray(numbers, np.int64).view(np.uint64)
            sums += finalise((own + np.uint64(1)) * np.uint64(SECOND))
        key = np.uint64((self.seed * SECOND + self.epoch * FIRST + 1) & _MASK64)
        return finalise(finalise(np.atleast_1d(key)) ^ sums)[:, None]

    def _words(
        self, given: Any, work: UnfinishedBatch, real: Array, allowed: Array
    ) -> tuple[Array, Array]:
        """Return two arrays [rows, width]: each token's word number, and whether it may be masked.

        Word numbers increase along the row. The argument `given` is the field `word_ids` of the
        samples, from which the words are taken. If it is None, they are found by `continuations`.

        Raise `UsageError` if both `given` and `continuations` are None. Raise `SampleError` if the
        `word_ids` of a sample are not numbers, or not one for each token.
        """
        if given is not None:
            rows, layout = work.rows["input_ids"], work.layouts["input_ids"]
            plain = [_word_numbers(row, words) for row, words in enumerate(given)]
            words = layout.fill(one_each("word_ids", plain, rows), -2, np.dtype(np.int64))
            # Numbers begin again at 0 in the second text of a pair, so changes are counted.
            changes = np.ones_like(allowed)
            changes[:, 1:] = words[:, 1:] != words[:, :-1]
            return np.cumsum(changes & real, axis=1), allowed & (words >= 0)
        require(
            self._goes_on is not None, "whole_words",
            "needs a field word_ids in the samples, or the continuations of the vocabulary",
        )  # fmt: skip
        ids = np.where(real, work.batch["input_ids"], 0)
        goes_on = self._goes_on[ids] if self._goes_on is not None else real
        before = np.zeros_like(allowed)
        before[:, 1:] = allowed[:, :-1]
        return np.cumsum(~(goes_on & before) & real, axis=1), allowed

    def _hide(
        self, ids: Array, hidden: Array, hashes: _Words, positions: Array, dtype: np.dtype[Any]
    ) -> Array:
        """Replace the tokens of `ids` where `hidden` is True, in place, and return the labels.

        Most become the mask token, some a random token, and some stay the same; see `MaskedLM`. The
        argument `dtype` is the type of the labels.
        """
        wanted = self.schema.resolve("labels", pad_value=self.label_pad_id)
        labels: Array = np.full(ids.shape, wanted.pad_value, dtype)
        labels[hidden] = ids[hidden]
        rows, columns = np.nonzero(hidden)
        own = hashes[rows, 0], positions[rows, columns]
        share = _uniform(_draw(*own, _WHAT))
        drawn = _draw(*own, _OTHER) % np.uint64(len(self._ordinary))
        other = np.where(
            share < self.mask_share + self.random_share, self._ordinary[drawn], ids[rows, columns]
        )
        ids[rows, columns] = np.where(share < self.mask_share, self.mask_id, other)
        return labels


def _word_numbers(row: int, words: Any) -> list[int]:
    try:
        return [-1 if word is None else int(word) for word in words]
    except (TypeError, ValueError) as error:
        raise SampleError(
            f"are no numbers of words ({error})", row=row, field="word_ids",
            remedy="Give one for each token, None outside of words.",
        ) from None  # fmt: skip


def _draw(hashes: _Words, positions: Array, purpose: int) -> _Words:
    """Return 64 pseudorandom bits for each position.

    Bits drawn for one `purpose` are independent of the bits drawn for another.
    """
    number = positions.astype(np.int64).view(np.uint64) * np.uint64(4) + np.uint64(purpose)
    return finalise(hashes + number * np.uint64(GOLDEN))


def _uniform(words: _Words) -> npt.NDArray[np.float64]:
    """Return float64 numbers in [0, 1), made from the high 53 bits of each word."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
