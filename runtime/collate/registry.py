"""Registry of collators by name and by modality.

    registry = CollatorRegistry.get_instance()

    @registry.register("spectrogram", modality="audio", description="waveforms to spectrograms")
    def make(task_spec=None, n_fft=512):
        return Spectrogram(n_fft)

    collate = registry.get_collator(task_spec=task, n_fft=1024)

A registered function returns a collator. It gets the options of the call, and `task_spec` and
`tokenizer` if it has parameters with these names. Its errors are not caught.

A collator is looked up by name if a name is given, else by modality. Among the collators of a
modality, the one with the highest `precedence` is used, and at equal precedence the one that was
registered first. For a modality without a collator the default collator is returned, with a
warning.
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

__all__ = ["CollatorInfo", "CollatorRegistry", "MakeCollate"]

MakeCollate = Callable[..., Any]
_Made = TypeVar("_Made", bound=MakeCollate)
_GIVEN = ("task_spec", "tokenizer")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollatorInfo:
    """Description of a registered collator, with the function that makes it."""

    name: str
    modality: str | None
    description: str
    precedence: int
    make: MakeCollate


class CollatorRegistry:
    """Registry of functions that make collators. With `builtin=False`, it is empty at first.

    Registries are independent of each other. `get_instance` returns the registry that this process
    shares.

    >>> mine = CollatorRegistry()
    >>> @mine.register("pairs", modality="pairs", description="two texts")
    ... def make(tokenizer=None, pad_id=0):
    ...     return Default(report=False)
    >>> mine.get_collator("pairs", pad_id=3)
    Default(report=False, schema=OutputSchema(fields={}), tensors=True)
    >>> "pairs" in CollatorRegistry.get_instance()
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
        """Remove all collators except the built-in collators.

        In a registry made with `builtin=False`, remove all.
        """
        self._found = {}
        if self._builtin:
            from .builtin import register_builtin

            register_builtin(self)

    def copy(self) -> CollatorRegistry:
        """Return a new registry with the same collators."""
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
        """Return a decorator that registers a function which makes collators.

        If `modality` is None, the function is found by name only. The decorator raises `UsageError`
        if the name is registered already, unless `overwrite` is True.
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
        """Remove the collator `name`; raise `UsageError` if there is none."""
        self._named(name)
        del self._found[name]

    def list_collators(self, modality: str | None = None) -> list[CollatorInfo]:
        """Return descriptions of the collators of `modality`, or of all collators if it is None.

        They are in descending order of precedence, and at equal precedence in order of
        registration.
        """
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
        """Return the collator called `collator_name`, or a collator for a modality if it is None.

        If `modality` is None, the attribute `modality` of `task_spec` is used. The keyword
        arguments `options` are passed to the registered function. If no collator is registered for
        the modality, warn and return a `Default`.

        Raise `UsageError` if no name, modality or task is given, if the name is unknown, or if the
        registered function does not have an option. Errors of that function are raised unchanged.
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
        return cast("Collate", Default(**_accepted(options)))

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


def _accepted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of `options`; raise `UsageError` if the default collator lacks an option."""
    takes = set(inspect.signature(Default).parameters)
    unknown = sorted(set(options) - takes)
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)}: no such option", where="collator 'default'",
            remedy=f"It takes: {', '.join(sorted(takes))}.",
        )  # fmt: skip
    return dict(options)
