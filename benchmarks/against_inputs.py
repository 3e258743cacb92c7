"""The inputs of the builds of against_builds.py that are not corpora as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["lines_of", "make_inputs"]


def make_inputs(path: Path, data: Path) -> None:
    """Write every input that is not one of the corpora as they are."""
    path.mkdir(parents=True)
    docs = lines_of(data / "corpora" / "docs_en.jsonl")
    with (path / "docs.jsonl").open("w") as file:
        for n, line in enumerate(docs[:600]):
            file.write(json.dumps(json.loads(line) | {"group": f"g{n % 37}"}) + "\n")
    (path / "small.jsonl").write_bytes(b"".join(docs[600:700]))
    own = path / "own"
    own.mkdir()
    for name, part in (("train", docs[:80]), ("validation", docs[80:100]), ("test", docs[100:120])):
        (own / f"{name}.jsonl").write_bytes(b"".join(part))
    bad = Path(__file__).parents[1] / "data_fixtures" / "messy.jsonl"
    (path / "bad.jsonl").write_bytes(bad.read_bytes())
    hub(path / "hub", [json.loads(line) for line in docs[:300]])
    (path / "wide.jsonl").write_bytes(b"".join(lines_of(data / "corpora" / "udhr_all.jsonl")))
    for name, source in (("talks", "chat/chat_messages"), ("blocks", "chat/v1_sft_demo")):
        (path / f"{name}.jsonl").write_bytes(b"".join(lines_of(data / f"{source}.jsonl")[:800]))
    preferences(path, data)
    vectors(path)
    pairs(path)


def lines_of(path: Path) -> list[bytes]:
    """Its lines, with their ends."""
    return path.read_bytes().splitlines(keepends=True)


def hub(path: Path, records: list[Any]) -> None:
    """A Hugging Face dataset directory, and one with splits."""
    from datasets import Dataset, DatasetDict

    texts = [{"text": record["text"], "id": str(record["id"])} for record in records]
    Dataset.from_list(texts).save_to_disk(path)
    DatasetDict(
        {"train": Dataset.from_list(texts[:200]), "test": Dataset.from_list(texts[200:])}
    ).save_to_disk(path.with_name("hub_splits"))


def preferences(path: Path, data: Path) -> None:
    """Groups of answers to the questions of gsm8k, and records of which some are bad."""
    records = [json.loads(x) for x in lines_of(data / "inputs" / "gsm8k" / "test.jsonl")[:300]]
    with (path / "groups.jsonl").open("w") as file:
        for n, record in enumerate(records):
            answers = [record["answer"], "I do not know.", f"It is {n}."][: 2 + n % 2]
            group = {"prompt": record["question"], "responses": answers}
            if n % 3:
                group["scores"] = [1.0, 0.0, -0.5][: len(answers)]
            file.write(json.dumps(group) + "\n")
    with (path / "bad_talks.jsonl").open("w") as file:
        for n, record in enumerate(records):
            turns = [{"role": "user", "content": record["question"]},
                     {"role": "assistant", "content": record["answer"]}]  # fmt: skip
            talk: Any = {"messages": turns[: 1 + bool(n % 7)]}
            file.write("{broken\n" if n % 50 == 49 else json.dumps(talk) + "\n")


def vectors(path: Path) -> None:
    """The same vectors in four forms, and some with rows that cannot be used."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(0)
    rows = numbers.standard_normal((3000, 24)).astype(np.float32)
    year, share = np.arange(1900, 4900), numbers.random(3000)
    kinds = [("cat", "dog", "fish")[n] for n in numbers.integers(0, 3, 3000)]
    np.save(path / "vectors.npy", rows)
    np.savez(path / "vectors.npz", vec=rows, year=year, share=share)
    table = pa.table({"vec": list(rows), "year": year, "share": share, "kind": kinds})
    pq.write_table(table, path / "vectors.parquet", row_group_size=700)
    with (path / "vectors.jsonl").open("w") as file:
        for n, row in enumerate(rows[:1000].tolist()):
            file.write(json.dumps({"vec": row, "year": n, "kind": kinds[n]}) + "\n")
    rows[5], rows[7, 3], rows[100, 0] = 0, np.nan, np.inf
    np.save(path / "bad_vectors.npy", rows)


def pairs(path: Path) -> None:
    """Questions with sources, topics and keywords; their vectors."""
    numbers = np.random.default_rng(1)
    words = ("ship", "clock", "rain", "ledger", "frog", "pond")
    lines = ["question,source,relevance,topic,keywords"]
    for n in range(600):
        few = "|".join(words[i] for i in sorted({n % 6, n // 6 % 6})[: n % 3])
        lines.append(f"question {n % 200},text {n * 13 % 350},{n % 10 / 10},{n % 200 % 5},{few}")
    (path / "pairs.csv").write_text("\n".join(lines) + "\n")
    for part, chosen in (("train", lines[1:301]), ("val", lines[301:361])):
        named = [line.replace("question ", f"{part} question ") for line in chosen]
        (path / f"pairs_{part}.csv").write_text("\n".join([lines[0], *named]) + "\n")
    keys = ("question", "source", "relevance", "topic")
    with (path / "pairs.jsonl").open("w") as file:
        for line in lines[1:200]:
            file.write(json.dumps(dict(zip(keys, line.split(","), strict=False))) + "\n")
    for name, count in (("q", 200), ("s", 350), ("k", 6)):
        np.save(path / f"{name}.npy", numbers.standard_normal((count, 16)).astype(np.float32))
