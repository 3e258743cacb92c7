"""A look at the inputs before the work: what the engines are compared on, and estimates made from.

The first records of up to eight units, evenly spread; a fraction of a second whatever the size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dataprep.pipeline.inputs import Source
from dataprep.pipeline.plan import Unit
from dataprep.pipeline.readers import ReadOptions, SpanReader

__all__ = ["Sample", "take_sample"]

_PLACES = 8


@dataclass(kw_only=True, slots=True)
class Sample:
    """`texts`, and how many stored bytes, records and bytes of text they stand for."""

    texts: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    rejects: int = 0
    seconds: float = 0.0
    """What reading and parsing it took."""

    def excerpts(self, count: int, characters: int) -> list[str]:
        """At most `count` texts from all over the sample, cut to `characters`."""
        step = max(1, len(self.texts) // count)
        return [text[:characters] for text in self.texts[::step][:count]]


def take_sample(
    sources: Sequence[Source], units: Sequence[Unit], read: ReadOptions, block_bytes: int
) -> Sample:
    """Read about `block_bytes` at each of up to eight places."""
    sample = Sample()
    started = time.perf_counter()
    step = max(1, len(units) // _PLACES)
    for unit in units[::step][:_PLACES]:
        span, source = unit.spans[0], sources[unit.spans[0].source]
        reader = SpanReader(
            source, span, read, first_row=unit.first_rows[0], block_bytes=block_bytes
        )
        batches = reader.batches()
        for batch in batches:
            sample.texts += batch.texts
            sample.documents += len(batch.texts)
            sample.rejects += len(batch.rejects)
            sample.stored_bytes += batch.consumed if not source.compression else 0
            if batch.texts:
                break
        sample.stored_bytes += reader.stored_bytes
        batches.close()  # type: ignore[attr-defined]
    sample.seconds = time.perf_counter() - started
    sample.text_bytes = sum(len(text.encode()) for text in sample.texts)
    return sample
