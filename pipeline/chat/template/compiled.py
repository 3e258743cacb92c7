"""Compiled chat templates, and the errors of rendering a record with a template.

For any template and record, `CompiledTemplate.render` returns text or raises `RenderError` with the
line in the template. Counted limits (limits.py) make sure that every rendering ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateAssertionError, TemplateSyntaxError
from jinja2.runtime import Context

from dataprep.formats.errors import InputError, UsageError

from .generation import has_markers
from .limits import LimitError
from .sandbox import ChatEnvironment, DateMissingError, RaisedError

__all__ = ["LIMITS", "OUT_OF_MEMORY", "REASONS", "CompiledTemplate", "Messages", "RenderError"]

Messages = Sequence[Mapping[str, Any]]

REASONS: Mapping[str, str] = {
    "template": "the template fails on it, or refuses it",
    "template_limit": "the template takes too many steps on it, or makes too much of it",
    "template_time": "the template takes too much processor time on it",
    "template_crash": "the process that renders it by the template crashes",
    "template_memory": "the template takes too much memory on it",
    "roles": "the template refuses the order of its roles",
    "no_assistant": "there is nothing in it to train on",
    "unmaskable": "what the assistant says cannot be found in what the template makes of it",
}
OUT_OF_MEMORY = "template_memory"
"""The reason of a `RenderError` that depends on the machine: it stops a build."""
LIMITS = frozenset({"template_limit", OUT_OF_MEMORY})
"""Reasons after which no other way to render the record or to find its spans is tried."""

_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_FILE = "<chat template>"
_MAX_TEMPLATE = 1 << 20


class RenderError(Exception):
    """Error for a record that cannot be rendered. Its `reason` is one of `REASONS`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class CompiledTemplate:
    """Compiled template with its variables, which are the same for all records.

    Raises `InputError` (E_TEMPLATE), with `origin` and the line, if the text is not a Jinja
    template. Raises `UsageError` if a variable has a name that each record sets, such as
    `messages`.
    """

    def __init__(
        self, text: str, variables: Mapping[str, Any] | None = None, *,
        environment: ChatEnvironment | None = None, date: str | None = None, origin: str = "",
    ) -> None:  # fmt: skip
        self.environment = environment or ChatEnvironment(date)
        given = _GIVEN.intersection(variables or ())
        if given:
            raise UsageError(f"{min(given)} is what a record gives", where="--template-arg")
        if len(text) > _MAX_TEMPLATE:
            problem = f"{len(text):,} characters is over the limit of {_MAX_TEMPLATE:,}"
            raise _unusable(problem, origin)
        with _input_errors(origin):
            parsed = self.environment.parse(text)
            self.has_markers = has_markers(parsed)
            self.escapes = parsed.find(nodes.EvalContextModifier) is not None
            code = self.environment.compile(parsed, filename=_FILE)
            self._template = self.environment.template_class.from_code(
                self.environment, code, dict(self.environment.globals)
            )
        self._variables = {
            **self._template.globals, **(variables or {}), "documents": None,
        }  # fmt: skip

    def render(
        self, messages: Messages, tools: Sequence[Any] | None = None, *, prompt: bool = False,
        marks: str | None = None, characters: int = 0,
    ) -> str:  # fmt: skip
        """Return the rendering of `messages`, followed by the generation prompt if `prompt` is set.

        If `marks` are given, the first of these two characters is put before each text between
        generation markers, and the second after the text. The number `characters` is the
        approximate size of the record. If the record is large, every step counts several times
        toward the step limit. Raise `RenderError` if rendering fails.
        """
        environment = self.environment
        environment.budget.restart(characters)
        environment.marks = marks
        template = self._template
        seen = {
            **self._variables, "messages": messages, "tools": tools,
            "add_generation_prompt": prompt,
        }  # fmt: skip
        context = Context(environment, seen, template.name, template.blocks, template.globals)
        try:
            text = environment.concat(template.root_render_func(context))
            if type(text) is str and not text.isascii():
                text.encode()  # raises for half of a surrogate pair
            return text
        except Exception as error:
            raise _render_error(error, self._line(error.__traceback__)) from error

    def _line(self, trace: TracebackType | None) -> int | None:
        line = None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


@contextmanager
def _input_errors(origin: str) -> Iterator[None]:
    """Replace any error that Jinja or Python raises within the block by `InputError`.

    The text of a template can cause many types of errors. For example, a number with thousands of
    digits causes a `ValueError`.
    """
    try:
        yield
    except TemplateSyntaxError as error:
        compiling = isinstance(error, TemplateAssertionError)
        what = "it cannot be compiled" if compiling else "it is no Jinja template"
        raise _unusable(f"{what}: {error.message}", origin, error.lineno) from error
    except (RecursionError, MemoryError) as error:
        raise _unusable("it nests too deeply", origin) from error
    except Exception as error:
        problem = f"it cannot be compiled: {type(error).__name__}: {_short(str(error))}"
        raise _unusable(problem, origin) from error


def _unusable(problem: str, origin: str, line: int | None = None) -> InputError:
    where = f"chat template {origin}".rstrip() + (f", line {line}" if line else "")
    return InputError(
        problem, where=where, code="E_TEMPLATE",
        remedy="Mend it, or give another with --template.",
    )  # fmt: skip


def _render_error(error: Exception, line: int | None) -> RenderError:
    where = f"line {line} of the template: " if line else ""
    if isinstance(error, LimitError):
        return RenderError("template_limit", f"{where}{error}")
    if isinstance(error, RecursionError):
        return RenderError("template_limit", f"{where}it calls itself too deeply")
    if isinstance(error, OverflowError):
        return RenderError("template_limit", f"{where}{error}")
    if isinstance(error, MemoryError):
        return RenderError(OUT_OF_MEMORY, f"{where}it takes more memory than it may")
    if isinstance(error, RaisedError | DateMissingError):
        said = str(error)
        roles = isinstance(error, RaisedError) and ("role" in said.lower() or "alternat" in said)
        return RenderError("roles" if roles else "template", f"{where}{_short(said)}")
    return RenderError("template", f"{where}{type(error).__name__}: {_short(str(error))}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:300] + " ..."
