"""What is sound passes at every level; what verify is asked for, and what it reports."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError, InputError, IntegrityError, UsageError
from dataprep.formats.manifest.tokens import CONFIG_NAME, CRC_NAME
from dataprep.formats.verify import reader as verify_plan
from dataprep.formats.verify import report as verify_report
from dataprep.formats.verify.verify import Finding, verify
from tests.scenes.datasets import EOS_ID, make_dataset, random_split
from tests.scenes.verified import LEVELS, codes, files_of, small
from tests.support import examples

# Sound datasets


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [257, 70_000])
@pytest.mark.parametrize("add_eos", [False, True])
def test_a_sound_dataset_passes(
    tmp_path: Path, level: verify_report.Level, vocab_size: int, add_eos: bool
) -> None:
    """Every level, both widths, with and without EOS; the report has the totals."""
    path = small(tmp_path, vocab_size=vocab_size, add_eos=add_eos)
    report = verify(path, level)
    assert report.findings == ()
    assert report.ok and report.exit_code == 0
    assert report.documents == 6
    assert report.tokens == 152 + 6 * add_eos
    assert report.files == len(files_of(path))
    assert report.bytes == sum((path / name).stat().st_size for name in files_of(path))
    assert report.config_sha256 == hashlib.sha256((path / CONFIG_NAME).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "splits", [{}, {"train": []}, {"train": [[]]}, {"train": [[[]]]}, {"train": [[[1]], [], [[2]]]}]
)
def test_small_shapes_pass(tmp_path: Path, splits: Mapping[str, Sequence[Any]]) -> None:
    """No split, no shard, no document, an empty document, an empty shard between others."""
    assert verify(make_dataset(tmp_path / "shards", splits)).findings == ()


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=4), st.booleans())
def test_any_lengths_pass(tmp_path: Path, lengths: list[list[int]], add_eos: bool) -> None:
    """Whatever the lengths of the documents, what was written is found sound."""
    shutil.rmtree(tmp_path / "shards", ignore_errors=True)
    path = make_dataset(tmp_path / "shards", {"train": random_split(lengths)}, add_eos=add_eos)
    assert verify(path).findings == ()


def test_many_documents_over_many_chunks(tmp_path: Path) -> None:
    """Offsets, EOS and ids are followed across read boundaries: 300,000 documents, 2 MiB of ids."""
    lengths = np.random.default_rng(0).integers(0, 7, 300_000).tolist()
    path = make_dataset(tmp_path / "shards", {"train": random_split([lengths])}, add_eos=True)
    assert verify(path).findings == ()
    with (path / "train/tokens-00000.bin").open("r+b") as stream:
        ids = np.fromfile(stream, "<u2")
        at = int(np.flatnonzero(ids == EOS_ID)[-7])
        stream.seek(2 * at)
        stream.write(b"\0\0")
    (finding,) = verify(path, "structure").findings
    assert (finding.code, finding.start, finding.stop) == ("E_EOS", 2 * at, 2 * at + 2)


def test_progress_ends_at_the_total(dataset: Path) -> None:
    """The bytes read only grow, and end at what was promised."""
    calls: list[tuple[int, int]] = []
    report = verify(dataset, progress=lambda done, total: calls.append((done, total)))
    config = (dataset / CONFIG_NAME).stat().st_size
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (report.bytes - config, report.bytes - config)


@pytest.mark.parametrize("quick", [False, True])
def test_an_interrupt_stops_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """An exception in the caller's thread or callback ends the run; no thread goes on."""
    monkeypatch.setattr(verify_plan, "_QUICK_BYTES", 1 << 20 if quick else 0)
    path = make_dataset(tmp_path / "shards", {"train": random_split([[5]] * 100)})
    crc_bytes = (path / CRC_NAME).stat().st_size
    names: list[str] = []

    def interrupt(done: int, total: int) -> None:
        if done > crc_bytes:  # which the caller's thread reads first
            names.append(threading.current_thread().name)
            time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(path, workers=2, progress=interrupt)
    assert names[0].startswith("dataprep-verify") != quick
    assert len(names) < 50  # of the 100 shards, most were not begun
    assert not [one for one in threading.enumerate() if one.name.startswith("dataprep-verify")]


def test_nothing_heavy_is_imported(dataset: Path) -> None:
    """Neither torch nor a tokenizer library is loaded, whatever the level."""
    program = (
        "import sys; from dataprep import verify; assert verify(sys.argv[1]).ok;"
        "print(*{'torch', 'tokenizers', 'gigatoken', 'pyarrow', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(dataset)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_report_prints_as_json(dataset: Path) -> None:
    """as_dict has plain values only, findings included."""
    (dataset / "val_idx.pt").unlink()
    loaded = json.loads(json.dumps(verify(dataset).as_dict()))
    assert loaded["findings"][0]["where"] == "val_idx.pt"
    assert loaded["ok"] is False and loaded["exit_code"] == 3


# Arguments


def test_pinning_config_json(dataset: Path) -> None:
    """The digest of one run is accepted in the next; any other is a finding."""
    digest = f"sha256:{verify(dataset, 'stat').config_sha256}"
    assert verify(dataset, "stat", expect=digest).ok
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    assert codes(verify(dataset, "stat", expect=other)) == {("E_PIN", CONFIG_NAME)}


@pytest.mark.parametrize("expect", ["", "sha256:", "sha256:xyz", "md5:" + "0" * 64, "0" * 64])
def test_a_pin_that_means_nothing_is_refused(dataset: Path, expect: str) -> None:
    """A mistyped digest is the caller's mistake."""
    with pytest.raises(UsageError, match="sha256"):
        verify(dataset, expect=expect)


def test_an_unknown_level_is_refused(dataset: Path) -> None:
    """Levels have three names."""
    with pytest.raises(UsageError, match="stat, structure or full"):
        verify(dataset, "deep")  # type: ignore[arg-type]


def test_an_unusable_manifest_raises(dataset: Path, tmp_path: Path) -> None:
    """Without a manifest there is nothing to compare with."""
    with pytest.raises(InputError):
        verify(tmp_path / "nothing")
    (dataset / CONFIG_NAME).write_bytes(b"{}")
    with pytest.raises(IntegrityError):
        verify(dataset)
    (dataset / CONFIG_NAME).unlink()
    with pytest.raises(IntegrityError, match="not a finished dataset"):
        verify(dataset)


def test_reports_combine(dataset: Path) -> None:
    """Findings of other checks join in, and the gravest exit code wins."""
    report = verify(dataset, "stat")
    changed = Finding(code="E_TOKENIZER_CHANGED", file="tokenizer.json", problem="x", exit_code=6)
    joined = report.adding([changed], ["a note"])
    assert not joined.ok and joined.exit_code == 6
    assert "a note" in joined.notes
    assert joined.adding([replace(changed, exit_code=3)]).exit_code == 3
    assert issubclass(IntegrityError, DataprepError)
