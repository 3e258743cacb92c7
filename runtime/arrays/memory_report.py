"""How much memory a dataset takes: what is mapped, how much of that is resident, what is held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryReport", "resident_bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """Bytes of one process."""

    files: int
    """Size of the files that batches are gathered from; costs addresses, and no memory."""
    resident: int | None
    """Pages of them in this process now. They are the page cache's: shared with every process, and
    dropped where memory is short. None where the system does not tell (/proc/self/smaps)."""
    held: int
    """Tables and negatives in memory of this process, or of the device."""


def resident_bytes(directory: Path) -> int | None:
    """Bytes of the files below `directory` that are mapped and resident in this process.

    Costs milliseconds: the kernel counts the pages of every map.
    """
    inside = f"{directory}/".encode()
    total, counts = 0, False
    try:
        with Path("/proc/self/smaps").open("rb") as lines:
            for line in lines:
                if line.startswith(b"Rss:"):
                    total += int(line.split()[1]) << 10 if counts else 0
                elif b"-" in line.split(b" ", 1)[0]:
                    counts = inside in line
    except OSError:
        return None
    return total
