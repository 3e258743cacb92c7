"""Steps and documents of real corpora, against loaders that serve whole epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataprep.formats.read.dataset import open_dataset
from dataprep.runtime.inspect.trace import splits_of, steps_of_document, trace_step
from tests.scenes.corpora import build_into
from tests.scenes.loaders import make_loader
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = [pytest.mark.long, needs_shared_data]

GPT2 = SHARED_DATA / "tokenizers" / "gpt2" / "tokenizer.json"
CORPORA = {"wiki": "wikitext-2/train_articles.jsonl", "code": "code_python.jsonl"}
Seen = set[tuple[int, int, int, int, int]]  # source, document, step, rank, row


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Encyclopedia articles and Python files, documents of 1 to 100,000 tokens."""
    folder = tmp_path_factory.mktemp("order")
    for name, corpus in CORPORA.items():
        build_into(folder / name, SHARED_DATA / "corpora" / corpus, tokenizer=str(GPT2), workers=2)
    return tuple(folder / name for name in CORPORA)


def served(make: Any, ranks: int) -> Seen:
    """Who is handed which document, from the `doc_ids` of every batch."""
    seen: Seen = set()
    for rank in range(ranks):
        for step, batch in enumerate(make(dp_rank=rank, dp_size=ranks)):
            for row, ids in enumerate(batch["doc_ids"].numpy()):
                source = int(batch["source"][row]) if "source" in batch else 0
                documents = set(ids.tolist()) - {-1}
                seen |= {(source, document, step, rank, row) for document in documents}
    return seen


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        {"rows": "windows", "seq_len": 1024, "stride": 700},
        {"rows": "packed", "seq_len": 2048},
        {"rows": "packed", "seq_len": 512, "algorithm": "best-fit", "overlong": "drop"},
    ],
    ids=["windows", "packed", "packed, dropped"],
)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_every_step_and_document(
    built: tuple[Path, ...], rows: dict[str, Any], mixed: bool, io: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each (document, step, rank, row) of an epoch is found from step and from document."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path))
    datasets: Any = {built[0]: 1, built[1]: 3} if mixed else built[0]

    def make(**options: Any) -> Any:
        return make_loader(
            datasets, "train", 16, seed=11, epoch=1, labels=None, doc_ids=True, io=io,
            source_ids=mixed, drop_last=False, **rows, **options,
        )  # fmt: skip

    expected = served(make, 2)
    loader = make(dp_rank=0, dp_size=2)
    samples, sampler = loader.dataset_obj, loader.sampler_obj
    by_step: Seen = set()
    for step in range(len(loader)):
        trace = trace_step(samples, sampler, step, epoch=1)
        at, pieces = trace.pieces.row, trace.pieces
        columns = (pieces.source, pieces.document, trace.rank[at], trace.row[at])
        by_step |= {
            (source, document, step, rank, row)
            for source, document, rank, row in zip(*(c.tolist() for c in columns), strict=True)
        }
    assert by_step == expected
    by_document: Seen = set()
    for source, split in enumerate(splits_of(samples)):
        for document in range(split.documents):
            found = steps_of_document(samples, sampler, document, epoch=1, source=source)
            places = zip(found.step.tolist(), found.rank.tolist(), found.row.tolist(), strict=True)
            by_document |= {(source, document, *place) for place in places if place[0] >= 0}
    assert by_document == expected


def test_whole_documents(built: tuple[Path, ...]) -> None:
    """Of whole documents, by their tokens: of equal ones, the last stands for all."""
    split = open_dataset(built[0]).split("train")
    loader = make_loader(built[0], "train", 16, rows="documents", seq_len=300, seed=11)
    numbers = {split.document(d)[:300].tobytes(): d for d in range(split.documents)}
    samples: Any = loader.dataset_obj
    seen: set[tuple[int, int, int]] = set()
    for step, batch in enumerate(loader):
        ids = batch["input_ids"].numpy().astype(split.dtype)
        for row, length in enumerate(batch["lengths"].tolist()):
            seen.add((numbers[ids[row, :length].tobytes()], step, row))
    found: set[tuple[int, int, int]] = set()
    for document in range(split.documents):
        trace = steps_of_document(samples, loader.sampler_obj, document, epoch=0)
        places = zip(trace.step.tolist(), trace.row.tolist(), strict=True)
        number = numbers[split.document(document)[:300].tobytes()]
        found |= {(number, *place) for place in places if place[0] >= 0}
    assert len(found) > split.documents - 16
    assert found == seen
