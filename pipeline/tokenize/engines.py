"""The two tokenizer engines, and the choice between them.

gigatoken is 50 to 100 times faster than Hugging Face `tokenizers`, but covers only BPE.
`tokenizers` is the reference and covers everything. gigatoken is used only if it loads the
tokenizer and gives the same ids as the reference for a sample of the input and for the probe
strings (see `probes`). Otherwise the reference is used, and the reason is stored in the manifest.
Even with gigatoken, a text with a character that the two may treat differently (see `suspects`) is
encoded by the reference. A build uses several processes, so an engine normally runs on one core. It
uses threads only if fewer units (parts of the input) than cores remain.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from dataprep.formats.errors import IncompatibleError, InputError
from dataprep.formats.library_errors import is_failure, reason_of

from .awkward_stub import Ragged, install_stand_in, remove_stand_in
from .reference import Encoded, Reference, ReferenceEngine, offsets_of
from .suspects import COMPARED, Suspects, suspects_of

__all__ = [
    "BUILT_IN",
    "GIGATOKEN",
    "TOKENIZERS",
    "Doubt",
    "EarlyEngine",
    "Encoder",
    "EngineChoice",
    "PreEncoded",
    "choose_engine",
    "encode_or_problem",
    "library_versions",
    "load_gigatoken",
    "make_encoder",
    "naming",
]

GIGATOKEN: Literal["gigatoken"] = "gigatoken"
TOKENIZERS: Literal["tokenizers"] = "tokenizers"

_MISREAD = re.compile(rb"\{[0-9]*,?[0-9]*\}\+")

Doubt = Callable[[], str | None]
"""Comparison that is still to be made; returns what is wrong with the engine, or None."""
BUILT_IN = "built-in"
"""Name of the tokenizer that comes with the package."""


@contextlib.contextmanager
def naming(tokenizer: str | None) -> Iterator[None]:
    """Name the tokenizer in place of ``--tokenizer`` in each `InputError` raised in the block.

    If `tokenizer` is None, the name is "built-in".
    """
    try:
        yield
    except InputError as error:
        if error.where == "--tokenizer":
            error.where = tokenizer or BUILT_IN
        raise


class Encoder(Protocol):
    """Interface of engines, which encode batches of UTF-8 texts without adding BOS and EOS.

    An engine encodes fastest in batches of about `batch_bytes` bytes.
    """

    batch_bytes: int

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Return the concatenated ids of all texts, and the offset at which each text's ids begin.

        The ids are uint32. The offsets are int64 [texts + 1]: the last one is the number of ids.
        """

    def spread(self, threads: int) -> None:
        """Allow the engine to encode with up to `threads` threads from now on.

        An engine ignores this if threads would not make it faster.
        """


class _Gigatoken:
    """Engine gigatoken (https://github.com/marcelroed/gigatoken), encoding one document at a time.

    It is meant for samples and small inputs, because it needs no slow import.
    """

    batch_bytes = 2 << 20

    def __init__(self, engine_json: bytes) -> None:
        from gigatoken import Tokenizer

        self._tokenizer = Tokenizer.from_json(engine_json)

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        parts = list(map(self._tokenizer.encode, texts))
        return np.concatenate([np.empty(0, np.uint32), *parts]), offsets_of(list(map(len, parts)))

    def spread(self, threads: int) -> None:
        """Do nothing: one thread encodes a unit of work in less time than threads take to start."""


class _GigatokenBatches(_Gigatoken):
    """Engine gigatoken, encoding a batch of documents at a time.

    For short documents, this is two to three times as fast as one document at a time. The engine
    may be used only in processes that do nothing but encode (see `awkward_stub`). Workers check
    that it gives the expected ids for the probe strings (see `probes`).
    """

    batch_bytes = 1 << 20  # a batch in the processor's caches is encoded up to 40 % faster

    def __init__(self, engine_json: bytes) -> None:
        super().__init__(engine_json)
        backend = type(getattr(self._tokenizer, "backend", None)).__name__
        if backend == "SentencePieceTokenizer":
            self.batch_bytes = 16 << 20  # it forgets its cached words with each batch
        if install_stand_in() and not self._sound():
            remove_stand_in()

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        if not texts:
            return np.empty(0, np.uint32), np.zeros(1, np.int64)
        rows: Any = self._tokenizer.encode_batch(list(texts), parallel=False)
        if isinstance(rows, Ragged):
            return rows.items, offsets_of(rows.counts)
        offsets = np.asarray(rows.layout.offsets.data)
        ids = np.asarray(rows.layout.content.data)
        first, last = int(offsets[0]), int(offsets[-1])
        return ids[first:last], offsets - first

    def _sound(self) -> bool:
        """Return whether batches with the stand-in for awkward give the ids of single texts."""
        texts = [b"Two words", b"", "caf\u00e9 \u6211".encode()]
        try:
            ids, offsets = self.encode(texts)
        except Exception:  # another gigatoken may ask awkward for anything
            return False
        expected, expected_offsets = super().encode(texts)
        return np.array_equal(ids, expected) and np.array_equal(offsets, expected_offsets)


class _GigatokenOrReference:
    """Engine that uses the reference for texts with suspect characters, and gigatoken for the rest.

    Suspect characters are explained in `suspects`. The reference is loaded when the first text with
    such a character occurs.
    """

    def __init__(self, engine_json: bytes, *, alone: bool) -> None:
        self._suspects = _suspects_for(_head(engine_json))
        self._fast = _GigatokenBatches(engine_json) if alone else _Gigatoken(engine_json)
        self.batch_bytes = self._fast.batch_bytes
        self._engine_json = engine_json
        self._slow: Encoder | None = None

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        holding = self._suspects.among(texts)
        if not holding:
            return self._fast.encode(texts)
        if self._slow is None:
            self._slow = ReferenceEngine(self._engine_json)
        slow = np.zeros(len(texts), np.bool_)
        slow[holding] = True
        counts = np.zeros(len(texts), np.int64)
        found = []
        for encoder, own in ((self._fast, ~slow), (self._slow, slow)):
            ids, offsets = encoder.encode(
                [texts[number] for number in np.flatnonzero(own).tolist()]
            )
            counts[own] = np.diff(offsets)
            found.append(ids)
        by_slow = np.repeat(slow, counts)
        ids = np.empty(len(by_slow), np.uint32)
        ids[~by_slow], ids[by_slow] = found
        return ids, offsets_of(counts)

    def spread(self, threads: int) -> None:
        """Do nothing: threads do not help gigatoken, and the reference encodes too few texts."""


class _Head(msgspec.Struct):
    """The parts of a tokenizer.json that the engines may interpret differently."""

    normalizer: msgspec.Raw = msgspec.Raw()
    pre_tokenizer: msgspec.Raw = msgspec.Raw()
    added_tokens: list[dict[str, Any]] | None = None


def _head(engine_json: bytes) -> _Head:
    """Return the parts of a tokenizer.json that the engines may interpret differently.

    Raise `ValueError` if gigatoken misreads a split pattern. For example, ``x{1,3}+`` repeats
    ``x{1,3}`` in `tokenizers`, but not in gigatoken.
    """
    head = msgspec.json.decode(engine_json, type=_Head)
    if misread := _MISREAD.search(bytes(head.pre_tokenizer)):
        raise ValueError(f"it reads {misread.group().decode()} in a split pattern otherwise")
    return head


def _suspects_for(head: _Head) -> Suspects:
    """Return the characters that the engines may treat differently with the tokenizer of `head`.

    They depend on the installed library versions (see `suspects`), and on the normalizer:

    - NFC: gigatoken looks for added tokens before it normalizes text, but `tokenizers` looks for
      added tokens marked `normalized` afterwards. If the tokenizer has such tokens, all characters
      that NFC may change are included.
    - `Precompiled`: this normalizer has Unicode tables of its own. All characters beyond ASCII are
      included, unless the installed versions are those in `COMPARED`.
    """
    compared = library_versions() == COMPARED
    if not compared and b'"Precompiled"' in bytes(head.normalizer):
        return Suspects([(0x80, 0x10FFFF)])
    nfc = b'"NFC"' in bytes(head.normalizer) and any(
        token.get("normalized") and not token["content"].isspace()
        for token in head.added_tokens or []
    )
    return suspects_of(compared=compared, nfc=nfc)


class EarlyEngine(Protocol):
    """Interface of an engine in another process, which can load while this process continues."""

    def load(self, name: str, engine_json: bytes) -> None:
        """Start loading the tokenizer `engine_json` into the engine `name`, and return at once."""

    def answer(self, texts: Sequence[bytes]) -> Encoded | str | None:
        """Return the ids and offsets of `texts`, or a sentence that says why the engine fails.

        Return None if no other process could be used. The engine must then be loaded in this
        process.
        """

    def finish(self) -> None:
        """Start loading everything else that units need. This is the last call."""


class PreEncoded:
    """Encoder that returns the ids of `texts` from `encoded`. It can encode no other texts."""

    batch_bytes = 1 << 20

    def __init__(self, texts: Sequence[bytes], encoded: Encoded) -> None:
        self._ids = {text: _of(encoded, number) for number, text in enumerate(texts)}

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Return the ids of `texts`. Raise `KeyError` for a text that was not encoded before."""
        parts = [self._ids[text] for text in texts]
        return np.concatenate([np.empty(0, np.uint32), *parts]), offsets_of(list(map(len, parts)))

    def spread(self, threads: int) -> None:
        """Do nothing: there is nothing to encode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """Engine that a build uses, with the reason for this choice.

    If gigatoken was loaded in another process, `encoder` is a `PreEncoded`, which can only return
    the ids of the texts that were encoded there.
    """

    name: str
    reason: str
    encoder: Encoder
    doubt: Doubt | None = None
    """Comparison of the engine with the reference, if the caller has to make it."""


def make_encoder(name: str, engine_json: bytes, *, alone: bool = False) -> Encoder:
    """Return the engine `name`, loaded with the tokenizer.json `engine_json`.

    The tokenizer.json must be prepared for encoding (see `special_tokens`). Set `alone` to True
    only in a process that does nothing but encode (see `awkward_stub`).
    """
    if name == TOKENIZERS:
        return ReferenceEngine(engine_json)
    return _GigatokenOrReference(engine_json, alone=alone)


def choose_engine(
    engine_json: bytes,
    wanted: str,
    sample: Sequence[bytes],
    *,
    others: Sequence[bytes] = (),
    early: EarlyEngine | None = None,
    reference: Reference | None = None,
    problem: str | None = None,
) -> EngineChoice:
    """Return gigatoken if it gives the same ids as the reference for `sample`, else the reference.

    The argument `wanted` is the value of ``--engine``. If it is `TOKENIZERS`, return the reference
    without a comparison. The texts `others` are encoded but not compared: gigatoken is not chosen
    if it fails on them.

    The argument `early` is gigatoken in another process, and `reference` the user's tokenizer with
    `sample` as its texts, set to treat special tokens as the build does. Both are given or neither
    is. If they are given, the caller chooses the engine in these steps:

    1. Call this function. Unless gigatoken fails, it is returned without a comparison. The encoder
       in the result can encode only the texts of `sample` and `others`.
    2. If the result has a function `doubt`, call it to compare gigatoken with the reference.
    3. If `doubt` returns a sentence, call this function again with this sentence as `problem`, and
       get the reference.

    Raise `InputError` if neither engine loads the tokenizer. Raise `IncompatibleError` if `wanted`
    is `GIGATOKEN` but gigatoken cannot be used.
    """
    if wanted == TOKENIZERS:
        return EngineChoice(
            name=TOKENIZERS, reason="asked for with --engine", encoder=ReferenceEngine(engine_json)
        )
    if problem is None:
        fast, problem = _encoder_from(early, [*sample, *others]) if early else (None, None)
        if fast is None and problem is None:
            fast, problem = load_gigatoken(engine_json)
        if fast is not None:
            doubt = partial(_compare, fast, engine_json, sample, reference)
            failure = encode_or_problem(fast, others) if others else None  # as `early` would
            problem = failure if isinstance(failure, str) else None
            problem = problem if reference or problem else doubt()
            if problem is None:
                late = doubt if reference else None
                reason = _gigatoken_reason(len(sample))
                return EngineChoice(name=GIGATOKEN, reason=reason, encoder=fast, doubt=late)
    if wanted == GIGATOKEN:
        raise IncompatibleError(
            str(problem), where="--engine gigatoken", code="E_ENGINE",
            remedy="Leave --engine out: Hugging Face tokenizers will be used.",
        )  # fmt: skip
    return EngineChoice(name=TOKENIZERS, reason=str(problem), encoder=ReferenceEngine(engine_json))


def _gigatoken_reason(compared: int) -> str:
    """Return a text that says why gigatoken is used, and for which texts.

    The argument `compared` is the number of texts on which the engines were compared.
    """
    equal = f"equal to tokenizers on {compared} texts of this build, and used where"
    versions = library_versions()
    if versions == COMPARED:
        return f"{equal} their Unicode tables agree"
    named = " and ".join(f"{name} {version}" for name, version in versions.items())
    return f"{equal} Unicode never changed: the tables of {named} were not compared"


def _compare(
    fast: Encoder, engine_json: bytes, sample: Sequence[bytes], reference: Reference | None
) -> str | None:
    """Return why `fast` cannot be used, or None if it gives the reference's ids for `sample`.

    The argument `reference` is the user's own tokenizer, or None. `fast` is compared with it first.
    Only if they differ, `engine_json` is loaded and `fast` is compared with the result.
    """
    found = encode_or_problem(fast, sample)
    if isinstance(found, str):
        return found
    if reference is not None and _are_equal(found, reference.encoded()):
        return None
    expected = ReferenceEngine(engine_json).encode(sample)
    if _are_equal(found, expected):
        return None
    different = _first_difference(sample, found, expected)
    return f"gigatoken and tokenizers give different ids for {different!r}"


def load_gigatoken(engine_json: bytes, *, alone: bool = False) -> tuple[Encoder | None, str | None]:
    """Return (encoder, None), or (None, reason) if gigatoken cannot use the tokenizer."""
    try:
        return make_encoder(GIGATOKEN, engine_json, alone=alone), None
    except BaseException as error:
        if not is_failure(error):
            raise
        return None, f"gigatoken refuses this tokenizer: {reason_of(error)}"


def encode_or_problem(fast: Encoder, sample: Sequence[bytes]) -> Encoded | str:
    """Return the ids and offsets of `sample`, or a sentence that says why gigatoken fails on it."""
    try:
        return fast.encode(sample)
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"gigatoken fails on texts of this build: {reason_of(error)}"


def _encoder_from(early: EarlyEngine, texts: Sequence[bytes]) -> tuple[Encoder | None, str | None]:
    """Return (encoder that knows `texts`, None), or (None, problem) if gigatoken fails on `texts`.

    The process of `early` encodes the texts. Return (None, None) if it could not be used.
    """
    answer = early.answer(texts)
    if answer is None or isinstance(answer, str):
        return None, answer
    return PreEncoded(texts, answer), None


def _are_equal(one: Encoded, other: Encoded) -> bool:
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def _first_difference(sample: Sequence[bytes], one: Encoded, other: Encoded) -> str:
    for index, text in enumerate(sample):
        if not np.array_equal(_of(one, index), _of(other, index)):
            return text.decode()[:80]
    return ""


def _of(encoded: Encoded, index: int) -> Any:
    ids, offsets = encoded
    return ids[offsets[index] : offsets[index + 1]]


def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that turn text into ids, by name."""
    return {name: _version(name) for name in (GIGATOKEN, TOKENIZERS)}


def _version(library: str) -> str:
    """Return the installed version of `library`, without importing it.

    It is part of the name of the .dist-info folder beside the package. If there are several such
    folders, or none, `importlib.metadata` finds the version, which takes 30 ms more.
    """
    found = find_spec(library)
    beside = (
        Path(found.origin).parents[1].glob(f"{library}-*.dist-info")
        if found and found.origin
        else ()
    )
    names = [path.name for path in beside]
    if len(names) == 1:
        return names[0].removeprefix(f"{library}-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version(library)
