"""Writer of missing golden datasets: `python data_fixtures/make_golden.py --write`.

They show this version of the format. Every later version must read them, so none is ever rewritten;
a change of the format adds a folder. `narrow` has uint16 ids, `wide` uint32 ids (a
vocabulary with a gap); `chat` has a loss mask and records of several documents, `answers` groups
and scores; `embeddings` has an array of every type, `pairs` all arrays of pairs. `states` has a
state of every kind of loader over them, with hashes of the batches that must follow.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dataprep import BuildOptions, ChatOptions, build, build_chat, open_dataset
from dataprep.formats.read.arrays import NamedArray, open_arrays
from dataprep.formats.read.dataset import Split
from dataprep.pipeline.tokenize.train import train_json

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.scenes.array_datasets import make_embeddings, make_pairs  # noqa: E402  (the path is needed)
from tests.scenes.golden_states import LOADERS, taken  # noqa: E402

GOLDEN = HERE / "golden" / "v1"
INPUTS = ("messy.jsonl", "notes.jsonl")
FAR_ID = 70_000


def tokenizers() -> dict[str, bytes]:
    """Train a tokenizer of 400 ids on the stories, and make the same with one id far away."""
    stories = (HERE / "stories.jsonl").read_text(encoding="utf-8").splitlines()
    narrow = json.loads(train_json((json.loads(line)["text"] for line in stories), vocab_size=400))
    wide = json.loads(json.dumps(narrow))
    wide["model"]["vocab"]["<far>"] = FAR_ID
    found = {
        name: json.dumps(config).encode() for name, config in (("narrow", narrow), ("wide", wide))
    }
    for data in found.values():
        Tokenizer.from_buffer(data)
    return found


def make_tokens(target: Path) -> None:
    """Build `narrow` and `wide` under `target`, each with a file of its decoded contents."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        shutil.copy(HERE / "messy.jsonl", work / "messy.jsonl")
        notes = (HERE / "notes.txt").read_text(encoding="utf-8").split("\n\n")
        lines = "".join(json.dumps({"text": note}) + "\n" for note in notes)
        (work / "notes.jsonl").write_text(lines, encoding="utf-8")
        for name, tokenizer in tokenizers().items():
            (work / f"{name}.json").write_bytes(tokenizer)
            out = target / name
            build(
                BuildOptions(
                    input=tuple(str(work / part) for part in INPUTS),
                    out=out,
                    workers=1,
                    tokenizer=str(work / f"{name}.json"),
                    on_error="skip",
                    split="train=0.6,val=0.4,test=0.0",
                    bos="<|bos|>",
                )
            )
            (target / f"{name}.expected.json").write_text(json.dumps(expected(out), indent=1))


def make_chats(target: Path) -> None:
    """Build `chat` and `answers` under `target`, of conversations and of groups of answers."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "small.json").write_bytes(tokenizers()["narrow"])
        lines = (HERE / "chat" / "talks.jsonl").read_text("utf-8").splitlines(keepends=True)
        (work / "talks.jsonl").write_text("".join(lines[:12]), "utf-8")
        shutil.copy(HERE / "chat" / "groups.jsonl", work / "groups.jsonl")
        for name, source, more in (
            ("chat", "talks.jsonl", {"max_tokens": 100, "overlong": "split"}),
            ("answers", "groups.jsonl", {"form": "groups"}),
        ):
            options: dict[str, Any] = {"split": "train=0.6,val=0.4", "workers": 1, **more}
            build_chat(
                ChatOptions(
                    input=(str(work / source),), out=target / name, template="chatml",
                    tokenizer=str(work / "small.json"), **options,
                )
            )  # fmt: skip
            found = json.dumps(expected_chats(target / name), indent=1)
            (target / f"{name}.expected.json").write_text(found)


def expected_chats(path: Path) -> dict[str, list[dict[str, object]]]:
    """Return ids, mask, record id and score of every document, in the order of the file."""
    with open_dataset(path) as dataset:
        return {
            name: [
                {
                    "ids": split.document(number).tolist(),
                    "mask": split.masks.read(*split.span(number)).tolist(),
                    "record": int(split.record_ids[number]),
                    "score": _score(split, number),
                }
                for number in range(split.documents)
            ]
            for name, split in dataset.splits.items()
        }


def _score(split: Split, document: int) -> float | None:
    if not split.has_groups:
        return None
    return float(split.groups.scores(np.array([document]))[0])


def expected(path: Path) -> dict[str, list[dict[str, object]]]:
    """Return the expected contents: ids, text, record id and source of every document."""
    with open_dataset(path) as dataset:
        return {
            name: [
                {
                    "ids": split.document(number).tolist(),
                    "text": split.text(number),
                    "record": int(split.record_ids[number]),
                    "source": list(split.source(number)),
                }
                for number in range(split.documents)
            ]
            for name, split in dataset.splits.items()
        }


def make_arrays(target: Path) -> None:
    """Write `embeddings` and `pairs` under `target`, some arrays in several shards."""
    make_embeddings(target / "embeddings", rows=14, seed=11, shard_bytes=200)
    make_pairs(
        target / "pairs", questions=6, sources=20, keywords=5, clusters=3, seed=12, shard_bytes=600
    )
    for name in ("embeddings", "pairs"):
        found = json.dumps(expected_arrays(target / name), indent=1)
        (target / f"{name}.expected.json").write_text(found)


def expected_arrays(path: Path) -> dict[str, object]:
    """Return the rows of every split, and the decoded numbers or texts of every array."""
    with open_arrays(path) as data:
        splits = {
            name: split.rows(np.arange(len(split))).tolist() for name, split in data.splits.items()
        }
        return {"splits": splits, "arrays": {n: _values(a) for n, a in data.arrays.items()}}


def make_states(golden: Path) -> None:
    """Write a state of every kind of loader over these datasets, and hashes of its next batches."""
    (golden / "states").mkdir(exist_ok=True)
    for name in LOADERS:
        file = golden / "states" / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(taken(name, golden), indent=1) + "\n")


def _values(array: NamedArray) -> list[object]:
    rows = array.read(0, array.rows)
    if array.entry.categories is not None:
        return [array.entry.categories[code] for code in rows]
    if array.entry.dtype == "bfloat16":
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    found: list[object] = rows.tolist()
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        make_tokens(made)
        make_arrays(made)
        make_chats(made)
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for file in sorted(made.iterdir()):
            if not (GOLDEN / file.name).exists():
                shutil.move(file, GOLDEN / file.name)
        os.environ["DATAPREP_CACHE"] = str(made / "cache")
        make_states(GOLDEN)
