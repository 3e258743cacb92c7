"""The reference library, Hugging Face `tokenizers`: it loads and runs any tokenizer.json.

The ids of every other engine are compared with its ids (see `engines`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dataprep.formats.errors import InputError
from dataprep.formats.library_errors import is_failure, rust_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "Encoded",
    "Reference",
    "ReferenceEngine",
    "encoding_errors",
    "load_reference",
    "offsets_of",
]

_SHOWN = 80  # characters

Encoded = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""Concatenated ids of texts, and the offsets at which the ids of each text begin and end."""


def offsets_of(counts: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the int64 array ``[0, counts[0], counts[0] + counts[1], ...]``.

    If consecutive rows have `counts` items, these are the offsets at which the rows begin and end.
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


class _LoadedTokenizers:
    """The engine tokenizers (https://github.com/huggingface/tokenizers).

    It is made from a tokenizer that is loaded already.
    """

    batch_bytes = 1 << 20  # its encodings take about a hundred bytes of memory per token

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        decoded = [text.decode() for text in texts]
        with encoding_errors(self._tokenizer, decoded):
            encoded = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        parts = [np.array(one.ids, np.uint32) for one in encoded]
        return np.concatenate([np.empty(0, np.uint32), *parts]), offsets_of(list(map(len, parts)))

    def spread(self, threads: int) -> None:
        """Set the environment variables by which `tokenizers` chooses its number of threads.

        It reads TOKENIZERS_PARALLELISM at each call, but RAYON_NUM_THREADS only once.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        os.environ["RAYON_NUM_THREADS"] = str(threads)


class ReferenceEngine(_LoadedTokenizers):
    """The engine tokenizers, made from a tokenizer.json that is prepared for encoding."""

    def __init__(self, engine_json: bytes) -> None:
        super().__init__(load_reference(engine_json))


class Reference:
    """The user's tokenizer, as `tokenizers` loads it, and the ids that it gives to texts.

    A thread calls `load` to load it and encodes `texts`, while the process waits for another engine
    that a worker loads. The library works mostly without the interpreter lock.
    """

    def __init__(self, load: Callable[[], Tokenizer], texts: Sequence[bytes]) -> None:
        self._load, self._texts = load, texts
        self._tokenizer: Tokenizer | None = None
        self._encoded: Encoded | None = None
        self._error: BaseException | None = None
        # Not a daemon: an interpreter that ends would stop one inside the library, which crashes.
        self._thread = threading.Thread(target=self._run, name="reference tokenizer")
        self._thread.start()

    def tokenizer(self) -> Tokenizer:
        """Return the loaded tokenizer. Raise the error of `load` if it failed."""
        self._thread.join()
        if self._tokenizer is None:
            raise self._error or RuntimeError("the tokenizer was not loaded")
        return self._tokenizer

    def encoded(self) -> Encoded:
        """Return the ids of the texts. Raise the error of the library if it failed."""
        self._thread.join()
        if self._encoded is None:
            raise self._error or RuntimeError("the texts were not encoded")
        return self._encoded

    def _run(self) -> None:
        try:
            self._tokenizer = self._load()
            if self._texts:
                self._tokenizer.no_truncation()
                self._tokenizer.no_padding()
                self._encoded = _LoadedTokenizers(self._tokenizer).encode(self._texts)
        except BaseException as error:
            self._error = error


def load_reference(tokenizer_json: bytes, where: str = "--tokenizer") -> Tokenizer:
    """Return a `tokenizers.Tokenizer` for `tokenizer_json`.

    Raise `InputError` about `where` if the library cannot load it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and forks do not mix
    from tokenizers import Tokenizer

    with rust_errors(partial(_not_loaded, where)):
        return Tokenizer.from_buffer(tokenizer_json)


def encoding_errors(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that turns a failure of `tokenizer` into an `InputError`.

    The error message quotes the first of `texts` that the tokenizer cannot encode.
    """
    return rust_errors(partial(_not_encoded, tokenizer, texts))


def _not_loaded(where: str, reason: str) -> InputError:
    return InputError(
        f"the tokenizers library cannot load it ({reason})", where=where, code="E_TOKENIZER",
        remedy="Download it again, or update tokenizers if the file is newer.",
    )  # fmt: skip


def _not_encoded(tokenizer: Tokenizer, texts: Sequence[str], reason: str) -> InputError:
    """Return the error about the first of `texts` that the library cannot encode.

    The argument `reason` is the library's message.
    """
    failing = next((text for text in texts if _fails(tokenizer, text)), "")
    return InputError(
        f"the tokenizers library fails on {failing[:_SHOWN]!r} ({reason})",
        where="--tokenizer", code="E_TOKENIZER",
        remedy="Leave the text out, or mend the split pattern in the tokenizer.json.",
    )  # fmt: skip


def _fails(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text)
    except BaseException as error:
        if not is_failure(error):
            raise
        return True
    return False
