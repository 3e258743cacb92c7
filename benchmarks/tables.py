"""The tables of the README and the docs, from the committed results.

    python benchmarks/tables.py            rewrite them
    python benchmarks/tables.py --check    say whether they are what the results give

A table stands between `<!-- NAME -->` and `<!-- end -->`. So no figure is copied by hand, and a
test can tell that none is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/speed.md")
_TABLE = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

NOT_YET = "Not measured for this version yet."
PEER_NAMES = {
    "megatron": "Megatron's `preprocess_data` loop",
    "datatrove": "datatrove",
    "litdata": "LitData",
    "hf_datasets": "`datasets.map` and a memmap",
    "mds": "MosaicML's `MDSWriter`",
}


def results(name: str) -> dict[str, Any]:
    """One file of committed results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def build_summary() -> str:
    """For the README: this package against the shortest script and against peers."""
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
    """Paired with the one-liner, or with the reference library alone."""
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


def references() -> str:
    """Tokenizers that only the reference library takes."""
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
    """Workers, sizes, one large document, start-up."""
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


def machine() -> str:
    """What it was measured on."""
    found = results("build")["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"Measured on {found['cores']} cores of {found['processor']}, Python {found['python']}, "
        f"{versions}; {found['corpus_megabytes']:,} MB of JSONL: English documentation and books,"
        " 69 MB, repeated with ids of their own."
    )


def _memory(mebibytes: float) -> str:
    return f"{mebibytes:,.0f} MiB"


TABLES: dict[str, Callable[[], str]] = {
    "build-summary": build_summary,
    "build-tokenizers": tokenizers,
    "build-references": references,
    "build-scaling": scaling,
    "build-machine": machine,
}


NEEDED = {
    "build-summary": {"engines", "peers"},
    "build-tokenizers": {"engines"},
    "build-references": {"reference"},
    "build-scaling": {"workers", "memory", "document", "tiny"},
    "build-machine": {"machine"},
}


def rendered(text: str) -> str:
    """`text` with all its tables made anew."""
    there = results("build").keys() if (RESULTS / "build.json").exists() else set()

    def table(match: re.Match[str]) -> str:
        name = match["name"]
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
