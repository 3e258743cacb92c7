"""Records of several documents on disk: read, verified, contradicted."""

from __future__ import annotations

import hashlib
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

from dataprep.formats import manifest as manifests
from dataprep.formats import verify_groups
from dataprep.formats.dataset import ReadBy, open_dataset
from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest import CONFIG_NAME, ChatEntry, Manifest
from dataprep.formats.verify import verify
from dataprep.formats.verify_stream import Reader
from tests.datasets import make_dataset, random_split
from tests.formats.test_verify_records import _write_index
from tests.formats.verified import LEVELS, codes, edit, reseal
from tests.preferences import Answer, make_preferences, written
from tests.support import REPOSITORY, examples

FORMS = ("pairs", "labels", "groups")
SCHEMA = json.loads((REPOSITORY / "formats" / "config.schema.json").read_text("utf-8"))
Config = dict[str, Any]
NAN = float("nan")


def answer(size: int, score: float) -> Answer:
    return Answer(ids=[7] * size, mask=[0] * (size - 1) + [1], score=score)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """Two shards: records of 2, 1 and 3 documents, then of 2 without scores, and of 3."""
    first = [
        [answer(3, 0.5), answer(2, -1)],
        [answer(4, 2)],
        [answer(2, 0), answer(5, 1), answer(2, 3)],
    ]
    second = [[answer(2, NAN), answer(3, NAN)], [answer(2, 0.25), answer(2, 4), answer(1, 0)]]
    return make_preferences(tmp_path / "groups", "groups", [first, second])


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("form", FORMS)
@examples(10)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=4), data=st.data())
def test_records_are_found(form: str, io: ReadBy, counts: list[int], data: st.DataObject) -> None:
    """Over any sharding: the documents of any records, their scores, and back."""
    with TemporaryDirectory() as folder:
        records = written(Path(folder) / "d", form, *counts)
        split = open_dataset(Path(folder) / "d", io=io).split("train")
        ends = np.cumsum([0, *map(len, records)])
        some = st.lists(st.integers(0, len(records) - 1)) if records else st.just([])
        asked = np.array(data.draw(some), np.int64)
        first, stop = split.groups.documents(asked)
        assert first.tolist() == [ends[record] for record in asked]
        assert stop.tolist() == [ends[record + 1] for record in asked]
        every = np.arange(ends[-1])
        scores = np.array([a.score for record in records for a in record], np.float32)
        assert np.array_equal(split.groups.scores(every[::-1]), scores[::-1], equal_nan=True)
        owner = np.repeat(np.arange(len(records)), [len(record) for record in records])
        assert split.groups.holding(every).tolist() == owner.tolist()
        assert split.record_ids.tolist() == owner.tolist()
        assert (len(split.groups), split.records, split.form) == (len(records), len(records), form)
        for ask in (split.groups.documents, split.groups.scores, split.groups.holding):
            for wrong in (-1, 1000):
                with pytest.raises(IndexError, match="are outside 0:"):
                    ask(np.array([wrong]))


def test_nothing_is_read_at_open(groups: Path) -> None:
    """Damage shows when a record is asked for, and names the file."""
    edit(groups, "train/groups-00001.npy", "<u8", 128, {1: 9})
    split = open_dataset(groups).split("train")
    assert split.groups.documents(np.arange(3))[1].tolist() == [2, 3, 6]
    with pytest.raises(IntegrityError, match="record 0 spans 0:9") as caught:
        split.groups.documents(np.array([3]))
    assert (caught.value.code, caught.value.where) == ("E_GROUPS", "train/groups-00001.npy")
    edit(groups, "train/groups-00001.npy", "<u8", 128, {0: 1, 1: 2})
    with pytest.raises(IntegrityError, match="which record"):
        open_dataset(groups).split("train").groups.holding(np.array([6]))


def test_splits_without_groups_say_so(tmp_path: Path) -> None:
    """Texts have none, and no form; conversations have a form and no groups."""
    shards = random_split([[3, 4]])
    text = open_dataset(make_dataset(tmp_path / "text", {"train": shards})).split("train")
    ones = {"train": shards_of_ones(shards)}
    chat = make_dataset(tmp_path / "chat", {"train": shards}, masks=ones, form="chat")
    talk = open_dataset(chat).split("train")
    assert (text.form, text.has_groups, talk.form, talk.has_groups) == (None, False, "chat", False)
    for split in (text, talk):
        with pytest.raises(UsageError, match="has no preferences"):
            _ = split.groups


def shards_of_ones(shards: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    return [[np.ones_like(ids) for ids in shard] for shard in shards]


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
    reseal(groups)
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


def test_the_limit_of_the_build_is_kept(groups: Path) -> None:
    """A manifest that promises shorter conversations: the first shard with one is named."""

    def limited(to: int) -> Callable[[Manifest], Manifest]:
        def change(manifest: Manifest) -> Manifest:
            assert isinstance(manifest.chat, ChatEntry)
            chat = msgspec.structs.replace(manifest.chat, max_tokens=to)
            return msgspec.structs.replace(manifest, chat=chat)

        return change

    reseal(groups, limited(5))
    assert verify(groups).findings == ()
    reseal(groups, limited(4))
    (finding,) = verify(groups, "structure").findings
    assert (finding.code, finding.file) == ("E_OFFSETS", "train/docs-00000.npy")
    assert (finding.start, finding.stop) == (128 + 8 * 5, 128 + 8 * 6)
    assert finding.problem == "document 4 has 5 tokens, chat.max_tokens is 4"


def test_another_template_is_found(groups: Path) -> None:
    """By its hash, which the manifest tells twice."""
    path = groups / "chat_template.jinja"
    path.write_bytes(path.read_bytes().replace(b"{{ ", b"{{- ")[:-1])
    (finding,) = verify(groups).findings
    assert (finding.code, finding.file) == ("E_HASH", "chat_template.jinja")
    with pytest.raises(IntegrityError, match="is not the template"):
        reseal(groups)
        verify(groups, "stat")


def _chat(**changes: Any) -> Callable[[Config], object]:
    return lambda config: config["chat"].update(changes)


def _shard(config: Config) -> Config:
    shard: Config = config["splits"]["train"]["shards"][0]
    return shard


def _without_groups(config: Config) -> None:
    for shard in config["splits"]["train"]["shards"]:
        for name in ("groups", "scores", "records"):
            shard.pop(name)


CONTRADICTIONS: dict[str, Callable[[Config], object]] = {
    "feature not required": lambda config: config.update(required_features=["loss_mask"]),
    "masks not required": lambda config: config.update(required_features=["preference"]),
    "no groups": _without_groups,
    "one shard without": lambda config: [_shard(config).pop(n) for n in ("groups", "scores")],
    "one without scores": lambda config: _shard(config).pop("scores"),
    "records differ": lambda config: _shard(config).update(records=2),
    "records of the split": lambda config: config["splits"]["train"].update(records=6),
    "no conversations": lambda config: config.pop("chat"),
    "of chat": _chat(form="chat"),
    "of pairs": _chat(form="pairs"),
    "of labels": _chat(form="labels"),
    "of nothing known": _chat(form="essays"),
    "template unlisted": _chat(template="template.jinja"),
    "template of another": _chat(template="tokenizer.json"),
    "template hash": _chat(template_sha256="0" * 64),
    "another's groups": lambda config: _shard(config).update(groups="train/groups-00001.npy"),
    "no mask": lambda config: _shard(config).pop("mask"),
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_refused(groups: Path, change: Callable[[Config], object]) -> None:
    """A manifest with a right digest that disagrees with itself about records."""
    config = json.loads((groups / CONFIG_NAME).read_bytes())
    assert manifests.parse(_signed(config))
    change(config)
    with pytest.raises(IntegrityError):
        manifests.parse(_signed(config))


def _signed(config: Config) -> bytes:
    config = {**config, "self_sha256": ""}
    body = json.dumps(config, indent=1).encode() + b"\n"
    body = body.replace(b'"self_sha256": ""', b'"self_sha256": "' + b"0" * 64 + b'"')
    digest = hashlib.sha256(body).hexdigest().encode()
    return body.replace(b'"self_sha256": "' + b"0" * 64, b'"self_sha256": "' + digest)


def test_more_records_than_documents(tmp_path: Path) -> None:
    """Of conversations, too."""
    shards = random_split([[3, 4]])
    path = make_dataset(
        tmp_path / "d", {"train": shards}, masks={"train": shards_of_ones(shards)}, form="chat",
        sizes={"train": [[1, 1]]},
    )  # fmt: skip
    assert verify(path, "structure").findings == ()

    def change(manifest: Manifest) -> Manifest:
        train = msgspec.structs.replace(manifest.splits["train"], records=3)
        records = msgspec.structs.replace(manifest.records, read=3, written=3)
        inputs = (msgspec.structs.replace(manifest.inputs[0], records=3),)
        return msgspec.structs.replace(
            manifest, splits={"train": train}, records=records, inputs=inputs
        )

    reseal(path, change)
    with pytest.raises(IntegrityError, match="more records than documents"):
        verify(path, "stat")


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
