"""Masked language models: what is hidden, how often, and what it depends on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.errors import SampleError
from dataprep.runtime.external.map_dataset import Collated, collated_order
from dataprep.runtime.loader.serve import serve
from dataprep.runtime.order.hash64 import FIRST, GOLDEN, SECOND

MASK = 3
COLLATE = MaskedLM(mask_id=MASK, vocab_size=1000, special_ids=(0, 1, 2), pad_id=0)
WORD64 = (1 << 64) - 1


def samples(count: int, length: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(10, 1000, length)} for _ in range(count)]


def finalise(word: int) -> int:
    word = ((word ^ (word >> 30)) * FIRST) & WORD64
    word = ((word ^ (word >> 27)) * SECOND) & WORD64
    return word ^ (word >> 31)


def reference(ids: list[int], collate: MaskedLM, words: list[int] | None = None) -> Any:
    """One row, one token at a time, in plain integers."""
    total = sum(finalise((t * GOLDEN + p * FIRST) & WORD64) for p, t in enumerate(ids))
    key = finalise((collate.seed * SECOND + collate.epoch * FIRST + 1) & WORD64)
    row = finalise(key ^ (total & WORD64))

    def draw(place: int, purpose: int) -> int:
        return finalise((row + (place * 4 + purpose) * GOLDEN) & WORD64)

    out, labels = list(ids), [-100] * len(ids)
    special = {*collate.special_ids, collate.mask_id}
    ordinary = [i for i in range(collate.vocab_size) if i not in special]
    for place, token in enumerate(ids):
        group = place if words is None else words[place]
        if token in special or (draw(group, 1) >> 11) * 2.0**-53 >= collate.probability:
            continue
        labels[place] = token
        share = (draw(place, 2) >> 11) * 2.0**-53
        if share < collate.mask_share:
            out[place] = collate.mask_id
        elif share < collate.mask_share + collate.random_share:
            out[place] = ordinary[draw(place, 3) % len(ordinary)]
    return out, labels


@pytest.mark.parametrize("side", ["right", "left"])
def test_masks_equal_the_reference_whatever_the_batch(side: Any) -> None:
    """Item 16: a draw depends on seed, epoch and sample, not on the batch or its padding."""
    collate = replace(COLLATE, seed=5, epoch=2, padding_side=side, probability=0.4)
    rows = [s["input_ids"][: 3 + 7 * i].tolist() for i, s in enumerate(samples(4, 40))]
    batch = collate([{"input_ids": row} for row in rows])
    for row, ids, labels in zip(rows, batch["input_ids"], batch["labels"], strict=True):
        real = slice(0, len(row)) if side == "right" else slice(len(labels) - len(row), None)
        assert (ids[real].tolist(), labels[real].tolist()) == reference(row, collate)
        alone = collate([{"input_ids": row}])
        assert alone["labels"].tolist()[0] == labels[real].tolist()


def test_seeds_and_epochs_draw_anew() -> None:
    """Item 16: another seed or epoch is another draw; the same one the same, in any order."""
    some = samples(4, 200)
    first = COLLATE(some)["labels"]
    assert torch.equal(COLLATE(some[::-1])["labels"].flip(0), first)
    for other in (replace(COLLATE, seed=1), COLLATE.at_epoch(1)):
        labels = other(some)["labels"]
        both = (labels != -100) & (first != -100)
        assert abs(float(both.float().mean()) - 0.15**2) < 0.02


def test_how_often() -> None:
    """Item 16: the probability, and 80/10/10 of what is hidden, within four deviations."""
    for probability in (0.15, 0.5):
        some = samples(30, 500)
        batch = replace(COLLATE, probability=probability)(some)
        original = torch.from_numpy(np.stack([s["input_ids"] for s in some]))
        hidden = batch["labels"] != -100
        count, every = int(hidden.sum()), hidden.numel()
        assert abs(count - every * probability) < 4 * (every * probability) ** 0.5
        assert torch.equal(batch["labels"][hidden], original[hidden])
        assert torch.equal(batch["input_ids"][~hidden], original[~hidden])
        now, before = batch["input_ids"][hidden], original[hidden]
        shares = [int((now == MASK).sum()), int((now == before).sum())]
        for share, expected in zip(shares, (0.8, 0.1 + 0.1 / 996), strict=True):
            assert abs(share - count * expected) < 4 * (count * expected) ** 0.5
        drawn = now[(now != MASK) & (now != before)]
        assert int(drawn.min()) > MASK  # never a special token
        assert len(drawn.unique()) > len(drawn) / 4


def test_special_tokens_are_never_hidden() -> None:
    """Item 16: by id, by special_tokens_mask, and where the attention mask is 0."""
    all_hidden = replace(COLLATE, probability=1.0)
    batch = all_hidden([{"input_ids": [1, 50, 60, 2]}, {"input_ids": [1, 2]}])
    assert batch["labels"].tolist() == [[-100, 50, 60, -100], [-100] * 4]
    marked = all_hidden([{"input_ids": [50, 60], "special_tokens_mask": [1, 0]}])
    assert marked["labels"].tolist() == [[-100, 60]]
    assert "special_tokens_mask" not in marked
    masked = all_hidden([{"input_ids": [50, 60], "attention_mask": [0, 1]}])
    assert masked["labels"].tolist() == [[-100, 60]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_whole_words(side: Any) -> None:
    """Item 16: the tokens of a word are hidden together, by word_ids or by the vocabulary."""
    words = [None, 0, 0, 1, 1, 1, 2, None, 0, 0, None]
    row = [1, 10, 501, 11, 502, 503, 12, 2, 13, 504, 2]
    runs = [(1, 2), (3, 4, 5), (6,), (8, 9)]
    collate = replace(COLLATE, whole_words=True, probability=0.5, padding_side=side)
    by_vocabulary = replace(collate, continuations=tuple(range(500, 1000)))
    seen = set()
    for seed in range(20):
        for one, extra in ((collate, {"word_ids": words}), (by_vocabulary, {})):
            labels = replace(one, seed=seed)([
                {"input_ids": row, **extra},
                {"input_ids": [1, *row], **({"word_ids": [None, *words]} if extra else {})},
            ])["labels"][0]  # fmt: skip
            hidden = (labels[: len(row)] if side == "right" else labels[-len(row) :]) != -100
            assert not hidden[[0, 7, 10]].any()
            for run in runs:
                assert len({bool(hidden[place]) for place in run}) == 1
            seen.add(tuple(bool(hidden[run[0]]) for run in runs))
    assert len(seen) > 6
    with pytest.raises(UsageError, match="needs a field word_ids"):
        collate([{"input_ids": row}])


def test_workers_and_resuming_change_nothing() -> None:
    """Item 16: each epoch draws anew, and a batch is that of its epoch wherever it is made."""
    some = samples(8, 50)

    def made(**options: Any) -> Any:
        data = Collated(some, COLLATE)
        order, definition = collated_order(data, seed=0)
        return serve(data, 2, order=order, definition=definition, **options)

    loader = made()
    first = [batch["labels"].tolist() for batch in loader]
    iterator = iter(loader)
    second = [next(iterator)["labels"].tolist()]
    state = loader.state_dict()
    second += [batch["labels"].tolist() for batch in iterator]
    assert sorted(map(str, first)) != sorted(map(str, second))
    workers = made(num_workers=1)
    assert [batch["labels"].tolist() for batch in workers] == first
    assert [batch["labels"].tolist() for batch in workers] == second
    again = made()
    again.load_state_dict(state)
    assert [batch["labels"].tolist() for batch in again] == second[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 0}, "probability: must be more than 0"),
        ({"probability": 1.5}, "probability: must be from 0 to 1, got 1.5"),
        ({"mask_share": 0.95}, "random_share: is too much"),
        ({"mask_id": 1000}, "mask_id: 1000 is outside 0:1000"),
        ({"seed": -1}, "seed: must be at least 0"),
        ({"special_ids": tuple(range(1000))}, "special_ids: leave no token to draw"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    """Item 16: the probability is an option, and looked at."""
    with pytest.raises(UsageError, match=message):
        replace(COLLATE, **options)


def test_ids_of_another_vocabulary_are_named() -> None:
    """An id that the model has no embedding for is no reason to draw from nowhere."""
    with pytest.raises(SampleError, match=r"row 1 .*holds 1000, which is outside 0:1000"):
        COLLATE([{"input_ids": [5]}, {"input_ids": [1000]}])


def test_equal_samples_are_masked_independently() -> None:
    """Item 126: in a loader the number of a sample tells it from others with the same tokens."""
    same = [{"input_ids": list(range(10, 60))}] * 8
    data = Collated(same, COLLATE)
    order, definition = collated_order(data, seed=0, shuffle=False)
    loaders = [serve(data, size, order=order, definition=definition) for size in (8, 3)]
    labels, others = (torch.cat([batch["labels"] for batch in loader])[:6] for loader in loaders)
    assert len({tuple(row) for row in labels.tolist()}) == 6
    assert torch.equal(labels, others)
    alike = COLLATE(same)["labels"]
    assert (alike == alike[0]).all()
