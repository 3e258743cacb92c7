"""Whole corpora, every document: minutes, not seconds. `make test-long` runs these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import engines
from dataprep import create_loader, open_dataset
from dataprep.formats.verify.verify import verify
from tests.scenes.corpora import build_into, digests, records_of
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = [pytest.mark.long, needs_shared_data]

GPT2 = SHARED_DATA / "tokenizers" / "gpt2" / "tokenizer.json"
CORPORA = [SHARED_DATA / "corpora" / name for name in ("docs_en.jsonl", "books_en.jsonl")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """docs_en and books_en with GPT-2, two workers."""
    out = tmp_path_factory.mktemp("corpora") / "out"
    build_into(out, *CORPORA, tokenizer=str(GPT2), workers=2)
    return out


def test_workers_leave_no_trace(built: Path, tmp_path: Path) -> None:
    """One worker gives the same bytes as two."""
    build_into(tmp_path / "out", *CORPORA, tokenizer=str(GPT2), workers=1)
    assert digests(tmp_path / "out") == digests(built)


def test_every_document_is_read_back(built: Path) -> None:
    """Each document decodes to its source text, and stands where its provenance says."""
    records = [record for path in CORPORA for record in records_of(path)]
    raw = {path.name: path.read_bytes() for path in CORPORA}
    seen = np.zeros(len(records), bool)
    with open_dataset(built) as dataset:
        for split in dataset.splits.values():
            for number, record_id in enumerate(split.record_ids.tolist()):
                assert split.text(number) == records[record_id]["text"]
                name, offset = split.source(number)
                end = raw[name].find(b"\n", offset)
                assert json.loads(raw[name][offset:end]) == records[record_id]
                seen[record_id] = True
    assert seen.all()
    assert verify(built).findings == ()


def test_each_window_once(built: Path) -> None:
    """An epoch serves every window of the split exactly once, and its labels are the next ids."""
    loader = create_loader(built, "train", batch_size=16, seq_len=512, seed=3, drop_last=False)
    with open_dataset(built) as dataset:
        split = dataset.split("train")
        stream = split.read(0, split.tokens).astype(np.int64)
    windows = (len(stream) - 1) // 512
    expected = sorted(stream[: windows * 512].reshape(windows, 512)[:, :8].tolist())
    seen = []
    for batch in loader:
        seen += batch["input_ids"][:, :8].tolist()
        assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()
    assert sorted(seen) == expected


def test_ids_are_the_reference_ids() -> None:
    """Nine real tokenizers, three corpora, both special-text modes: no document differs."""
    outcomes = engines.run(SHARED_DATA)
    assert len(outcomes) == 9
    assert [(o.tokenizer, o.different, o.reference_different) for o in outcomes] == [
        (o.tokenizer, 0, 0) for o in outcomes
    ]
