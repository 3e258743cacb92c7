"""examples/reader.c, compiled: the test vectors, and batches equal to those of `create_loader`.

Skipped where there is no C compiler. Big-endian machines are out of its scope.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep import create_loader
from dataprep.formats.read.dataset import open_dataset
from tests.scenes.datasets import make_dataset, random_split
from tests.support import REPOSITORY

SOURCE = REPOSITORY / "examples" / "reader.c"
GOLDEN = REPOSITORY / "data_fixtures" / "golden" / "v1"
VECTORS = REPOSITORY / "data_fixtures" / "vectors.json"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2")
SANITIZED = (*STRICT[:-1], "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SECTIONS = {
    "keys", "permutations", "blocks", "skips", "digests", "schedules", "mixtures", "ranks",
    "packing", "splits", "steering", "content_ids", "canonical", "crc_tables",
}  # fmt: skip

Reader = Callable[..., "subprocess.CompletedProcess[str]"]


def compiled(out: Path, flags: tuple[str, ...]) -> Reader:
    """The program, or a skipped test where it cannot be made."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) is installed")
    done = subprocess.run(
        [compiler, *flags, "-o", str(out), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode and flags is SANITIZED and "error: " not in done.stderr:
        pytest.skip("this compiler links no sanitizers")
    assert done.returncode == 0, done.stderr

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(out), *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return compiled(tmp_path_factory.mktemp("reader") / "reader", STRICT)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return compiled(tmp_path_factory.mktemp("sanitized") / "reader", SANITIZED)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 32-bit ids with a loss mask, and an empty document in each."""
    shards = random_split([[40, 0, 7], [5, 90, 0], [0, 61]], vocab_size=70_000, seed=3)
    masks = [[ids % 3 > 0 for ids in shard] for shard in shards]
    path = tmp_path_factory.mktemp("sharded") / "shards"
    return make_dataset(path, {"train": shards}, vocab_size=70_000, masks={"train": masks})


def batches(path: Path, seed: int, epoch: int, batch: int, seq_len: int, **more: Any) -> Any:
    """What `create_loader` serves in that epoch: rows of ids and labels, and the definition."""
    loader = create_loader(
        path, "train", batch, seq_len=seq_len, seed=seed, epoch=epoch, rows="windows", **more
    )
    found = [
        [list(map(str, row)) for pair in zip(ids["input_ids"], ids["labels"], strict=True)
         for row in (pair[0].tolist(), pair[1].tolist())]
        for ids in loader
    ]  # fmt: skip
    return found, loader.state_dict()["order"]


def rows(printed: str) -> list[list[str]]:
    return [line.split(" ") for line in printed.splitlines()]


def test_it_computes_the_vectors(reader: Reader) -> None:
    """All sections but those that need what a reader of tokens does not."""
    done = reader("--vectors", VECTORS)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(": ") for line in done.stdout.splitlines()]
    assert {name for name, found in lines if found.endswith(" agree")} == SECTIONS


def test_it_notices_a_vector_that_differs(reader: Reader, tmp_path: Path) -> None:
    """One digit of one number is enough."""
    text = VECTORS.read_text("ascii")
    at = text.index('"samples":[', text.index('"n":1000,')) + len('"samples":[')
    changed = text[:at] + str((int(text[at]) + 1) % 10 or 1) + text[at + 1 :]
    (tmp_path / "vectors.json").write_text(changed)
    done = reader("--vectors", tmp_path / "vectors.json")
    assert done.returncode == 1
    assert done.stderr.startswith("reader: vector of permutations: ")


@pytest.mark.parametrize("name", ["narrow", "wide", "chat"])
def test_it_prints_the_batches_of_the_golden_datasets(name: str, reader: Reader) -> None:
    """Ids of both types, and labels under a loss mask."""
    for seed, epoch, batch, seq_len in ((0, 0, 3, 20), (7, 2, 5, 9), ((1 << 63) - 1, 1, 2, 33)):
        expected, _ = batches(GOLDEN / name, seed, epoch, batch, seq_len)
        assert len(expected) > 1
        for step in (0, len(expected) - 1):
            done = reader(GOLDEN / name, "train", seed, epoch, step, batch, seq_len)
            assert (done.returncode, done.stderr) == (0, "")
            assert rows(done.stdout) == expected[step]
    after = reader(GOLDEN / name, "train", 0, 0, len(expected), 2, 33)
    assert (after.returncode, after.stdout) == (1, "")


def test_it_reads_over_the_ends_of_shards(sharded: Path, sanitized: Reader) -> None:
    """Every step of an epoch, under sanitizers; also in blocks."""
    expected, _ = batches(sharded, 5, 1, 2, 8)
    found = [rows(sanitized(sharded, "train", 5, 1, step, 2, 8).stdout) for step in range(12)]
    assert found == expected
    assert any("-100" in row for row in found[0])
    expected, order = batches(sharded, 5, 1, 2, 8, shuffle="blocks")
    sizes = order["block"], order["window"]
    done = sanitized(sharded, "train", 5, 1, 3, 2, 8, *sizes)
    assert (rows(done.stdout), done.stderr) == (expected[3], "")


def test_sanitizers_find_nothing_in_the_vectors(sanitized: Reader) -> None:
    done = sanitized("--vectors", VECTORS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: (path / "config.json").unlink(), "cannot be opened"),
        (lambda path: replaced(path / "config.json", b'"seed": 0', b'"seed": 1'), "is damaged"),
        (lambda path: replaced(path / "train/tokens-00001.bin", b"", b"\0"), "bytes, not those"),
        (lambda path: flipped(path / "train/tokens-00001.bin"), "content id"),
        (lambda path: flipped(path / "train/docs-00001.npy"), "docs-00001.npy"),
        (lambda path: flipped(path / "train/mask-00002.npy"), "content id"),
    ],
)
def test_it_refuses_damage(
    change: Callable[[Path], None], said: str, sharded: Path, reader: Reader, tmp_path: Path
) -> None:
    """One line on stderr and exit code 1."""
    copy = tmp_path / "copy"
    shutil.copytree(sharded, copy)
    change(copy)
    done = reader(copy, "train", 0, 0, 0, 2, 8)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def replaced(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def test_no_config_makes_it_misbehave(sharded: Path, sanitized: Reader, tmp_path: Path) -> None:
    """Cut, changed and doubled pieces of a config.json whose own digest is right again."""
    copy, draw, ends = tmp_path / "copy", random.Random(1), set()
    shutil.copytree(sharded, copy)
    text = (sharded / "config.json").read_bytes()
    for _ in range(30):
        at, length = draw.randrange(len(text) - 90), draw.randrange(1, 40)
        piece = draw.choice([b"", b"[", b"}", b'"', b"9" * 25, b"\\u12", b"\0", b"null", b"7"])
        changed = text[:at] + piece + text[at + length * draw.randrange(2) :]
        digits = changed.rindex(b'"', 0, -4) + 1
        zeroed = changed[:digits] + b"0" * 64 + changed[digits + 64 :]
        sound = hashlib.sha256(zeroed).hexdigest().encode()
        (copy / "config.json").write_bytes(zeroed[:digits] + sound + zeroed[digits + 64 :])
        done = sanitized(copy, "train", 0, 0, 0, 2, 8)
        ends.add((done.returncode, done.stderr[:8]))
        assert done.stderr.count("\n") == done.returncode, done.stderr
    assert ends == {(0, ""), (1, "reader: ")}


def test_other_features_are_refused(reader: Reader) -> None:
    """A dataset of preferences is not one of windows."""
    done = reader(GOLDEN / "answers", "train", 0, 0, 0, 2, 8)
    assert (done.returncode, done.stderr.count("needs the feature preference")) == (1, 1)
    with open_dataset(GOLDEN / "answers") as dataset:
        assert "preference" in dataset.manifest.required_features
