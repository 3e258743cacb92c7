"""The Jinja tag `{% generation %}`, with which templates mark the text that a model generates.

The library transformers has the same tag (`return_assistant_tokens_mask`). In a rendering with
marks, one noncharacter of Unicode is written before this text, and another after it. The marks stay
beside the text even if it passes through macros, `set` blocks or concatenations. Apart from the
marks, this rendering must equal one without marks. The spans between the marks are therefore also
the spans in the rendering without marks.
"""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

__all__ = ["Generation", "has_markers", "unmark", "unused"]

_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


class Generation(Extension):
    """Jinja extension for the tag `generation`.

    If `environment.marks` is a pair of characters, the text in the tag is put between them. If
    `environment.marks` is None, the text is unchanged.
    """

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the tag as a Jinja call block, which has its own scope, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        marks = getattr(self.environment, "marks", None)
        return caller() if marks is None else marks[0] + caller() + marks[1]


def has_markers(template: nodes.Template) -> bool:
    """Return whether the parsed `template` has generation markers."""
    name = f"{Generation.__module__}.{Generation.__qualname__}"
    return any(
        isinstance(block.call.node, nodes.ExtensionAttribute) and block.call.node.identifier == name
        for block in template.find_all(nodes.CallBlock)
    )


def unused(text: str, count: int) -> str:
    """Return `count` noncharacters that `text` does not contain.

    Raise `ValueError` if `text` contains nearly all noncharacters.

    >>> unused("plain text", 2) == chr(0xFDD0) + chr(0xFDD1)
    True
    """
    free = [mark for mark in _NONCHARACTERS if mark not in text]
    if len(free) < count:
        raise ValueError("it holds nearly all of the noncharacters of Unicode")
    return "".join(free[:count])


def unmark(marked: str, marks: str) -> tuple[str, list[tuple[int, int]]]:
    """Return `marked` without `marks`, and the spans that were between two marks.

    Raise `ValueError` if marks are nested or do not form pairs.

    >>> unmark("a[bc]d[]", "[]")
    ('abcd', [(1, 3), (4, 4)])
    """
    start, end = marks[0], marks[1]
    before, *rest = marked.split(start)
    pieces = [before]
    spans: list[tuple[int, int]] = []
    length = len(before)
    for part in rest:
        inside, found, after = part.partition(end)
        if not found or end in after:
            raise ValueError("generation markers lie within one another, or were cut")
        spans.append((length, length + len(inside)))
        pieces += inside, after
        length += len(inside) + len(after)
    if end in before:
        raise ValueError("generation markers were cut")
    return "".join(pieces), spans
