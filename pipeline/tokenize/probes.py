"""Probes: strings whose ids change if a tokenizer, or a library that runs it, changes.

Each probe tests a subject on which implementations disagree: runs of spaces, line ends, Unicode
normalisation, emoji sequences, digits, contractions, scripts without spaces, special tokens as
plain text. A build stores the ids of the probes. The function `check_probes` encodes the probes
again with the libraries that are installed now. This takes a few milliseconds once the tokenizer is
loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dataprep.formats.files.safe_open import open_ordinary
from dataprep.formats.library_errors import is_failure, reason_of
from dataprep.formats.manifest.tokens import Manifest, Probe, TokenizerEntry
from dataprep.formats.manifest.tokens import load as load_manifest
from dataprep.formats.verify.report import Finding, VerifyReport

from .engines import (
    GIGATOKEN,
    TOKENIZERS,
    Encoder,
    library_versions,
    make_encoder,
)
from .special_tokens import literal_config, parse_config

__all__ = ["check_probes", "encoded_probes", "make_probes", "probe_findings"]

_PROBES = (
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three    four",
    "a" + " " * 40 + "b",
    "\ttab\t\ttwo\t \tmixed",
    "line\nfeed\n\ntwo\n \n  indented\n",
    "carriage\r\nreturn\r\n\r\nand\ralone",
    "0 12 345 6789 1234567890 3.14159 1,000,000 1e-9 0x1F",
    "it's don't we'll I'd they've you're I'm CAN'T won\u2019t",
    "camelCase PascalCase snake_case SCREAMING_SNAKE kebab-case HTTPServer2Go",
    'def f(x: int) -> str:\n    return f"{x!r:>8}"  # comment\n',
    "if (a[i] != b->c && !d) { e += 1; } /* f */",
    "https://user@example.org:8080/a/b.html?q=1&r=%20x#frag name@example.com",
    "$x^2 + y_1 \\leq \\frac{1}{2}$ \u2211\u221e\u2264\u2260\u00d7\u00f7\u222b\u2202\u2208\u211d",
    "na\u00efve caf\u00e9 Z\u00fcrich \u0142\u00f3d\u017a",
    "nai\u0308ve cafe\u0301 Zu\u0308rich",  # the same letters, decomposed
    "\ufb01ne \u212b \u00bd \u2460 \u3392",  # characters that NFKC decomposes
    "\u0130stanbul \u0131\u0131k \u00df \u1e9e \u01c5",  # characters with unusual lower case
    "\U0001f600\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 1\ufe0f\u20e3 \u2764\ufe0f \u2764",
    "\u6211\u7231\u81ea\u7136\u8bed\u8a00\u5904\u7406\u3002\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3067\u3059\u3002\uff76\uff9e",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5 \u1112\u1161\u11ab",  # syllables, then their letters
    "\u0627\u0644\u0644\u063a\u0629 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662\u0663",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f \u0967",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u0e44\u0e21\u0e48\u0e21\u0e35\u0e27\u0e23\u0e23\u0e04",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0395\u03bb\u03bb\u03ac\u03c2",
    "mixed \u0441\u0443rilli\u0441 and \u4e2d\u6587 and \u0639\u0631\u0628\u064a in one",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!!!!!!!!!!!!!!----------------================................",
    "sep\u2028line\u2029para\u0085next\u000bvt\u000cff\u00a0nbsp\u3000wide",
    "nul\u0000byte \u0001\u001b[0m \u007f",
    "zero\u200bwidth\u200cnon\u200djoin \ufeffbom \u00adsoft",
    "\u200fright\u200eleft \u202eoverride\u202c",
    "\uff26\uff55\uff4c\uff4c \uff11\uff12\uff13 \uff5ewide",
    "\u201cquotes\u201d \u2018single\u2019 \u00abguillemets\u00bb \u2014 \u2013 \u2026 `tick`",
    "z\u0351\u0343\u035ca\u0334\u0321l\u0336\u0322g\u0337o\u0338",
    "\U0001d4d0\U0001d4f5 \U00010348 \U0002070e \ue000 \ufffd",  # beyond the first plane
    "<|endoftext|> </s> <s> [CLS] [SEP] [MASK] <pad> <unk> <|im_start|>user",
    "a<|endoftext|>b</s>c <| endoftext |> \u2581under\u2581 \u0120\u010a ##ing @@",
)


def make_probes() -> tuple[str, ...]:
    """Return the probe strings, which are the same in every build of this release of dataprep.

    >>> len(make_probes()) == len(set(make_probes())) == 42
    True
    """
    return _PROBES


def encoded_probes(encoder: Encoder, texts: Iterable[str]) -> tuple[Probe, ...]:
    """Return the strings `texts` as probes, with the ids that `encoder` gives for them."""
    listed = list(texts)
    ids, offsets = encoder.encode([text.encode() for text in listed])
    return tuple(
        Probe(text=text, ids=tuple(ids[offsets[i] : offsets[i + 1]].tolist()))
        for i, text in enumerate(listed)
    )


def check_probes(report: VerifyReport) -> VerifyReport:
    """Return `report` with a finding for each engine that no longer gives the stored probe ids.

    An engine that fails to load also gets a finding. Call this function only after the files of the
    dataset have been verified.
    """
    manifest = load_manifest(report.path)
    name = manifest.tokenizer.file
    with open_ordinary(report.path / name, name) as stream:
        findings = probe_findings(manifest, stream.readall())
    return report.adding(findings)


def probe_findings(manifest: Manifest, tokenizer_json: bytes) -> list[Finding]:
    """Return a finding for each engine that fails to load or no longer gives the stored probe ids.

    The engine `tokenizers` is always checked, and gigatoken only if the build used it. Return an
    empty list if the manifest has no probes.
    """
    entry = manifest.tokenizer
    if not entry.probes:
        return []
    engine_json = _engine_json(entry, tokenizer_json)
    engines = [TOKENIZERS, GIGATOKEN] if entry.engine == GIGATOKEN else [TOKENIZERS]
    problems = {name: _problem(name, entry, engine_json) for name in engines}
    return [_finding(entry, problem) for problem in problems.values() if problem is not None]


def _engine_json(entry: TokenizerEntry, tokenizer_json: bytes) -> bytes:
    config = msgspec.json.decode(tokenizer_json)
    chosen = parse_config(config) if entry.special_text == "parse" else literal_config(config)
    return msgspec.json.encode(chosen)


def _problem(engine: str, entry: TokenizerEntry, engine_json: bytes) -> str | None:
    """Return a sentence about the first probe that `engine` encodes differently, or None.

    If the engine fails, return a sentence about its failure.
    """
    texts = [probe.text for probe in entry.probes]
    try:
        ids, offsets = make_encoder(engine, engine_json).encode([text.encode() for text in texts])
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"{engine} cannot use the tokenizer any more ({reason_of(error)})"
    for number, probe in enumerate(entry.probes):
        found = ids[offsets[number] : offsets[number + 1]].tolist()
        if found != list(probe.ids):
            return (
                f"{engine} gives other ids for {probe.text!a}: "
                f"{_short(found)}, built with {_short(list(probe.ids))}"
            )
    return None


def _short(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 8 else f"{str(ids[:8])[:-1]}, ...]"


def _finding(entry: TokenizerEntry, problem: str) -> Finding:
    then, now = _versions(entry.libraries), _versions(library_versions())
    return Finding(
        code="E_TOKENIZER_CHANGED", file=entry.file, exit_code=6,
        problem=f"{problem} (then {then}; now {now})",
        remedy="Install the versions of then, or rebuild the dataset with those of now.",
    )  # fmt: skip


def _versions(libraries: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(libraries.items()))
