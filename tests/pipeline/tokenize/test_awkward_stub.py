"""The stand-in for awkward: the same ids with and without it, and never where it could harm.

Each case needs an interpreter of its own, as a worker has.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

SCRIPT = """
import json, sys
import numpy as np
from dataprep.pipeline.tokenize import awkward_stub as ragged
from dataprep.pipeline.tokenize.engines import GIGATOKEN, make_encoder
from dataprep.pipeline.tokenize.special_tokens import literal_config
from dataprep.pipeline.tokenize.load import resolve_tokenizer

CASE
engine_json = json.dumps(literal_config(json.loads(resolve_tokenizer(None).json))).encode()
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
texts = [json.loads(line)["text"].encode() for line in lines]
texts = ["", *"aé我😀", *texts, b"x" * 3_000_000, ""]
texts = [text.encode() if isinstance(text, str) else text for text in texts]
alone = make_encoder(GIGATOKEN, engine_json, alone=True)
ids, offsets = alone.encode(texts)
expected, expected_offsets = make_encoder(GIGATOKEN, engine_json).encode(texts)
assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
assert np.array_equal(ids, expected) and np.array_equal(offsets, expected_offsets)
assert [len(part) for part in alone.encode([])] == [0, 1]
print(isinstance(sys.modules["awkward"], ragged._StandIn))
"""

CASES = {
    "a fresh interpreter": ("", True),
    "awkward is there already": ("import awkward", False),
    "gigatoken wants more": ("del ragged._StandIn.unflatten", False),
    "gigatoken gives something else": (
        "ragged._StandIn.unflatten = staticmethod("
        "lambda items, counts: ragged.Ragged(items + 1, counts))",
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_same_ids(case: str) -> None:
    """Batches give what single texts give, whether the stand-in is taken or not."""
    prepare, stands_in = CASES[case]
    stories = REPOSITORY / "data_fixtures" / "stories.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("CASE", prepare), str(stories)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.lower()) is stands_in


def test_not_in_this_process() -> None:
    """Encoding in a process of the user's leaves its modules alone."""
    script = (
        "import sys, pathlib, tempfile; from dataprep.pipeline.build import build;"
        "from dataprep.pipeline.options import BuildOptions;"
        "out = pathlib.Path(tempfile.mkdtemp()) / 'out';"
        "build(BuildOptions(input=(sys.argv[1],), out=out)); assert 'awkward' not in sys.modules"
    )
    stories = REPOSITORY / "data_fixtures" / "stories.jsonl"
    subprocess.run([sys.executable, "-c", script, str(stories)], check=True)
