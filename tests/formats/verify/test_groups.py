"""Records of several documents verify, and what contradicts their rules is named."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dataprep.formats.manifest.tokens import CONFIG_NAME, ChatEntry, Manifest
from dataprep.formats.read.dataset import open_dataset
from dataprep.formats.verify import groups as verify_groups
from dataprep.formats.verify.reader import Reader
from dataprep.formats.verify.verify import verify
from tests.formats.verify.test_records import _write_index
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.grouped import FORMS, NAN, shards_of_ones
from tests.scenes.preferences import written
from tests.scenes.verified import LEVELS, codes, content_of, edit, reseal
from tests.support import REPOSITORY, examples

SCHEMA = json.loads((REPOSITORY / "formats" / "config.schema.json").read_text("utf-8"))


@pytest.mark.parametrize("form", FORMS)
def test_sound_records_verify(tmp_path: Path, form: str) -> None:
    """What the writer of the tests wrote has no findings at any level, and fits the schema."""
    path = tmp_path / "d"
    written(path, form, 5, 0, 4)
    for level in LEVELS:
        read: list[tuple[int, int]] = [(0, 0)]
        report = verify(path, level, progress=lambda *numbers, read=read: read.append(numbers))
        assert report.findings == ()
    assert read[-1][0] == read[-1][1]
    config = json.loads((path / CONFIG_NAME).read_bytes())
    assert config["required_features"] == ["loss_mask", "preference"]
    Draft202012Validator(SCHEMA).validate(config)
    config["splits"]["train"]["shards"][0].pop("scores")
    assert not Draft202012Validator(SCHEMA).is_valid(config)


def test_conversations_that_were_cut_verify(tmp_path: Path) -> None:
    """Documents of one record repeat its id, where `records` is told."""
    shards = random_split([[3, 4, 5], [6]])
    path = make_dataset(
        tmp_path / "d", {"train": shards}, masks={"train": shards_of_ones(shards)}, form="chat",
        sizes={"train": [[1, 2], [1]]},
    )  # fmt: skip
    config = json.loads((path / CONFIG_NAME).read_bytes())
    Draft202012Validator(SCHEMA).validate(config)
    assert (config["splits"]["train"]["records"], config["records"]["written"]) == (3, 3)
    for level in LEVELS:
        assert verify(path, level).findings == ()
    assert open_dataset(path).split("train").record_ids.tolist() == [0, 1, 1, 2]
    _write_index(path, "train_idx.pt", [0, 1, 1, 1])
    reseal(path)
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.problem) == ("E_INDEX", "has 2 record ids, must have 3")
    for ids in ([0, 1, 0, 2], [-1, 0, 1, 2], [-1, -1, 1, 2]):
        _write_index(path, "train_idx.pt", ids)
        reseal(path)
        assert codes(verify(path, "structure")) == {("E_INDEX", "train_idx.pt")}


GROUPS, SCORES, MASK = "train/groups-00000.npy", "train/scores-00000.npy", "train/mask-00000.npy"
WRONG: dict[str, tuple[str, str, dict[int, Any], str, tuple[int, int], str]] = {
    # form: file, values, code, bytes of the place, what is said
    "start late": ("groups", GROUPS, {0: 1}, "E_GROUPS", (128, 136), "start at 0"),
    "nobody": ("groups", GROUPS, {1: 0}, "E_GROUPS", (136, 144), "record 0 has 0 documents"),
    "falls": ("groups", GROUPS, {2: 1}, "E_GROUPS", (144, 152), "record 1 has -1 documents"),
    "ends early": ("groups", GROUPS, {3: 5}, "E_GROUPS", (152, 160), "must end at 6"),
    "leaves": ("groups", GROUPS, {3: 7}, "E_GROUPS", (152, 160), "past the 6 documents"),
    "leaves far": ("groups", GROUPS, {1: 1 << 63}, "E_GROUPS", (136, 144), "past the 6"),
    "infinite": ("groups", SCORES, {2: np.inf}, "E_SCORES", (136, 140), "score inf"),
    "some of a record": ("groups", SCORES, {4: NAN}, "E_SCORES", (144, 148), "its record"),
    "the first of one": ("groups", SCORES, {0: NAN}, "E_SCORES", (132, 136), "its record"),
    "not two": ("pairs", GROUPS, {1: 1}, "E_GROUPS", (136, 144), "has 1 documents, must have 2"),
    "rejected first": ("pairs", SCORES, {0: 0, 1: 1}, "E_SCORES", (128, 132), "1 for the answer"),
    "both chosen": ("pairs", SCORES, {3: 1}, "E_SCORES", (140, 144), "score 1.0, must be 1 for"),
    "pair without": ("pairs", SCORES, {2: NAN}, "E_SCORES", (136, 140), "score nan"),
    "half a label": ("labels", SCORES, {1: 0.5}, "E_SCORES", (132, 136), "must be 0 or 1"),
    "no label": ("labels", SCORES, {1: NAN}, "E_SCORES", (132, 136), "score nan"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_arrays_that_do_not_fit(
    groups: Path, tmp_path: Path, case: tuple[str, str, dict[int, Any], str, Any, str]
) -> None:
    """With hashes made to fit, structure alone names the file, the code and the bytes."""
    form, name, values, code, place, said = case
    path = groups if form == "groups" else tmp_path / form
    if form != "groups":
        written(path, form, 6)
    edit(path, name, "<u8" if name == GROUPS else "<f4", 128, values)
    reseal(path)
    for level in LEVELS[1:]:
        (finding,) = verify(path, level).findings
        assert (finding.code, finding.file) == (code, name)
        assert (finding.start, finding.stop) == place
        assert said in finding.problem


def test_records_may_be_without_scores(groups: Path) -> None:
    """All of a record, next to ones with scores, is not mixed."""
    edit(groups, SCORES, "<f4", 128, {2: NAN})
    edit(groups, "train/scores-00001.npy", "<f4", 128, {2: NAN, 3: NAN, 4: NAN})
    reseal(groups, content_of(groups))
    assert verify(groups).findings == ()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_small_chunks_find_the_same(
    groups: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Records that straddle what is read at once: `steps` numbers of each file."""
    whole = Reader.arrays

    def arrays(self: Reader, dtype: str, stop: int | None = None) -> Iterator[Any]:
        if self.name not in (GROUPS, SCORES):
            yield from whole(self, dtype, stop)
            return
        while self.at < self.size:
            yield np.frombuffer(self.read(min(self.size - self.at, steps * int(dtype[2]))), dtype)

    monkeypatch.setattr(Reader, "arrays", arrays)
    monkeypatch.setattr(verify_groups, "_STEP", steps)
    assert verify(groups, "structure").findings == ()
    for place, value in ((4, NAN), (5, NAN), (0, NAN)):
        kept = (groups / SCORES).read_bytes()
        edit(groups, SCORES, "<f4", 128, {place: value})
        reseal(groups)
        assert codes(verify(groups, "structure")) == {("E_SCORES", SCORES)}
        (groups / SCORES).write_bytes(kept)
    _write_index(groups, "train_idx.pt", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4])
    reseal(groups)
    assert codes(verify(groups, "structure")) == {("E_INDEX", "train_idx.pt")}


INDEXES = {
    "of the record before": ([0, 0, 0, 2, 2, 2, 3, 3, 4, 4, 4], "must have 5"),
    "split in two": ([0, 1, 2, 3, 3, 3, 4, 4, 4, 4, 4], "another than the one before"),
    "moved by one": ([0, 0, 1, 2, 2, 2, 3, 3, 3, 4, 4], "the same as the one before"),
    "over the shards": ([0, 0, 1, 2, 3, 4, 4, 4, 4, 4, 4], "another than the one before"),
}


@pytest.mark.parametrize(("ids", "said"), INDEXES.values(), ids=INDEXES.keys())
def test_indexes_and_groups_must_agree(groups: Path, ids: list[int], said: str) -> None:
    """Documents have one id exactly where they are of one record."""
    _write_index(groups, "train_idx.pt", ids)
    reseal(groups)
    found = [f for f in verify(groups, "structure").findings if f.code == "E_INDEX"]
    assert [f.file for f in found] == ["train_idx.pt"]
    assert said in found[0].problem


def test_trained_tokens_are_counted(groups: Path) -> None:
    """One mask turned to 0: the total is wrong. Of damaged masks there is none."""
    mask = np.frombuffer((groups / MASK).read_bytes(), np.uint8)[128:]
    edit(groups, MASK, "|u1", 128, {int(np.flatnonzero(mask)[0]): 0})
    reseal(groups)
    (finding,) = verify(groups, "structure").findings
    assert (finding.code, finding.file) == ("E_COUNT", CONFIG_NAME)
    assert finding.problem == "chat.trained_tokens is 11, the masks say 10"
    edit(groups, MASK, "|u1", 128, {0: 2})
    reseal(groups)
    assert codes(verify(groups, "structure")) == {("E_MASK", MASK)}


def limited(to: int) -> Callable[[Manifest], Manifest]:
    """A change of the manifest: conversations have at most so many tokens."""

    def change(manifest: Manifest) -> Manifest:
        assert isinstance(manifest.chat, ChatEntry)
        chat = msgspec.structs.replace(manifest.chat, max_tokens=to)
        return msgspec.structs.replace(manifest, chat=chat)

    return change


def test_the_limit_of_the_build_is_kept(groups: Path) -> None:
    """A manifest that promises shorter conversations: the first shard with one is named."""

    reseal(groups, limited(5))
    assert verify(groups).findings == ()
    reseal(groups, limited(4))
    (finding,) = verify(groups, "structure").findings
    assert (finding.code, finding.file) == ("E_OFFSETS", "train/docs-00000.npy")
    assert (finding.start, finding.stop) == (128 + 8 * 5, 128 + 8 * 6)
    told = "document 4 has 5 tokens, must have at most 4 (chat.max_tokens)"
    assert finding.problem == f"row 5 is 16, {told}"


def test_a_document_over_the_limit_is_named_wherever_it_is(tmp_path: Path) -> None:
    """Offsets are read by the MiB: in the second one documents are still counted from the first."""
    many = 131_200
    ids = [np.ones(1 + (number == many - 2), np.int64) for number in range(many)]
    path = make_dataset(tmp_path / "d", {"train": [ids]}, masks={"train": [ids]}, form="chat")
    reseal(path, limited(1))
    (finding,) = verify(path, "structure").findings
    told = f"document {many - 2} has 2 tokens, must have at most 1 (chat.max_tokens)"
    assert finding.problem.endswith(told)
    assert (finding.start, finding.stop) == (128 + 8 * (many - 1), 128 + 8 * many)


def plainly_sound(form: str, groups: list[int], scores: list[float], ids: list[int]) -> bool:
    """The rules of docs/format.md, one record at a time."""
    if groups[0] != 0 or groups[-1] != len(scores):
        return False
    for number, (start, stop) in enumerate(itertools.pairwise(groups)):
        own, finite = scores[start:stop], [math.isfinite(score) for score in scores[start:stop]]
        if start >= stop or stop > len(scores):
            return False
        fine = {
            "pairs": own == [1, 0],
            "labels": own in ([0], [1]),
            "groups": all(finite) or all(math.isnan(score) for score in own),
        }
        if not fine[form] or ids[start:stop] != [number] * (stop - start):
            return False
    return True


@examples(40)
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 20), data=st.data())
def test_verify_equals_the_plain_rules(form: str, seed: int, data: st.DataObject) -> None:
    """Any few numbers of groups, scores and index changed, hashes made to fit."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "d"
        records = written(path, form, data.draw(st.integers(1, 4)), seed=seed)
        groups = np.cumsum([0, *map(len, records)]).tolist()
        scores = [answer.score for record in records for answer in record]
        ids = [number for number, record in enumerate(records) for _ in record]
        for _ in range(data.draw(st.integers(0, 2))):
            number = st.integers(-1, len(scores) + 1)
            what = data.draw(st.sampled_from(["groups", "scores", "ids"]))
            if what == "groups":
                groups[data.draw(st.integers(0, len(groups) - 1))] = max(data.draw(number), 0)
            elif what == "scores":
                value = data.draw(st.sampled_from([0.0, 1.0, 0.5, NAN, np.inf]))
                scores[data.draw(st.integers(0, len(scores) - 1))] = value
            else:
                ids[data.draw(st.integers(0, len(ids) - 1))] = data.draw(number)
        edit(path, GROUPS, "<u8", 128, dict(enumerate(groups)))
        edit(path, SCORES, "<f4", 128, dict(enumerate(scores)))
        _write_index(path, "train_idx.pt", ids)
        reseal(path)
        found = verify(path, "structure").findings
        assert bool(found) != plainly_sound(form, groups, scores, ids)
