"""Inputs in a file beside config.json, where there are many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dataprep import open_dataset
from dataprep.formats.errors import IntegrityError, UsageError
from dataprep.formats.manifest.common import CRC_NAME
from dataprep.formats.manifest.inputs import INPUTS_NAME, read_inputs
from dataprep.formats.read.arrays import open_arrays
from dataprep.formats.verify.verify import verify
from dataprep.formats.write import dataset_writer
from tests.scenes.corpora import build_into
from tests.scenes.embed_inputs import build_vectors, make_records, write_records
from tests.scenes.runner import run_here
from tests.scenes.verified import LEVELS, codes, parse, reseal

pytestmark = pytest.mark.usefixtures("one_child")


@pytest.fixture
def few_in_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three inputs are many."""
    monkeypatch.setattr(dataset_writer, "MANY_INPUTS", 2)


def write_texts(folder: Path) -> Path:
    """Three inputs with one, two and three records."""
    folder.mkdir()
    for number in (1, 2, 3):
        lines = [json.dumps({"text": f"text {number} {line}"}) for line in range(number)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_dataset_of_texts_with_a_side_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same inputs and the same ids; opening does not read the file."""
    source = write_texts(tmp_path / "in")
    build_into(tmp_path / "one", source, split="train=1")
    monkeypatch.setattr(dataset_writer, "MANY_INPUTS", 2)
    out = tmp_path / "many"
    build_into(out, source, split="train=1")
    assert verify(out, "full").ok
    config = json.loads((out / "config.json").read_bytes())
    assert (config["inputs"], config["inputs_file"]) == ([], INPUTS_NAME)
    listed = [json.loads(line) for line in (out / INPUTS_NAME).read_bytes().splitlines()]
    assert listed == json.loads((tmp_path / "one" / "config.json").read_bytes())["inputs"]
    with open_dataset(tmp_path / "one") as one, open_dataset(out) as many:
        assert many.recipe_id == one.recipe_id
        assert many.inputs == one.inputs == one.manifest.inputs
        first, second = one.split("train"), many.split("train")
        assert [first.source(at) for at in range(6)] == [second.source(at) for at in range(6)]
    told = []
    for name in ("one", "many"):
        done = run_here(capsys, "inspect", tmp_path / name, "--json")
        told.append(json.loads(done.stdout)["inputs"])
    assert told[0] == told[1] and len(told[0]) == 3
    assert build_into(out, source, split="train=1").reused


def test_a_dataset_of_vectors_with_a_side_file(tmp_path: Path, few_in_config: None) -> None:
    """Arrays have it as well."""
    folder = tmp_path / "in"
    inputs = []
    for number in range(3):
        (folder / f"{number}").mkdir(parents=True)
        records = make_records(5, seed=number)
        inputs.append(write_records(folder / f"{number}", "x.jsonl", records))
    build_vectors(tmp_path / "out", *inputs)
    assert verify(tmp_path / "out", "full").ok
    with open_arrays(tmp_path / "out") as data:
        assert data.manifest.inputs == ()
        assert [entry.records for entry in data.inputs] == [5, 5, 5]
    assert build_vectors(tmp_path / "out", *inputs).reused


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data.replace(b'"records":3', b'"records":4'), "E_HASH"),
        (lambda data: b"x" + data[1:], "E_HASH"),
    ],
)
def test_a_damaged_side_file_is_named(
    tmp_path: Path, few_in_config: None, change: object, code: str
) -> None:
    """By those who read it, and by verify; and where config.json fits it, by what it says."""
    assert callable(change)
    build_into(tmp_path / "d", write_texts(tmp_path / "in"), split="train=1")
    file = tmp_path / "d" / INPUTS_NAME
    file.write_bytes(change(file.read_bytes()))
    assert codes(verify(tmp_path / "d", "full")) == {(code, INPUTS_NAME)}
    with open_dataset(tmp_path / "d") as dataset:
        assert dataset.split("train").document(0).size
        with pytest.raises(IntegrityError, match="SHA-256 differs"):
            dataset.split("train").source(0)
    reseal(tmp_path / "d")
    assert codes(verify(tmp_path / "d", "structure")) == {("E_INPUTS", INPUTS_NAME)}


@pytest.mark.parametrize("change", [1, -1, 1 << 44])
def test_nothing_is_allocated_on_the_word_of_the_manifest(
    tmp_path: Path, few_in_config: None, change: int
) -> None:
    """Where it says another size than the file has: the file is not read, and named once."""
    out = build_into(tmp_path / "d", write_texts(tmp_path / "in"), split="train=1").path

    def lie(manifest: Any) -> Any:
        files = [
            replace(file, bytes=file.bytes + change) if file.name == INPUTS_NAME else file
            for file in manifest.files
        ]
        return replace(manifest, files=tuple(files))

    reseal(out, lie)
    for level in LEVELS:
        found = verify(out, level).findings
        (finding,) = (one for one in found if one.file != CRC_NAME)  # of so many MiB
        assert (finding.code, finding.file) == ("E_SIZE", INPUTS_NAME)
    manifest = parse((out / "config.json").read_bytes())
    with pytest.raises(IntegrityError) as caught:
        read_inputs(out, manifest)
    assert (caught.value.code, caught.value.where) == ("E_SIZE", INPUTS_NAME)


def test_a_dataset_with_a_side_file_is_replaced(tmp_path: Path, few_in_config: None) -> None:
    """By --overwrite: what config.json lists is dataprep's. Another file is not, whatever its name.

    Where config.json is damaged the names alone tell.
    """
    texts, out = write_texts(tmp_path / "in"), tmp_path / "out"
    build_into(out, texts, split="train=1")
    mine = out / "train" / "tokens-99999.bin"
    mine.write_bytes(b"mine")
    with pytest.raises(UsageError, match="tokens-99999"):
        build_into(out, texts, split="train=1", overwrite=True, seed=1)
    mine.unlink()
    build_into(out, texts, split="train=0.5,val=0.5", overwrite=True, seed=1)
    assert verify(out, "full").ok
    data = (out / "config.json").read_bytes()
    (out / "config.json").write_bytes(data.replace(b'"name": "inputs.jsonl"', b'"name": "x"'))
    build_into(out, texts, split="train=1", overwrite=True)
    assert verify(out, "full").ok
    vectors = []
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        records = make_records(5, seed=number)
        vectors.append(write_records(tmp_path / f"{number}", "x.jsonl", records))
    build_vectors(out, *vectors, overwrite=True)
    build_vectors(out, *vectors, overwrite=True, seed=1)
    assert (out / INPUTS_NAME).exists() and verify(out, "full").ok
