"""Files that agree with their hashes and not with one another; hostile directories."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import CONFIG_NAME, CRC_NAME, Manifest, SpecialToken
from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset
from tests.scenes.verified import codes, edit, files_of, reseal, small
from tests.support import examples

DOCS, SOURCE, TOKENS = "train/docs-00000.npy", "train/source-00000.npy", "train/tokens-00000.bin"
WRONG_ARRAYS = {
    # name: file, dtype, header, {index: value}, code, bytes of the place
    "offsets start late": (DOCS, "<u8", 128, {0: 1}, "E_OFFSETS", (128, 136)),
    "offsets fall": (DOCS, "<u8", 128, {2: 5}, "E_OFFSETS", (144, 152)),
    "offsets end early": (DOCS, "<u8", 128, {3: 77}, "E_OFFSETS", (152, 160)),
    "offsets leave": (DOCS, "<u8", 128, {2: 1000}, "E_OFFSETS", (144, 152)),
    "offsets leave far": (DOCS, "<u8", 128, {1: (1 << 64) - 1}, "E_OFFSETS", (136, 144)),
    "id too large": (TOKENS, "<u2", 0, {5: 257}, "E_TOKEN_ID", (10, 12)),
    "no EOS": (TOKENS, "<u2", 0, {31: 3}, "E_EOS", (62, 64)),
    "input unknown": (SOURCE, "<u8", 128, {4: 1}, "E_SOURCE", (160, 168)),
    "input far": (SOURCE, "<u8", 128, {0: (1 << 64) - 1}, "E_SOURCE", (128, 136)),
    "position outside": (SOURCE, "<u8", 128, {3: 600}, "E_SOURCE", (152, 160)),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS.keys())
@pytest.mark.parametrize("level", ["structure", "full"])
def test_arrays_that_do_not_fit(
    dataset: Path,
    case: tuple[str, str, int, dict[int, int], str, tuple[int, int]],
    level: verify_report.Level,
) -> None:
    """With hashes made to fit, structure alone names the file, the code and the bytes."""
    name, dtype, header, values, code, place = case
    edit(dataset, name, dtype, header, values)
    reseal(dataset)
    findings = verify(dataset, level).findings
    assert [(f.code, f.file) for f in findings] == [(code, name)]
    assert (findings[0].start, findings[0].stop) == place


def test_array_headers_must_describe_the_array(dataset: Path) -> None:
    """A header of another shape or type, though the size is right."""
    for name in (DOCS, SOURCE, CRC_NAME):
        data = (dataset / name).read_bytes()
        (dataset / name).write_bytes(data.replace(b"<u", b"<i", 1))
        assert ("E_ARRAY", name) in codes(verify(dataset, "structure"))
        (dataset / name).write_bytes(data)


def test_zero_token_documents_are_counted(dataset: Path) -> None:
    """A manifest that hides an empty document."""

    def change(manifest: Manifest) -> Manifest:
        train = msgspec.structs.replace(manifest.splits["train"], zero_token_documents=0)
        return msgspec.structs.replace(manifest, splits={**manifest.splits, "train": train})

    reseal(dataset, change)
    assert codes(verify(dataset, "structure")) == {("E_COUNT", CONFIG_NAME)}


# The tokenizer


def test_another_tokenizer_is_refused(dataset: Path) -> None:
    """One byte changed, hashes of the files made to fit: it is not the one that made the ids."""
    path = dataset / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"1.0"', b'"1.1"'))
    reseal(dataset)
    assert codes(verify(dataset, "structure")) == {("E_TOKENIZER", "tokenizer.json")}


TOKENIZERS = {
    "bpe": (b'{"model":{"vocab":{"a":0,"b":256}}}', True),
    "added": (b'{"model":{"vocab":{"a":0}},"added_tokens":[{"id":256,"content":"x"}]}', True),
    "unigram": (b'{"model":{"vocab":[' + b",".join([b'["a",-1.5]'] * 257) + b"]}}", True),
    "too small": (b'{"model":{"vocab":{"a":0,"b":255}}}', False),
    "too large": (b'{"model":{"vocab":{}},"added_tokens":[{"id":257}]}', False),
    "unigram too small": (b'{"model":{"vocab":[["a",0]]}}', False),
    "no model": (b"{}", False),
    "no JSON": (b"\x80\x02ctorch", False),
    "empty": (b"", False),
    "deep": (b'{"model":{"vocab":' + b"[" * 200_000, False),
    "huge id": (b'{"model":{"vocab":{"a":1' + b"0" * 5000 + b"}}}", False),
}


@pytest.mark.parametrize(("data", "sound"), TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_vocabulary_sizes(dataset: Path, data: bytes, sound: bool) -> None:
    """The largest id of model and added tokens, plus one, is tokens.vocab_size."""
    (dataset / "tokenizer.json").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    reseal(dataset, lambda manifest: msgspec.structs.replace(
        manifest, tokenizer=msgspec.structs.replace(manifest.tokenizer, sha256=digest)
    ))  # fmt: skip
    expected = set() if sound else {("E_TOKENIZER", "tokenizer.json")}
    assert codes(verify(dataset, "structure")) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"eos": SpecialToken(id=257, token="x")},
        {"pad": SpecialToken(id=1 << 40, token="x")},
        {"probes": (manifests.Probe(text="x", ids=(1, 999)),)},
        {"add_bos": True},
    ],
    ids=["eos", "pad", "probe", "bos unnamed"],
)
def test_ids_named_by_the_manifest(dataset: Path, changes: dict[str, Any]) -> None:
    """Control tokens and probes lie within the vocabulary; an added BOS has an id."""
    reseal(dataset, lambda manifest: msgspec.structs.replace(
        manifest, tokenizer=msgspec.structs.replace(manifest.tokenizer, **changes)
    ))  # fmt: skip
    assert ("E_TOKENIZER", CONFIG_NAME) in codes(verify(dataset, "structure"))


def test_bos_at_the_start_of_every_document(tmp_path: Path) -> None:
    """With add_bos every document begins with BOS, and one that does not is located."""
    documents = [[[256, 1, 2], [256], [256, 3]]]
    path = make_dataset(tmp_path / "shards", {"train": documents})

    def change(manifest: Manifest) -> Manifest:
        bos = SpecialToken(id=256, token="<|endoftext|>")
        tokenizer = msgspec.structs.replace(manifest.tokenizer, bos=bos, add_bos=True)
        train = msgspec.structs.replace(manifest.splits["train"], zero_token_documents=1)
        return msgspec.structs.replace(manifest, tokenizer=tokenizer, splits={"train": train})

    reseal(path, change)
    assert verify(path).findings == ()
    edit(path, TOKENS, "<u2", 0, {4: 9})
    reseal(path)
    (finding,) = verify(path).findings
    assert (finding.code, finding.start, finding.stop) == ("E_BOS", 8, 10)


# Hostile directories


def test_claims_of_absurd_size_allocate_nothing(tmp_path: Path) -> None:
    """A consistent manifest that says 10**18 of everything: findings, at once, in little memory."""
    path = small(tmp_path)
    blob = json.loads((path / CONFIG_NAME).read_bytes())
    huge = 10**18
    train = blob["splits"]["train"]
    shard = train["shards"][0]
    grown = huge - shard["documents"]
    shard.update(documents=huge, length=huge)
    train.update(documents=train["documents"] + grown, tokens=huge + train["shards"][1]["length"])
    blob["records"].update(read=6 + grown, written=6 + grown)
    blob["inputs"][0]["records"] = 6 + grown
    shapes = {shard["tokens"]: [huge], shard["docs"]: [huge + 1], shard["source"]: [huge, 2]}
    for entry in blob["files"]:
        if entry["name"] in shapes:
            entry.update(shape=shapes[entry["name"]], bytes=2 * huge)
    manifest = msgspec.convert(blob, Manifest)
    (path / CONFIG_NAME).write_bytes(dump_json(manifest))
    program = (
        "import resource, sys; from dataprep.formats.verify.verify import verify\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "print(*sorted({finding.code for finding in verify(sys.argv[1]).findings}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == {"E_ARRAY", "E_INDEX", "E_SIZE"}


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_is_never_a_crash(tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes anywhere, with hashes made to fit: findings or a typed error, nothing else."""
    if not (tmp_path / "clean").exists():
        small(tmp_path).rename(tmp_path / "clean")
    shutil.rmtree(tmp_path / "shards", ignore_errors=True)
    shutil.copytree(tmp_path / "clean", tmp_path / "shards")
    path = tmp_path / "shards"
    name = data.draw(
        st.sampled_from([n for n in files_of(path) if n not in (CONFIG_NAME, CRC_NAME)])
    )
    blob = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))[: len(blob) - at]
    (path / name).write_bytes(blob)
    reseal(path)
    assert {finding.file for finding in verify(path).findings} <= {name, "val_idx.pt", CONFIG_NAME}
