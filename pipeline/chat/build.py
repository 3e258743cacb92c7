"""`dataprep build --kind chat`: conversations and preferences into tokens with a loss mask.

Planned, done in units, resumed and committed as a build of text is (see `dataprep.pipeline.build`).
"""

from __future__ import annotations

from ..build import BuildReport, build_prepared
from ..execute.progress import ProgressCallback
from .options import ChatOptions
from .prepare import prepare_chat, survey_chat

__all__ = ["build_chat"]


def build_chat(options: ChatOptions, *, progress: ProgressCallback | None = None) -> BuildReport:
    """Build the dataset of conversations that `options` describe.

    Raises the errors of `dataprep.formats.errors`; after any of them, and after being killed, the
    same call goes on where it stopped. `progress` counts conversations as documents.

        >>> options = ChatOptions(input="chat.jsonl", out="shards", template="chatml")
        >>> build_chat(options).manifest.chat.trained_tokens                # doctest: +SKIP
        612345
    """
    return build_prepared(options, survey_chat, prepare_chat, progress=progress)
