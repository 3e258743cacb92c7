"""The second step of a build of pairs: a vector for each distinct text, given or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError, UsageError

from ..staging.checkpoints import Kept
from .merge import Pairs
from .options import PairOptions
from .prepare import Inputs
from .search import Floats
from .vectors import CHUNK, Encoder, as_stored, encode, read_vectors

__all__ = ["Embedding", "Vectors", "encoder_is_needed"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vectors:
    """As they are written, [n, dim] each, float32 or float16."""

    questions: Array
    sources: Array
    keywords: Array

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self.questions.shape[1])


def encoder_is_needed(options: PairOptions, inputs: Inputs, pairs: Pairs) -> bool:
    """Return whether texts have no vectors; raise `UsageError` if nothing makes any either."""
    needed = {
        what: len(words)
        for what, words in _texts(pairs).items() if words and f"{what}_embs" not in inputs.others
    }  # fmt: skip
    if options.encoder is None:
        for what, count in needed.items():
            leave_out = ", or leave them out with --keywords ignore" if what == "keyword" else ""
            raise UsageError(
                f"there are {count} distinct {what}s and nothing that makes vectors of them",
                where=f"--{what}-embs", remedy=f"Give it, or an --encoder{leave_out}.",
            )  # fmt: skip
    return bool(needed)


def _texts(pairs: Pairs) -> dict[str, list[str]]:
    return {"question": pairs.questions, "source": pairs.sources, "keyword": pairs.keywords}


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """How vectors come about. What the encoder makes is kept, some thousand texts at a time."""

    options: PairOptions
    inputs: Inputs
    encoder: Encoder | None
    kept: Kept
    tell: Callable[[int, int], None]

    def of(self, pairs: Pairs) -> Vectors:
        """The vectors of all texts of `pairs`."""
        texts = _texts(pairs)
        found: dict[str, Array] = {}
        done, total = 0, sum(map(len, texts.values()))
        for what, words in texts.items():
            dim = found["question"].shape[1] if found else self.options.dim
            found[what] = self._all(what, words, dim, partial(self._tell, done, total))
            done += len(words)
            self.tell(done, total)
        return Vectors(
            questions=found["question"], sources=found["source"], keywords=found["keyword"]
        )

    def _tell(self, before: int, total: int, done: int) -> None:
        self.tell(before + done, total)

    def _all(
        self, what: str, texts: list[str], dim: int | None, say: Callable[[int], None]
    ) -> Array:
        source = self.inputs.others.get(f"{what}_embs")
        options = self.options
        if not texts:
            made = np.empty((0, dim or 0), np.float32)
        elif source is not None:
            columns = options.vector_columns()
            made = read_vectors(source, texts, what, columns, fold=what == "keyword")
        else:
            parts = []
            for start in range(0, len(texts), CHUNK):
                parts.append(self._chunk(what, texts, start))
                say(start + len(parts[-1]))
            made = np.concatenate(parts)
        if dim is not None and made.shape[1] != dim:
            expected = "--dim says" if what == "question" else "those of questions"
            raise InputError(
                f"the vectors of {what}s have {made.shape[1]} numbers, {expected} {dim}",
                where=source.name if source else f"--encoder {options.encoder}", code="E_DIM",
                remedy="Make all embeddings with one encoder.",
            )  # fmt: skip
        return as_stored(made, texts, what, dtype=options.dtype, normalise=options.normalise)

    def _chunk(self, what: str, texts: list[str], start: int) -> Floats:
        encoder, size = cast("Encoder", self.encoder), self.options.batch_size
        chunk, name = texts[start : start + CHUNK], self.options.encoder or ""

        def make() -> Floats:
            return encode(encoder, chunk, what, batch_size=size, name=name)

        return self.kept.array(f"{what}-{start:012d}", make)
