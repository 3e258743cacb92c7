"""Hugging Face datasets, saved and on the hub: row by row what was put in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.formats.errors import DataprepError, InputError, StorageError
from dataprep.pipeline.read import fingerprints, huggingface
from dataprep.pipeline.read.arrow_text import text_batches
from dataprep.pipeline.read.fingerprints import fingerprint_files
from dataprep.pipeline.read.records import Batch, Span
from dataprep.pipeline.read.sources import Source
from tests.scenes.tables_read import offsets_of, rejects_of, texts_of, written


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with a cache of its own and no network."""
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    huggingface._opened.clear()
    yield datasets
    huggingface._opened.clear()


def hf(path: str, split: str | None = None, field: str = "text", key: str | None = None,
       config: str | None = None, rows: tuple[int, int] | None = None) -> list[Batch]:  # fmt: skip
    named = Source(path=path, name=Path(path).name, format="hf")
    source = huggingface.hf_source(named, config, split)
    count, _ = huggingface.hf_rows(source, config, split)
    start, stop = rows or (0, count)
    span = Span(0, start, stop)
    return list(text_batches(source, span, field, key, config=config, split=split))


def test_a_saved_dataset(tmp_path: Path, datasets: Any) -> None:
    """`save_to_disk` and back, in parts, with row numbers, keys, nulls and nested fields."""
    rows = [{"text": f"t{n}" if n != 3 else None, "id": n, "m": {"t": f"m{n}"}} for n in range(10)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "d", num_shards=3)
    path = str(tmp_path / "d")
    batches = hf(path, key="id") + hf(path, rows=(4, 7), key="id")
    assert offsets_of(batches) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 4, 5, 6]
    assert rejects_of(batches) == [("not_a_string", 3, 3)]
    assert batches[0].keys == [b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert texts_of(hf(path, field="m.t")) == [f"m{n}" for n in range(10)]
    source = huggingface.hf_source(Source(path=path, name="d", format="hf"), None, None)
    assert len(huggingface.hf_files(source, None, None)) == 3
    assert huggingface.hf_rows(source, None, None)[1] > 0


def test_a_shuffled_dataset(tmp_path: Path, datasets: Any) -> None:
    """Selected and shuffled rows come in the order that the dataset gives them."""
    whole = datasets.Dataset.from_dict({"text": [f"t{n}" for n in range(100)]})
    some = whole.shuffle(seed=1).select(range(10, 50))
    expected = list(some["text"])
    some.save_to_disk(tmp_path / "d")
    assert texts_of(hf(str(tmp_path / "d"))) == expected
    assert offsets_of(hf(str(tmp_path / "d"))) == list(range(40))


def test_a_dataset_is_known_by_its_files(tmp_path: Path, datasets: Any) -> None:
    """Size and stamp are those of the Arrow files; a dataset saved again is another one."""
    path = tmp_path / "d"
    datasets.Dataset.from_dict({"text": ["old"] * 5}).save_to_disk(path)
    named = Source(path=str(path), name="d", format="hf")
    old = huggingface.hf_source(named, None, None)
    assert huggingface.hf_source(named, None, None) == old
    assert old.size == sum(file.stat().st_size for file in path.glob("*.arrow"))
    assert 0 < old.modified < 2**63
    shutil.rmtree(path)
    datasets.Dataset.from_dict({"text": ["new"] * 5}).save_to_disk(path)
    new = huggingface.hf_source(named, None, None)
    assert new.size == old.size
    assert new != old
    assert texts_of(hf(str(path))) == ["new"] * 5
    huggingface._opened.clear()  # as in a worker that starts only now
    with pytest.raises(InputError) as caught:
        huggingface.hf_rows(old, None, None)
    assert caught.value.code == "E_CHANGED"


def test_a_dataset_that_changes_while_it_is_read(tmp_path: Path, datasets: Any) -> None:
    """Files touched after the plan stop the build at the end of the unit."""
    datasets.Dataset.from_dict({"text": ["a"] * 5}).save_to_disk(tmp_path / "d")
    named = Source(path=str(tmp_path / "d"), name="d", format="hf")
    source = huggingface.hf_source(named, None, None)
    batches = text_batches(source, Span(0, 0, 5), "text", None, config=None, split=None)
    assert next(batches).texts == ["a"] * 5
    os.utime(next((tmp_path / "d").glob("*.arrow")), ns=(1, 1))
    with pytest.raises(InputError) as caught:
        next(batches)
    assert caught.value.code == "E_CHANGED"


def test_a_fingerprint_is_of_the_planned_files(tmp_path: Path, datasets: Any) -> None:
    """Files that changed after the plan was made have none, though nothing changes meanwhile."""
    datasets.Dataset.from_dict({"text": ["a"] * 5}).save_to_disk(tmp_path / "d")
    saved = Source(path=str(tmp_path / "d"), name="d", format="hf")
    saved = huggingface.hf_source(saved, None, None)
    parquet = written(tmp_path / "x.parquet", pa.table({"text": ["a"] * 5}))
    arrow = next((tmp_path / "d").glob("*.arrow"))
    for source, path in ((saved, arrow), (parquet, tmp_path / "x.parquet")):
        found = fingerprints.fingerprint_source(source, None, None)
        assert found == fingerprint_files([str(path)])
        os.utime(path, ns=(1, 1))
        with pytest.raises(InputError) as caught:
            fingerprints.fingerprint_source(source, None, None)
        assert (caught.value.code, caught.value.where) == ("E_CHANGED", source.name)


@pytest.mark.parametrize("kind", ["hf", "parquet"])
def test_a_table_that_changes_once_it_is_fingerprinted(
    tmp_path: Path, datasets: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The last look is after the fingerprint."""
    datasets.Dataset.from_dict({"text": ["a"] * 5}).save_to_disk(tmp_path / "d")
    if kind == "hf":
        path = next((tmp_path / "d").glob("*.arrow"))
        named = Source(path=str(tmp_path / "d"), name="d", format="hf")
        source = huggingface.hf_source(named, None, None)
    else:
        path = tmp_path / "x.parquet"
        source = written(path, pa.table({"text": ["a"] * 5}))

    def fingerprint(paths: list[str]) -> str:
        os.utime(path, ns=(1, 1))
        return "xxh3-128:"

    monkeypatch.setattr(fingerprints, "fingerprint_files", fingerprint)
    with pytest.raises(InputError) as caught:
        fingerprints.fingerprint_source(source, None, None)
    assert caught.value.code == "E_CHANGED"


def test_splits_of_a_dataset(tmp_path: Path, datasets: Any) -> None:
    """One split is taken as it is; of several, one must be named, and it must be there."""
    one = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": one}).save_to_disk(tmp_path / "one")
    two = datasets.DatasetDict({"train": one, "test": one})
    two.save_to_disk(tmp_path / "two")
    assert texts_of(hf(str(tmp_path / "one"))) == ["a"]
    assert texts_of(hf(str(tmp_path / "two"), split="test")) == ["a"]
    for split, told in ((None, "2 splits"), ("val", "no split 'val'")):
        with pytest.raises(InputError) as caught:
            hf(str(tmp_path / "two"), split=split)
        assert told in str(caught.value)
        assert "train, test" in str(caught.value)
        assert "--hf-split" in str(caught.value)
    with pytest.raises(InputError, match="no split 'val'"):
        hf(str(tmp_path / "one"), split="val")


def test_the_hub_path(tmp_path: Path, datasets: Any) -> None:
    """`hf:` goes through `load_dataset`: here, folders of JSONL and Parquet."""
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text":"a","id":1}\n{"text":"b","id":2}\n')
    (folder / "test.jsonl").write_text('{"text":"c","id":3}\n')
    assert texts_of(hf(f"hf:{folder}", split="train")) == ["a", "b"]
    (tmp_path / "pq").mkdir()
    pq.write_table(pa.table({"text": ["x", "y"]}), tmp_path / "pq" / "train.parquet")
    batches = hf(f"hf:{tmp_path / 'pq'}")
    assert (texts_of(batches), offsets_of(batches)) == (["x", "y"], [0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: None,
        lambda folder: (folder / "train.jsonl").write_text('{"text":"a"}\n{"text":\n'),
        lambda folder: (folder / "train.parquet").write_bytes(b"garbage"),
        lambda folder: (folder / "data.py").write_text("raise SystemExit"),
    ],
)
def test_hub_folders_that_cannot_be_read(
    tmp_path: Path, datasets: Any, capfd: pytest.CaptureFixture[str], make: Any
) -> None:
    """Whatever the library says against a folder becomes one line; its code is never run."""
    folder = tmp_path / "hub"
    folder.mkdir()
    make(folder)
    with pytest.raises(InputError) as caught:
        hf(f"hf:{folder}")
    assert caught.value.code == "E_HF"
    assert "\n" not in str(caught.value)
    assert "An error occurred" not in str(caught.value)
    assert "Failed" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["hf:nobody/nothing-here", "hf:nobody/nothing@main", "hf:gone"])
def test_a_hub_that_cannot_be_reached(datasets: Any, name: str) -> None:
    """One line that says so, and what to do."""
    with pytest.raises((StorageError, InputError)) as caught:
        hf(name)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_folder_that_is_no_saved_dataset(tmp_path: Path, datasets: Any) -> None:
    """A damaged `save_to_disk` folder is an input error."""
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "d")
    (tmp_path / "d" / "state.json").write_text("{}")
    with pytest.raises(DataprepError) as caught:
        hf(str(tmp_path / "d"))
    assert (caught.value.exit_code, caught.value.code) == (7, "E_HF")


def test_a_dataset_without_rows(tmp_path: Path, datasets: Any) -> None:
    """Is told as what it is, not as what goes wrong inside the library."""
    datasets.Dataset.from_dict({"text": []}).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no rows") as caught:
        hf(str(tmp_path / "none"))
    assert caught.value.code == "E_EMPTY"
