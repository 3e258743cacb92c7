"""A manifest that contradicts itself, or its template, about records is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataprep.formats.errors import IntegrityError
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.tokens import CONFIG_NAME, Manifest
from dataprep.formats.verify.verify import verify
from tests.scenes.datasets import make_dataset, random_split
from tests.scenes.grouped import shards_of_ones
from tests.scenes.verified import reseal

Config = dict[str, Any]


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
