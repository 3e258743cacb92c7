"""The content id of a split by the definition in docs/format.md, from whole runs of numbers."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

__all__ = ["content_ids", "token_content_id"]

Shards = Sequence[Mapping[str, Any]]


def content_ids(path: Path) -> dict[str, str]:
    """Return what the content id of each split of the dataset in `path` must be."""
    config = json.loads((path / "config.json").read_bytes())
    splits = config["splits"].items()
    if config["kind"] == "tokens":
        dtype = config["tokens"]["dtype"]
        return {name: token_content_id(path, dtype, split["shards"]) for name, split in splits}
    arrays = [_array(path, name, entry) for name, entry in sorted(config["arrays"].items())
              if name != "provenance"]  # fmt: skip
    found = {}
    for name, split in splits:
        rows = zipfile.ZipFile(path / split["index"]).read("archive/data/0")
        index = ["index", "<i8", split["rows"], _hex(rows)]
        found[name] = _digest(config["kind"], [*arrays, index])
    return found


def token_content_id(path: Path, dtype: str, shards: Shards) -> str:
    """Return the content id of the split of tokens in `shards`."""
    ids = b"".join((path / shard["tokens"]).read_bytes() for shard in shards)
    lengths = [np.diff(np.load(path / shard["docs"])) for shard in shards]
    parts = [_part("tokens", dtype, [np.frombuffer(ids, dtype)]), _part("lengths", "<u8", lengths)]
    for role, kind in (("mask", "|u1"), ("groups", "<u8"), ("scores", "<f4")):
        if any(shard["documents"] and shard.get(role) for shard in shards):
            read = [np.load(path / shard[role]) for shard in shards]
            parts.append(_part(role, kind, map(np.diff, read) if role == "groups" else read))
    return _digest("tokens", parts)


def _part(role: str, dtype: str, arrays: Any) -> list[Any]:
    whole = np.concatenate([np.empty(0, dtype), *arrays])
    assert whole.dtype.str == dtype, role
    return [role, dtype, len(whole), _hex(whole.tobytes())]


def _array(path: Path, name: str, entry: Mapping[str, Any]) -> list[Any]:
    numbers = b"".join(np.load(path / shard["file"]).tobytes() for shard in entry["shards"])
    meaning = [entry.get("scale"), entry.get("unit", False), entry.get("categories")]
    return [name, entry["dtype"], [entry["rows"], *entry["row"]], _hex(numbers), *meaning]


def _hex(data: bytes) -> str:
    return f"{crc32(data):08x}"


def _digest(kind: str, parts: list[Any]) -> str:
    text = json.dumps(["dataprep content 1", kind, parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
