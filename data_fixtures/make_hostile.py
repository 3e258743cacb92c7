"""Writer of hostile/: small files that crashed a reader, or took gigabytes, or minutes.

Run it from the repository root: `python data_fixtures/make_hostile.py`. It takes 3 GB and some
minutes; its output depends on the versions of pyarrow and zstandard.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

PLACE = Path(__file__).parent / "hostile"
NULLS = 150_000_000
CELL = 256 << 20
BLANK = 256 << 20


def main() -> None:
    """Write all files."""
    PLACE.mkdir(exist_ok=True)
    nulls(PLACE / "nulls_in_a_message.parquet", "messages", pa.string(), rows=1)
    nulls(PLACE / "nulls_in_a_vector.parquet", "vector", pa.float32(), rows=1)
    nulls(PLACE / "nulls_among_vectors.parquet", "vector", pa.float32(), rows=101)
    cell = pa.table({"text": ["a" * CELL]})
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    pq.write_table(cell, PLACE / "one_cell.parquet", **options)
    lines = b'{"text": "first"}\n' + b"\n" * BLANK + b'{"text": "last"}\n'
    (PLACE / "newlines.jsonl.zst").write_bytes(zstandard.compress(lines, 3))
    headers(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), ", "open_brace.npy")
    headers(b"  {'descr': '<f4'}\n 1", "indented.npy")
    abort(PLACE / "abort.parquet")


def nulls(path: Path, column: str, kind: pa.DataType, *, rows: int) -> None:
    """Write `rows` rows; the last has `NULLS` nulls, the others are empty."""
    offsets = pa.array([0] * rows + [NULLS], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(NULLS, kind))
    pq.write_table(pa.table({column: lists}), path, compression="zstd", write_statistics=False)


def headers(header: bytes, name: str) -> None:
    """Write a .npy file with a header that Python's tokenizer does not accept."""
    size = len(header).to_bytes(2, "little")
    numbers = np.zeros((3, 2), np.float32).tobytes()
    (PLACE / name).write_bytes(b"\x93NUMPY\x01\x00" + size + header + numbers)


def abort(path: Path) -> None:
    """Return the first change of a byte that makes pyarrow abort and keeps the column of texts."""
    tags = [["x", "y"], [], None, ["z"]] * 5
    pq.write_table(pa.table({"text": [f"a story {n}" for n in range(20)], "tags": tags}), path)
    data = path.read_bytes()
    for at in range(len(data)):
        mutant = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        if aborts(mutant):
            path.write_bytes(mutant)
            return
    raise RuntimeError("this version of pyarrow aborts nowhere")


def aborts(data: bytes) -> bool:
    """Return whether pyarrow aborts the process that reads the texts of `data`."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            if file.schema_arrow.field("text").type == pa.string():
                file.metadata.row_group(0).column(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == signal.SIGABRT


if __name__ == "__main__":
    main()
