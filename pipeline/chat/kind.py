"""The build kind "chat", which makes datasets of conversations and preferences."""

from __future__ import annotations

import hashlib

from dataprep.formats.manifest.tokens import ChatEntry, Manifest

from ..kinds import Context
from ..tokens.estimate import TokenEstimate, estimate
from ..tokens.kind import TokenBuild, early_tokenizer, sample_bytes
from ..tokens.reuse import difference
from .estimate import estimate_lengths
from .options import ChatOptions
from .overlong import OVERLONG
from .prepare import ChatPrepared, ChatSurvey, prepare_chat, survey_chat
from .worker import ChatTasks

__all__ = ["ChatKind"]


class ChatKind(TokenBuild[ChatPrepared]):
    """Implementation of `kinds.Kind` for builds of conversations."""

    name = "chat"
    address = ChatTasks.address

    def survey(self, options: ChatOptions) -> ChatSurvey:
        """Return the inputs and the template that `options` name."""
        return survey_chat(options)

    def prepare(self, options: ChatOptions, survey: ChatSurvey, context: Context) -> ChatPrepared:
        """Return the plan, with tokenizer and engine, and a rendered sample of the input."""
        return prepare_chat(
            options, survey, sample_bytes=sample_bytes(context), workers=context.early,
            early=early_tokenizer(context),
            engine_problem=context.refused, mark=context.mark,
        )  # fmt: skip

    def difference(self, existing: Manifest, prepared: ChatPrepared) -> str | None:
        """Return how `existing` differs from the dataset to be built, or None if it does not."""
        drops = existing.options.get("overlong") == "drop"
        return difference(existing, prepared, frozenset({OVERLONG}) if drops else frozenset())

    def estimate(self, prepared: ChatPrepared, *, details: bool = False) -> TokenEstimate:
        """Return an estimate of the build's size and time.

        With `details`, the estimate includes the lengths of conversations.
        """
        return estimate_lengths(prepared) if details else estimate(prepared, mask=True)

    def chat_entry(self, prepared: ChatPrepared) -> tuple[ChatEntry, bytes]:
        """Return the manifest entry for conversations, and the chat template as bytes.

        The counts in the entry are 0, because they are known only at the end of the build.
        """
        chat, template = prepared.plan.payload.chat, prepared.plan.payload.chat.template.encode()
        entry = ChatEntry(
            template="chat_template.jinja", template_origin=prepared.template_origin,
            template_sha256=hashlib.sha256(template).hexdigest(),
            masked_by=prepared.chat.masked_by, train_on=chat.train_on, form=chat.form,
            max_tokens=chat.max_tokens, overlong=chat.overlong, overlong_found={},
            trained_tokens=0,
        )  # fmt: skip
        return entry, template
