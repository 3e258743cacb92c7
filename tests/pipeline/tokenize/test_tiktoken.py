"""tiktoken ranks against tiktoken itself and its published ids."""

from __future__ import annotations

import base64
import json
import random
import sys
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer

from dataprep.formats.errors import InputError, StorageError
from dataprep.pipeline.tokenize.load import (
    resolve_tokenizer,
)
from dataprep.pipeline.tokenize.special_tokens import (
    vocab_size,
)
from dataprep.pipeline.tokenize.tiktoken import (
    ENCODINGS,
    TiktokenEncoding,
    parse_ranks,
    ranks_to_json,
)
from tests.scenes.tokenizer_files import (
    CL100K_RANKS,
    PROSE,
    cl100k_json,
    cl100k_vectors,
    gigatoken_ids,
    hf_ids,
    load_json,
)
from tests.support import needs_shared_data


@needs_shared_data
def test_cl100k_ranks_give_the_ids_of_tiktoken_in_both_engines() -> None:
    """1,030 texts of every kind."""
    texts = [text for text, _ in cl100k_vectors()]
    expected = [ids for _, ids in cl100k_vectors()]
    assert len(texts) > 1000
    assert hf_ids(Tokenizer.from_buffer(cl100k_json()), texts) == expected
    assert gigatoken_ids(cl100k_json(), texts) == expected


@needs_shared_data
def test_cl100k_ranks_give_the_published_tokenizer_json() -> None:
    """Same vocabulary, added tokens, splitting and decoding as the file people use."""
    ours, published = json.loads(cl100k_json()), load_json("cl100k_base")
    assert ours["model"].pop("vocab") == published["model"].pop("vocab")
    # Ours lists every way to make a token, the published file the one that its ranks lead to.
    known = {tuple(merge.split(" ")) for merge in ours["model"].pop("merges")}
    assert {tuple(merge) for merge in published["model"].pop("merges")} <= known
    assert ours == published


def small_ranks(seed: int) -> dict[bytes, int]:
    """256 bytes and 300 tokens over few letters, so that many cuts of many tokens are tokens."""
    random_ = random.Random(seed)
    ranks = {bytes([byte]): byte for byte in range(256)}
    pool = [b"a", b"b", b"c", b" "]
    while len(ranks) < 556:
        token = random_.choice(pool) + random_.choice(pool)
        if len(token) < 9 and token not in ranks:
            ranks[token] = len(ranks)
            pool.append(token)
    return ranks


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_conversion_equals_tiktoken_on_ranks_made_to_be_ambiguous(name: str) -> None:
    """Thousands of words whose letters can be joined in many orders, with each split pattern."""
    random_ = random.Random(1)
    letters = "aaabbc cd'sA1\n"
    texts = ["".join(random_.choices(letters, k=random_.randint(1, 40))) for _ in range(3000)]
    texts += PROSE
    ranks = small_ranks(2)
    specials = {"<|endoftext|>": 600}
    encoding = TiktokenEncoding(pattern=ENCODINGS[name].pattern, specials=specials)
    gpt2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    reference = tiktoken.Encoding(
        "test", pat_str=encoding.pattern or gpt2, mergeable_ranks=ranks, special_tokens=specials
    )
    expected = [reference.encode_ordinary(text) for text in texts]
    data = ranks_to_json(ranks, encoding)
    assert hf_ids(Tokenizer.from_buffer(data), texts) == expected
    assert gigatoken_ids(data, texts) == expected


def test_a_rank_file_keeps_its_gaps(tmp_path: Path) -> None:
    """p50k_base leaves 50256 free for its special token; ids are ranks, not line numbers."""
    ranks = {**small_ranks(3), b"zz": 50_280}
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
    path = tmp_path / "p50k_base.tiktoken"
    path.write_bytes(b"\n".join(lines) + b"\n")
    source = resolve_tokenizer(str(path))
    tokenizer = Tokenizer.from_buffer(source.json)
    assert tokenizer.encode("zz").ids == [50_280]
    assert tokenizer.encode("<|endoftext|>").ids == [50_256]
    assert vocab_size(json.loads(source.json)) == 50_281


def test_an_unknown_rank_file_says_what_is_missing(tmp_path: Path) -> None:
    """A wrong split pattern would go unnoticed, so none is guessed."""
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(b"IQ== 0\n")
    with pytest.raises(InputError, match="no split pattern and no special tokens"):
        resolve_tokenizer(str(path))


@needs_shared_data
def test_tiktoken_by_name_takes_the_package_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken:cl100k_base equals the conversion of the rank file."""
    ranks = parse_ranks(CL100K_RANKS.read_bytes(), "ranks")
    known = tiktoken.Encoding("cl100k_base", pat_str=r".", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: {"cl100k_base": known}[name])
    source = resolve_tokenizer("tiktoken:cl100k_base")
    assert (source.json, source.origin) == (cl100k_json(), "tiktoken:cl100k_base")


def test_tiktoken_faults_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown name, no network, no package: three errors that say what to do."""
    with pytest.raises(InputError, match="unknown encoding"):
        resolve_tokenizer("tiktoken:cl1000k")

    def unreachable(name: str) -> tiktoken.Encoding:
        raise OSError(f"cannot reach the server for {name}")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(StorageError, match="could not be downloaded") as caught:
        resolve_tokenizer("tiktoken:o200k_base")
    assert "o200k_base.tiktoken by its path" in str(caught.value)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(InputError, match="pip install"):
        resolve_tokenizer("tiktoken:o200k_base")
