"""Preferences: records whose answers are compared, judged or rewarded (pairs, labels, groups).

Each answer becomes a `Conversation`. Its field `prompt` is the number of messages before the
answer. These messages are the same in all conversations of a record.
"""

from __future__ import annotations

import math
from typing import Any

from ...read.json_lines import BadLineError, kind_of
from .conversation import ChatRecord, Conversation
from .turns import Message, Train, Turns, shifted, transcript

__all__ = ["Answers", "answer_start", "labelled"]

_ASKING = ("system", "developer", "user")
_NO_PROMPT = (
    "'chosen' and 'rejected' are texts, and no prompt stands beside them: give it in 'prompt', or "
    "whole conversations as lists of turns, or as texts of the form "
    r"'\n\nHuman: ...\n\nAssistant: ...'"
)


def answer_start(messages: list[Message]) -> int:
    """Return the index of the first message after the last system, developer or user message, or 0.

    >>> answer_start([{"role": "user"}, {"role": "assistant"}, {"role": "tool"}])
    1
    """
    for at in range(len(messages), 0, -1):
        if messages[at - 1]["role"] in _ASKING:
            return at
    return 0


def labelled(conversation: Conversation, label: Any) -> ChatRecord:
    """Return the record of a conversation with an answer labelled good (True) or bad (False).

    If `conversation.prompt` is 0, it is set to `answer_start(conversation.messages)`. Raise
    `BadLineError` if `label` is not a boolean, or if there is no prompt or no answer.
    """
    if not isinstance(label, bool):
        raise BadLineError(
            "bad_label",
            f"'label' is a JSON {kind_of(label)}, neither true nor false "
            "(--form chat reads the conversation alone)",
        )
    if not conversation.prompt:
        conversation.prompt = answer_start(conversation.messages)
    if conversation.prompt == len(conversation.messages):
        raise BadLineError("roles", "the conversation ends with a turn that asks; none is labelled")
    if not _asks(conversation.messages[: conversation.prompt]):
        raise BadLineError("no_prompt", "nothing is asked before the answer that is labelled")
    return ChatRecord(form="labels", conversations=[conversation], scores=[float(label)])


class Answers:
    """Converter that makes a record from a prompt and several answers.

    The argument `turns` is the reader for answers that are written as turns.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def pair(
        self, prompt: list[Message], chosen: Any, rejected: Any, tools: list[Any] | None
    ) -> ChatRecord:
        """Return the record of a chosen and a rejected answer to `prompt`.

        If `prompt` has no user message, both answers must begin with the prompt. Raise
        `BadLineError` if an answer cannot be read, if the answers are equal, or if they have no
        common prompt.
        """
        answers = {"chosen": chosen, "rejected": rejected}
        for name, answer in answers.items():
            if isinstance(answer, str):
                answers[name] = transcript(answer, name) or answer
        if not _asks(prompt) and all(isinstance(answer, str) for answer in answers.values()):
            raise BadLineError("no_prompt", _NO_PROMPT)
        found = [
            self._conversation(prompt, answer, name, tools) for name, answer in answers.items()
        ]
        if found[0].messages == found[1].messages:
            raise BadLineError("same_answers", "'chosen' and 'rejected' say the same")
        if not _asks(prompt) or min(one.prompt for one in found) < 0:
            _find_prompt(found, prompt)
        return ChatRecord(form="pairs", conversations=found, scores=[1.0, 0.0])

    def group(
        self, prompt: list[Message], responses: Any, rewards: Any, tools: list[Any] | None
    ) -> ChatRecord:
        """Return the record of several responses to `prompt`, each with its reward.

        If `rewards` is None, all rewards are NaN. Raise `BadLineError` if `responses` or `rewards`
        cannot be used, or if `prompt` has no user message.
        """
        if not isinstance(responses, list):
            raise BadLineError(
                "bad_responses", f"'responses' is a JSON {kind_of(responses)}, not an array"
            )
        if not responses:
            raise BadLineError("no_responses", "'responses' holds none")
        scores = _rewards(rewards, len(responses))
        found = [
            self._conversation(prompt, answer, f"response {number}", tools)
            for number, answer in enumerate(responses, 1)
        ]
        for one in found:
            if one.prompt < 0:
                raise BadLineError("roles", "a response begins with a turn that asks")
        if not _asks(prompt):
            raise BadLineError("no_prompt", "there is no prompt beside 'responses'")
        return ChatRecord(form="groups", conversations=found, scores=scores)

    def _conversation(
        self, prompt: list[Message], answer: Any, name: str, tools: list[Any] | None
    ) -> Conversation:
        """Return the conversation of `prompt` and `answer` (the value of field `name`).

        If the messages of `answer` begin with a prompt of their own, they replace `prompt`, except
        for its system turn. In this case, it is not known yet how many of them are the prompt, so
        `Conversation.prompt` is -1.
        """
        messages, train = self.answer(answer, name)
        whole = messages[0]["role"] in _ASKING
        before = _system_turn(prompt, messages) if whole else prompt
        return Conversation(
            messages=before + messages, tools=tools, prompt=-1 if whole else len(prompt),
            train=shifted(train, len(before)),
        )  # fmt: skip

    def answer(self, value: Any, name: str) -> tuple[list[Message], Train]:
        """Return the messages of an answer, and their training flags.

        The answer `value` is a text, a turn or a list of turns. The flags are None if no message
        has one. Raise `BadLineError`, which names the field `name`, if the answer is empty or
        cannot be read.
        """
        if isinstance(value, str):
            if not value:
                raise BadLineError("empty", f"{name!r} is empty")
            return [{"role": "assistant", "content": value}], None
        return self._turns.read([value] if isinstance(value, dict) else value, name)


def _asks(prompt: list[Message]) -> bool:
    return any(turn["role"] == "user" for turn in prompt)


def _system_turn(prompt: list[Message], messages: list[Message]) -> list[Message]:
    """Return a list with the system turn of `prompt`.

    The list is empty if `prompt` has no system turn, or if `messages` begin with a system turn.
    """
    systems = ("system", "developer")
    own = messages[0]["role"] in systems
    return [turn for turn in prompt[:1] if turn["role"] in systems and not own]


def _find_prompt(found: list[Conversation], prompt: list[Message]) -> None:
    """Set the field `prompt` of the two conversations `found` to the length of their common prompt.

    The common prompt consists of the messages before the answers, which are the same in both
    conversations. Each answer begins with an assistant message. Raise `BadLineError` in these
    cases:

    - The common prompt contains no user message.
    - The conversations first differ in a system, developer or user message.
    - The record gives a `prompt` that is not empty, and its last message is not in the common
      prompt.
    """
    first, second = (one.messages for one in found)
    limit = min(len(first), len(second)) - 1
    same = next((at for at in range(limit) if first[at] != second[at]), limit)
    while same and not (first[same]["role"] == second[same]["role"] == "assistant"):
        if first[same]["role"] in _ASKING or second[same]["role"] in _ASKING:
            break
        same -= 1
    begins = {one[same]["role"] for one in (first, second)}
    if not _asks(first[:same]) or begins & set(_ASKING):
        raise BadLineError(
            "no_prompt", "'chosen' and 'rejected' do not answer the same prompt, and none is given"
        )
    if prompt and prompt[-1]["content"] not in [turn["content"] for turn in first[:same]]:
        raise BadLineError(
            "no_prompt", "'chosen' and 'rejected' begin with another prompt than the one given"
        )
    for one in found:
        one.prompt = same


def _rewards(value: Any, count: int) -> list[float]:
    """Return the reward of each of `count` responses, from the field `rewards`.

    If `value` is None or a list of `count` nulls, all rewards are NaN. Otherwise, raise
    `BadLineError` if `value` is not a list of `count` finite numbers.
    """
    if value is None:
        return [math.nan] * count
    if not isinstance(value, list):
        raise BadLineError("bad_rewards", f"'rewards' is a JSON {kind_of(value)}, not an array")
    if len(value) != count:
        raise BadLineError("bad_rewards", f"{len(value)} rewards for {count} responses")
    if all(one is None for one in value):
        return [math.nan] * count
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one):
            raise BadLineError("bad_rewards", f"a reward is {str(one)[:50]!r}, no finite number")
    return [float(one) for one in value]
