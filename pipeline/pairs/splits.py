"""Splits of a build of pairs: each question, with all its pairs, is in one split.

Splits are stratified by cluster. Within a cluster the questions are sorted by a hash of their text
and the seed, so their order in the input does not matter. Train gets at least one question of each
cluster. Val gets at least one of each cluster with two or more questions. If train or val does not
exist, the next split in order takes its place. Clusters are processed one after another. In each,
the remaining questions go to the splits that are furthest below their ratio of all questions up to
and including this cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, require

from ..options import refuse_device
from ..plan.splits import hash_keys
from .csr import Ints
from .merge import MergedPairs
from .options import DEFAULT_SPLIT, PairOptions, ratios_of
from .table import PairTable

__all__ = ["given_splits", "main_cluster", "require_splits", "split_questions", "splits_of"]

_FIRST = ("train", "val")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def main_cluster(questions: Ints, clusters: Ints, count: int) -> Ints:
    """Return int64 [count]: the cluster to which most pairs of each question belong.

    Pair i has the question ``questions[i]`` and the cluster ``clusters[i]``, which is -1 if the
    pair has no cluster. At a tie the lowest number wins.

    >>> main_cluster(np.array([0, 0, 0, 1]), np.array([2, 1, 2, -1]), 2).tolist()
    [2, -1]
    """
    width = int(clusters.max(initial=-1)) + 2
    keys, votes = np.unique(questions * width + clusters + 1, return_counts=True)
    order = np.lexsort((keys % width, -votes, keys // width))
    owners, first = np.unique((keys // width)[order], return_index=True)
    result = np.full(count, -1, np.int64)
    result[owners] = (keys % width)[order][first] - 1
    return result


def split_questions(
    texts: Sequence[str], clusters: Ints, shares: Mapping[str, float], seed: int
) -> Ints:
    """Return int64 [questions]: the split of each question, as an index into `shares`.

    `texts` and `clusters` have one item for each question. The ratios in `shares` add up to 1.
    """
    names, ratios = list(shares), np.array(list(shares.values()))
    guaranteed = _guaranteed(names, ratios)
    hashes = hash_keys([text.encode("utf-8", "surrogatepass") for text in texts], seed)
    order = np.lexsort((np.arange(len(texts)), hashes, clusters))
    _, starts = np.unique(clusters[order], return_index=True)
    result = np.empty(len(texts), np.int64)
    owed = np.zeros(len(names))
    for members in np.split(order, starts[1:]):
        owed += ratios * len(members)
        sizes = _sizes(len(members), owed, guaranteed)
        owed -= sizes
        # The guaranteed splits take the first questions of a cluster.
        for split in sorted(range(len(names)), key=lambda n: (n not in guaranteed, n)):
            result[members[: sizes[split]]] = split
            members = members[sizes[split] :]  # noqa: PLW2901
    return result


def _guaranteed(names: Sequence[str], ratios: npt.NDArray[np.float64]) -> list[int]:
    """Return the indices of the splits that get at least one question of each cluster.

    These are the first two splits with a ratio above 0. ``train`` comes first, then ``val``, then
    the others in the order of `names`. If a cluster has only one question, the first of the two
    splits gets it.
    """
    wanted = [n for n in range(len(names)) if ratios[n] > 0]
    first = len(_FIRST)
    wanted.sort(key=lambda n: (_FIRST.index(names[n]) if names[n] in _FIRST else first, n))
    return wanted[:first]


def _sizes(count: int, owed: npt.NDArray[np.float64], guaranteed: Sequence[int]) -> Ints:
    """Return int64 [splits]: how many of the `count` questions of a cluster each split gets.

    ``owed[i]`` is the number of questions that split i lacks: its ratio of all questions up to and
    including the cluster, minus the number that it has already. First, each split in `guaranteed`
    gets one question, as long as there are questions. The others are distributed in proportion to
    what the splits still lack.
    """
    sizes = np.zeros(len(owed), np.int64)
    for split in guaranteed[:count]:
        sizes[split] = 1
    left = count - int(sizes.sum())
    room = np.maximum(owed - sizes, 0)
    room *= left / room.sum() if room.sum() > 0 else 0
    sizes += room.astype(np.int64)
    for split in np.argsort(-(room % 1), kind="stable")[: count - int(sizes.sum())]:
        sizes[split] += 1
    return sizes


def given_splits(pairs: MergedPairs) -> tuple[list[str], Ints]:
    """Return the split names in `pairs`, and the index of each question's split, int64 [questions].

    Raise `InputError` if a question is in two splits or in none, and `UsageError` if a name is
    invalid.
    """
    for name in pairs.split_names:
        require(
            bool(_NAME.fullmatch(name)), "--split",
            f"the column names a split {name!r}; names are of a-z, 0-9 and _",
        )  # fmt: skip
        refuse_device(name, "--split")
    problem = None
    if pairs.in_two_splits is not None:
        text, first, second = pairs.in_two_splits
        problem = f"the question {text[:80]!r} is in {first} and in {second}"
    elif (pairs.split < 0).any():
        text = pairs.questions[int(np.argmax(pairs.split < 0))]
        problem = f"the question {text[:80]!r} is in no split"
    if problem:
        raise InputError(
            problem, where="--split", code="E_LEAK" if pairs.in_two_splits else "E_NO_SPLIT",
            remedy="Give every row of a question the same split, or leave the splitting to "
            "--split NAME=RATIO,...",
        )  # fmt: skip
    return pairs.split_names, pairs.split


def splits_of(options: PairOptions, table: PairTable, clusters: Ints) -> dict[str, Ints]:
    """Return the pair numbers of each split by name, in increasing order.

    The split of a pair is given by a column or by the option `split_input`, or follows from ratios.
    Raise `InputError` or `UsageError` if the splits in the input are invalid.
    """
    pairs = table.pairs
    if _splits_are_given(options, table):
        names, of_question = given_splits(pairs)
    else:
        shares = options.shares() or ratios_of(DEFAULT_SPLIT)
        main = main_cluster(pairs.question, clusters, len(pairs.questions))
        names = list(shares)
        of_question = split_questions(pairs.questions, main, shares, options.seed)
    of_pair = of_question[pairs.question]
    return {name: np.flatnonzero(of_pair == number) for number, name in enumerate(names)}


def require_splits(options: PairOptions, table: PairTable) -> None:
    """Raise `InputError` or `UsageError` if the splits in the input are invalid.

    `splits_of` would raise the same errors, but it needs the clusters, which take long to compute.
    """
    if _splits_are_given(options, table):
        given_splits(table.pairs)


def _splits_are_given(options: PairOptions, table: PairTable) -> bool:
    """Return whether a column or the option `split_input` gives the split of each question.

    Raise `InputError` if the option `split` requires a column of splits and no input has it.
    """
    by_column = options.shares() is None and "split" in table.present
    given = bool(options.split_input) or by_column
    if options.split == "column" and not given:
        raise InputError(
            "no input has a column of splits", where="--split column", code="E_COLUMN",
            remedy="Name it with --columns split=NAME, or give ratios.",
        )  # fmt: skip
    return given
