"""Comparison of the order in a state with the order of a loader, and errors if they differ.

The order of a single dataset differs from the order of a mixture that has only this dataset. Two
mixtures of the same datasets in a different sequence also have different orders. Errors name open
datasets by their paths and all other datasets by their content ids. The advice in an error lists
the datasets to pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dataprep.formats.errors import IncompatibleError

from ..order.permutation import ALGORITHM, Order
from ..order.phased import phased
from .state_errors import damaged

__all__ = [
    "REMEDY",
    "OpenSplit",
    "ServedDatasets",
    "comparable",
    "contents_of",
    "require_algorithm",
    "require_datasets",
    "require_order",
    "served_datasets",
]

REMEDY = "Make the loader as it was made when the state was taken."
_ID = 16  # digits of a content id in the phases of a state
_SHOWN = 12  # digits of a content id in messages
# Fields that follow from others, and are not named beside them.
_FOLLOWING = {
    "samples", "positions", "sources", "period", "content", "weights_sha256", "content_sha256",
    "sha256",
}  # fmt: skip
_NAMES = {"kind": "rows", "positions": "samples in all"}


class OpenSplit(NamedTuple):
    """Content id of an open split, and the name of its dataset for messages."""

    content_id: str
    name: str


class ServedDatasets(msgspec.Struct, frozen=True, kw_only=True):
    """Datasets that a loader serves, and the fields in which its order may differ from a state.

    If `datasets` is empty, messages show content ids instead of names. The tuple `weights` is empty
    for a single dataset.
    """

    datasets: tuple[OpenSplit, ...] = ()
    weights: tuple[int, ...] = ()
    changing: frozenset[str] = frozenset()
    """Fields of the definition in which a state may differ."""
    changeable: frozenset[str] = frozenset()
    """Fields of the definition in which a state may differ with ``weights_changed=True``."""


def served_datasets(order: Order, samples: object) -> ServedDatasets:
    """Return the sources of `order` if it is a mixture, else the dataset of `samples`.

    Without a known dataset, the attribute `datasets` of the result is empty.
    """
    mixture = phased(order)
    if mixture is not None:
        return ServedDatasets(
            datasets=tuple(OpenSplit(source.content_id, source.name) for source in mixture.sources),
            weights=mixture.weights, changing=mixture.changing, changeable=mixture.changeable,
        )  # fmt: skip
    split = getattr(samples, "split", None)
    dataset = getattr(split, "dataset", None)
    if split is None or dataset is None:
        return ServedDatasets()
    return ServedDatasets(datasets=(OpenSplit(split.content_id, dataset.path),))


def require_order(
    state: Mapping[str, Any], order: Mapping[str, Any], served: ServedDatasets
) -> None:
    """Raise `IncompatibleError` unless the order in `state` equals `order`, a loader's definition.

    The fields in `served.changing` may differ. Raise `UsageError` if the order in `state` is
    missing or damaged.
    """
    stored = state.get("order")
    if not isinstance(stored, Mapping):
        raise damaged("it does not say which order it is of")
    require_algorithm(stored.get("algorithm"))
    odd = _differing(comparable(stored), comparable(order))
    names = [name for name in odd if name not in served.changing]
    mixed = _is_mixture(stored), _is_mixture(order)
    was = contents_of(state, stored)
    now = [found.content_id for found in served.datasets] or list(contents_of({}, order))
    common = {content[:_ID] for content in was} & {content[:_ID] for content in now}
    helps = bool(common) and all(mixed) and not served.changing
    helps = helps and served.changeable.issuperset(odd)
    other = " Or pass weights_changed=True to go on with other weights." if helps else ""
    # A long definition of a mixture does not list `content`, but each has its hash.
    contents = "content_sha256" if all(mixed) else "content"
    splits = stored.get("split") != order.get("split")
    if mixed[0] != mixed[1] or (contents in names and not splits):
        raise _other_datasets(mixed, was, now, served.datasets, other)
    if contents in names:
        names.append("split")
    if names:
        listed = ", ".join(_differences(state, stored, order, names, served.weights))
        raise IncompatibleError(
            f"is of another order: {listed}", where="state", code="E_STATE", remedy=REMEDY + other
        )


def comparable(definition: Any) -> Any:
    """Return `definition` without nulls and without fields named `split`, to compare or hash it.

    A null means the same as a missing field. The name of a split is only for messages, because the
    content id identifies the split. Nested objects are treated in the same way.

    >>> comparable({"kind": "windows", "split": "train", "labels": None})
    {'kind': 'windows'}
    """
    if isinstance(definition, Mapping):
        return {
            name: comparable(value)
            for name, value in definition.items()
            if value is not None and name != "split"
        }
    if isinstance(definition, list | tuple):
        return [comparable(value) for value in definition]
    return definition


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields whose values differ between two definitions."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def require_algorithm(found: object) -> None:
    """Raise `IncompatibleError` unless `found` equals `ALGORITHM`, the version of the sample order.

    The argument `found` is the field `algorithm` of a state. Raise `UsageError` if it is not an
    integer.
    """
    if type(found) is not int:
        raise damaged(f"algorithm {found!r}")
    if found != ALGORITHM:
        raise IncompatibleError(
            f"was taken with sample order {found}; this dataprep has {ALGORITHM}", where="state",
            code="E_VERSION", remedy="Install the dataprep that wrote it.",
        )  # fmt: skip


def require_datasets(
    state: Mapping[str, Any], datasets: Sequence[OpenSplit], *, mixed: bool
) -> None:
    """Raise `IncompatibleError` unless `state` was saved by a run on `datasets`, in this sequence.

    If `mixed` is True, the run must have served a mixture, otherwise a single dataset. Raise the
    errors of `require_algorithm` if the state has another version of the sample order. Differences
    in other options, such as the seed, are found by `require_order`.
    """
    stored: Mapping[str, Any] = state["order"]
    require_algorithm(stored.get("algorithm"))
    was, now = contents_of(state, stored), [found.content_id for found in datasets]
    of_mixture = _is_mixture(stored)
    if of_mixture and mixed and not was:
        return  # damaged: the loader reports it
    if of_mixture != mixed or [b[:_ID] for b in was] != [b[:_ID] for b in now]:
        raise _other_datasets((of_mixture, mixed), was, now, datasets, "")


def _is_mixture(order: Mapping[str, Any]) -> bool:
    return order.get("kind") == "mixture"


def contents_of(state: Mapping[str, Any], order: Mapping[str, Any]) -> Sequence[str]:
    """Return the content ids in `state`, or an empty list if there are none.

    The argument `order` is the order in the state. Some states contain only the first 16 digits of
    each id.
    """
    contents = order.get("content")
    if not isinstance(contents, list | tuple):
        sources = _last_phase(state).get("sources")
        contents = sources if isinstance(sources, list | tuple) else ()
        return [str(source)[:_ID] for source in contents]
    return list(map(str, contents))


def _last_phase(state: Mapping[str, Any]) -> Mapping[str, Any]:
    phases = state.get("phases")
    last = phases[-1] if isinstance(phases, list | tuple) and phases else None
    return last if isinstance(last, Mapping) else {}


def _other_datasets(
    mixed: tuple[bool, bool],
    was: Sequence[str],
    now: Sequence[str],
    datasets: Sequence[OpenSplit],
    other: str,
) -> IncompatibleError:
    """Return the error for a state of other datasets, or of the same datasets served differently.

    The same datasets are served differently if their sequence differs, or if one run served a
    mixture and the other a single dataset. The pair `mixed` says whether the state belongs to a
    mixture, and whether the loader serves a mixture. `was` and `now` are the content ids of the
    state and the loader. `other` is appended to the advice in the error.
    """
    of_state, of_this = _named(was, datasets), _named(now, datasets)
    code, remedy = "E_STATE_DATASET", "Open the dataset that it was taken on."
    same = bool(was) and _counted(was) == _counted(now)
    if same and mixed == (False, True):
        code, remedy = "E_STATE", "Give the dataset by itself, without a weight."
        problem = f"is of {of_state} by itself, and this is a mixture of that one dataset"
    elif same and mixed == (True, False):
        code, remedy = "E_STATE", "Give the dataset with a weight, as a mixture of one."
        problem = f"is of a mixture of {of_state} alone, and this is no mixture"
    elif same and all(mixed):
        code, remedy = "E_STATE", f"Give them, and their weights, in this order: {of_state}."
        problem = f"is of the same datasets in another order: {of_state}, not {of_this}"
    else:
        names = [f"a mixture of {text}" if of else text
                 for text, of in zip((of_state, of_this), mixed, strict=True)]  # fmt: skip
        problem = f"is of another dataset: {names[0]}, this one is {names[1]}"
        if mixed[0]:
            remedy = "Give all that it was taken on, in that order, each with its weight."
        elif mixed[1]:
            known = {found.content_id: found.name for found in datasets}
            alone = known.get(was[0]) if len(was) == 1 else None
            which = "the dataset that it was taken on" if alone is None else alone
            remedy = f"Give {which} by itself, without a weight."
    return IncompatibleError(problem, where="state", code=code, remedy=remedy + other)


def _counted(contents: Iterable[str]) -> Counter[str]:
    return Counter(content[:_ID] for content in contents)


def _named(contents: Sequence[str], datasets: Sequence[OpenSplit]) -> str:
    """Return a phrase that lists the datasets with the content ids `contents`.

    A dataset in `datasets` is listed by its name, any other dataset by the beginning of its content
    id.
    """
    left, names = list(datasets), []
    for content in contents:
        found = next((one for one in left if one.content_id[:_ID] == content[:_ID]), None)
        if found is not None:
            left.remove(found)
        names.append(f"content {content[:_SHOWN]}" if found is None else str(found.name))
    return _listed(names) if names else "datasets that it does not name"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _differences(
    state: Mapping[str, Any],
    stored: Mapping[str, Any],
    order: Mapping[str, Any],
    names: Sequence[str],
    weights: Sequence[int],
) -> list[str]:
    """Return a phrase such as "seed 1, not 2" for each of the fields `names`.

    These are the fields in which `stored` (the order in `state`) and `order` (the order of a
    loader) differ. `weights` are the weights of the loader. Fields that are computed from other
    fields, such as `period`, are left out, unless no field would remain.
    """
    pairs, following = {name: (stored.get(name), order.get(name)) for name in names}, _FOLLOWING
    if "weights_sha256" in pairs:
        known = stored.get("weights") or _last_phase(state).get("weights")
        pairs["weights"] = (known, order.get("weights") or list(weights))
    elif "weights_sha256" in order:  # equal weights, even if one of the two does not list them
        following = following | {"weights"}
    told = {name: pair for name, pair in pairs.items() if name not in following} or pairs
    both = {name for name in told if name == "weights" or (name in stored and name in order)}
    told = {name: pair for name, pair in told.items() if name in both} or told
    return [
        words for name, (a, b) in told.items() for words in _phrases(_NAMES.get(name, name), a, b)
    ]


def _phrases(name: str, was: Any, now: Any) -> list[str]:
    """Return a list with a phrase such as "seed 1, not 2" for the field `name`.

    The arguments `was` and `now` are the two values of the field. If both are objects, the list has
    a phrase for each entry in which they differ.
    """
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return [f"{name} {_brief(was)}, not {_brief(now)}"]
    return [
        words
        for key in _differing(comparable(was), comparable(now))
        for words in _phrases(f"{name} {key}", was.get(key), now.get(key))
    ]


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return _listed([_brief(one) for one in value])
    return "none" if value is None else str(value)[:24]
