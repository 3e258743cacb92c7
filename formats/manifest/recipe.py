"""What a dataset was built from, and how, as one digest: is this the same build?

`recipe_id` is the SHA-256 of the canonical JSON of ``["dataprep recipe 1", versions, kind, inputs,
parts]``. Inputs count by their content, `parts` are what else the output depends on. Names, engines
and counts are not among them. docs/format.md defines it in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..canonical import digest_of
from .common import FORMAT_VERSION, InputEntry

__all__ = ["recipe_id_of"]

_DOMAIN = "dataprep recipe 1"
_VERSIONS = {"format": FORMAT_VERSION, "content": 1, "split": 1}
"""A version is raised when equal inputs and parts no longer give equal data."""


def recipe_id_of(kind: str, inputs: Sequence[InputEntry], parts: Mapping[str, Any]) -> str:
    """Return the recipe id of a dataset of `kind` that is made from `inputs`, in their order.

    `parts` are JSON values.
    """
    contents = [[one.fingerprint, one.format, one.compression, one.bytes] for one in inputs]
    return digest_of([_DOMAIN, _VERSIONS, kind, contents, dict(parts)])
