"""What one configuration serves, as digests: for the programs of benchmarks/against.py.

Public names only, and both ways of naming rows: flat options, or a `rows` that says what a row is.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dataprep

__all__ = ["Case", "create", "digest", "digest_of", "each", "flat", "main", "name", "row_spec"]

MODULES = ("collate", "external", "profile", "seeding", "interop")
SPECS = hasattr(dataprep, "Windows")
"""Whether rows are described by objects."""
PASS, LATER, PLACE, AFTER = 120, 8, 5, 12
"""Batches of the first passes, of a later epoch, before the state, and after it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration: its name, and a function that makes its loader anew."""

    name: str
    make: Callable[[], Any]
    other: Callable[[], Any] | None = None
    """Makes the loader that goes on from the state; None: `make`."""


def each(options: dict[str, dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Return titles with their options."""
    return options.items()


def name(wanted: str) -> Any:
    """Return a public name, wherever it lives."""
    if hasattr(dataprep, wanted):
        return getattr(dataprep, wanted)
    for module in MODULES:
        with suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(f"dataprep.{module}"), wanted)
    raise AttributeError(f"no public {wanted}")


def flat(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows as the options of today."""
    options = {key: value for key, value in rows.items() if key != "of"}
    if "algorithm" in options:
        options["pack"] = options.pop("algorithm")
    if rows["of"] in ("windows", "packed", "documents"):
        options["rows"] = rows["of"]
    if rows["of"] == "preferences" and (form := options.pop("form", None)):
        options["rows"] = form
    return options


def row_spec(rows: Mapping[str, Any]) -> Any:
    """Return rows as an object."""
    kind = getattr(dataprep, rows["of"].capitalize())
    return kind(**{key: value for key, value in rows.items() if key != "of"})


def create(
    place: Any, split: str, size: int | None, rows: Mapping[str, Any] | str | None = None,
    mixture: Mapping[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Make a loader by whichever arguments `create_loader` has."""
    if "io" in options:
        how = options.pop("io")
        try:
            place = dataprep.open_dataset(place, io=how)
        except Exception as error:  # BASE may have no public name for it
            if getattr(error, "code", None) != "E_KIND":
                raise
            place = dataprep.open_arrays(place, io=how)
    if isinstance(rows, str):
        options["rows"] = rows
    elif rows is not None and SPECS:
        options["rows"] = row_spec(rows)
    elif rows is not None:
        options |= flat(rows)
    if mixture and SPECS:
        place = dataprep.Mixture(place, **mixture)
    elif mixture:
        options |= {"weigh_by" if key == "by" else key: v for key, v in mixture.items()}
    return dataprep.create_loader(place, split, size, **options)


def digest(batches: Iterator[Any]) -> tuple[str, int]:
    """Return SHA-256 over all that the batches are, and how many there were."""
    found, count = hashlib.sha256(), 0
    for batch in batches:
        add(found, batch)
        count += 1
    return found.hexdigest(), count


def digest_of(value: Any) -> str:
    """Return SHA-256 of one batch."""
    return digest(iter([value]))[0]


def add(found: Any, value: Any) -> None:
    """Take names, types, shapes and bytes into the hash."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            found.update(f"{key}:".encode())
            add(found, part)
    elif isinstance(value, tuple | list):
        found.update(f"{type(value).__name__} {len(value)}".encode())
        for part in value:
            add(found, part)
    elif isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    elif isinstance(value, np.ndarray):
        found.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    else:
        found.update(f"{type(value).__name__} {value!r}".encode())


def passes(loader: Any) -> Generator[Any]:
    """Pass after pass, each of which is an epoch; ends where one has no batches."""
    while True:
        count = 0
        for count, batch in enumerate(loader, 1):  # noqa: B007  (how many there were)
            yield batch
        if count == 0:
            return


def served(case: Case) -> dict[str, Any]:
    """Return digests of the first epochs, of a later one, a state, and what follows it."""
    loader = case.make()
    found: dict[str, Any] = {}
    found["batches"] = digest(itertools.islice(passes(loader), PASS))
    if hasattr(loader, "set_epoch"):
        later = case.make()
        later.set_epoch(3)
        found["later"] = digest(itertools.islice(passes(later), LATER))
    loader = case.make()
    running = passes(loader)
    for _ in itertools.islice(running, PLACE):
        pass
    found["order_digest"] = getattr(loader, "order_digest", None)
    if not hasattr(loader, "state_dict"):
        return found
    found["state"] = json.loads(json.dumps(loader.state_dict()))
    if case.other is None:
        found["after"] = digest(itertools.islice(running, AFTER))
        running.close()
        found["resumed"] = resumed(case, found["state"]) == found["after"]
    else:
        found["after"] = resumed(case, found["state"])
    return found


def resumed(case: Case, state: Any) -> tuple[str, int]:
    """Return the digest of what a new loader serves from `state` on."""
    loader = (case.other or case.make)()
    loader.load_state_dict(state)
    return digest(itertools.islice(passes(loader), AFTER))


def versions(state: Any) -> list[Any]:
    """Return every version in a state."""
    if not isinstance(state, Mapping):
        return []
    inner = [version for value in state.values() for version in versions(value)]
    return [state["version"], *inner] if "version" in state else inner


def gone_on(case: Case, state: Any) -> dict[str, Any] | None:
    """Return what follows another checkout's state; None: it is of a newer version than ours."""
    loader = case.make()
    for _ in itertools.islice(passes(loader), 1):
        pass
    mine = versions(json.loads(json.dumps(loader.state_dict())))
    if any(theirs > ours for theirs, ours in zip(versions(state), mine, strict=False)):
        return None
    return {"after": resumed(case, state)}


def attempted(work: Callable[[], Any]) -> Any:
    """Return what `work` gives, or how it failed: messages may name other options."""
    try:
        return work()
    except Exception as error:  # whatever it is, the other side must do the same
        return {"error": f"{type(error).__name__} {getattr(error, 'code', error)}"}
    finally:
        gc.collect()


def main(cases: Callable[[Path], Iterator[Case]]) -> None:
    """Print the digests of all cases; with ``--states FILE`` what follows those states."""
    datasets, only, *more = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    states = json.loads(Path(more[1]).read_text()) if more else {}
    words, found = [word for word in only.split(",") if word], {}
    for case in cases(Path(datasets)):
        if words and not any(word in case.name for word in words):
            continue
        if case.name in found:
            raise SystemExit(f"two cases are called {case.name}")
        if not more:
            found[case.name] = attempted(lambda case=case: served(case))  # type: ignore[misc]
        elif state := states.get(case.name, {}).get("state"):
            made = attempted(lambda case=case, state=state: gone_on(case, state))  # type: ignore[misc]
            if made is not None:
                found[case.name] = made
    print(json.dumps(found))
