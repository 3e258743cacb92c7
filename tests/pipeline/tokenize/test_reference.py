"""The reference: loaded by a thread, compared with the engine of another process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dataprep.formats.errors import InputError
from dataprep.pipeline.tokenize.engines import GIGATOKEN, EngineChoice, choose_engine, make_encoder
from dataprep.pipeline.tokenize.load import load_tokenizer, resolve_tokenizer
from dataprep.pipeline.tokenize.reference import Encoded, Reference
from tests.pipeline.tokenize.test_engines import BUILT_IN
from tests.support import REPOSITORY

TEXTS = [b"first words", b"second words", b"third words"]


class Elsewhere:
    """An engine in another process, of which the ids of the second text may be wrong."""

    def __init__(self, *, wrong: bool) -> None:
        self._wrong = wrong

    def load(self, name: str, engine_json: bytes) -> None:
        assert (name, engine_json) == (GIGATOKEN, BUILT_IN)

    def answer(self, texts: Sequence[bytes]) -> Encoded:
        ids, offsets = make_encoder(GIGATOKEN, BUILT_IN).encode(texts)
        ids = ids.copy()
        if self._wrong:
            ids[offsets[1]] += 1
        return ids, offsets

    def finish(self) -> None:
        pass


def chosen(reference: Reference, *, wrong: bool) -> EngineChoice:
    return choose_engine(BUILT_IN, "auto", TEXTS, early=Elsewhere(wrong=wrong), reference=reference)


@pytest.mark.parametrize("wrong", [False, True])
def test_an_engine_elsewhere_is_compared_with_the_reference(wrong: bool) -> None:
    """The comparison is left to the caller, and names the text that differs."""
    source = resolve_tokenizer(None)
    choice = chosen(Reference(lambda: load_tokenizer(source.json, None), TEXTS), wrong=wrong)
    assert choice.name == GIGATOKEN
    assert choice.doubt is not None
    found = choice.doubt()
    assert (found is None) != wrong
    if found is not None:
        assert "different ids for 'second words'" in found


def test_a_difference_from_the_file_alone_is_none() -> None:
    """Only the tokenizer.json that the engine itself loads decides in the end."""
    other = resolve_tokenizer(str(REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"))
    reference = Reference(lambda: load_tokenizer(other.json, None), TEXTS)
    ids, _ = make_encoder(GIGATOKEN, BUILT_IN).encode(TEXTS)
    assert not np.array_equal(reference.encoded()[0], ids)
    choice = chosen(reference, wrong=False)
    assert choice.doubt is not None
    assert choice.doubt() is None
    wrong = chosen(reference, wrong=True)
    assert wrong.doubt is not None
    assert wrong.doubt() is not None


def test_a_reference_that_cannot_be_loaded() -> None:
    """The error of the thread is raised where its result is wanted."""
    reference = Reference(lambda: load_tokenizer(b'{"model": 1}', "mine.json"), TEXTS)
    for wanted in (reference.tokenizer, reference.encoded):
        with pytest.raises(InputError, match=r"mine\.json") as caught:
            wanted()
        assert caught.value.code == "E_TOKENIZER"
