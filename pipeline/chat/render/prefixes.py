"""Places of messages in a rendering, found by rendering growing prefixes of the conversation.

The span of message i lies between the rendering of the messages before it (for the assistant with
the generation prompt, which a model is given and does not say) and the rendering up to and with it.
Each must be a prefix of the next and of the whole: then the pieces joined give the whole, and the
span is proved. This takes two renderings for a message.

A template may render the text before a message otherwise once others follow: Mistral's prints tools
before the last question, wherever that is. Then the words of the message before are marked instead
of counting from the start: the same text and the whole answer must follow the mark in the whole
conversation, where the answer is asked for, and where it is the last. Otherwise the record is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..template.compiled import LIMITS, RenderError

__all__ = ["Prefixes", "Render", "trimmed"]

_PROBE = "\ufdd2said\ufdd2"
_MARK = "\ufdd3"

Render = Callable[..., str]  # render(messages, prompt=False)


class Prefixes:
    """The places of the messages of one conversation in its rendering `text`; each is a span."""

    def __init__(
        self, render: Render, messages: Sequence[Mapping[str, Any]], text: str,
        special_tokens: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._render = render
        self._messages = messages
        self._text = text
        self._special_tokens = special_tokens

    def start(self, index: int) -> int:
        """Return the position at which the words of message `index` begin."""
        before = self._before(index)
        if not self._text.startswith(before):
            raise _unmaskable(index, "the template renders the messages before it otherwise")
        return len(before)

    def said(self, index: int) -> tuple[int, int]:
        """Return the span of the words of message `index`, up to the last special token.

        The span of an assistant message holds what a model is to say, of others all that they add.
        """
        try:
            start, end = self._span(index, self._before(index))
        except RenderError as error:
            found = None if error.reason in LIMITS else self._behind_words(index)
            if found is None:
                raise
            start, end = found
        return start, start + trimmed(self._text[start:end], self._special_tokens)

    def added(self, index: int) -> tuple[int, int]:
        """Return the span of all that message `index` adds, to its last character."""
        return self._span(index, self._prefix(index, prompt=False))

    def _span(self, index: int, before: str) -> tuple[int, int]:
        whole = index + 1 == len(self._messages)
        after = self._text if whole else self._prefix(index + 1, prompt=False)
        if not after.startswith(before):
            raise _unmaskable(index, "what it adds does not follow on the generation prompt")
        if not self._text.startswith(after):
            raise _unmaskable(index, "the template renders it otherwise when others follow")
        if len(after) == len(before):
            raise _unmaskable(index, "the template leaves it out")
        return len(before), len(after)

    def _before(self, index: int) -> str:
        """Return the text before the words of message `index`, with the generation prompt.

        A generation prompt may hold more than histories do, such as the beginning of a thought:
        then only their common part was not said by the assistant. A probe message finds it, as it
        depends on the template and not on the words.
        """
        if self._messages[index].get("role") != "assistant":
            return self._prefix(index, prompt=False)
        prompt = self._prefix(index, prompt=True)
        before = _common(prompt, self._head(index), self._prefix(index, prompt=False))
        if before is None:
            raise _unmaskable(index, "the template has no generation prompt")
        return before

    def _behind_words(self, index: int) -> tuple[int, int] | None:
        """Return the span of the words of assistant message `index`, or None if there is no proof.

        It is found behind the words of the message before it, wherever these stand in the text.
        """
        messages = self._messages
        marked = _marked(messages[index - 1]) if index else None
        answer = _marked(messages[index])
        if marked is None or answer is None or messages[index].get("role") != "assistant":
            return None
        given = [*messages[: index - 1], marked]
        try:
            last, _ = self._cut(messages[: index + 1], [*messages[:index], answer])
            own, _ = self._cut(messages, [*messages[:index], answer, *messages[index + 1 :]])
            _, prompt = self._cut(messages[:index], given, prompt=True)
            _, bare = self._cut(messages[:index], given)
            at_last, after = self._cut(messages[: index + 1], [*given, messages[index]])
            at, rest = self._cut(messages, [*given, *messages[index:]])
            probe = {"role": "assistant", "content": _PROBE}
            _, head = self._cut([*messages[:index], probe], [*given, probe])
        except ValueError:
            return None
        words, found, _ = head.partition(_PROBE)
        before = _common(prompt, words if found else None, bare)
        if before is None or not after.startswith(before) or not rest.startswith(after):
            return None
        spans = [(place + len(before), place + len(after)) for place in (at_last, at)]
        if not all(start < own < end for (start, end), own in zip(spans, (last, own), strict=True)):
            return None  # its words are somewhere else
        return spans[1]

    def _cut(
        self, messages: Sequence[Mapping[str, Any]], marked: Sequence[Mapping[str, Any]], *,
        prompt: bool = False,
    ) -> tuple[int, str]:  # fmt: skip
        """Return the place of the mark in the rendering of `messages`, and the text behind it.

        The mark is in `marked`, which else equals `messages`. Raise `ValueError` unless it stands
        in the rendering once and changes nothing else.
        """
        try:
            text = self._render(messages, prompt=prompt)
            before, found, behind = self._render(marked, prompt=prompt).partition(_MARK)
        except RenderError as error:
            if error.reason in LIMITS:
                raise
            raise ValueError from error
        if not found or before + behind != text:
            raise ValueError("the mark changes the text")
        return len(before), behind

    def _head(self, index: int) -> str | None:
        """Return the text before the words of an answer in the place of message `index`."""
        probe = {"role": "assistant", "content": _PROBE}
        try:
            after = self._render([*self._messages[:index], probe])
        except RenderError as error:
            if error.reason in LIMITS:
                raise
            return None
        head, found, _ = after.partition(_PROBE)
        return head if found else None

    def _prefix(self, length: int, prompt: bool) -> str:
        return self._rendered(self._messages[:length], length, prompt=prompt)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], index: int, *, prompt: bool) -> str:
        try:
            return self._render(messages, prompt=prompt)
        except RenderError as error:
            if error.reason in LIMITS:
                raise
            why = f"the template fails on its first {len(messages)} messages ({error.detail})"
            raise _unmaskable(index, why) from error


def _common(prompt: str, head: str | None, bare: str) -> str | None:
    """Return the text that a model is given before it answers; None if that cannot be told.

    `prompt` ends with the generation prompt, `bare` before it, and `head` where the words of an
    answer begin.
    """
    if head is not None and prompt.startswith(head):
        return head
    more = head is None or head[len(prompt) :].strip()
    return None if more and prompt == bare else prompt


def _marked(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `message` with a mark in its words; None if it has none that can be marked."""
    content, calls = message.get("content"), message.get("tool_calls")
    if calls:
        name = calls[0]["function"]["name"]
        if type(name) is not str or not name:
            return None
        function = {**calls[0]["function"], "name": name[:1] + _MARK + name[1:]}
        return {**message, "tool_calls": [{**calls[0], "function": function}, *calls[1:]]}
    if type(content) is not str or not content.strip():
        return None
    at = len(content) - len(content.lstrip()) + 1
    return {**message, "content": content[:at] + _MARK + content[at:]}


def trimmed(said: str, special_tokens: tuple[str, ...]) -> int:
    """Return the length of `said` without white space after a special token at its end.

    >>> trimmed("Yes.<|im_end|>\\n", ("<|im_end|>",)), trimmed("Yes.\\n", ("<|im_end|>",))
    (14, 5)
    """
    bare = said.rstrip()
    if len(bare) < len(said) and special_tokens and bare.endswith(special_tokens):
        return len(bare)
    return len(said)


def _unmaskable(index: int, why: str) -> RenderError:
    return RenderError("unmaskable", f"where message {index + 1} stands cannot be told: {why}")
