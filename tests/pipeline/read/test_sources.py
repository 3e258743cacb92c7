"""Inputs: which files are read, in what order, and which are refused and why."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep.formats.errors import DataprepError, InputError, StorageError, UsageError
from dataprep.pipeline.options import BuildOptions
from dataprep.pipeline.read import huggingface
from dataprep.pipeline.read.discovery import find_sources, folder_notes
from dataprep.pipeline.read.sources import Source
from dataprep.pipeline.tokens.prepare import survey
from tests.support import SHARED_DATA, needs_shared_data

LINE = b'{"text": "a"}\n'


def find(*inputs: Path | str, **options: Any) -> list[Source]:
    return find_sources(BuildOptions(input=tuple(map(str, inputs)), out=Path("out"), **options))


def names(*inputs: Path | str, **options: Any) -> list[str]:
    return [source.name for source in find(*inputs, **options)]


def refusal(*inputs: Path | str, **options: Any) -> DataprepError:
    with pytest.raises(DataprepError) as caught:
        find(*inputs, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several kinds, some hidden."""
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl.gz", "sub/deep/d.ndjson", ".hidden.jsonl",
                 ".git/x.jsonl", "sub/.cache/y.jsonl", "notes.xyz"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(LINE) if name.endswith(".gz") else LINE)
    return tmp_path


def test_folders_are_read_by_name(folder: Path) -> None:
    """All files of known types below a folder, in order; hidden ones are not."""
    assert names(folder) == ["a.jsonl", "b.jsonl", "sub/c.jsonl.gz", "sub/deep/d.ndjson"]


def test_a_format_takes_every_visible_file(folder: Path) -> None:
    """With a format, what files are called does not matter."""
    found = find(folder, format="text")
    assert "notes.xyz" in [source.name for source in found]
    assert {source.format for source in found} == {"text"}
    assert not any("hidden" in source.name or ".git" in source.name for source in found)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets are not opened, which for those of the hub takes a network."""
    monkeypatch.setattr(huggingface, "hf_source", lambda source, config, split: source)


def notes(*inputs: Path | str, **options: Any) -> tuple[str, ...]:
    return folder_notes(BuildOptions(input=tuple(map(str, inputs)), out=Path("out"), **options))


def test_what_a_folder_leaves_out_is_said(folder: Path) -> None:
    """Files of unknown types and linked folders are named, once for each folder."""
    (only,) = notes(folder, folder / "a.jsonl")
    assert only.startswith(f"1 file of unknown type in {folder} was left out (notes.xyz). Rename ")
    assert ".jsonl, .ndjson" in only
    for name in ("k", "l.bin", "m.csv", "sub/n"):
        (folder / name).write_bytes(LINE)
    (many,) = notes(folder)
    assert f"5 files of unknown type in {folder} were left out (k, l.bin, m.csv, ...)" in many
    assert notes(folder, format="text") == ()
    assert notes(folder / "sub" / "deep", f"{folder}/*.xyz") == ()
    (folder / "sub" / "deep" / "link").symlink_to(folder)
    (linked,) = notes(folder / "sub" / "deep")
    assert "(link)" in linked
    assert names(folder / "sub" / "deep") == ["d.ndjson"]


def test_the_output_is_no_input(folder: Path) -> None:
    """A dataset that was built below an input folder is not read the next time."""
    before = names(folder)
    for name in ("shards/rejects.jsonl", "shards/train/x.txt", "shards2/y.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(LINE)
    for spec in (folder, f"{folder}/**/*.[jnt][sdx]*"):
        options = BuildOptions(input=(str(spec),), out=folder / "sub" / ".." / "shards")
        found = [source.name for source in find_sources(options)]
        assert {"shards2/y.jsonl", *before} <= set(found)
        assert not [name for name in found if name.startswith("shards/")]
    assert not folder_notes(BuildOptions(input=(str(folder / "shards2"),), out=folder / "shards"))


@pytest.mark.usefixtures("no_hub")
def test_arguments_keep_their_order(folder: Path) -> None:
    """Arguments come as given, files of the hub among them; globs by name."""
    (folder / "z.txt").write_text("z")
    found = names(
        folder / "z.txt", "hf:some/name", folder / "b.jsonl", str(folder / "sub/**/*.*j*")
    )
    assert found == ["z.txt", "hf:some/name", "b.jsonl", "sub/c.jsonl.gz", "sub/deep/d.ndjson"]


def test_globs(folder: Path) -> None:
    """Globs match files only, and not hidden ones; a name with brackets is itself first."""
    assert names(f"{folder}/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(f"{folder}/**/*.jsonl*")[-1] == "sub/c.jsonl.gz"
    (folder / "x[1].jsonl").write_bytes(LINE)
    assert names(folder / "x[1].jsonl") == ["x[1].jsonl"]
    assert refusal(f"{folder}/*.parquet").code == "E_NOT_FOUND"


def test_names_are_relative_to_the_common_folder(folder: Path) -> None:
    """No absolute path is kept as a name, one file or several, here or above."""
    assert names(folder / "sub" / "deep" / "d.ndjson") == ["d.ndjson"]
    assert names(folder / "sub" / "c.jsonl.gz", folder / "a.jsonl") == ["sub/c.jsonl.gz", "a.jsonl"]
    assert names(folder / "sub" / ".." / "a.jsonl") == ["a.jsonl"]


@pytest.mark.usefixtures("no_hub")
def test_a_hub_folder_hides_where_it_is(folder: Path) -> None:
    """A folder given as `hf:` is known by its last part; names of the hub stay as they are."""
    (source,) = find(f"hf:{folder}")
    assert source.name == f"hf:{folder.name}"
    assert source.path == f"hf:{folder}"
    assert names("hf:owner/name@revision") == ["hf:owner/name@revision"]


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("saved", ["state.json", "dataset_dict.json"])
def test_saved_datasets_are_recognised(tmp_path: Path, saved: str) -> None:
    """A folder from `save_to_disk` is one input."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / saved).write_text("{}")
    (source,) = find(tmp_path / "d")
    assert (source.format, source.name) == ("hf", "d")


def test_links_are_followed_and_known_by_their_own_name(folder: Path) -> None:
    """A linked file is read under the link's name; a link to nothing is never passed over."""
    (folder / "l.jsonl").symlink_to(folder / "notes.xyz")
    (source,) = find(folder / "l.jsonl")
    assert (source.name, source.size) == ("l.jsonl", len(LINE))
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere")
    assert refusal(folder / "dangling.jsonl").code == "E_NOT_FOUND"
    assert "link to nothing" in str(refusal(folder))


@pytest.mark.usefixtures("no_hub")
def test_repeats_are_refused(folder: Path) -> None:
    """The same file twice, by any path, counts records twice: refused."""
    (folder / "l.jsonl").symlink_to(folder / "a.jsonl")
    for inputs in (
        (folder / "a.jsonl", folder / "a.jsonl"), (folder, folder / "a.jsonl"),
        (folder / "a.jsonl", folder / "l.jsonl"), ("hf:some/name", "hf:some/name"),
    ):  # fmt: skip
        assert refusal(*inputs).code == "E_REPEATED"


def packed(kind: str) -> bytes:
    if kind == "zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as stream:
            stream.writestr("a.jsonl", LINE)
        return archive.getvalue()
    if kind in ("bzip2", "xz"):
        return bz2.compress(LINE) if kind == "bzip2" else lzma.compress(LINE)
    return gzip.compress(LINE) if kind == "gzip" else zstandard.ZstdCompressor().compress(LINE)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.jsonl.zst"])
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compression_is_told_by_content(tmp_path: Path, kind: str, name: str) -> None:
    """What a file begins with decides, not what it is called."""
    (tmp_path / name).write_bytes(packed(kind))
    assert find(tmp_path / name)[0].compression == kind
    assert not find(tmp_path / name)[0].splittable
    (tmp_path / name).write_bytes(LINE)
    assert find(tmp_path / name)[0].compression is None


@pytest.mark.parametrize("kind", ["bzip2", "xz", "zip"])
def test_other_compression_is_refused(tmp_path: Path, kind: str) -> None:
    """It would be read as text otherwise."""
    (tmp_path / "a.jsonl").write_bytes(packed(kind))
    error = refusal(tmp_path / "a.jsonl")
    assert (error.code, error.exit_code) == ("E_FORMAT", 7)
    assert kind in str(error).lower()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_refused(tmp_path: Path, encoding: str) -> None:
    """A mark of UTF-16 or UTF-32 is refused with what to do."""
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    (tmp_path / "a.txt").write_bytes((mark + "text\n").encode(encoding))
    assert "UTF-16" in str(refusal(tmp_path / "a.txt"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ['{"text": "words"}\n', '{"text": "中文字符 и русский"}\n' * 300])
def test_utf16_without_a_mark_is_refused(tmp_path: Path, encoding: str, text: str) -> None:
    """It is told by where zero bytes stand; text that merely holds some is read."""
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        error = refusal(tmp_path / name)
        assert f"looks like {encoding.upper()[:6]}" in str(error)
        assert "iconv" in str(error.remedy)
        for fine in (text.encode(), b"a\0b\0c\0\0\0d" * 9, b"\0" * 50, b"a\0b", b"\0\0\0\0x" * 99):
            (tmp_path / name).write_bytes(fine)
            assert find(tmp_path / name)


@pytest.mark.parametrize("head", [b"[\n", b'[{"text":\n', b"\xef\xbb\xbf[\n  {", b"\n\n [{\n"])
def test_json_arrays_are_refused(tmp_path: Path, head: bytes) -> None:
    """One array over many lines is no JSONL; a line that is an array is one bad record."""
    (tmp_path / "a.json").write_bytes(head + b'"text": "a"}]')
    assert "JSON array" in str(refusal(tmp_path / "a.json"))
    (tmp_path / "a.json").write_bytes(b'["text"]\n' + LINE)
    assert find(tmp_path / "a.json")[0].format == "jsonl"


@needs_shared_data
def test_a_real_json_array_is_refused() -> None:
    """The files of instruction datasets are told what to do with."""
    error = refusal(SHARED_DATA / "chat" / "alpaca_en_demo.json")
    assert "jq" in str(error.remedy)


def test_unknown_types(tmp_path: Path) -> None:
    """A file of an unknown type, and a folder of nothing but those, ask for a format."""
    for name in ("a.bin", "noname", "a.gz"):
        (tmp_path / name).write_bytes(LINE)
        assert refusal(tmp_path / name).code == "E_FORMAT"
    error = refusal(tmp_path)
    assert ".bin" in str(error)
    assert "--format" in str(error)
    assert find(tmp_path / "a.bin", format="jsonl")[0].format == "jsonl"


@pytest.mark.parametrize("spec", ["missing.jsonl", "x" * 5000, "a\0b", "*.nothing", "no/such/dir/"])
def test_what_is_not_there(tmp_path: Path, spec: str) -> None:
    """Names that lead to nothing, however strange, are one line."""
    assert refusal(f"{tmp_path}/{spec}").exit_code in (4, 7)


def test_an_empty_name_is_not_the_current_folder() -> None:
    """`--input "$UNSET"` must not read whatever is here."""
    with pytest.raises(UsageError, match="is empty"):
        find("")
    with pytest.raises(UsageError, match="names no dataset"):
        find("hf:")


@pytest.mark.parametrize("format", [None, "jsonl", "text", "parquet"])
def test_pipes_and_devices_are_refused(tmp_path: Path, format: str | None) -> None:  # noqa: A002
    """They are not opened, which would wait for ever."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refusal(tmp_path / "pipe.jsonl", format=format).code == "E_FORMAT"
    assert refusal("/dev/zero", format=format).code == "E_FORMAT"


def test_standard_input() -> None:
    """A stream is refused with what to do instead."""
    error = refusal("-")
    assert "must be repeatable" in str(error)
    assert "file" in str(error.remedy)


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.jsonl.bz2", "a.xz", "a.zip"])
def test_known_types_that_are_not_read(tmp_path: Path, name: str) -> None:
    """They are not something to say with --format, alone or in a folder."""
    (tmp_path / name).write_bytes(LINE)
    error = refusal(tmp_path / name)
    table = name.lower().endswith("sv")
    remedy = "Convert it to JSONL or Parquet." if table else "Unpack it."
    assert (error.code, error.remedy) == ("E_FORMAT", remedy)
    assert "is not read" in error.problem
    assert str(refusal(tmp_path).remedy) == remedy.replace("it", "them")
    (tmp_path / "more.zip").touch()
    both = "Unpack the archives, and convert the tables to JSONL or Parquet."
    assert str(refusal(tmp_path).remedy) == (both if table else "Unpack them.")


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.csv", "Convert them to JSONL"), ("a.bz2", "Unpack them"), ("a.log", ".jsonl, .ndjson")],
)
def test_what_is_left_out_of_a_folder(tmp_path: Path, name: str, said: str) -> None:
    """The note says what would have it read."""
    (tmp_path / name).write_bytes(LINE)
    (tmp_path / "b.jsonl").write_bytes(LINE)
    options = BuildOptions(input=(str(tmp_path),), out=tmp_path / "out")
    (note,) = folder_notes(options)
    assert f"({name})" in note
    assert said in note


def test_no_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or folder that may not be read ends the search, and is named with what mends it."""
    true_open, true_scan = Path.open, os.scandir

    def refuse(path: Path | str) -> None:
        if Path(path).name in ("b.jsonl", "deep"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def open_(path: Path, *args: Any) -> Any:
        refuse(path)
        return true_open(path, *args)

    def scan(path: str) -> Any:
        refuse(path)
        return true_scan(path)

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(Path, "open", open_)
    for asked, named in ((folder / "b.jsonl", "b.jsonl"), (folder, "deep")):
        error = refusal(asked)
        assert isinstance(error, StorageError)
        assert (error.code, error.exit_code) == ("E_DENIED", 4)
        assert error.remedy == "Give yourself permission to read it (chmod)."
        assert str(error.where).endswith(named)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_files(tmp_path: Path) -> None:
    """A file without permission is an error of the machine."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    (tmp_path / "a.jsonl").chmod(0)
    assert refusal(tmp_path / "a.jsonl").exit_code == 4


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """A name that cannot be stored is refused, readably."""
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    try:
        Path(os.fsdecode(path)).write_bytes(LINE)
    except OSError:
        pytest.skip("this file system takes no such names")
    below = os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")
    os.mkdir(below)
    (Path(below) / "a.jsonl").write_bytes(LINE)
    for spec in (tmp_path, Path(below), Path(below) / "a.jsonl"):
        error = refusal(spec)
        str(error).encode()
        assert (error.exit_code, "not valid UTF-8" in str(error)) == (7, True)


def test_empty_files(tmp_path: Path) -> None:
    """They are inputs, of no bytes."""
    (tmp_path / "a.jsonl").touch()
    (source,) = find(tmp_path / "a.jsonl")
    assert (source.size, source.compression) == (0, None)


def test_plain_text_has_no_split_key(tmp_path: Path) -> None:
    """A key field is refused where records have no fields."""
    (tmp_path / "a.txt").write_text("some text")
    options = BuildOptions(input=(str(tmp_path),), out=tmp_path / "out", split_key="id")
    with pytest.raises(UsageError, match="no fields to split by"):
        survey(options)


def test_input_errors_are_input_errors(tmp_path: Path) -> None:
    """What is wrong with inputs ends with exit code 7."""
    error = refusal(tmp_path / "missing")
    assert isinstance(error, InputError)
    assert error.exit_code == 7
