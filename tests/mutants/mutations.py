"""Small changes of Python source, each of which a test should notice.

A change is named by the function that holds it and by its line before and after, so that a name
outlives edits elsewhere and a move to another module.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants_of", "sample"]

_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutant:
    """`path` with the bytes `start` to `stop` of its source replaced by `text`."""

    name: str
    path: str
    start: int
    stop: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of `mutants` as `seed` has it; others that come or go move few of them."""
    rank = {one: hashlib.sha256(f"{seed} {one.name}".encode()).digest() for one in mutants}
    return sorted(mutants, key=rank.__getitem__)[:count]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every change of what the functions in `source` do, by place."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, seen = [], Counter[str]()
    for function, node, text in _changes(ast.parse(source), ""):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        line, rest = source[starts[node.lineno - 1] : start], source[stop:].split(b"\n", 1)[0]
        old = source[start:stop].split(b"\n", 1)[0]
        before, after = line + old, line + text.encode()
        if node.lineno == node.end_lineno:
            before, after = before + rest, after + rest
        name = f"{function}: {before.decode().strip()} => {after.decode().strip()}"
        seen[name] += 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        found.append(Mutant(name, path, start, stop, text))
    return found


_Change = tuple[str, ast.stmt | ast.expr | ast.keyword, str]


def _changes(node: ast.AST, function: str) -> Iterator[_Change]:
    """The changes below `node`: the function around each, what is replaced, and by what."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            inner = f"{function}.{child.name}".lstrip(".")
            for statement in child.body:
                if not _is_text(statement):
                    yield from _change(statement, inner, isinstance(child, _FUNCTIONS))
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _changes(child, function)


def _change(node: ast.AST, function: str, inside: bool) -> Iterator[_Change]:
    """The changes of `node` itself and below it; only those of functions count."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from _changes(ast.Module([node], []), function)
        return
    if not inside:
        return
    if isinstance(node, ast.stmt):
        yield from ((function, node, text) for text in _of_statement(node))
    if isinstance(node, ast.expr) and not isinstance(node, ast.JoinedStr):
        yield from ((function, node, f"({ast.unparse(new)})") for new in _of_expression(node))
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return  # words
    if isinstance(node, ast.Call):
        yield from _dropped(node, function)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and getattr(child, "arg", "") != "strict":
                yield from _change(child, function, inside)


def _of_statement(node: ast.stmt) -> Iterator[str]:
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if called or stored or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
        yield "pass"


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]):
            yield ast.Compare(node.left, [_COMPARE[type(operator)]()], node.comparators)
        case ast.BinOp(op=operator) if type(operator) in _BINARY and not _is_type(node):
            yield ast.BinOp(node.left, _BINARY[type(operator)](), node.right)
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield ast.Call(ast.Name(_CALLED[name]), node.args, node.keywords)


def _dropped(call: ast.Call, function: str) -> Iterator[_Change]:
    """The call without each of its arguments by name."""
    for keyword in call.keywords:
        if keyword.arg not in (None, "strict"):  # which only guards
            rest = [one for one in call.keywords if one is not keyword]
            yield function, call, ast.unparse(ast.Call(call.func, call.args, rest))


def _is_type(node: ast.BinOp) -> bool:
    """Whether ``A | B`` is of types, as in `isinstance`."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, ast.Name) and (side.id[0].isupper() or side.id in ("int", "str", "bool"))
        for side in (node.left, node.right)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
