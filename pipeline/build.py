"""Public functions that build datasets, or estimate the time and space of builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.formats.errors import UsageError
from dataprep.formats.manifest.arrays import ArrayManifest
from dataprep.formats.manifest.tokens import Manifest

from .chat.options import ChatOptions
from .embeddings.options import EmbeddingOptions
from .encode.options import Encoder
from .kinds import kind_named
from .options import BuildOptions
from .pairs.options import PairOptions
from .progress import ProgressCallback
from .report import BuildReport
from .run import run_build, run_estimate

if TYPE_CHECKING:
    from .chat.estimate import ChatEstimate
    from .embeddings.estimate import EmbeddingEstimate
    from .pairs.estimate import PairEstimate
    from .pairs.kind import PairKind
    from .tokens.estimate import TokenEstimate

__all__ = [
    "build",
    "build_chat",
    "build_embeddings",
    "build_pairs",
    "estimate",
    "estimate_chat",
    "estimate_embeddings",
    "estimate_pairs",
]


def build(
    options: BuildOptions, *, progress: ProgressCallback | None = None
) -> BuildReport[Manifest]:
    """Build the dataset of tokens that `options` describe, and return a report.

    The function `progress` is called with snapshots of the build. Raise an error of
    `dataprep.formats.errors` if the build fails. After an error, or if the process is killed, the
    same call resumes the build.

        >>> from pathlib import Path
        >>> options = BuildOptions(input=("data.jsonl",), out=Path("shards"))
        >>> build(options).manifest.records.written         # doctest: +SKIP
        7437
    """
    return run_build(kind_named("tokens"), options, progress=progress)


def build_chat(
    options: ChatOptions, *, progress: ProgressCallback | None = None
) -> BuildReport[Manifest]:
    """Build the dataset of conversations that `options` describe, and return a report.

    The function `progress` is called with snapshots of the build, in which each conversation counts
    as a document. Raise an error of `dataprep.formats.errors` if the build fails. After an error,
    or if the process is killed, the same call resumes the build.

        >>> options = ChatOptions(input="chat.jsonl", out="shards",
        ...                       template="chatml")                        # doctest: +SKIP
        >>> build_chat(options).manifest.chat.trained_tokens                # doctest: +SKIP
        612345
    """
    return run_build(kind_named("chat"), options, progress=progress)


def build_embeddings(
    options: EmbeddingOptions, *, progress: ProgressCallback | None = None
) -> BuildReport[ArrayManifest]:
    """Build the dataset of embeddings that `options` describe, and return a report.

    The function `progress` is called with snapshots of the build, in which each row counts as a
    document. Raise an error of `dataprep.formats.errors` if the build fails. After an error, or if
    the process is killed, the same call resumes the build.

        >>> from dataprep import EmbeddingOptions
        >>> options = EmbeddingOptions(input="vectors.npy", out="shards")
        >>> build_embeddings(options).manifest.arrays["embedding"].row      # doctest: +SKIP
        (384,)
    """
    return run_build(kind_named("embeddings"), options, progress=progress)


def build_pairs(
    options: PairOptions, *, encoder: Encoder | None = None,
    progress: ProgressCallback | None = None,
) -> BuildReport[ArrayManifest]:  # fmt: skip
    """Build the dataset of pairs that `options` describe, and return a report.

    The callable `encoder` computes the vectors that are not given in files. If it is given,
    ``options.encoder`` must be a name for it; otherwise ``options.encoder`` names a
    sentence-transformers model. The function `progress` is called with snapshots of the build.
    Raise an error of `dataprep.formats.errors` if the build fails. After an error, or if the
    process is killed, the same call resumes the build.

        >>> from dataprep import PairOptions
        >>> options = PairOptions(input="pairs.csv", out="pairs", encoder="all-MiniLM-L6-v2")
        >>> build_pairs(options).manifest.rows                         # doctest: +SKIP
        7473
    """
    return run_build(_pair_kind(options, encoder), options, progress=progress)


def _pair_kind(options: PairOptions, encoder: Encoder | None) -> PairKind:
    from .pairs.kind import PairKind

    if encoder is not None and options.encoder is None:
        raise UsageError(
            "a callable needs a name, by which its vectors are known again", where="encoder",
            remedy="Give PairOptions(encoder=NAME) too.",
        )  # fmt: skip
    return PairKind(encoder)


def estimate(options: BuildOptions) -> TokenEstimate:
    """Return an estimate of the build, made from a sample of the inputs. Nothing is written.

    Raise the errors that a build raises before it processes the inputs, including errors about the
    output directory.
    """
    found: TokenEstimate = run_estimate(kind_named("tokens"), options)  # type: ignore[assignment]
    return found


def estimate_chat(options: ChatOptions) -> ChatEstimate:
    """Return an estimate of the build, with lengths of conversations, made from a sample.

    Nothing is written. Raise the errors that a build raises before it processes the inputs,
    including errors about the output directory.
    """
    found: ChatEstimate = run_estimate(kind_named("chat"), options)  # type: ignore[assignment]
    return found


def estimate_embeddings(options: EmbeddingOptions) -> EmbeddingEstimate:
    """Return an estimate of the build, made from a sample of the inputs. Nothing is written.

    Raise the errors that a build raises before it processes the inputs, including errors about the
    output directory.
    """
    found: EmbeddingEstimate = run_estimate(kind_named("embeddings"), options)  # type: ignore[assignment]
    return found


def estimate_pairs(options: PairOptions, *, encoder: Encoder | None = None) -> PairEstimate:
    """Return an estimate of the build, made after reading the tables. Nothing is written.

    The callable `encoder` is described at `build_pairs`. Raise the errors that a build raises
    before or while it reads the tables, including errors about the output directory.
    """
    found: PairEstimate = run_estimate(_pair_kind(options, encoder), options)  # type: ignore[assignment]
    return found
