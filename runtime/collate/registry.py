"""Registry of collators by name and by modality, with a default for each task.

    @register("spectrogram", modality="audio", description="waveforms to spectrograms")
    def make(task_spec=None, n_fft=512):
        return Spectrogram(n_fft)

    collate = registry().get_collator(task_spec=task, n_fft=1024)

What is registered makes a collator: it gets the options of the call, and `task_spec` and
`tokenizer` if it takes arguments of these names. Whatever it raises is raised. A name beats a
modality; of several of one modality the one with the highest `precedence` is taken, of equal ones
the first that was registered. Only a modality that nobody has registered gets the default collator,
with a warning. A registry is an object: `CollatorRegistry()` has the built-in ones and shares
nothing with `registry()`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from dataprep.formats.errors import UsageError, require

from ..types import Collate
from .fallback import Default

__all__ = ["CollatorInfo", "CollatorRegistry", "MakeCollate", "register", "registry"]

MakeCollate = Callable[..., Any]
_Made = TypeVar("_Made", bound=MakeCollate)
_GIVEN = ("task_spec", "tokenizer")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollatorInfo:
    """One registered collator."""

    name: str
    modality: str | None
    description: str
    precedence: int
    make: MakeCollate


class CollatorRegistry:
    """Names, and what makes the collator of each.

    `builtin=False` is an empty one.

    >>> mine = CollatorRegistry()
    >>> @mine.register("pairs", modality="pairs", description="two texts")
    ... def make(tokenizer=None, pad_id=0):
    ...     return Default(report=False)
    >>> mine.get_collator("pairs", pad_id=3)
    Default(report=False, schema=OutputSchema(fields={}), tensors=True)
    >>> "pairs" in registry()
    False
    """

    _shared: CollatorRegistry | None = None

    def __init__(self, *, builtin: bool = True) -> None:
        self._builtin = builtin
        self._found: dict[str, CollatorInfo] = {}
        self.reset()

    @classmethod
    def get_instance(cls) -> CollatorRegistry:
        """Return the registry that this process shares."""
        if CollatorRegistry._shared is None:
            CollatorRegistry._shared = CollatorRegistry()
        return CollatorRegistry._shared

    def reset(self) -> None:
        """Remove all collators that were registered since the registry was made."""
        self._found = {}
        if self._builtin:
            from .builtin import register_builtin

            register_builtin(self)

    def copy(self) -> CollatorRegistry:
        """Return another registry with the same collators."""
        other = CollatorRegistry(builtin=False)
        other._builtin = self._builtin
        other._found = dict(self._found)
        return other

    def register(
        self,
        name: str,
        *,
        modality: str | None = None,
        description: str = "",
        precedence: int = 0,
        overwrite: bool = False,
    ) -> Callable[[_Made], _Made]:
        """Return a decorator that registers a function which makes a collator, and returns it.

        Without `modality` it is found by name alone. Raises `UsageError` for a name that is taken,
        unless `overwrite`.
        """
        require(isinstance(name, str) and bool(name), "name", f"must be a name, got {name!r}")

        def add(make: _Made) -> _Made:
            require(callable(make), name, f"must be what makes a collator, got {make!r}")
            if name in self._found and not overwrite:
                raise UsageError(
                    f"is registered already ({self._found[name].description or 'no description'})",
                    where=f"collator {name!r}", code="E_REGISTERED",
                    remedy="Use another name, or overwrite=True.",
                )  # fmt: skip
            about = description or (inspect.getdoc(make) or "").partition("\n")[0]
            self._found[name] = CollatorInfo(
                name=name, modality=modality, description=about, precedence=precedence, make=make
            )
            return make

        return add

    def unregister(self, name: str) -> None:
        """Forget one. Raises `UsageError` where there is none of this name."""
        self._named(name)
        del self._found[name]

    def list_collators(self, modality: str | None = None) -> list[CollatorInfo]:
        """Return all collators, or those of a modality, in the order of preference."""
        found = [i for i in self._found.values() if modality is None or i.modality == modality]
        return sorted(found, key=lambda info: -info.precedence)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get_collator(
        self,
        collator_name: str | None = None,
        *,
        task_spec: Any = None,
        tokenizer: Any = None,
        modality: str | None = None,
        **options: Any,
    ) -> Collate:
        """Return the collator of this name, else of this modality, else of the task's modality.

        `options` are for what makes it; none is dropped. A task is anything with a `modality`.

        Raises `UsageError` without name, modality and task; for an unknown name; for options that
        are not taken; and whatever the maker raises.
        """
        if collator_name is not None:
            return self._made(self._named(collator_name), task_spec, tokenizer, options)
        wanted = modality if modality is not None else getattr(task_spec, "modality", None)
        if wanted is None:
            raise UsageError(
                "neither a name, nor a modality, nor a task that has one is given",
                where="get_collator", code="E_NO_COLLATOR",
                remedy=f"Pass task_spec, or one of these names: {', '.join(self._found)}.",
            )  # fmt: skip
        found = self.list_collators(wanted)
        if found:
            return self._made(found[0], task_spec, tokenizer, options)
        known = sorted({info.modality for info in self._found.values() if info.modality})
        warnings.warn(
            f"no collator is registered for the modality {wanted!r} (there are {', '.join(known)}):"
            " samples are stacked by the default collator",
            stacklevel=2,
        )
        return cast("Collate", Default(**_accepted(options, "default")))

    def _named(self, name: str) -> CollatorInfo:
        if name not in self._found:
            raise UsageError(
                f"there is no collator {name!r}", where="collator_name", code="E_NO_COLLATOR",
                remedy=f"There are: {', '.join(self._found) or 'none'}.",
            )  # fmt: skip
        return self._found[name]

    @staticmethod
    def _made(
        info: CollatorInfo, task_spec: Any, tokenizer: Any, options: Mapping[str, Any]
    ) -> Collate:
        given = dict(zip(_GIVEN, (task_spec, tokenizer), strict=True))
        signature = inspect.signature(info.make)
        anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        named = {k: v for k, v in given.items() if k in signature.parameters}
        passed = {k: v for k, v in given.items() if anything and v is not None} | named
        try:
            signature.bind(**passed, **options)
        except TypeError as error:
            takes = ", ".join(k for k in signature.parameters if k not in _GIVEN)
            raise UsageError(
                f"{error}", where=f"collator {info.name!r}", remedy=f"It takes: {takes}."
            ) from None
        made = info.make(**passed, **options)
        if not callable(made):
            raise UsageError(
                f"its maker gave a {type(made).__name__}, not a collate function",
                where=f"collator {info.name!r}",
            )
        return cast("Collate", made)


def _accepted(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options, if the default collator takes them all."""
    takes = set(inspect.signature(Default).parameters)
    unknown = sorted(set(options) - takes)
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)}: no such option", where=f"collator {name!r}",
            remedy=f"It takes: {', '.join(sorted(takes))}.",
        )  # fmt: skip
    return dict(options)


def registry() -> CollatorRegistry:
    """Return the registry that this process shares."""
    return CollatorRegistry.get_instance()


def register(
    name: str,
    *,
    modality: str | None = None,
    description: str = "",
    precedence: int = 0,
    overwrite: bool = False,
) -> Callable[[_Made], _Made]:
    """Return `CollatorRegistry.register` of the shared registry."""
    return registry().register(
        name, modality=modality, description=description, precedence=precedence, overwrite=overwrite
    )
