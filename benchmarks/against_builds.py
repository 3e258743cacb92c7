"""The command lines whose files and answers benchmarks/against.py compares.

Every step runs in a folder of its side, with the same relative names, so that what is printed can
be compared as it stands. A step with `out` made a directory or a file of that name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Step", "prepare", "steps"]

IN = "../inputs"
LEVELS = ("stat", "structure", "full")
SPLIT = ("--split", "train=0.8,val=0.1,test=0.1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One process: `words` of the command line, or of the Python program `script`."""

    name: str
    words: tuple[str, ...]
    out: str | None = None
    script: bool = False
    damage: tuple[str, str, str] | None = None
    """A copy of a dataset to make first: the dataset, the copy, what is done to it."""


def prepare(step: Step, folder: Path) -> None:
    """Make the damaged copy that `step` looks at."""
    if step.damage is None:
        return
    source, copy, what = step.damage
    if not (folder / source).exists():
        return
    shutil.copytree(folder / source, folder / copy)
    kind, _, name = what.partition(" ")
    path = folder / copy / name
    if kind == "flip":
        found = bytearray(path.read_bytes())
        found[len(found) * 2 // 3] ^= 1
        path.write_bytes(found)
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif kind == "lose":
        path.unlink()
    elif kind == "add":
        path.write_text("new\n")
    elif kind == "count":
        text = path.read_text()
        path.write_text(text.replace('"documents":', '"documents":1', 1))


def steps(data: Path) -> Iterator[Step]:
    """Every process, in order."""
    at = str(data)
    yield from texts(at)
    yield from readers(at)
    yield from chats(at)
    yield from arrays()
    yield from looks()
    yield from answers()


def build(name: str, *words: str, kind: str | None = None) -> Step:
    """One build, which prints what it found as JSON."""
    of_kind = () if kind is None else ("--kind", kind)
    workers = () if "--workers" in words else ("--workers", "1")
    return Step(
        name=name, words=("build", *of_kind, *words, *workers, "--out", name, "--json"), out=name
    )


def texts(at: str) -> Iterator[Step]:
    """Whole corpora, and every tokenizer."""
    corpora = [f"{at}/corpora/{name}.jsonl" for name in ("docs_en", "books_en", "code_python")]
    inputs = [word for path in corpora for word in ("--input", path)]
    gpt2 = ("--tokenizer", f"{at}/tokenizers/gpt2/tokenizer.json")
    for workers in ("1", "2"):
        yield build(f"corpora_{workers}", *inputs, *gpt2, "--workers", workers)
    names = ("gpt2", "cl100k_base", "olmo_dolma2", "qwen2_5", "mistral_v3", "bert_base_uncased",
             "t5_small", "minimind_6400")  # fmt: skip
    files = [(name, f"{at}/tokenizers/{name}/tokenizer.json") for name in names]
    files += [
        ("ranks", f"{at}/tokenizers/cl100k_base/cl100k_base.tiktoken"),
        ("model", f"{at}/tokenizers/mistral_v3/mistral_instruct_tokenizer_240323.model.v3"),
    ]
    for name, file in files:
        yield build(f"t_{name}", "--input", f"{IN}/docs.jsonl", "--input", f"{IN}/wide.jsonl",
                    "--tokenizer", file, *SPLIT)  # fmt: skip
    for engine in ("gigatoken", "tokenizers"):
        yield build(f"e_{engine}", "--input", f"{IN}/small.jsonl", *gpt2, "--engine", engine)
    docs = ("--input", f"{IN}/docs.jsonl")
    yield build("docs_2", *docs, *SPLIT, "--workers", "2")
    for name, options in {
        "counts": ("--split", "train=500,val=60,test=rest", "--split-mode", "count"),
        "keyed": (*SPLIT, "--split-key", "group", "--seed", "3"),
        "one": ("--split", "train=1"),
        "no_eos": ("--eos", "none"),
        "bos": ("--bos", "<|endoftext|>", "--eos", "<|endoftext|>"),
        "parse": ("--special-text", "parse"),
        "fields": ("--field", "url"),
    }.items():
        yield build(f"o_{name}", *docs, *options)
    plain = (
        "--input",
        f"{at}/corpora/tinyshakespeare.txt",
        "--input",
        f"{at}/inputs/wiki_demo.txt",
    )
    for kind in ("file", "line", "block"):
        yield build(f"d_{kind}", *plain, "--document", kind, "--split", "train=1")


def readers(at: str) -> Iterator[Step]:
    """Every kind of input; bad records."""
    parquet = f"{at}/parquet"
    yield build("r_gsm8k", "--input", f"{parquet}/gsm8k_train.parquet", "--field", "answer",
                "--workers", "2", *SPLIT)  # fmt: skip
    yield build("r_boolq", "--input", f"{parquet}/boolq_validation.parquet", "--field", "passage")
    yield build("r_xquad", "--input", f"{parquet}/xquad_multi.parquet", *SPLIT)
    names = ("xquad_multi.jsonl.gz", "xquad_multi.jsonl.zst", "c4-sample.01.json.gz")
    packed = [word for name in names for word in ("--input", f"{at}/inputs/{name}")]
    yield build("r_mixed", *packed, "--on-error", "skip", "--workers", "2")
    yield build("r_hub", "--input", f"{IN}/hub", "--split-key", "id")
    for name in ("train", "test"):
        yield build(f"r_hub_{name}", "--input", f"{IN}/hub_splits", "--hf-split", name)
    yield build("r_hub_none", "--input", f"{IN}/hub_splits")
    yield build("r_own", "--input", f"{IN}/own")
    yield build("r_blns", "--input", f"{at}/corpora/edge/blns.txt", "--document", "line")
    yield build("r_cut", "--input", f"{at}/corpora/edge/Chinese_Mandarin-UTF8", "--format", "text",
                "--on-error", "skip")  # fmt: skip
    skip = ("--on-error", "skip")
    bad = ("--input", f"{IN}/bad.jsonl", "--input", f"{IN}/small.jsonl")
    for workers in ("1", "2"):
        yield build(f"b_skip_{workers}", *bad, *skip, "--workers", workers)
    yield build("b_error", *bad)
    yield build("b_max", *bad, *skip, "--max-rejects", "3")
    yield build("b_quiet", *bad, *skip, "--no-excerpts", "--split", "train=50,val=rest",
                "--split-mode", "count")  # fmt: skip
    yield Step(name="again", words=("build", "--input", f"{IN}/docs.jsonl", *SPLIT, "--out",
                                    "docs_2", "--json"), out="docs_2")  # fmt: skip
    yield Step(name="other", words=("build", "--input", f"{IN}/docs.jsonl", "--out", "docs_2",
                                    "--json"), out="docs_2")  # fmt: skip
    train = ("tokenizer", "train", "--input", f"{IN}/small.jsonl", "--vocab-size", "1000")
    yield Step(name="train", words=(*train, "--out", "own.json", "--json"), out="own.json")


def chats(at: str) -> Iterator[Step]:
    """Conversations and preferences."""

    def chat(name: str, *words: str) -> Step:
        return build(f"c_{name}", *words, kind="chat")

    talks, chatml = ("--input", f"{IN}/talks.jsonl"), ("--template", "chatml")
    qwen = ("--tokenizer", f"{at}/tokenizers/qwen2_5")
    for workers in ("1", "2"):
        yield chat(f"qwen_{workers}", *talks, *qwen, "--workers", workers, *SPLIT)
    yield chat("chatml", *talks, *chatml, *SPLIT)
    for name in ("alpaca_en_demo", "alpaca_zh_demo", "glaive_toolcall_en_demo",
                 "fastchat_dummy_conversation"):  # fmt: skip
        yield chat(name, "--input", f"{at}/chat/{name}.json", *qwen)
    yield chat("tools", "--input", f"{at}/chat/reason_tool_use_demo_50.jsonl", *qwen,
               "--on-error", "skip")  # fmt: skip
    yield chat("blocks", "--input", f"{IN}/blocks.jsonl", *chatml, "--on-error", "skip")
    for name in ("vicuna", "zephyr", "phi3", "llama3", "mistral", "gemma"):
        yield chat(f"t_{name}", *talks, "--template", name, "--on-error", "skip", "--tokenizer",
                   f"{at}/tokenizers/mistral_v3/tokenizer.json")  # fmt: skip
    for on in ("last", "all"):
        yield chat(f"on_{on}", *talks, *chatml, "--train-on", on)
    for name in ("drop", "truncate-left", "truncate-right", "split", "error"):
        yield chat(f"l_{name}", *talks, *chatml, "--max-tokens", "120", "--overlong", name,
                   "--on-error", "skip")  # fmt: skip
    yield chat("system", *talks, *chatml, "--system", "Be brief.", "--special-text", "parse")
    yield chat("count", *talks, *chatml, "--split", "train=700,val=rest", "--split-mode", "count")
    yield chat("bad", "--input", f"{IN}/bad_talks.jsonl", *chatml, "--on-error", "skip")
    yield chat("stops", "--input", f"{IN}/bad_talks.jsonl", *chatml)
    for name, file in (("pairs", f"{at}/preference/dpo_en_demo.json"),
                       ("labels", f"{at}/preference/kto_en_demo.json"),
                       ("groups", f"{IN}/groups.jsonl")):  # fmt: skip
        yield chat(name, "--input", file, *chatml, "--split", "train=0.9,val=0.1")
        yield chat(f"{name}_q", "--input", file, *qwen, "--max-tokens", "300", "--overlong",
                   "truncate-left", "--on-error", "skip", "--workers", "2")  # fmt: skip


def arrays() -> Iterator[Step]:
    """Embeddings and pairs; what is made through Python, with a function for an encoder."""

    def vectors(name: str, *words: str) -> Step:
        return build(f"v_{name}", *words, kind="embeddings")

    npy = ("--input", f"{IN}/vectors.npy")
    yield vectors("npy", *npy, *SPLIT)
    yield vectors("two", *npy, *SPLIT, "--workers", "2")
    for dtype in ("float16", "bfloat16", "int8"):
        yield vectors(dtype, *npy, "--dtype", dtype, "--normalize", "--split",
                      "train=2500,val=rest", "--split-mode", "count")  # fmt: skip
    columns = ("--columns", "embedding=vec", "--columns", "year", "--columns", "kind:label")
    yield vectors("npz", "--input", f"{IN}/vectors.npz", *columns[:4], "--columns", "share")
    yield vectors("parquet", "--input", f"{IN}/vectors.parquet", *columns, "--workers", "2")
    yield vectors("jsonl", "--input", f"{IN}/vectors.jsonl", *columns, *SPLIT)
    yield vectors("bad", "--input", f"{IN}/bad_vectors.npy", "--on-error", "skip")
    yield vectors("stops", "--input", f"{IN}/bad_vectors.npy")

    def pair(name: str, *words: str) -> Step:
        return build(f"p_{name}", *words, kind="pairs")

    csv = ("--input", f"{IN}/pairs.csv")
    given = ("--question-embs", f"{IN}/q.npy", "--source-embs", f"{IN}/s.npy")
    topic = ("--columns", "cluster=topic", "--keywords", "ignore")
    for workers in ("1", "2"):
        yield pair(f"topic_{workers}", *csv, *given, *topic, "--n-neg", "8", "--curriculum",
                   "linear", "--workers", workers)  # fmt: skip
    yield pair("words", *csv, *given, "--keyword-embs", f"{IN}/k.npy", "--keyword-separator", "|",
               "--columns", "cluster=topic", "--inspection", "--dtype", "float16")  # fmt: skip
    yield pair("plain", *csv, *given, "--keywords", "ignore", "--clusters", "none", "--normalise",
               "--n-neg", "3", "--seed", "5", "--split", "train=0.5,val=0.5")  # fmt: skip
    yield pair("short", *csv, "--question-embs", f"{IN}/k.npy", "--source-embs", f"{IN}/s.npy")
    for name in ("texts", "pairs", "split_pairs", "api"):
        out = f"api_{name}"
        yield Step(name=out, words=(name, IN, out), out=out, script=True)
    for name, source, to in (
        ("jasper", "p_words", ("--to", "jasper")), ("one.safetensors", "p_words", ()),
        ("one.h5", "v_npy", ()),
    ):  # fmt: skip
        there, back = (name, *to, "--json"), (f"from_{name}", "--to", "dataprep", "--json")
        yield Step(name=f"to_{name}", words=("convert", source, *there), out=name)
        yield Step(name=f"from_{name}", words=("convert", name, *back), out=f"from_{name}")


BUILT = ("corpora_1", "docs_2", "t_bert_base_uncased", "d_line", "r_mixed", "b_skip_1", "c_qwen_1",
         "c_l_split", "c_pairs", "c_labels", "c_groups", "v_parquet", "v_int8", "p_words",
         "api_texts", "from_jasper")  # fmt: skip


def looks() -> Iterator[Step]:
    """What is said of datasets that are sound, and of copies that are not."""
    for name in BUILT:
        for level in LEVELS:
            yield Step(name=f"verify_{name}_{level}",
                       words=("verify", name, "--level", level, "--json"))  # fmt: skip
        yield Step(name=f"inspect_{name}", words=("inspect", name, "--random", "3", "--json"))
    tokens, chat = "docs_2", "c_pairs"
    for number, (source, what) in enumerate((
        (tokens, "flip train/tokens-00000.bin"), (tokens, "cut train/tokens-00000.bin"),
        (tokens, "flip train/docs-00000.npy"), (tokens, "flip val/source-00000.npy"),
        (tokens, "flip train_idx.pt"), (tokens, "flip crc32.npy"), (tokens, "flip tokenizer.json"),
        (tokens, "lose val/docs-00000.npy"), (tokens, "lose config.json"), (tokens, "add new.txt"),
        (tokens, "count config.json"), (tokens, "cut config.json"),
        ("b_skip_1", "cut rejects.jsonl"), (chat, "flip train/mask-00000.npy"),
        (chat, "flip train/groups-00000.npy"),
        (chat, "flip train/scores-00000.npy"), (chat, "flip chat_template.jinja"),
        ("v_int8", "flip embedding/00000.npy"), ("v_parquet", "cut year/00000.npy"),
        ("p_words", "flip hard_negatives/00000.npy"), ("p_words", "flip pair_index/00000.npy"),
        ("p_words", "lose negative_tiers/00000.npy"),
    )):  # fmt: skip
        copy = f"damaged_{number}"
        for level in LEVELS:
            yield Step(name=f"{copy}_{level}", words=("verify", copy, "--level", level, "--json"),
                       damage=(source, copy, what) if level == LEVELS[0] else None)  # fmt: skip
        yield Step(name=f"{copy}_inspect", words=("inspect", copy, "--random", "2", "--json"))


def answers() -> Iterator[Step]:
    """Orders, help, estimates, refusals."""
    for name, words in {
        "step": ("docs_2", "--step", "3", "--batch-size", "4", "--seq-len", "256", "--seed", "7"),
        "rank": ("docs_2", "--step", "1", "--batch-size", "2", "--dp-size", "4", "--rank", "3"),
        "packed": ("docs_2", "--step", "2", "--batch-size", "4", "--rows", "packed", "--pack",
                   "best-fit", "--seq-len", "512"),
        "doc": ("docs_2", "--doc", "17", "--batch-size", "4", "--epoch", "2"),
        "blocks": ("docs_2", "--step", "5", "--batch-size", "4", "--shuffle", "blocks"),
        "mixed": ("docs_2", "o_one", "--weight", "3", "--weight", "1", "--step", "4",
                  "--batch-size", "4", "--weigh-by", "tokens", "--rows", "documents"),
        "chat": ("c_qwen_1", "--step", "1", "--batch-size", "4"),
        "pairs": ("c_pairs", "--step", "1", "--batch-size", "4", "--seq-len", "8192"),
        "too_long": ("c_pairs", "--step", "1", "--batch-size", "4"),
        "beyond": ("docs_2", "--step", "999999", "--batch-size", "4"),
    }.items():  # fmt: skip
        yield Step(name=f"order_{name}", words=("order", *words, "--json"))
        yield Step(name=f"order_{name}_text", words=("order", *words))
    for command in ("", "build", "verify", "inspect", "order", "convert", "clean", "tokenizer",
                    "completion"):  # fmt: skip
        yield Step(name=f"help_{command}", words=(*command.split(), "--help"))
    for kind in ("chat", "embeddings", "pairs"):
        yield Step(name=f"help_{kind}", words=("build", "--kind", kind, "--help"))
    yield Step(name="version", words=("--version",))
    yield Step(name="completion", words=("completion", "bash"))
    for name, words in {
        "text": ("--input", f"{IN}/docs.jsonl"),
        "chat": ("--kind", "chat", "--input", f"{IN}/talks.jsonl", "--template", "chatml",
                 "--max-tokens", "120"),
        "vectors": ("--kind", "embeddings", "--input", f"{IN}/vectors.npy"),
        "no_file": ("--input", "missing.jsonl"),
        "no_split": ("--input", f"{IN}/docs.jsonl", "--split", "train=2"),
        "no_field": ("--input", f"{IN}/docs.jsonl", "--field", "body"),
        "no_template": ("--kind", "chat", "--input", f"{IN}/talks.jsonl", "--template", "none"),
        "no_option": ("--input", f"{IN}/docs.jsonl", "--colour", "red"),
    }.items():  # fmt: skip
        yield Step(name=f"dry_{name}",
                   words=("build", *words, "--out", "dry", "--dry-run", "--json"))  # fmt: skip
    for command in ("verify", "inspect"):
        yield Step(name=f"{command}_none", words=(command, "missing", "--json"))
        yield Step(name=f"{command}_text", words=(command, "missing"))
