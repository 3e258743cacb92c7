"""Demo of `make demo`: text to training batches, twice, through the public commands.

    python examples/demo.py demo

The first dataset is the fixtures of this repository. The second is the largest text that every
machine with Python has: its standard library, one document per source file.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import dataprep

__all__ = ["fixtures", "main", "standard_library"]

FIXTURES = Path(__file__).resolve().parents[1] / "data_fixtures"
SHOWN = 12  # arguments of a command, before the rest is left out


def main() -> None:
    """Recreate `sys.argv[1]`, a directory that this example owns."""
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    fixtures(out / "shards")
    standard_library(out / "stdlib")


def fixtures(shards: Path) -> None:
    """Build records and blank-line blocks with the built-in tokenizer."""
    run(
        "build", "--input", FIXTURES / "stories.jsonl", "--input", FIXTURES / "notes.txt",
        "--document", "block", "--split", "train=0.9,val=0.1", "--out", shards,
    )  # fmt: skip
    run("verify", shards)
    run("inspect", shards, "--random", "1")
    show_batch(shards, batch_size=2, seq_len=16)


def standard_library(shards: Path) -> None:
    """Build real files; the few that are intentionally not UTF-8 are skipped and counted."""
    inputs = [part for pattern in source_patterns() for part in ("--input", pattern)]
    run("build", "--format", "text", "--on-error", "skip", "--out", shards, *inputs)
    run("verify", shards)
    show_batch(shards, batch_size=32, seq_len=512)


def source_patterns() -> list[str]:
    """Return globs of the standard library's Python files, without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    folders = sorted(path for path in root.iterdir() if (path / "__init__.py").is_file())
    return [str(root / "*.py"), *(str(folder / "**" / "*.py") for folder in folders)]


def show_batch(shards: Path, *, batch_size: int, seq_len: int) -> None:
    """Load the first batch, print its shapes and the start of its first row."""
    loader = dataprep.create_loader(shards, "train", batch_size=batch_size, seq_len=seq_len, seed=0)
    batch = next(iter(loader))
    print(f"\n{len(loader):,} batches an epoch; the first one:")
    for name, values in batch.items():
        print(f"  {name:10} {values.dtype} {list(values.shape)}  {values[0, :8].tolist()} ...")
    text = dataprep.open_dataset(shards).decode(batch["input_ids"][0][:16].numpy())
    print(f"  which begins {text!r}\n", flush=True)


def run(*arguments: str | Path) -> None:
    """Print one dataprep command and run it."""
    words = [str(argument) for argument in arguments]
    shown = shlex.join(words[:SHOWN])
    more = f" ... and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    print(f"$ dataprep {shown}{more}", flush=True)
    subprocess.run([sys.executable, "-m", "dataprep.cli.main", *words], check=True)


if __name__ == "__main__":
    main()
