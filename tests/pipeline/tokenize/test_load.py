"""Every way to name a tokenizer, and every way to name one wrongly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dataprep.formats.errors import DataprepError, InputError
from dataprep.formats.manifest.tokens import SpecialToken
from dataprep.pipeline.chat.options import ChatOptions
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.tokenize import load as tokenizer_sources
from dataprep.pipeline.tokenize import special_tokens
from dataprep.pipeline.tokenize.engines import BUILT_IN
from dataprep.pipeline.tokenize.load import (
    MAX_TOKENIZER_BYTES,
    TokenizerSource,
    resolve_tokenizer,
)
from dataprep.pipeline.tokenize.special_tokens import (
    find_role,
    vocab_size,
)
from tests.scenes.tokenizer_files import (
    CL100K_RANKS,
    MISTRAL_MODEL,
    PROSE,
    TOKENIZERS,
    gigatoken_ids,
    hf_ids,
    records,
)
from tests.support import SHARED_DATA, needs_shared_data


def test_no_spec_gives_the_built_in_tokenizer_with_its_roles() -> None:
    """The first command works with nothing on the machine, and knows where a document ends."""
    source = resolve_tokenizer(None)
    config = json.loads(source.json)
    assert source.origin == BUILT_IN
    assert vocab_size(config) == 32_768
    assert find_role(config, source.roles, "eos") == SpecialToken(id=32_755, token="<|endoftext|>")
    assert find_role(config, source.roles, "bos") == SpecialToken(id=32_757, token="<|bos|>")
    assert find_role(config, source.roles, "pad") == SpecialToken(id=32_756, token="<|pad|>")


def test_the_built_in_tokenizer_holds_every_byte_and_gives_text_back() -> None:
    """No text is unknown to it, in either engine."""
    data = resolve_tokenizer(None).json
    tokenizer = Tokenizer.from_buffer(data)
    texts = [*PROSE, "".join(map(chr, range(1, 0x3000)))]
    ids = hf_ids(tokenizer, texts)
    assert [tokenizer.decode(one, skip_special_tokens=False) for one in ids] == texts
    assert gigatoken_ids(data, texts) == ids
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    assert sorted(number for token, number in vocab.items() if len(token) == 1) == [*range(256)]


@needs_shared_data
@pytest.mark.parametrize("corpus", ["wikitext-2/test.txt", "xquad_multi.jsonl"])
def test_both_engines_agree_on_the_built_in_tokenizer(corpus: str) -> None:
    """gigatoken recognises its split pattern and gives the ids of `tokenizers` on real text."""
    path = SHARED_DATA / "corpora" / corpus
    is_text = path.suffix == ".txt"
    texts = path.read_text().splitlines(keepends=True) if is_text else records(corpus, 2)
    data = resolve_tokenizer(None).json
    assert gigatoken_ids(data, texts) == hf_ids(Tokenizer.from_buffer(data), texts)


@needs_shared_data
def test_a_tokenizer_json_is_kept_byte_for_byte() -> None:
    """What was named is what is stored."""
    path = TOKENIZERS / "gpt2" / "tokenizer.json"
    source = resolve_tokenizer(str(path))
    assert source == TokenizerSource(json=path.read_bytes(), origin="tokenizer.json", roles={})


@needs_shared_data
def test_a_folder_gives_its_tokenizer_json_and_the_roles_beside_it() -> None:
    """tokenizer_config.json decides over names that look like an end of text."""
    source = resolve_tokenizer(str(TOKENIZERS / "qwen2_5"))
    assert source.origin == "qwen2_5"
    assert source.roles == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config = json.loads(source.json)
    assert find_role(config, source.roles, "eos") == SpecialToken(id=151_645, token="<|im_end|>")
    assert find_role(config, {}, "eos") == SpecialToken(id=151_643, token="<|endoftext|>")


@needs_shared_data
def test_a_folder_without_tokenizer_json_gives_its_only_model(tmp_path: Path) -> None:
    """One .model file is unambiguous; two are not."""
    (tmp_path / "tokenizer.model").write_bytes(MISTRAL_MODEL.read_bytes())
    assert resolve_tokenizer(str(tmp_path)).origin == "tokenizer.model"
    (tmp_path / "cl100k_base.tiktoken").write_bytes(CL100K_RANKS.read_bytes())
    with pytest.raises(InputError, match="several tokenizers lie here") as caught:
        resolve_tokenizer(str(tmp_path))
    assert caught.value.remedy == "Name one of the files."


def test_roles_are_read_from_strings_and_from_dicts(tmp_path: Path) -> None:
    """Both spellings of a role, and the second file only fills in what the first leaves open."""
    (tmp_path / "tokenizer.json").write_bytes(resolve_tokenizer(None).json)
    config = {"bos_token": {"content": "<|bos|>"}, "eos_token": "<|im_end|>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    extra = {"eos_token": "<|endoftext|>", "pad_token": {"content": "<|pad|>", "lstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(extra))
    assert resolve_tokenizer(str(tmp_path)).roles == {
        "bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>",
    }  # fmt: skip


def write_bad_files(folder: Path) -> None:
    huge = folder / "huge.json"
    huge.touch()
    os.truncate(huge, MAX_TOKENIZER_BYTES + 1)
    garbage = random.Random(0).randbytes(4096)
    files = {
        "empty.json": b"", "blank.json": b" \n", "garbage.json": garbage, "garbage.model": garbage,
        "image.png": b"\x89PNG\r\n" + garbage, "list.json": b"[1, 2]", "vocab.json": b'{"a": 0}',
        "cut.json": resolve_tokenizer(None).json[:100_000], "deep.json": b'{"a":' * 100_000,
        "hollow.json": b'{"model": {"vocab": {}}}', "half.model": b"\n\x10\n\x03abc",
        "latin.json": b'{"model": {"vocab": {"\xe9": 0}}}', "my_ranks.tiktoken": b"IQ== 0\n",
        "cl100k_base.tiktoken": b"IQ== 0\nIg==\n", "r50k_base.tiktoken": b"IQ== 0\n",
        "pickle.model": b"\x80\x04\x95\x10\x00.",
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "bare").mkdir()


def test_merges_that_are_no_utf8(tmp_path: Path) -> None:
    """They are looked at late; a damaged file is the user's to hear of all the same."""
    data = resolve_tokenizer(None).json
    path = tmp_path / "tokenizer.json"
    for damage in (b"\xff", b"\\ud800"):
        path.write_bytes(data.replace(b'"merges":["', b'"merges":["' + damage, 1))
        with pytest.raises(InputError) as caught:
            source = resolve_tokenizer(str(path), load=False)
            special_tokens._parsed_merges(source.config["model"]["merges"])
        assert caught.value.code == "E_TOKENIZER"


def test_every_unusable_file_is_one_clear_error(tmp_path: Path) -> None:
    """Garbage, cuts, other JSON, pickles, folders: E_TOKENIZER, named, with something to do."""
    write_bad_files(tmp_path)
    tried = sorted(tmp_path.iterdir())
    assert len(tried) == 18
    for path in tried:
        with pytest.raises(InputError) as caught:
            resolve_tokenizer(str(path))
        error = caught.value
        assert error.code == "E_TOKENIZER", path
        assert error.where is not None
        assert error.where.startswith(str(path))
        assert error.remedy
        assert "\n" not in str(error)


def test_a_broken_role_file_is_named(tmp_path: Path) -> None:
    """A damaged tokenizer_config.json is not silently ignored."""
    (tmp_path / "tokenizer.json").write_bytes(resolve_tokenizer(None).json)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        resolve_tokenizer(str(tmp_path))
    assert caught.value.where == str(tmp_path / "tokenizer_config.json")


@pytest.mark.parametrize(
    "spec",
    ["nowhere", "./a/b", "/no/such/file.json", "a/b.json", "docs/nothing", "", "\0", "x" * 9999],
)
def test_a_mistyped_path_is_not_looked_up_on_the_hub(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that can only be a path, or whose folder exists, goes to the network."""
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such file or folder") as caught:
        resolve_tokenizer(spec)
    assert caught.value.code == "E_TOKENIZER"
    assert len(str(caught.value)) < 500


HUB = """
import sys
from dataprep.pipeline.tokenize.load import resolve_tokenizer
from dataprep.formats.errors import DataprepError
try:
    source = resolve_tokenizer(sys.argv[1])
    print(source.origin, len(source.json), sorted(source.roles.items()))
except DataprepError as error:
    print(error.exit_code, error)
"""


def ask_hub(repository: str, home: Path) -> str:
    """In a process of its own: huggingface_hub reads its settings at import."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", HUB, repository], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_hub_repository_is_read_from_the_cache_with_its_roles(tmp_path: Path) -> None:
    """The real client finds a downloaded repository without a network."""
    folder = tmp_path / "hub" / "models--owner--name"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    (snapshot / "tokenizer.json").write_bytes(resolve_tokenizer(None).json)
    (snapshot / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    size = len(resolve_tokenizer(None).json)
    assert ask_hub("owner/name", tmp_path) == f"owner/name {size} [('eos_token', '<|im_end|>')]"


def test_an_unreachable_hub_asks_for_a_local_file(tmp_path: Path) -> None:
    """Exit code 4 and a remedy, in one line."""
    said = ask_hub("owner/name", tmp_path)
    assert said.startswith("4 error[E_NETWORK] owner/name: not found here, and could not be")
    assert said.endswith("or give a local tokenizer.json by its path.")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("RepositoryNotFoundError", "nor a public"), ("GatedRepoError", "asks for a login"),
     ("EntryNotFoundError", "has no tokenizer.json or tokenizer.model")],
)  # fmt: skip
def test_what_the_hub_answers_is_told_apart(
    kind: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name, a closed repository and one without a tokenizer need different remedies."""
    import huggingface_hub
    from huggingface_hub import errors

    error = getattr(errors, kind)

    def answer(repository: str, name: str) -> str:
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", answer)
    with pytest.raises(InputError, match=expected):
        tokenizer_sources.resolve_tokenizer("owner/name")


def test_resolving_raises_only_our_errors() -> None:
    """The contract that the command line relies on."""
    assert issubclass(InputError, DataprepError)
    for spec in ("tiktoken:", "tiktoken:../x", "..", "/"):
        with pytest.raises(DataprepError):
            resolve_tokenizer(spec)


def test_paths_in_options(tmp_path: Path) -> None:
    """A path names a tokenizer, and a template, as its text does."""
    own, template = tmp_path / "own.json", tmp_path / "own.jinja"
    given: dict[str, Any] = {"input": ("a.jsonl",), "out": tmp_path / "out", "tokenizer": own}
    assert BuildOptions(**given).tokenizer == str(own)
    chat = ChatOptions(**given, template=template)  # type: ignore[arg-type]
    assert (chat.tokenizer, chat.template) == (str(own), str(template))
