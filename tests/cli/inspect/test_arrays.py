"""`dataprep inspect` and `dataprep verify` of embeddings and pairs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.cli import main
from dataprep.formats.manifest import arrays as array_manifest
from tests.scenes.contents import content_ids
from tests.scenes.verified import put, reseal
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "data_fixtures" / "golden" / "v1"
VECTORS, PAIRS = GOLDEN / "embeddings", GOLDEN / "pairs"
EXPECTED = json.loads((GOLDEN / "embeddings.expected.json").read_text())


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a successful `dataprep inspect` prints."""
    assert main.run(["inspect", *map(str, arguments)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_the_table_shows_every_array_and_fact(capsys: pytest.CaptureFixture[str]) -> None:
    """Type, shape, bytes, first rows, splits, categories, rejects, inputs."""
    printed = inspect(capsys, VECTORS)
    for line in (
        r"embedding +float32 +14 x 8 +12.7 kB +length 1 \(unit\)",
        r"brain +bfloat16 +14 x 8 +8.4 kB +length 0.99\d+ to 1.00\d+ \(unit\)",
        r"small +int8 x small_scale +14 x 8 +4.2 kB +length 0.99",
        r"label +int64 +14 +4.2 kB +cat, cat, fish",
        r"byte +uint8 +14 x 2 x 3 +4.2 kB",
        r"kind +embeddings, 14 rows",
        r"splits +train 9, val 5",
        r"label +3 categories: cat, dog, fish",
        r"rejected +1 not_finite",
        r"inputs +vectors.parquet: parquet, 1.0 kB, 15 records",
    ):
        assert re.search(line, printed), line
    assert re.search(r"steering_residual +float32 +18 x 8 +4.7 kB", inspect(capsys, PAIRS))


def test_rows_come_with_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Decoded: texts of labels, numbers of bfloat16 and int8; long vectors cut unless asked."""
    printed = inspect(capsys, VECTORS, "--split", "val", "--document", "1")
    assert "val[1]  row 3, from vectors.parquet at row 4\n" in printed
    assert re.search(rf"label +{EXPECTED['arrays']['label'][3]}\n", printed)
    assert printed.count("… (8)]") == 4
    assert "…" not in inspect(capsys, VECTORS, "--document", "0", "--full").partition("train[0]")[2]
    found = json.loads(
        inspect(capsys, VECTORS, "--split", "val", "--document", "1", "--json")
    )["documents"][0]  # fmt: skip
    assert (found["row"], found["input"], found["position"]) == (3, "vectors.parquet", 4)
    for name in ("embedding", "half", "brain", "label", "flag", "byte"):
        assert found["values"][name] == EXPECTED["arrays"][name][3]
    scaled = np.array(EXPECTED["arrays"]["small"][3]) * EXPECTED["arrays"]["small_scale"][3]
    np.testing.assert_allclose(found["values"]["small"], scaled, rtol=1e-6)


def test_json_has_everything_in_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Kind, arrays, splits, what holds for pairs; random rows are seeded and distinct."""
    found = json.loads(inspect(capsys, PAIRS, "--json", "--random", "99", "--seed", "1"))
    assert (found["kind"], found["rows"], found["splits"]["val"]["rows"]) == ("pairs", 18, 6)
    assert found["splits"]["val"]["content_id"] == content_ids(PAIRS)["val"]
    assert found["pairs"] == {"dim": 8, "negatives": 4, "clusters": 3}
    table = found["arrays"]["source_embs"]
    assert (table["dtype"], table["shape"], table["table"]) == ("<f4", [20, 8], True)
    assert (table["bytes"], table["shards"]) == (8832, 2)
    assert found["bytes"] == sum(path.stat().st_size for path in PAIRS.rglob("*.*"))
    assert sorted(row["document"] for row in found["documents"]) == list(range(12))
    assert "source_embs" not in found["documents"][0]["values"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--document", "9"], "split train has 9 rows, numbered from 0; there is no 9"),
        (["--document", "-1"], "there is no -1"),
        (["--split", "dev"], "only train, val"),
        (["--ids"], "only datasets of tokens have ids"),
    ],
)
def test_what_is_not_there(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error that says what is."""
    assert main.run(["inspect", str(VECTORS), *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and said in shown.err


def test_verify_prints_rows_and_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The totals of a sound dataset; file, row, value and limit of a wrong number."""
    assert main.run(["verify", str(PAIRS), "--quiet", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["rows"], report["arrays"]) == ("pairs", 18, 16)
    assert main.run(["verify", str(PAIRS)]) == 0
    assert "ok (level full: 21 files, 84.7 kB, 18 rows, 16 arrays," in capsys.readouterr().out
    path = Path(shutil.copytree(PAIRS, tmp_path / "pairs"))
    put(path, array_manifest.load(path), "hard_negatives", 7, 1, 20)
    reseal(path)
    assert main.run(["verify", str(path)]) == 3
    shown = capsys.readouterr()
    assert shown.err == (
        "dataprep: error[E_RANGE] hard_negatives/00000.npy: row 7[1] is 20, must be at least 0 and "
        "below 20 (rows of source_embs). Restore this file, or build again with --overwrite.\n"
    )
    assert "1 finding, NOT what was built" in shown.out
