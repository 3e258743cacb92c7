"""Documents of all of Unicode: the ids that a build has for each are those of the reference.

    python -m tests.fuzz.test_engines DOCUMENTS SEED

tries another number of documents, or others.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator

import pytest

from dataprep.pipeline.tokenize.engines import GIGATOKEN, TOKENIZERS, Encoder, make_encoder
from dataprep.pipeline.tokenize.special_tokens import literal_config
from dataprep.pipeline.tokenize.suspects import suspects_of
from tests.fuzz.outcomes import RecordOutcomes
from tests.scenes.probing import PATTERNS, both_engines, differing
from tests.scenes.tokenizer_files import GIGATOKEN_TAKES, load_json
from tests.support import SHARED_DATA

DOCUMENTS, SEED = 40_000, 17
_BATCH = 500
_LONGEST = 40
_PLAIN = "aAsStT1 '\n/!.\t\u0301\u0345\u0334\u017f\u212a\u037e\u4e00\u3042\u1100\u1161\u11a8"


def engines() -> Iterator[tuple[str, Encoder, Encoder]]:
    """What a build has for a tokenizer, and the reference: of all split patterns, and real ones."""
    for scheme in (*PATTERNS, "gpt2+NFC", "qwen2+NFC"):
        yield scheme, *both_engines(scheme)
    for name in sorted(GIGATOKEN_TAKES) if SHARED_DATA.is_dir() else ():
        data = json.dumps(literal_config(load_json(name))).encode()
        yield name, make_encoder(GIGATOKEN, data), make_encoder(TOKENIZERS, data)


class Author:
    """Writes documents of few characters, which so meet in many orders."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
        known = suspects_of(compared=True, nfc=False)
        assigned = [code for code in codes if unicodedata.category(chr(code)) != "Cn"]
        self._kinds = [
            codes,
            assigned,
            assigned[: assigned.index(0x3000)],
            [code for code in assigned if unicodedata.combining(chr(code))],
            [code for code in assigned if unicodedata.decomposition(chr(code))],
            [code for code in codes if code in known],
            [ord(one) for one in _PLAIN],
        ]

    def document(self) -> str:
        """Write one."""
        choose = self._random
        kinds = choose.choices(self._kinds, k=choose.randint(1, 6))
        letters = [chr(choose.choice(kind)) for kind in kinds]
        return "".join(choose.choices(letters, k=choose.randint(1, _LONGEST)))


def outcomes(documents: int, seed: int) -> Counter[str]:
    """Try so many `documents`, one tokenizer after the other; print those that differ."""
    author, found = Author(seed), Counter[str]()
    for name, one, other in itertools.cycle(list(engines())):
        texts = [author.document() for _ in range(min(_BATCH, documents - found.total()))]
        if not texts:
            return found
        wrong = differing(one, other, texts)
        found["ok"] += len(texts) - len(wrong)
        found["unnoticed"] += len(wrong)
        for text in wrong:
            print(f"{name}: {text!a}")
    return found


@pytest.mark.fuzz
def test_documents(record_outcomes: RecordOutcomes) -> None:
    """No document has other ids than the reference gives it."""
    record_outcomes(outcomes(DOCUMENTS, SEED), seed=SEED)


if __name__ == "__main__":
    print(dict(outcomes(int(sys.argv[1]), int(sys.argv[2]))))
