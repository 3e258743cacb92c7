"""Builds with conversations over the limit: what each policy keeps, counts and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep import open_dataset
from dataprep.formats.errors import RecordError, UsageError
from tests.scenes.chats import SPLIT, TALKS, build_chats, everything, sound


@pytest.mark.parametrize("policy", ["drop", "truncate-left", "truncate-right", "split"])
def test_over_length(tmp_path: Path, built: Path, policy: str) -> None:
    """Each policy keeps what it says, counts what it did, and verifies."""
    limit = 80
    with open_dataset(built) as dataset:
        whole = everything(dataset)
    report = build_chats(
        tmp_path / "out", TALKS, split=SPLIT, max_tokens=limit, overlong=policy, on_error="skip"
    )
    sound(tmp_path / "out")
    with open_dataset(tmp_path / "out") as dataset:
        found = everything(dataset)
        chat = dataset.manifest.chat
    assert chat
    long = {record for record, [(ids, _)] in whole.items() if len(ids) > limit}
    assert chat.overlong_found[policy] == len(long) > 3
    for record, docs in found.items():
        [(ids, mask)] = whole[record]
        if record not in long:
            assert docs == [(ids, mask)]
        elif policy == "truncate-left":
            assert docs == [(ids[-limit:], mask[-limit:])]
        elif policy == "truncate-right":
            assert docs == [(ids[:limit], mask[:limit])]
        else:
            parts = [slice(at, at + limit) for at in range(0, len(ids), limit)]
            assert docs == [(ids[part], mask[part]) for part in parts if any(mask[part])]
    records = report.manifest.records
    assert records.read == records.written + sum(records.rejected.values()) == len(whole)
    if policy == "drop":
        assert long.isdisjoint(found)
        assert records.rejected == {"overlong": len(long)}


def test_dropping_is_no_error(tmp_path: Path) -> None:
    """Who asks for it to be left out need not say that bad records may be skipped too."""
    report = build_chats(tmp_path / "out", TALKS, max_tokens=80, overlong="drop")
    assert report.manifest.records.rejected["overlong"] > 3
    lines = (tmp_path / "out" / "rejects.jsonl").read_text("utf-8").splitlines()
    assert all("over the limit of 80" in json.loads(line)["detail"] for line in lines)


@pytest.mark.parametrize(("policy", "on_error", "code"), [
    (None, "error", "E_UNDECIDED"), (None, "skip", "E_UNDECIDED"), ("error", "error", "E_OVERLONG"),
])  # fmt: skip
def test_too_long_stops_the_build(tmp_path: Path, policy: Any, on_error: Any, code: str) -> None:
    """Undecided or an error: the first record over the limit is named, with its line."""
    with pytest.raises(RecordError) as caught:
        build_chats(tmp_path / "out", TALKS, max_tokens=80, overlong=policy, on_error=on_error)
    assert caught.value.code == code
    assert caught.value.where is not None
    assert caught.value.where.startswith("talks.jsonl:")
    assert "--overlong" in str(caught.value)


def test_nothing_to_train_on(tmp_path: Path) -> None:
    """A conversation cut before its answer is a bad record, unless it is asked for."""
    source = tmp_path / "long.jsonl"
    messages = [{"role": "user", "content": "why " * 100}, {"role": "assistant", "content": "so"}]
    source.write_text(json.dumps({"messages": messages}), "utf-8")
    options: dict[str, Any] = {"max_tokens": 50, "overlong": "truncate-right"}
    with pytest.raises(RecordError, match="no token is left to train on") as caught:
        build_chats(tmp_path / "out", source, **options)
    assert caught.value.code == "E_UNTRAINED"
    kept = build_chats(tmp_path / "out", source, keep_untrained=True, **options)
    assert kept.manifest.records.written == 1


def test_an_answer_cut_away_takes_its_record_along(tmp_path: Path) -> None:
    """Of a pair no half is kept; split is refused for preferences."""
    source = tmp_path / "pairs.jsonl"
    record = {"prompt": "why " * 40, "chosen": "so", "rejected": "no " * 100}
    source.write_text(json.dumps(record) + "\n" + json.dumps(record | {"prompt": "why"}), "utf-8")
    report = build_chats(
        tmp_path / "out", source, max_tokens=60, overlong="truncate-right", on_error="skip",
        split="train=1",
    )  # fmt: skip
    assert report.manifest.records.rejected == {"untrained": 1}
    assert report.manifest.splits["train"].documents == 2
    sound(tmp_path / "out")
    with pytest.raises(UsageError, match="split would tear"):
        build_chats(tmp_path / "no", source, max_tokens=60, overlong="split")
