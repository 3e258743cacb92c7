"""Hostile chat templates: each renders, is refused, or is ended, within a second."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.errors import DataprepError, RecordError
from dataprep.pipeline.read.process_limits import SECONDS_VARIABLE
from tests.fuzz.outcomes import RecordOutcomes
from tests.scenes.chats import build_chats
from tests.support import REPOSITORY

CORPUS = REPOSITORY / "data_fixtures" / "hostile" / "templates.json"
LIMITS = {"E_TEMPLATE_TIME", "E_TEMPLATE_LIMIT", "E_TEMPLATE_MEMORY"}
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]


def text_of(template: Any) -> str:
    """A template of the corpus: a text, or parts, of which some are repeated and numbered by #."""
    parts = [template] if isinstance(template, str) else template
    return "".join(
        part
        if isinstance(part, str)
        else "".join(part[0].replace("#", str(number)) for number in range(part[1]))
        for part in parts
    )


def outcome(out: Path, source: Path, template: Path) -> tuple[str, str, str]:
    """What a build with `template` ends in: the class of the corpus, the exit code, and why."""
    try:
        build_chats(out, source, template=str(template), train_on="all")
    except DataprepError as error:
        code = "bug" if error.exit_code == 1 else f"exit {error.exit_code}"
        if error.code in LIMITS or error.problem.startswith("compiling"):
            return "limit", code, error.code
        refused = "refused" if isinstance(error, RecordError) else "no template"
        return refused, code, f"{error.code} {error.problem}"
    except Exception as error:
        return "bug", "bug", repr(error)
    shutil.rmtree(out)
    return "ok", "ok", ""


@pytest.mark.fuzz
def test_hostile_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_outcomes: RecordOutcomes
) -> None:
    """Each of the corpus ends as it says there, by whole builds."""
    monkeypatch.setenv(SECONDS_VARIABLE, "1")
    source, file = tmp_path / "in.jsonl", tmp_path / "hostile.jinja"
    source.write_text(json.dumps({"messages": MESSAGES}) + "\n", "utf-8")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    others = []
    for entry in json.loads(CORPUS.read_text("utf-8")):
        file.write_text(text_of(entry["template"]), "utf-8")
        found, code, why = outcome(tmp_path / "out", source, file)
        counts[code] += 1
        reasons[found if not why else why.split(" ", 1)[0]] += 1
        if found != entry["outcome"]:
            others.append((entry["name"], entry["outcome"], found, why))
    record_outcomes(counts, reasons=dict(sorted(reasons.items())))
    assert not others
    assert counts.total() >= 100
