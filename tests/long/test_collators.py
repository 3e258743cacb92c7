"""Collators in processes of their own, and at sizes that take time."""

from __future__ import annotations

import itertools
import json
import multiprocessing

import pytest
from tokenizers import Tokenizer

from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.preference import Preference
from dataprep.runtime.collate.text import CausalLM
from dataprep.runtime.collate.tokenizer_ids import continuations, token_ids
from dataprep.runtime.errors import SampleError
from dataprep.runtime.external.map_dataset import Collated, collated_order
from dataprep.runtime.loader.serve import serve
from tests.support import SHARED_DATA, needs_shared_data

pytestmark = pytest.mark.long


def test_collators_work_in_a_spawned_process() -> None:
    """Item 78: the batch that a spawned process makes is the batch made here."""
    collate = MaskedLM(mask_id=9, vocab_size=10, continuations=(3,), whole_words=True)
    samples = [{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}, {"input_ids": [5, 6]}]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(collate, (samples,))
    here = collate(samples)
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in here.items()}


class Broken:
    """A dataset of ten, of which one cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("no such image")
        return index


def test_workers_name_the_sample_too() -> None:
    """An error is the same error from another process (torch takes 5 s to end one after it)."""
    data = Collated(Broken(), Default(report=False))
    order, definition = collated_order(data, seed=0)
    loader = serve(data, 4, order=order, definition=definition, end="partial", num_workers=1)
    with pytest.raises(SampleError, match=r"\] sample 7: reading it raised ValueError"):
        list(loader)


@needs_shared_data
def test_real_documents() -> None:
    """Items 13, 15, 16, 75: real text, token by token against the documents themselves."""
    tokenizer = Tokenizer.from_file(
        str(SHARED_DATA / "tokenizers/bert_base_uncased/tokenizer.json")
    )
    ids = token_ids(tokenizer)
    with (SHARED_DATA / "corpora" / "docs_en.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in itertools.islice(file, 600)]
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    masked = MaskedLM(
        mask_id=ids.mask_id or 0, vocab_size=ids.vocab_size, special_ids=ids.special_ids,
        whole_words=True, continuations=continuations(tokenizer), max_length=512,
        pad_to="longest", pad_id=ids.pad_id,
    )  # fmt: skip
    hidden = tokens = 0
    for start in range(0, len(rows), 32):
        some = [{"input_ids": row} for row in rows[start : start + 32]]
        batch = CausalLM(pad_id=ids.pad_id, shift=True)(some)
        for sample, got, labels in zip(some, batch["input_ids"], batch["labels"], strict=True):
            row = sample["input_ids"]
            assert got[: len(row)].tolist() == row
            assert labels[: len(row)].tolist() == [*row[1:], -100]
            assert set(labels[len(row) :].tolist()) <= {-100}
        batch = masked(some)
        for sample, got, labels in zip(some, batch["input_ids"], batch["labels"], strict=True):
            row = sample["input_ids"][:512]
            for before, now, label in zip(row, got.tolist(), labels.tolist(), strict=False):
                assert label == before or (label == -100 and now == before)
                assert before not in ids.special_ids or label == -100
            hidden += int((labels != -100).sum())
            tokens += len(row)
    assert abs(hidden / tokens - 0.15) < 0.01


@needs_shared_data
def test_real_preferences() -> None:
    """Item 77: pairs of real conversations keep their answers, and the text they came from."""
    tokenizer = Tokenizer.from_file(str(SHARED_DATA / "tokenizers/gpt2/tokenizer.json"))
    (path,) = (SHARED_DATA / "preference").glob("dpo_en*.json*")
    text = path.read_text(encoding="utf-8")
    records = json.loads(text) if text[0] == "[" else [json.loads(x) for x in text.splitlines()]
    samples = [
        {
            f"{side}_input_ids": tokenizer.encode(json.dumps(record[side])).ids
            for side in ("chosen", "rejected")
        }
        | {"number": number, "said": record["conversations"]}
        for number, record in enumerate(records[:256])
    ]
    batch = Preference(equal_widths=True)(samples)
    assert batch["chosen_input_ids"].shape == batch["rejected_input_ids"].shape
    for side in ("chosen", "rejected"):
        ids, mask = batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"] != 0
        for sample, row, real in zip(samples, ids, mask, strict=True):
            assert row[real].tolist() == sample[f"{side}_input_ids"]
    assert batch["number"].tolist() == list(range(len(samples)))
    assert batch["said"] == [record["conversations"] for record in records[:256]]
