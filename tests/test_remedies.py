"""Options, arguments, calls, commands and extras that messages and pages tell of are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dataprep.cli.order.option_words import _PHRASES, in_options
from dataprep.formats.errors import DataprepError
from tests.remedies import CALLS, HOLE, KEYWORDS, OPTIONS, mistakes, modules, option_names, texts
from tests.support import REPOSITORY

ORDER = sorted(name[2:].replace("-", "_") for name in option_names("order") if name[:2] == "--")


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_what_messages_tell_of_is_there() -> None:
    """A remedy that cannot be followed is worse than none."""
    paths = list(modules())
    assert len(paths) > 300
    found = [mistake for path in paths for mistake in mistakes(path.read_text(), relative(path))]
    assert found == []


@pytest.mark.parametrize(
    ("home", "text", "found"),
    [
        ("pipeline/x.py", "Use --made-up, or leave it.", "--made-up is no option of"),
        ("pipeline/x.py", "Use --on-error ignore.", "--on-error ignore: --on-error takes error"),
        ("pipeline/x.py", "--format reads them all", "--format reads: --format takes"),
        ("pipeline/pairs/x.py", "Say it with --format jsonl.", "--format is no option of"),
        ("cli/order/command.py", "Give --max-tokens 4.", "--max-tokens is no option of order"),
        ("runtime/x.py", "Or pass made_up=True.", "made_up= is no argument"),
        ("runtime/x.py", "Use overlong='shrink'.", "overlong='shrink': it takes"),
        ("runtime/x.py", "Pass create_loader(vocab_size=7).", "it has no such argument"),
        ("runtime/x.py", "Call make_it_work().", "nothing public is called so"),
        ("formats/x.py", "See `dataprep repair DIR`.", "there is no such command"),
        ("formats/x.py", "See `dataprep verify --fast DIR`.", "--fast is no option of verify"),
        ("formats/x.py", "`dataprep build --kind pairs --eos x`", "--eos is no option of"),
        ("formats/x.py", "Examples:\n  dataprep build --made-up x", "--made-up is no option of"),
        ("formats/x.py", "pip install 'dataprep[embed]'", "there is no such extra"),
        ("formats/x.py", "pip install 'dataprep-shards[all]'", "there is no such extra"),
        ("formats/x.py", "pip install left-pad", "no extra needs it"),
        ("formats/x.py", "`dataprep.pipeline.pairs.table.texts` lists them", "is not there"),
    ],
)
def test_what_is_not_there_is_found(home: str, text: str, found: str) -> None:
    """In a plain text, in one with values filled in, and however the error is made."""
    for source in (f"raise UsageError('x', remedy={text!r})", f"refused('x', f'{{y}} ' {text!r})"):
        (mistake, *_) = mistakes(source, home)
        assert found in mistake
    assert mistakes(f'"""{text}"""', home) == []  # a docstring


@pytest.mark.parametrize("path", [*REPOSITORY.glob("docs/*.md"), REPOSITORY / "README.md"],
                         ids=relative)  # fmt: skip
def test_what_pages_tell_of_is_there(path: Path) -> None:
    """Options, commands and extras; the code of the pages is run elsewhere."""
    text = re.sub(r"`[^`]*benchmarks/[^`]*`", "", path.read_text())  # these have options of theirs
    found = mistakes(f"say({text!r})")
    told = ("is no option", "no such command", "no such extra", "--")
    assert [mistake for mistake in found if any(word in mistake for word in told)] == []


def test_exceptions_have_reasons_and_are_needed() -> None:
    """What is told of although it is not dataprep's stands in some message still."""
    every = "\n".join(text for path in modules() for _, text in texts(path.read_text()))
    pages = "\n".join(path.read_text() for path in REPOSITORY.glob("*.md"))
    for table, pattern in ((OPTIONS, "{}"), (KEYWORDS, "{}="), (CALLS, "{}(")):
        for name, reason in table.items():
            assert len(reason.split()) >= 2
            assert pattern.format(name) in every + pages, name


def said_by_loaders() -> list[str]:
    """Every text of the folders whose errors `dataprep order` may show, with values filled in."""
    folders = ("formats/", "runtime/")
    paths = [path for path in modules() if relative(path).startswith(folders)]
    every = [text for path in paths for _, text in texts(path.read_text())]
    return [text.replace(HOLE, value) for text in every for value in ("7", "None", "False")]


def test_words_of_python_become_options_that_are_there() -> None:
    """Whatever a loader says in arguments, `dataprep order` says in options that it has."""
    translated = 0
    for text in said_by_loaders():
        error = DataprepError(text)
        in_options(error, ORDER)
        before = set(re.findall(r"--[a-z][\w-]*", text))
        for option in set(re.findall(r"--[a-z][\w-]*", error.problem)) - before:
            translated += 1
            assert option in option_names("order"), text
    assert translated > 20


def test_phrases_that_are_translated_are_said() -> None:
    """A phrase that nobody says any more is translated for nothing."""
    every = "\n".join(said_by_loaders())
    unsaid = [phrase for phrase, _ in _PHRASES if not re.search(phrase, every)]
    arguments = [phrase for phrase in unsaid if re.fullmatch(r"\w+=\w+", phrase)]
    assert [phrase for phrase in arguments if mistakes(f"say({phrase!r})")] == []
    assert unsaid == arguments  # of which messages are put together
