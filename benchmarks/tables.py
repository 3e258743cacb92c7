"""The tables of the README and the docs, from the committed results.

    python benchmarks/tables.py            rewrite them
    python benchmarks/tables.py --check    check that they agree with the results

A table stands between `<!-- NAME -->` and `<!-- end -->`. No figure is copied by hand, and a test
checks that none is out of date.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep.pipeline.progress import MOMENTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/loading.md", "docs/order.md", "docs/speed.md")
_TABLE = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

NOT_YET = "Not measured for this version yet."
PEER_NAMES = {
    "megatron": "Megatron's `preprocess_data` loop",
    "datatrove": "datatrove",
    "litdata": "LitData",
    "hf_datasets": "`datasets.map` and a memmap",
    "mds": "MosaicML's `MDSWriter`",
}
LOADERS = {
    "litdata": "LitData",
    "naive_dataset": "a `DataLoader` over a memmap, written by hand",
    "datatrove_ds": "datatrove",
    "hf_arrow": "Hugging Face `datasets`",
    "grain_src": "Grain",
    "nanogpt": "nanoGPT's `get_batch`",
    "megatron_gpt": "Megatron's `GPTDataset`",
    "mds": "MosaicML Streaming",
}


def results(name: str) -> dict[str, Any]:
    """Return one file of committed results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def grid(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str) -> str:
    """Return `text` in lines of at most 110 characters."""
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def build_summary() -> str:
    """Return the table of the README: this package, the shortest script and peers."""
    found = results("build")
    peers = found["peers"]
    ours = peers["large"]["mb_per_s"]
    one_liner = found["engines"]["gpt2"]
    rows = [["**`dataprep build`**", f"**{ours:.0f}**", "", _memory(peers["large"]["peak_mib"])]]
    small = next(peer for peer in peers["found"] if peer["name"] == "ours")
    rows.append(
        [
            f"the same on {peers['megabytes']} MB, start-up and all",
            f"{small['mb_per_s']:.0f}",
            "",
            "",
        ]
    )
    rows.append(
        [
            "gigatoken's own reader, everything in memory, nothing checked",
            f"{one_liner['one_liner']['mb_per_s']:.0f}",
            f"{one_liner['speed_ratio']:.2f}x in pairs",
            _memory(one_liner["one_liner"]["peak_mib"]),
        ]
    )
    rows += [
        [
            PEER_NAMES[peer["name"]],
            f"{peer['inner_mb_per_s']:.1f}",
            f"{ours / peer['inner_mb_per_s']:.0f}x",
            "",
        ]
        for peer in sorted(peers["found"], key=lambda peer: -float(peer["inner_mb_per_s"]))
        if peer["name"] in PEER_NAMES
    ]
    return grid(["GPT-2, two cores", "MB/s of JSONL", "dataprep is", "largest process"], rows)


def tokenizers() -> str:
    """Return the comparison with the one-liner, for several tokenizers."""
    found = results("build")
    rows = [
        [
            name,
            f"{pair['dataprep']['mb_per_s']:.0f}",
            f"{pair['one_liner']['mb_per_s']:.0f}",
            f"{pair['speed_ratio']:.2f}x",
            _memory(pair["dataprep"]["peak_mib"]),
            _memory(pair["one_liner"]["peak_mib"]),
        ]
        for name, pair in found["engines"].items()
    ]
    head = ["tokenizer", "dataprep, MB/s", "one-liner, MB/s", "ratio", "memory", "one-liner's"]
    return grid(head, rows)


def sizes() -> str:
    """Return the comparison with the one-liner by corpus, size and vocabulary."""
    found = results("build")["sizes"]
    rows = [
        [
            f"{one['megabytes']} MB, {one['corpus']}",
            one["tokenizer"],
            f"{one['dataprep']['wall_s']:.2f} s",
            f"{one['one_liner']['wall_s']:.2f} s",
            f"{one['speed_ratio']:.2f}x",
            _memory(one["dataprep"]["peak_mib"]),
            _memory(one["one_liner"]["peak_mib"]),
        ]
        for one in found["found"]
    ]
    head = ["input", "tokenizer", "dataprep", "one-liner", "ratio", "memory", "one-liner's"]
    return f"{grid(head, rows)}\n\nMeasured on {found['processor']}."


def timeline() -> str:
    """Return the time line of a build, by tokenizer."""
    found = results("build")["timeline"]
    names = list(found["found"])
    rows = [
        [MOMENTS[moment], *(f"{found['found'][name][moment]:.2f} s" for name in names)]
        for moment in sorted(found["found"][names[0]], key=found["found"][names[0]].get)
    ]
    return f"{grid(['moment', *names], rows)}\n\nMeasured on {found['processor']}."


def references() -> str:
    """Return the comparison for tokenizers that only the reference library accepts."""
    rows = [
        [
            name,
            f"{pair['dataprep']['mb_per_s']:.1f}",
            f"{pair['encode_batch_fast']['mb_per_s']:.1f}",
            f"{pair['speed_ratio']:.2f}x",
        ]
        for name, pair in results("build")["reference"].items()
        if isinstance(pair, dict)
    ]
    return grid(["tokenizer", "dataprep, MB/s", "`encode_batch_fast` alone, MB/s", "ratio"], rows)


def scaling() -> str:
    """Return figures for workers, sizes, one large document, start-up."""
    found = results("build")
    one, two = found["workers"]["one"], found["workers"]["two"]
    rows = [
        ["one worker", f"{one['wall_s']:.2f} s", _memory(one["peak_mib"])],
        [
            f"two workers, {found['workers']['speed_ratio']:.2f}x as fast",
            f"{two['wall_s']:.2f} s",
            _memory(two["peak_mib"]),
        ],
    ]
    rows += [
        [f"{size['megabytes']:,} MB of input", f"{size['wall_s']:.1f} s", _memory(size["peak_mib"])]
        for size in found["memory"]
    ]
    document = found["document"]
    label = f"one document of {document['megabytes']:,} MB"
    rows.append([label, f"{document['wall_s']:.1f} s", _memory(document["peak_mib"])])
    tiny = found["tiny"]
    rows.append(["ten kilobytes", f"{tiny['wall_s']:.2f} s", _memory(tiny["peak_mib"])])
    return grid(["build", "time", "largest process"], rows)


def load_summary() -> str:
    """Return loaders side by side: shuffled batches of 32 x 2,048 as int64, one process."""
    found = results("load")["peers"]["found"]
    best = max(found[name]["mtok_s"] for name in LOADERS)
    rows = [["memory copy of a finished batch", f"{found['memcpy']['mtok_s']:,.0f}", ""]]
    for name, said in (("ours_one_tensor", "ids alone"), ("ours", "ids and labels")):
        rate = found[name]["mtok_s"]
        rows.append([f"**dataprep, {said}**", f"**{rate:,.0f}**", f"{rate / best:.1f}x"])
    others = sorted(LOADERS, key=lambda name: found[name]["mtok_s"], reverse=True)
    rows += [[LOADERS[name], f"{found[name]['mtok_s']:,.0f}", ""] for name in others]
    return grid(["", "million tokens/s", "of the best of the others"], rows)


def load_shapes() -> str:
    """Return the rates of our loader in other shapes, beside bare copies of the same tensors."""
    said = {
        "{'labels': None}": "ids", "{}": "ids and labels",
        "{'position_ids': True, 'cu_seqlens': True}": "ids, labels, position ids, cu_seqlens",
    }  # fmt: skip
    rows = [
        [said[str(one["options"])], f"{one['batch']} x {one['seq']:,}", f"{one['mtok_s']:,}",
         f"{one['floor_mtok_s']:,}"]
        for one in results("load")["shapes"]
        if one["dataset"] == "built" and str(one["options"]) in said
    ]  # fmt: skip
    return grid(["tensors", "batch", "million tokens/s", "bare copies of them"], rows)


def load_types() -> str:
    """Return the rates of int32 beside those of int64, with the ratio that bare copies have."""
    said = {
        "{'labels': None}": "ids", "{}": "ids and labels",
        "{'position_ids': True, 'cu_seqlens': True}": "ids, labels, position ids, cu_seqlens",
        "{'rows': 'packed'}": "ids and labels, packed rows",
    }  # fmt: skip
    found = results("load")["types"]
    rows = [
        [said[str(one["options"])] + (", stored as uint32" if one["dataset"] == "uint32" else ""),
         f"{one['batch']} x {one['seq']:,}", f"{one['int64_mtok_s']:,}", f"{one['int32_mtok_s']:,}",
         f"{one['ratio']:.2f}x", f"{one['floor_ratio']:.2f}x"]
        for one in found["found"]
    ]  # fmt: skip
    head = ["tensors", "batch", "int64, million tokens/s", "int32", "in pairs", "bare copies"]
    return f"{grid(head, rows)}\n\nMeasured on {found['processor']}."


def load_facts() -> str:
    """Return the figures that do not fit a table of rates."""
    found = results("load")
    cold, start, steps = found["cold"], found["start"], found["steps"]
    return paragraph(
        f"On a cold page cache: {cold['mtok_s']['dataprep']:,.0f} million tokens/s, a hand-written"
        f" memmap loader {cold['mtok_s']['hand_written']:,.0f}. First batch of"
        f" {start['first_batch']['samples']:,} samples: {start['first_batch']['ms']:.0f} ms and"
        f" {start['first_batch']['mib_above_imports']:.0f} MiB; resuming there:"
        f" {start['resume']['ms']:.0f} ms. `state_dict()`: {found['state']['state_dict_us']:.0f}"
        f" microseconds. Beside a training step of {steps['step_ms']:.0f} ms, the trainer waits"
        f" {steps['waited_percent']:.2f} % of its time."
    )


def load_first() -> str:
    """Return the time to the first batch of a script, by kind of rows."""
    found = results("load")["first"]
    times = ", ".join(f"{name} {ms:.0f} ms" for name, ms in found["ms"].items())
    return paragraph(
        "First batch of a process that only loads, beyond the time of `import torch` (imports of"
        f" dataprep, opening, one batch): {times}. Measured on {found['processor']}."
    )


def chat_summary() -> str:
    """Return the table of conversations, rendered and tokenized."""
    found = results("chat")
    count = found["records"]

    def row(name: str, seconds: list[float], ratio: str = "") -> list[str]:
        return [name, f"{statistics.median(seconds):.1f} s", ratio]

    plain, marked = found["build"], found["with_masks"]
    rows = [
        row("**`dataprep build --kind chat`**", plain["seconds"], f"{found['ratio']:.1f}x"),
        row("`datasets.map(apply_chat_template)`", found["map"]["seconds_with_reading"]),
        row("**dataprep, ChatML**", marked["seconds"], f"{marked['ratio']:.1f}x"),
        row("`datasets.map`, ChatML, loss masks too", marked["map_seconds"]),
    ]
    return grid([f"{count:,} conversations, two processes", "time", "in pairs"], rows)


def machine() -> str:
    """Return the machine and the versions."""
    found = results("build")["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return paragraph(
        f"Measured on {found['cores']} cores of {found['processor']}, Python {found['python']}, "
        f"{versions}; {found['corpus_megabytes']:,} MB of JSONL: English documentation and books,"
        " 69 MB, repeated with distinct ids."
    )


def rounds_sizes() -> str:
    """Return the fairness of small permutations: the largest deviation of a pair, and p-values."""
    shown = (*range(2, 10), 12, 16, 24, 32, 40, 48, 64)
    rows = [
        [str(one["n"]), str(one["rounds"])]
        + [f"{one[kind]['sigma']:.1f}" for kind in ("8 rounds", "ours", "numpy")]
        + [f"{one['normal']:.1f}"]
        + [_chance(one[kind]["p"]) for kind in ("8 rounds", "16 rounds", "ours", "numpy")]
        for one in results("rounds")["sizes"]
        if one["n"] in shown
    ]
    head = ["n", "rounds", "8 rounds", "ours", "NumPy", "normal draws"]
    return grid([*head, "p, 8 rounds", "p, 16 rounds", "p, ours", "p, NumPy"], rows)


def shares_orders() -> str:
    """Return the evenness of sources stored one after the other, with and without strata."""
    said = {
        "full": "full shuffle", "blocks": '`shuffle="blocks"`',
        "blocks, a quarter": "the same, a window of 64 blocks", "stream": "stream",
        **{f"stream of {n}": f"stream, `window={n}`" for n in (32, 64, 128)},
    }  # fmt: skip
    found = results("shares")
    now, before = found["after"], found["before"]
    shares = list(now["full"])
    rows = []
    for order, name in said.items():
        pairs = [(now[order][share], before[order][share]) for share in shares]
        spreads = [f"{one['spread']:.2f} ({old['spread']:.2f})" for one, old in pairs]
        rows.append([name, *spreads, f"{pairs[0][0]['absent']} ({pairs[0][1]['absent']})"])
    head = [f"{float(share):.0%}".replace("%", " %") for share in shares]
    return grid(["order", *head, f"batches without the {head[0]}"], rows)


def _chance(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-9 else "below 1e-9"


def _memory(mebibytes: float) -> str:
    return f"{mebibytes:,.0f} MiB"


TABLES: dict[str, Callable[[], str]] = {
    "build-summary": build_summary,
    "build-tokenizers": tokenizers,
    "build-references": references,
    "build-sizes": sizes,
    "build-timeline": timeline,
    "build-scaling": scaling,
    "build-machine": machine,
    "load-summary": load_summary,
    "load-shapes": load_shapes,
    "load-types": load_types,
    "load-facts": load_facts,
    "load-first": load_first,
    "chat-summary": chat_summary,
    "rounds-sizes": rounds_sizes,
    "shares-orders": shares_orders,
}
"""Tables by name."""


NEEDED = {
    "build-summary": {"engines", "peers"},
    "build-tokenizers": {"engines"},
    "build-references": {"reference"},
    "build-sizes": {"sizes"},
    "build-timeline": {"timeline"},
    "build-scaling": {"workers", "memory", "document", "tiny"},
    "build-machine": {"machine"},
    "load-summary": {"peers"},
    "load-shapes": {"shapes"},
    "load-types": {"types"},
    "load-facts": {"cold", "start", "state", "steps"},
    "load-first": {"first"},
    "chat-summary": {"build", "map", "with_masks"},
    "rounds-sizes": {"sizes"},
    "shares-orders": {"after", "before"},
}


def rendered(text: str) -> str:
    """Return `text` with all its tables rendered again."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        file = name.partition("-")[0]
        there = results(file).keys() if (RESULTS / f"{file}.json").exists() else set()
        made = TABLES[name]() if NEEDED[name] <= there else NOT_YET
        return f"<!-- {name} -->\n{made}\n<!-- end -->"

    return _TABLE.sub(table, text)


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale = []
    for name in PAGES:
        page = ROOT / name
        old = page.read_text(encoding="utf-8")
        new = rendered(old)
        if new != old:
            stale.append(name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if check and stale:
        sys.exit(f"not what the results give: {', '.join(stale)}; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
