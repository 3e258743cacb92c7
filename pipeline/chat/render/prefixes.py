"""Spans of messages in a rendering, located by rendering growing prefixes of the conversation.

For each message, two prefixes of the conversation are rendered. The first ends before the message,
and the second ends after it. For an assistant message, the first rendering also includes the
generation prompt, which a model receives before it answers. The span of the message begins where
the first rendering ends, and stops where the second ends. The span is certain only if the rendering
of the whole conversation begins with each of the two renderings.

Some templates change the text before a message if other messages follow. For example, Mistral's
template prints the tools before the last question. For such templates, a mark is inserted in the
message before the answer, and only the text after the mark is compared. Three conversations are
rendered with the mark:

1. the messages before the answer, with the generation prompt
2. the messages up to and including the answer
3. the whole conversation

Let t1, t2 and t3 be the texts after the mark in these renderings. The record is refused unless t2
begins with t1, and t3 begins with t2. The words of the answer are the text that t2 has after t1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..template.compiled import LIMITS, RenderError

__all__ = ["Prefixes", "Render", "trimmed_length"]

_PROBE = "\ufdd2said\ufdd2"
_MARK = "\ufdd3"

Render = Callable[..., str]  # render(messages, prompt=False)


class Prefixes:
    """Positions of the messages of one conversation in its rendering `text`."""

    def __init__(
        self, render: Render, messages: Sequence[Mapping[str, Any]], text: str,
        special_tokens: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._render = render
        self._messages = messages
        self._text = text
        self._special_tokens = special_tokens

    def words_start(self, index: int) -> int:
        """Return the position in the rendering at which the words of message `index` begin.

        Raise `RenderError` if the rendering of all messages does not begin with the rendering of
        the messages before message `index`.
        """
        before = self._before(index)
        if not self._text.startswith(before):
            raise _unmaskable(index, "the template renders the messages before it otherwise")
        return len(before)

    def words_span(self, index: int) -> tuple[int, int]:
        """Return the span of the words of message `index`.

        For an assistant message, the words are what a model generates after the generation prompt.
        For any other message, they are all text that the message adds. If the words end with a
        special token and white space, this white space is not part of the span. Raise `RenderError`
        if the span cannot be located with certainty.
        """
        try:
            start, end = self._span(index, self._before(index))
        except RenderError as error:
            found = None if error.reason in LIMITS else self._span_behind_mark(index)
            if found is None:
                raise
            start, end = found
        return start, start + trimmed_length(self._text[start:end], self._special_tokens)

    def added_span(self, index: int) -> tuple[int, int]:
        """Return the span of all text that message `index` adds.

        For an assistant message, the span includes the text of the generation prompt. Raise
        `RenderError` if the span cannot be located with certainty.
        """
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
        """Return the rendering up to the words of message `index` (see `words_span`).

        For an assistant message, this text ends with the generation prompt. The prompt may itself
        end with text that the template does not write before past answers, such as the opening of a
        thought. Such an ending is left out of the result. Raise `RenderError` if a rendering fails
        or the template has no generation prompt.
        """
        if self._messages[index].get("role") != "assistant":
            return self._prefix(index, prompt=False)
        prompt = self._prefix(index, prompt=True)
        before = _common(prompt, self._head(index), self._prefix(index, prompt=False))
        if before is None:
            raise _unmaskable(index, "the template has no generation prompt")
        return before

    def _span_behind_mark(self, index: int) -> tuple[int, int] | None:
        """Return the span of the words of assistant message `index`, or None if it is uncertain.

        The span is located with a mark in the message before the answer; see the docstring of this
        module.
        """
        messages = self._messages
        marked = _marked(messages[index - 1]) if index else None
        answer = _marked(messages[index])
        if marked is None or answer is None or messages[index].get("role") != "assistant":
            return None
        given = [*messages[: index - 1], marked]
        try:
            last, _ = self._split_at_mark(messages[: index + 1], [*messages[:index], answer])
            own, _ = self._split_at_mark(
                messages, [*messages[:index], answer, *messages[index + 1 :]]
            )
            _, prompt = self._split_at_mark(messages[:index], given, prompt=True)
            _, bare = self._split_at_mark(messages[:index], given)
            at_last, after = self._split_at_mark(messages[: index + 1], [*given, messages[index]])
            at, rest = self._split_at_mark(messages, [*given, *messages[index:]])
            probe = {"role": "assistant", "content": _PROBE}
            _, head = self._split_at_mark([*messages[:index], probe], [*given, probe])
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

    def _split_at_mark(
        self, messages: Sequence[Mapping[str, Any]], marked: Sequence[Mapping[str, Any]], *,
        prompt: bool = False,
    ) -> tuple[int, str]:  # fmt: skip
        """Return the position of the mark in the rendering of `marked`, and the text after it.

        The sequence `marked` is a copy of `messages` with a mark in one of them. Raise
        `ValueError` if the template fails on one of the two sequences, changes the text because of
        the mark, or does not print the mark exactly once.
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
        """Return the text that the template writes before the words of an answer, or None.

        To find this text, the messages before message `index` are rendered, followed by an answer
        with fixed words. Return None if the template fails or does not print these words.
        """
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
    """Return the text that comes before an answer, or None if it is not known.

    The text `bare` is the rendering of the messages before the answer, and `prompt` is the same
    rendering with the generation prompt. The text `head` is all that the template writes before the
    words of a past answer. It was found by rendering a made-up answer (see `Prefixes._head`), and
    is None if that failed.
    """
    if head is not None and prompt.startswith(head):
        return head
    more = head is None or head[len(prompt) :].strip()
    return None if more and prompt == bare else prompt


def _marked(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a copy of `message` with a mark in its text.

    The mark is put into the name of the first tool call, or into the content if there are no calls.
    Return None if there is no text to put the mark in.
    """
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


def trimmed_length(said: str, special_tokens: tuple[str, ...]) -> int:
    r"""Return the length of `said`, leaving out white space after a special token at the end.

    >>> trimmed_length("Yes.<|im_end|>\n", ("<|im_end|>",))
    14
    >>> trimmed_length("Yes.\n", ("<|im_end|>",))
    5
    """
    bare = said.rstrip()
    if len(bare) < len(said) and special_tokens and bare.endswith(special_tokens):
        return len(bare)
    return len(said)


def _unmaskable(index: int, why: str) -> RenderError:
    return RenderError("unmaskable", f"where message {index + 1} stands cannot be told: {why}")
