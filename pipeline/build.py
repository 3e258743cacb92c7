"""Public functions that build datasets, and estimate builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.formats.manifest.tokens import Manifest

from .chat.options import ChatOptions
from .kinds import kind_named
from .options import BuildOptions
from .progress import ProgressCallback
from .report import BuildReport
from .run import run_build, run_estimate

if TYPE_CHECKING:
    from .chat.estimate import ChatEstimate
    from .tokens.estimate import TokenEstimate

__all__ = ["build", "build_chat", "estimate", "estimate_chat"]


def build(
    options: BuildOptions, *, progress: ProgressCallback | None = None
) -> BuildReport[Manifest]:
    """Build the dataset of tokens that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped.

        >>> from pathlib import Path
        >>> options = BuildOptions(input=("data.jsonl",), out=Path("shards"))
        >>> build(options).manifest.records.written         # doctest: +SKIP
        7437
    """
    return run_build(kind_named("tokens"), options, progress=progress)


def build_chat(
    options: ChatOptions, *, progress: ProgressCallback | None = None
) -> BuildReport[Manifest]:
    """Build the dataset of conversations that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped. `progress` counts conversations as documents.

        >>> options = ChatOptions(input="chat.jsonl", out="shards",
        ...                       template="chatml")                        # doctest: +SKIP
        >>> build_chat(options).manifest.chat.trained_tokens                # doctest: +SKIP
        612345
    """
    return run_build(kind_named("chat"), options, progress=progress)


def estimate(options: BuildOptions) -> TokenEstimate:
    """Look at the inputs and return what a build would take; write nothing.

    Raises what a build would raise before its work begins, for what stands in `out` as well.
    """
    found: TokenEstimate = run_estimate(kind_named("tokens"), options)  # type: ignore[assignment]
    return found


def estimate_chat(options: ChatOptions) -> ChatEstimate:
    """Look at the inputs and return what a build would take, and how long conversations are.

    Raises what a build would raise before its work begins, for what stands in `out` as well.
    """
    found: ChatEstimate = run_estimate(kind_named("chat"), options)  # type: ignore[assignment]
    return found
