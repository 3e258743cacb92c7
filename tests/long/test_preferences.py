"""Real preferences, built and served, against the collators on what was stored and was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.formats.read.dataset import Split, open_dataset
from dataprep.formats.verify.verify import verify
from dataprep.runtime.choices import FORMS
from dataprep.runtime.rows.preferences import PreferenceDataset
from dataprep.runtime.types import Labels
from tests.runtime.rows.test_preferences import reference, same
from tests.scenes.chats import build_chats, chatml
from tests.scenes.datasets import EOS_ID
from tests.scenes.preferences import Answer, Record
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.long

PREFERENCES = SHARED_DATA / "preference"
ROLES = {"human": "user", "gpt": "assistant"}
Said = list[tuple[list[dict[str, Any]], list[str], list[float]]]  # prompt, answers, scores


def of_pairs() -> Said:
    """The prompts of the pairs, chosen and rejected answers."""
    records = json.loads((PREFERENCES / "dpo_en_demo.json").read_text("utf-8"))
    return [
        (turns(record["conversations"], "from", "value"),
         [record["chosen"]["value"], record["rejected"]["value"]], [1.0, 0.0])
        for record in records
    ]  # fmt: skip


def turns(messages: list[dict[str, str]], role: str, content: str) -> list[dict[str, Any]]:
    return [{"role": ROLES.get(m[role], m[role]), "content": m[content]} for m in messages]


def source(form: str, folder: Path) -> tuple[Path, Said]:
    """The file to build from, and what stands in it."""
    if form == "pairs":
        return PREFERENCES / "dpo_en_demo.json", of_pairs()
    if form == "labels":
        path, said = PREFERENCES / "kto_en_demo.json", []
        for record in json.loads(path.read_text("utf-8")):
            *prompt, last = turns(record["messages"], "role", "content")
            said.append((prompt, [last["content"]], [float(record["label"])]))
        return path, said
    path, groups = folder / "groups.jsonl", []
    with path.open("w", encoding="utf-8") as stream:
        for number, (prompt, answers, _) in enumerate(of_pairs()):
            several = [*answers, "No.", f"I do not know ({number})."][: 1 + number % 4]
            rewards = [0.5 * at for at in range(len(several))]
            given = {"rewards": rewards} if number % 3 else {}
            record = {"prompt": prompt, "responses": several, **given}
            stream.write(json.dumps(record) + "\n")
            groups.append((prompt, several, rewards if given else [float("nan")] * len(several)))
    return path, groups


def records_of(split: Split) -> list[Record]:
    """What is stored, record by record, as lists."""
    first, stop = split.groups.documents(np.arange(split.records))
    scores = split.groups.scores(np.arange(split.documents))
    found = []
    for start, end in zip(first.tolist(), stop.tolist(), strict=True):
        found.append([
            Answer(
                ids=split.document(number).tolist(),
                mask=split.masks.read(*split.span(number)).tolist(), score=float(scores[number]),
            )
            for number in range(start, end)
        ])  # fmt: skip
    return found


@needs_shared_data
@pytest.mark.parametrize("form", FORMS)
def test_real_preferences(form: str, tmp_path: Path) -> None:
    """Text, masks and scores are what was said; batches are what the collators make of them."""
    path, said = source(form, tmp_path)
    build_chats(tmp_path / "shards", path, split="train=1", tokenizer=None)
    assert verify(tmp_path / "shards").findings == ()
    dataset = open_dataset(tmp_path / "shards")
    split = dataset.split("train")
    assert (split.form, split.records) == (form, len(said))
    records = records_of(split)
    for record, (prompt, answers, scores) in zip(records, said, strict=True):
        assert len(record) == len(answers)
        for stored, answer, score in zip(record, answers, scores, strict=True):
            text, _ = chatml([*prompt, {"role": "assistant", "content": answer}])
            assert dataset.decode(stored.ids) == text
            trained = dataset.decode(np.array(stored.ids)[np.array(stored.mask, bool)])
            assert trained.strip() == f"{answer}<|im_end|>".strip()
            assert stored.score == score or (stored.score != stored.score and score != score)
    order = np.random.default_rng(0).permutation(len(records))
    longest = max(len(answer.ids) for record in records for answer in record)
    kinds: tuple[Labels | None, ...] = ("shifted", "unshifted", None)
    for labels in kinds[: 1 if form == "groups" else 3]:
        data = PreferenceDataset(
            split, labels=labels, max_length=longest, pad_id=EOS_ID, plan_dir=tmp_path / "p"
        )
        for at in range(0, len(order), 8):
            some = order[at : at + 8]
            same(data.batch(some), reference(form, [records[k] for k in some], labels))
