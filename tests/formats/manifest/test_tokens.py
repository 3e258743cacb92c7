"""config.json is read strictly: what contradicts itself, or was changed, does not open."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError, IncompatibleError, InputError, IntegrityError
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.common import dump_json
from dataprep.formats.manifest.tokens import Manifest
from tests.scenes.datasets import make_dataset, random_split
from tests.support import examples

Config = dict[str, Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    splits = {"train": random_split([[3, 0, 4], [5]]), "val": random_split([[2]])}
    path = make_dataset(tmp_path_factory.mktemp("manifest") / "shards", splits)
    return (path / "config.json").read_bytes()


def signed(config: Config) -> bytes:
    """`config` as JSON whose own digest is right, whatever else is wrong with it."""
    import hashlib

    config = {**config, "self_sha256": "0" * 64}
    body = json.dumps(config, indent=1).encode() + b"\n"
    return body.replace(b"0" * 64, hashlib.sha256(body).hexdigest().encode())


def test_dump_and_parse_are_inverse(data: bytes) -> None:
    """Parsing and dumping gives the same bytes."""
    assert dump_json(manifests.parse(data)) == data


def test_key_order_is_field_order(data: bytes) -> None:
    """Keys stand in the order of the structs and of docs/format.md; no chat here, few inputs."""
    fields = [field.encode_name for field in msgspec.structs.fields(Manifest)]
    assert list(json.loads(data)) == [
        field for field in fields if field not in ("chat", "inputs_file")
    ]


def test_every_flipped_bit_is_refused(data: bytes) -> None:
    """No bit of config.json is free."""
    buffer = bytearray(data)
    for position in range(len(buffer)):
        for bit in range(8):
            buffer[position] ^= 1 << bit
            with pytest.raises((IntegrityError, IncompatibleError)):
                manifests.parse(bytes(buffer))
            buffer[position] ^= 1 << bit


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -2])
def test_truncation_and_additions_are_refused(data: bytes, cut: int) -> None:
    """Neither a beginning of the file nor the file with something after it will do."""
    for mutant in (data[:cut], data + b" ", data + data, b" " + data):
        with pytest.raises(IntegrityError):
            manifests.parse(mutant)


def _set(*path: Any) -> Callable[[Config], None]:
    """A change that puts the last of `path` where the others lead."""

    def change(config: Any) -> None:
        *steps, last, value = path
        for step in steps:
            config = config[step]
        config[last] = value

    return change


def _share(config: Config) -> None:
    """Both shards of train read the first one's documents."""
    first, second = config["splits"]["train"]["shards"]
    first.update(documents=second["documents"], docs=second["docs"], source=second["source"])


CONTRADICTIONS: dict[str, Callable[[Config], None]] = {
    "name upwards": _set("files", 1, "name", "../tokenizer.json"),
    "name absolute": _set("files", 1, "name", "/tokenizer.json"),
    "name with line feed": _set("files", 1, "name", "tokenizer.json\n"),
    "name of three folders": _set("files", 1, "name", "a/b/c/tokenizer.json"),
    "name that ends in a dot": _set("files", 1, "name", "tokenizer."),
    "name of a device": _set("files", 1, "name", "nul.json"),
    "names that differ by case": lambda config: config["files"].insert(
        1, {**config["files"][1], "name": "Tokenizer.json"}
    ),
    "name of a folder": lambda config: config["files"].insert(
        1, {**config["files"][1], "name": "Train"}
    ),
    "name with NUL": _set("files", 1, "name", "tokenizer\0json"),
    "names unsorted": lambda config: config["files"].reverse(),
    "name twice": lambda config: config["files"].insert(1, config["files"][1]),
    "crc32.npy unlisted": lambda config: config["files"].pop(0),
    "tokenizer unlisted": lambda config: config["files"].pop(1),
    "index unlisted": _set("splits", "train", "index", "test_idx.pt"),
    "docs unlisted": _set("splits", "train", "shards", 0, "docs", "train/docs-00009.npy"),
    "index shared": _set("splits", "train", "index", "val_idx.pt"),
    "docs shared": _share,
    "vocabulary empty": _set("tokens", "vocab_size", 0),
    "vocabulary too large": _set("tokens", "vocab_size", 65537),
    "split of a device": lambda config: config["splits"].update(aux=config["splits"].pop("val")),
    "split name": lambda config: config["splits"].update({"../x": config["splits"].pop("val")}),
    "documents": _set("splits", "train", "documents", 5),
    "tokens": _set("splits", "train", "tokens", 5),
    "shard length": _set("splits", "train", "shards", 0, "length", 6),
    "written": _set("records", "written", 3),
    "read": _set("records", "read", 6),
    "rejected": _set("records", "rejected", {"empty": 1}),
    "removed": _set("records", "removed", 1),
    "huge integer": _set("files", 0, "bytes", 10**400),
    "records of inputs": _set("inputs", 0, "records", 3),
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_refused(data: bytes, change: Callable[[Config], None]) -> None:
    """A manifest with a right digest still has to agree with itself."""
    config = json.loads(data)
    manifests.parse(signed(config))  # sound before the change
    change(config)
    with pytest.raises(IntegrityError) as caught:
        manifests.parse(signed(config))
    assert caught.value.where == "config.json"


OF_ANOTHER_VERSION: dict[str, Callable[[Config], None]] = {
    "kind": _set("kind", "images"),
    "kind that is no text": _set("kind", ["tokens"]),
    "features that are no list": _set("required_features", {"masks": 1}),
    "dtype": _set("tokens", "dtype", "<i4"),
    "vocabulary negative": _set("tokens", "vocab_size", -5),
    "negative count": _set("records", "blank_lines", -1),
    "negative shape": _set("files", 0, "shape", [-4]),
    "size over 63 bits": _set("files", 0, "bytes", 1 << 63),
    "missing key": lambda config: config.pop("inputs"),
    "null": _set("splits", None),
    "wrong type": _set("splits", "train", "tokens", "7"),
}


@pytest.mark.parametrize("change", OF_ANOTHER_VERSION.values(), ids=OF_ANOTHER_VERSION.keys())
def test_what_another_version_wrote_is_incompatible(
    data: bytes, change: Callable[[Config], None]
) -> None:
    """With a right digest it is of a newer version; without it the file is damaged."""
    config = json.loads(data)
    change(config)
    with pytest.raises(IncompatibleError, match="made by a newer dataprep") as caught:
        manifests.parse(signed(config))
    assert (caught.value.code, caught.value.where) == ("E_VERSION", "config.json")
    assert caught.value.remedy == "Install a newer dataprep."
    with pytest.raises(IntegrityError) as damaged:
        manifests.parse(json.dumps(config).encode())
    assert damaged.value.code == "E_MANIFEST"


@pytest.mark.parametrize(
    "change", [_set("format_version", 2), _set("required_features", ["masks", "zstd"])]
)
def test_a_newer_format_is_incompatible(data: bytes, change: Callable[[Config], None]) -> None:
    """What this release does not know is named, with exit code 6."""
    config = json.loads(data)
    change(config)
    with pytest.raises(IncompatibleError, match=r"version 2|masks, zstd") as caught:
        manifests.parse(signed(config))
    assert caught.value.exit_code == 6


def test_unknown_keys_are_ignored(data: bytes) -> None:
    """A later release may add what this one can ignore."""
    config = json.loads(data)
    config["tokens"]["more"] = [1]
    assert manifests.parse(signed({"note": {}, **config})) == msgspec.structs.replace(
        manifests.parse(data),
        self_sha256=manifests.parse(signed({"note": {}, **config})).self_sha256,
    )


@examples(300)
@given(st.binary(max_size=300))
def test_garbage_is_refused_by_name(garbage: bytes) -> None:
    """Any bytes give a typed error."""
    with pytest.raises(DataprepError):
        manifests.parse(garbage)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@examples(300)
@given(st.data())
def test_any_value_in_any_place_is_refused_or_sound(data: bytes, draw: st.DataObject) -> None:
    """A random JSON value anywhere: a typed error, or a manifest that dumps again."""
    config = json.loads(data)
    place, steps = config, 0
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.draw(st.sampled_from(keys))
        inner, steps = place[key], steps + 1
        if not isinstance(inner, dict | list) or not inner or draw.draw(st.booleans()):
            break
        place = inner
    place[key] = draw.draw(JSON)
    try:
        manifest = manifests.parse(signed(config))
    except DataprepError:
        return
    assert manifests.parse(dump_json(manifest)).files == manifest.files


@pytest.mark.parametrize("text", ["[" * 100_000, '{"options":' * 100_000, '{"files":[' * 50_000])
def test_deep_json_is_refused(text: str) -> None:
    """Nesting cannot exhaust the stack."""
    with pytest.raises(IntegrityError):
        manifests.parse(b'{"format":"dataprep","format_version":1,"options":' + text.encode())


def test_no_directory_and_no_manifest_are_told_apart(tmp_path: Path) -> None:
    """A wrong path is the caller's mistake (7), a directory without config.json is damage (3)."""
    with pytest.raises(InputError, match="no such dataset directory"):
        manifests.load(tmp_path / "nothing")
    with pytest.raises(IntegrityError, match="not a finished dataset") as caught:
        manifests.load(tmp_path)
    assert caught.value.code == "E_UNFINISHED"


def test_config_json_must_be_an_ordinary_file(tmp_path: Path, data: bytes) -> None:
    """A pipe would block, a link may lead anywhere, a folder is no file, 256 MiB is too much."""
    (tmp_path / "elsewhere").write_bytes(data)
    makers: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(tmp_path / "elsewhere"),
        "folder": Path.mkdir,
        "sparse": _make_huge,
    }
    for name, make in makers.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / "config.json")
        outcome: list[BaseException] = []
        thread = threading.Thread(target=_load, args=(tmp_path / name, outcome), daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), f"{name}: blocked"
        assert isinstance(outcome[0], IntegrityError), name
        assert outcome[0].code in ("E_NAME", "E_MANIFEST")


def _make_huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def _load(path: Path, outcome: list[BaseException]) -> None:
    try:
        manifests.load(path)
    except BaseException as error:
        outcome.append(error)


NAMES = ["a", "train/a", "a.b-c_d", "A" * 128, "train/0003/a", "a/0/b", "a.con", "com10", "nulls"]


@pytest.mark.parametrize("name", NAMES)
def test_names_allowed(name: str) -> None:
    """Plain names, under at most two folders, of which the first begins with a letter."""
    assert manifests.check_name(name) == name


DEVICES = ["con", "PRN", "aux.npy", "Nul.tar.gz", "com0", "lpt9.bin", "con/a", "a/aux/b", "a/com1"]


@pytest.mark.parametrize("name", [*DEVICES, "a.", "a ", "a/b.", "0/a", "a/_/b", "a/b/c/d"])
def test_names_that_some_system_cannot_have(name: str) -> None:
    """Devices of Windows, in any case and before an ending; dots and blanks in the end; depth."""
    with pytest.raises(IntegrityError) as caught:
        manifests.check_name(name)
    assert caught.value.code == "E_NAME"


@given(st.text(max_size=12))
def test_no_name_leads_outside(name: str) -> None:
    """Whatever is accepted stays inside the directory and prints as it is."""
    try:
        manifests.check_name(name)
    except IntegrityError:
        return
    assert os.path.normpath(name) == name and not name.endswith((".", " "))
    assert not name.startswith(("/", ".")) and name.isascii() and name.isprintable()
