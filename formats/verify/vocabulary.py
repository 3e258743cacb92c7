"""Whether tokenizer.json is the one that made the ids, and has a vocabulary of the stated size.

Only the keys that hold ids are decoded, whatever else the file may contain.
"""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from ..manifest.tokens import CONFIG_NAME, Manifest
from .reader import Run
from .report import Finding, Refused

__all__ = ["check_tokenizer"]

_MAX_BYTES = 256 << 20


class _Added(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: msgspec.Raw


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: tuple[_Added, ...] | None = None


def check_tokenizer(run: Run, manifest: Manifest) -> None:
    """Check the tokenizer's digest and its number of ids, and the ids that the manifest names."""
    _check_ids(run, manifest)
    with contextlib.ExitStack() as stack:
        reader = run.open(stack, manifest.tokenizer.file)
        if reader is None:
            return
        if reader.size > _MAX_BYTES:
            raise Refused(reader.finding("E_TOKENIZER", f"is over {_MAX_BYTES} bytes"))
        data = bytearray()
        while piece := reader.read():
            data += piece
        if hashlib.sha256(data).hexdigest() != manifest.tokenizer.sha256:
            raise Refused(reader.finding("E_TOKENIZER", "is not the tokenizer that made these ids"))
        try:
            size = _vocab_size(bytes(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"is not a tokenizer.json ({error})"
            raise Refused(reader.finding("E_TOKENIZER", problem)) from None
        if size != manifest.tokens.vocab_size:
            problem = f"has ids below {size}, tokens.vocab_size is {manifest.tokens.vocab_size}"
            raise Refused(reader.finding("E_TOKENIZER", problem))


def _check_ids(run: Run, manifest: Manifest) -> None:
    entry = manifest.tokenizer
    named = [token.id for token in (entry.bos, entry.eos, entry.pad) if token is not None]
    largest = max([*named, *(id_ for probe in entry.probes for id_ in probe.ids)], default=-1)
    problem = None
    if largest >= manifest.tokens.vocab_size:
        problem = f"names id {largest}, tokens.vocab_size is {manifest.tokens.vocab_size}"
    elif (entry.add_bos and entry.bos is None) or (entry.add_eos and entry.eos is None):
        problem = "adds a BOS or EOS that it does not name"
    if problem:
        run.findings.add(
            Finding(code="E_TOKENIZER", file=CONFIG_NAME, problem=f"`tokenizer` {problem}")
        )


# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_TOKENIZER = msgspec.json.Decoder(_Tokenizer)


def _vocab_size(data: bytes) -> int:
    """The largest id of the model and of the added tokens, plus one."""
    tokenizer = _TOKENIZER.decode(data)
    vocab = bytes(tokenizer.model.vocab)
    if vocab.lstrip()[:1] == b"[":  # Unigram: pieces with scores, in the order of their ids
        largest = len(msgspec.json.decode(vocab, type=list[msgspec.Raw])) - 1
    else:
        largest = max(msgspec.json.decode(vocab, type=dict[str, int]).values(), default=-1)
    added = (token.id for token in tokenizer.added_tokens or ())
    return max(largest, *added, -1) + 1
