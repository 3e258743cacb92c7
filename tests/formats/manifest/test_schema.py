"""The JSON Schema accepts what is written, refuses what is broken, and has the structs' fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from jsonschema import Draft202012Validator

from dataprep.formats.manifest import arrays as array_manifest
from dataprep.formats.manifest import tokens as manifests
from dataprep.formats.manifest.arrays import PAIR_ARRAYS
from dataprep.formats.manifest.common import Entry
from dataprep.pipeline.options import DEFAULT_SPLIT, BuildOptions, parse_split
from tests.scenes.array_datasets import make_embeddings, make_pairs
from tests.scenes.datasets import make_dataset, random_split
from tests.support import REPOSITORY

Config = dict[str, Any]
SCHEMA: Config = json.loads((REPOSITORY / "formats" / "config.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    splits = {"train": random_split([[3, 0, 4], [5]]), "val": random_split([[2]])}
    path = make_dataset(tmp_path_factory.mktemp("schema") / "shards", splits, add_eos=True)
    loaded: Config = json.loads((path / "config.json").read_bytes())
    return loaded


def test_the_schema_is_one() -> None:
    """It is valid under draft 2020-12."""
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("vocab_size", [257, 70_000])
@pytest.mark.parametrize("splits", [{}, {"train": [[]]}, {"train": random_split([[1, 2]])}])
def test_what_is_written_is_accepted(tmp_path: Path, vocab_size: int, splits: Any) -> None:
    """Both widths, no split, an empty split and an ordinary one."""
    path = make_dataset(tmp_path / "shards", splits, vocab_size=vocab_size)
    VALIDATOR.validate(json.loads((path / "config.json").read_bytes()))


def _structs() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the manifests of both forms by name."""
    return {
        name: struct
        for name, struct in [*vars(manifests).items(), *vars(array_manifest).items()]
        if isinstance(struct, type)
        and issubclass(struct, msgspec.Struct)
        and not name.startswith("_")
        and struct is not Entry
    }


def test_every_struct_has_a_definition() -> None:
    """The definitions are the structs, and three shared types."""
    assert set(SCHEMA["$defs"]) == {*_structs(), "count", "sha256", "name"}


@pytest.mark.parametrize("name", sorted(_structs()))
def test_properties_equal_fields(name: str) -> None:
    """The same names in the same order, required exactly where the struct has no default."""
    struct, schema = _structs()[name], SCHEMA["$defs"][name]
    fields = msgspec.structs.fields(struct)
    assert list(schema["properties"]) == [field.encode_name for field in fields]
    optional = {field.encode_name for field in fields if not field.required} - {"self_sha256"}
    assert set(schema["properties"]) - set(schema["required"]) == optional


def test_everything_is_described() -> None:
    """Every property says what it means, itself or by its definition."""
    for name, schema in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        assert schema["description"], name
        for key, found in schema.get("properties", {}).items():
            described = "description" in found or found.get("$ref", "").startswith("#/$defs/")
            assert described, f"{name}.{key}"


def _set(*path: Any) -> Callable[[Config], None]:
    """A change that puts the last of `path` where the others lead."""

    def change(config: Any) -> None:
        *steps, last, value = path
        for step in steps:
            config = config[step]
        config[last] = value

    return change


BROKEN: dict[str, Callable[[Config], None]] = {
    "no format": lambda config: config.pop("format"),
    "other format": _set("format", "parquet"),
    "next version": _set("format_version", 2),
    "unknown kind": _set("kind", "images"),
    "features no list": _set("required_features", "x"),
    "recipe id too short": _set("recipe_id", "abc"),
    "upper case digest": _set("self_sha256", "A" * 64),
    "signed tokens": _set("tokens", "dtype", "<i2"),
    "big-endian tokens": _set("tokens", "dtype", ">u2"),
    "no vocabulary": _set("tokens", "vocab_size", 0),
    "negative tokens": _set("splits", "train", "tokens", -1),
    "fractional documents": _set("splits", "train", "documents", 1.5),
    "count as text": _set("records", "read", "4"),
    "negative removed": _set("records", "removed", -1),
    "text size as text": _set("splits", "train", "text_bytes", "4"),
    "count over 63 bits": _set("records", "read", 1 << 63),
    "negative rejects": _set("records", "rejected", {"empty": -1}),
    "path upwards": _set("files", 0, "name", "../evil"),
    "dots inside": _set("files", 0, "name", "a..b"),
    "absolute path": _set("files", 0, "name", "/etc/passwd"),
    "three folders": _set("files", 0, "name", "a/b/c/d"),
    "folder that begins with a digit": _set("files", 0, "name", "0/a"),
    "name that ends in a dot": _set("files", 0, "name", "a."),
    "device": _set("files", 0, "name", "a/Nul.bin"),
    "split of a device": lambda config: config["splits"].update(aux=config["splits"]["train"]),
    "hidden file": _set("files", 0, "name", ".hidden"),
    "no crc32.npy": _set("files", 0, "name", "other.npy"),
    "file digest": _set("files", 0, "sha256", "z" * 64),
    "negative size": _set("files", 0, "bytes", -1),
    "object array": _set("files", 0, "dtype", "|O"),
    "negative shape": _set("files", 0, "shape", [-1]),
    "scalar shape": _set("files", 0, "shape", []),
    "shard without docs": lambda config: config["splits"]["train"]["shards"][0].pop("docs"),
    "split name": lambda config: config["splits"].update({"Train": config["splits"]["train"]}),
    "unknown engine": _set("tokenizer", "engine", "mine"),
    "special text": _set("tokenizer", "special_text", "maybe"),
    "eos without id": _set("tokenizer", "eos", {"token": "</s>"}),
    "probe without ids": _set("tokenizer", "probes", 0, {"text": "x"}),
    "negative id": _set("tokenizer", "probes", 0, "ids", [-1]),
    "unit": _set("inputs", 0, "unit", "line"),
    "input format": _set("inputs", 0, "format", "pdf"),
    "not an object": _set("options", []),
    "asked-for format": _set("options", "format", "pdf"),
    "asked-for engine": _set("options", "engine", "mine"),
    "unit of a document": _set("options", "document", "page"),
    "split mode": _set("options", "split_mode", "exact"),
    "split without shares": _set("options", "split", "train,val"),
    "split in upper case": _set("options", "split", "Train=1"),
    "split that ends in a comma": _set("options", "split", "train=1,"),
    "what errors do": _set("options", "on_error", "ignore"),
    "what special text does": _set("options", "special_text", None),
    "field without a name": _set("options", "field", ""),
    "seed below zero": _set("options", "seed", -1),
    "seed over 64 bits": _set("options", "seed", 1 << 64),
    "split key": _set("options", "split_key", 3),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_broken_manifests_are_refused(config: Config, change: Callable[[Config], None]) -> None:
    """Each of these changes makes an invalid manifest of a valid one."""
    broken = copy.deepcopy(config)
    VALIDATOR.validate(broken)
    change(broken)
    assert not VALIDATOR.is_valid(broken)


def test_options_are_those_of_the_build() -> None:
    """Every option that is stored, with every value it may have, and no other."""
    found = SCHEMA["$defs"]["Manifest"]["properties"]["options"]["properties"]
    hints = get_type_hints(BuildOptions)
    not_stored = {"input", "out", "workers", "overwrite", "max_rejects"}
    assert set(found) == set(hints) - not_stored
    for name, schema in found.items():
        choices = [v for part in (hints[name], *get_args(hints[name])) for v in _literal(part)]
        if choices:
            nothing = [None] if type(None) in get_args(hints[name]) else []
            assert schema["enum"] == [*choices, *nothing], name


def _literal(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


@pytest.mark.parametrize(
    "split", [DEFAULT_SPLIT, " a = 1e-3 , b_2=rest", "train=1.", "x=+.5,y=rest"]
)
def test_splits_that_a_build_accepts(split: str, config: Config) -> None:
    """The pattern is no narrower than the grammar."""
    parse_split(split, "count" if "rest" in split else "ratio")
    VALIDATOR.validate(config | {"options": {"split": split}})


# Datasets of arrays


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """The manifest of each kind."""
    root, found = tmp_path_factory.mktemp("arrays"), {}
    for kind, make in (("embeddings", make_embeddings), ("pairs", make_pairs)):
        make(root / kind)
        found[kind] = json.loads((root / kind / "config.json").read_bytes())
    return found


@pytest.mark.parametrize("kind", array_manifest.KINDS)
def test_arrays_that_are_written_are_accepted(arrays: dict[str, Config], kind: str) -> None:
    """Every type, a scale, categories, tables."""
    VALIDATOR.validate(arrays[kind])


def test_the_names_of_the_pairs_arrays() -> None:
    """Those that a dataset of pairs must have, and the types that arrays may have."""
    definition = SCHEMA["$defs"]["ArrayManifest"]
    assert definition["then"]["properties"]["arrays"]["required"] == list(PAIR_ARRAYS)
    dtypes = SCHEMA["$defs"]["ArrayEntry"]["properties"]["dtype"]["enum"]
    assert tuple(dtypes) == array_manifest.DTYPES


BROKEN_ARRAYS: dict[str, tuple[str, Callable[[Config], None]]] = {
    "of tokens": ("embeddings", _set("kind", "tokens")),
    "unknown kind": ("embeddings", _set("kind", "images")),
    "embeddings with pairs": ("embeddings", _set("pairs", {"dim": 8})),
    "pairs without": ("pairs", _set("pairs", None)),
    "pairs without tiers": ("pairs", lambda config: config["arrays"].pop("negative_tiers")),
    "embeddings as pairs": ("embeddings", _set("kind", "pairs")),
    "no rows": ("embeddings", lambda config: config.pop("rows")),
    "half a row": ("embeddings", _set("rows", 1.5)),
    "objects": ("embeddings", _set("arrays", "label", "dtype", "|O")),
    "dimension": ("embeddings", _set("arrays", "embedding", "row", [-1])),
    "shard without rows": (
        "embeddings", lambda config: config["arrays"]["label"]["shards"][0].pop("rows"),
    ),
    "shard elsewhere": (
        "embeddings", _set("arrays", "label", "shards", 0, "file", "../label/00000.npy"),
    ),
    "array name": (
        "embeddings", lambda config: config["arrays"].update({"A": config["arrays"]["label"]}),
    ),
    "scale as number": ("embeddings", _set("arrays", "small", "scale", 0.5)),
    "unit as number": ("embeddings", _set("arrays", "half", "unit", 1)),
    "categories repeat": ("embeddings", _set("arrays", "label", "categories", ["a", "a"])),
    "split without index": ("embeddings", lambda config: config["splits"]["val"].pop("index")),
    "clusters without a count": ("pairs", _set("pairs", "clusters", {"by": "kmeans"})),
    "no dimension": ("pairs", _set("pairs", "dim", 0)),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), BROKEN_ARRAYS.values(), ids=BROKEN_ARRAYS)
def test_broken_manifests_of_arrays_are_refused(
    arrays: dict[str, Config], kind: str, change: Callable[[Config], None]
) -> None:
    """Each of these changes makes an invalid manifest of a valid one."""
    broken = copy.deepcopy(arrays[kind])
    change(broken)
    assert not VALIDATOR.is_valid(broken)


GOLDEN = sorted((REPOSITORY / "data_fixtures" / "golden").glob("*/*/config.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_golden_datasets_are_accepted(path: Path) -> None:
    """What was released fits the schema."""
    VALIDATOR.validate(json.loads(path.read_bytes()))


def test_a_real_build_is_accepted(stories: Path) -> None:
    """And what is written today."""
    VALIDATOR.validate(json.loads((stories / "config.json").read_bytes()))


def test_unknown_keys_are_allowed(config: Config) -> None:
    """A later release may add what an older reader can ignore."""
    extended = copy.deepcopy(config) | {"note": 1}
    extended["tokens"]["more"] = True
    VALIDATOR.validate(extended)
