"""Conversations that are written as one text, as in Anthropic's hh-rlhf.

Each turn begins with an empty line and "Human:" or "Assistant:". Nothing else is taken for a
conversation: a text that does not begin so is a text.
"""

from __future__ import annotations

import re

from ...read.json_lines import BadLineError
from .turns import Message

__all__ = ["BEGINNING", "asked_in", "transcript"]

BEGINNING = "\n\nHuman:"
_ASKING = "\n\nAssistant:"
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def transcript(text: str, name: str) -> list[Message] | None:
    """The turns that the `text` of the field `name` is written in; None if it is no transcript.

    >>> transcript("\\n\\nHuman: Hi\\n\\nAssistant: Yes?", "chosen")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Yes?'}]
    >>> transcript("Human: Hi", "chosen")
    """
    if not text.startswith(BEGINNING):
        return None
    parts = _TURN.split(text)[1:]
    turns = [
        {"role": _ROLES[who], "content": said.strip()}
        for who, said in zip(parts[::2], parts[1::2], strict=True)
    ]
    for number, turn in enumerate(turns, 1):
        if not turn["content"]:
            raise BadLineError("empty", f"turn {number} of {name!r} ({turn['role']}) says nothing")
    return turns


def asked_in(text: str, name: str) -> list[Message] | None:
    """The turns of a prompt that ends with "Assistant:"; None if it is no transcript.

    >>> asked_in("\\n\\nHuman: Hi\\n\\nAssistant:", "prompt")
    [{'role': 'user', 'content': 'Hi'}]
    """
    bare = text.rstrip()
    return transcript(bare.removesuffix(_ASKING), name) if bare.endswith(_ASKING) else None
