"""What several threads may be the first to use, in a process that has just started.

msgspec 0.22 gets ready for a type when it is first decoded; another thread that comes then finds it
half ready, and the process dies of SIGSEGV: once in some thousand resumed builds. Here the threads
change every microsecond, and it was every tenth process.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from dataprep.pipeline.execute.task import RESULT_NAME, unit_name
from dataprep.pipeline.own_files import seal
from dataprep.pipeline.tokens.task import TokenResult
from tests.support import REPOSITORY

PROCESSES = 60
_SCRIPT = """
import os, sys, threading
from {module} import {name} as load
from pathlib import Path
import msgspec
from dataprep.pipeline.tokens.task import TokenResult

decoder = msgspec.json.Decoder(TokenResult)  # made in one thread, as a build makes it

def together(barrier):
    barrier.wait()
    load({arguments})

def child():
    sys.setswitchinterval(1e-6)
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=together, args=(barrier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

for _ in range({processes}):
    process = os.fork()
    if process == 0:
        child()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def ends(module: str, name: str, arguments: str) -> Counter[str]:
    """How processes end whose first four threads call a function at once."""
    script = _SCRIPT.format(module=module, name=name, arguments=arguments, processes=PROCESSES)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return Counter(done.stdout.split())


def test_results_of_units(tmp_path: Path) -> None:
    """Threads that check the units of a killed build do not crash it."""
    result = TokenResult(
        number=0, pieces=(), spans=(), rejected={}, rejects_sha256="", special_text_found={},
        unknown_tokens=0,
    )  # fmt: skip
    folder = tmp_path / unit_name(0)
    folder.mkdir()
    (folder / RESULT_NAME).write_bytes(seal(msgspec.json.encode(result)))
    arguments = f"Path({str(tmp_path)!r}), 0, decoder"
    found = ends("dataprep.pipeline.staging.checkpoints", "load_result", arguments)
    assert found == {"0": PROCESSES}


def test_manifests() -> None:
    """Threads of a trainer that open datasets do not crash it."""
    path = str(REPOSITORY / "data_fixtures/golden/v1/narrow")
    found = ends("dataprep.formats.manifest.tokens", "load", f"Path({path!r})")
    assert found == {"0": PROCESSES}
