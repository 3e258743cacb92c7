"""Loaders of preferences: order, ranks, resume, mixtures, traces and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import IncompatibleError, InputError, UsageError
from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.choices import FORMS
from dataprep.runtime.external.builder import DataLoaderBuilder
from dataprep.runtime.external.data_module import UniversalDataModule
from dataprep.runtime.external.map_loader import Buckets
from dataprep.runtime.inspect.first_batch import validate_first_batch
from dataprep.runtime.inspect.trace import steps_of_document, trace_step
from dataprep.runtime.loader.loader import Loader
from dataprep.runtime.mixture.loader import realised
from dataprep.runtime.rows.preferences import PreferenceDataset
from dataprep.runtime.specs import RowKind
from dataprep.runtime.stream.dataset import StreamDataset
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.loaders import make_loader
from tests.scenes.preferences import Answer, Record, make_preferences
from tests.scenes.runner import run_here

N, PER_STEP = 13, 3
FIRST_IDS = {"pairs": "chosen_input_ids", "labels": "input_ids", "groups": "input_ids"}


def numbered(path: Path, form: str, first: int = 0) -> Path:
    """Records in two shards, all of whose tokens are their number; of other lengths each."""
    random = np.random.default_rng(first)
    records: list[Record] = []
    for number in range(first, first + N):
        answers = {"pairs": 2, "labels": 1}.get(form) or int(random.integers(1, 5))
        prompt = int(random.integers(1, 6))
        record = []
        for slot in range(answers):
            size = int(random.integers(1, 9))
            score = float(slot == 0 if form == "pairs" else number % 2)
            mask = [0] * prompt + [1] * size
            record.append(Answer(ids=[number] * len(mask), mask=mask, score=score))
        records.append(record)
    return make_preferences(path, form, [records[:5], [], records[5:]])


@pytest.fixture(autouse=True)
def _plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("preferences")
    return {form: numbered(folder / form, form) for form in FORMS}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


def numbers(batches: Iterable[Any], form: str) -> list[list[int]]:
    """The record in each row of each batch, without those that only fill."""
    found = []
    for batch in batches:
        ids = batch[FIRST_IDS[form]][:, 0]
        mask = batch.get("sample_mask", torch.ones(len(ids), dtype=torch.bool))
        found.append(ids[mask].tolist())
    return found


def flat(steps: Iterable[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


def make(path: Path, **options: Any) -> Loader:
    options = {"drop_last": False, "seed": 7} | options
    return make_loader(path, "train", PER_STEP, **options)


def test_each_record_once_whoever_serves_it(paths: dict[str, Path], form: str) -> None:
    """In a seeded order, which rows, ranks, worker processes and batch size do not change."""
    path = paths[form]
    order = flat(numbers(make(path), form))
    assert sorted(order) == [*range(N)]
    assert order != [*range(N)]
    assert flat(numbers(make(path, rows=form), form)) == order
    assert flat(numbers(make(path, num_workers=1), form)) == order
    assert flat(numbers(make(path, io="pread"), form)) == order
    assert flat(numbers(make_loader(path, "train", 5, drop_last=False, seed=7), form)) == order
    assert flat(numbers(make(path, shuffle=False), form)) == [*range(N)]
    assert sorted(flat(numbers(make(path, shuffle="blocks"), form))) == [*range(N)]
    assert flat(numbers(make(path, skip=[4]), form)) == [n for n in order if n != 4]
    ranks = [numbers(make(path, dp_rank=rank, dp_size=2), form) for rank in range(2)]
    assert flat(part for step in zip(*ranks, strict=True) for part in step) == order
    assert len(ranks[0][-1]) != len(ranks[1][-1])


def test_other_epochs_and_resuming(paths: dict[str, Path], form: str) -> None:
    """From any step on, what follows is what followed; on other ranks, too."""
    whole = make(paths[form])
    epochs = [numbers(whole, form) for _ in range(2)]
    assert epochs[0] != epochs[1]
    loader = make(paths[form])
    for step, _ in enumerate(loader):
        state = json.loads(json.dumps(loader.state_dict()))
        again = make(paths[form])
        again.load_state_dict(state)
        rest = epochs[0][step + 1 :] or epochs[1]
        assert numbers(again, form) == rest
    other = make(paths[form], seed=8)
    with pytest.raises(IncompatibleError):
        other.load_state_dict(state)


def test_what_a_batch_holds(paths: dict[str, Path], form: str) -> None:
    """What the dataset gives, counted in the statistics; served from memory with `mock`."""
    loader = make(paths[form], shuffle=False)
    data = PreferenceDataset(open_dataset(paths[form]).split("train"))
    tokens = 0
    for step, batch in enumerate(loader):
        expected = data.batch(range(PER_STEP * step, min(N, PER_STEP * (step + 1))))
        assert list(batch) == list(expected)
        assert all(torch.equal(batch[name], expected[name]) for name in batch)
        tokens += sum(
            tensor.numel() for name, tensor in batch.items()
            if name.endswith("input_ids") or name == "responses"
        )  # fmt: skip
    assert (loader.stats().samples, loader.stats().tokens) == (N, tokens)
    assert {tuple(step) for step in numbers(make(paths[form], mock=True), form)} == {(0,) * 3, (0,)}


def test_first_batch(paths: dict[str, Path], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at without a trace, and what is wrong is named as the batch names it."""
    loader = make(paths[form])
    batch = validate_first_batch(loader, vocab_size=EOS_ID + 1)
    assert numbers([batch], form) == numbers(loader, form)[:1]
    names = {
        "pairs": ("rejected_input_ids", "chosen_labels", "rejected_attention_mask"),
        "labels": ("input_ids", "labels", "attention_mask"),
        "groups": ("responses_input_ids", "responses_labels", "attention_mask"),
    }[form]  # fmt: skip
    whole = PreferenceDataset.batch

    def check(name: str, change: Any, problem: str) -> None:
        def changed(self: PreferenceDataset, indices: Any) -> dict[str, torch.Tensor]:
            found = whole(self, indices)
            own = {"responses_input_ids": "responses", "responses_labels": "responses_loss_mask"}
            found[own.get(name, name)] = change(found[own.get(name, name)])
            return found

        monkeypatch.setattr(PreferenceDataset, "batch", changed)
        with pytest.raises(IncompatibleError, match=problem) as caught:
            validate_first_batch(make(paths[form]))
        assert caught.value.where == name

    check(names[0], lambda ids: ids + 1000, "is outside 0 .. 256")
    blank = 0 if form == "groups" else -100
    check(names[1], lambda labels: torch.full_like(labels, blank), "nothing would be learnt")
    check(names[2], lambda mask: mask.int(), "is int32")


def test_a_first_batch_that_only_fills(paths: dict[str, Path], form: str) -> None:
    """Of the last step one rank has nothing real, which is no fault of the labels."""
    real = []
    for rank in range(2):
        loader, again = (make(paths[form], dp_rank=rank, dp_size=2) for _ in range(2))
        batches = iter(loader)
        next(batches), next(batches)
        again.load_state_dict(loader.state_dict())
        real.append(int(validate_first_batch(again)["sample_mask"].sum()))
    assert sorted(real) == [0, 1]


def test_a_model_with_too_few_embeddings(paths: dict[str, Path], form: str) -> None:
    """Told before the first batch happens to hold a large id."""
    with pytest.raises(IncompatibleError, match="257 ids, the model 200"):
        validate_first_batch(make(paths[form]), vocab_size=200)


def test_mixtures(paths: dict[str, Path], form: str, tmp_path: Path) -> None:
    """Rows of several datasets in one batch, padded on; each record as its dataset gives it."""
    other = numbered(tmp_path / "other", form, first=100)
    both = {str(paths[form]): 0.5, str(other): 0.5}
    loader = make_loader(both, "train", 4, seed=3, source_ids=True)
    single = [PreferenceDataset(open_dataset(path).split("train")) for path in both]
    seen: list[int] = []
    for batch in loader:
        rows = numbers([batch], form)[0]
        seen += rows
        assert [int(number >= 100) for number in rows] == batch["source"].tolist()
        for row, number in enumerate(rows):
            wanted = single[number >= 100][number % 100]
            for name, tensor in wanted.items():
                found = batch[name][row]
                inside = tuple(map(slice, tensor.shape))
                assert torch.equal(found[inside], tensor)
                rest = found.clone()
                rest[inside] = blank = _blank(name)
                assert (rest == blank).all() or not tensor.ndim
    assert min(seen) < 100 <= max(seen)
    assert sum(part["samples"] for part in realised(loader).values()) == len(seen)
    by_tokens = make_loader(both, "train", 4, seed=3, by="tokens")
    assert sum(len(step) for step in numbers(by_tokens, form)) == len(seen)


def _blank(name: str) -> int:
    if name.endswith("input_ids") or name == "responses":
        return EOS_ID
    return -100 if name.endswith("labels") else 0


def test_mixtures_of_other_forms_are_refused(paths: dict[str, Path]) -> None:
    """Pairs have no rows that groups have."""
    with pytest.raises(UsageError, match="rows of the sources differ"):
        make_loader({str(paths["pairs"]): 1, str(paths["groups"]): 1}, "train", 2)


def test_data_modules(paths: dict[str, Path], form: str) -> None:
    """By path, with what a build is for as the default."""
    module = UniversalDataModule(paths[form], batch_size=PER_STEP, val_split=0)
    assert sorted(flat(numbers(module.train_dataloader(), form))) == [*range(N)]


def test_buckets(paths: dict[str, Path], form: str) -> None:
    """Records of like length together: by their longest document."""
    data = PreferenceDataset(open_dataset(paths[form]).split("train"))
    lengths = data.lengths_of(np.arange(N))
    starts, stops = data.split.groups.documents(np.arange(N))
    every = data.split.lengths()
    spans = zip(starts, stops, strict=True)
    assert lengths.tolist() == [every[start:stop].max() for start, stop in spans]
    loader = DataLoaderBuilder().with_dataset(data).with_batch_size(4).with_buckets(Buckets())
    steps = numbers(loader.build(), form)
    assert sorted(flat(steps)) == [*range(N)]
    whole = [lengths[step] for step in steps if len(step) == 4]  # the last one takes what is left
    ranges = sorted((found.min(), found.max()) for found in whole)
    assert all(low >= high for (_, high), (low, _) in pairwise(ranges))


def test_traces(paths: dict[str, Path], form: str) -> None:
    """Every step names its documents, and every document its step, as they are served."""
    loader = make(paths[form])
    steps = numbers(make(paths[form]), form)
    data: Any = loader.dataset_obj
    starts, stops = data.split.groups.documents(np.arange(N))
    for step, rows in enumerate(steps):
        pieces = trace_step(data, loader.sampler_obj, step, epoch=0).pieces
        assert pieces.record.tolist() == [rows[row] for row in pieces.row.tolist()]
        wanted = [number for record in rows for number in range(starts[record], stops[record])]
        assert pieces.document.tolist() == wanted
        assert (pieces.first == 0).all()
        assert (pieces.stop == pieces.length).all()
        for row, record in enumerate(rows):
            for document in range(starts[record], stops[record]):
                found = steps_of_document(data, loader.sampler_obj, document, epoch=0)
                assert (found.step.tolist(), found.row.tolist()) == ([step], [row])


def test_order_command(
    paths: dict[str, Path], form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With options or a state: the records of a step, and the step of a record."""
    loader = make_loader(paths[form], "train", 4, seed=5)
    batches = iter(loader)
    next(batches)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    (rows,) = numbers([next(batches)], form)
    given = ("--seed", "5", "--step", "1"), ("--state", str(tmp_path / "state.json"))
    for options in (given[0], (*given[0], "--rows", form), given[1]):
        done = run_here(
            capsys, "order", str(paths[form]), "--batch-size", "4", "--json", *options
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["rows"] == form
        records = [{part["record"] for part in s["documents"]} for s in found["samples"]]
        assert records == [{record} for record in rows]
    done = run_here(capsys, "order", str(paths[form]), "--batch-size", "4", "--seed", "5", "--json",
                    "--doc", str(rows[2]))  # fmt: skip
    (sample,) = json.loads(done.stdout)["samples"]
    assert (sample["step"], sample["row"]) == (1, 2)


@pytest.mark.parametrize("rows", [*FORMS, "documents"])
def test_order_command_of_what_is_cut(
    paths: dict[str, Path], rows: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state says that beginnings were cut off, and options may say it, too."""
    path = paths.get(rows) or make_dataset(tmp_path / "d", {"train": random_split([[12, 30]])})
    size = N if rows in FORMS else 2  # all samples in one step
    loader = make_loader(path, "train", size, rows=rows, seq_len=9, overlong="truncate-left")
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    data: Any = loader.dataset_obj
    for options in (("--state", str(tmp_path / "state.json")),
                    ("--rows", rows, "--seq-len", "9", "--overlong", "truncate-left")):  # fmt: skip
        done = run_here(
            capsys, "order", str(path), "--batch-size", str(size), "--step", "0", "--json", *options
        )
        assert (done.returncode, done.stderr) == (0, "")
        samples = json.loads(done.stdout)["samples"]
        starts, stops = data.spans(np.array([sample["sample"] for sample in samples]))
        found = [part["tokens"] for sample in samples for part in sample["documents"]]
        assert [stop - first for first, stop in found] == (stops - starts).tolist()
        assert max(first for first, _ in found) > 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "windows": ({"rows": "windows"}, "rows"),
    "packed": ({"rows": "packed"}, "rows"),
    "documents": ({"rows": "documents"}, "rows"),
    "unknown": ({"rows": "essays"}, "rows"),
    "stride": ({"stride": 4}, "stride"),
    "algorithm": ({"algorithm": "best-fit"}, "algorithm"),
    "positions": ({"position_ids": True}, "position_ids"),
    "documents of tokens": ({"doc_ids": True}, "doc_ids"),
    "boundaries": ({"cu_seqlens": True}, "cu_seqlens"),
    "cut anywhere": ({"overlong": "split"}, "overlong"),
}


@pytest.mark.parametrize(("options", "where"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(
    paths: dict[str, Path], form: str, options: dict[str, Any], where: str
) -> None:
    """Good and bad answers are not trained on alike, and no option is ignored."""
    for rows in {None, form} - ({form} if "rows" in options else set()):
        with pytest.raises(UsageError) as caught:
            make(paths[form], **{"rows": rows, **options})
        assert caught.value.where == where


@pytest.mark.parametrize("rows", FORMS)
def test_rows_of_preferences_are_theirs_alone(
    paths: dict[str, Path], rows: RowKind, tmp_path: Path
) -> None:
    """Texts have none of them, and each form only its own."""
    text = make_dataset(tmp_path / "text", {"train": random_split([[40, 40]])})
    with pytest.raises(UsageError, match="has no preferences"):
        make_loader(text, "train", 1, rows=rows)
    for other in set(FORMS) - {rows}:
        with pytest.raises(UsageError, match=f"holds preferences \\({other}\\)"):
            make_loader(paths[other], "train", 1, rows=rows)


def test_too_long(paths: dict[str, Path], form: str) -> None:
    """An error when the loader is made, or prompts lose their beginning."""
    with pytest.raises(InputError, match="more than seq_len 9"):
        make(paths[form], seq_len=9)
    cut = make(paths[form], seq_len=9, overlong="truncate-left")
    assert sorted(flat(numbers(cut, form))) == [*range(N)]
    assert max(batch[FIRST_IDS[form]].shape[1] for batch in cut) <= 9
    whole = make(paths[form])
    assert cut.order != whole.order


def test_streams(paths: dict[str, Path], form: str) -> None:
    """Whole records, read in blocks: each once, as by number."""
    data = PreferenceDataset(open_dataset(paths[form]).split("train"))
    for shuffle in ("blocks", "buffer", None):
        stream = StreamDataset(data, batch_size=1, shuffle=shuffle, block=3)
        seen = []
        for batch in stream:
            (number,) = numbers([batch], form)[0]
            expected = data.batch([number])
            assert all(torch.equal(batch[name], expected[name]) for name in expected)
            seen.append(number)
        assert sorted(seen) == [*range(N)]
