"""Makes the golden datasets anew: `python data_fixtures/make_golden.py --write`.

They are what this version of the format looks like. Every later version must read them, so they
are never made anew for a format version that has been released; a change of the format adds a
folder. `narrow` has uint16 ids, `wide` uint32 ids (a vocabulary with a gap).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from dataprep import BuildOptions, build, open_dataset
from dataprep.pipeline.train_tokenizer import train_json

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "v1"
INPUTS = ("messy.jsonl", "notes.jsonl")
FAR_ID = 70_000


def tokenizers() -> dict[str, bytes]:
    """A tokenizer of 400 ids trained on the stories, and the same with one id far away."""
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


def make(target: Path) -> None:
    """Build both under `target`, each with a file of what it must decode to."""
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


def expected(path: Path) -> dict[str, list[dict[str, object]]]:
    """Everything that a reader must find: ids, text, record id and source of every document."""
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


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    make(GOLDEN)
